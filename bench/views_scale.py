"""Views of many rows, built and stepped by DuckDB and by Spark, in one run (docs/specs/compute.md 16.3).

Spark's executors read the log, beside a plain batch query of the same SQL over the same log. DuckDB gets its rows from
memory, so what is measured is its state.
"""

import asyncio
import multiprocessing
import random
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from bench.options import Options
from bench.report import Measure, median_of, percentile
from bench.views import LOOK_S, VIEWS, Pipeline
from bench.waltz import Log
from pavane.dataflow.duckstate import DuckState, Files
from pavane.dataflow.ports import DIFF, TIME, Binding, Flow, Script
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from pavane.dataflow.views import Views
from pavane.waltz.client import Waltz
from pavane_cli import output

ROWS_EACH = 10_000
"""Of a transaction, 240 KB."""
ROWS_LEAST = 10 * ROWS_EACH
PIECE_ROWS = 100_000
"""Of a step of DuckDB while a view is built."""
TICK_ROWS, TICKS, WARM_UP = 100, 20, 3
MEMORY_MIB = 256
"""DuckDB's limit for a script; the rest is on disk."""
RESIDENT_MOST_MIB = 512.0
PER_S_LEAST, TICK_MOST_MS, ORDERED_MOST = 400_000, 50.0, 2.0
HYDRATION_MOST, HEAP_MOST, SPARK_TICK_MOST_MS, GROUPS_MOST = 1.5, 1.1, 1000.0, 1.5
RESTART_MOST_S, RESTART_PATIENCE_S = 30.0, 600.0
UNDER_WAY = 900
"""Appends of one row at once."""
APPENDS = 32
"""Under way at once."""
COLUMNS = "id BIGINT, x BIGINT"
SUMS = "SELECT id % {groups} AS k, count(*) AS n, sum(x) AS total FROM t GROUP BY 1"
EXTREMES = "SELECT id % {groups} AS k, min(x) AS least, max(x) AS most FROM t GROUP BY 1"
EXTREME_GROUPS = 100


def rows(start: int, stop: int, scale: int) -> pa.Table:
    """Rows of the table; the same numbers are the same rows. Ids meet each group in turn, in no order."""
    ids, values = f"(i * 7919) % {scale}", "(i * 104729) % 1000003"
    text = f"SELECT {ids} AS id, {values} AS x FROM range({start}, {stop}) r(i)"
    with duckdb.connect() as database:
        return database.sql(text).to_arrow_table()


def script(query: str, groups: int) -> Script:
    """One view of one table."""
    table = f"CREATE TABLE t ({COLUMNS}) USING waltz OPTIONS (partitions '0', format 'arrow');"
    return parse(f"{table} CREATE MATERIALIZED VIEW v AS {query.format(groups=groups)};")


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Measure both engines."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        loop = asyncio.get_running_loop()

        async def of(query: str, count: int, groups: int) -> Kept:
            return await loop.run_in_executor(pool, duck, folder, query, count, groups)

        small, large = options.rows // 100, options.rows
        summed = await of(SUMS, large, large // 10)
        first, last = [await of(EXTREMES, count, min(EXTREME_GROUPS, small)) for count in (small, large)]
        plain = [
            Measure(f"DuckDB: {large:,} rows into {large // 10:,} groups", summed.per_s, "/s", least=PER_S_LEAST),
            Measure("DuckDB: resident memory, at most", summed.resident_mib, "MiB", RESIDENT_MOST_MIB),
            median_of(f"DuckDB: tick of {TICK_ROWS} rows there, p50", "ms", summed.ticks_ms, TICK_MOST_MS),
            median_of(f"DuckDB: tick of min and max, {small:,} rows, p50", "ms", first.ticks_ms),
            median_of(f"DuckDB: tick of min and max, {large:,} rows, p50", "ms", last.ticks_ms),
            Measure("DuckDB: the second / the first", last.tick_ms / first.tick_ms, "", ORDERED_MOST),
        ]
        log = Log(folder / "log")
        log.start()
        try:
            await fill(log.address, options.rows)
            made = await loop.run_in_executor(pool, spark, folder, log.address, options)
        finally:
            log.stop()
    return [*plain, *made, await restarted(folder, options.updates)]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a view cost."""

    per_s: float
    resident_mib: float
    ticks_ms: list[float]

    @property
    def tick_ms(self) -> float:
        """The middle one."""
        return percentile(self.ticks_ms, 50)


def duck(folder: Path, query: str, count: int, groups: int) -> Kept:
    """Build a view with DuckDB's state in a file, then step it; in a process of its own, for its memory."""
    made = script(query, groups)
    state = DuckState(made, Files(folder / f"duck-{time.monotonic_ns()}", MEMORY_MIB))
    flow, took_s = state.flow(made.views[0]), 0.0
    for start in range(0, count, PIECE_ROWS):
        piece = at(rows(start, min(count, start + PIECE_ROWS), count), 1)
        began = time.perf_counter()
        flow.step({"t": piece}, 2, more=start + PIECE_ROWS < count)
        took_s += time.perf_counter() - began
    ticks_ms = list(stepped(flow, count))
    resident_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    state.close()
    return Kept(count / took_s, resident_mib, ticks_ms)


def at(table: pa.Table, tick: int) -> pa.Table:
    """Rows as updates of a tick."""
    times = pa.repeat(pa.scalar(tick, pa.uint64()), table.num_rows)
    return table.append_column(TIME, times).append_column(DIFF, pa.repeat(pa.scalar(1, pa.int64()), table.num_rows))


def stepped(flow: Flow, scale: int) -> Iterator[float]:
    """Yield the milliseconds of steps of a tick each, with rows of any group."""
    choose = random.Random(1)
    for number in range(WARM_UP + TICKS):
        kept = [(choose.randrange(scale), choose.randrange(1000)) for _ in range(TICK_ROWS)]
        made = pa.table({"id": [each for each, _ in kept], "x": [each for _, each in kept]})
        began = time.perf_counter()
        flow.step({"t": at(made, number + 2)}, number + 3)
        if number >= WARM_UP:
            yield (time.perf_counter() - began) * 1000


async def fill(address: str, count: int) -> None:
    """Put rows into the log."""
    schema = arrow_schema(script(SUMS, 1).tables[0].columns)
    async with Waltz([address]) as client:
        appends: list[Any] = []
        for start in range(0, count, ROWS_EACH):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, schema) as writer:
                writer.write_table(rows(start, min(count, start + ROWS_EACH), count))
            appends.append(client.append(0, bytes(sink.getvalue())))
            if len(appends) == APPENDS:
                await asyncio.gather(*appends)
                appends = []
        await asyncio.gather(*appends)


def spark(folder: Path, address: str, options: Options) -> list[Measure]:
    """Build views of a tenth of the rows and of all of them, few groups and many; in a process of its own."""
    from pavane.spark.engine import started  # noqa: PLC0415 - Spark is an extra
    from pavane.spark.session import builder  # noqa: PLC0415 - Spark is an extra

    session = started(builder("bench"))
    session.sparkContext.setLogLevel("ERROR")
    try:
        Executed.of(session, folder / "warm", address, min(options.rows, 10 * ROWS_EACH), 100, 1)
        few, many = options.rows // 100, options.rows // 10
        cases = [(options.rows // 10, few), (options.rows, few), (options.rows, many)]
        made = [
            Executed.of(session, folder / f"spark-{n}", address, *case, options.runs) for n, case in enumerate(cases)
        ]
    finally:
        session.stop()
    less, more, groups = made
    return [
        *(
            median_of(
                f"Spark: {count:,} rows into {into:,} groups / the plain batch query", "", each.ratios, HYDRATION_MOST
            )
            for (count, into), each in zip(cases, made, strict=True)
        ),
        Measure("Spark: rows built there", groups.per_s, "/s"),
        Measure(f"Spark: heap of the driver, {few:,} groups of {options.rows // 10:,} rows", less.heap_mib, "MiB"),
        Measure(f"Spark: the same of {options.rows:,} rows", more.heap_mib, "MiB"),
        Measure("Spark: the second / the first", more.heap_mib / less.heap_mib, "", HEAP_MOST),
        median_of(f"Spark: tick of {TICK_ROWS} rows, {few:,} groups, p50", "ms", more.ticks_ms, SPARK_TICK_MOST_MS),
        median_of(f"Spark: the same, {many:,} groups, p50", "ms", groups.ticks_ms, SPARK_TICK_MOST_MS),
        Measure("Spark: the second / the first", groups.tick_ms / more.tick_ms, "", GROUPS_MOST),
    ]


@dataclass(frozen=True, slots=True)
class Executed(Kept):
    """What a view on executors cost: `ratios` of its builds, each to the plain query before it."""

    ratios: list[float]
    heap_mib: float

    @classmethod
    def of(cls, session: Any, folder: Path, address: str, count: int, groups: int, runs: int) -> "Executed":
        """Build a view of the first rows of the log and step it."""
        from pavane.spark.engine import SparkEngine  # noqa: PLC0415 - Spark is an extra
        from pavane.spark.kept import Keeping  # noqa: PLC0415
        from pavane.spark.tables import Place  # noqa: PLC0415

        query, made, start = (
            SUMS.format(groups=groups),
            script(SUMS, groups),
            Binding(1, {0: -(-count // ROWS_EACH)}, 0),
        )
        plain = {"servers": address, "partition": 0, "format": "arrow", "minPartitions": 2,
                 "endingOffsets": f'{{"0": {start.next[0]}}}'}  # fmt: skip
        session.read.format("waltz").options(**plain).schema(COLUMNS).load().createOrReplaceTempView("t")
        ratios = []
        for number in range(runs):
            engine = SparkEngine(session, keeping=Keeping(f"{folder}-{number}"), place=Place((address,)))
            plain_s = seconds(lambda: session.sql(query).toArrow())
            state = engine.open(made)
            flow: Any = state.flow(made.views[0])
            took_s = seconds(partial(flow.build, start, {}))
            ratios.append(took_s / plain_s)
            output.note(f"Spark: {count:,} rows into {groups:,} groups: {took_s:.1f} s, plain {plain_s:.1f} s")
            if number + 1 < runs:
                state.close()
        heap_mib = heap_of(session)
        ticks_ms = list(stepped(flow, count))
        state.close()
        return cls(count / took_s, 0.0, ticks_ms, ratios, heap_mib)


async def restarted(folder: Path, count: int) -> Measure:
    """Kill the pipeline behind a log of so many transactions, each a row, and start it again from its checkpoint."""
    log = Log(folder / "transactions")
    table = f"CREATE TABLE t ({COLUMNS}) USING waltz OPTIONS (partitions '0');"
    text = f"{table} CREATE MATERIALIZED VIEW v AS {SUMS.format(groups=EXTREME_GROUPS)};"
    pipeline = Pipeline(folder, log.address, "spark", text, folder / "state")
    log.start()
    try:
        async with Waltz([log.address]) as client, asyncio.timeout(RESTART_PATIENCE_S):
            for start in range(0, count, UNDER_WAY):
                stop = min(count, start + UNDER_WAY)
                await asyncio.gather(
                    *(client.append(0, f'{{"id":{n},"x":{n % 997}}}'.encode()) for n in range(start, stop))
                )
            pipeline.start()
            await _has(client, count)
            while not any((folder / "state").glob("*/manifest-*")):
                await asyncio.sleep(LOOK_S)
            pipeline.kill()
            await client.append(0, b'{"id":0,"x":1}')
            began = time.monotonic()
            pipeline.start()
            await _has(client, count + 1)
            took_s = time.monotonic() - began
    finally:
        pipeline.stop()
        log.stop()
    return Measure(
        f"Spark: start behind {count:,} transactions, with a checkpoint → written", took_s, "s", RESTART_MOST_S
    )


async def _has(client: Waltz, count: int) -> None:
    """Wait until the view counts so many rows."""
    views = Views(client, VIEWS)
    try:
        while True:
            await views.read_on()
            held = views.readers.get("v")
            if (
                held is not None
                and held.tick >= 1
                and views.query("SELECT sum(n) AS n FROM v")[1].column(0).to_pylist() == [count]
            ):
                return
            await asyncio.sleep(LOOK_S)
    finally:
        views.close()


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def heap_of(session: Any) -> float:
    """The heap that is in use in the JVM, in MiB."""
    system, runtime = session._jvm.java.lang.System, session._jvm.java.lang.Runtime.getRuntime()
    for _ in range(2):  # what the first one finalizes the second one takes
        system.gc()
    return float(runtime.totalMemory() - runtime.freeMemory()) / 2**20
