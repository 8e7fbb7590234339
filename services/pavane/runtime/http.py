"""An ASGI server that is one part of a process: signals and logs belong to the process."""

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from pavane.runtime.connections import CONNECTIONS_MAX, Places, bounded
from pavane.runtime.door import Door, affordable

BACKLOG = 128  # asyncio accepts so many before it lets anybody else work


class HttpServer(uvicorn.Server):
    """Serves ``app`` on sockets that the caller bound: ``await server.serve(sockets=[listener])``.

    It keeps at most ``connections_max`` connections, or as many as half of the files that the process may open: idle
    ones end by themselves, or make room for others. With TLS those in their handshake are bounded too. ``limits`` are
    further settings of uvicorn. Set ``should_exit`` to end it: answers under way are finished within
    ``timeout_graceful_shutdown`` seconds.
    """

    def __init__(self, app: Any, *, connections_max: int = CONNECTIONS_MAX, **limits: Any) -> None:
        settings: dict[str, Any] = {
            "log_config": None,
            "log_level": "warning",
            "access_log": False,
            "ws": "none",
            "backlog": BACKLOG,
            **limits,
        }
        self._places = Places(affordable(connections_max, 2))
        super().__init__(uvicorn.Config(app, http=bounded(self._places), **settings))

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until ``should_exit``, on ``sockets``, which this takes over."""
        if self.config.is_ssl and sockets:
            [listener] = sockets
            self._places.door = Door(listener)
            sockets = [self._places.door]
        await super().serve(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def listen(host: str, port: int, *, backlog: int = 128) -> socket.socket:
    """Return a listening socket for ``host``, which may be an IPv6 address; raises ``OSError`` when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=backlog)
    # A socket made from the descriptor knows that it is TCP; asyncio then switches Nagle's delay off for its
    # connections, which would cost 40 ms for each answer.
    return socket.socket(fileno=listener.detach())
