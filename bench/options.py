"""What the user asked for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """``runs``: repetitions of what a median is taken of. ``kills``: crashes of the local cluster.

    ``resources``: how many the benchmark `operator` creates.
    """

    runs: int = 5
    kills: int = 10
    resources: int = 200
