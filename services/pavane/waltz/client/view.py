"""A view of one partition: what an application made of its transactions so far, and appends that depend on it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Protocol, Self

from pavane.waltz.client.transaction import Lock, Transaction
from pavane.waltz.errors import Closed, Conflict


class Log(Protocol):
    """What a view needs of a log; ``Waltz`` has it."""

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
        """Append ``data`` and return its transaction id."""

    def feed(self, partition: int, *, from_: int = 0) -> AsyncGenerator[Transaction, None]:
        """Yield every transaction from ``from_`` on, for ever."""

    async def hwm(self, partition: int) -> int:
        """Return the last transaction; -1 if there is none."""


class View:
    """Follows a feed and calls ``apply`` with each transaction, in order; ``hwm`` is the last one that it returned for.

    If ``apply`` raises, the view stops there: ``wait``, ``transact`` and leaving the ``async with`` raise that.
    """

    def __init__(
        self, log: Log, partition: int, apply: Callable[[Transaction], Awaitable[None] | None], from_: int
    ) -> None:
        self._log = log
        self._partition = partition
        self._apply = apply
        self.hwm = from_ - 1
        self._moved = asyncio.Condition()
        self._error: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow(), name=f"waltz-view-{self._partition}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._error is not None and error is None and not isinstance(self._error, Closed):
            raise self._error
        self._error = self._error or Closed("the view is closed")

    async def wait(self, txid: int) -> None:
        """Wait until ``txid`` was applied. Raises what ``apply`` raised."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.hwm >= txid or self._error is not None)
        if self._error is not None:
            raise self._error

    async def transact(
        self,
        build: Callable[[], bytes | None],
        *,
        header: int = 0,
        write: Sequence[Lock] = (),
        read: Sequence[Lock] = (),
    ) -> int | None:
        """Append what ``build`` makes of the view; after a conflict it runs again on a view that has caught up.

        Returns the transaction's id when the view has applied it, or ``None`` if ``build`` wants nothing to be written
        on a view that is at the end of the log. Raises as ``append`` does, but no ``Conflict``.
        """
        await self.wait(self.hwm)  # raises what has stopped the view
        while True:
            data = build()
            if data is None:
                end = await self._log.hwm(self._partition)
                if end <= self.hwm:
                    return None
                await self.wait(end)
                continue
            try:
                txid = await self._log.append(
                    self._partition, data, header=header, write=write, read=read, seen=self.hwm
                )
            except Conflict as conflict:
                await self.wait(conflict.txid)
            else:
                await self.wait(txid)
                return txid

    async def _follow(self) -> None:
        try:
            async with aclosing(self._log.feed(self._partition, from_=self.hwm + 1)) as feed:
                async for transaction in feed:
                    done = self._apply(transaction)
                    if inspect.isawaitable(done):
                        await done
                    async with self._moved:
                        self.hwm = transaction.id
                        self._moved.notify_all()
        except Exception as error:
            async with self._moved:
                self._error = error
                self._moved.notify_all()
