"""``pavane.connect_log`` and ``connect_log_sync``: a log for an application, in one line (docs/waltz.md)."""

import asyncio
import shutil
import ssl
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pavane.application.blocking import Blocking
from pavane.application.finding import CannotConnect, LogConnection, addresses_in, find_log
from pavane.application.forwarding import Address, Forwards
from pavane.runtime import names
from pavane.runtime.certificates import client_of, trusting
from pavane.waltz.client import Closed, Consumer, Lock, Transaction, Unavailable, View, Waltz
from pavane.waltz.client.link import Route
from pavane.waltz.client.waltz import PATIENCE_SECONDS

LOOK_S = 5.0  # between two looks by the kubeconfig for the certificates that count now
CONNECT_S = 10.0  # a log that works answers within, also where kubectl has to start first


class Log(Waltz):
    """An open ``Waltz`` and the way to it; ``async with`` closes both."""

    def __init__(self, found: LogConnection, patience: float, find: Callable[[], LogConnection]) -> None:
        self._forwards = None if found.cluster is None else Forwards(found.cluster)
        way = self._forwards or (None if found.hosts is None else _listed(found.hosts))
        self._find = find
        self._looked = asyncio.get_running_loop().time()
        route = None if way is None else partial(self._reach, way)
        super().__init__(found.servers, tls=_tls(found), patience=patience, route=route)

    async def _reach(self, way: Route, address: Address) -> Address:
        """Before a connection look whether the certificates of a log that a kubeconfig has found were renewed."""
        now = asyncio.get_running_loop().time()
        if now - self._looked > LOOK_S:
            self._looked = now
            await asyncio.to_thread(self._look)
        return await way(address)

    def _look(self) -> None:
        """Take those of now, in the thread: a look that outlasts its connection counts for the next one."""
        with suppress(Exception):  # whatever a file holds that is being written: those from before may still count
            self._directory.tls = _tls(self._find())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; in a forked process those of its parent stay as they are."""
        await super().close()
        if self._forwards is not None and self._directory.process.is_this:
            await self._forwards.close()


async def connect_log(
    name: str,
    *,
    namespace: str | None = None,
    connection: LogConnection | None = None,
    timeout_s: float = CONNECT_S,
    patience: float = PATIENCE_SECONDS,
) -> Log:
    """Connect to the log of WaltzCluster ``name``; use what it returns in ``async with``.

    Servers and authority are found by ``finding.find_log``, unless ``connection`` gives them; ``namespace`` is by
    default that of the kubeconfig's context. Outside the cluster ports are forwarded by kubectl. The client goes on
    through fail-overs and rollouts: a call waits ``patience`` seconds for a server.

    After ``timeout_s`` seconds raises ``CannotConnect``, which says whether the name, the address, the keys or the
    servers are the cause; a program that starts together with its log gives more.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a log is a str, not {type(name).__name__}")
    found = await asyncio.to_thread(find_log, name, namespace) if connection is None else connection
    if found.cluster is not None and shutil.which("kubectl") is None:
        raise CannotConnect(f"Address: {found.cluster.kubeconfig} needs kubectl, which forwards ports: install it")
    try:
        log = Log(found, patience, (lambda: find_log(name, namespace)) if connection is None else lambda: found)
    except (OSError, ValueError) as error:
        raise CannotConnect(f"Keys: the connection to {found.name} is damaged: {error}") from error
    try:
        await log.open(timeout_s)
    except BaseException as error:
        await log.close()
        if isinstance(error, Unavailable):
            what = "Keys" if isinstance(error.__cause__, ssl.SSLError) else "Address"
            raise CannotConnect(f"{what}: {error} (tried for {timeout_s:g} s; timeout_s= waits longer)") from error
        raise
    return log


def _tls(found: LogConnection) -> ssl.SSLContext | None:
    if found.folder is not None:
        return client_of(found.folder)
    return None if found.authority is None else trusting(found.authority, found.certificate or "", found.key or "")


def _listed(hosts: Path) -> Route:
    """Return how servers of a local cluster are reached: their addresses stand in a file, which changes."""

    async def route(address: Address) -> Address:
        host, port = address
        return (await names.look_up(addresses_in(hosts), host))[0], port

    return route


class BlockingLog(Blocking[Log]):
    """A ``Log`` on an event loop in a thread of its own; methods block, and may be called from many threads."""

    closed = Closed

    def append(
        self,
        partition: int,
        data: bytes,
        *,
        header: int = 0,
        write: Sequence[Lock] = (),
        read: Sequence[Lock] = (),
        seen: int | None = None,
    ) -> int:
        """Append as ``Waltz.append`` does."""
        return self.run(self.asynchronous.append(partition, data, header=header, write=write, read=read, seen=seen))

    def feed(self, partition: int, *, from_: int = 0) -> Iterator[Transaction]:
        """Yield every transaction from ``from_`` on, for ever; ``break`` leaves."""
        return self.each(self.asynchronous.feed(partition, from_=from_))

    def read(self, partition: int, start: int, stop: int) -> Iterator[Transaction]:
        """Yield transactions ``start`` to ``stop`` - 1, as many as the log has now."""
        return self.each(self.asynchronous.read(partition, start, stop))

    def get(self, partition: int, txid: int) -> Transaction:
        """Return one transaction."""
        return self.run(self.asynchronous.get(partition, txid))

    def hwm(self, partition: int) -> int:
        """Return the last committed transaction; -1 when there is none."""
        return self.run(self.asynchronous.hwm(partition))

    def partition_of(self, key: str) -> int:
        """As ``Waltz.partition_of``."""
        return self.run(self.asynchronous.partition_of(key))

    def consumer(self, name: str, *, who: str | None = None) -> "BlockingConsumer":
        """Return consumer ``name``, as ``Waltz.consumer`` does."""
        return BlockingConsumer(self, self.asynchronous.consumer(name, who=who))

    @contextmanager
    def view(self, partition: int, apply: Callable[[Transaction], None], *, from_: int = 0) -> Iterator[View]:
        """Follow the feed; ``apply`` runs in the log's thread. ``log.run(view.transact(…))`` appends."""
        view = self.asynchronous.view(partition, apply, from_=from_)
        self.run(view.__aenter__())
        try:
            yield view
        finally:
            if self.is_open:
                self.run(view.__aexit__(None, None, None))

    def each(self, items: AsyncGenerator[Transaction, None]) -> Iterator[Transaction]:
        """Yield what ``items`` yields."""
        try:
            while (item := self.run(_next(items))) is not None:
                yield item
        finally:
            if self.is_open:
                self.run(_end(items))


class BlockingConsumer:
    """A ``Consumer`` whose methods block."""

    def __init__(self, log: BlockingLog, consumer: Consumer) -> None:
        self._log = log
        self.asynchronous = consumer

    def position(self, partition: int) -> int:
        """Return the first transaction that it has not applied."""
        return self._log.run(self.asynchronous.position(partition))

    def start(self, partition: int, at: int) -> int:
        """Begin at transaction ``at``, unless it has a position already; return its position."""
        return self._log.run(self.asynchronous.start(partition, at))

    def move(self, partition: int, to: int) -> int:
        """Begin at transaction ``to`` whatever its position was."""
        return self._log.run(self.asynchronous.move(partition, to))

    def commit(self, partition: int, applied: int) -> None:
        """Say that transaction ``applied`` and all before it are applied, for good."""
        self._log.run(self.asynchronous.commit(partition, applied))

    def remove(self, partition: int) -> None:
        """Forget its position."""
        self._log.run(self.asynchronous.remove(partition))

    def feed(self, partition: int) -> Iterator[Transaction]:
        """Yield every transaction from its position on, for ever; ``break`` leaves."""
        return self._log.each(self.asynchronous.feed(partition))


def connect_log_sync(name: str, **options: Any) -> BlockingLog:
    """Connect as ``connect_log`` does, with its options, for a ``with`` block of a program without asyncio."""
    return BlockingLog(lambda: connect_log(name, **options))


async def _next(items: AsyncGenerator[Transaction, None]) -> Transaction | None:
    return await anext(items, None)


async def _end(items: AsyncGenerator[Transaction, None]) -> None:
    await items.aclose()
