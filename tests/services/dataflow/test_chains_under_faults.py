"""Writers that overtake, lose answers and die: no tick is skipped or doubled, and who is fenced writes no more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from uuid import uuid4

import pyarrow as pa
import pytest

from pavane.dataflow import sink as sink_module
from pavane.dataflow.chain import Chain
from pavane.dataflow.entries import Entry, EntryError, Minted, Rank, decode
from pavane.dataflow.keeping import Clocks, Keeper, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Column, EngineError, Fenced, SqlView
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.sql import parse
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.types import arrow_schema
from pavane.dataflow.views import Views
from pavane.waltz.errors import Conflict, OutcomeUnknown, Unavailable

VIEW = SqlView("v", "", (Column("x", "BIGINT"),), ("t",), b"")
SCHEMA = arrow_schema(VIEW.columns)
TICKS_PARTITION, HOME, DATA = 2, 1, 0
SEEDS = 60


class Died(Exception):
    """The writer's process ends here."""


@dataclass(frozen=True, slots=True)
class Record:
    id: int
    header: int
    data: bytes


@dataclass(slots=True)
class FaultyLog:
    """A log in memory with the locks of the real one, which loses answers, refuses without need and yields anywhere."""

    random: Random
    kind: bool = False
    """Nothing goes wrong."""
    away: bool = False
    """Nobody answers."""
    partitions: dict[int, list[Record]] = field(default_factory=lambda: {0: [], 1: [], 2: []})
    locks: dict[tuple[int, str], int] = field(default_factory=dict)

    async def append(
        self,
        partition: int,
        data: bytes,
        *,
        header: int = 0,
        write: Sequence[tuple[str, int]] = (),
        seen: int | None = None,
    ) -> int:
        await self._anything()
        fault = 0.5 if self.kind else self.random.random()
        if fault < 0.05:
            raise OutcomeUnknown(partition, (0, 0, 0, 0))
        records = self.partitions[partition]
        last = max((self.locks.get((partition, name), -1) for name, _ in write), default=-1)
        if write and (last > (len(records) - 1 if seen is None else seen) or fault < 0.08):
            raise Conflict(partition, max(last, (seen or 0) - (fault < 0.08)))
        records.append(Record(len(records), header, data))
        for name, _ in write:
            self.locks[partition, name] = len(records) - 1
        await self._anything()
        if fault > 0.95:
            raise OutcomeUnknown(partition, (0, 0, 0, 0))
        return len(records) - 1

    async def read(self, partition: int, start: int, stop: int) -> AsyncIterator[Record]:
        for record in self.partitions[partition][start:stop]:
            await self._anything()
            yield record

    async def get(self, partition: int, txid: int) -> Record:
        return self.partitions[partition][txid]

    async def hwm(self, partition: int) -> int:
        await self._anything()
        return len(self.partitions[partition]) - 1

    async def _anything(self) -> None:
        if self.away:
            raise Unavailable("nobody answers")
        if self.kind:
            return
        if self.random.random() < 0.3:
            await asyncio.sleep(0)
        if self.random.random() < 0.003:
            raise Died


def contents(next_: int) -> Counter[Row]:
    """What the view must be where the table has so many rows: the last three."""
    return Counter({(number,): 1 for number in range(max(0, next_ - 3), next_)})


async def writer(log: FaultyLog, epoch: int, clock: Counter[str], until: int) -> None:
    """What a process does: mint ticks, and keep the view, built from the log alone."""
    ticks = Ticks(log, TICKS_PARTITION, [DATA], lambda: clock["ms"])
    sink = ChainSink(Home(log, HOME), TICKS_PARTITION, VIEW, lambda: clock["ms"], lambda: f"{epoch}-{clock['ms']}")
    last = await ticks.last()
    as_of = max(1, await sink.open(max(1, last)) - 1)
    await ticks.start(as_of)
    await ticks.fence((1, epoch))
    await sink.allow((1, epoch))
    held: Counter[Row] = Counter()
    while True:
        clock["ms"] += 300
        if log.random.random() < 0.7:
            clock["rows"] += 1
            log.partitions[DATA].append(Record(len(log.partitions[DATA]), 0, b""))
        await ticks.mint()
        for binding in await ticks.read_on():
            wanted = contents(binding.next[DATA])
            changes = [(row, binding.tick, wanted[row] - held[row]) for row in {*wanted, *held}]
            sink.desire(table_of([each for each in changes if each[2]], SCHEMA), binding.tick + 1)
            held = wanted
        if await sink.advance() > until:
            return


async def play(seed: int) -> tuple[int, list[int], int]:
    """Return how many ticks the chain has, which are wrong, and how many writers were fenced."""
    log = FaultyLog(Random(seed))
    clock: Counter[str] = Counter()
    fenced = 0
    for epoch in range(1, 9):
        pair = [asyncio.create_task(writer(log, epoch * 2 + each, clock, until=epoch * 6)) for each in range(2)]
        ended = await asyncio.gather(*pair, return_exceptions=True)
        for error in ended:
            if isinstance(error, Fenced):
                fenced += 1
            elif error is not None and not isinstance(error, Died | OutcomeUnknown):  # of a piece of a batch
                raise error
    chain, held, wrong = Chain("v"), Counter[Row](), []
    ticks: dict[int, Minted] = {}
    for record in log.partitions[TICKS_PARTITION]:
        entry = decode(record.header, record.data)
        if isinstance(entry, Minted):
            assert entry.tick == len(ticks) + 1
            ticks[entry.tick] = entry
    updates = []
    for record in log.partitions[HOME]:
        found = decode(record.header, record.data)
        assert found is not None
        table = chain.take(found)
        updates += list(updates_of(table)) if table is not None else []
    for tick in range(1, chain.upper):
        for row, time, diff in updates:
            if time == tick:
                held[row] += diff
        if chain.created is not None and tick >= chain.created.as_of and +held != contents(ticks[tick].next[DATA]):
            wrong.append(tick)
    return chain.upper, wrong, fenced


async def test_no_tick_is_wrong_missing_or_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    played = {seed: await play(seed) for seed in range(0, SEEDS, 2)}
    monkeypatch.setattr(sink_module, "CHUNK_BYTES", 1)  # each row before its batch
    played |= {seed: await play(seed) for seed in range(1, SEEDS, 2)}
    assert {seed: wrong for seed, (_, wrong, _) in played.items() if wrong} == {}
    assert sum(upper for upper, _, _ in played.values()) > SEEDS * 20
    assert sum(fenced for _, _, fenced in played.values()) > SEEDS


async def test_a_log_at_rest_does_not_grow() -> None:
    log = FaultyLog(Random(0), kind=True)
    ticks = Ticks(log, TICKS_PARTITION, [DATA], lambda: 0)
    await ticks.start(1)
    await ticks.fence((1, 1))
    for _ in range(5):
        await ticks.mint()
    assert [binding.tick for binding in await ticks.read_on()] == [1]
    assert len(log.partitions[TICKS_PARTITION]) == 2


async def test_a_view_goes_on_counting_the_ticks_that_it_began_with() -> None:
    log = FaultyLog(Random(0), kind=True)
    sink = ChainSink(Home(log, HOME), TICKS_PARTITION, VIEW, lambda: 0, lambda: "id")
    await sink.open(1)
    await sink.allow((1, 1))
    with pytest.raises(EntryError, match="counts the ticks of partition 2, not of 5: name that one"):
        await ChainSink(Home(log, HOME), 5, VIEW, lambda: 0, lambda: "id").open(1)
    other = SqlView("v", "", (Column("x", "STRING"),), ("t",), b"")
    with pytest.raises(EntryError, match="with the columns x BIGINT, not x STRING: give the new view another name"):
        await ChainSink(Home(log, HOME), TICKS_PARTITION, other, lambda: 0, lambda: "id").open(1)


async def test_an_outage_of_the_log_is_waited_for() -> None:
    log = FaultyLog(Random(0), kind=True)
    table = "CREATE TABLE t (x BIGINT) USING waltz OPTIONS (partitions '0')"
    script = parse(f"{table}; CREATE MATERIALIZED VIEW v AS SELECT sum(x) AS s FROM t")
    clocks = Clocks(lambda: 0, monotonic, lambda: uuid4().hex)
    keeper = Keeper(log, [script], Place(TICKS_PARTITION, HOME), PlainEngine, 0.01, clocks)
    keeper.allowed.set()
    steps: asyncio.Queue[str] = asyncio.Queue()
    keeping = asyncio.create_task(keeper.run(lambda _: steps.put_nowait("moved"), steps.put_nowait))
    try:
        async with asyncio.timeout(30.0):
            assert await steps.get() == "moved"
            log.away = True
            while (said := await steps.get()) == "moved":
                pass  # what it did before
            assert said == "nobody answers"
            log.partitions[DATA].append(Record(0, 0, b'{"x": 7}'))
            log.away = False
            views = Views(log, HOME)
            async with aclosing(views.follow("v")) as steps_of_view:
                async for _, changes in steps_of_view:
                    if any(row == (7,) for row, _, _ in changes):
                        break
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


async def test_an_engine_that_does_not_start_is_started_again() -> None:
    log = FaultyLog(Random(0), kind=True)
    script = parse(
        "CREATE TABLE t (x BIGINT) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW v AS SELECT sum(x) AS s FROM t"
    )
    starts = iter([False, True])

    def engine() -> PlainEngine:
        if not next(starts):
            raise EngineError("it did not start")
        return PlainEngine()

    clocks = Clocks(lambda: 0, monotonic, lambda: uuid4().hex)
    keeper = Keeper(log, [script], Place(TICKS_PARTITION, HOME), engine, 0.01, clocks)
    keeper.allowed.set()
    steps: asyncio.Queue[str] = asyncio.Queue()
    keeping = asyncio.create_task(keeper.run(lambda _: steps.put_nowait("moved"), steps.put_nowait))
    try:
        async with asyncio.timeout(30.0):
            assert [await steps.get(), await steps.get()] == ["it did not start", "moved"]
    finally:
        keeping.cancel()
        await asyncio.wait({keeping})


async def test_a_later_generation_builds_beside_and_takes_over_at_its_fence() -> None:
    log = FaultyLog(Random(0), kind=True)
    script = parse(
        "CREATE TABLE t (x BIGINT) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW v AS SELECT sum(x) AS s FROM t"
    )
    clocks, place = Clocks(lambda: 0, monotonic, lambda: uuid4().hex), Place(TICKS_PARTITION, HOME)
    old, new = (Keeper(log, [script], place, PlainEngine, 0.01, clocks, number) for number in (1, 2))
    running = [asyncio.create_task(each.run(lambda _: None, lambda _: None)) for each in (old, new)]

    def row(number: int) -> None:
        log.partitions[DATA].append(Record(number, 0, b'{"x": %d}' % number))

    async def reached(keeper: Keeper, tick: int) -> None:
        while keeper.runner is None or keeper.runner.reached < tick:
            await asyncio.sleep(0.01)

    try:
        async with asyncio.timeout(30.0):
            row(0)
            old.allowed.set()
            await reached(old, 1)
            row(1)
            await reached(new, 2)
            assert (old.leads, new.leads, (await new.rank()).writer) == (True, False, 1)
            before = len(log.partitions[HOME])
            row(2)
            await reached(new, 3)
            ranks = {decode(one.header, one.data).rank.generation for one in log.partitions[HOME]}  # type: ignore[union-attr]
            assert ranks == {1}, "who may not write wrote"
            new.allowed.set()
            with pytest.raises(Fenced):
                await running[0]
            row(3)
            # who takes over mints a tick at once: it has the row, or the next one has
            tick = await Ticks(log, TICKS_PARTITION, [DATA], clocks.now_ms).including(DATA, 3)
            await reached(new, tick)
            assert (new.leads, (await new.rank()).writer) == (True, 2)
            assert new.took_over_s is not None
            assert len(log.partitions[HOME]) > before
            views = Views(log, HOME)
            await views.read_on({"v": tick + 1})
            assert views.query("SELECT s FROM v")[1].to_pylist() == [{"s": 6}]
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def found_by_a_seed() -> bool:
    for seed in range(SEEDS):
        try:
            if (await play(seed))[1]:
                return True
        except EntryError:
            return True
    return False


class ReadsFurther(ChainSink):
    """Takes the end of the partition for the position on which a batch rests."""

    async def _append(self, entry: Entry, position: int | None = None) -> None:
        await super()._append(entry, await self._home.log.hwm(HOME) + 1)


class TrustsAnswers(ChainSink):
    """Counts updates as persisted because an append was answered, not because they were read."""

    async def _write(self, updates: pa.Table, own: Rank) -> None:
        await super()._write(updates, own)
        self._corrections.persisted(updates, self._chain.upper)


@pytest.mark.parametrize("fault", [ReadsFurther, TrustsAnswers])
async def test_a_fault_is_found(fault: type[ChainSink], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ChainSink", fault)
    assert await found_by_a_seed()
