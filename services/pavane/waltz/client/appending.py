"""The core of one partition on the event loop: a link to the owner while appends are under way."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeAlias

from opentelemetry.trace import Span

from pavane.runtime.adapter import CoreAdapter
from pavane.waltz.client.directory import RETRY_SECONDS, Directory
from pavane.waltz.client.link import Link
from pavane.waltz.core.client import Appender, Done, Drop, Output, Pending, Refresh, Send
from pavane.waltz.errors import Closed, Unavailable, WaltzError
from pavane.waltz.tracing import CLIENT, SEQ, Tracing
from pavane.wire import ProtocolError

APPENDS_PENDING_MAX = 1000  # of one partition; the server takes 100 at a time and stops reading beyond


class Full(WaltzError):
    """Too many appends of one partition are under way."""


_Token: TypeAlias = tuple[asyncio.Future[int], int, Span | None]
"""What the caller of an append waits for; where it is traced, when it began and the caller's span."""


class Appending:
    """Appends to one partition."""

    def __init__(self, directory: Directory, partition: int, tracing: Tracing) -> None:
        self._directory = directory
        self._partition = partition
        self._tracing = tracing
        self._core = Appender(partition, directory.client_id)
        self._adapter: CoreAdapter[Output] = CoreAdapter(self._core, self._execute, self._failed)
        self._free = APPENDS_PENDING_MAX
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._stale = asyncio.Event()
        self._link: Link | None = None
        self._generation = -1
        self._error: Exception | None = None
        self._heard: list[Any] = []
        self._begun: list[Pending] = []
        self._keeper = asyncio.create_task(self._keep(), name=f"waltz-append-{partition}")

    @property
    def has_room(self) -> bool:
        """Whether another append may be under way at once."""
        return self._free > 0

    async def room(self) -> None:
        """Wait until another append may be under way, and take its place."""
        while self._free == 0:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()
                raise
        self._free -= 1

    def take_room(self) -> None:
        """Take a place at once. Raises ``Full``."""
        if self._free == 0:
            raise Full(
                f"partition {self._partition}: {APPENDS_PENDING_MAX} appends are under way; await one before the next"
            )
        self._free -= 1

    def leave_room(self) -> None:
        """Give a place back that was taken and not used."""
        self._free += 1
        self._wake()

    def append(
        self, data: bytes, header: int, write: tuple[int, ...], read: tuple[int, ...], seen: int | None
    ) -> asyncio.Future[int]:
        """Begin an append whose place is taken."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        if self._error is not None or self._adapter.ended:
            self.leave_room()
            raise self._error or Closed("the client is closed")
        token: _Token = (future, *self._tracing.began()) if self._tracing.on else (future, 0, None)
        pending = Pending(token, header, data, write, read, seen, loop.time() + self._directory.patience)
        if not self._begun:
            loop.call_soon(self._turn)
        self._begun.append(pending)
        return future

    async def close(self) -> None:
        """End every append under way."""
        self._keeper.cancel()
        await asyncio.wait([self._keeper])
        self._turn()
        self._leave()
        self._adapter.call(lambda _: self._core.close())
        await self._adapter.close()

    def _execute(self, output: Output) -> None:
        match output:
            case Send():
                if self._link is not None:
                    self._link.put(output.message)
            case Done():
                future, began_ns, caller = output.token
                self.leave_room()
                if began_ns and (
                    caller is not None
                    or (reqid := output.reqid) is None
                    or (reqid[3] * SEQ + reqid[0] * CLIENT) & 0xFFFF <= self._tracing.marks_max
                ):
                    self._tracing.appended(caller, began_ns, output.reqid, self._partition, output.result)
                _settle(future, output.result)
            case Refresh():
                self._stale.set()
            case Drop():
                if self._link is not None:
                    self._link.abort("a newer connection took its place, or it is dead")

    def _failed(self, error: Exception) -> None:
        self._error = error
        self._core.close()
        for output in self._core.outputs():
            if isinstance(output, Done):
                self.leave_room()
                _settle(output.token[0], error)

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _keep(self) -> None:
        """Attach to the owner that the view names; ask for the view again whenever the core doubts it."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            if not self._core.pending:
                continue
            try:
                await self._attach()
            except (Unavailable, ProtocolError) as error:
                self._core.told = str(error)
                self._stale.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _attach(self) -> None:
        await self._directory.refresh()
        owner = self._directory.owner(self._partition)
        if owner is None:
            raise Unavailable("no server owns the partition")
        link = self._link
        if link is not None and (link.address, self._generation) == (owner.address, owner.generation):
            await self._directory.check_link(link)  # others may have told the view while this one is dead
            return
        if link is None or link.address != owner.address:
            self._leave()
            link = await self._directory.link(owner.address)
            self._link = link
            link.listeners[self._partition] = self._received
            link.on_lost.append(self._lost)
            if link.closed:
                self._leave()
                raise Unavailable("the connection ended at once")
        self._generation = owner.generation
        self._adapter.call(lambda now: self._core.attached(owner.generation, link.net_seq, now))

    def _received(self, message: Any) -> None:
        if not self._heard and self._link is not None:
            self._link.after_turn(self._turn)
        self._heard.append(message)

    def _turn(self) -> None:
        """Give what came in one turn of the loop to the core together."""
        heard, self._heard = self._heard, []
        begun, self._begun = self._begun, []

        def take(now: float) -> None:
            for message in heard:
                self._core.received(message, now)
            for pending in begun:
                self._core.append(pending, now)

        if self._adapter.ended:
            for pending in begun:
                self.leave_room()
                _settle(pending.token, self._error or Closed("the client is closed"))
        elif heard or begun:
            self._adapter.call(take)
            if self._link is not None and len(self._link.listeners) == 1:
                self._link.flush()  # nobody else has anything to send over it
        if begun and self._link is None:
            self._stale.set()

    def _lost(self) -> None:
        self._leave()
        self._stale.set()

    def _leave(self) -> None:
        self._turn()  # what the link has brought
        link, self._link = self._link, None
        if link is None:
            return
        link.listeners.pop(self._partition, None)
        if self._lost in link.on_lost:
            link.on_lost.remove(self._lost)
        self._adapter.call(lambda _: self._core.detached())


def _settle(future: asyncio.Future[int], result: int | Exception) -> None:
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
