"""The metadata store in ZooKeeper, where the original keeps it (docs/specs/waltz.md 8.1).

kazoo has threads of its own; its answers and events are handed to the event loop. A lease is a session of its own: to
close it gives back all ephemeral nodes at once, and nothing else lives by it.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, Self

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import KazooState, KeeperState

from pavane.waltz.state.metadata import BadVersion, Lease, MetadataError, Node, NodeExists, NoNode

CALL_S = 5.0  # for one answer; kazoo holds calls back until a server can be reached
SESSION_S = 4.0  # of the session that reads, writes and watches; no ephemeral node depends on it
RECONNECT_MAX_S = 1.0  # between two rounds through the servers
BEATS = 3  # signs of life within the time of a lease
OWN_CLOCK = 0.9  # of a session's time without an answer: then it counts as lost, whatever the server will say
RETRY_S = 0.05

_REFUSALS: dict[type[KazooException], type[MetadataError]] = {
    BadVersionError: BadVersion,
    NodeExistsError: NodeExists,
    NoNodeError: NoNode,
}


class ZooKeeperLease:
    """A session whose end, or possible end by our own clock, is told."""

    def __init__(self, client: "_Client") -> None:
        self.client = client
        self.lost = asyncio.Event()

    async def ended(self) -> None:
        """Return when the session has expired, or may have."""
        await self.lost.wait()

    async def keep(self, until: float) -> None:
        """Give signs of life; ``until`` is how long the session surely lives by now."""
        client = self.client
        while not client.expired.is_set():
            asked = monotonic()
            try:
                async with asyncio.timeout(until - asked):
                    await client.call(client.zookeeper.exists_async, "/")
            except TimeoutError:
                break
            except MetadataError:  # the connection is lost; another server may take the session over in time
                await asyncio.sleep(RETRY_S)
                continue
            until = asked + OWN_CLOCK * client.session_s
            with suppress(TimeoutError):
                async with asyncio.timeout(client.session_s / BEATS):
                    await client.expired.wait()
        self.lost.set()


class ZooKeeperMetadata:
    """See ``pavane.waltz.state.metadata.Metadata``; an async context manager.

    ``connect`` names the servers, ``host:port`` with commas between. It connects in the background, and again as long
    as it is open.
    """

    def __init__(self, connect: str) -> None:
        self._connect = connect
        self._client: _Client | None = None

    async def __aenter__(self) -> Self:
        self._client = await _Client.open(self._connect, SESSION_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def get(self, path: str, *, lease: Lease | None = None) -> Node | None:
        """Return a node. Over a lease's session it has what that session wrote, and what others had when it asked."""
        client = self._open
        if isinstance(lease, ZooKeeperLease):
            client = lease.client
            await client.answer(client.zookeeper.sync_async, "/")
        try:
            data, stat = await client.answer(client.zookeeper.get_async, path)
        except NoNode:
            return None
        return Node(data, stat.version, stat.cversion)

    async def set(self, path: str, data: bytes, version: int) -> int:
        """Replace data of that version."""
        stat = await self._call("set_async", path, data, version)
        return int(stat.version)

    async def create(self, path: str, data: bytes, *, lease: Lease | None = None, sequential: bool = False) -> str:
        """Create a node."""
        client = lease.client if isinstance(lease, ZooKeeperLease) else self._open
        created = partial(client.zookeeper.create_async, ephemeral=lease is not None, sequence=sequential)
        return str(await client.answer(created, path, data))

    async def remove(self, path: str) -> None:
        """Remove a node."""
        await self._call("delete_async", path)

    async def children(self, path: str) -> list[str]:
        """Return the names of a node's children."""
        return sorted(await self._call("get_children_async", path))

    async def changes(self, root: str, paths: Sequence[str]) -> AsyncGenerator[str, None]:
        """Yield those of ``paths`` whose data or children change."""
        client = self._open
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()

        def told(event: tuple[str, bool], _: Any) -> None:
            _to_loop(loop, events.put_nowait, event)

        watches = {(path, nodes): partial(told, (path, nodes)) for path in paths for nodes in (False, True)}
        fired = set(watches)  # each is heard once, then it has to be set again
        while True:
            for path, nodes in fired:
                ask = client.zookeeper.get_children_async if nodes else client.zookeeper.exists_async
                with suppress(NoNode):  # its birth is told by the other watch, which then is set as well
                    await client.answer(partial(ask, watch=watches[path, nodes]), path)
            yield ""
            fired = {await events.get()}
            while not events.empty():
                fired.add(events.get_nowait())
            fired |= {(path, True) for path, nodes in fired if not nodes}

    @asynccontextmanager
    async def lease(self, ttl_s: float) -> AsyncIterator[ZooKeeperLease]:
        """Hold a session of its own; the servers may grant it another time than ``ttl_s``."""
        begun = monotonic()
        client = await _Client.open(self._connect, ttl_s)
        lease = ZooKeeperLease(client)
        keeping: asyncio.Task[None] | None = None
        try:
            await client.answer(client.zookeeper.exists_async, "/")
            keeping = asyncio.create_task(lease.keep(begun + OWN_CLOCK * client.session_s), name="zookeeper lease")
            yield lease
        finally:
            if keeping is not None:
                keeping.cancel()
            await client.close()

    @property
    def _open(self) -> "_Client":
        if self._client is None:
            raise MetadataError("the way to ZooKeeper is closed")
        return self._client

    async def _call(self, method: str, *arguments: Any) -> Any:
        client = self._open
        return await client.answer(getattr(client.zookeeper, method), *arguments)


class _Client:
    """A session and its calls, awaited."""

    def __init__(self, connect: str, session_s: float) -> None:
        self.zookeeper = KazooClient(
            connect, timeout=session_s, connection_retry={"max_tries": -1, "max_delay": RECONNECT_MAX_S}
        )
        self._connect = connect
        self.session_s = session_s
        """Time that the servers granted; before that, the one that was asked for."""
        self.expired = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._measure()
        self.zookeeper.add_listener(self._turned)

    @classmethod
    async def open(cls, connect: str, session_s: float) -> Self:
        """Begin to connect."""
        self = cls(connect, session_s)
        await asyncio.to_thread(self.zookeeper.start_async)
        return self

    async def close(self) -> None:
        """End the session, within a moment if no server can be reached."""
        self._closing = True
        await asyncio.shield(asyncio.to_thread(self._close))

    async def answer(self, method: Callable[..., IAsyncResult], *arguments: Any) -> Any:
        """Await an answer, but not for ever. Raises ``MetadataError``."""
        try:
            async with asyncio.timeout(CALL_S):
                return await self.call(method, *arguments)
        except TimeoutError:
            raise MetadataError(f"no ZooKeeper server of {self._connect} answered within {CALL_S:.0f} s") from None

    async def call(self, method: Callable[..., IAsyncResult], *arguments: Any) -> Any:
        """Await an answer. Raises ``MetadataError``."""
        # Until kazoo has begun to connect it takes a new client for a closed one, and has no event for that.
        while self.zookeeper.client_state == KeeperState.CLOSED and not self._closing:  # noqa: ASYNC110
            await asyncio.sleep(RETRY_S)
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: IAsyncResult) -> None:
            if not future.done():
                if result.exception is None:
                    future.set_result(result.value)
                else:
                    future.set_exception(_translated(result.exception))

        method(*arguments).rawlink(lambda result: _to_loop(self._loop, settle, result))
        return await future

    def _turned(self, state: str) -> None:
        """kazoo opens another session when one has expired; what belonged to the first is gone."""
        if state == KazooState.LOST:
            _to_loop(self._loop, self.expired.set)

    def _measure(self) -> None:
        # kazoo keeps the time that it was granted to itself: two thirds of it are what this returns first.
        connection = self.zookeeper._connection
        connected = connection._connect

        def measured(*arguments: Any) -> tuple[float, float]:
            read_ms, connect_ms = connected(*arguments)
            self.session_s = read_ms * 1.5 / 1000
            return read_ms, connect_ms

        connection._connect = measured

    def _close(self) -> None:
        with suppress(KazooException, KazooTimeoutError, OSError):
            self.zookeeper.stop()
            self.zookeeper.close()


def _translated(error: BaseException) -> MetadataError:
    return _REFUSALS.get(type(error), MetadataError)(f"ZooKeeper: {error}".removesuffix(": ") or "ZooKeeper")


def _to_loop(loop: asyncio.AbstractEventLoop, what: Callable[..., Any], *arguments: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(what, *arguments)
