"""Counts who is connected to a peer, and hangs up on those that are too many (docs/specs/raft.md 14.4).

Without it whoever connects often enough takes the last file descriptor: ØMQ then tries to accept for ever, and the next
file that the log or a snapshot needs cannot be opened, which ends the peer.
"""

import asyncio
import logging
import resource
import socket as system_socket
from collections.abc import Sequence
from contextlib import suppress

import zmq
from zmq.utils.monitor import parse_monitor_message

from pavane.raft.messages import descriptor, has_input

Socket = zmq.Socket[bytes]

_logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 16_384  # each takes 28 KiB of memory
DESCRIPTORS_KEPT = 128  # of the process's limit: for log, snapshots, our own connections, the ops port
REFUSED_LINE_S = 10.0  # one line in so long: who comes again and again must not fill the log


def connections_max() -> int:
    """Return how many connections a peer takes: fewer than CONNECTIONS_MAX if the process may open too few files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, max(files - DESCRIPTORS_KEPT, files // 2))


class Connections:
    """The connections that others made to ``listeners``; used by the thread of ``loop`` only.

    ``refused`` counts those that were hung up on. Close it before the listeners.
    """

    def __init__(
        self, listeners: Sequence[Socket], context: zmq.Context[Socket], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._listeners = listeners
        self._loop = loop
        self._max = connections_max()
        self._open: dict[tuple[Socket, int], None] = {}  # monitor and descriptor, oldest first
        self._told_at_s = 0.0
        self.refused = 0
        self._monitors = [self._watch(listener, context) for listener in listeners]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._open)

    def close(self) -> None:
        """Stop counting."""
        for listener, monitor in zip(self._listeners, self._monitors, strict=True):
            listener.disable_monitor()
            self._loop.remove_reader(descriptor(monitor))
            monitor.close(0)

    def _watch(self, listener: Socket, context: zmq.Context[Socket]) -> Socket:
        address = f"inproc://connections-{id(listener)}"
        listener.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        monitor: Socket = context.socket(zmq.PAIR)
        # With a limit the thread that serves all sockets would wait for us, for ever if this is being closed.
        monitor.set(zmq.RCVHWM, 0)
        monitor.connect(address)
        self._loop.add_reader(descriptor(monitor), self._look, monitor)
        self._look(monitor)  # it announces nothing before somebody looked
        return monitor

    def _look(self, monitor: Socket) -> None:
        while has_input(monitor):
            event = parse_monitor_message(monitor.recv_multipart(zmq.DONTWAIT))
            key = monitor, int(event["value"])
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._open[key] = None
            else:
                self._open.pop(key, None)
        while len(self._open) > self._max:
            (_, number), _ = self._open.popitem()
            self._refuse(number)

    def _refuse(self, number: int) -> None:
        # If it ended meanwhile, the number may stand for a file, which refuses this, or for a connection newer still.
        with suppress(OSError):
            connection = system_socket.socket(fileno=number)
            try:
                connection.shutdown(system_socket.SHUT_RDWR)
            finally:
                connection.detach()
        self.refused += 1
        now_s = self._loop.time()
        if now_s >= self._told_at_s:
            self._told_at_s = now_s + REFUSED_LINE_S
            _logger.warning(
                "%d programs are connected, and more are refused: a peer takes %d, and leaves %d of the files that its "
                "process may open (`ulimit -n`) for itself",
                self._max,
                CONNECTIONS_MAX,
                DESCRIPTORS_KEPT,
            )
