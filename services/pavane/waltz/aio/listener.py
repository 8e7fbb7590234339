"""A listening port whose connections are counted and end with it."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from uuid import UUID

from pavane.runtime.door import Door, affordable
from pavane.runtime.http import listen
from pavane.waltz.aio import stream as streams
from pavane.waltz.aio.stream import Stream
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.frame import Side

CONNECTIONS_MAX = 4096  # of one port, and half of the files that the process may open; each costs one, and its buffers
BACKLOG = 128  # asyncio accepts so many before it lets anybody else work
S = TypeVar("S", bound=Stream)


class Listener(Generic[S]):
    """Accepts connections and makes a ``Stream`` for each."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._server: asyncio.Server | None = None
        self._door: Door | None = None
        self._max = affordable(CONNECTIONS_MAX, 2)
        self.streams: set[S] = set()
        self.port = 0
        self.refused = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen; raises ``OSError`` when the address is not free."""
        loop = asyncio.get_running_loop()
        if tls is None:
            self._server = await loop.create_server(self._accept, host, port, backlog=BACKLOG)
        else:
            self._door = Door(listen(host, port, backlog=BACKLOG))
            self._server = await loop.create_server(
                self._accept, sock=self._door, ssl=tls, backlog=BACKLOG, ssl_handshake_timeout=streams.HELLO_S
            )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for stream in list(self.streams):
            stream.hang_up("the server stops")
        await asyncio.sleep(0)
        self._server = None

    def _accept(self) -> asyncio.BaseProtocol:
        if len(self.streams) >= self._max:
            self.refused += 1
            return _Refusal(self._admit)
        stream = self._make()
        # With TLS it is no sooner: of a handshake that fails the stream hears nothing.
        stream.joined, stream.forget = self._joined, self.streams.discard
        return stream

    def _joined(self, stream: S, transport: asyncio.BaseTransport) -> None:
        self._admit(transport)
        self.streams.add(stream)

    def _admit(self, transport: asyncio.BaseTransport) -> None:
        if self._door is not None:
            self._door.admit(transport.get_extra_info("socket").fileno())


class _Refusal(asyncio.Protocol):
    def __init__(self, admit: Callable[[asyncio.BaseTransport], None]) -> None:
        self._admit = admit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._admit(transport)
        transport.close()


class Served(Stream):
    """A connection of a storage node: OPEN, then questions, which are queued while fewer than ``high`` wait.

    Between ``low`` and ``high`` it is read or not as it was.
    """

    def __init__(self, side: Side, high: int, low: int) -> None:
        super().__init__(side, connecting=False)
        self._high, self._low = high, low
        self._is_open = False
        self._unanswered = 0

    def open(self, message: s.Open) -> None:
        """Judge an OPEN: ``accept`` it, or ``refuse`` it."""

    def submit(self, message: Any) -> None:
        """Queue a question, which ``answer`` answers."""

    def fault(self, message: Any) -> str:
        """Return why a question cannot even be queued."""
        return ""

    def opened(self) -> None:
        """Greeted; what it wants is to follow."""
        self.expect_open()

    def heard(self, message: Any) -> None:
        """Take a message."""
        if isinstance(message, s.Open):
            self.open(message)
        elif not self._is_open:
            self.hang_up("a message before OPEN")
        elif fault := self.fault(message):
            self.send(s.Failure(message.head, fault))
        else:
            self._unanswered += 1
            if self._unanswered >= self._high:
                self.pause_reading(True)
            self.submit(message)

    def answer(self, message: Any) -> None:
        """Send the answer to a question that was submitted."""
        self._unanswered -= 1
        if self._unanswered <= self._low:
            self.pause_reading(False)
        self.send(message)

    def accept(self, message: s.Open) -> None:
        """Let questions follow."""
        self._is_open = True
        self.was_opened()
        self.send(s.Success(message.head))

    def refuse(self, message: s.Open, key: UUID, partitions: int) -> None:
        """Say whose storage it is."""
        self.send(s.Failure(message.head, f"this storage belongs to cluster {key} with {partitions} partitions"))
