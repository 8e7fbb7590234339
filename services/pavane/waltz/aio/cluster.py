"""What a server does in the metadata store: make the tree, read the view, register (docs/specs/waltz.md 8.2, 8.3)."""

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from pavane.waltz.core.cluster import ClusterView, rewritten
from pavane.waltz.state.metadata import BadVersion, Lease, Metadata, Node, NodeExists, NoNode, OtherCluster, Paths
from pavane.waltz.wire import blobs
from pavane.wire import RemoteProtocolError

_SEQUENCE = "s_"
COUNTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What a cluster is: its name, its tree, and the replicas of its partitions, each on all nodes of ``storage``.

    Partitions may have been added since, and storage nodes replaced: the tree says.
    """

    name: str
    root: str
    key: UUID
    partitions: int
    storage: tuple[str, ...]
    session_timeout_s: float = 1.0
    admin_port: int = 0
    """Of every storage node; 0: tools cannot reach them."""


async def make_tree(metadata: Metadata, config: ClusterConfig, more: Mapping[str, bytes] | None = None) -> None:
    """Create what is missing of the cluster's tree; any number of programs may do so at once.

    ``more`` are further nodes, or other data of a node. Servers begin when the last node is there, that with the
    assignment.

    Raises ``OtherCluster`` where another one stands already.
    """
    paths = Paths(config.root)
    parents = [config.root[:at] for at, letter in enumerate(config.root) if letter == "/" and at]
    groups = tuple(blobs.NodeNumber(address, group) for group, address in enumerate(config.storage))
    admin = tuple(blobs.NodeNumber(address, config.admin_port) for address in config.storage)
    wanted = {
        **dict.fromkeys(parents, b""),
        paths.root: blobs.CLUSTER_PARAMS.encode(blobs.ClusterParams(config.name, config.partitions)),
        paths.ids: b"",
        paths.client_ids: bytes(COUNTER_BYTES),
        paths.server_ids: bytes(COUNTER_BYTES),
        paths.store: blobs.STORE_PARAMS.encode(blobs.StoreParams(config.key, config.partitions)),
        paths.assignment: _assignments(config.partitions, config.storage),
        paths.groups: blobs.NODE_NUMBERS.encode(blobs.NodeNumbers(groups)),
        paths.connections: blobs.NODE_NUMBERS.encode(blobs.NodeNumbers(admin)),
        paths.partitions: b"",
        paths.readers: b"",
        **(more or {}),
    }
    wanted[paths.servers] = wanted.pop(paths.servers, blobs.PARTITION_ASSIGNMENT.encode(blobs.EMPTY_ASSIGNMENT))
    for path, data in wanted.items():
        if await metadata.get(path) is None:
            with suppress(NodeExists):
                await metadata.create(path, data)
        if path in (paths.root, paths.store):
            await check_tree(metadata, config)


async def check_tree(metadata: Metadata, config: ClusterConfig) -> None:
    """Raise ``OtherCluster`` if what stands at the root of ``config`` was made for another cluster."""
    paths = Paths(config.root)
    params, store = await metadata.get(paths.root), await metadata.get(paths.store)
    try:
        name = None if params is None else blobs.CLUSTER_PARAMS.decode(params.data).name
        key = None if store is None else blobs.STORE_PARAMS.decode(store.data).key
    except RemoteProtocolError:
        name, key = "", None
    if name not in (None, config.name) or key not in (None, config.key):
        raise OtherCluster(
            f"{config.root} holds another cluster, or this one with another name or key: choose another root, or "
            "delete that tree when nobody uses it any more"
        )


async def set_replicas(metadata: Metadata, config: ClusterConfig) -> None:
    """Let a cluster that stands have the partitions of ``config``, each on its storage nodes.

    Partitions never become fewer. Owners fill new copies before these count, and drop others then. Any number of
    programs may ask for the same at once. Raises ``NoNode`` where the tree is not complete.
    """
    paths = Paths(config.root)
    for path in (paths.groups, paths.connections):
        node = await _present(metadata, path)
        nodes = blobs.NODE_NUMBERS.decode(node.data).nodes
        added = [address for address in config.storage if address not in {one.address for one in nodes}]
        if added:
            group = max((one.number for one in nodes), default=-1) + 1
            numbers = itertools.count(group) if path == paths.groups else itertools.repeat(config.admin_port)
            nodes += tuple(map(blobs.NodeNumber, added, numbers))
            await metadata.set(path, blobs.NODE_NUMBERS.encode(blobs.NodeNumbers(nodes)), node.version)
    node = await _present(metadata, paths.assignment)
    present = _replicas(blobs.REPLICA_ASSIGNMENTS.decode(node.data))
    data = _assignments(max(config.partitions, len(present)), config.storage)
    if data != node.data:
        await metadata.set(paths.assignment, data, node.version)


async def _present(metadata: Metadata, path: str) -> Node:
    node = await metadata.get(path)
    if node is None:
        raise NoNode(f"{path} is not there; the cluster's tree is not complete")
    return node


def _assignments(partitions: int, storage: Sequence[str]) -> bytes:
    numbers = tuple(range(partitions))
    nodes = tuple(blobs.ReplicaAssignment(address, numbers) for address in storage)
    return blobs.REPLICA_ASSIGNMENTS.encode(blobs.ReplicaAssignments(nodes))


async def next_id(metadata: Metadata, path: str) -> int:
    """Return the next number of a counter; the first is 1."""
    while True:
        node = await metadata.get(path)
        if node is None:
            raise NoNode(f"{path} holds a counter; the cluster's tree is not complete")
        number = int.from_bytes(node.data, "big") + 1
        with suppress(BadVersion):
            await metadata.set(path, number.to_bytes(COUNTER_BYTES, "big"), node.version)
            return number


async def set_rollout(metadata: Metadata, root: str, number: int, servers: int, *, back_from: int = 0) -> None:
    """Say that servers of generation ``number`` shall own everything.

    A smaller number changes nothing, unless it goes ``back_from`` the generation that has its turn now; nor does one
    that was left so: a late call of somebody who has not seen it harms nobody.
    """
    path = Paths(root).rollout
    while True:
        node = await metadata.get(path)
        found = blobs.Rollout(0, 0) if node is None else blobs.ROLLOUT.decode(node.data)
        data = blobs.ROLLOUT.encode(blobs.Rollout(number, servers, back_from or found.left))
        try:
            if node is None:
                await metadata.create(path, data)
            elif found.number == back_from if back_from else number > max(found.number, found.left):
                await metadata.set(path, data, node.version)
        except (BadVersion, NodeExists):
            continue
        return


async def read_rollout(metadata: Metadata, root: str) -> blobs.Rollout | None:
    """Return which generation shall own everything, ``None`` if none was ever told to."""
    node = await metadata.get(Paths(root).rollout)
    return None if node is None else blobs.ROLLOUT.decode(node.data)


async def register(
    metadata: Metadata, root: str, lease: Lease, descriptor: blobs.ServerDescriptor, rollout: int
) -> str:
    """Publish a live server; return the path of its descriptor. Who was at its address before it has ended."""
    paths = Paths(root)
    await unregister(metadata, root, lambda one: (one.host, one.port) == (descriptor.host, descriptor.port))
    if rollout:
        data = blobs.SERVER_ROLLOUT.encode(blobs.ServerRollout(descriptor.server_id, rollout))
        await _replace(metadata, f"{paths.rollout}/{_SEQUENCE}{descriptor.server_id}", data, lease)
    data = blobs.SERVER_DESCRIPTOR.encode(descriptor)
    return await metadata.create(f"{paths.servers}/{_SEQUENCE}", data, lease=lease, sequential=True)


async def unregister(metadata: Metadata, root: str, which: Callable[[blobs.ServerDescriptor], bool]) -> None:
    """Remove the descriptors of servers that have ended; one that lives hears of it, and registers anew.

    What cannot be read as a descriptor is left alone.
    """
    path = Paths(root).servers
    for name, data in (await _ephemerals(metadata, path)).items():
        with suppress(NoNode, RemoteProtocolError):
            if which(blobs.SERVER_DESCRIPTOR.decode(data)):
                await metadata.remove(f"{path}/{name}")


async def prefer(metadata: Metadata, config: ClusterConfig, path: str, descriptor: blobs.ServerDescriptor) -> bool:
    """Rewrite the ``descriptor`` at ``path``, whose server prefers other partitions now, and who owns what.

    The coordinator does not notice, as no server came or went: so the server writes the assignment itself. Returns
    whether it did; false: the server is not registered any more.
    """
    paths = Paths(config.root)
    node = await metadata.get(path)
    if node is None:
        return False
    await metadata.set(path, blobs.SERVER_DESCRIPTOR.encode(descriptor), node.version)
    while (view := await read_view(metadata, config.root)) is not None:
        write = rewritten(view, stepping=False)
        if write is None:
            return True
        with suppress(BadVersion):
            data = blobs.PARTITION_ASSIGNMENT.encode(write.assignment)
            await metadata.set(paths.servers, data, write.version)
            return True
    return False


async def _replace(metadata: Metadata, path: str, data: bytes, lease: Lease) -> None:
    """Create an ephemeral node that an earlier lease of ours may have left."""
    while True:
        try:
            await metadata.create(path, data, lease=lease)
        except NodeExists:
            with suppress(NoNode):
                await metadata.remove(path)
        else:
            return


async def read_view(metadata: Metadata, root: str) -> ClusterView | None:
    """Return who is there and who owns what; ``None`` while the tree is not complete."""
    paths = Paths(root)
    while True:
        node = await metadata.get(paths.servers)
        storage = await metadata.get(paths.assignment)
        if node is None or storage is None:
            return None
        servers = await _ephemerals(metadata, paths.servers)
        again = await metadata.get(paths.servers)
        if again is not None and (again.version, again.cversion) == (node.version, node.cversion):
            break
    params = await metadata.get(root)
    descriptors = [blobs.SERVER_DESCRIPTOR.decode(data) for data in servers.values()]
    numbers: dict[int, int] = {}
    rollout = await read_rollout(metadata, root)
    if rollout is not None:
        found = [blobs.SERVER_ROLLOUT.decode(data) for data in (await _ephemerals(metadata, paths.rollout)).values()]
        numbers = {one.server_id: one.number for one in found}
    return ClusterView(
        blobs.PARTITION_ASSIGNMENT.decode(node.data),
        node.version,
        node.cversion,
        {descriptor.server_id: descriptor for descriptor in descriptors},
        numbers,
        rollout,
        _replicas(blobs.REPLICA_ASSIGNMENTS.decode(storage.data)),
        0 if params is None else blobs.CLUSTER_PARAMS.decode(params.data).partitions,
    )


def _replicas(assignments: blobs.ReplicaAssignments) -> dict[int, tuple[str, ...]]:
    found: dict[int, tuple[str, ...]] = {}
    for replica in assignments.replicas:
        for partition in replica.partitions:
            found[partition] = (*found.get(partition, ()), replica.address)
    return found


async def _ephemerals(metadata: Metadata, path: str) -> Mapping[str, bytes]:
    names: Sequence[str] = [name for name in await metadata.children(path) if name.startswith(_SEQUENCE)]
    nodes = await asyncio.gather(*(metadata.get(f"{path}/{name}") for name in names))
    return {name: node.data for name, node in zip(names, nodes, strict=True) if node is not None}
