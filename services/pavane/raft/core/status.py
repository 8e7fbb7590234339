"""Read-only pictures of a peer, for ``pv.status``, metrics, stage reports and the fence of a pod (4.4, 8.3, 8.6)."""

from dataclasses import dataclass
from enum import StrEnum

from pavane.raft.state.configuration import Configuration
from pavane.raft.state.roles import Role
from pavane.wire import Stage


class Fence(StrEnum):
    """What a peer that starts knows about its right to take part (docs/specs/raft.md 8.6, operator 2.12)."""

    NAMED = "named"  # its own log's last configuration names it
    SUPERSEDED = "superseded"  # a committed configuration names a newer generation and not this peer
    AWAY = "away"  # not named in its own log, which is not empty, but in the cluster's configuration
    LOST = "lost"  # named by the cluster, but its store is empty or damaged
    AHEAD = "ahead"  # named nowhere: a learner
    UNKNOWN = "unknown"  # nobody has answered yet


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member as this peer sees it. ``match`` is -1 where we do not lead; ``kind`` is ours, js or unknown."""

    id: str
    url: str
    kind: str
    match: int
    in_flight: int
    answered_s: float | None  # seconds since its last answer to an RPC


@dataclass(frozen=True, slots=True)
class Status:
    """One moment of a peer. ``target`` is the greatest commit index of a leader that was seen, never falling."""

    id: str
    role: Role
    stage: Stage
    term: int
    leader: str | None
    first: int
    last: int
    durable: int
    commit: int
    applied: int
    target: int
    effective: Configuration
    effective_index: int
    committed: Configuration
    committed_index: int
    members: tuple[MemberStatus, ...]
    transfer_to: str | None
    fence: Fence
    recovering: bool
    blockers: tuple[str, ...]  # NoQuorum, StateLost
    dedup_ids: int
    dedup_oldest_second: int | None
    streams: int
    pending: int
    dropped: tuple[tuple[str, int], ...]
    first_write_ms: int | None
    last_write_ms: int | None
