"""Networks in virtual time: delay, loss, duplication, cuts and disconnects, from one random source.

``Network`` carries datagrams (``carry``) and routed messages as ØMQ does (``open``, ``ask``, ``answer``): these keep
their order, and may be lost. ``streams.py`` has connections without gaps, as TCP has.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.sim.kit.scheduler import Scheduler

Frames = tuple[bytes | memoryview, ...]

USUAL_DELAY_S = (0.0002, 0.003)
LATE_DELAY_S = (0.01, 0.1)
VERY_LATE_DELAY_S = (0.2, 1.2)  # beyond an election: answers of another age


@dataclass
class Weather:
    """How bad the network is at the moment: shares of messages that are lost, late, very late and doubled."""

    loss: float = 0.0
    late: float = 0.0
    very_late: float = 0.0
    duplicate: float = 0.0
    queue: int | None = None  # messages that one direction of a connection holds; further ones are lost


@dataclass(eq=False)
class Connection:
    """One routed connection: order is kept in each direction; ``route`` is what the receiver knows it by."""

    route: bytes
    source: str
    target: str
    deliver_reply: Callable[[Frames], None]
    alive: bool = True
    silent: bool = False  # half open: it stands, and nothing arrives
    forward_at: float = 0.0
    backward_at: float = 0.0
    forward: int = 0  # messages under way
    backward: int = 0
    closed_at: float = float("inf")
    life: int = 0  # of the target: what is under way to a process ends with it


@dataclass
class Network:
    """``receive`` is called with target, route and frames of each routed message that arrives."""

    scheduler: Scheduler
    receive: Callable[[str, bytes, Frames], None]
    weather: Weather = field(default_factory=Weather)
    cuts: set[tuple[str, str]] = field(default_factory=set)
    connections: dict[bytes, Connection] = field(default_factory=dict)
    opened: int = 0
    lives: Counter[str] = field(default_factory=Counter)  # how often each node has ended

    # --- partitions ----------------------------------------------------------------------------------------------

    def cut(self, one: Iterable[str], other: Iterable[str], *, both: bool = True) -> set[tuple[str, str]]:
        """Lose everything from ``one`` to ``other``, and back; returns what was cut."""
        there = list(other)
        cuts = {(first, second) for first in one for second in there if first != second}
        if both:
            cuts |= {(second, first) for first, second in cuts}
        self.cuts |= cuts
        return cuts

    def cut_for(self, cuts: set[tuple[str, str]], seconds: float) -> None:
        """Cut directions for a while."""
        self.cuts |= cuts
        self.scheduler.later(seconds, lambda: self.cuts.difference_update(cuts))

    # --- datagrams -----------------------------------------------------------------------------------------------

    def carry(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Carry one datagram: it may be lost, doubled, and overtaken by others."""
        rng = self.scheduler.rng
        copies = 1 + (self.weather.duplicate > 0 and rng.random() < self.weather.duplicate)
        for _ in range(copies):
            if not (self.weather.loss > 0 and rng.random() < self.weather.loss):
                self.scheduler.later(self.delay(), lambda: None if (source, target) in self.cuts else deliver())

    # --- routed messages -----------------------------------------------------------------------------------------

    def open(self, source: str, target: str, deliver_reply: Callable[[Frames], None]) -> Connection:
        self.opened += 1
        connection = Connection(b"route-%d" % self.opened, source, target, deliver_reply, life=self.lives[target])
        self.connections[connection.route] = connection
        return connection

    def close(self, connection: Connection) -> None:
        """Break a connection: what is under way still arrives, answers to it do not."""
        connection.alive = False
        connection.closed_at = self.scheduler.time
        self.connections.pop(connection.route, None)

    def ask(self, connection: Connection, frames: Sequence[bytes | memoryview]) -> None:
        """Send along a connection; perhaps a copy of the message arrives later by another, older one."""
        message = tuple(bytes(frame) for frame in frames)
        route, source, target = connection.route, connection.source, connection.target
        if connection.silent:
            self.vanished(connection)
        if not self._lost(connection, source, target, connection.forward):
            connection.forward += 1
            connection.forward_at = max(connection.forward_at, self.scheduler.time + self.delay())
            self.scheduler.schedule(connection.forward_at, lambda: self._arrived(connection, route, message))
        if self.scheduler.rng.random() < self.weather.duplicate and self.may_repeat(target):
            ghost = b"ghost-" + route
            late = self.scheduler.rng.uniform(*LATE_DELAY_S)
            self.scheduler.later(late, lambda: self._arrive(connection, ghost, message))

    def answer(self, route: bytes, frames: Sequence[bytes | memoryview]) -> None:
        """Send back along a connection; a route that is gone loses it."""
        connection = self.connections.get(route)
        if connection is None or self._lost(connection, connection.target, connection.source, connection.backward):
            return
        connection.backward += 1
        message = tuple(bytes(frame) for frame in frames)
        connection.backward_at = max(connection.backward_at, self.scheduler.time + self.delay())
        self.scheduler.schedule(connection.backward_at, lambda: self._return(connection, message))

    def may_repeat(self, target: str) -> bool:
        """Whether a message to ``target`` may arrive again by an older connection."""
        del target
        return True

    def vanished(self, connection: Connection) -> None:
        """Something was sent along a silent connection; whoever models a system that finds out begins here."""
        del connection

    def drained(self, connection: Connection) -> bool:
        """Whether nothing that is under way on a connection arrives any more."""
        del connection
        return False

    def delay(self) -> float:
        """Draw how long a message is under way, in seconds."""
        rng = self.scheduler.rng
        kind = rng.random()
        if kind < self.weather.very_late:
            return rng.uniform(*VERY_LATE_DELAY_S)
        if kind < self.weather.very_late + self.weather.late:
            return rng.uniform(*LATE_DELAY_S)
        return rng.uniform(*USUAL_DELAY_S)

    def _arrived(self, connection: Connection, route: bytes, message: Frames) -> None:
        connection.forward -= 1
        self._arrive(connection, route, message)

    def _arrive(self, connection: Connection, route: bytes, message: Frames) -> None:
        source, target = connection.source, connection.target
        if (source, target) not in self.cuts and not self.drained(connection) and not connection.silent:
            self.receive(target, route, message)

    def _return(self, connection: Connection, message: Frames) -> None:
        connection.backward -= 1
        if connection.alive and not connection.silent and (connection.target, connection.source) not in self.cuts:
            connection.deliver_reply(message)

    def _lost(self, connection: Connection, source: str, target: str, under_way: int) -> bool:
        full = self.weather.queue is not None and under_way >= self.weather.queue
        cut = connection.silent or full or (source, target) in self.cuts
        return cut or self.scheduler.rng.random() < self.weather.loss
