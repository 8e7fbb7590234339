"""Drives the core with a UDP socket and a clock (docs/specs/swim.md 2.4)."""

import asyncio
import functools
import os
import random
import socket
import time
from collections.abc import Callable
from typing import Any, cast

from pavane.runtime.adapter import CoreAdapter
from pavane.swim.config import Config
from pavane.swim.core.core import Core
from pavane.swim.core.outputs import Event, Output, Persist, Send
from pavane.swim.tracing import Tracing
from pavane.swim.wire.values import Address, NodeId

RECEIVE_BUFFER_BYTES = (
    1 << 20
)  # a burst of joins reaches a node faster than a busy process reads; the kernel may cap it
_MAPPED = "::ffff:"


class Adapter(asyncio.DatagramProtocol):
    """One socket and one timer around one core. ``save`` makes a generation durable, or raises.

    ``happened`` is called on the loop for each event; ``failed`` at most once, with a mistake of ours or of the socket,
    and nothing is sent after that. Every call into ``core`` from outside goes through ``call``.
    """

    def __init__(
        self,
        happened: Callable[[Event], None],
        failed: Callable[[Exception], None],
        save: Callable[[NodeId], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._happened = happened
        self._failed = failed
        self._save = save
        self._transport: asyncio.DatagramTransport | None = None
        self._driver: CoreAdapter[Output] | None = None
        self._closed = self._loop.create_future()
        self._ipv6 = False
        self._full = False
        self.send_errors = 0
        self._tracing: Tracing
        self.core: Core

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        happened: Callable[[Event], None],
        failed: Callable[[Exception], None],
        save: Callable[[NodeId], None] | None = None,
    ) -> "Adapter":
        """Bind the socket; raises ``OSError``."""
        loop = asyncio.get_running_loop()
        _, adapter = await loop.create_datagram_endpoint(lambda: cls(happened, failed, save), local_addr=(host, port))
        return adapter

    def use(self, config: Config) -> None:
        """Make the core. Time-outs of two members must differ; nothing secret comes from the random generator."""
        if config.broadcast_to is not None:
            # Only for announcements: else somebody's word about an address could make us ping a whole network.
            self._socket().setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        self._tracing = Tracing(config.group)
        self.core = Core(config, random.Random(), os.urandom, self._loop.time(), time.time())  # noqa: S311
        self._driver = CoreAdapter(self.core, self._execute, self._core_failed)

    @property
    def bound(self) -> Address:
        """Where the socket is bound; the ip may be that of every interface."""
        host, port = self._socket().getsockname()[:2]
        return Address.of(host, port)

    @property
    def family(self) -> socket.AddressFamily:
        """What names must be resolved to: an IPv6 socket carries both families, an IPv4 socket its own only."""
        return socket.AF_UNSPEC if self._ipv6 else socket.AF_INET

    def call(self, what: Callable[[float], None]) -> None:
        """Call into the core with the present time and do what it asks for."""
        if self._driver is not None:
            self._driver.call(what)

    async def close(self) -> None:
        """Close the socket; nothing is received or sent any more."""
        if self._driver is not None:
            await self._driver.close()
        self._close_socket()
        await self._closed

    # --- called by asyncio ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast("asyncio.DatagramTransport", transport)
        bound = self._socket()
        self._ipv6 = bound.family == socket.AF_INET6
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Hand a datagram to the core; one that comes before there is a core is lost."""
        if self._driver is None:
            return
        source = _address(str(addr[0]), addr[1])
        self.call(lambda now: self.core.receive(source, data, now))

    def error_received(self, exc: Exception) -> None:
        """Count: somebody's port is closed, or the network is unreachable; the protocol bears loss."""
        del exc
        self.send_errors += 1

    def pause_writing(self) -> None:
        """Send nothing while the system takes nothing: what waited would come too late."""
        self._full = True

    def resume_writing(self) -> None:
        """Go on to send."""
        self._full = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that the socket is closed."""
        if not self._closed.done():
            self._closed.set_result(None)
        if exc is not None and self._driver is not None:
            self._driver.fail(exc)

    # --- inside --------------------------------------------------------------------------------------------------

    def _socket(self) -> socket.socket:
        if self._transport is None:
            raise OSError("the socket is closed")
        return cast("socket.socket", self._transport.get_extra_info("socket"))

    def _execute(self, output: Output) -> None:
        match output:
            case Send():
                self._send(output)
            case Persist() if self._save is not None:
                # It blocks for one fsync; a generation changes at starts and refutations, which are rare.
                self._save(NodeId(output.id, output.gen))
            case Event():
                self._tracing.event(output, self.core.info.node)
                self._happened(output)

    def _send(self, send: Send) -> None:
        if self._transport is None:
            return
        ipv4 = len(send.to.ip) == 4
        if (not ipv4 and not self._ipv6) or self._full:
            self.send_errors += 1
            return
        host = send.to.host
        self._transport.sendto(send.datagram, (_MAPPED + host if ipv4 and self._ipv6 else host, send.to.port))

    def _core_failed(self, error: Exception) -> None:
        self._close_socket()
        self._failed(error)

    def _close_socket(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None


@functools.lru_cache(maxsize=4096)
def _address(host: str, port: int) -> Address:
    """Read a source address; the same few hundred come again and again."""
    return Address.of(host, port)
