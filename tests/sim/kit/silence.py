"""Connections that go silent: they stand and carry nothing, and only the system at an end finds out, by its rules.

The rules are those of the product: ``noticing`` has it prepare a socket and reads from the system what that asks for.
What the system of a real machine is asked for, and does, is tried in ``e2e/test_silence.py``.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

on_linux = pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"),
    reason="needs Linux: elsewhere the system alone decides when bytes that nobody acknowledges end a connection",
)


@dataclass(frozen=True)
class Noticing:
    """When the system at one end gives a connection up; ``None``: never, or after many minutes."""

    idle_s: float | None
    """Nothing came for so long: the other end is asked."""
    unanswered_s: float
    """It must answer within this."""
    unacknowledged_s: float | None
    """What was sent must be acknowledged within this."""
    asks_always: bool = False
    """Whether the other end is asked also while something is not acknowledged; the system does not do that."""


NEVER = Noticing(None, 0.0, None)


class _Socket(asyncio.Transport):
    """What the product prepares, be it a transport or the writer of a stream."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__({"socket": sock})
        self.transport = self

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is written."""


def noticing(*prepare: Callable[..., object]) -> Noticing:
    """Return what the system does for a TCP connection that the product has prepared so."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        for each in prepare:
            each(_Socket(sock))
        return noticed_by(sock)


def noticed_by(sock: socket.socket) -> Noticing:
    """Return what the system does for this connection. Where it cannot be told: nothing, see ``on_linux``."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        return NEVER
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
    idle, every, times, unacknowledged_ms = (sock.getsockopt(socket.IPPROTO_TCP, option) for option in options)
    unacknowledged = unacknowledged_ms / 1000 if unacknowledged_ms else None
    # Linux counts unanswered questions only where there is no time-out for what was sent; else that holds for both.
    unanswered = every * times if unacknowledged is None else max(float(every), unacknowledged - idle)
    asks = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
    return Noticing(idle if asks else None, unanswered, unacknowledged)


def noticing_grpc(options: Mapping[str, int]) -> Noticing:
    """Return what gRPC does with these options of a channel or server."""
    idle_ms, timeout_ms = options.get("grpc.keepalive_time_ms"), options.get("grpc.keepalive_timeout_ms")
    if idle_ms is None or timeout_ms is None or not options.get("grpc.keepalive_permit_without_calls"):
        return NEVER
    return Noticing(idle_ms / 1000, timeout_ms / 1000, timeout_ms / 1000, asks_always=True)


class Line:
    """One connection as the systems at its ends know it. End 0 has dialled, end 1 has accepted.

    Whoever carries the messages says what was ``sent``, and asks when it is due whether it ``arrives``, in order.
    ``give_up`` is called with the end whose system ends the connection; what the other one hears is up to the caller.
    """

    def __init__(
        self,
        schedule: Callable[[float, Callable[[], None]], None],
        now: Callable[[], float],
        rules: tuple[Noticing, Noticing],
        give_up: Callable[[int], None],
    ) -> None:
        self.silent = [False, False]
        """Whether nothing of what an end sends arrives, its acknowledgements and its end included."""
        self.over = [False, False]
        """Whether the connection has ended for an end."""
        self._schedule, self._now = schedule, now
        self._rules = rules
        self._give_up = give_up
        self._unacknowledged: tuple[deque[float], deque[float]] = (deque(), deque())
        self._heard = [now(), now()]
        self._watched = [False, False]

    @property
    def half_open(self) -> bool:
        """Whether it carries nothing, in one direction at least."""
        return any(self.silent)

    def sent(self, end: int) -> None:
        """An end has sent something."""
        self._unacknowledged[end].append(self._now())
        if self.half_open:
            self._watch(end)

    def arrives(self, end: int) -> bool:
        """Whether what an end has sent arrives, now that it would."""
        other = 1 - end
        if self.silent[end]:
            return False
        self._heard[other] = self._now()
        if not self.silent[other]:
            self._unacknowledged[end].popleft()
            self._heard[end] = self._now()
        return True

    def silence(self, *ends: int) -> None:
        """From now on nothing arrives of what these ends send; nobody is told."""
        if not self.half_open:
            for end, rule in enumerate(self._rules):  # the questions of idle ends were answered until now
                if rule.idle_s is not None:
                    self._heard[end] += (self._now() - self._heard[end]) // rule.idle_s * rule.idle_s
        for end in ends:
            self.silent[end] = True
        for end in (0, 1):
            self._watch(end)

    def _due(self, end: int) -> float | None:
        rule, unacknowledged = self._rules[end], self._unacknowledged[end]
        due: list[float] = []
        if unacknowledged and rule.unacknowledged_s is not None:
            due.append(unacknowledged[0] + rule.unacknowledged_s)
        if rule.idle_s is not None and (rule.asks_always or not unacknowledged):
            due.append(self._heard[end] + rule.idle_s + rule.unanswered_s)
        return min(due, default=None)

    def _watch(self, end: int) -> None:
        due = self._due(end)
        if due is not None and not self._watched[end]:
            self._watched[end] = True
            self._schedule(max(due, self._now()), lambda: self._look(end))

    def _look(self, end: int) -> None:
        self._watched[end] = False
        due = self._due(end)
        if self.over[end] or due is None:
            return
        if due > self._now():
            self._watch(end)
        else:
            self._give_up(end)
