"""HTTP connections that a server can afford: idle ones end, and the oldest idle one makes room for the next."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from pavane.runtime.door import Door

HEADER_S = 10.0  # for the head of a request, from the connection or from its first byte on
BODY_S = 30.0  # for each further piece of its body, which networks that lose much may hold up
CONNECTIONS_MAX = 512  # below half of the 1,024 descriptors that a process often has


class Places:
    """The connections of one server, at most ``connections_max`` of them."""

    def __init__(self, connections_max: int) -> None:
        self._max = connections_max
        self._open: dict[BoundedProtocol, None] = {}
        self.door: Door | None = None

    def enter(self, connection: "BoundedProtocol") -> None:
        """Take a connection in; beyond the limit the oldest idle one ends, and if there is none, the new one."""
        if self.door is not None:
            self.door.admit(connection.transport.get_extra_info("socket").fileno())
        self._open[connection] = None
        if len(self._open) > self._max:
            next((each for each in self._open if each.idle), connection).end()

    def leave(self, connection: "BoundedProtocol") -> None:
        """Forget a connection."""
        self._open.pop(connection, None)


class BoundedProtocol(H11Protocol):
    """An HTTP connection that others may displace while it is idle.

    It ends when no request comes in HEADER_S, and when nothing of a request's body comes in BODY_S.
    """

    places: Places

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(transport)
        self._patience: asyncio.TimerHandle | None = self.loop.call_later(HEADER_S, self._give_up)
        self.places.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_waiting()
        self.places.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on; the head of a further request has its time from its first byte on."""
        super().data_received(data)
        if not self.idle:
            self._stop_waiting()
            self._wait_for_body()
        elif self._patience is None:
            self._patience = self.loop.call_later(HEADER_S, self._give_up)

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def end(self) -> None:
        """End it at once."""
        self.places.leave(self)
        self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _wait_for_body(self) -> None:
        if self.cycle is not None and self.cycle.more_body:
            self._patience = self.loop.call_later(BODY_S, self._give_up_body)

    def _give_up_body(self) -> None:
        self._patience = None
        if self.idle:
            return
        if self.flow.read_paused:  # it is us who does not read
            self._wait_for_body()
        elif self.cycle is not None and self.cycle.more_body:
            self.end()

    def _give_up(self) -> None:
        self._patience = None
        if self.idle:
            self.end()


def bounded(places: Places) -> Any:
    """Return the protocol class of a server whose connections share ``places``."""
    return type("BoundedProtocol", (BoundedProtocol,), {"places": places})
