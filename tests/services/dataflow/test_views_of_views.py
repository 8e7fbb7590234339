"""Views of views, several SELECTs in one, tables with a key: right at every tick, although who keeps them dies."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from time import monotonic
from uuid import uuid4

import pytest

from pavane.dataflow import runner, source
from pavane.dataflow.chain import Chain
from pavane.dataflow.entries import Batch, Minted, decode
from pavane.dataflow.keeping import Clocks, Keeper, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Script
from pavane.dataflow.rows import Row, updates_of
from pavane.dataflow.sql import parse
from tests.services.dataflow.test_chains_under_faults import DATA, HOME, TICKS_PARTITION, Died, FaultyLog, Record

SCRIPT = """
CREATE TABLE t (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0', diff 'true');
CREATE TABLE latest (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0', key 'k');
CREATE MATERIALIZED VIEW last AS SELECT k, x FROM latest;
CREATE MATERIALIZED VIEW sums AS SELECT k, sum(x) AS s FROM t GROUP BY k;
CREATE MATERIALIZED VIEW big AS SELECT k, s FROM sums WHERE s > 20;
CREATE MATERIALIZED VIEW shares AS SELECT t.k, t.x, big.s FROM t JOIN big ON t.k = big.k;
CREATE MATERIALIZED VIEW both AS SELECT k, s FROM big UNION ALL SELECT k, x FROM t WHERE x > 5 UNION ALL
  SELECT s, count(*) AS n FROM sums GROUP BY s;
CREATE MATERIALIZED VIEW nested AS WITH equal AS (SELECT s, count(*) AS n FROM sums GROUP BY s)
  SELECT t.k, t.x, equal.n FROM t JOIN sums ON t.k = sums.k JOIN equal ON equal.s = sums.s
  WHERE t.k IN (SELECT k FROM big);
"""
SEEDS, LIVES, ROWS = 2, 5, 12
VIEWS = ("last", "sums", "big", "shares", "both", "nested")


def expected(rows: Counter[tuple[int, int]]) -> dict[str, Counter[Row]]:
    """What the views must be where the table has these rows."""
    sums: dict[int, int] = {}
    for (k, x), count in rows.items():
        sums[k] = sums.get(k, 0) + x * count
    of_big = {k: s for k, s in sums.items() if s > 20}
    both = Counter[Row](of_big.items())
    both.update({(k, x): count for (k, x), count in rows.items() if x > 5})
    both.update(Counter(sums.values()).items())
    shares = Counter({(k, x, of_big[k]): count for (k, x), count in rows.items() if k in of_big})
    equal = Counter(sums.values())
    nested = Counter({(k, x, equal[sums[k]]): count for (k, x), count in rows.items() if k in of_big})
    whole, some = Counter[Row](sums.items()), Counter[Row](of_big.items())
    return {"sums": whole, "big": some, "shares": Counter[Row](shares), "both": both, "nested": Counter[Row](nested)}


def change(random: Random, there: Counter[tuple[int, int]]) -> bytes:
    """Return a row more or one less."""
    if +there and random.random() < 0.4:
        k, x = random.choice(sorted(there.elements()))
        diff = -1
    else:
        k, x, diff = random.randrange(4), random.randrange(9), 1
    there[k, x] += diff
    return json.dumps({"k": k, "x": x, "__diff": diff}).encode()


async def live(log: FaultyLog, epoch: int, random: Random, there: Counter[tuple[int, int]]) -> None:
    """Keep the views while rows come, until it dies or has seen them all."""
    clocks, place = Clocks(lambda: 0, monotonic, lambda: uuid4().hex), Place(TICKS_PARTITION, HOME)
    keeper = Keeper(log, [parse(SCRIPT)], place, PlainEngine, 0.001, clocks, epoch)
    keeper.allowed.set()
    running = asyncio.create_task(keeper.run(lambda _: None, lambda _: None))
    for _ in range(ROWS):
        data = change(random, there)
        log.partitions[DATA].append(Record(len(log.partitions[DATA]), 0, data))
        before = keeper.runner.reached if keeper.runner is not None else 0
        while not running.done() and (keeper.runner is None or keeper.runner.reached <= before):
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.wait({running})
    if not running.cancelled() and not isinstance(running.exception(), Died):
        running.result()


def wrong(log: FaultyLog) -> tuple[int, list[tuple[str, int]]]:
    """Return how many ticks were compared, and the views and ticks that are wrong."""
    minted = [decode(each.header, each.data) for each in log.partitions[TICKS_PARTITION]]
    ticks = {each.tick: each.next[DATA] for each in minted if isinstance(each, Minted)}
    chains = {name: Chain(name) for name in VIEWS}
    updates: dict[str, list[tuple[Row, int, int]]] = {name: [] for name in chains}
    for record in log.partitions[HOME]:
        entry = decode(record.header, record.data)
        assert entry is not None
        table = chains[entry.chain].take(entry)
        updates[entry.chain] += updates_of(table) if table is not None else ()
    compared, found = 0, []
    for name, chain in chains.items():
        assert chain.created is not None
        for tick in range(chain.created.as_of, chain.upper):
            rows = [json.loads(each.data) for each in log.partitions[DATA][: ticks[tick]]]
            there, last = Counter[tuple[int, int]](), dict[int, int]()
            for row in rows:
                there[row["k"], row["x"]] += row["__diff"]
                last[row["k"]] = row["x"]
            held = Counter[Row]()
            for row, time, diff in updates[name]:
                held[row] += diff * (time <= tick)
            compared += 1
            if +held != (Counter(last.items()) if name == "last" else expected(+there)[name]):
                found.append((name, tick))
    return compared, found


async def played(seed: int) -> tuple[int, list[tuple[str, int]]]:
    random, there = Random(seed), Counter[tuple[int, int]]()
    log = FaultyLog(random)
    for epoch in range(1, LIVES + 1):
        log.kind = epoch == LIVES  # so that at least this one sees a tick for each of its rows
        await live(log, epoch, random, there)
        there = +there
    return wrong(log)


@pytest.mark.parametrize("piece", [pytest.param(source.STEP_BYTES_MAX, marks=pytest.mark.long), 3 * 1100])
async def test_every_view_is_right_at_every_tick(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STEP_BYTES_MAX", piece)
    found = [await played(seed) for seed in range(SEEDS)]
    assert [each for _, each in found] == [[]] * SEEDS
    assert all(compared > ROWS for compared, _ in found)  # a view without changes writes no tick


async def test_a_view_that_reads_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever forgot that a view must be there as early as its readers would lose what came between."""
    taken = runner._taken
    monkeypatch.setattr(runner, "_taken", lambda each, read, lower, upper: taken(each, read, lower, upper - 1))
    for seed in range(SEEDS):
        if (await played(seed))[1]:
            return
    pytest.fail("no seed shows it")


class CountedLog(FaultyLog):
    """Counts reads of the table's rows."""

    reads = 0

    async def read(self, partition: int, start: int, stop: int) -> AsyncIterator[Record]:
        self.reads += partition == DATA
        async for record in super().read(partition, start, stop):
            yield record


def kept(log: FaultyLog, script: Script) -> tuple[Keeper, asyncio.Task[None]]:
    """A keeper that writes the views of a script, and its task."""
    clocks, place = Clocks(lambda: 0, monotonic, lambda: uuid4().hex), Place(TICKS_PARTITION, HOME)
    keeper = Keeper(log, [script], place, PlainEngine, 0.01, clocks)
    keeper.allowed.set()
    return keeper, asyncio.create_task(keeper.run(lambda _: None, lambda _: None))


async def test_a_view_that_fails_while_it_is_built_writes_no_part_of_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STEP_BYTES_MAX", 3 * 1100)
    log = FaultyLog(Random(0), kind=True)
    rows = [*range(8), 2**63 - 1]  # the last piece has the row that no sum can hold
    log.partitions[DATA] += [Record(number, 0, b'{"k": 1, "x": %d}' % x) for number, x in enumerate(rows)]
    script = parse(
        "CREATE TABLE t (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW sums AS SELECT k, sum(x) AS s FROM t GROUP BY k;"
        "CREATE MATERIALIZED VIEW big AS SELECT k FROM sums WHERE s > 2;"
        "CREATE MATERIALIZED VIEW all_rows AS SELECT x FROM t;"
    )
    keeper, running = kept(log, script)
    async with asyncio.timeout(30.0):
        while keeper.runner is None or any(each.upper < 2 and not each.failure for each in keeper.runner.views):
            await asyncio.sleep(0.01)
    failed = {each.view.name for each in keeper.runner.views if each.failure}
    running.cancel()
    await asyncio.wait({running})
    assert failed == {"sums", "big"}
    batches = [entry for each in log.partitions[HOME] if isinstance(entry := decode(each.header, each.data), Batch)]
    assert {batch.chain for batch in batches} == {"all_rows"}


async def test_all_views_are_built_from_one_reading_of_the_log() -> None:
    log = CountedLog(Random(0), kind=True)
    log.partitions[DATA] += [Record(number, 0, b'{"k": 1, "x": %d}' % number) for number in range(9)]
    script = parse(
        "CREATE TABLE t (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW sums AS SELECT k, sum(x) AS s FROM t GROUP BY k;"
        "CREATE MATERIALIZED VIEW both AS SELECT t.x, s FROM t JOIN sums ON t.k = sums.k;"
        "CREATE MATERIALIZED VIEW most AS SELECT max(x) AS x FROM t;"
    )
    keeper, running = kept(log, script)
    async with asyncio.timeout(30.0):
        while keeper.runner is None or keeper.runner.reached < 1:
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})
    assert log.reads == 1


async def failures_of(script: str, record: bytes) -> dict[str, str]:
    """What is said of each view of a script when a record has come."""
    log = FaultyLog(Random(0), kind=True)
    clocks, place = Clocks(lambda: 0, monotonic, lambda: uuid4().hex), Place(TICKS_PARTITION, HOME)
    keeper = Keeper(log, [parse(script)], place, PlainEngine, 0.01, clocks)
    keeper.allowed.set()
    log.partitions[DATA].append(Record(0, 0, record))
    running = asyncio.create_task(keeper.run(lambda _: None, lambda _: None))
    async with asyncio.timeout(30.0):
        while keeper.runner is None or keeper.runner.reached < 1:
            await asyncio.sleep(0.01)
    failures = {each.view.name: each.failure for each in keeper.runner.views}
    running.cancel()
    await asyncio.wait({running})
    return failures


async def test_a_reader_of_a_view_that_failed_fails() -> None:
    failures = await failures_of(
        "CREATE TABLE t (x BIGINT) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW v AS SELECT x + x AS y FROM t;"
        "CREATE MATERIALIZED VIEW w AS SELECT count(*) AS n FROM v;"
        "CREATE MATERIALIZED VIEW alone AS SELECT count(*) AS n FROM t",
        b'{"x": %d}' % 2**62,
    )
    assert "out of range" in failures["v"]
    assert failures["w"].startswith("the view v, which it reads, failed: ")
    assert failures["alone"] == ""


async def test_a_date_beyond_the_year_9999_stops_its_view_alone() -> None:
    failures = await failures_of(
        "CREATE TABLE t (day DATE) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW v AS SELECT date_add(day, 1) AS d FROM t;"
        "CREATE MATERIALIZED VIEW alone AS SELECT day FROM t",
        b'{"day": "9999-12-31"}',
    )
    assert "outside of the years 1 to 9999" in failures["v"]
    assert failures["alone"] == ""
