"""One instance of a ``World``: its disk, and the process that lives from it (docs/specs/ambrosia.md 18.9)."""

import asyncio
import inspect
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from pavane.ambrosia import effects as do
from pavane.ambrosia.client.beside import failure, result
from pavane.ambrosia.client.engine import Engine, Failed, Long, Outside, Result
from pavane.ambrosia.client.errors import ImmortalError
from pavane.ambrosia.client.guard import Guard
from pavane.ambrosia.client.immortal import Immortal
from pavane.ambrosia.core.coordinator import Coordinator, Settings
from pavane.ambrosia.state import Meta
from pavane.ambrosia.wire.files import CheckpointHead
from pavane.ambrosia.wire.links import Channel
from pavane.ambrosia.wire.records import LogRecord

LINK_S = (0.0005, 0.02)  # until bytes are at the other end
SLOW, SLOW_S = 0.05, (0.02, 0.4)  # now and then it takes longer
DISK_S = (0.0005, 0.01)  # until something is durable
LOCAL_S = (0.00005, 0.002)  # between an application and its coordinator
DIAL_AGAIN_S = (0.001, 0.2)


class Surroundings(Protocol):
    """What an instance needs of its world."""

    rng: random.Random
    time: float
    log_trigger_bytes: int
    failures: list[tuple[str, str, str]]
    long_flows: list[tuple[str, str, str]]
    slow_until: dict[str, float]

    def committer(self, name: str) -> int:
        """Return the number of an instance's log."""

    def now_ms(self) -> int:
        """Return the wall clock of the simulation."""

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something after a while."""

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Do something at a time, behind what is planned for the same time."""

    def connect(self, dialler: "Process", peer: str, channel: Channel) -> bool:
        """Open a stream, if the peer takes it."""

    def send(self, source: "Process", number: int, data: bytes) -> None:
        """Carry bytes of a stream."""

    def break_off(self, number: int) -> None:
        """End a stream."""


@dataclass
class Disk:
    """What is durable of one instance."""

    meta: Meta = field(default_factory=Meta)
    logs: dict[int, list[LogRecord]] = field(default_factory=dict)
    checkpoints: dict[int, tuple[CheckpointHead, bytes]] = field(default_factory=dict)

    def apply(self, effect: do.Storage, writing: dict[str, Any]) -> None:
        """Make it durable."""
        match effect:
            case do.Append(record):
                self.logs[self.meta.last_log].append(record)
            case do.CreateLog(number):
                self.logs[number] = []
            case do.StoreMeta(meta):
                self.meta = meta
            case do.BeginCheckpoint(_, head):
                writing["head"], writing["blob"] = head, b""
            case do.CheckpointBytes(data):
                writing["blob"] += data
            case do.EndCheckpoint(number):
                self.checkpoints[number] = (writing["head"], writing["blob"])

    def records(self) -> list[LogRecord]:
        """Return the whole log in order."""
        found: list[LogRecord] = []
        for number in sorted(self.logs):
            for record in self.logs[number]:
                if record.seq == len(found):
                    found.append(record)
        return found


@dataclass
class Stream:
    """One direction-less connection between two instances."""

    number: int
    ends: tuple["Process", "Process"]
    until: float | None = None
    """After a break: what would arrive later is lost."""
    arrives: dict[str, float] = field(default_factory=dict)


class Process:
    """One life of an application and its coordinator: they crash together."""

    def __init__(self, world: Surroundings, instance: "Instance") -> None:
        self.world, self.instance, self.name = world, instance, instance.name
        self.alive, self.unread = True, 0  # bytes from the application to the coordinator
        self.engine = Engine(
            instance.kind,
            self.name,
            guard=Guard(strict=True),
            version=instance.version,
            upgrade=instance.upgrade,
            shuffle=world.rng,
        )
        disk = instance.disk
        found = disk.checkpoints.get(disk.meta.last_checkpoint)
        committer = found[0].committer if found else world.committer(self.name)
        settings = Settings(self.name, log_trigger_bytes=world.log_trigger_bytes, version=instance.version)
        self.coordinator = Coordinator(settings, committer, disk.meta)
        self.storing: deque[do.Storage] = deque()
        self._writing: dict[str, Any] = {}
        self._arrives = {"down": 0.0, "up": 0.0}
        if found is None:
            self.coordinator.first_start()
        else:
            self.coordinator.restore(found[0], disk.meta.last_checkpoint)
            self.carry_out()
            for number in range(disk.meta.last_checkpoint, disk.meta.last_log + 1):
                for record in disk.logs.get(number, []):
                    if self.coordinator.refuses(record) is None:
                        self.coordinator.replay(record)
            self.coordinator.replayed()
        self.carry_out()

    def at(self, seconds: tuple[float, float], what: Callable[[], None]) -> None:
        """Do it later, if this process still lives."""
        self.world.later(self.world.rng.uniform(*seconds), lambda: what() if self.alive else None)

    def carry_out(self) -> None:
        """Do what the coordinator wants."""
        for effect in self.coordinator.outputs():
            match effect:
                case do.ToBinding(data):
                    self._local("down", partial(self._to_engine, data, len(data)))
                case do.BlobToBinding(number):
                    self._local("down", partial(self._to_engine, self.instance.disk.checkpoints[number][1], 0))
                case do.Attach(peer):
                    for channel in Channel:
                        self.at(LOCAL_S, partial(self._dial, peer, channel))
                case do.ToStream(number, data):
                    self.world.send(self, number, data)
                case do.CloseStream(number):
                    self.world.break_off(number)
                case do.Timer(name, seconds):
                    self.at((seconds, seconds), partial(self._ring, name))
                case do.Say():
                    pass
                case _:
                    self.storing.append(effect)
                    if len(self.storing) == 1:
                        self.at(self._disk_s(), self._stored)

    def _disk_s(self) -> tuple[float, float]:
        slow = self.world.slow_until.get(self.name, 0) > self.world.time
        return SLOW_S if slow or self.world.rng.random() < SLOW else DISK_S

    def _stored(self) -> None:
        effect = self.storing[0]
        self.instance.disk.apply(effect, self._writing)
        self.storing.popleft()
        if self.storing:
            self.at(self._disk_s(), self._stored)
        self.coordinator.stored(effect)
        self.carry_out()

    def crash(self) -> None:
        """End: what was being stored may or may not be there."""
        self.alive = False
        for flow in self.engine.flows.values():
            flow.give_up()
        while self.storing and self.world.rng.random() < 0.5:
            self.instance.disk.apply(self.storing.popleft(), self._writing)

    def _ring(self, name: str) -> None:
        self.coordinator.timer(name)
        self.carry_out()

    def _local(self, way: str, what: Callable[[], None]) -> None:
        """Hand something over a local socket: in order, after a while."""
        due = max(self._arrives[way], self.world.time + self.world.rng.uniform(*LOCAL_S))
        self._arrives[way] = due
        self.world.at(due, lambda: what() if self.alive else None)

    def _to_engine(self, data: bytes, counted: int) -> None:
        self.engine.feed(data)
        if counted:
            self.coordinator.binding_wrote(counted)
            self.carry_out()
        self.turn()

    def turn(self) -> None:
        """Let the application handle what it has."""
        while self.engine.step():
            pass
        while self.engine.effects:
            match self.engine.effects.popleft():
                case Result() as result:
                    self.instance.results[result.token] = result
                case Failed() as failed:
                    self.world.failures.append((self.name, failed.where, failed.text))
                case Long(where, text):
                    self.world.long_flows.append((self.name, where, text))
                case Outside() as outside:
                    self._outside(outside)
        out = self.engine.take()
        if out:
            self.unread += len(out)
            self._local("up", partial(self._to_coordinator, out))

    def _to_coordinator(self, data: bytes) -> None:
        self.unread -= len(data)
        self.coordinator.binding_received(data)
        self.carry_out()

    def _outside(self, outside: Outside) -> None:
        world = self.world
        if outside.kind == "clock":
            self.at(LOCAL_S, lambda: self._done(outside, world.now_ms()))
        elif outside.kind == "timer":
            wait = max(0.0, (outside.due - world.now_ms()) / 1000)
            self.at((wait, wait + LOCAL_S[1]), lambda: self._fired(outside))
        else:
            self.at(LINK_S, lambda: self._done(outside, *_run(outside, world.now_ms())))

    def _fired(self, outside: Outside) -> None:
        if outside.flow in self.engine.flows:
            self._done(outside)

    def _done(self, outside: Outside, *content: Any) -> None:
        self.engine.done(outside, *content)
        self.turn()

    def _dial(self, peer: str, channel: Channel) -> None:
        if not self.world.connect(self, peer, channel):
            self.at(DIAL_AGAIN_S, partial(self._dial, peer, channel))

    def ended(self, number: int, peer: str, channel: Channel | None) -> None:
        """A stream has ended; the one who dialled it dials again."""
        self.coordinator.links.closed(number)
        self.carry_out()
        if channel is not None:
            self.at(DIAL_AGAIN_S, partial(self._dial, peer, channel))


def _run(outside: Outside, now_ms: int) -> Sequence[Any]:
    function, args, kwargs, _ = outside.detail
    try:
        value = function(*args, **kwargs)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except Exception as error:
        return failure(outside, error, now_ms)
    return result(outside, value)


@dataclass
class Instance:
    """What stays of an instance, whatever crashes."""

    name: str
    kind: type[Immortal]
    version: int = 0
    upgrade: type[Immortal] | None = None
    kinds: dict[int, type[Immortal]] = field(default_factory=dict)
    """All classes that it had, by the version that each of them began with."""
    disk: Disk = field(default_factory=Disk)
    process: Process | None = None
    results: dict[str, Result] = field(default_factory=dict)

    def use(self, kind: type[Immortal], version: int, upgrade: type[Immortal] | None) -> None:
        """Have the next life run with these; raises ``ImmortalError`` for a version that is past."""
        now = self.disk.meta.current_version
        if self.disk.checkpoints and version < now:
            raise ImmortalError(f"{self.name} has version {now} of its application: {version} cannot read its state")
        self.kind, self.version, self.upgrade = kind, version, upgrade
        if not self.disk.checkpoints:
            self.kinds = {version: upgrade or kind}
            return
        self.kinds[max((each for each in self.kinds if each <= now), default=now)] = kind
        if upgrade is not None:
            self.kinds[version] = upgrade
