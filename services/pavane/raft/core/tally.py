"""What the core counts for metrics on its hot paths: plain integers in place of events (docs/specs/raft.md 15.1)."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Batches:
    """Messages with entries that one member was sent first, and the entries in them; repetitions do not count."""

    messages: int = 0
    entries: int = 0


@dataclass(slots=True)
class Tally:
    """Since the start of the process; only grows. Times in seconds.

    ``commits`` are batches that we appended as leader, one for each turn, and ``commit_s`` what they took from there to
    the commit. A ``round`` is what it takes from a leader's message until a majority has answered one that was first
    sent then or later. ``appended`` holds members alone, so it is as large as the configuration.
    """

    commits: int = 0
    commit_s: float = 0.0
    rounds: int = 0
    round_s: float = 0.0
    entries_read: int = 0
    appended: dict[str, Batches] = field(default_factory=dict)
