"""A peer's right to take part, as its log and the cluster tell it (docs/specs/raft.md 8.6, operator 2.12)."""

from enum import StrEnum


class Fence(StrEnum):
    """What a peer that starts knows about its right to take part (docs/specs/raft.md 8.6, operator 2.12)."""

    NAMED = "named"  # its own log's last configuration names it
    SUPERSEDED = "superseded"  # a committed configuration names a newer generation and not this peer
    AWAY = "away"  # not named in its own log, which is not empty, but in the cluster's configuration
    LOST = "lost"  # named by the cluster, but its store is empty or damaged
    AHEAD = "ahead"  # named nowhere: a learner
    UNKNOWN = "unknown"  # nobody has answered yet
