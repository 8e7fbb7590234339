"""The client's sockets: one DEALER per endpoint on an asyncio loop, with the news of its connection (14.3).

Plain non-blocking sockets: ØMQ's descriptor signals *edges*, so every reading goes on until nothing is left, and after
every sending we look whether something came in meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeAlias

import zmq

from pavane.raft.client.causes import FAILED, Causes
from pavane.raft.curve import CurveKeys
from pavane.raft.dealer import DOWN, INPUT_MESSAGES, RETRIED, UP, Dealer
from pavane.raft.messages import has_room, receive, send
from pavane.raft.wire.frames import Frame
from pavane.runtime.names import bracketed

HIGH_WATER_OUT = 1000
WAITING_MESSAGES = 10_000  # unsent messages of one link; as many as there may be calls (CLIENT_INFLIGHT)

OnMessage: TypeAlias = Callable[[str, list[bytes]], None]
OnConnection: TypeAlias = Callable[[str, bool], None]


class Connections:
    """The DEALERs of one client, used by the thread of ``loop`` only.

    ``source`` is the address to connect from, if any. ``on_message(endpoint, frames)`` and ``on_connection(endpoint,
    up)`` are called from the loop; ``on_settled()`` after each batch of them. ``causes`` is told what becomes of
    connections. ``curve`` encrypts all of them.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        source: str | None,
        on_message: OnMessage,
        on_connection: OnConnection,
        on_settled: Callable[[], None],
        causes: Causes,
        curve: CurveKeys | None = None,
    ) -> None:
        self._causes = causes
        self._curve = curve
        self._loop = loop
        self._source = source
        self._on_message = on_message
        self._on_connection = on_connection
        self._on_settled = on_settled
        self._context = zmq.Context(io_threads=1)
        self._links: dict[str, _Connection] = {}

    def keep(self, endpoints: frozenset[str]) -> None:
        """Connect what is missing in ``endpoints``, close what is not in it."""
        for endpoint in self._links.keys() - endpoints:
            self._links.pop(endpoint).close()
        for endpoint in endpoints - self._links.keys():
            self._open(endpoint)

    def redial(self, endpoints: Iterable[str]) -> None:
        """Make these connections anew, of those that are kept; what waits on them, in either direction, is lost."""
        for endpoint in endpoints:
            link = self._links.get(endpoint)
            if link is not None:
                link.close()
                self._open(endpoint)

    def send(self, endpoint: str, frames: tuple[Frame, ...]) -> None:
        """Send, or keep until the link is up; what exceeds WAITING_MESSAGES is lost, as on a broken connection."""
        link = self._links.get(endpoint)
        if link is not None:
            link.send(frames)

    def close(self) -> None:
        """Close all sockets; unsent messages are lost."""
        self.keep(frozenset())
        self._context.destroy(linger=0)

    def _open(self, endpoint: str) -> None:
        link = self._links[endpoint] = _Connection(endpoint, self._context, self._loop, self._curve, self._read)
        link.dealer.connect([self._address(endpoint)])

    def _address(self, endpoint: str) -> str:
        """Return the ØMQ address of ``endpoint``, with the source address if there is one."""
        if not self._source:
            return endpoint
        return endpoint.replace("tcp://", f"tcp://{bracketed(self._source)}:0;", 1)

    def _read(self, link: "_Connection") -> None:
        """Take one batch from a link, first its messages and then the news of its connection."""
        for _ in range(INPUT_MESSAGES):
            if link.closed or not link.dealer.has_input():
                break
            frames = receive(link.dealer.socket)
            if frames is not None:
                self._on_message(link.endpoint, frames)
        else:
            link.read_soon()
        for event in link.dealer.events():
            self._causes.event(link.endpoint, event)
            if event & FAILED:
                continue  # a loss follows
            if event in (DOWN, RETRIED):
                link.waiting.clear()
            self._on_connection(link.endpoint, event == UP)
        if not link.closed:
            link.flush()
        self._on_settled()


class _Connection:
    """One DEALER and the messages that wait for its connection."""

    def __init__(
        self,
        endpoint: str,
        context: "zmq.Context[zmq.Socket[bytes]]",
        loop: asyncio.AbstractEventLoop,
        curve: CurveKeys | None,
        read: Callable[["_Connection"], None],
    ) -> None:
        self.endpoint = endpoint
        self.waiting: deque[tuple[Frame, ...]] = deque(maxlen=WAITING_MESSAGES)
        self.closed = False
        self._loop = loop
        self._read = read
        self._read_due = False
        self.dealer = Dealer(
            context,
            loop,
            self._ready,
            high_water=HIGH_WATER_OUT,
            curve=curve,
            events=FAILED,
        )
        self.read_soon()

    def send(self, frames: tuple[Frame, ...]) -> None:
        """Send behind what waits."""
        self.waiting.append(frames)
        self.flush()

    def flush(self) -> None:
        """Send what waits as far as the socket takes it, and see to what comes in meanwhile."""
        if not self.waiting:
            return
        with suppress(zmq.Again):
            while self.waiting:
                send(self.dealer.socket, self.waiting[0])
                self.waiting.popleft()
        # A connection may have come to stand since ØMQ had no room; asking takes its announcement back.
        if self.dealer.has_input() or (self.waiting and has_room(self.dealer.socket)):
            self.read_soon()

    def read_soon(self) -> None:
        """Look for input in the next turn of the loop, without waiting for the descriptor."""
        if not self._read_due:
            self._read_due = True
            self._loop.call_soon(self._ready)

    def close(self) -> None:
        """Close it; what waits is lost."""
        self.closed = True
        self.dealer.close()

    def _ready(self) -> None:
        self._read_due = False
        if not self.closed:
            self._read(self)
