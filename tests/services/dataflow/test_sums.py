"""Sums, counts and averages of DuckDB's state at the ends of their ranges, against numbers without an end."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pavane.dataflow.duckflow import DuckFlow
from pavane.dataflow.duckstate import Files
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Binding, Script, ViewError
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema

SEEDS = 4
TICKS = 12
COLUMNS = "k STRING, i BIGINT, n DECIMAL(19,4), w DECIMAL(38,0), f DECIMAL(38,38), d DECIMAL(38,10)"
TABLE = f"CREATE TABLE t ({COLUMNS}) USING waltz OPTIONS (partitions '0', diff 'true');"
AGGREGATES = (
    "count(*) AS c, count(i) AS ci, sum(i) AS si, avg(i) AS ai, sum(n) AS sn, sum(w) AS sw, sum(f) AS sf, sum(d) AS sd"
)
WIDE = Context(prec=200)
MOST, LEAST = Decimal(10**38 - 1), Decimal(1 - 10**38)
VALUES: tuple[tuple[Any, ...], ...] = (
    (2**63 - 1, -(2**63), 2**53 + 1, 1, 0, None, -3),
    (Decimal("999999999999999.9999"), Decimal("-999999999999999.9999"), Decimal("0.0001"), None),
    (MOST, LEAST, Decimal(1), Decimal(10**19), Decimal(0), None),
    (MOST.scaleb(-38, WIDE), LEAST.scaleb(-38, WIDE), Decimal("1E-38"), None),
    (MOST.scaleb(-10, WIDE), LEAST.scaleb(-10, WIDE), Decimal("0.0000000001"), Decimal(-5), None),
)
ENDS = (
    (-(2**63), 2**63 - 1),
    None,
    (LEAST, MOST),
    (LEAST.scaleb(-38, WIDE), MOST.scaleb(-38, WIDE)),
    (LEAST.scaleb(-10, WIDE), MOST.scaleb(-10, WIDE)),
)


def script(query: str) -> Script:
    return parse(f"{TABLE}CREATE MATERIALIZED VIEW v AS {query}")


def mean(values: list[int]) -> float:
    """Rounded once."""
    exact = Fraction(sum(values), len(values))
    return exact.numerator / exact.denominator


def group(rows: list[Row]) -> Row | None:
    """What the aggregates of these rows are; None where one is out of range."""
    made: list[Any] = [len(rows)]
    for place, ends in enumerate(ENDS, 1):
        values = [row[place] for row in rows if row[place] is not None]
        if place == 1:
            made.append(len(values))
        total: Any = None
        for value in values:
            total = value if total is None else (total + value if place == 1 else WIDE.add(total, value))
        if total is not None and ends is not None and not ends[0] <= total <= ends[1]:
            return None
        made.append(total)
        if place == 1:
            made.append(mean(values) if values else None)
    return tuple(made)


def expected(rows: Counter[Row], kind: str) -> Counter[Row] | None:
    if kind == "once":
        return Counter({(row[0], row[2]): 1 for row in rows})
    keys = {row[0] for row in rows} if kind == "group" else {None}
    found = Counter[Row]()
    for key in keys:
        made = group([row for row in rows.elements() if kind != "group" or row[0] == key])
        if made is None:
            return None
        if kind == "group" and made[0] < 2:
            continue
        found[(key, *made) if kind == "group" else made] += 1
    return found


QUERIES = {
    "group": f"SELECT k, {AGGREGATES} FROM t GROUP BY k HAVING count(*) > 1",
    "whole": f"SELECT {AGGREGATES} FROM t",
    "once": "SELECT DISTINCT k, n FROM t",
}


def change(random: Random, there: Counter[Row]) -> tuple[Row, int]:
    """A row more or one less; few of them, so that groups end and sums fit now and then."""
    if there and random.random() < 0.45:
        row, diff = random.choice(sorted(there.elements(), key=repr)), -1
    else:
        key = random.choice(("a", "b", "", None))
        row, diff = (key, *(random.choice(values) for values in VALUES)), 1
    there[row] += diff
    if not there[row]:
        del there[row]
    return row, diff


def fits(there: Counter[Row]) -> bool:
    """Whether the sums of all rows fit, so those of the groups may not."""
    return expected(there, "whole") is not None and expected(there, "group") is not None


def history(random: Random) -> list[tuple[list[tuple[Row, int]], Counter[Row]]]:
    """Changes and rows of each tick. In between sums need not fit, at the end of a tick they do."""
    there, found = Counter[Row](), []
    for number in range(TICKS):
        while True:
            tried = Counter(there)
            changes = [change(random, tried) for _ in range(random.randrange(1, 6))]
            if number % 5 == 4:
                changes += [(row, -1) for row in tried.elements()]
                tried.clear()
            if fits(tried):
                break
        there = tried
        found.append((changes, Counter(there)))
    return found


@pytest.mark.parametrize("kind", QUERIES)
def test_every_tick_is_exact_at_the_ends_of_numbers(kind: str) -> None:
    """Over steps of several ticks, and over restarts with what was kept."""
    made = script(QUERIES[kind])
    for seed in range(SEEDS):
        random = Random(seed)
        ticks = history(random)
        with tempfile.TemporaryDirectory() as folder:
            files = Files(Path(folder), every_s=0.0)
            engine, held, start = PlainEngine(files), Counter[Row](), 1
            state = engine.open(made)
            flow = state.flow(made.views[0])
            assert isinstance(flow, DuckFlow)
            while start <= TICKS:
                end = min(TICKS, start + random.randrange(4)) + 1
                changes = [(row, tick, diff) for tick in range(start, end) for row, diff in ticks[tick - 1][0]]
                table = table_of(changes, arrow_schema(made.tables[0].columns))
                out = list(updates_of(flow.step({"t": table}, end)))
                first = start if start > 1 else end - 1  # who begins with nothing does not know of ticks before
                for tick in range(start, end):
                    for row, time, diff in out:
                        held[row] += diff * (time == tick)
                    if tick >= first or kind != "whole":
                        assert Counter({r: n for r, n in held.items() if n}) == expected(ticks[tick - 1][1], kind), (
                            seed,
                            tick,
                        )
                start = end
                if random.random() < 0.3:
                    state.checkpoint({"v": Binding(end - 1, {0: 0}, 0)})
                    engine.close()
                    engine = PlainEngine(files)
                    state = engine.open(made)
                    flow = state.flow(made.views[0])
                    assert flow.at == Binding(end - 1, {0: 0}, 0)
                    whole = Counter({row: diff for row, _, diff in updates_of(flow.contents(7))})
                    assert whole == Counter({r: n for r, n in held.items() if n})
            engine.close()


@pytest.mark.parametrize(
    ("aggregate", "value"),
    [("sum(w)", MOST), ("sum(d)", MOST.scaleb(-10, WIDE)), ("sum(i)", 2**62), ("sum(f)", Decimal("0.6"))],
)
def test_a_sum_out_of_range_ends_its_view_alone(aggregate: str, value: object) -> None:
    made = parse(
        f"{TABLE}CREATE MATERIALIZED VIEW v AS SELECT {aggregate} AS s FROM t;"
        "CREATE MATERIALIZED VIEW other AS SELECT count(*) AS n FROM t"
    )
    names = [column.name for column in made.tables[0].columns]
    row = tuple(value if name == aggregate[4] else None for name in names)
    table = table_of([(row, 1, 2)], arrow_schema(made.tables[0].columns))
    with closing(PlainEngine()) as engine:
        state = engine.open(made)
        with pytest.raises(ViewError, match="out of range"):
            state.flow(made.views[0]).step({"t": table}, 2)
        assert list(updates_of(state.flow(made.views[1]).step({"t": table}, 2)))[-1] == ((2,), 1, 1)


ROWS, KEY_BYTES, PIECES = 120_000, 400, 4


def test_a_state_that_is_larger_than_its_memory_is_on_the_disk_and_right(tmp_path: Path) -> None:
    made = parse(
        "CREATE TABLE t (k STRING, x BIGINT) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, sum(c) AS c, sum(s) AS s FROM "
        "(SELECT k, count(*) AS c, sum(x) AS s FROM t GROUP BY k) q"
    )
    memory_mib = 24
    assert 1.5 * memory_mib * 2**20 < ROWS * KEY_BYTES
    with closing(PlainEngine(Files(tmp_path, memory_mib, every_s=0.0))) as engine:
        flow = engine.open(made).flow(made.views[0])
        for piece in range(PIECES):
            numbers = range(piece * ROWS // PIECES, (piece + 1) * ROWS // PIECES)
            keys = pa.array([f"{number % (ROWS - 7):0{KEY_BYTES}}" for number in numbers])
            held = [keys, pa.array(numbers, pa.int64()), pa.repeat(pa.scalar(1, pa.uint64()), len(keys))]
            table = pa.table(
                [*held, pa.repeat(pa.scalar(1, pa.int64()), len(keys))], names=["k", "x", "__time", "__diff"]
            )
            out = flow.step({"t": table}, 2, more=piece < PIECES - 1)
        assert list(updates_of(out)) == [((ROWS - 7, ROWS, ROWS * (ROWS - 1) // 2), 1, 1)]


@pytest.mark.parametrize("files", [Files(None, 64, 16), Files(None, 64, scripts=4)], ids=["limit", "a share"])
def test_a_join_of_each_with_each_ends_where_its_disk_does(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = parse(
        "CREATE TABLE t (x STRING) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM (SELECT a.x || b.x AS y FROM t a CROSS JOIN t b) q;"
        "CREATE MATERIALIZED VIEW other AS SELECT count(*) AS n FROM t"
    )
    free = shutil.disk_usage(tmp_path)._replace(free=128 << 20)  # half of it, of four scripts
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    random, rows, disk_mib = Random(1), 300, 16
    texts = [((random.randbytes(512).hex(),), 1, 1) for _ in range(rows)]
    table = table_of(texts, arrow_schema(made.tables[0].columns))
    with closing(PlainEngine(replace(files, folder=tmp_path))) as engine:
        state = engine.open(made)
        with pytest.raises(ViewError, match=f"more memory than there is, and more disk beside it.*/{disk_mib}.0 MiB"):
            state.flow(made.views[0]).step({"t": table}, 2)
        assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < (2 * disk_mib) << 20
        assert list(updates_of(state.flow(made.views[1]).step({"t": table}, 2)))[-1] == ((rows,), 1, 1)


def test_a_long_log_leaves_no_more_behind_than_the_state(tmp_path: Path) -> None:
    """What a step made for itself ends with it, also where no checkpoint comes for long."""
    made = parse(
        "CREATE TABLE t (k STRING) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM (SELECT k FROM t) q"
    )
    rows, pieces, memory_mib = 2_000, 40, 16
    with closing(PlainEngine(Files(tmp_path, memory_mib, every_s=0.0))) as engine:
        flow = engine.open(made).flow(made.views[0])
        for piece in range(pieces):
            keys = [f"{piece * rows + number:0{KEY_BYTES}}" for number in range(rows)]
            table = table_of([((key,), 1, 1) for key in keys], arrow_schema(made.tables[0].columns))
            out = flow.step({"t": table}, 2, more=piece < pieces - 1)
            assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 4 << 20
        assert list(updates_of(out)) == [((rows * pieces,), 1, 1)]
