"""What the user asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """``runs``: repetitions of what a median is taken of. ``kills``: crashes of the local cluster or its processes.

    ``resources``: how many the benchmark `operator` creates. ``contestants``, ``in_flight``, ``sizes``: what part of
    `contest` is run; no contestants are all. ``updates``: how many `raft-snapshots` makes and `views-scale` reads.
    ``minutes``: of `waltz-soak`, and of `views` before its kills. ``engine``: of `views`, `view-queries`. ``rows``:
    of `views-scale`. ``rate``: appends a second of `waltz-soak`. ``kind``: of `way-back`.
    """

    runs: int = 5
    kills: int = 10
    resources: int = 200
    contestants: tuple[str, ...] = ()
    in_flight: tuple[int, ...] = (8, 64, 256, 1000)
    sizes: tuple[int, ...] = (100, 1000)
    updates: int = 1_000_000
    minutes: float = 5.0
    engine: str = "spark"
    rows: int = 10_000_000
    rate: int = 2000
    kind: str = "raft"
