"""Connections between nodes and clients: delay, loss, duplication, cuts and disconnects, from one random source."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Frames = tuple[bytes | memoryview, ...]

USUAL_DELAY_S = (0.0002, 0.003)
LATE_DELAY_S = (0.01, 0.1)
VERY_LATE_DELAY_S = (0.2, 1.2)  # beyond an election: answers of another age
DRAIN_S = 0.1  # 2 x rpc_timeout: how old a message of a broken connection may be where old ones do harm (1.4)


@dataclass
class Weather:
    """How bad the network is at the moment."""

    loss: float = 0.0
    late: float = 0.0
    very_late: float = 0.0
    duplicate: float = 0.0
    queue: int | None = None  # messages that one direction of a connection holds; further ones are lost


@dataclass(eq=False)
class Connection:
    """One TCP connection: order is kept in each direction; ``route`` is what the receiver knows it by."""

    route: bytes
    source: str
    target: str
    deliver_reply: Callable[[Frames], None]
    alive: bool = True
    silent: bool = False  # half open: nobody noticed yet that nothing arrives
    forward_at: float = 0.0
    backward_at: float = 0.0
    forward: int = 0  # messages under way
    backward: int = 0
    closed_at: float = math.inf
    life: int = 0  # of the target: what is under way to a process ends with it


@dataclass
class Network:
    rng: random.Random
    schedule: Callable[[float, Callable[[], None]], None]
    now: Callable[[], float]
    receive: Callable[[str, bytes, Frames], None]
    weather: Weather = field(default_factory=Weather)
    cuts: set[tuple[str, str]] = field(default_factory=set)
    originals: frozenset[str] = frozenset()  # peers of the original kind, which a message of another age may damage
    connections: dict[bytes, Connection] = field(default_factory=dict)
    opened: int = 0
    lives: Counter[str] = field(default_factory=Counter)  # how often each node has ended

    def open(self, source: str, target: str, deliver_reply: Callable[[Frames], None]) -> Connection:
        self.opened += 1
        connection = Connection(b"route-%d" % self.opened, source, target, deliver_reply, life=self.lives[target])
        self.connections[connection.route] = connection
        return connection

    def close(self, connection: Connection) -> None:
        """Break a connection: what is under way still arrives, answers to it do not."""
        connection.alive = False
        connection.closed_at = self.now()
        self.connections.pop(connection.route, None)

    def ask(self, connection: Connection, frames: Sequence[bytes | memoryview]) -> None:
        """Send along a connection; perhaps a copy of the message arrives later by another, older one."""
        message = tuple(bytes(frame) for frame in frames)
        route, source, target = connection.route, connection.source, connection.target
        if not self._lost(connection, source, target, connection.forward):
            connection.forward += 1
            connection.forward_at = max(connection.forward_at, self.now() + self._delay())
            self.schedule(connection.forward_at, lambda: self._arrived(connection, route, message))
        if self.rng.random() < self.weather.duplicate and target not in self.originals:
            ghost = b"ghost-" + route
            late = self.now() + self.rng.uniform(*LATE_DELAY_S)
            self.schedule(late, lambda: self._arrive(connection, ghost, message))

    def answer(self, route: bytes, frames: Sequence[bytes | memoryview]) -> None:
        """Send back along a connection; a route that is gone loses it."""
        connection = self.connections.get(route)
        if connection is None or self._lost(connection, connection.target, connection.source, connection.backward):
            return
        connection.backward += 1
        message = tuple(bytes(frame) for frame in frames)
        connection.backward_at = max(connection.backward_at, self.now() + self._delay())
        self.schedule(connection.backward_at, lambda: self._return(connection, message))

    def _arrived(self, connection: Connection, route: bytes, message: Frames) -> None:
        connection.forward -= 1
        self._arrive(connection, route, message)

    def _arrive(self, connection: Connection, route: bytes, message: Frames) -> None:
        source, target = connection.source, connection.target
        if (source, target) not in self.cuts and not self._drained(connection) and not connection.silent:
            self.receive(target, route, message)

    def _drained(self, connection: Connection) -> bool:
        """Whether nothing of a broken connection arrives any more; those among originals leave nothing behind."""
        if connection.target not in self.originals:
            return False
        if connection.life != self.lives[connection.target]:
            return True
        return self.now() > connection.closed_at + (0.0 if connection.source in self.originals else DRAIN_S)

    def _return(self, connection: Connection, message: Frames) -> None:
        connection.backward -= 1
        if connection.alive and not connection.silent and (connection.target, connection.source) not in self.cuts:
            connection.deliver_reply(message)

    def _lost(self, connection: Connection, source: str, target: str, under_way: int) -> bool:
        full = self.weather.queue is not None and under_way >= self.weather.queue
        cut = connection.silent or full or (source, target) in self.cuts
        return cut or self.rng.random() < self.weather.loss

    def _delay(self) -> float:
        kind = self.rng.random()
        if kind < self.weather.very_late:
            return self.rng.uniform(*VERY_LATE_DELAY_S)
        if kind < self.weather.very_late + self.weather.late:
            return self.rng.uniform(*LATE_DELAY_S)
        return self.rng.uniform(*USUAL_DELAY_S)
