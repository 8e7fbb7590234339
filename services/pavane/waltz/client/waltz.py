"""The log for applications: append, feed, read (docs/specs/waltz.md 9.1)."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from pavane.waltz.client.appending import Appending
from pavane.waltz.client.consumer import Consumer, ConsumerInfo
from pavane.waltz.client.directory import Directory, PartitionInfo
from pavane.waltz.client.link import Link, Route
from pavane.waltz.client.transaction import Lock, Transaction, Trim
from pavane.waltz.client.view import View
from pavane.waltz.core.client import PASSING
from pavane.waltz.errors import NotFound, RejectCode, Rejected, Trimmed, Unavailable, rejected
from pavane.waltz.tracing import Tracing
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.frame import DATA_BYTES_MAX
from pavane.waltz.wire.locks import lock_hashes
from pavane.wire import RemoteProtocolError

PATIENCE_SECONDS = 30.0
CREDIT_ITEMS = 10_000  # of a feed; more is granted when half is used up
CREDIT_BYTES = 8 * 1024 * 1024
IDLE_SECONDS = 5.0  # without a transaction, after which a feed asks whether its server is still there
AHEAD_SECONDS = 5.0  # a new owner may still be reading the end of the log


class Waltz:
    """A log, reached through any of its servers; use it as ``async with Waltz(["host:55180"], tls=tls) as log``.

    ``tls`` is the context for the client port, ``None`` for a cluster without TLS. ``patience`` is how many seconds a
    call waits for a server that can serve it, through fail-overs and rollouts. ``route`` says before each connection
    where a server is reached, if not at the address that it registered. Entering raises ``Unavailable``.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        patience: float = PATIENCE_SECONDS,
        route: Route | None = None,
    ) -> None:
        self._directory = Directory(servers, tls, patience, route)
        self._appending: dict[int, Appending] = {}
        self._tracing = Tracing("")

    async def __aenter__(self) -> Self:
        await self.open(self._directory.patience)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self, within: float) -> None:
        """Reach any server within so many seconds. Raises ``Unavailable``."""
        try:
            await self._directory.start(within)
        except BaseException:
            await self._directory.close()
            raise
        self._tracing = Tracing(self._directory.cluster)

    async def close(self) -> None:
        """Close the connections; in a forked process those of its parent stay as they are."""
        if not self._directory.process.is_this:
            return  # links and tasks are those of the process that opened it, and still in use there
        for appending in self._appending.values():
            await appending.close()
        await self._directory.close()

    async def append(
        self,
        partition: int,
        data: bytes,
        *,
        header: int = 0,
        write: Sequence[Lock] = (),
        read: Sequence[Lock] = (),
        seen: int | None = None,
    ) -> int:
        """Append ``data`` and return its transaction id once it is synced on a majority of the storage nodes.

        ``write`` and ``read`` are locks: the append fails if one of them was written by a transaction after ``seen``,
        the last one that the caller knows; without ``seen``, after the last one that this client has heard of.

        Raises ``Conflict`` (nothing was written), ``OutcomeUnknown`` (it may have been), ``Rejected`` and
        ``Unavailable`` (nothing was written), ``ValueError``.
        """
        await self._directory.look_for(partition)
        appending = self._appender(partition)
        if not appending.has_room:
            await appending.room()
        else:
            appending.take_room()
        return await self._append(appending, data, header, write, read, seen)

    def append_nowait(
        self,
        partition: int,
        data: bytes,
        *,
        header: int = 0,
        write: Sequence[Lock] = (),
        read: Sequence[Lock] = (),
        seen: int | None = None,
    ) -> asyncio.Future[int]:
        """Begin an append; the future ends as ``append`` does. Raises ``Full`` when 1000 of a partition are under way.

        Appends of one partition are committed in the order of the calls unless its owner changes meanwhile.
        """
        appending = self._appender(partition)
        appending.take_room()
        return self._append(appending, data, header, write, read, seen)

    async def feed(self, partition: int, *, from_: int = 0) -> AsyncGenerator[Transaction, None]:
        """Yield every transaction from ``from_`` on, for ever; ``break`` leaves. It follows the partition's owner.

        Raises ``Trimmed`` if the log begins behind ``from_``, or comes to before that is read, and ``Rejected`` with
        CLIENT_AHEAD if it ends before ``from_`` - 1.
        """
        await self._directory.look_for(partition)
        self._check_start(partition, from_)
        loop = asyncio.get_running_loop()
        hwm = from_ - 1
        ahead_until: float | None = None
        while True:
            try:
                async with aclosing(self._batches(partition, hwm, None)) as batches:
                    async for batch in batches:
                        began_ns, before, ahead_until = self._tracing.now_ns(), hwm, None
                        try:
                            for transaction in batch:
                                hwm = transaction.id
                                yield transaction
                        finally:
                            if began_ns:
                                seen = [transaction.reqid for transaction in batch[: hwm - before]]
                                self._tracing.fed(partition, began_ns, hwm, seen)
            except (Unavailable, RemoteProtocolError):
                pass
            except Rejected as error:
                if error.code is RejectCode.CLIENT_AHEAD:
                    ahead_until = ahead_until or loop.time() + AHEAD_SECONDS
                    if loop.time() > ahead_until:
                        raise
                elif error.code not in PASSING:
                    raise
            self._directory.check(partition)
            await self._directory.refresh()

    async def read(self, partition: int, start: int, stop: int) -> AsyncGenerator[Transaction, None]:
        """Yield transactions ``start`` to ``stop`` - 1, as many as the log has now.

        Raises ``Trimmed`` if what is next is not kept any more, and ``Unavailable``.
        """
        await self._directory.look_for(partition)
        self._check_start(partition, start)
        loop = asyncio.get_running_loop()
        stop = min(stop, await self.hwm(partition) + 1)
        deadline = loop.time() + self._directory.patience
        while start < stop:
            try:
                async with aclosing(self._batches(partition, start - 1, stop)) as batches:
                    async for batch in batches:
                        deadline = loop.time() + self._directory.patience
                        for transaction in batch:
                            start = transaction.id + 1
                            yield transaction
                continue
            except (Unavailable, RemoteProtocolError) as error:
                if loop.time() > deadline:
                    raise Unavailable(f"partition {partition}: {error}") from None
            except Rejected as error:
                passing = error.code in PASSING or error.code is RejectCode.CLIENT_AHEAD
                if not passing or loop.time() > deadline:
                    raise
            self._directory.check(partition)
            await self._directory.refresh()

    async def get(self, partition: int, txid: int) -> Transaction:
        """Return one transaction. Raises ``NotFound``, ``Trimmed`` and ``Unavailable``."""
        found = [transaction async for transaction in self.read(partition, txid, txid + 1)]
        if not found:
            raise NotFound(f"partition {partition} has no transaction {txid}: it ends with {await self.hwm(partition)}")
        return found[0]

    async def hwm(self, partition: int) -> int:
        """Return the last committed transaction; -1 when there is none. Raises ``Unavailable``."""
        answer = await self._directory.call(partition, m.HighWaterMarkRequest)
        return int(answer.txid)

    async def first(self, partition: int) -> int:
        """Return the first transaction that can be read: 0, or what trims and the archive have left.

        Raises ``Unavailable``.
        """
        try:
            async for _ in self.read(partition, 0, 1):
                pass
        except Trimmed as error:
            return error.first
        return 0

    async def start(self, partition: int) -> int:
        """Return the first transaction on the storage nodes; older ones come from the archive, if there is one.

        Raises ``Unavailable``.
        """
        return (await self.ask_consumers(partition, m.ConsumerAction.LIST, "", 0, 0, "")).first

    async def trim(self, partition: int, before: int, *, dry_run: bool = False, force: bool = False) -> Trim:
        """Give up all transactions below ``before``, for good, and return with what the log begins then.

        With ``dry_run`` nothing is. Raises ``Rejected`` if the log ends before ``before`` - 1, and, but with ``force``,
        if a consumer needs some of them; and ``Unavailable``.
        """
        await self._directory.look_for(partition)
        self._check_start(partition, before)
        flags = m.FLAG_DRY_RUN * dry_run | m.FLAG_FORCE * force
        answer = await self._directory.call(partition, m.TrimRequest, before, flags)
        return Trim(answer.former, answer.start, answer.hwm)

    def consumer(self, name: str, *, who: str | None = None) -> Consumer:
        """Return consumer ``name``; ``who`` is what others see of it, by default host and process."""
        return Consumer(self.feed, self.ask_consumers, name, who)

    async def consumers(self, partition: int) -> list[ConsumerInfo]:
        """Return the consumers of a partition, by name. Raises ``Unavailable``."""
        answer = await self.ask_consumers(partition, m.ConsumerAction.LIST, "", 0, 0, "")
        return [ConsumerInfo.of(partition, answer.hwm, one) for one in answer.consumers]

    async def ask_consumers(
        self, partition: int, action: m.ConsumerAction, name: str, position: int, since: int, who: str
    ) -> m.ConsumerResponse:
        """Ask the owner; for ``Consumer``. Raises ``Rejected`` and ``Unavailable``."""
        await self._directory.look_for(partition)
        self._check_start(partition, position)
        asked = action, name, position, since, who
        answer: m.ConsumerResponse = await self._directory.call(partition, m.ConsumerRequest, *asked)
        return answer

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self._directory.cluster

    @property
    def partition_count(self) -> int:
        """How many partitions the log had when this client last asked; ``await partitions()`` asks. They may grow."""
        self._directory.check(0)
        return len(self._directory.partitions())

    async def partitions(self) -> Mapping[int, PartitionInfo]:
        """Return every partition and who owns it, as one of the servers knows it now."""
        await self._directory.refresh()
        return self._directory.partitions()

    async def partition_of(self, key: str) -> int:
        """Return the partition for a key: the same for ever at every client, also when the log gets more partitions.

        So locks of a key are checked in one partition only. Raises ``Unavailable``.
        """
        return zlib.crc32(key.encode()) % await self.key_partitions()

    async def key_partitions(self) -> int:
        """Return over how many partitions keys are spread: those that the log was made with. Raises ``Unavailable``."""
        return await self._directory.key_partitions()

    def view(self, partition: int, apply: Callable[[Transaction], Awaitable[None] | None], *, from_: int = 0) -> View:
        """Follow the feed from ``from_`` on: ``async with log.view(0, apply) as view`` (see ``View``)."""
        self._check_start(partition, from_)
        return View(self, partition, apply, from_)

    def _appender(self, partition: int) -> Appending:
        self._directory.check(partition)
        if partition not in self._appending:
            self._appending[partition] = Appending(self._directory, partition, self._tracing)
        return self._appending[partition]

    def _append(
        self,
        appending: Appending,
        data: bytes,
        header: int,
        write: Sequence[Lock],
        read: Sequence[Lock],
        seen: int | None,
    ) -> asyncio.Future[int]:
        try:
            if len(data) > DATA_BYTES_MAX:
                raise ValueError(f"{len(data)} bytes are more than a transaction holds ({DATA_BYTES_MAX})")
            if not -(1 << 31) <= header < 1 << 31:
                raise ValueError(f"header {header} does not fit 32 bits")
            if seen is not None and not -1 <= seen < 1 << 63:
                raise ValueError(f"seen={seen} is no transaction; -1 stands for an empty log")
            hashes = lock_hashes(write), lock_hashes(read)
        except BaseException:
            appending.leave_room()
            raise
        return appending.append(bytes(data), header, *hashes, seen)

    def _check_start(self, partition: int, start: int) -> None:
        self._directory.check(partition)
        if start < 0:
            raise ValueError(f"transactions count from 0, not {start}")

    async def _batches(self, partition: int, hwm: int, stop: int | None) -> AsyncGenerator[list[Transaction], None]:
        """Yield what follows ``hwm``, up to ``stop``, while the link to the partition's owner lasts.

        More credit is granted when half of it is used up.
        """
        async with self._directory.reader(partition) as link:
            arrived: asyncio.Queue[Any] = asyncio.Queue()  # bounded by the credit

            def lost() -> None:
                arrived.put_nowait(None)

            link.listeners[partition] = arrived.put_nowait
            link.on_lost.append(lost)
            try:
                reqid = self._directory.reqid(partition)
                items_used = bytes_used = 0
                left = CREDIT_ITEMS if stop is None else min(CREDIT_ITEMS, stop - 1 - hwm)
                link.put(m.FeedBatchRequest(reqid, hwm, left, CREDIT_BYTES, 0, -1, 0))
                while stop is None or hwm + 1 < stop:
                    batch = await self._next(link, partition, arrived)
                    if batch is None:
                        raise Unavailable("the connection ended")
                    if batch.reqid != reqid:
                        continue  # of the reader before
                    if isinstance(batch, m.Reject):
                        raise rejected(batch.code, batch.detail, batch.message)
                    found = _transactions(batch, hwm + 1)
                    hwm += len(found)
                    items_used += len(found)
                    bytes_used += sum([len(transaction.data) for transaction in found])
                    yield found
                    left -= len(found)
                    if 2 * items_used > CREDIT_ITEMS or 2 * bytes_used > CREDIT_BYTES:
                        # A bounded read never grants more than it wants: its feed then sleeps and the link can be lent.
                        add = items_used if stop is None else max(0, min(items_used, stop - 1 - hwm - left))
                        link.put(m.FeedCredit(reqid, add, bytes_used))
                        left += add
                        items_used = bytes_used = 0
            finally:
                link.listeners.pop(partition, None)
                if lost in link.on_lost:
                    link.on_lost.remove(lost)

    async def _next(self, link: Link, partition: int, arrived: asyncio.Queue[Any]) -> Any:
        """Return the next message; while none comes, see whether the server is alive and still the owner."""
        while True:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    return await arrived.get()
            except TimeoutError:
                await self._directory.probe(link, partition)


def _transactions(batch: m.FeedBatch, first: int) -> list[Transaction]:
    found = [
        Transaction(txid, header, data, reqid)
        for txid, (reqid, header, data) in enumerate(batch.items, batch.first_txid)
        if data is not None
    ]
    if batch.first_txid != first or len(found) != len(batch.items):
        raise RemoteProtocolError("feed", f"transaction {batch.first_txid} where {first} with its data belongs")
    return found
