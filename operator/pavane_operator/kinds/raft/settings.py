"""Which settings of a Raft server a user may give in `spec.config`, and what is wrong with them."""

from __future__ import annotations

from pavane.raft.config import Config
from pavane_operator.crds.raftcluster import RaftClusterSpec
from pavane_operator.crds.values import parse_duration

TUNABLES = (
    "append_timeout",
    "broadcast_heartbeat",
    "request_entries_ttl",
    "request_id_margin_s",
    "request_id_ttl_s",
    "rpc_timeout",
)
"""Keys of docs/specs/raft.md 16 with a default that is right nearly everywhere; the rest the operator sets itself."""
HEARTBEATS_PER_ELECTION_TIMEOUT = 4
"""heartbeat = election_min / 4 (docs/specs/operator.md 1.4): three may be lost before anybody stands."""


def timers_ms(spec: RaftClusterSpec) -> dict[str, int]:
    """The timers that `spec.electionTimeout` stands for, in milliseconds."""
    minimum_ms = _milliseconds(spec.election_timeout.min)
    return {
        "election_min": minimum_ms,
        "election_max": _milliseconds(spec.election_timeout.max),
        "heartbeat": minimum_ms // HEARTBEATS_PER_ELECTION_TIMEOUT,
    }


def config_problem(spec: RaftClusterSpec) -> str | None:
    """Why a server would refuse these settings, in words for the user; None = it would not."""
    for key, value in spec.config.items():
        if key not in TUNABLES:
            return f"spec.config.{key}: no such setting; there are {', '.join(TUNABLES)}"
        if isinstance(value, bool) or not isinstance(value, int):
            return f"spec.config.{key}: {value!r} is not a whole number"
    config = Config(id="peer", ident=b"", **timers_ms(spec), **spec.config)  # type: ignore[arg-type]
    try:
        config.validate()
    except ValueError as error:
        return f"spec.config: {error}"
    return None


def _milliseconds(duration: str) -> int:
    return int(parse_duration(duration).total_seconds() * 1000)
