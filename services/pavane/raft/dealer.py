"""An outgoing ØMQ socket that connects again where libzmq gives up, of peers and clients (docs/specs/raft.md 14.3)."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import zmq
from zmq.utils.monitor import parse_monitor_message

from pavane.raft.curve import CurveKeys
from pavane.raft.messages import descriptor, has_input
from pavane.raft.silence import CONNECT_MS, HANDSHAKE_MS, IDLE_PROBE_S, IDLE_S, UNACKNOWLEDGED_MS
from pavane.raft.wire.frames import FRAME_BYTES

INPUT_MESSAGES = 512  # INPUT_BATCH: taken from one socket before others get their turn (14.4)
RECONNECT_MS = 50
RECONNECT_MAX_MS = 500
GIVEN_UP_S = 0.5  # after a loss that libzmq does not begin to mend at once

UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
DOWN = zmq.EVENT_DISCONNECTED
RETRIED = zmq.EVENT_CONNECT_RETRIED


class Dealer:
    """A DEALER and the monitor of its connections; used by the thread of ``loop`` only.

    ``hot`` says whether the socket may have input, ``news`` whether the monitor may; ``signalled`` is called when one
    of them becomes true. ``high_water`` limits what waits in it to be sent. The monitor reports ``UP``, ``DOWN``,
    ``RETRIED`` and ``events``.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        loop: asyncio.AbstractEventLoop,
        signalled: Callable[[], None],
        *,
        high_water: int,
        curve: CurveKeys | None,
        events: int = 0,
    ) -> None:
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.SNDHWM, high_water)
        self.socket.set(zmq.IMMEDIATE, 1)
        self.socket.set(zmq.RECONNECT_IVL, RECONNECT_MS)
        self.socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        self.socket.set(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        self.socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.socket.set(zmq.MAXMSGSIZE, FRAME_BYTES)
        self.socket.set(zmq.TCP_MAXRT, UNACKNOWLEDGED_MS)
        self.socket.set(zmq.TCP_KEEPALIVE, 1)
        self.socket.set(zmq.TCP_KEEPALIVE_IDLE, IDLE_S)
        self.socket.set(zmq.TCP_KEEPALIVE_INTVL, IDLE_PROBE_S)
        if curve is not None:
            curve.secure(self.socket)
        self._monitor: zmq.Socket[bytes] = self.socket.get_monitor_socket(UP | DOWN | RETRIED | events)
        self.endpoints: tuple[str, ...] = ()
        self.hot = self.news = True
        self._loop = loop
        self._signalled = signalled
        self._given_up: asyncio.TimerHandle | None = None  # from a loss until libzmq retries or a connection stands
        self._descriptors = (descriptor(self.socket), descriptor(self._monitor))
        for file, ready in zip(self._descriptors, (self._input_signalled, self._news_signalled), strict=True):
            loop.add_reader(file, ready)

    def connect(self, endpoints: Sequence[str]) -> None:
        """Make the connections those of ``endpoints``: ØMQ addresses."""
        for endpoint in self.endpoints:
            if endpoint not in endpoints:
                self.socket.disconnect(endpoint)
        if any("[" in endpoint for endpoint in endpoints):
            self.socket.set(zmq.IPV6, 1)
        for endpoint in endpoints:
            if endpoint not in self.endpoints:
                self.socket.connect(endpoint)
        self.endpoints = tuple(endpoints)

    def has_input(self) -> bool:
        """Whether a message can be received now."""
        self.hot = has_input(self.socket)
        return self.hot

    def events(self) -> Iterator[int]:
        """Take what the monitor has: events of the connections."""
        while self.news:
            self.news = has_input(self._monitor)
            if not self.news:
                return
            event = parse_monitor_message(self._monitor.recv_multipart(zmq.DONTWAIT))["event"]
            if event in (UP, DOWN, RETRIED):
                self._mended()
            if event == DOWN:
                self._given_up = self._loop.call_later(GIVEN_UP_S, self._connect_again)
            yield event

    def close(self) -> None:
        """Close both sockets; what was not sent is lost."""
        self._mended()
        self.news = False
        for file in self._descriptors:
            self._loop.remove_reader(file)
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(0)

    def _mended(self) -> None:
        if self._given_up is not None:
            self._given_up.cancel()
            self._given_up = None

    def _connect_again(self) -> None:
        """Make connections that libzmq does not make.

        It makes none after a stranger's answer, such as that of a proxy before a Service has its rules.
        """
        for endpoint in self.endpoints:
            with suppress(zmq.ZMQError):
                self.socket.disconnect(endpoint)
            self.socket.connect(endpoint)

    def _input_signalled(self) -> None:
        self.hot = True
        self._signalled()

    def _news_signalled(self) -> None:
        self.news = True
        self._signalled()
