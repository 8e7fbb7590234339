"""The client's sockets: one DEALER per endpoint on an asyncio loop, with the news of its connection (14.3).

Plain non-blocking sockets: ØMQ's descriptor signals *edges*, so every reading goes on until nothing is left, and after
every sending we look whether something came in meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import zmq
from zmq.utils.monitor import parse_monitor_message

from pavane.raft.client.causes import FAILED, Causes
from pavane.raft.curve import CurveKeys
from pavane.raft.messages import has_input, receive, send
from pavane.raft.wire import Frame
from pavane.raft.wire.frames import FRAME_BYTES

INPUT_MESSAGES = 512  # taken from one socket before others get their turn (14.4)
HIGH_WATER_OUT = 1000
WAITING_MESSAGES = 10_000  # unsent messages of one link; as many as there may be calls (CLIENT_INFLIGHT)
RECONNECT_MS = 50
RECONNECT_MAX_MS = 500
CONNECT_TIMEOUT_MS = 2000  # an address without a host would else be tried for minutes
GIVEN_UP_S = 0.5  # after a loss that libzmq does not begin to mend at once

_UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
_RETRIED = zmq.EVENT_CONNECT_RETRIED
_DOWN = zmq.EVENT_DISCONNECTED | _RETRIED
_TOLD = _UP | _DOWN | FAILED

OnMessage: TypeAlias = Callable[[str, list[bytes]], None]
OnConnection: TypeAlias = Callable[[str, bool], None]


class Links:
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
        self._links: dict[str, _Link] = {}

    def keep(self, endpoints: frozenset[str]) -> None:
        """Connect what is missing in ``endpoints``, close what is not in it."""
        for endpoint in self._links.keys() - endpoints:
            self._links.pop(endpoint).close()
        for endpoint in endpoints - self._links.keys():
            link = _Link(endpoint, self._socket(endpoint), self._loop, self._read)
            self._links[endpoint] = link
            link.connect(self._address(endpoint))

    def send(self, endpoint: str, frames: tuple[Frame, ...]) -> None:
        """Send, or keep until the link is up; what exceeds WAITING_MESSAGES is lost, as on a broken connection."""
        link = self._links.get(endpoint)
        if link is not None:
            link.send(frames)

    def close(self) -> None:
        """Close all sockets; unsent messages are lost."""
        self.keep(frozenset())
        self._context.destroy(linger=0)

    def _address(self, endpoint: str) -> str:
        """Return the ØMQ address of ``endpoint``, with the source address if there is one."""
        if not self._source:
            return endpoint
        source = f"[{self._source}]" if ":" in self._source else self._source
        return endpoint.replace("tcp://", f"tcp://{source}:0;", 1)

    def _socket(self, endpoint: str) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, HIGH_WATER_OUT)
        socket.set(zmq.IMMEDIATE, 1)
        socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        socket.set(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
        socket.set(zmq.MAXMSGSIZE, FRAME_BYTES)
        socket.set(zmq.TCP_KEEPALIVE, 1)
        socket.set(zmq.IPV6, int("[" in endpoint))
        if self._curve is not None:
            self._curve.secure(socket)
        return socket

    def _read(self, link: "_Link") -> None:
        """Take one batch from a link, first its messages and then the news of its connection."""
        for _ in range(INPUT_MESSAGES):
            if link.closed or not has_input(link.socket):
                break
            frames = receive(link.socket)
            if frames is not None:
                self._on_message(link.endpoint, frames)
        else:
            link.read_soon()
        while link.news and not link.closed:
            link.news = has_input(link.monitor)
            if not link.news:
                break
            event = parse_monitor_message(link.monitor.recv_multipart(zmq.DONTWAIT))["event"]
            self._causes.event(link.endpoint, event)
            if event & FAILED:
                continue  # a loss follows
            if event & _DOWN:
                link.waiting.clear()
            link.lost(event not in (_UP, _RETRIED))
            self._on_connection(link.endpoint, event == _UP)
        if not link.closed:
            link.flush()
        self._on_settled()


class _Link:
    """One DEALER, its monitor, and the messages that wait for its connection."""

    def __init__(
        self,
        endpoint: str,
        socket: "zmq.Socket[bytes]",
        loop: asyncio.AbstractEventLoop,
        read: Callable[["_Link"], None],
    ) -> None:
        self.endpoint = endpoint
        self.socket = socket
        self.monitor: zmq.Socket[bytes] = socket.get_monitor_socket(_TOLD)
        self.waiting: deque[tuple[Frame, ...]] = deque(maxlen=WAITING_MESSAGES)
        self.closed = False
        self._loop = loop
        self._read = read
        self._read_due = False
        self._address = ""
        self._given_up: asyncio.TimerHandle | None = None
        self.news = True  # whether the monitor may have something
        self._descriptors = (socket.fileno(), self.monitor.fileno())
        for descriptor, ready in zip(self._descriptors, (self._ready, self._monitor_ready), strict=True):
            loop.add_reader(descriptor, ready)
        self.read_soon()

    def connect(self, address: str) -> None:
        """Connect to the ØMQ ``address``."""
        self._address = address
        self.socket.connect(address)

    def lost(self, lost: bool) -> None:
        """Take note that a connection ended, or that libzmq makes another one.

        It makes none after a stranger's answer, such as that of a proxy before a Service has its rules.
        """
        if self._given_up is not None:
            self._given_up.cancel()
            self._given_up = None
        if lost:
            self._given_up = self._loop.call_later(GIVEN_UP_S, self._connect_again)

    def _connect_again(self) -> None:
        with suppress(zmq.ZMQError):
            self.socket.disconnect(self._address)
        self.connect(self._address)

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
                send(self.socket, self.waiting[0])
                self.waiting.popleft()
        if has_input(self.socket):
            self.read_soon()

    def read_soon(self) -> None:
        """Look for input in the next turn of the loop, without waiting for the descriptor."""
        if not self._read_due:
            self._read_due = True
            self._loop.call_soon(self._ready)

    def close(self) -> None:
        """Close both sockets."""
        self.closed = True
        self.lost(False)
        for descriptor in self._descriptors:
            self._loop.remove_reader(descriptor)
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(0)

    def _monitor_ready(self) -> None:
        self.news = True
        self._ready()

    def _ready(self) -> None:
        self._read_due = False
        if not self.closed:
            self._read(self)
