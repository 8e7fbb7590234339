"""Views handed over, sent back and handed over again, from one seed: one generation writes at a time, each tick once.

The product's ticks, chains and ranks, between controllers and replicas that die, are doubled or hear late, over a log
that loses answers. What the operator and the pods do with them is written here in short (docs/specs/compute.md 12.3).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import pytest

from pavane.dataflow.chain import Chain
from pavane.dataflow.entries import Batch, Create, Entry, EntryError, Fence, Minted, Rank, Token, decode
from pavane.dataflow.ports import Fenced
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.ticks import Ticks
from tests.services.dataflow.test_chains_under_faults import (
    DATA,
    HOME,
    SCHEMA,
    TICKS_PARTITION,
    VIEW,
    Died,
    FaultyLog,
    Record,
)
from tests.sim.kit.seeds import BrokenError, holds, played, replayable

TURNS = 5
"""Hand-overs of a run, there or back."""
RECORDS_MAX = 3000
PAUSES_MAX = 5000
"""A run that makes more of them does not get on."""
PLANTED_SEEDS = 500

Locks = Sequence[tuple[str, int]]


class Noted(list[Record]):
    """A partition; all of a log's appends have one order, too."""

    def __init__(self, partition: int, journal: list[tuple[int, Record]]) -> None:
        super().__init__()
        self._partition, self._journal = partition, journal

    def append(self, record: Record) -> None:
        holds(len(self._journal) < RECORDS_MAX, "it comes to an end", f"{RECORDS_MAX} records")
        self._journal.append((self._partition, record))
        super().append(record)


def contents(generation: int, next_: int) -> Counter[Row]:
    """What the view of a generation is where the table has so many rows: its last ones."""
    return Counter({(number,): 1 for number in range(max(0, next_ - 1 - generation % 3), next_)})


@dataclass
class Generation:
    """Its controller, perhaps two for a while, and its replicas."""

    number: int
    controllers: list[Controller] = field(default_factory=list)
    tokens: list[Rank | None] = field(default_factory=list)
    """By which its replicas may write, as far as they have heard."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


@dataclass(eq=False)
class Controller:
    """What one process knows."""

    allowed: bool = False
    leaves: int = 0
    seen: Rank = field(default_factory=Rank)
    own: Rank | None = None


class World:
    """A log, the generations that run, and an operator."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.journal: list[tuple[int, Record]] = []
        self.log = FaultyLog(self.random, partitions={each: Noted(each, self.journal) for each in range(3)})
        self.running: dict[int, Generation] = {}
        self.targets: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.ms = 0

    def now_ms(self) -> int:
        self.ms += 100
        return self.ms

    async def pause(self, most: int = 1) -> None:
        for _ in range(self.random.randint(1, most)):
            await asyncio.sleep(0)

    def go(self, work: asyncio.Task[None]) -> asyncio.Task[None]:
        self.tasks.append(work)
        return work

    def later(self, call: Callable[[], None]) -> None:
        """What was sent arrives at some time."""

        async def arrive() -> None:
            await self.pause(self.random.choice((10, 40, 400)))
            call()

        self.go(asyncio.create_task(arrive()))

    # ---- processes

    def start(self, number: int) -> None:
        made = self.running[number] = Generation(number)
        made.tokens = [None] * self.random.choice((1, 1, 2))
        replicas = [self._replica(made, each) for each in range(len(made.tokens))]
        made.tasks = [self.go(asyncio.create_task(each)) for each in (self._controller(made), *replicas)]

    def double(self, generation: Generation) -> None:
        """A node that was given up still runs the controller's pod."""
        generation.tasks.append(self.go(asyncio.create_task(self._controller(generation, again=False))))

    async def stop(self, number: int) -> None:
        for task in (gone := self.running.pop(number)).tasks:
            task.cancel()
        await asyncio.wait(gone.tasks)

    async def _controller(self, generation: Generation, *, again: bool = True) -> None:
        """A pod: fenced by another generation it begins anew, by a later controller of its own it ends."""
        process = Controller()
        while True:
            generation.controllers.append(process)
            try:
                await self._lead(generation, process)
            except Fenced:
                process.allowed, process.own = False, None
                generation.controllers.remove(process)
                if process.seen.writer == generation.number:
                    process = Controller()
            except Died:
                generation.controllers.remove(process)
                process = Controller()
            if process.seen == Rank() and not again:
                return
            await self.pause(10)

    async def _lead(self, generation: Generation, process: Controller) -> None:
        ticks = Ticks(self.log, TICKS_PARTITION, [DATA], self.now_ms)
        await ticks.start(max(1, await ticks.last()))
        while True:
            await self.pause()
            process.seen = await ticks.rank()
            process.allowed = process.allowed or process.seen.writer == generation.number
            if process.allowed and process.own is None:
                own = process.seen.successor(generation.number, process.leaves)
                if own is None:
                    raise Fenced("another generation has the right to write")
                await ticks.fence(own.token)
                await ticks.mint(at_rest=process.seen.generation > 0)
                process.own = own
            elif process.own is not None:
                if self.random.random() < 0.5:
                    self.log.partitions[DATA].append(Record(len(self.log.partitions[DATA]), 0, b""))
                await ticks.mint()
                for each in range(len(generation.tokens)):
                    self._tell(generation, each, process.own)
            await ticks.read_on()
            ticks.check()

    def _tell(self, generation: Generation, replica: int, own: Rank) -> None:
        known = generation.tokens[replica]
        if (known is None or known.token < own.token) and self.random.random() < 0.3:
            self.later(lambda: generation.tokens.__setitem__(replica, own))

    async def _replica(self, generation: Generation, number: int) -> None:
        while True:
            try:
                await self._compute(generation, number)
            except (Fenced, Died):
                generation.tokens[number] = None
            await self.pause(5)

    async def _compute(self, generation: Generation, number: int) -> None:
        ticks = Ticks(self.log, TICKS_PARTITION, [DATA], self.now_ms)
        sink = ChainSink(Home(self.log, HOME), TICKS_PARTITION, VIEW, self.now_ms, lambda: f"{self.random.random()}")
        await ticks.start(max(1, await sink.open(1) - 1))
        held, own = Counter[Row](), Rank()
        while True:
            await self.pause()
            told = generation.tokens[number]
            if told is not None and told != own:
                await sink.allow((told.generation, told.epoch, told.generation - generation.number))
                own = told
            for binding in await ticks.read_on():
                wanted = contents(generation.number, binding.next[DATA])
                changes = [(row, binding.tick, wanted[row] - held[row]) for row in {*wanted, *held}]
                sink.desire(table_of([each for each in changes if each[2]], SCHEMA), binding.tick + 1)
                held = wanted
            await sink.advance()

    # ---- the operator

    async def play(self) -> None:
        active, standby, last = 0, 0, 0
        for _ in range(TURNS):
            if standby and self.random.random() < 0.6:
                await self._hand_over(standby, active)
                active, standby = standby, 0
            else:
                last += 1
                self.start(last)
                await self._hand_over(last)
                active, standby = last, active
            for _ in range(self.random.randint(5, 60)):
                await self.pause()
                self._trouble()
            for number in self.running.keys() - {active, standby}:
                await self.stop(number)
        self.log.kind = True
        tick = self._ticks()
        await self.until(lambda: self._written() > tick + 3, f"generation {active} writes")
        holds(self.writer == active, "who was promoted writes", f"generation {self.writer}, not {active}")

    async def _hand_over(self, target: int, leaves: int = 0) -> None:
        """Tell its pods again and again; before a way back they must have read who writes (operator.md 3.5)."""
        pods = self.running[target].controllers
        if leaves:
            await self.until(
                lambda: any(each.seen.generation == leaves and not each.allowed for each in pods),
                f"generation {target} follows {leaves}",
            )
        self.targets.append(target)

        def told() -> None:
            for each in pods:
                each.leaves, each.allowed = leaves, True

        def writes() -> bool:
            if self.random.random() < 0.05:
                self.later(told)
                if leaves and self.random.random() < 0.5:  # the right moment for a pod of theirs to come
                    self.double(self.running[leaves])
            return self.writer == target

        await self.until(writes, f"generation {target} takes over from {leaves or 'the one before it'}")

    def _trouble(self) -> None:
        if self.random.random() < 0.02:
            self.double(self.running[self.random.choice(sorted(self.running))])

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(PAUSES_MAX):
            if condition():
                return
            await self.pause()
            for task in self.tasks:
                if task.done() and not task.cancelled():
                    task.result()
            self.tasks = [task for task in self.tasks if not task.done()]
        raise BrokenError(f"it goes on: {what}")

    @property
    def writer(self) -> int:
        records = self.log.partitions[TICKS_PARTITION]
        entry = _entry(records[-1]) if records else None
        return entry.rank.writer if isinstance(entry, Fence | Minted) else 0

    def _ticks(self) -> int:
        return sum(isinstance(_entry(each), Minted) for each in self.log.partitions[TICKS_PARTITION])

    def _written(self) -> int:
        return max((e.upper for e in map(_entry, self.log.partitions[HOME]) if isinstance(e, Batch)), default=0)

    # ---- what must hold

    def check(self) -> None:
        """Judge all that was appended, in order. Ranks are compared as tuples, not by the code under test."""
        ticks: list[Minted] = []
        fences: list[Token] = []
        chain, rank, held = Chain("v"), Rank().token, Counter[Row]()
        writers: list[int] = []
        for partition, record in self.journal:
            entry = _entry(record) if partition != DATA else None
            if partition == TICKS_PARTITION and isinstance(entry, Fence | Minted):
                fenced = isinstance(entry, Fence)
                if fenced:
                    holds(not fences or entry.rank.token > fences[-1], "ranks rise", f"{entry} after {fences[-1:]}")
                    fences.append(entry.rank.token)
                holds(fences[-1:] == [entry.rank.token], "who mints has the fence", f"{entry}, not {fences[-1:]}")
                if writers[-1:] != [entry.rank.writer]:
                    writers.append(entry.rank.writer)
                if isinstance(entry, Minted):
                    holds(entry.tick == len(ticks) + 1, "ticks are consecutive", f"{entry}")
                    ticks.append(entry)
            elif partition == HOME and isinstance(entry, Create | Fence | Batch):
                token = entry.rank.token
                if isinstance(entry, Batch):
                    holds(token == rank, "who writes has fenced the chain", f"{entry} after {rank}")
                holds(token >= rank, "ranks do not fall", f"{entry} after {rank}")
                holds(token in fences, "the ticks are fenced first", f"{entry}, {fences}")
                rank, before = token, chain.upper
                table = chain.take(entry)
                updates = list(updates_of(table)) if table is not None else []
                for tick in range(before, chain.upper) if isinstance(entry, Batch) else ():
                    for row, _, diff in (each for each in updates if each[1] == tick):
                        held[row] += diff
                    wanted = contents(entry.rank.writer, ticks[tick - 1].next[DATA])
                    holds(held == wanted, "exact", f"tick {tick}: {held}, not {wanted}")
        holds(writers == self.targets, "who was told to writes", f"{writers}, not {self.targets}")


def _entry(record: Record) -> Entry | None:
    return decode(record.header, record.data)


async def play(seed: int) -> World:
    world = World(seed)
    playing = asyncio.create_task(world.play())
    try:
        with replayable(seed, lambda: world.ms / 1000):
            await playing
            world.check()
    finally:
        for task in world.tasks:
            task.cancel()
        await asyncio.gather(*world.tasks, return_exceptions=True)
    return world


@played(per_test=50)
async def test_the_right_to_write_goes_there_and_back(seeds: range) -> None:
    back = 0
    for seed in seeds:
        world = await play(seed)
        back += sum(later < earlier for earlier, later in zip(world.targets, world.targets[1:], strict=False))
    assert back or len(seeds) < 10, "nothing went back"


def without_back(rank: Rank, other: Rank) -> bool:
    return (rank.generation, rank.epoch) < (other.generation, other.epoch)


def mints_beside_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes back mints at once, and fences with that."""
    fence = Ticks.fence

    async def fenced(ticks: Ticks, token: Token) -> None:
        if not token[2]:
            await fence(ticks, token)
        ticks._own = Rank(*token)

    monkeypatch.setattr(Ticks, "fence", fenced)


def writes_before_its_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes back takes its permission for the fence of the chain."""
    allow = ChainSink.allow

    async def allowed(sink: ChainSink, token: Token) -> None:
        if not token[2]:
            await allow(sink, token)
        sink._own = Rank(*token)

    monkeypatch.setattr(ChainSink, "allow", allowed)


def compares_without_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rank, "__lt__", without_back)
    monkeypatch.setattr(Rank, "__gt__", lambda rank, other: without_back(other, rank))


def is_never_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generation that was left takes the right to write again, as if it had only begun anew."""
    successor = Rank.successor

    def taken(rank: Rank, generation: int, leaves: int = 0) -> Rank | None:
        if generation == rank.generation:
            return Rank(rank.generation, rank.epoch + 1)
        return successor(rank, generation, leaves)

    monkeypatch.setattr(Rank, "successor", taken)


def writes_what_another_has_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains are written without their lock."""
    append = FaultyLog.append

    async def unlocked(
        log: FaultyLog, partition: int, data: bytes, *, header: int = 0, write: Locks = (), seen: int | None = None
    ) -> int:
        locks = () if partition == HOME else write
        return await append(log, partition, data, header=header, write=locks, seen=seen)

    monkeypatch.setattr(FaultyLog, "append", unlocked)


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (mints_beside_the_fence, "who mints has the fence"),
        (writes_before_its_fence, "who writes has fenced the chain"),
        (compares_without_back, "ranks rise"),
        (is_never_left, "who was told to writes"),
        (writes_what_another_has_written, "somebody wrote without"),
    ],
)
async def test_a_planted_fault_is_found_by_the_rule_that_it_breaks(
    plant: Callable[[pytest.MonkeyPatch], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(PLANTED_SEEDS):
        try:
            await play(seed)
        except (AssertionError, EntryError) as error:
            if rule in str(error):
                return
    raise AssertionError(f"not found by {PLANTED_SEEDS} seeds")
