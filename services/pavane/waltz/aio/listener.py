"""A listening port whose connections are counted and end with it."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Generic, TypeVar

from pavane.waltz.aio.stream import Stream

CONNECTIONS_MAX = 4096  # of one port; each costs a file descriptor and its buffers
BACKLOG = 512
S = TypeVar("S", bound=Stream)


class Listener(Generic[S]):
    """Accepts connections and makes a ``Stream`` for each."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._server: asyncio.Server | None = None
        self.streams: set[S] = set()
        self.port = 0
        self.refused = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None) -> None:
        """Listen; raises ``OSError`` when the address is not free."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port, ssl=tls, backlog=BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and all connections."""
        if self._server is not None:
            self._server.close()
        for stream in list(self.streams):
            stream.hang_up("the server stops")
        await asyncio.sleep(0)
        self._server = None

    def _accept(self) -> asyncio.Protocol:
        if len(self.streams) >= CONNECTIONS_MAX:
            self.refused += 1
            return _Refusal()
        stream = self._make()
        self.streams.add(stream)
        stream.forget = lambda: self.streams.discard(stream)
        return stream


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
