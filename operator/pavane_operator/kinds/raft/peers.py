"""A peer's answer to `pv.status`, checked (docs/specs/raft.md 4.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pavane.raft.state.configuration import Configuration
from pavane.raft.state.roles import Role
from pavane_operator.kinds.raft.facts import STATE_LOST, VOLUME_FULL, PeerView


def peer_view(answer: Mapping[str, Any]) -> PeerView | None:
    """What the answer says, or None where it is none of ours: then the peer counts as silent."""
    try:
        return PeerView(
            id=str(answer["id"]),
            leads=bool(answer["is_leader"]),
            term=int(answer["term"]),
            last=int(answer["last_index"]),
            commit=int(answer["commit_index"]),
            configuration=_configuration(answer["configuration"]),
            configuration_index=int(answer["configuration_index"]),
            committed=bool(answer["configuration_committed"]),
            matches={
                str(member["id"]): int(member["match_index"])
                for member in answer["members"]
                if member["match_index"] is not None
            },
            state_lost=STATE_LOST in answer["blockers"],
            volume_full=VOLUME_FULL in answer["blockers"],
            removed=answer["role"] == Role.REMOVED.title,
        )
    except (KeyError, TypeError, ValueError):
        return None


def _configuration(value: Mapping[str, Any]) -> Configuration:
    old = value.get("old")
    return Configuration(_members(value["new"]), None if old is None else _members(old))


def _members(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple((str(peer), str(url)) for peer, url in value)
