"""One connection of any of the four links: bytes in and out of a ``Channel`` (docs/specs/waltz.md 2)."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sized
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary

from pavane.runtime.certificates import watch
from pavane.runtime.keepalive import notice_silence
from pavane.runtime.names import look_up, resolve
from pavane.waltz.errors import Unavailable
from pavane.waltz.wire.frame import Channel, Side
from pavane.wire import ProtocolError

HELLO_S = 10.0  # for TLS, for the Hello, and for the OPEN of a link that begins with one: each
FLUSH_S = 1.0  # for a peer to read what was sent before its connection was closed
KEEP_ALIVE_S = 600.0
SILENT_S, PROBE_S, PROBES = 60, 10, 6  # without a byte, after which the kernel asks whether the peer is still there
WRITE_HIGH_BYTES, WRITE_LOW_BYTES = 256 * 1024, 64 * 1024
UNSENT_BYTES_MAX = 64 * 1024 * 1024  # of one connection that does not read; then it is closed
KEPT_SUM_BYTES_MAX = 2 * UNSENT_BYTES_MAX  # for all strangers of a process; then who keeps some for longest is ended
KEPT_BYTES_MIN = WRITE_LOW_BYTES  # of one connection, to be counted: what 2,048 with less have is no more than that sum
WRITE_BYTES = 1024 * 1024  # written at once: a turn may answer a thousand requests, each with as much
READ_BYTES = 256 * 1024  # at once

_logger = logging.getLogger(__name__)


class Turn:
    """What all connections of a loop share: what they read into, and who has to write at the end of this turn.

    A buffer of its own for each read costs more than all that is done with a small message. What is sent within
    ``with turn`` is written behind it if nothing else is to be done in this turn, else at its end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._loop = loop
        self._ready: Sized | None = getattr(loop, "_ready", None)
        self._inside = self._soon = False
        self._unsent: list[Stream] = []
        self._kept: dict[Stream, int] = {}  # bytes for strangers, of which who keeps some for longest is the first
        self._kept_sum = 0

    def keep(self, stream: "Stream", size: int) -> None:
        """Take note of what is kept for a stranger, and make room if it is too much for all together."""
        if size <= KEPT_BYTES_MIN:
            self._kept_sum -= self._kept.pop(stream, 0)
            return
        self._kept_sum += size - self._kept.get(stream, 0)
        self._kept[stream] = size
        if self._kept_sum > KEPT_SUM_BYTES_MAX:
            self._kept = {each: size for each in self._kept if (size := each.kept) > KEPT_BYTES_MIN}
            self._kept_sum = sum(self._kept.values())
            while self._kept_sum > KEPT_SUM_BYTES_MAX:
                oldest = next(iter(self._kept))
                self._kept_sum -= self._kept.pop(oldest)
                oldest.make_room()

    @property
    def alone(self) -> bool:
        """Whether nothing else is to be done in this turn: then nobody has to wait for what others may add to it."""
        return self._ready is not None and not self._ready

    def __enter__(self) -> None:
        self._inside = True

    def __exit__(self, *_: object) -> None:
        self._inside = False
        if self._unsent:
            self._write()

    def add(self, stream: "Stream") -> None:
        """Have a stream written."""
        self._unsent.append(stream)
        if not (self._inside or self._soon):
            self._soon = True
            self._loop.call_soon(self._flush)

    def _write(self) -> None:
        if self.alone:
            self._flush()
        elif not self._soon:
            self._soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._soon = False
        unsent, self._unsent = self._unsent, []
        for stream in unsent:
            stream.flush()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


def turn_of(loop: asyncio.AbstractEventLoop) -> Turn:
    """Return what all connections of a loop share."""
    if (turn := _turns.get(loop)) is None:
        turn = _turns[loop] = Turn(loop)
    return turn


class Stream(asyncio.BufferedProtocol):
    """Speaks one side of a link. What it hears goes to the hooks, which a subclass overrides.

    Everything is called on the loop. ``send`` collects; what was collected in one turn of the loop is one write, or
    several of WRITE_BYTES.
    """

    bounded = True
    """Whether a peer that does not read is given up; else what is sent has a bound elsewhere."""
    strangers = False
    """Whether anybody may connect: what all such connections keep together, unsent or unfinished, has a bound."""

    def __init__(self, side: Side, *, connecting: bool, versions: tuple[int, ...] | None = None) -> None:
        self.channel = Channel(side, versions)
        self.closed = False
        self.joined: Callable[[Any, asyncio.BaseTransport], None] = lambda *_: None
        self.forget: Callable[[Any], None] = lambda _: None
        self._loop = asyncio.get_running_loop()
        self.turn = turn_of(self._loop)
        self._buffer = self.turn.buffer
        self._greeting: asyncio.Future[None] | None = self._loop.create_future() if connecting else None
        self._transport: asyncio.Transport | None = None
        self._below: asyncio.Transport | None = None
        """With TLS the transport of TCP, which has a buffer of its own."""
        self._pending = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._read_paused = self._write_paused = False

    @property
    def kept(self) -> int:
        """Bytes that the peer has not read, and those of a message of which the rest has not come."""
        unsent = 0 if self._transport is None or self.closed else self._unsent(self._transport)
        return unsent + self.channel.buffered

    def _unsent(self, transport: asyncio.Transport) -> int:
        """Return what waits to be written. A TLS transport tells only what that of TCP has not taken from it yet."""
        size = transport.get_write_buffer_size()
        return size if self._below is None else size + self._below.get_write_buffer_size()

    def make_room(self) -> None:
        """End it, for too much is kept."""
        _logger.warning("%s: connection ended: %d bytes unread or unfinished for longest", self.peer, self.kept)
        if self._transport is not None:
            self._transport.abort()

    def opened(self) -> None:
        """The peer's Hello was taken: messages may be sent."""

    def heard(self, message: Any) -> None:
        """A message has come."""

    def turned(self) -> None:
        """All messages of what has just arrived were taken; the last of it may have closed the connection."""

    def ended(self, reason: str) -> None:
        """The connection is closed; called once, and only after ``opened`` or instead of it."""

    def writable(self, writable: bool) -> None:
        """The peer takes more, or does not."""

    def failed(self, error: ProtocolError) -> bool:
        """The peer broke the protocol; return whether the connection goes on."""
        return False

    def expect_open(self) -> None:
        """Hang up in HELLO_S, unless ``was_opened`` is called before."""
        self._timer = self._loop.call_later(HELLO_S, self.hang_up, f"no OPEN within {HELLO_S:g} s")

    def was_opened(self) -> None:
        """The peer has said by a message of its own what it wants."""
        if self._timer is not None:
            self._timer.cancel()

    @property
    def peer(self) -> str:
        """The peer's address, for logs."""
        found = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{found[0]}:{found[1]}" if found else "?"

    @property
    def identity(self) -> str | None:
        """The common name of the peer's certificate; ``None`` if it was asked for none."""
        shown = self._transport.get_extra_info("peercert") if self._transport is not None else None
        if not shown:
            return None
        return next((value for part in shown["subject"] for key, value in part if key == "commonName"), "")

    async def greeted(self) -> None:
        """Wait until the peer's Hello was taken, at the end that connects. Raises ``ConnectionError``."""
        assert self._greeting is not None  # noqa: S101 -- only the end that connects waits
        await self._greeting

    def send(self, message: Any) -> None:
        """Send a message, soon; dropped when the connection is closed, which it is if the message cannot be sent."""
        try:
            self.put(message)
        except ProtocolError as error:  # it does not fit a frame, or this version
            self.hang_up(f"{type(message).__name__} cannot be sent: {error}")

    def put(self, message: Any) -> None:
        """Send a message, soon; dropped when the connection is closed. Raises ``LocalProtocolError``."""
        if self.closed or (self._transport is not None and self._transport.is_closing()):
            return
        frame = self.channel.encode(message)
        if not self._pending:
            self.turn.add(self)
        self._pending += frame
        if len(self._pending) >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was sent now, instead of at the end of this turn of the loop."""
        if self._pending and self._transport is not None and not self.closed:
            data, self._pending = self._pending, bytearray()
            self._transport.write(data)
            if self.bounded and self._unsent(self._transport) > UNSENT_BYTES_MAX:
                self._transport.abort()
            self._count()

    def hang_up(self, reason: str) -> None:
        """Close the connection once what was sent is delivered, or FLUSH_S are over."""
        if not self.closed:
            self.flush()
            _logger.info("%s: connection closed: %s", self.peer, reason)
            self._end(reason)
            if self._transport is not None:
                self._transport.close()
                self._timer = self._loop.call_later(FLUSH_S, self._transport.abort)

    def abort(self, reason: str) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def drain(self) -> None:
        """Write what was sent; ``writable`` is called once the peer has taken it, soon or when it reads again."""
        self.flush()
        self._loop.call_soon(self._drained)

    def pause_reading(self, paused: bool) -> None:
        """Do not read, or read again."""
        if paused != self._read_paused and self._transport is not None and not self.closed:
            self._read_paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # -- asyncio.BufferedProtocol -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say Hello."""
        self.joined(self, transport)
        self._transport = cast("asyncio.Transport", transport)
        self._below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
        _notice_the_end(transport)
        self._transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        self._transport.write(self.channel.hello())
        self._timer = self._loop.call_later(HELLO_S, self.hang_up, f"no Hello within {HELLO_S:g} s")
        watch(transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return what is read into; whoever reads calls ``buffer_updated`` before anybody else reads."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take messages; what is answered at once is written at once."""
        with self.turn:
            self._take(nbytes)

    def _take(self, nbytes: int) -> None:
        greeted = self.channel.version is not None
        self.channel.receive(self._buffer[:nbytes])
        while not self.closed:
            try:
                message = self.channel.message()
            except ProtocolError as error:
                if self.failed(error):
                    continue
                self.hang_up(str(error))
                break
            if not greeted and self.channel.version is not None:
                greeted = True
                self._greeted()
            if message is None:
                break
            self.heard(message)
        self._count()
        self.turned()

    def pause_writing(self) -> None:
        """The peer does not read as fast as we write."""
        self._write_paused = True
        self.writable(False)

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._write_paused = False
        self._count()
        self.writable(True)

    def _count(self) -> None:
        if self.strangers and not self.closed:
            self.turn.keep(self, self.kept)

    def _drained(self) -> None:
        if not self._write_paused and not self.closed:
            self.writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._end(str(exc) if exc is not None else "the peer closed the connection")
        if self._timer is not None:
            self._timer.cancel()
        # It refers to us: what is frozen (``freeze_survivors``) would never be freed, with TLS a quarter of a megabyte.
        self._transport = self._below = None

    def _greeted(self) -> None:
        assert self._timer is not None  # noqa: S101 -- set with the transport
        self._timer.cancel()
        if self._greeting is not None:
            self._timer = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)
            if not self._greeting.done():
                self._greeting.set_result(None)
        self.opened()

    def _keep_alive(self) -> None:
        if not self.closed and self._transport is not None:
            self._transport.write(self.channel.keep_alive())
            self._timer = self._loop.call_later(KEEP_ALIVE_S, self._keep_alive)

    def _end(self, reason: str) -> None:
        if not self.closed:
            self.closed = True
            self._pending.clear()
            self.turn.keep(self, 0)
            if self._timer is not None:
                self._timer.cancel()
            if self._greeting is not None and not self._greeting.done():
                self._greeting.set_exception(ConnectionResetError(reason))
                self._greeting.exception()  # nobody may be waiting for it any more
            self.forget(self)
            self.ended(reason)


class Asker(Stream):
    """An end that connects and asks: each answer goes to who waits for its key. ``who`` is the peer, for errors."""

    def __init__(self, side: Side, who: str, *, versions: tuple[int, ...] | None = None) -> None:
        super().__init__(side, connecting=True, versions=versions)
        self.who = who
        self._waiting: dict[Any, asyncio.Future[Any]] = {}

    async def answer(self, key: Any, message: Any, seconds: float) -> Any:
        """Send ``message`` and return what is ``answered`` under ``key``. Raises ``Unavailable`` if that is nothing."""
        if self.closed:
            raise Unavailable(f"{self.who}: the connection has ended")
        waiting = self._waiting[key] = self._loop.create_future()
        try:
            self.put(message)
            async with asyncio.timeout(seconds):
                return await waiting
        except TimeoutError:
            raise Unavailable(f"{self.who}: no answer within {seconds:g} s") from None
        finally:
            self._waiting.pop(key, None)

    def answered(self, key: Any, message: Any) -> bool:
        """Hand an answer to who waits for it; false if nobody does."""
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        return waiting is not None

    def ended(self, reason: str) -> None:
        """Nobody gets an answer any more."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Unavailable(f"{self.who}: {reason}"))
                waiting.exception()  # it may be that nobody waits


S = TypeVar("S", bound=Stream)


async def connect(make: Callable[[], S], address: str, tls: ssl.SSLContext | None, name: str = "") -> S:
    """Connect to ``host:port`` and return what ``make`` makes once both Hellos were said. Raises ``OSError``.

    ``name`` is compared with the peer's certificate if ``tls`` compares names.
    """
    host, _, port = address.rpartition(":")
    found = (await look_up(resolve, host.strip("[]")))[0]
    options: dict[str, Any] = {"ssl": tls, "server_hostname": name} if tls is not None else {}
    transport, stream = await asyncio.get_running_loop().create_connection(make, found, int(port), **options)
    notice_silence(transport)
    try:
        await stream.greeted()
    except BaseException:
        stream.abort("no Hello came")
        raise
    return stream


def _notice_the_end(transport: asyncio.BaseTransport) -> None:
    """Let the kernel end the connection of a peer whose machine is gone: it would keep its place for ever.

    Who dialled is in more of a hurry (``connect``).
    """
    sock: socket.socket = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
