"""Hangs up on connections that are too many, and on those that send what never ends (docs/specs/raft.md 14.4).

Without it whoever connects often enough takes the last file descriptor: ØMQ then tries to accept for ever, and the next
file that the log or a snapshot needs cannot be opened, which ends the peer.

And whoever sends a message without an end takes all memory: libzmq bounds a frame, not a message, and keeps frames
until the last one is there. It tells nobody how much that is. So this compares how much the process grew with how much
came on each connection since its last whole message, which the system counts.
"""

import asyncio
import logging
import resource
import socket as system_socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import zmq
from zmq.utils.monitor import parse_monitor_message

from pavane.raft.messages import descriptor, has_input

Socket = zmq.Socket[bytes]
_CAME_ON = int(zmq.SRCFD)
_NAME = "User-Id"

STATM = Path("/proc/self/statm")

_logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 16_384  # each takes 28 KiB of memory
DESCRIPTORS_KEPT = 128  # of the process's limit: for log, snapshots, our own connections, the ops port
UNFINISHED_BYTES_MAX = 64 << 20  # of memory, for what came on one connection and makes no message
UNFINISHED_SUM_BYTES_MAX = 128 << 20  # for all of them
HANDSHAKE_BYTES = 4096  # not counted: what every connection sends to begin with
FRAME_COST_MAX = 32  # memory by what came: an empty frame, two bytes on the wire, takes 64
QUIET_BYTES = 1 << 20  # unfinished of all connections: what the process has then is not theirs
GROWTH_BYTES = 16 << 20  # of the process, after which it is looked whose they are
LOOK_S = 0.05
LOOK_SHARE = 20  # a look is followed by a pause this many times its processor time, one that ended somebody by as much
TCP_INFO = getattr(system_socket, "TCP_INFO", None)  # only Linux has the count that is wanted
TCP_INFO_BYTES = 136
RECEIVED_OFFSET = 128  # of tcpi_bytes_received, 8 bytes
RESET_AT_CLOSE = struct.pack("ii", 1, 0)
REFUSED_LINE_S = 10.0  # one line in so long: who comes again and again must not fill the log


def connections_max() -> int:
    """Return how many connections a peer takes: fewer than CONNECTIONS_MAX if the process may open too few files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return min(CONNECTIONS_MAX, max(files - DESCRIPTORS_KEPT, files // 2))


class Connections:
    """The connections that others made to ``listeners``; used by the thread of ``loop`` only.

    ``refused`` counts those that were hung up on. They are ``named`` where each has shown a key. Close it
    before the listeners.
    """

    def __init__(
        self,
        listeners: Sequence[Socket],
        context: zmq.Context[Socket],
        loop: asyncio.AbstractEventLoop,
        *,
        named: bool = False,
    ) -> None:
        self._named = named
        self._listeners = listeners
        self._loop = loop
        self._max = connections_max()
        self._open: dict[tuple[Socket, int], None] = {}  # monitor and descriptor, oldest first
        self._counts: Counter[Socket] = Counter()  # of them, by monitor
        self._told_at_s = 0.0
        self.refused = 0
        self.reading = True  # whether messages are taken; else what waits may be whole
        self.heard: dict[bytes, zmq.Frame] = {}  # who sent a message since the last look, by route: its first frame
        self._heard: set[int] = set()  # descriptors of those heard since the process grew
        self._names: dict[int, str] = {}  # of those that have said something, by descriptor
        self._before: dict[tuple[Socket, int], int] = {}  # what each had sent when it was last heard
        self._size = self._quiet = resident_bytes()
        self._look_again = loop.call_later(LOOK_S, self._look_at_memory)
        self._monitors = [self._watch(listener, context) for listener in listeners]

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._open)

    def any_to(self, listener: Socket) -> bool:
        """Whether there are some to this listener."""
        return self._counts[self._monitors[self._listeners.index(listener)]] > 0

    def close(self) -> None:
        """Stop counting."""
        self._look_again.cancel()
        for listener, monitor in zip(self._listeners, self._monitors, strict=True):
            listener.disable_monitor()
            self._loop.remove_reader(descriptor(monitor))
            monitor.close(0)

    def end_all_but(self, stays: Callable[[str], bool]) -> None:
        """End connections by the names that were given with their keys; one that has said nothing ends, too. Accepted
        clients connect again at once.
        """
        self._take_heard()
        for key in list(self._open):
            name = self._names.get(key[1])
            if name is None or not stays(name):
                self._refuse(key, "connections are ended: a client's key is not listed any more")

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
            self._take_heard()  # a descriptor that is closed soon stands for somebody else
            event = parse_monitor_message(monitor.recv_multipart(zmq.DONTWAIT))
            key = monitor, int(event["value"])
            if event["event"] == zmq.EVENT_ACCEPTED:
                self._forget(key)
                self._open[key] = None
                self._counts[monitor] += 1
                self._before[key] = HANDSHAKE_BYTES
            else:
                self._forget(key)
            self._names.pop(key[1], None)
        while len(self._open) > self._max:
            self._refuse(
                next(reversed(self._open)),
                f"{self._max} programs are connected, and more are refused: a peer takes {CONNECTIONS_MAX}, and leaves "
                f"{DESCRIPTORS_KEPT} of the files that its process may open (`ulimit -n`) for itself",
            )

    def _forget(self, key: tuple[Socket, int]) -> None:
        if key in self._open:
            del self._open[key], self._before[key]
            self._counts[key[0]] -= 1

    def _look_at_memory(self) -> None:
        # Not by the clock: on a busy machine a look waits for the processor, and its pause would grow by that.
        began_s, refused = time.thread_time(), self.refused
        self._take_heard()
        size = resident_bytes()
        if size - self._size >= GROWTH_BYTES:
            self._end_unfinished(size)
            size = self._size = resident_bytes()
        self._size, self._quiet = min(size, self._size), min(size, self._quiet)
        share = LOOK_SHARE if self.refused == refused else 1
        pause_s = max(LOOK_S, share * (time.thread_time() - began_s))
        self._look_again = self._loop.call_later(pause_s, self._look_at_memory)

    def _take_heard(self) -> None:
        mixed: set[int] = set()
        for frame in self.heard.values():
            number = frame.get(_CAME_ON)
            self._heard.add(number)
            if self._named:
                name = str(frame.get(_NAME))
                if self._names.setdefault(number, name) != name:
                    mixed.add(number)
        self.heard.clear()
        # A message that had waited came on a connection that is gone; its descriptor is another's by now.
        for key in [key for key in self._open if key[1] in mixed] if mixed else ():
            self._refuse(key, "a connection is ended that may count under the name of an older one; it is made anew")

    def _end_unfinished(self, resident: int) -> None:
        unfinished: dict[tuple[Socket, int], int] = {}
        for key in self._open:
            received = received_bytes(key[1])
            if key[1] in self._heard:
                self._before[key] = max(self._before[key], received)
            unfinished[key] = max(0, received - self._before[key])
        self._heard.clear()
        together = sum(unfinished.values())
        if together <= QUIET_BYTES:
            self._quiet = resident
            return
        cost = min(max((resident - self._quiet) / together, 1), FRAME_COST_MAX) if self.reading else 1
        for key, size in sorted(unfinished.items(), key=lambda item: -item[1]):
            if size * cost <= UNFINISHED_BYTES_MAX and together * cost <= UNFINISHED_SUM_BYTES_MAX:
                break
            together -= size
            why = f"a connection is ended: {size} bytes came on it since its last message, and make none"
            # Else what it still sends waits in the system for a minute, and the sender with it.
            self._refuse(key, why, reset=True)

    def _refuse(self, key: tuple[Socket, int], why: str, *, reset: bool = False) -> None:
        _, number = key
        self._forget(key)
        # If it ended meanwhile, the number may stand for a file, which refuses this, or for a connection newer still.
        with suppress(OSError):
            connection = system_socket.socket(fileno=number)
            try:
                if reset:
                    connection.setsockopt(system_socket.SOL_SOCKET, system_socket.SO_LINGER, RESET_AT_CLOSE)
                connection.shutdown(system_socket.SHUT_RDWR)
            finally:
                connection.detach()
        self.refused += 1
        now_s = self._loop.time()
        if now_s >= self._told_at_s:
            self._told_at_s = now_s + REFUSED_LINE_S
            _logger.warning("%s", why)


def received_bytes(number: int) -> int:
    """Return how much came on the connection with this descriptor; 0 if it is gone or the system does not tell."""
    if TCP_INFO is None:
        return 0
    with suppress(OSError):
        connection = system_socket.socket(fileno=number)
        try:
            told = connection.getsockopt(system_socket.IPPROTO_TCP, TCP_INFO, TCP_INFO_BYTES)
        finally:
            connection.detach()
        return int.from_bytes(told[RECEIVED_OFFSET:], sys.byteorder)
    return 0


def resident_bytes() -> int:
    """Return how much memory this process has; 0 if the system does not tell."""
    with suppress(OSError):
        return int(STATM.read_bytes().split()[1]) * resource.getpagesize()
    return 0
