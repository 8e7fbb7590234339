"""What a replica keeps of a view for peeks and subscribes."""

from __future__ import annotations

from collections import Counter
from contextlib import aclosing
from random import Random

import pyarrow as pa
import pytest

from pavane.compute.wire.commands import SinkExport, Subscribe
from pavane.compute.wire.common import CLOSED, Failure, Rows
from pavane.dataflow import outlets
from pavane.dataflow.arrangement import Arrangement
from pavane.dataflow.entries import Batch, decode
from pavane.dataflow.evaluating import Evaluator, QueryError
from pavane.dataflow.outlets import Subscription, answer
from pavane.dataflow.ports import DIFF, Column, SqlView
from pavane.dataflow.rows import table_of, updates_of
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from pavane.dataflow.views import Views
from tests.services.dataflow.test_chains_under_faults import HOME, TICKS_PARTITION, FaultyLog
from tests.services.dataflow.test_chains_under_faults import VIEW as X

VIEW = SqlView("v", "", (Column("x", "BIGINT"), Column("y", "STRING")), ("t",), b"")
SCHEMA = arrow_schema(VIEW.columns)


def contents(arrangement: Arrangement, tick: int, evaluator: Evaluator) -> Counter[tuple[object, ...]]:
    parts = answer(arrangement.contents(tick), evaluator)
    assert not isinstance(parts, Failure)
    found: Counter[tuple[object, ...]] = Counter()
    for part in parts:
        with pa.ipc.open_stream(part.arrow_ipc) as stream:
            for row in stream.read_all().to_pylist():
                count = row.pop(DIFF)
                assert count > 0
                found[tuple(row.values())] += count
    return found


@pytest.mark.parametrize("told", [True, False])
async def test_contents_stay_right_and_memory_follows_the_view_while_the_past_is_folded(
    monkeypatch: pytest.MonkeyPatch, *, told: bool
) -> None:
    """Up to a tick that a controller tells, or by the number of updates alone."""
    monkeypatch.setattr(outlets, "PART_BYTES_MAX", 600)  # answers in several parts
    random, evaluator, arrangement = Random(7), Evaluator(), Arrangement(SCHEMA, kept=10)
    held: Counter[tuple[object, ...]] = Counter()
    at: dict[int, Counter[tuple[object, ...]]] = {}
    most = 0
    for tick in range(1, 200):
        changes = []
        for _ in range(5):
            row = (random.randrange(12), random.choice(["a", None]))
            diff = -1 if held[row] and random.random() < 0.5 else 1
            held[row] += diff
            changes.append((row, tick, diff))
        arrangement.take(table_of(changes, SCHEMA))
        at[tick] = +held
        await arrangement.fold(evaluator, max(1, tick - 3) if told else None)
        most = max(most, arrangement.rows)
        for readable in {max(1, arrangement.since), tick}:
            assert contents(arrangement, readable, evaluator) == at[readable]
        after = [(row, diff) for row, time, diff in updates_of(arrangement.after(max(0, tick - 2))) if time == tick]
        assert after == [(row, diff) for row, _, diff in changes]
    assert most < 150  # of 1000 updates


async def test_steps_without_a_change_take_no_memory() -> None:
    arrangement = Arrangement(SCHEMA, kept=10)
    for _ in range(1000):
        arrangement.take(table_of((), SCHEMA))
    assert len(arrangement.contents(1).updates) == 1


async def test_a_tick_of_more_updates_than_are_kept_takes_no_history_of_a_reader() -> None:
    """The last tick is never added up, and neither are the last `kept` updates."""
    evaluator, arrangement = Evaluator(), Arrangement(SCHEMA, kept=10)
    ticks = [*range(1, 31), *[31] * 100, *range(32, 36), *[36] * 300]
    for tick in sorted(set(ticks)):
        changes = [((number, "a"), tick, 1) for number, other in enumerate(ticks) if other == tick]
        arrangement.take(table_of(changes, SCHEMA))
        await arrangement.fold(evaluator)
        assert arrangement.since < tick
        young = [other for other in ticks if arrangement.since < other <= tick]
        assert len(young) >= min(10, sum(other <= tick for other in ticks))
        assert [time for _, time, _ in updates_of(arrangement.after(arrangement.since))] == young
    assert arrangement.since > 0


async def test_what_is_taken_back_leaves_memory_also_when_it_could_not_be_added_up_at_first() -> None:
    evaluator, arrangement = Evaluator(), Arrangement(SCHEMA, kept=10)
    arrangement.take(table_of([((number, "a"), 10, diff) for number in range(3000) for diff in (1, -1)], SCHEMA))
    await arrangement.fold(evaluator, 9)
    assert arrangement.rows == 6000
    for tick in range(11, 40):
        arrangement.take(table_of([((tick, "b"), tick, 1)], SCHEMA))
        await arrangement.fold(evaluator, tick)
    assert arrangement.rows < 50
    assert arrangement.since > 10


@pytest.mark.parametrize("times", [1, 7])
async def test_a_view_that_is_built_large_and_then_mostly_taken_back_leaves_memory(times: int) -> None:
    evaluator, arrangement = Evaluator(), Arrangement(SCHEMA, kept=10)
    arrangement.take(table_of([((number, "a"), 1, times) for number in range(3000)], SCHEMA))
    await arrangement.fold(evaluator, 1)
    for tick in range(2, 31):
        changes = [((number, "a"), tick, -times) for number in range(100 * tick - 200, 100 * tick - 100)]
        arrangement.take(table_of(changes, SCHEMA))
        await arrangement.fold(evaluator, tick)
    assert arrangement.rows < 1500  # of which 100 are the view
    assert len(contents(arrangement, 30, evaluator)) == 100


@pytest.mark.parametrize("name", ["number of part", "updates", "sign", "__part"])
async def test_no_name_of_a_column_stops_what_is_kept_of_its_view(name: str) -> None:
    view = parse(
        "CREATE TABLE t (x BIGINT) USING waltz OPTIONS (partitions '0');"
        f"CREATE MATERIALIZED VIEW v AS SELECT x AS `{name}` FROM t"
    ).views[0]
    schema = arrow_schema(view.columns)
    evaluator, arrangement = Evaluator(), Arrangement(schema, kept=0)
    arrangement.take(table_of([((1,), 1, 2**62), ((1,), 2, 2**62), ((5,), 2, 1)], schema))
    arrangement.take(table_of([((1,), 3, -(2**63) + 2)], schema))
    for since in (2, 3):
        await arrangement.fold(evaluator, since)
    assert contents(arrangement, 3, evaluator) == {(1,): 2, (5,): 1}


async def test_a_row_that_is_there_more_often_than_64_bits_can_count_costs_its_answer_alone() -> None:
    evaluator, arrangement = Evaluator(), Arrangement(SCHEMA, kept=0)
    for tick in range(1, 9):
        arrangement.take(table_of([((1, "a"), tick, 2**62), ((2, "s"), tick, 1)], SCHEMA))
        if tick > 1:
            found = answer(arrangement.contents(tick), evaluator)
            assert isinstance(found, Failure)
            assert "more often than 64 bits can count" in found.text
        else:
            assert contents(arrangement, 1, evaluator) == {(1, "a"): 2**62, (2, "s"): 1}
        await arrangement.fold(evaluator, tick)
    assert arrangement.rows <= 10  # and none of the others either
    taken_back = [((1, "a"), 9, -(2**62))] * 6
    arrangement.take(table_of([*taken_back, ((1, "a"), 9, -5), ((3, "b"), 9, 2)], SCHEMA))
    for _ in range(2):
        assert contents(arrangement, 9, evaluator) == {(1, "a"): 2**63 - 5, (2, "s"): 8, (3, "b"): 2}
        await arrangement.fold(evaluator, 9)
    assert arrangement.rows == 3


async def test_a_reader_of_a_chain_loses_nothing_while_a_count_does_not_fit() -> None:
    log = FaultyLog(Random(0), kind=True)
    ids = iter(range(1000))
    sink = ChainSink(Home(log, HOME), TICKS_PARTITION, X, lambda: 0, lambda: str(next(ids)))
    await sink.open(1)
    await sink.allow((1, 1))
    views = Views(log, HOME, kept=10)
    times = {1: 2**62, 2: 2**62, 800: -(2**62), 801: 1 - 2**62}
    for tick in range(1, 802):
        rows = [((tick,), tick, 1), ((0,), tick, times.get(tick, 0))]
        sink.desire(table_of([each for each in rows if each[2]], arrow_schema(X.columns)), tick + 1)
        await sink.advance()
    await views.look()
    assert views.query(f"SELECT count(*) AS n FROM {X.name}")[1].to_pylist() == [{"n": 802}]
    assert views.readers[X.name].since > 2
    views.close()


async def test_who_follows_a_view_and_is_too_late_is_told_so() -> None:
    """Never that all rows of the view are changes of it."""
    log = FaultyLog(Random(0), kind=True)
    ids = iter(range(1000))
    sink = ChainSink(Home(log, HOME), TICKS_PARTITION, X, lambda: 0, lambda: str(next(ids)))
    await sink.open(1)
    await sink.allow((1, 1))

    async def write(first: int, end: int) -> None:
        for tick in range(first, end):
            sink.desire(table_of([((tick,), tick, 1)], arrow_schema(X.columns)), tick + 1)
            await sink.advance()

    views = Views(log, HOME, kept=2)
    async with aclosing(views.follow(X.name)) as steps:
        await write(1, 4)
        assert [time for _, time, _ in (await anext(steps))[1]] == [1, 2, 3]
        await write(4, 5)
        assert (await anext(steps))[1] == [((4,), 4, 1)]
        await write(5, 30)
        with pytest.raises(QueryError, match="on, not from 4: read all rows again"):
            await anext(steps)
    views.close()


def subscribed(subscription: Subscription, upper: int) -> tuple[int, list[tuple[int, int, int]]]:
    batch = subscription.batch(upper)
    assert batch is not None
    assert isinstance(batch[1], Rows)
    with pa.ipc.open_stream(batch[1].arrow_ipc) as stream:
        return batch[0], [(row[0], time, diff) for row, time, diff in updates_of(stream.read_all())]


def test_a_subscribe_tells_each_change_once_and_ends() -> None:
    changes = [((number, "a"), number, 1) for number in range(5, 12)]

    def following(told: int, *, initial: bool = False) -> Subscription:
        export = SinkExport("t1", "v", Subscribe(), emit_initial=initial, up_to=10)
        made = Subscription(export, 5, told)
        made.take(table_of([each for each in changes if each[1] < 8], SCHEMA))
        return made

    first = following(0, initial=True)
    assert subscribed(first, 8) == (8, [(5, 5, 1), (6, 6, 1), (7, 7, 1)])
    assert first.batch(8) is None
    assert subscribed(following(0), 8) == (8, [(6, 6, 1), (7, 7, 1)])  # without what was there at the beginning
    again = following(7, initial=True)  # built anew after the engine failed
    assert subscribed(again, 8) == (8, [(7, 7, 1)])
    again.take(table_of([each for each in changes if each[1] >= 8], SCHEMA))
    assert subscribed(again, 12) == (CLOSED, [(8, 8, 1), (9, 9, 1)])
    again.take(table_of([((12, "a"), 12, 1)], SCHEMA))
    assert again.batch(13) is None


async def test_two_replicas_write_one_chain_by_one_token_also_by_the_next() -> None:
    log = FaultyLog(Random(0), kind=True)
    ids = iter(range(1000))
    sinks = [ChainSink(Home(log, HOME), TICKS_PARTITION, X, lambda: 0, lambda: str(next(ids))) for _ in range(2)]
    for sink in sinks:
        await sink.open(1)
    for epoch in (1, 2):
        for sink in sinks:
            await sink.allow((1, epoch))
        for upper in (2 * epoch, 2 * epoch + 1):
            for sink in sinks:
                sink.desire(table_of([((upper,), upper - 1, 1)], arrow_schema(X.columns)), upper)
            first, second = sinks if upper % 2 else sinks[::-1]
            assert await first.advance() == await second.advance() == upper
    held = [update for record in log.partitions[HOME] for update in _written(record.header, record.data)]
    assert held == [((upper,), upper - 1, 1) for upper in (2, 3, 4, 5)]


def _written(header: int, data: bytes) -> list[tuple[object, int, int]]:
    entry = decode(header, data)
    if not isinstance(entry, Batch) or not entry.rows:
        return []
    with pa.ipc.open_stream(entry.rows) as stream:
        return list(updates_of(stream.read_all()))
