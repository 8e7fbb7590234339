"""The kinds that this operator serves: the only list of them."""

from __future__ import annotations

from pavane_operator.kinds import raft, swim
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.port import Kind


def kinds(defaults: RenderDefaults) -> tuple[Kind, ...]:
    """All kinds, for an operator with these settings."""
    return (raft.kind(defaults), swim.kind(defaults))
