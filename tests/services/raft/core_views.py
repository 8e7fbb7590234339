"""Short ways to look at a simulated ensemble of cores."""

from collections.abc import Sequence

from pavane.raft.core.outputs import (
    Event,
    RoleChanged,
)
from pavane.raft.state.roles import Role
from pavane.raft.wire.replies import RequestUpdateReply, UpdateStatus
from tests.services.raft.ensemble import Ensemble, decoded


def others(ensemble: Ensemble, name: str) -> str:
    return "".join(peer for peer in ensemble.cores if peer != name)


def isolate(ensemble: Ensemble, name: str) -> None:
    for peer in others(ensemble, name):
        ensemble.cuts |= {(name, peer), (peer, name)}


def lose_disk(ensemble: Ensemble, name: str) -> None:
    """Stop a peer and forget what it stored."""
    ensemble.down(name)
    ensemble.disks[name].wipe()


def changes(events: Sequence[Event]) -> list[Role]:
    return [event.new for event in events if isinstance(event, RoleChanged)]


def statuses(ensemble: Ensemble, client: str) -> list[UpdateStatus]:
    return [decoded(RequestUpdateReply, frames).status for frames in ensemble.told(client)]
