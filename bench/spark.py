"""The log beside plain Spark on JSON files, and views beside a plain stream (docs/specs/compute.md 18).

Both have the same rows, the same Spark and the same cores. Runs of the two take turns, so that whatever else the
machine does befalls both.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.cluster import BenchError
from bench.machine import resident_mb
from bench.options import Options
from bench.report import Measure, latencies, median_of
from bench.views import Pipeline, children
from bench.waltz import Log
from pavane.dataflow.entries import Batch, Minted, decode
from pavane.dataflow.rows import table_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from pavane.dataflow.views import Views
from pavane.waltz.client import Waltz
from pavane_cli import output

ROWS = 1_000_000
CUSTOMERS = 100_000
ROWS_EACH = 1000
"""Of a transaction."""
JSON, ARROW, TICKS, VIEWS = range(4)
"""Partitions."""
COLUMNS = "id BIGINT, customer STRING, cents BIGINT"
TABLE = f"CREATE TABLE orders ({COLUMNS}) USING waltz OPTIONS (partitions '{JSON}');\n"
QUERY = "SELECT customer, count(*) AS n, sum(cents) AS total FROM orders GROUP BY customer"
ROUNDS, PEEKS = 20, 100
CHANGED = ROWS // 100
PAUSE_S = 0.5
PATIENCE_S = 300.0
LOOK_S = 0.002
JSON_LEAST, ARROW_LEAST = 0.8, 1.5
STREAM_MOST, CHANGE_MOST, PEEK_MS = 0.5, 0.2, 15.0
Read = Callable[[], None]


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Read, change, peek and wait."""
    files = folder / "files"
    files.mkdir()
    log = Log(folder / "log")
    log.start()
    try:
        async with Waltz([log.address]) as client:
            await _fill(client, files)
            with spark_session() as spark:
                reads = _reads(spark, files, log.address, options.runs)
                change = _change(spark, files)
                plain_mb = resident_mb(os.getpid()) + sum(map(resident_mb, children(os.getpid())))
                streamed_ms = await _stream(spark, folder)
            (folder / "large").mkdir()
            views = await _views(client, folder / "large", log.address, plain_mb)
    finally:
        log.stop()
    waits: dict[int, list[float]] = {}
    for count in (1, 10):
        waits[count] = await _latency(folder / f"views-{count}", count)
    ratio = _middle(waits[1]) / _middle(streamed_ms)
    return [
        *reads,
        change,
        *views,
        *latencies("file → result of a plain stream with default settings", streamed_ms, None, None),
        *latencies("append → written, 1 view", waits[1], None, None),
        *latencies("append → written, 10 views", waits[10], None, None),
        Measure("1 view / plain stream, p50", ratio, "", STREAM_MOST),
    ]


def _middle(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 2]


def _order(number: int) -> dict[str, Any]:
    return {"id": number, "customer": f"c{number * 7919 % CUSTOMERS}", "cents": number % 997}


async def _fill(client: Waltz, files: Path) -> None:
    """Put the same rows into both partitions and into files."""
    schema = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("cents", pa.int64())])
    appends = []
    for start in range(0, ROWS, ROWS_EACH):
        rows = [_order(number) for number in range(start, start + ROWS_EACH)]
        text = "\n".join(map(json.dumps, rows))
        with (files / f"{start * 8 // ROWS}.json").open("a", encoding="utf-8") as file:
            file.write(text + "\n")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_pylist(rows, schema))
        appends += [client.append(JSON, text.encode()), client.append(ARROW, bytes(sink.getvalue()))]
        if len(appends) >= 100:
            await asyncio.gather(*appends)
            appends = []
    await asyncio.gather(*appends)


@contextlib.contextmanager
def spark_session() -> Iterator[Any]:
    from pavane.spark.session import builder  # noqa: PLC0415 - Spark is an extra

    session = builder("bench").config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def _reads(spark: Any, files: Path, address: str, runs: int) -> list[Measure]:
    def ours(partition: int, form: str) -> Read:
        options = {"servers": address, "partition": partition, "format": form, "maxRecordsPerPartition": 1000}
        return lambda: _consume(spark.read.format("waltz").options(**options).schema(COLUMNS).load())

    contestants: dict[str, Read] = {
        "JSON files": lambda: _consume(spark.read.schema(COLUMNS).json(str(files))),
        "the log, JSON": ours(JSON, "json"),
        "the log, Arrow": ours(ARROW, "arrow"),
    }
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(runs + 1):
        for name, read in contestants.items():
            began = time.perf_counter()
            read()
            if number:  # the first one is warm-up
                rates[name].append(ROWS / (time.perf_counter() - began))
    measures = [median_of(f"rows read by Spark: {name}", "/s", found) for name, found in rates.items()]
    for name, least in (("the log, JSON", JSON_LEAST), ("the log, Arrow", ARROW_LEAST)):
        ratios = [ours / plain for ours, plain in zip(rates[name], rates["JSON files"], strict=True)]
        measures.append(Measure(f"{name} / JSON files", _middle(ratios), "", samples=ratios, least=least))
    return measures


def _consume(frame: Any) -> None:
    """Make every row with all of its columns, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def _change(spark: Any, files: Path) -> Measure:
    """One per cent of the rows comes: the step of the view beside the whole query."""
    from pavane.spark.engine import SparkEngine  # noqa: PLC0415 - Spark is an extra

    script = parse(f"{TABLE}CREATE MATERIALIZED VIEW revenue AS {QUERY}")
    flow = SparkEngine(spark).open(script).flow(script.views[0])
    schema = arrow_schema(script.tables[0].columns)

    def rows(start: int, count: int, tick: int) -> pa.Table:
        return table_of(((tuple(_order(n).values()), tick, 1) for n in range(start, start + count)), schema)

    for start in range(0, ROWS, ROWS // 10):
        flow.step({"orders": rows(start, ROWS // 10, 1)}, 2)
    ratios = []
    for number in range(3):
        new = rows(ROWS + number * CHANGED, CHANGED, number + 2)
        began = time.perf_counter()
        flow.step({"orders": new}, number + 3)
        step_s, began = time.perf_counter() - began, time.perf_counter()
        spark.read.schema(COLUMNS).json(str(files)).createOrReplaceTempView("orders")
        _consume(spark.sql(QUERY))
        ratios.append(step_s / (time.perf_counter() - began))
    return Measure(f"a change of 1 % of {ROWS:,} rows / the whole query", _middle(ratios), "", CHANGE_MOST, ratios)


async def _stream(spark: Any, folder: Path) -> list[float]:
    """Return the milliseconds from a new file to the batch that has it, in a plain stream."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "200")  # Spark's default
    incoming, made = folder / "incoming", folder / "made"
    incoming.mkdir()
    made.mkdir()
    seen: list[float] = []
    query = (
        session.readStream.schema(COLUMNS).json(str(incoming)).groupBy("customer").agg({"cents": "sum"})
        .writeStream.outputMode("update").option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(lambda frame, _: seen.append(time.perf_counter()) if frame.collect() else None).start()
    )  # fmt: skip
    waits: list[float] = []
    try:
        for number in range(ROUNDS + 1):
            file = made / f"{number}.json"
            file.write_text(json.dumps(_order(number)) + "\n", encoding="utf-8")
            count, began = len(seen), time.perf_counter()
            file.rename(incoming / file.name)
            while len(seen) == count:
                if not query.isActive:
                    raise BenchError(f"the plain stream ended: {query.exception()}")
                await asyncio.sleep(LOOK_S)
            if number:
                waits.append((seen[-1] - began) * 1000)
    finally:
        query.stop()
    return waits


async def _views(client: Waltz, folder: Path, address: str, plain_mb: float) -> list[Measure]:
    """A view of a million rows: how long until it is there, its memory, and how long a point query takes."""
    pipeline = _pipeline(folder, address, 1)
    began = time.monotonic()
    pipeline.start()
    try:
        views = Views(client, VIEWS)
        async with asyncio.timeout(PATIENCE_S):
            while "v0" not in views.readers or views.readers["v0"].tick < 1:
                await views.read_on()
                await asyncio.sleep(LOOK_S)
        first_s, ours_mb = time.monotonic() - began, pipeline.resident_mb()
        waits = []
        for _ in range(PEEKS):
            customer = f"c{random.randrange(CUSTOMERS)}"
            asked = time.perf_counter()
            await views.read_on()
            _, found = views.query(f"SELECT n, total FROM v0 WHERE customer = '{customer}'")
            waits.append((time.perf_counter() - asked) * 1000)
            if found.num_rows != 1:
                raise BenchError(f"{customer} has {found.num_rows} rows")
        views.close()
    finally:
        pipeline.stop()
    return [
        Measure(f"start → a view of {ROWS:,} rows is written", first_s, "s"),
        Measure("memory of all its processes / of plain Spark's", ours_mb / plain_mb, ""),
        *latencies(f"point query, {CUSTOMERS:,} rows", waits, PEEK_MS, None),
    ]


def _pipeline(folder: Path, address: str, count: int) -> Pipeline:
    views = "".join(f"CREATE MATERIALIZED VIEW v{number} AS {QUERY};\n" for number in range(count))
    return Pipeline(folder, address, "spark", TABLE + views)


async def _latency(folder: Path, count: int) -> list[float]:
    """Return the milliseconds from the call of an append until all of so many views are written with it."""
    log = Log(folder)
    log.start()
    pipeline = _pipeline(folder, log.address, count)
    pipeline.start()
    waits = []
    try:
        async with Waltz([log.address]) as client, asyncio.timeout(PATIENCE_S), _uppers(client) as including:
            for number in range(ROUNDS + 3):
                began = time.perf_counter()
                txid = await client.append(JSON, json.dumps(_order(number)).encode())
                while including(txid) < count:
                    await asyncio.sleep(LOOK_S)
                if number > 2:  # the first ones are warm-up
                    waits.append((time.perf_counter() - began) * 1000)
                await asyncio.sleep(PAUSE_S)
    finally:
        pipeline.stop()
        log.stop()
    output.note(f"{count} views: {_middle(waits):.0f} ms")
    return waits


@contextlib.asynccontextmanager
async def _uppers(client: Waltz) -> AsyncIterator[Callable[[int], int]]:
    """Follow ticks and chains; lend a function that says how many views have a transaction."""
    ticks: list[Minted] = []
    uppers: dict[str, int] = {}

    async def follow(partition: int) -> None:
        async for transaction in client.feed(partition):
            match decode(transaction.header, transaction.data):
                case Minted() as tick:
                    ticks.append(tick)
                case Batch() as batch:
                    uppers[batch.chain] = batch.upper

    def including(txid: int) -> int:
        tick = next((each.tick for each in ticks if each.next[JSON] > txid), None)
        return 0 if tick is None else sum(upper > tick for upper in uppers.values())

    tasks = [asyncio.create_task(follow(partition)) for partition in (TICKS, VIEWS)]
    try:
        yield including
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
