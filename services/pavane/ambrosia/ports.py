"""The two sockets between a coordinator and its application (docs/specs/ambrosia.md 5)."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum

from pavane.ambrosia.errors import Fatal, FatalError
from pavane.ambrosia.intake import Connection, is_closed
from pavane.ambrosia.wire.limits import LB_SEND_BYTES

LOOPBACK = "127."  # whatever address of it a process beside us has bound
DETECT_S = 0.25  # how long the second stream is dialled, which an old application listens for
DETECT_INTERVAL_S = 0.01
LB_CONNECT_S = 60.0  # slow applications
LOOK_S = 0.05  # how soon it is seen that the application went before both were open
READ_BYTES = 256 * 1024
LB_DIAL_S = 5.0
ACCEPT_TURNS = 4  # of the loop, until a connection that was accepted has come to us and was ended


class SocketOrder(Enum):
    """Who dials the stream towards the application."""

    DETECT = "detect"
    CURRENT = "current"  # the application
    LEGACY = "legacy"  # the coordinator


class BindingPort:
    """The two sockets of the application; one application in its life."""

    def __init__(
        self,
        host: str,
        receive_port: int,
        send_port: int,
        order: SocketOrder,
        detect_s: float,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._host = host
        self._ports = (receive_port, send_port)
        self._order = order
        self._detect_s = detect_s
        self._say = say
        self._listener: socket.socket | None = None
        self._streams = 0

    @property
    def missing(self) -> str:
        """Say which stream of the application is not there, empty once both are."""
        rp, sp = self._ports
        return (
            f"the application has not connected to {self._host}:{rp},{sp}",
            f"the application has opened {self._host}:{rp} but not {self._host}:{sp}",
            "",
        )[self._streams]

    def listen(self) -> None:
        """Bind the first port; ``FatalError`` 4 if it is taken."""
        self._listener = self._bind(self._ports[0])

    async def accept(self) -> tuple[Connection, Connection]:
        """Return the stream from the application and the one to it."""
        while True:
            if self._listener is None:
                self.listen()
            first = await self._accept()
            reader, writer = await asyncio.open_connection(sock=first, limit=READ_BYTES)
            self._streams = 1
            second: socket.socket | None = None
            try:
                second = await self._second(reader)
            finally:
                self._streams, gone = 0 if second is None else 2, is_closed(reader)
                if second is None:
                    await close_writer(writer)
            if second is None:
                rp, sp = self._ports
                why = "went away" if gone else f"did not open port {sp} within {LB_CONNECT_S:.0f} s"
                self._say(f"Error: whoever opened port {rp} {why}; waiting for the application again")
                continue
            second.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LB_SEND_BYTES)
            return (reader, writer), await asyncio.open_connection(sock=second, limit=READ_BYTES)

    async def _second(self, reader: asyncio.StreamReader) -> socket.socket | None:
        if self._order is not SocketOrder.CURRENT:
            wait = LB_CONNECT_S if self._order is SocketOrder.LEGACY else self._detect_s
            found = await self._dial(reader, wait)
            if found is not None or self._order is SocketOrder.LEGACY:
                return found
        self._listener = self._bind(self._ports[1])
        accepting = asyncio.ensure_future(self._accept())
        loop = asyncio.get_running_loop()
        until = loop.time() + LB_CONNECT_S
        while not accepting.done() and not is_closed(reader) and loop.time() < until:
            await asyncio.wait({accepting}, timeout=LOOK_S)
        if accepting.done():
            return accepting.result()
        accepting.cancel()
        await asyncio.wait({accepting})
        self.close()
        return None

    async def _dial(self, reader: asyncio.StreamReader, seconds: float) -> socket.socket | None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until and not is_closed(reader):
            sock = socket.socket()
            sock.setblocking(False)
            try:
                async with asyncio.timeout(LB_DIAL_S):
                    await loop.sock_connect(sock, (self._host, self._ports[1]))
                if sock.getsockname() != sock.getpeername():  # a port may meet itself
                    return sock
            except OSError:
                pass
            sock.close()
            await asyncio.sleep(DETECT_INTERVAL_S)
        return None

    def _bind(self, port: int) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        try:
            sock.bind((self._host, port))
            sock.listen(1)
        except OSError as error:
            sock.close()
            text = f"port {port} of {self._host} for the application is not free: {error.strerror}"
            raise FatalError(Fatal.STORAGE, text) from error
        return sock

    async def _accept(self) -> socket.socket:
        if self._listener is None:
            raise AssertionError("nobody listens")
        try:
            while True:
                sock, peer = await asyncio.get_running_loop().sock_accept(self._listener)
                if peer[0] == self._host or (self._host.startswith(LOOPBACK) and peer[0].startswith(LOOPBACK)):
                    break
                sock.close()  # only the application beside us may speak here
        finally:
            self.close()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def close(self) -> None:
        """Stop listening."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None


async def close_writer(writer: asyncio.StreamWriter) -> None:
    """Close at once; what the peer did not read is lost, as with a crash."""
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def served(server: asyncio.Server) -> AsyncIterator[None]:
    """Close ``server`` at the end. asyncio leaves a socket open that it accepted in the turn in which that happens."""
    try:
        yield
    finally:
        for listener in server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        server.close()
