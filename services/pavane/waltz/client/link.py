"""A connection to a server: Hello, frames, and who waits for which answer (docs/specs/waltz.md 2)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Self

from pavane.waltz.aio.stream import Asker, connect
from pavane.waltz.errors import Unavailable
from pavane.waltz.wire.frame import LOG_CLIENT

CONNECT_SECONDS = 2.0  # until the Hello came; a stopped server's kernel still accepts
VERSIONS = (5,)  # an append below V5 is answered by the feed only; this client does without a feed
SHOW = (
    "with clients.authentication a log lets in who shows a certificate that was issued for it, has not expired, and "
    "whose authority still counts: `pavane connection waltz/NAME` prints one"
)
Address = tuple[str, int]
Route = Callable[[Address], Awaitable[Address]]
"""Says where a server is reached now; raises ``OSError``."""


def parse_address(text: str) -> Address:
    """Return host and port of ``host:port``; raises ``ValueError``."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is no address of a server: it looks like host:55180")
    return host.strip("[]"), int(port)


class Link(Asker):
    """One connection. Messages go to who asked (by ReqId), else to the listener of their partition.

    ``net_seq`` is greater than that of every earlier link of this client: by it servers tell a newer one.
    ``closed`` is set when the connection has ended; ``on_lost`` callbacks run then.
    """

    bounded = False  # a client has 1000 appends of a partition under way at most, however large they are

    side = LOG_CLIENT

    def __init__(self, address: Address, net_seq: int) -> None:
        super().__init__(self.side, f"{address[0]}:{address[1]}", versions=VERSIONS)
        self.address = address
        self.net_seq = net_seq
        self.on_lost: list[Callable[[], None]] = []
        self.listeners: dict[int, Callable[[Any], None]] = {}
        self._after_turn: list[Callable[[], None]] = []
        self._gone = asyncio.Event()

    @classmethod
    async def connect(
        cls, address: Address, tls: ssl.SSLContext | None, net_seq: int, route: Route | None = None
    ) -> Self:
        """Return a link whose Hello is done. Raises ``Unavailable``."""
        host, port = address
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                at, at_port = await route(address) if route is not None else address
                made, met = cls(address, net_seq), list[bool]()
                made.joined = lambda *_: met.append(True)
                try:
                    return await connect(lambda: made, f"{at}:{at_port}", tls, host)
                except ConnectionResetError as error:
                    if tls is None or not met:
                        raise
                    # With TLS 1.3 a client learns no sooner that its certificate is refused, and nothing more of it.
                    raise ssl.SSLError(f"{error or 'it hung up'}; {SHOW}") from error
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"{host}:{port}: {str(error) or 'no answer in time'}") from error

    def heard(self, message: Any) -> None:
        """Hand a message out."""
        if self.answered(message.reqid, message):
            return
        if listener := self.listeners.get(message.reqid.partition):
            listener(message)

    def turned(self) -> None:
        """Tell those who wait for the end of the turn."""
        if self._after_turn:
            after, self._after_turn = self._after_turn, []
            for callback in after:
                callback()

    def after_turn(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when all messages of what has just arrived were handed out."""
        self._after_turn.append(callback)

    def ended(self, reason: str) -> None:
        """Tell everybody who waits."""
        super().ended(reason)
        callbacks, self.on_lost = self.on_lost, []  # they take themselves out of the list
        for callback in callbacks:
            callback()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        super().connection_lost(exc)
        self._gone.set()

    async def ask(self, message: Any, seconds: float) -> Any:
        """Send ``message`` and return the answer with its ReqId. Raises ``Unavailable`` when none came in time."""
        return await self.answer(message.reqid, message, seconds)

    async def close(self) -> None:
        """End the connection and wait until its socket is closed."""
        self.abort("the client closed it")
        await self._gone.wait()
