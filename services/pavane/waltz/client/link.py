"""A connection to a server: Hello, frames, and who waits for which answer (docs/specs/waltz.md 2)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

from pavane.runtime.names import look_up, resolve
from pavane.waltz.errors import Unavailable
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.frame import LOG_CLIENT, Channel
from pavane.wire import ProtocolError

CONNECT_SECONDS = 2.0  # until the Hello came; a stopped server's kernel still accepts
KEEP_ALIVE_SECONDS = 600.0  # without a write, after which an empty frame goes out
VERSIONS = (5,)  # an append below V5 is answered by the feed only; this client does without a feed
Address = tuple[str, int]


def parse_address(text: str) -> Address:
    """Return host and port of ``host:port``; raises ``ValueError``."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is no address of a server: it looks like host:55180")
    return host.strip("[]"), int(port)


def trusting(authority: str) -> ssl.SSLContext:
    """Return a context for ``Waltz`` that trusts servers with a certificate of ``authority`` (PEM).

    An authority belongs to one cluster, so names are not compared. Raises ``ssl.SSLError`` for what is no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=authority)
    return context


class Link(asyncio.Protocol):
    """One connection. Messages go to who asked (by ReqId), else to the listener of their partition.

    ``net_seq`` is greater than that of every earlier link of this client: by it servers tell a newer one.
    ``lost`` is set when the connection has ended; ``on_lost`` callbacks run then.
    """

    def __init__(self, address: Address, net_seq: int) -> None:
        self.address = address
        self.net_seq = net_seq
        self.ready = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()
        self.on_lost: list[Callable[[], None]] = []
        self.listeners: dict[int, Callable[[Any], None]] = {}
        self._channel = Channel(LOG_CLIENT, VERSIONS)
        self._transport: asyncio.Transport | None = None
        self._answers: dict[ReqId, asyncio.Future[Any]] = {}
        self._unsent: list[bytes] = []
        self._after_turn: list[Callable[[], None]] = []
        self._writable = asyncio.Event()
        self._keep_alive: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._written_at = asyncio.get_running_loop().time()

    @classmethod
    async def connect(cls, address: Address, tls: ssl.SSLContext | None, net_seq: int) -> Link:
        """Return a link whose Hello is done. Raises ``Unavailable``."""
        link = cls(address, net_seq)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                host, port = address
                where = (await look_up(resolve, host))[0]
                name = host if tls is not None else None
                await loop.create_connection(lambda: link, where, port, ssl=tls, server_hostname=name)
                await link.ready
        except (OSError, TimeoutError, ProtocolError) as error:
            await link.close()
            reason = str(error) or "no answer in time"
            raise Unavailable(f"{address[0]}:{address[1]}: {reason}") from error
        except BaseException:
            await link.close()
            raise
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say Hello."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101
        self._transport = transport
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        transport.write(self._channel.hello())
        self._writable.set()
        self._plan_keep_alive()

    def data_received(self, data: bytes) -> None:
        """Hand out whole messages; a breach of the protocol ends the connection."""
        self._channel.receive(data)
        try:
            while (message := self._channel.message()) is not None:
                self._dispatch(message)
            if self._channel.version is not None and not self.ready.done():
                self.ready.set_result(None)
        except ProtocolError as error:
            if not self.ready.done():
                self.ready.set_exception(error)
            self._abort()
        after, self._after_turn = self._after_turn, []
        for callback in after:
            callback()

    def after_turn(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when all messages of what has just arrived were handed out."""
        self._after_turn.append(callback)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits."""
        if not self.ready.done():
            self.ready.set_exception(exc if isinstance(exc, OSError) else ConnectionResetError("closed before Hello"))
        if not self.ready.cancelled():
            self.ready.exception()  # nobody may be waiting for it any more
        self.lost.set()
        self._gone.set()
        self._writable.set()
        if self._keep_alive:
            self._keep_alive.cancel()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Unavailable(f"{self.address[0]}:{self.address[1]} closed the connection"))
                answer.exception()
        self._answers.clear()
        callbacks, self.on_lost = self.on_lost, []  # they take themselves out of the list
        for callback in callbacks:
            callback()

    def pause_writing(self) -> None:
        """The peer reads slower than we write."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It caught up."""
        self._writable.set()

    @property
    def writable(self) -> bool:
        """Whether the transport wants more."""
        return self._writable.is_set()

    def send(self, message: object) -> None:
        """Send ``message``; all of one turn of the loop go out together. Raises ``LocalProtocolError``."""
        frame = self._channel.encode(message)
        if self.lost.is_set():
            return
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unsent.append(frame)

    async def ask(self, message: Any, seconds: float) -> Any:
        """Send ``message`` and return the answer with its ReqId. Raises ``Unavailable`` when none came in time."""
        if self.lost.is_set():
            raise Unavailable(f"{self.address[0]}:{self.address[1]} closed the connection")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[message.reqid] = answer
        try:
            self.send(message)
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise Unavailable(f"{self.address[0]}:{self.address[1]}: no answer within {seconds:g} s") from None
        finally:
            self._answers.pop(message.reqid, None)

    async def drain(self) -> None:
        """Wait until the transport wants more, or the connection has ended."""
        await self._writable.wait()

    def abort(self) -> None:
        """End the connection now; ``on_lost`` runs before this returns."""
        self._abort()

    async def close(self) -> None:
        """End the connection and wait until its socket is closed."""
        if self._transport is None:
            if not self.ready.done():
                self.ready.cancel()
            return
        self._abort()
        await self._gone.wait()

    def _abort(self) -> None:
        self.lost.set()
        if self._transport is not None:
            self._transport.abort()

    def _dispatch(self, message: Any) -> None:
        if (answer := self._answers.get(message.reqid)) is not None:
            if not answer.done():
                answer.set_result(message)
        elif listener := self.listeners.get(message.reqid.partition):
            listener(message)

    def flush(self) -> None:
        """Write what was sent now, instead of at the end of this turn of the loop."""
        unsent, self._unsent = self._unsent, []
        if unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(unsent))
            self._written_at = asyncio.get_running_loop().time()

    def _plan_keep_alive(self) -> None:
        """Look again when there has been no write for long; moving a timer at every write would cost more."""
        at = self._written_at + KEEP_ALIVE_SECONDS
        self._keep_alive = asyncio.get_running_loop().call_at(at, self._send_keep_alive)

    def _send_keep_alive(self) -> None:
        with contextlib.suppress(RuntimeError):
            if self._transport is not None and not self._transport.is_closing():
                now = asyncio.get_running_loop().time()
                if now >= self._written_at + KEEP_ALIVE_SECONDS:
                    self._transport.write(self._channel.keep_alive())
                    self._written_at = now
                self._plan_keep_alive()
