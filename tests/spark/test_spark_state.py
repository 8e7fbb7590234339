"""Views whose state Spark's executors keep: the chains that DuckDB's state gives, also after a restart."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pavane.dataflow.chain import Chain
from pavane.dataflow.deltas import Sums
from pavane.dataflow.entries import CHAIN_HEADER, decode
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.plan import Aggregate, Group
from pavane.dataflow.ports import CLOCK, DIFF, Binding, Column, Engine, Script
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.runner import ViewRunner
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.source import LogSource
from pavane.dataflow.sql import parse
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.types import arrow_schema
from pavane.spark import kept as kept_state
from pavane.spark import runs
from pavane.spark.engine import SparkEngine
from pavane.spark.kept import Keeping
from pavane.spark.stages import SPARK, covers
from pavane.spark.tables import Place
from pavane.spark.views import SparkFlow
from pavane.waltz.client import Waltz
from tests.services.dataflow.oracle import SHAPES, TIMED, clock, wrong_ticks
from tests.services.dataflow.oracle import script as script_of

SUMS = "SELECT customer, count(*) AS n, sum(cents) AS total FROM orders GROUP BY customer"
SPANS = [TIMED[1], TIMED[9], TIMED[12]]
"""With rows whose time begins and ends, ones that stay, and a row of no rows."""
ROWS = 300
FAR = 2.0**40
AT = Binding(1, {0: 1}, 0)


def engine_in(folder: Path, spark: SparkSession, place: Place | None = None) -> SparkEngine:
    """It makes one checkpoint, where its views begin."""
    return SparkEngine(spark, keeping=Keeping(str(folder), every_s=FAR), place=place)


@pytest.mark.parametrize("shape", [SUMS, "SELECT DISTINCT customer, paid FROM orders", *SPANS])
def test_a_view_is_its_query_at_every_tick(shape: str, spark: SparkSession, tmp_path: Path) -> None:
    assert shape in SHAPES + TIMED
    assert covers(script_of(shape), script_of(shape).views[0])
    assert wrong_ticks(shape, 5, engine_in(tmp_path, spark), 6) == []


def test_whole_numbers_of_any_size_are_added_up_exactly(spark: SparkSession) -> None:
    values = [-(2**63), 2**63 - 1, -(2**63), -1, 0, 2**22, 2**44 - 1, -(2**44) - 1, None]
    diffs = [2, -1, 1, 1, 3, 1, -1, 2**20, 1]
    rows = pa.table({"x": pa.array(values, pa.int64()), DIFF: pa.array(diffs, pa.int64())})
    spark.createDataFrame(rows).createOrReplaceTempView("x")
    stage = Sums("", Group(0, (Aggregate("sum", 0, "BIGINT"),)), [Column("x", "BIGINT")], SPARK, single=True)
    ((_, count, known, total),) = spark.sql(stage.delta("x", times=False)).collect()
    assert (count, known) == (sum(diffs), sum(diffs) - 1)
    assert total == sum(each * diff for each, diff in zip(values, diffs, strict=True) if each is not None)


def test_pieces_of_a_view_that_is_built_lie_on_disk_until_the_last(spark: SparkSession, tmp_path: Path) -> None:
    """However long the log is, the driver has one piece of it."""
    made = script(0)
    tables = [
        table_of(
            [((f"{x % 5}", x, None), 1, 1) for x in range(first, first + 10)], arrow_schema(made.tables[0].columns)
        )
        for first in (0, 10, 20)
    ]
    found = []
    with closing(PlainEngine()) as duck:
        for engine in (duck, engine_in(tmp_path, spark)):
            state = engine.open(made)
            flow = state.flow(made.views[0])
            for number, table in enumerate(tables):
                before = {path.parent for path in tmp_path.rglob("*.parquet")}
                out = flow.step({"t": table}, 2, more=number < 2)
                if engine is not duck and number < 2:
                    assert len({path.parent for path in tmp_path.rglob("*.parquet")} - before) == 1
            found.append(Counter(updates_of(out)))
    assert found[0] == found[1]
    state.checkpoint({made.views[0].name: AT})
    assert isinstance(flow, SparkFlow)
    left = {path.parent.name for path in tmp_path.rglob("*.parquet")}
    assert left == {name for kept in flow.kept() for name, _, _ in kept}


def test_spark_writes_down_nothing_that_follows_from_a_condition(spark: SparkSession, tmp_path: Path) -> None:
    """Of a hash of 16 columns with two names each that was 2^16 expressions, and 11 s of each tick."""
    made = script(0)
    flow = engine_in(tmp_path, spark).open(made).flow(made.views[0])
    assert isinstance(flow, SparkFlow)
    flow.step({"t": table_of([(("a", 1, None), 1, 1)], arrow_schema(made.tables[0].columns))}, 2)
    plan = flow._store.session.sql(f"SELECT * FROM {flow.stages[-1].whole()} WHERE h = 1")._jdf.queryExecution()
    assert "isnotnull" not in plan.optimizedPlan().toString()


@pytest.mark.parametrize("touched", [runs.HASHES_MAX, 2000])
def test_a_step_may_touch_many_keys(
    touched: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RECENT_ROWS", 0)  # so that there is a run to look into
    made = script(0)
    schema = arrow_schema(made.tables[0].columns)
    with closing(engine_in(tmp_path, spark).open(made)) as opened:
        flow = opened.flow(made.views[0])
        for tick in (1, 2):
            rows = table_of([((f"k{number}", 1, None), tick, 1) for number in range(touched)], schema)
            changed = flow.step({"t": rows}, tick + 1)
    assert changed.num_rows == 2 * touched  # each old sum out, each new one in


SECOND = """
CREATE TABLE t (id BIGINT, at TIMESTAMP) USING waltz OPTIONS (partitions '0', diff 'true');
CREATE MATERIALIZED VIEW v AS SELECT id FROM t WHERE at > now() - INTERVAL '1' SECOND;
"""


def at_ms(script: Script, tick: int, wall_ms: int, *ids_at: tuple[int, int]) -> dict[str, pa.Table]:
    """A step of one tick at a time in ms, with ids and their times."""
    rows = [((id_, datetime.fromtimestamp(ms / 1000, UTC)), tick, 1) for id_, ms in ids_at]
    return {"t": table_of(rows, arrow_schema(script.tables[0].columns)), CLOCK: clock([(tick, wall_ms)])}


@pytest.mark.parametrize("built", [False, True])
def test_executors_keep_rows_until_their_time_also_over_a_restart(
    built: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "RECENT_ROWS", 0)  # so that the driver has none
    made = parse(SECOND)
    with closing(engine_in(tmp_path, spark).open(made)) as opened:
        flow = opened.flow(made.views[0])
        assert isinstance(flow, SparkFlow)
        came = [at_ms(made, 1, 5000, each) for each in ((1, 4500), (2, 5000), (3, 3000))]
        if built:
            (first, *others), last = came[:-1], came[-1]
            out = [flow.step(each, 2, more=True) for each in (first, *others)] + [flow.step(last, 2)]
        else:
            out = [flow.step(at_ms(made, 1, 5000, (1, 4500), (2, 5000), (3, 3000)), 2)]
        assert sorted(update for each in out for update in updates_of(each)) == [((1,), 1, 1), ((2,), 1, 1)]
        assert flow.due_ms == 5500
        opened.checkpoint({"v": Binding(1, {0: 3}, 5000)})
        assert held_until(tmp_path) == [5500, 6000]
    with closing(engine_in(tmp_path, spark).open(made)) as opened:
        flow = opened.flow(made.views[0])
        assert flow.at == Binding(1, {0: 3}, 5000)
        assert flow.due_ms == 5500
        assert not list(updates_of(flow.step(at_ms(made, 2, 5499), 3)))
        assert list(updates_of(flow.step(at_ms(made, 3, 5500), 4))) == [((1,), 3, -1)]
        assert flow.due_ms == 6000
        assert list(updates_of(flow.step(at_ms(made, 4, 5600, (4, 5000)), 5))) == [((4,), 4, 1)]
        opened.checkpoint({"v": Binding(4, {0: 4}, 5600)})
        assert held_until(tmp_path) == [6000, 6000], "what is over is not merged"


def held_until(folder: Path) -> list[int]:
    """The ends in ms of spans of time that the runs in a folder hold."""
    tables = [pq.read_table(path) for path in folder.glob("*/*/*.parquet")]
    ends = [end for table in tables if "c2" in table.column_names for end in table.column("c2").to_pylist()]
    return sorted(end // 1000 for end in ends)


class Counting:
    """A client of the log that takes note of what the driver reads of the tables."""

    def __init__(self, log: Waltz, partition: int) -> None:
        self._log = log
        self._partition = partition
        self.seen: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def read(self, partition: int, start: int, stop: int) -> AsyncIterator[Any]:
        async for each in self._log.read(partition, start, stop):
            if partition == self._partition:
                self.seen.append(each.id)
            yield each


def script(partition: int) -> Script:
    return parse(f"""
CREATE TABLE t (k STRING, x BIGINT, d DECIMAL(12,2)) USING waltz OPTIONS (partitions '{partition}', diff 'true');
CREATE MATERIALIZED VIEW sums AS SELECT k, count(*) AS n, sum(x) AS s, avg(x) AS m, sum(d) AS d FROM t WHERE x <> 3
  GROUP BY k;
CREATE MATERIALIZED VIEW big AS SELECT k, s FROM sums WHERE s > 20;
""")


def row(number: int) -> bytes:
    """Some rows are taken back, some before they came; one cannot be read."""
    if number == ROWS // 2:
        return b'{"k": "a", "x": "many", "__diff": 1}'
    random = Random(number // 3 if number % 3 == 2 else number)
    made = {
        "k": random.choice(("a", "b", "", None)),
        "x": random.choice((3, 7, 2**53, None)),
        "d": random.choice((0.05, None)),
    }
    return json.dumps({**made, "__diff": -1 if number % 3 == 2 else 1}).encode()


class Life:
    """One process that keeps the views."""

    def __init__(self, log: Any, made: Script, places: tuple[int, int, int], epoch: int, engine: Engine) -> None:
        self.data, ticks, home = places
        self.log = Counting(log, self.data)
        self.ticks = Ticks(self.log, ticks, [self.data], lambda: 0)
        chains = Home(self.log, home)
        sinks = {v.name: ChainSink(chains, ticks, v, lambda: 0, lambda: f"{epoch}") for v in made.views}
        self.source = LogSource(self.log)
        self.views = ViewRunner([made], self.ticks, self.source, sinks, engine.open)
        self.epoch = epoch

    async def begin(self) -> None:
        await self.views.open()
        await self.views.step()
        await self.views.allow((1, self.epoch))
        await self.views.step()


async def chains_of(log: Waltz, home: int, made: Script) -> dict[str, list[tuple[Row, int, int]]]:
    chains = {view.name: Chain(view.name) for view in made.views}
    found: dict[str, list[tuple[Row, int, int]]] = {name: [] for name in chains}
    async for record in log.read(home, 0, await log.hwm(home) + 1):
        entry = decode(record.header, record.data) if record.header == CHAIN_HEADER else None
        assert entry is not None
        table = chains[entry.chain].take(entry)
        found[entry.chain] += updates_of(table) if table is not None else ()
    return {name: sorted(updates, key=repr) for name, updates in found.items()}


def test_executors_build_the_views_and_a_restart_opens_their_state(
    spark: SparkSession,
    servers: str,
    partitions: Callable[[int], list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Step by step the chains are those of DuckDB's state, and the driver reads no row of the log that was there."""
    monkeypatch.setattr(runs, "RECENT_ROWS", 0)  # so that runs are made and merged
    data, ticks, one, other = partitions(4)
    made = script(data)

    async def grow(log: Waltz, lives: list[Life], rows: int) -> None:
        for _ in range(rows):
            number = await log.hwm(data) + 1
            await log.append(data, row(number))
            await lives[0].ticks.mint()
            for life in lives:
                await life.views.step()

    async def play() -> None:
        async with Waltz([servers]) as log:
            written = await asyncio.gather(*(log.append(data, row(number)) for number in range(ROWS)))
            with closing(PlainEngine()) as duck:
                plain = Life(log, made, (data, ticks, other), 1, duck)
                await plain.ticks.fence((1, 1))
                await plain.ticks.mint()
                await plain.begin()
                place = Place((servers,))
                spark_life = Life(log, made, (data, ticks, one), 1, engine_in(tmp_path, spark, place))
                await spark_life.begin()
                assert set(spark_life.log.seen) == {written[ROWS // 2]}, "the bad row alone"
                assert spark_life.source.bad_count == plain.source.bad_count == 1
                await grow(log, [plain, spark_life], 1)
                await spark_life.views.close()
                again = Life(log, made, (data, ticks, one), 2, engine_in(tmp_path, spark, place))
                with caplog.at_level(logging.INFO, kept_state.__name__):
                    await again.begin()
                assert not [each for each in caplog.records if each.name == kept_state.__name__], caplog.text
                assert set(again.log.seen) == {ROWS}, "what is behind the checkpoint alone"
                await grow(log, [plain, again], 1)
                assert await chains_of(log, one, made) == await chains_of(log, other, made)
                assert all(not view.failure and view.upper > 1 for view in again.views.views)

    asyncio.run(play())


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    checkpoint_of(script(0), folder, spark)
    return folder


def checkpoint_of(made: Script, folder: Path, spark: SparkSession) -> None:
    with closing(engine_in(folder, spark).open(made)) as opened:
        rows = table_of([(("a", 1, None), 1, 1)], arrow_schema(made.tables[0].columns))
        assert opened.flow(made.views[0]).step({"t": rows}, 2).num_rows == 1
        opened.checkpoint({"sums": AT})


def manifest_of(folder: Path) -> Path:
    (found,) = folder.glob("*/manifest-*")
    return found


def cut(folder: Path) -> None:
    manifest_of(folder).write_text(manifest_of(folder).read_text()[:-5])
    without_sums(folder)


def without_a_run(folder: Path) -> None:
    for run in folder.glob("*/*/*.parquet"):
        run.unlink()


def flipped(folder: Path) -> None:
    for run in folder.glob("*/*/*.parquet"):
        run.write_bytes(run.read_bytes()[:-40] + bytes(40))


def truncated(folder: Path) -> None:
    for run in folder.glob("*/*/*.parquet"):
        run.write_bytes(run.read_bytes()[: run.stat().st_size // 2])


def older(folder: Path) -> None:
    """One of another version of the state: nobody else knows how that made its digests."""
    text = manifest_of(folder).read_text().partition(" ")[2]
    text = json.dumps({name: {**held, "digest": "0" * 64} for name, held in json.loads(text).items()})
    manifest_of(folder).write_text(f"{sha256(text.encode()).hexdigest()} {text}")
    without_sums(folder)


def newer(folder: Path) -> None:
    """One of a version that says other things."""
    text = json.dumps(["version 9"])
    manifest_of(folder).write_text(f"{sha256(text.encode()).hexdigest()} {text}")
    without_sums(folder)


def of_somebody_else(folder: Path) -> None:
    manifest_of(folder).rename(manifest_of(folder).with_name("part-0"))


def without_sums(folder: Path) -> None:
    """Let Hadoop take files as they are."""
    for crc in folder.rglob(".*.crc"):
        crc.unlink()


BAD: dict[str, Callable[[Path], None]] = {
    "no manifest": lambda folder: manifest_of(folder).unlink(),
    "a manifest that was cut": cut,
    "rows that are missing": without_a_run,
    "a damaged run": flipped,
    "a run that was cut": truncated,
    "one of an older version": older,
    "one of a newer version": newer,
    "files of somebody else": of_somebody_else,
}


@pytest.mark.parametrize("name", BAD)
def test_a_checkpoint_that_is_not_as_it_was_is_thrown_away_in_one_line(
    name: str, kept: Path, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, made = tmp_path / "state", script(0)
    shutil.copytree(kept, folder)
    with closing(engine_in(folder, spark).open(made)) as opened:
        assert opened.flow(made.views[0]).at == AT
    BAD[name](folder)
    with caplog.at_level(logging.INFO, kept_state.__name__), closing(engine_in(folder, spark).open(made)) as opened:
        assert opened.flow(made.views[0]).at is None
    assert [each.levelname for each in caplog.records if each.name == kept_state.__name__] == ["WARNING"], caplog.text
    assert not any(folder.glob("*/*"))


@pytest.mark.parametrize("sums", [True, False])
def test_a_death_in_a_checkpoint_costs_no_more_than_the_time_since_the_one_before(
    sums: bool, kept: Path, spark: SparkSession, tmp_path: Path
) -> None:
    folder, made = tmp_path / "state", script(0)
    shutil.copytree(kept, folder)
    whole = manifest_of(folder)
    whole.with_name("manifest-2").write_bytes(whole.read_bytes()[:100])
    if sums:
        shutil.copy(whole.with_name(f".{whole.name}.crc"), whole.with_name(".manifest-2.crc"))
    with closing(engine_in(folder, spark).open(made)) as opened:
        assert opened.flow(made.views[0]).at == AT
    assert manifest_of(folder) == whole


def test_state_of_another_log_is_named_in_one_line(
    kept: Path, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The runner finds out that ticks differ, and lets its flow forget."""
    folder, made = tmp_path / "state", script(0)
    shutil.copytree(kept, folder)
    with caplog.at_level(logging.INFO), closing(engine_in(folder, spark).open(made)) as opened:
        opened.flow(made.views[0]).forget()
        assert opened.flow(made.views[0]).at is None
    ours = [each.getMessage() for each in caplog.records if each.name.startswith("pavane.")]
    assert len(ours) == 1
    assert "view sums, of tick 1, is thrown away" in ours[0]


def test_a_checkpoint_of_another_plan_is_not_used(kept: Path, spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    shutil.copytree(kept, folder)
    made = parse(
        "CREATE TABLE t (k STRING, x BIGINT, d DECIMAL(12,2)) USING waltz OPTIONS (partitions '0', diff 'true');"
        "CREATE MATERIALIZED VIEW sums AS SELECT DISTINCT k FROM t"
    )
    with closing(engine_in(folder, spark).open(made)) as opened:
        assert opened.flow(made.views[0]).at is None
