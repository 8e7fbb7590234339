"""Applications and their coordinators in memory, on simulated time, from one seed (docs/specs/ambrosia.md 18.9, 21.2).

``World`` runs the machines that the real programs run: only sockets, files and the clock are replaced.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Self, TypeVar, overload

from pavane.ambrosia.client.checks import SimulationError, check_inputs
from pavane.ambrosia.client.definition import Method, Query
from pavane.ambrosia.client.errors import CoordinatorLost, Diverged, ImmortalError
from pavane.ambrosia.client.flows import ERROR, remote
from pavane.ambrosia.client.immortal import Immortal
from pavane.ambrosia.client.recorded import Report, replay_folder
from pavane.ambrosia.client.replay import Recorded, replay_all
from pavane.ambrosia.client.simulated import LINK_S, SLOW, SLOW_S, Disk, Instance, Process, Stream
from pavane.ambrosia.client.upgrading import versions
from pavane.ambrosia.core.binding import Life
from pavane.ambrosia.state import OURSELVES
from pavane.ambrosia.wire.links import Channel, Code, Hello
from pavane.ambrosia.wire.records import LogRecord

P = ParamSpec("P")
R = TypeVar("R")
I = TypeVar("I", bound=Immortal)  # noqa: E741 - an immortal

BEGIN_MS = 1_700_000_000_000  # the wall clock when a world begins
NOTICED_S = (0.001, 0.3)  # until an end hears that its stream is gone
DOWN_S = (0.01, 0.6)  # until a process that crashed is started again
FAULT_S = (0.05, 0.6)  # between two faults of `chaos`
CUT_S = (0.1, 1.5)
SLOW_DISK_S = (0.2, 2.0)
CALL_S = 600.0  # simulated time that a call may take
SETTLE_S = 300.0  # simulated time until everything that was sent must have arrived
STEPS_MAX = 2_000_000  # events of one world; more is a loop


class World:
    """Immortals that call each other, crash and are cut off. Use it in ``with``: at its end everything is checked."""

    def __init__(self, seed: int = 0, *, log_trigger_bytes: int = 1 << 20) -> None:
        self.seed = seed
        self.rng = random.Random(seed)  # noqa: S311 - repeatable
        self.time = 0.0
        self.log_trigger_bytes = log_trigger_bytes
        self.failures: list[tuple[str, str, str]] = []
        """Handlers that raised although nobody waited: instance, handler, text."""
        self.long_flows: list[tuple[str, str, str]] = []
        """Flows whose history has grown long: instance, flow, text."""
        self.slow_until: dict[str, float] = {}
        """Until when the disk of an instance is slow."""
        self._instances: dict[str, Instance] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = itertools.count()
        self._streams: dict[int, Stream] = {}
        self._dialled: dict[int, tuple[Process, str, Channel]] = {}
        self._numbers = itertools.count(1)
        self._tokens = itertools.count(1)
        self._cuts: Counter[frozenset[str]] = Counter()
        self._steps = 0
        self._takers: dict[str, Process] = {}
        self._faulty = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.finish()
        else:
            error.add_note(f"World(seed={self.seed}), after {self.time:.3f} s")

    # What a test does

    def start(
        self, kind: type[Immortal], name: str, *, version: int = 0, upgrade: type[Immortal] | None = None
    ) -> None:
        """Start an instance, or start it again with another class or version, as `serve`; returns when it leads."""
        instance = self._instances.setdefault(name, Instance(name, kind))
        instance.use(kind, version, upgrade)
        if instance.process is not None:
            self.crash(name, again=False)
        self._launch(instance)
        self._until(lambda: self._leads(name), CALL_S, f"{name} does not lead")

    @overload
    def call(
        self, name: str, method: Method[Any, P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    def call(self, name: str, method: Method[Any, P, R], *args: P.args, **kwargs: P.kwargs) -> R: ...
    def call(self, name: str, method: Method[Any, ..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call from outside and return the result; raises ``RemoteError``, ``CoordinatorLost`` if a crash lost it."""
        return self.result(name, method, self.request(name, method, *args, **kwargs))

    def request(self, name: str, method: Method[Any, P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
        """Begin a call from outside and return its token for ``result``."""
        self._until(lambda: self._leads(name), CALL_S, f"{name} does not lead")
        token = f"token-{next(self._tokens)}-"
        process = self._takers[token] = self._alive(name)
        process.engine.request(token, "", method, method.signature.pack(args, kwargs))
        process.turn()
        return token

    def impulse(self, name: str, to: str, method: Method[Any, P, Any], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Have an instance send an Impulse, to itself or another one; says whether it leads and could."""
        process = self._instances[name].process
        if process is None or process.engine.life is not Life.PRIMARY:
            return False
        process.engine.binding.impulse(to, method.number, method.signature.pack(args, kwargs))
        process.turn()
        return True

    def result(self, name: str, method: Method[Any, ..., Any], token: str) -> Any:
        """Wait for the result of a request."""
        instance = self._instances[name]

        def lost() -> bool:
            return self._leads(name) and not self._takers[token].alive and not _holds(instance.disk, token.encode())

        self._until(lambda: token in instance.results or lost(), CALL_S, f"{method.title} of {name} has no result")
        found = instance.results.get(token)
        if found is None:
            raise CoordinatorLost(f"{name} crashed before {method.title} was logged")
        if found.state == ERROR:
            raise remote(found.value)
        return method.signature.result.unpack(found.value)

    def query(self, name: str, query: Query[Any, P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Answer a query by the state as it is; raises ``SimulationError`` if the query changed it."""
        engine = self._alive(name).engine
        before = engine.state_bytes()
        found: R = engine.ask(query, query.signature.unpack(query.signature.pack(args, kwargs)))
        if engine.state_bytes() != before:
            raise SimulationError(f"{query.title} is a query and changed the state")
        return found

    def state(self, name: str) -> dict[str, Any]:
        """Return the attributes of the state."""
        return self._alive(name).engine.state()

    def crash(self, name: str, *, again: bool = True) -> None:
        """Kill application and coordinator of an instance; started again after a while, or by ``start``."""
        instance = self._instances[name]
        process, instance.process = instance.process, None
        if process is not None:
            process.crash()
            for number in [n for n, stream in self._streams.items() if process in stream.ends]:
                self.break_off(number)
        if again:
            self.later(self.rng.uniform(*DOWN_S), lambda: self._launch(instance) if instance.process is None else None)

    def cut(self, one: str, other: str, seconds: float | None = None) -> None:
        """Cut two instances off from each other, for a while or until ``heal``."""
        pair = frozenset((one, other))
        self._cuts[pair] += 1
        for number, stream in list(self._streams.items()):
            if pair == frozenset(end.name for end in stream.ends):
                self.break_off(number)
        if seconds is not None:
            self.later(seconds, lambda: self._mend(pair))

    def heal(self) -> None:
        """Undo all cuts."""
        self._cuts.clear()

    def checkpoint(self, name: str) -> None:
        """Have an instance take a checkpoint soon."""
        process = self._instances[name].process
        if process is not None and process.engine.life is Life.PRIMARY:
            process.engine.binding.ask_checkpoint()
            process.turn()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end = self.time + seconds
        while self._heap and self._heap[0][0] <= end:
            self._step()
        self.time = end

    def trouble(self) -> None:
        """From now on crash, cut and checkpoint at random, until ``finish``."""
        self._faulty = True
        self.later(self.rng.uniform(*FAULT_S), self._fault)

    def finish(self) -> None:
        """Heal, wait until everything that was sent has arrived, and check all rules; raises ``SimulationError``."""
        self._faulty = False
        self.heal()
        for instance in self._instances.values():
            if instance.process is None:
                self._launch(instance)
        self._until(self._silent, SETTLE_S, "calls do not arrive although everything is healed")
        self._check()

    def _check(self) -> None:
        records = {name: instance.disk.records() for name, instance in self._instances.items()}
        made = {name: self._replayed(instance, records[name]) for name, instance in self._instances.items()}
        for name in self._instances:
            try:
                check_inputs(name, records[name], made)
            except SimulationError as error:
                raise SimulationError(f"seed {self.seed}: {error}") from error

    def _replayed(self, instance: Instance, records: list[LogRecord]) -> dict[str, list[bytes]]:
        """Replay an instance from each of its checkpoints; return what it sent, by receiver (S7)."""
        taken = [
            Recorded(number, head.next_seq, head.committer, blob)
            for number, (head, blob) in sorted(instance.disk.checkpoints.items())
        ]
        now = self._alive(instance.name).engine.snapshot()
        made: dict[str, list[bytes]] = {}
        try:
            for start, first in enumerate(taken):
                run = replay_all(instance.kinds, instance.name, taken[start:], records[first.next_seq :], self.rng)
                if not run.engine.snapshot().same(now):
                    raise Diverged(f"{instance.name} replayed from checkpoint {first.number} ends in another state")
                made = made or run.outputs
        except ImmortalError as error:
            raise SimulationError(f"seed {self.seed}: {error}") from error
        return made

    # Time

    def now_ms(self) -> int:
        """Return the wall clock of the simulation."""
        return BEGIN_MS + round(self.time * 1000)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Do something after a while."""
        self.at(self.time + seconds, what)

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Do something at a time, behind what is planned for the same time."""
        heapq.heappush(self._heap, (time, next(self._planned), what))

    def _step(self) -> None:
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise SimulationError(f"more than STEPS_MAX ({STEPS_MAX}) events: something repeats itself without end")
        at, _, what = heapq.heappop(self._heap)
        self.time = max(self.time, at)
        what()

    def _until(self, condition: Callable[[], bool], seconds: float, complaint: str) -> None:
        end = self.time + seconds
        while not condition():
            if not self._heap or self._heap[0][0] > end:
                raise SimulationError(f"{complaint} after {seconds:.0f} simulated seconds (seed {self.seed})")
            self._step()

    # Processes and streams

    def committer(self, name: str) -> int:
        """Return the number of an instance's log."""
        return sorted(self._instances).index(name) - len(name)

    def _launch(self, instance: Instance) -> None:
        instance.process = Process(self, instance)

    def _alive(self, name: str) -> Process:
        self._until(lambda: self._instances[name].process is not None, CALL_S, f"{name} is down")
        process = self._instances[name].process
        if process is None:
            raise SimulationError(f"{name} is down")
        return process

    def _leads(self, name: str) -> bool:
        process = self._instances[name].process
        return process is not None and process.coordinator.live and process.engine.life is Life.PRIMARY

    def connect(self, dialler: Process, peer: str, channel: Channel) -> bool:
        """Open a stream, if the peer takes it."""
        instance = self._instances.get(peer)
        target = instance.process if instance is not None else None
        if target is None or self._cuts[frozenset((dialler.name, peer))] > 0:
            return False
        hello = Hello(dialler.name, peer, channel, "world", (0, 0), dialler.coordinator.committer)
        number = next(self._numbers)
        answer = target.coordinator.links.accept(number, hello)
        target.carry_out()
        if answer.code != Code.SUCCESS:
            return False
        self._streams[number] = Stream(number, (dialler, target))
        self._dialled[number] = (dialler, peer, channel)
        dialler.coordinator.links.dialled(number, peer, channel)
        dialler.carry_out()
        target.coordinator.links.begin(number)
        target.carry_out()
        return True

    def send(self, source: Process, number: int, data: bytes) -> None:
        """Carry bytes of a stream: in order, after a while, cut into pieces."""
        stream = self._streams.get(number)
        self.later(0, lambda: self._wrote(source, number, len(data)))
        if stream is None:
            return
        target = stream.ends[1] if stream.ends[0] is source else stream.ends[0]
        split = self.rng.randint(0, len(data))
        for part in (data[:split], data[split:]):
            slow = self.rng.random() < SLOW
            wait = self.rng.uniform(*(SLOW_S if slow else LINK_S))
            due = max(stream.arrives.get(target.name, 0.0), self.time + wait)
            stream.arrives[target.name] = due
            self.at(due, partial(self._arrive, stream, target, part))

    def _wrote(self, source: Process, number: int, size: int) -> None:
        if source.alive:
            source.coordinator.links.wrote(number, size)
            source.carry_out()

    def _arrive(self, stream: Stream, target: Process, data: bytes) -> None:
        if target.alive and data and (stream.until is None or self.time <= stream.until):
            target.coordinator.received(stream.number, data)
            target.carry_out()

    def break_off(self, number: int) -> None:
        """End a stream: a part of what was under way still arrives, then both ends hear of it."""
        stream = self._streams.pop(number, None)
        if stream is None:
            return
        stream.until = self.time + self.rng.uniform(*NOTICED_S)
        dialler, peer, channel = self._dialled.pop(number)
        for end in stream.ends:
            # Who dialled may hear first and dial again while the other end still reads what was under way.
            first = LINK_S[0] if end is dialler else stream.until - self.time
            wait = (first, first + LINK_S[1])
            end.at(wait, partial(end.ended, number, peer, channel if end is dialler else None))

    def _mend(self, pair: frozenset[str]) -> None:
        self._cuts[pair] = max(0, self._cuts[pair] - 1)

    def _fault(self) -> None:
        if not self._faulty:
            return
        names = sorted(self._instances)
        match self.rng.randrange(5):
            case 0 | 1:
                for name in self.rng.sample(names, self.rng.randint(1, min(2, len(names)))):
                    self.crash(name)
            case 2 if len(names) > 1:
                one, other = self.rng.sample(names, 2)
                self.cut(one, other, self.rng.uniform(*CUT_S))
            case 3:
                self.slow_until[self.rng.choice(names)] = self.time + self.rng.uniform(*SLOW_DISK_S)
            case _:
                self.checkpoint(self.rng.choice(names))
        self.later(self.rng.uniform(*FAULT_S), self._fault)

    def _silent(self) -> bool:
        processes = [instance.process for instance in self._instances.values()]
        for process in processes:
            if process is None or process.unread or process.storing or not self._leads(process.name):
                return False
            for name, output in process.coordinator.links.outputs.items():
                if len(output) and (name == OURSELVES or name in self._instances):
                    return False
        return all(
            process is not None and process.engine.seq == process.coordinator.next_seq - 1 for process in processes
        )


def _holds(disk: Disk, token: bytes) -> bool:
    """Say whether a request is durable, in the log or in what the last checkpoint holds of the next record."""
    last = disk.checkpoints.get(disk.meta.last_checkpoint)
    return (last is not None and token in last[0].pending) or any(token in record.body for record in disk.records())


def replay(
    kind: type[Immortal], folder: Path, *, version: int | None = None, upgrade: type[Immortal] | None = None
) -> Report:
    """Replay the files of an instance with ``kind``; raises ``Diverged`` that names method and record.

    With ``version`` try that upgrade at the end, as `serve` would; raises ``ImmortalError`` when it fails.
    """
    return replay_folder(versions(kind, version, upgrade), folder, version)


def chaos(seeds: int = 100, **settings: Any) -> Callable[[Callable[[World], None]], Callable[[], None]]:
    """Run a test in many worlds with crashes, cuts and checkpoints at random; a failure names its seed."""

    def decorate(test: Callable[[World], None]) -> Callable[[], None]:
        def run() -> None:
            for seed in range(seeds):
                with World(seed, **settings) as world:
                    world.trouble()
                    test(world)

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate
