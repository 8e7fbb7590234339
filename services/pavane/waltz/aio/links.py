"""A server's connections to storage nodes: one to each, made again for as long as the server runs."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pavane.waltz.aio.stream import Stream, connect
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.frame import STORAGE_CLIENT

CONNECT_S = 3.0
RETRY_S, RETRY_S_MAX = 0.1, 2.0

_logger = logging.getLogger(__name__)


class StorageLink:
    """The connection to the node at ``address``; ``run`` keeps it up."""

    def __init__(
        self,
        address: str,
        key: UUID,
        partitions: int,
        *,
        tls: ssl.SSLContext | None,
        up: Callable[[str], None],
        down: Callable[[str], None],
        heard: Callable[[str, list[Any]], None],
        wanted: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.address = address
        self.open = s.Open(s.OPEN_HEAD, key, partitions)
        self.up, self.down, self.heard = up, down, heard
        self._wanted = wanted
        self._tls = tls
        self._stream: _Link | None = None
        self.fault = "not connected yet"

    def send(self, message: Any) -> None:
        """Send a message; lost if the connection is down, of which ``down`` tells."""
        if self._stream is None:
            return
        if isinstance(message, (s.Retain, s.Repair)) and not self._stream.channel.version:
            refusal = s.Failure(message.head, "it speaks version 0 only, in which nothing is ever dropped or rebuilt")
            asyncio.get_running_loop().call_soon(self.heard, self.address, [refusal])
        else:
            self._stream.send(message)

    def grow(self, partitions: int) -> None:
        """Tell the node that the cluster has as many partitions now."""
        if partitions > self.open.partitions:
            self.open = s.Open(s.OPEN_HEAD, self.open.key, partitions)
            if self._stream is not None:
                self._stream.send(self.open)

    def grown(self, answer: Any) -> None:
        """Take the answer to ``grow``; a node that could not, as its disk is full, say, is asked again."""
        self.fault, stream = getattr(answer, "message", ""), self._stream

        def again() -> None:
            if stream is not None and stream is self._stream:
                stream.send(self.open)

        if self.fault:
            _logger.warning("storage node %s: %s", self.address, self.fault)
            asyncio.get_running_loop().call_later(RETRY_S_MAX, again)

    async def run(self) -> None:
        """Connect, again and again, as long as somebody wants the node."""
        delay = RETRY_S
        while self._wanted(self.address):
            stream = None
            try:
                async with asyncio.timeout(CONNECT_S):
                    stream = await connect(lambda: _Link(self), self.address, self._tls)
                    await stream.ready
                self._stream, self.fault = stream, ""
                if stream.asked != self.open:  # partitions were added while it connected
                    stream.send(self.open)
                delay = RETRY_S
                self.up(self.address)
                await stream.gone.wait()
            except (OSError, TimeoutError, ConnectionError) as error:
                fault = str(error) or "no answer in time"
                if fault != self.fault:
                    self.fault = fault
                    _logger.warning("storage node %s: %s", self.address, fault)
            finally:
                if stream is not None:
                    stream.hang_up("done")
                if self._stream is not None:
                    self._stream = None
                    self.down(self.address)
            await asyncio.sleep(delay)
            delay = min(2 * delay, RETRY_S_MAX)


class _Link(Stream):
    def __init__(self, link: StorageLink) -> None:
        super().__init__(STORAGE_CLIENT, connecting=True)
        self._link = link
        self.asked = link.open
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self._messages: list[Any] = []

    def opened(self) -> None:
        self.asked = self._link.open
        self.send(self.asked)

    def heard(self, message: Any) -> None:
        if self.ready.done() and message.head == s.OPEN_HEAD:
            self._link.grown(message)
        elif self.ready.done():
            self._messages.append(message)
        elif isinstance(message, s.Success):
            self.ready.set_result(None)
        else:
            self.ready.set_exception(ConnectionError(getattr(message, "message", "") or "OPEN was refused"))

    def turned(self) -> None:
        if self._messages and not self.closed:
            messages, self._messages = self._messages, []
            self._link.heard(self._link.address, messages)

    def ended(self, reason: str) -> None:
        self.gone.set()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(reason))
            self.ready.exception()
