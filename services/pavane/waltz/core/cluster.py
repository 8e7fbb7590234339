"""The cluster manager: who is there, who owns what, and what follows from it (docs/specs/waltz.md 8.3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pavane.waltz.core.outputs import WriteAssignment
from pavane.waltz.state.assignment import Candidate, assign
from pavane.waltz.wire.blobs import AssignedPartition, PartitionAssignment, Rollout, ServerDescriptor, ServerPartitions

STEP_S = 0.5  # between two assignments of a rollout: the partitions of the last one are open by then, as a rule


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the metadata store says of servers: ``version`` and ``cversion`` are those of ``serverDescriptors``.

    ``servers`` are live, ``numbers`` their rollouts, ``storage`` the replicas of each partition. ``first_partitions``
    is how many the cluster was made with.
    """

    assignment: PartitionAssignment
    version: int
    cversion: int
    servers: Mapping[int, ServerDescriptor] = field(default_factory=dict)
    numbers: Mapping[int, int] = field(default_factory=dict)
    rollout: Rollout | None = None
    storage: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    first_partitions: int = 0

    @property
    def consistent(self) -> bool:
        """Whether the assignment was made for the servers that are there."""
        return self.assignment.cversion == self.cversion

    @property
    def partitions(self) -> int:
        """How many there are: those that storage nodes have."""
        return max(self.storage, default=-1) + 1

    def owned(self) -> dict[int, list[tuple[int, int]]]:
        """Return what each server owns."""
        return {
            server.server_id: [(one.partition, one.generation) for one in server.partitions]
            for server in self.assignment.servers
        }


def rewritten(view: ClusterView, *, stepping: bool) -> WriteAssignment | None:
    """Return the assignment that follows from ``view``, ``None`` if that is the present one.

    A rollout moves a quarter of the partitions at a time; not ``stepping``: none this time.
    """
    partitions = view.partitions
    if partitions < view.assignment.partitions:
        return None  # they never become fewer: what was read is no answer
    live = {
        server: Candidate(descriptor.preferred, view.numbers.get(server, 0))
        for server, descriptor in view.servers.items()
    }
    current = view.owned()
    moves = None
    if view.rollout is not None and len(set(view.numbers.values())) > 1:
        moves = max(1, partitions // 4) if stepping else 0
    after = assign(current, live, partitions, view.rollout, moves)
    if after is None:
        return None
    present = {server: sorted(owned) for server, owned in current.items() if owned}
    if view.consistent and present == {server: owned for server, owned in after.items() if owned}:
        return None
    servers = tuple(
        ServerPartitions(server, tuple(AssignedPartition(*one) for one in owned)) for server, owned in after.items()
    )
    return WriteAssignment(view.version, PartitionAssignment(view.cversion, partitions, servers))
