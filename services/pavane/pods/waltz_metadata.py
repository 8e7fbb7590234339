"""Waltz's metadata in a RaftCluster with the machine Tree, or in ZooKeeper (docs/specs/waltz.md 8.1)."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Self, TypeVar

from pavane.pods.waltz_settings import Metadata as Peers
from pavane.pods.waltz_settings import ZooKeeperServers
from pavane.raft.client import HeldLease, RaftClient, Reset
from pavane.raft.errors import Code, RaftError, Refused
from pavane.raft.machines.commands import Get
from pavane.raft.machines.history import Scope
from pavane.waltz.aio.zookeeper import ZooKeeperMetadata
from pavane.waltz.state.metadata import BadVersion, Lease, MetadataError, Node, NodeExists, NoNode

T = TypeVar("T")
_ERRORS: dict[int, Callable[[str], MetadataError]] = {
    Code.BAD_VERSION: BadVersion,
    Code.NODE_EXISTS: NodeExists,
    Code.NO_NODE: NoNode,
}


class RaftLease:
    """A lease that the client renews in the background."""

    def __init__(self, held: HeldLease) -> None:
        self.held = held

    async def ended(self) -> None:
        """Return when the lease is lost, or may be by our own clock."""
        await self.held.lost.wait()


class RaftMetadata:
    """See ``pavane.waltz.state.metadata.Metadata``; an async context manager, which opens and closes the client."""

    def __init__(self, client: RaftClient) -> None:
        self._client = client

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.__aexit__(None, None, None)

    async def get(self, path: str, *, lease: Lease | None = None) -> Node | None:
        """Return a node; none is old here."""
        found = await _translated(self._client.tree.get(path.encode()))
        return None if found is None else Node(found.data, found.version, found.cversion)

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Replace data of that version."""
        return await _translated(self._client.tree.set(path.encode(), data, version=version))

    async def create(self, path: str, data: bytes, *, lease: Lease | None = None, sequential: bool = False) -> str:
        """Create a node."""
        number = lease.held.id if isinstance(lease, RaftLease) else 0
        created = self._client.tree.create(path.encode(), data, lease=number, sequential=sequential)
        return (await _translated(created)).decode()

    async def remove(self, path: str) -> None:
        """Remove a node."""
        await _translated(self._client.tree.remove(path.encode()))

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children."""
        names, _ = await _translated(self._client.tree.children(path.encode()))
        return [name.decode() for name in names]

    async def changes(self, root: str, paths: Sequence[str]) -> AsyncGenerator[str, None]:
        """Yield what changes of ``paths`` and their children: one watch of the whole tree serves them all."""
        try:
            start = (await self._client.kv.read(Get(root.encode()))).revision + 1
            yield ""
            async with aclosing(self._client.tree.watch(root.encode(), Scope.SUBTREE, from_=start)) as changes:
                async for change in changes:
                    if isinstance(change, Reset):
                        yield ""
                        continue
                    for path in dict.fromkeys(event.key.decode() for event in change.events):
                        if path in paths or path.rpartition("/")[0] in paths:
                            yield path
        except RaftError as error:
            raise MetadataError(str(error)) from error

    @asynccontextmanager
    async def lease(self, ttl_s: float) -> AsyncIterator[RaftLease]:
        """Hold a lease."""
        try:
            async with self._client.kv.lease(ttl_s, b"waltz") as held:
                yield RaftLease(held)
        except RaftError as error:
            raise MetadataError(str(error)) from error


def store_of(found: Peers | ZooKeeperServers) -> RaftMetadata | ZooKeeperMetadata:
    """Return the way to the store that the metadata Secret names; it is to be opened."""
    if isinstance(found, ZooKeeperServers):
        return ZooKeeperMetadata(found.connect)
    return RaftMetadata(RaftClient(found.addresses, found.keys.ident, curve=found.keys.curve))


async def _translated(call: Coroutine[Any, Any, T]) -> T:
    try:
        return await call
    except Refused as error:
        raise _ERRORS.get(error.code, MetadataError)(str(error)) from error
    except RaftError as error:
        raise MetadataError(str(error)) from error
