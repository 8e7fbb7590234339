"""The log as Spark's workers see it: blocking calls around the asynchronous client, one worker at a time.

A worker's process does one thing after the other, so the client's loop runs only inside of a call: what the log sends
meanwhile waits in the socket, which is all the flow control that a read needs.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from pavane.dataflow.log import Log, Transaction
from pavane.spark.errors import DataLossError
from pavane.spark.options import Store, Tls
from pavane.waltz.errors import Trimmed

READ_BYTES_MAX = 4 * 2**20  # Of one step of a read: rows enough for Arrow, little beside Spark's own memory.
READ_TRANSACTIONS_MAX = 65_536  # The same where transactions are small.
APPEND_BYTES_MAX = 8 * 2**20  # Sent and not yet acknowledged by one task.
APPEND_COUNT_MAX = 256  # The client refuses more than 1 000 for a partition.

T = TypeVar("T")


class Client(Log, Protocol):
    """What is asked of a client of the log."""

    async def partitions(self) -> Mapping[int, object]:
        """Return the partitions, and who owns them."""
        ...

    async def first(self, partition: int) -> int:
        """Return the first transaction that is kept."""
        ...


Connect = Callable[[], AbstractAsyncContextManager[Client]]


def connect(servers: Sequence[str], tls: Tls | None, store: Store | None = None) -> Connect:
    """Return what opens a client of the log at these servers; with ``store`` that reads its archive there itself."""

    def opened() -> AbstractAsyncContextManager[Any]:
        from pavane.waltz.client import Waltz  # noqa: PLC0415 - in tasks only, never in a user's session

        context = None if tls is None else _context(tls)
        if store is None:
            return Waltz(list(servers), tls=context)
        from pavane.spark.archived import ArchivedLog  # noqa: PLC0415 - its library is large

        return ArchivedLog(servers, context, store)

    return opened


def _context(tls: Tls) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    return context


class BlockingLog:
    """Blocking access to the log, as a context manager. Errors of the client pass through."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._runner = asyncio.Runner()
        self._closed = False

    def __enter__(self) -> Self:
        self._runner.__enter__()
        try:
            self._manager = self._connect()
            self._client = self._wait(self._manager.__aenter__())
        except BaseException:
            self._runner.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        try:
            self._wait(self._manager.__aexit__(kind, error, trace))
        finally:
            self._runner.close()

    def partitions(self) -> tuple[int, ...]:
        """Return the log's partitions."""
        return tuple(sorted(self._wait(self._client.partitions())))

    def ends(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return for each partition the position behind its last record."""
        return {p: hwm + 1 for p, hwm in self._asked(self._client.hwm, partitions).items()}

    def firsts(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return for each partition the position of its first record."""
        return self._asked(self._client.first, partitions)

    def read(self, partition: int, start: int, stop: int, *, fail: bool = True) -> Iterator[list[Transaction]]:
        """Yield the records `start` up to but not `stop`, in steps. Raises DataLossError if they are not there.

        Unless `fail`, those that were trimmed are left out.
        """
        records = self._client.read(partition, start, stop)

        async def some() -> list[Transaction]:
            found: list[Transaction] = []
            held = 0
            async for record in records:
                found.append(record)
                held += len(record.data)
                if held >= READ_BYTES_MAX or len(found) >= READ_TRANSACTIONS_MAX:
                    break
            return found

        try:
            while start < stop and (found := self._wait(some())):
                start = found[-1].id + 1
                yield found
            if start < stop:
                raise DataLossError(
                    f"partition {partition} ends before transaction {start}; {stop - start} more were there."
                )
        except Trimmed as error:
            if fail:
                raise DataLossError(
                    f"{str(error).removeprefix('TRIMMED: ')}, but the read must go on at {start}. Begin anew (with a "
                    "new checkpoint), or accept the loss with option 'failOnDataLoss' = 'false'."
                ) from None
            yield from self.read(partition, min(error.first, stop), stop, fail=False)
        finally:
            close = getattr(records, "aclose", None)
            if close is not None and not self._closed:  # The loop's end closes what its reader left half read.
                self._wait(close())

    def append(self, partition: int, data: bytes, *, header: int, write: Sequence[tuple[str, int]], seen: int) -> int:
        """Append one record under locks and return its transaction. Raises what the client raises."""
        return self._wait(self._client.append(partition, data, header=header, write=write, seen=seen))

    def appender(self) -> "Appender":
        """Return what appends many records without waiting for each."""
        return Appender(self._client, self._wait)

    def _asked(self, ask: Callable[[int], Awaitable[int]], partitions: Iterable[int]) -> dict[int, int]:
        wanted = list(partitions)

        async def all_of_them() -> list[int]:
            return await asyncio.gather(*map(ask, wanted))

        return dict(zip(wanted, self._wait(all_of_them()), strict=True))

    def _wait(self, awaitable: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await awaitable

        return self._runner.run(awaited())


class Appender:
    """Appends records, a bounded number of bytes ahead of their acknowledgements."""

    def __init__(self, client: Client, wait: Callable[[Awaitable[Any]], Any]) -> None:
        self._client = client
        self._wait = wait
        self._open: deque[tuple[asyncio.Task[int], int, Callable[[int], None]]] = deque()
        self._bytes = 0

    def append(self, partition: int, data: bytes, header: int, done: Callable[[int], None]) -> None:
        """Begin an append; `done` gets its transaction. Raises the error of an earlier one."""
        self._wait(self._append(partition, data, header, done))

    def finish(self) -> None:
        """Wait until all is acknowledged. Raises the first error."""
        self._wait(self._until(0, 0))

    async def _append(self, partition: int, data: bytes, header: int, done: Callable[[int], None]) -> None:
        await self._until(APPEND_COUNT_MAX - 1, APPEND_BYTES_MAX - len(data))
        task = asyncio.ensure_future(self._client.append(partition, data, header=header))
        self._open.append((task, len(data), done))
        self._bytes += len(data)
        await asyncio.sleep(0)  # Lets it reach the socket before the caller makes the next one.

    async def _until(self, count: int, held: int) -> None:
        while self._open and (len(self._open) > count or self._bytes > max(0, held)):
            task, size, done = self._open.popleft()
            self._bytes -= size
            try:
                done(await task)
            except BaseException:
                for other, _, _ in self._open:
                    other.cancel()
                await asyncio.gather(*(other for other, _, _ in self._open), return_exceptions=True)
                self._open.clear()
                raise
