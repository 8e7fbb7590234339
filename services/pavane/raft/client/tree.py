"""``RaftClient.tree``: the nodes of a cluster with the machine Tree (docs/specs/raft.md 12.7, 12.8)."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from pavane.raft.client.key_calls import Changes
from pavane.raft.client.keys import Keys, KeySession, Reset
from pavane.raft.errors import Code, Compacted, Refused
from pavane.raft.machines.commands import ANY_VERSION, Children, Create, Get, Remove, Set
from pavane.raft.machines.history import Happened, Scope, Watch

COUNTER_BYTES = 4


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node: ``version`` counts its writes from 0, ``cversion`` births and deaths of its children."""

    data: bytes
    version: int
    cversion: int
    create_revision: int
    mod_revision: int
    children: int
    lease: int


class TreeKeys:
    """The tree of nodes. Methods raise ``Refused`` with NO_NODE, NODE_EXISTS, BAD_VERSION, NOT_EMPTY, EPHEMERAL_PARENT.

    Transactions over several nodes, and over nodes and keys, are those of ``Keys.txn``; ephemeral nodes need a lease of
    ``Keys.lease``, whose loss tells that they may be gone.
    """

    def __init__(self, session: KeySession) -> None:
        self._session = session
        self._keys = Keys(session)

    def since(self, revision: int) -> "TreeKeys":
        """Return these nodes, of whose stale reads (``stale_tree``) none is older than ``revision``; see ``Keys``."""
        return TreeKeys(self._session.since(revision))

    async def get(self, path: bytes) -> NodeInfo | None:
        """Return a node, ``None`` if it is not there."""
        [[_, found]] = (await self._keys.read(Get(path))).value
        return NodeInfo(*found) if found is not None else None

    async def exists(self, path: bytes) -> bool:
        """Say whether a node is there."""
        return await self.get(path) is not None

    async def children(self, path: bytes) -> tuple[list[bytes], int]:
        """Return the names of a node's children, ascending, and its cversion."""
        [[_, names, cversion]] = (await self._keys.read(Children(path))).value
        return names, cversion

    async def create(
        self,
        path: bytes,
        data: bytes = b"",
        *,
        lease: int = 0,
        sequential: bool = False,
        reqid: bytes | None = None,
    ) -> bytes:
        """Create a node, with a ``lease`` an ephemeral one, and return its path, which a sequential one is given."""
        flags = (Create.EPHEMERAL if lease else 0) | (Create.SEQUENTIAL if sequential else 0)
        [[created]] = (await self._keys.txn(then=[Create(path, data, flags, lease)], reqid=reqid)).results
        return bytes(created)

    async def set(self, path: bytes, data: bytes, *, version: int = ANY_VERSION, reqid: bytes | None = None) -> int:
        """Replace a node's data, if it has ``version``, and return the new one."""
        [[new]] = (await self._keys.txn(then=[Set(path, data, version)], reqid=reqid)).results
        return int(new)

    async def remove(self, path: bytes, *, version: int = ANY_VERSION, reqid: bytes | None = None) -> None:
        """Remove a node without children, if it has ``version``."""
        await self._keys.txn(then=[Remove(path, version)], reqid=reqid)

    async def watch(
        self, path: bytes, scope: Scope = Scope.NODE_AND_CHILDREN, *, from_: int = 0
    ) -> AsyncGenerator[Changes | Reset, None]:
        """Yield what happens to a node, its children or all below it, as ``Keys.watch`` does; ``Reset``: read again."""
        while True:
            try:
                async with aclosing(self._session.changes(Watch(scope, path, b"", from_))) as changes:
                    async for change in changes:
                        from_ = change.revision + 1
                        if change.events:
                            yield change
            except Compacted:
                revision = (await self._keys.read(Get(path))).revision
                yield Reset(revision, ())
                from_ = revision + 1

    async def next_id(self, path: bytes) -> int:
        """Count up the number that a node holds in 4 bytes, greatest first, and return the new one: each is given once.

        A node without data counts as 0.
        """
        while True:
            node = await self.get(path)
            if node is None:
                raise Refused(Code.NO_NODE, f"{path.decode(errors='backslashreplace')} holds the counter; create it")
            number = int.from_bytes(node.data, "big") + 1
            try:
                await self.set(path, number.to_bytes(COUNTER_BYTES, "big"), version=node.version)
            except Refused as refused:
                if refused.code != Code.BAD_VERSION:
                    raise
            else:
                return number

    async def lock(self, path: bytes, lease: int, data: bytes = b"") -> int:
        """Wait until there is no node at ``path``, create it under ``lease`` and return its create revision.

        That is a fencing token as in ``Keys.lock``.
        """
        while True:
            try:
                await self.create(path, data, lease=lease)
            except Refused as refused:
                if refused.code != Code.NODE_EXISTS:
                    raise
            outcome = await self._keys.read(Get(path))
            [[_, found]] = outcome.value
            if found is not None:
                node = NodeInfo(*found)
                if node.lease == lease:
                    return node.create_revision
                await self._until_removed(path, outcome.revision + 1)

    async def _until_removed(self, path: bytes, revision: int) -> None:
        async with aclosing(self.watch(path, Scope.NODE, from_=revision)) as changes:
            async for change in changes:
                if isinstance(change, Reset) or any(event.kind == Happened.REMOVED for event in change.events):
                    return
