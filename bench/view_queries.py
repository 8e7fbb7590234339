"""TPC-H and NEXMark as views of one engine: how fast they are built, what they keep, a tick beside the whole query."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot

from bench.options import Options
from bench.report import Measure, median_of
from bench.views_scale import seconds
from pavane.dataflow.duckstate import Files
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Binding, Engine, Flow, Script
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from pavane_cli import output
from tests.services.dataflow import nexmark, tpch
from tests.services.dataflow.oracle import rounded

SCALE, EVENTS = 200, 42_000
"""Of TPC-H's tables, which have 42,000 rows then, and NEXMark's first events."""
TICKS, WARM_UP = 5, 1
ORDERS, MORE_EVENTS = 10, 100
"""New in a tick; with what changes that is about 100 rows."""
PIECE_ROWS = 50_000
"""Of a step while a view is built."""
Updates = list[tuple[str, Row, int]]


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Build and step each of the queries."""
    with _engine(folder, options.engine) as (engine, session):
        return [measure for kept in _all(folder, engine, session) for measure in kept]


@contextlib.contextmanager
def _engine(folder: Path, name: str) -> Iterator[tuple[Engine, Any]]:
    if name == "plain":
        yield PlainEngine(Files(folder / "state", every_s=0.0)), None
        return
    from pavane.spark.engine import SparkEngine, started  # noqa: PLC0415 - Spark is an extra
    from pavane.spark.kept import Keeping  # noqa: PLC0415
    from pavane.spark.session import builder  # noqa: PLC0415

    session = started(builder("bench"))
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield SparkEngine(session, keeping=Keeping(str(folder / "state"), every_s=0.0)), session
    finally:
        session.stop()


def _all(folder: Path, engine: Engine, session: Any) -> Iterator[list[Measure]]:
    made = tpch.changes(Random(1), 2 * (TICKS + WARM_UP), SCALE, ORDERS)
    half = TICKS + WARM_UP
    stream = [[each for tick in made[:half] for each in tick], *made[half:]]
    for number, query in enumerate(tpch.QUERIES, 1):
        yield _measured(f"TPC-H {number}", folder, _script(tpch.TABLES, query), stream, engine, session)
    stream = nexmark.changes(Random(1), 1 + TICKS + WARM_UP, MORE_EVENTS, EVENTS)
    for number, query in enumerate(nexmark.QUERIES):
        yield _measured(f"NEXMark {number}", folder, _script(nexmark.TABLES, query), stream, engine, session)


def _script(tables: str, query: str) -> Script:
    return parse(f"{tables}CREATE MATERIALIZED VIEW v AS {query}")


@dataclass(slots=True)
class _Played:
    """What a view is, by the updates that it told."""

    flow: Flow
    script: Script
    held: Counter[Row]

    def step(self, updates: Updates, tick: int, *, more: bool = False) -> float:
        """Make a step of one tick; return its seconds."""
        inputs = {
            each.name: table_of(
                [(row, tick, diff) for name, row, diff in updates if name == each.name], arrow_schema(each.columns)
            )
            for each in self.script.tables
        }
        began = time.perf_counter()
        out = self.flow.step(inputs, tick + 1, more=more)
        took_s = time.perf_counter() - began
        for row, _, diff in updates_of(out):
            self.held[row] += diff
        return took_s


def _measured(
    name: str, folder: Path, script: Script, stream: list[Updates], engine: Engine, session: Any
) -> list[Measure]:
    read = {table for table in script.views[0].tables}
    ticks = [[each for each in tick if each[0] in read] for tick in stream]
    state = engine.open(script)
    played = _Played(state.flow(script.views[0]), script, Counter())
    first = ticks[0]
    starts = range(0, len(first), PIECE_ROWS)
    built_s = sum(played.step(first[at : at + PIECE_ROWS], 1, more=at != starts[-1]) for at in starts)
    ticks_ms = [played.step(tick, number) * 1000 for number, tick in enumerate(ticks[1:], 2)][WARM_UP:]
    if state.due:
        state.checkpoint({"v": Binding(len(ticks), {0: 0}, 0)})
    size = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    state.close()
    whole: Counter[tuple[str, Row]] = Counter()
    for table, row, diff in (each for tick in ticks for each in tick):
        whole[table, row] += diff
    again_ms, wanted = _whole(script, +whole, session)
    wrong = int(rounded(+played.held) != rounded(wanted))
    output.note(f"| {name} | {len(first) / built_s:,.0f} | {size / 2**20:.1f} | {sorted(ticks_ms)[TICKS // 2]:.0f} | "
                f"{again_ms:.0f} |{' WRONG' if wrong else ''}")  # fmt: skip
    for each in sorted(folder.rglob("*"), reverse=True):
        each.rmdir() if each.is_dir() else each.unlink()
    return [
        Measure(f"{name}: rows built", len(first) / built_s, "/s"),
        Measure(f"{name}: state on disk", size / 2**20, "MiB"),
        median_of(f"{name}: tick of about 100 rows, p50", "ms", ticks_ms),
        Measure(f"{name}: the whole query", again_ms, "ms"),
        Measure(f"{name}: wrong in the end", wrong, "", 0, vital=True),
    ]


def _whole(script: Script, rows: Counter[tuple[str, Row]], session: Any) -> tuple[float, Counter[Row]]:
    """Evaluate the whole query; return the milliseconds, and the rows as DuckDB has them."""
    database = duckdb.connect()
    view = script.views[0]
    for table in script.tables:
        schema = arrow_schema(table.columns)
        held = [row for (name, row), count in rows.items() if name == table.name for _ in range(count)]
        arrays = [pa.array([row[place] for row in held], each.type) for place, each in enumerate(schema)]
        database.register("rows", pa.table(arrays, schema=schema))
        database.execute(f"CREATE TABLE {table.name} AS SELECT * FROM rows")
        if session is not None:
            frame = session.createDataFrame(pa.table(arrays, schema=schema)).cache()
            frame.createOrReplaceTempView(table.name)
            frame.count()
    text = sqlglot.transpile(view.sql, read="spark", write="duckdb")[0]
    took_s = seconds(lambda: database.sql(text).to_arrow_table())
    found = database.sql(text).to_arrow_table()
    database.close()
    if session is not None:
        took_s = seconds(lambda: session.sql(view.sql).toArrow())
        session.catalog.clearCache()
    answer: Iterable[Row] = zip(*(column.to_pylist() for column in found.columns), strict=True)
    made = table_of(((row, 0, 1) for row in answer), arrow_schema(view.columns))
    return took_s * 1000, Counter(row for row, _, _ in updates_of(made))
