"""The metadata store in memory, for one process: tests and benchmarks."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pavane.waltz.state.metadata import BadVersion, Lease, Node, NodeExists, NoNode


class MemoryLease:
    """Lives until ``revoke``."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    async def ended(self) -> None:
        """Return when the lease is revoked."""
        await self.lost.wait()


class MemoryMetadata:
    """A tree of nodes; see ``pavane.waltz.state.metadata.Metadata``."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._owners: dict[str, Lease] = {}
        self._counters: dict[str, int] = {}
        self._watchers: set[asyncio.Queue[str]] = set()

    async def get(self, path: str, *, lease: Lease | None = None) -> Node | None:
        """Return a node."""
        return self._nodes.get(path)

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Replace a node's data."""
        node = self._node(path)
        if node.version != version:
            raise BadVersion(f"{path} has version {node.version}, not {version}")
        self._nodes[path] = node._replace(data=data, version=version + 1)
        self._tell(path)
        return version + 1

    async def create(self, path: str, data: bytes, *, lease: Lease | None = None, sequential: bool = False) -> str:
        """Create a node."""
        parent = path.rpartition("/")[0]
        if sequential:
            self._counters[parent] = self._counters.get(parent, -1) + 1
            path = f"{path}{self._counters[parent]:010d}"
        if path in self._nodes:
            raise NodeExists(path)
        if parent:
            self._touch(parent)
        self._nodes[path] = Node(data, 0, 0)
        if lease is not None:
            self._owners[path] = lease
        self._tell(path)
        return path

    async def remove(self, path: str) -> None:
        """Remove a node."""
        self._node(path)
        del self._nodes[path]
        self._owners.pop(path, None)
        if parent := path.rpartition("/")[0]:
            self._touch(parent)
        self._tell(path)

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children."""
        self._node(path)
        prefix = f"{path}/"
        return sorted(
            p.removeprefix(prefix) for p in self._nodes if p.startswith(prefix) and "/" not in p[len(prefix) :]
        )

    async def changes(self, root: str, paths: Sequence[str]) -> AsyncGenerator[str, None]:
        """Yield what changes."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            yield ""
            while True:
                path = await queue.get()
                if path in paths or path.rpartition("/")[0] in paths:
                    yield path
        finally:
            self._watchers.discard(queue)

    @asynccontextmanager
    async def lease(self, ttl_s: float) -> AsyncIterator[MemoryLease]:
        """Hold a lease until it is revoked."""
        lease = MemoryLease()
        try:
            yield lease
        finally:
            await self.revoke(lease)

    async def revoke(self, lease: Lease) -> None:
        """End a lease and remove what goes with it."""
        if isinstance(lease, MemoryLease):
            lease.lost.set()
        for path in [path for path, owner in self._owners.items() if owner is lease]:
            await self.remove(path)

    def _node(self, path: str) -> Node:
        if path not in self._nodes:
            raise NoNode(path)
        return self._nodes[path]

    def _touch(self, path: str) -> None:
        node = self._node(path)
        self._nodes[path] = node._replace(cversion=node.cversion + 1)

    def _tell(self, path: str) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(path)
