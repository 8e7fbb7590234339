"""Random changes of tables, and what a view must be after each tick: the whole query, evaluated anew."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot

from pavane.dataflow.ports import CLOCK, TIME, WALL, Column, Engine, Flow, Script, Table
from pavane.dataflow.rows import Row, canonical, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema

TABLES = """
CREATE TABLE orders (id BIGINT, customer STRING, cents BIGINT, price DECIMAL(12,2), weight DOUBLE, day DATE,
  at TIMESTAMP, paid BOOLEAN) USING waltz OPTIONS (partitions '0-1', diff 'true');
CREATE TABLE customers (name STRING, city STRING, limit_cents BIGINT) USING waltz OPTIONS (partitions '2', diff 'true');
"""
SHAPES = (  # one a line, as users write them
    "SELECT id, customer, cents * 2 - 1 AS twice FROM orders WHERE cents > 50 AND customer LIKE 'a%'",
    "SELECT customer, count(*) AS n, sum(cents) AS total FROM orders GROUP BY customer",
    "SELECT customer, sum(price) AS total, avg(cents) AS mean, max(day) AS last FROM orders GROUP BY customer",
    "SELECT count(*) AS n, sum(cents) AS total, min(at) AS first FROM orders",
    "SELECT customer, min(cents) AS least, max(price) AS most FROM orders WHERE paid GROUP BY customer",
    "SELECT day, count(DISTINCT customer) AS customers, count(cents) AS known FROM orders GROUP BY day",
    "SELECT customer, sum(weight) AS weight, avg(weight) AS mean FROM orders GROUP BY customer",
    "SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING count(*) > 2 AND sum(cents) IS NOT NULL",
    "SELECT DISTINCT customer, paid FROM orders",
    "SELECT o.id, o.cents, c.city FROM orders o JOIN customers c ON o.customer = c.name WHERE o.cents < c.limit_cents",
    "SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name AND c.limit_cents > 20",
    "SELECT c.city, count(*) AS n, sum(o.cents) AS total FROM orders o JOIN customers c ON o.customer = c.name "
    "GROUP BY c.city",
    "SELECT coalesce(c.city, 'none') AS city, sum(o.cents) AS total FROM orders o LEFT JOIN customers c "
    "ON o.customer = c.name GROUP BY coalesce(c.city, 'none')",
    "SELECT id, cents FROM orders ORDER BY cents DESC, id LIMIT 4",
    "SELECT customer, sum(cents) AS total FROM orders GROUP BY customer ORDER BY sum(cents) DESC, customer LIMIT 2 "
    "OFFSET 1",
    "SELECT CASE WHEN cents % 3 = 0 THEN 'third' WHEN paid THEN 'paid' ELSE upper(customer) END AS kind, "
    "count(*) AS n, sum(cents) / count(*) AS mean FROM orders GROUP BY 1",
    "SELECT year(day) AS y, month(at) AS m, sum(cents) + count(*) AS x FROM orders WHERE day IS NOT NULL "
    "GROUP BY year(day), month(at)",
    "SELECT customer || '-' || CAST(id AS STRING) AS name, length(customer) AS letters, price * cents AS value "
    "FROM orders WHERE NOT (paid AND cents BETWEEN 10 AND 60) OR customer IN ('ann', 'bob')",
    "SELECT customer, cents AS most FROM orders WHERE paid UNION ALL SELECT name, limit_cents FROM customers UNION ALL "
    "SELECT customer, max(cents) AS most FROM orders GROUP BY customer",
    # Joins of more than two.
    "SELECT o.id, c.city, l.name FROM orders o JOIN customers c ON o.customer = c.name LEFT JOIN customers l "
    "ON l.limit_cents = o.cents AND l.city <> 'bob' WHERE coalesce(l.limit_cents, 0) < 90",
    "SELECT o.id, c.city, d.name FROM orders o LEFT JOIN customers c ON o.customer = c.name LEFT JOIN customers d "
    "ON c.city = d.name",
    "SELECT c.city, count(*) AS n, sum(o.cents) AS total FROM orders o JOIN customers c ON o.customer = c.name "
    "JOIN customers d ON d.city = c.city JOIN orders p ON p.id = o.id AND p.paid GROUP BY c.city",
    # Inner SELECTs.
    "SELECT o.id, o.cents, s.n, s.total FROM orders o JOIN (SELECT customer, count(*) AS n, sum(cents) AS total "
    "FROM orders GROUP BY customer) s ON s.customer = o.customer WHERE o.cents * s.n > s.total",
    "WITH sums AS (SELECT customer, sum(cents) AS total FROM orders GROUP BY customer), most AS (SELECT max(total) AS "
    "total FROM sums) SELECT sums.customer, sums.total FROM sums JOIN most ON sums.total = most.total",
    "SELECT name, n FROM (SELECT customer AS name, count(*) AS n FROM orders GROUP BY customer UNION SELECT name, "
    "limit_cents FROM customers) u ORDER BY n DESC, name LIMIT 3",
    "SELECT id, customer FROM orders WHERE customer IN (SELECT name FROM customers WHERE limit_cents > 30) "
    "AND cents > 10 AND id IN (SELECT max(id) AS id FROM orders GROUP BY day)",
    "SELECT c.city, count(*) AS n FROM orders o LEFT JOIN customers c ON o.customer = c.name "
    "WHERE o.cents IN (SELECT limit_cents FROM customers) GROUP BY c.city",
)  # fmt: skip
TIMED = (
    "SELECT id, at FROM orders WHERE at > now() - INTERVAL '250' HOUR",
    "SELECT id FROM orders WHERE at BETWEEN now() - INTERVAL 1000 HOURS AND current_timestamp() AND cents > 20",
    "SELECT customer, count(*) AS n, max(cents) AS most, sum(weight) AS w FROM orders "
    "WHERE now() >= at - INTERVAL '0.000007' SECOND GROUP BY customer",
    "SELECT count(*) AS n, min(cents) AS least FROM orders WHERE (now() - INTERVAL 20 DAYS) < day AND paid",
    "SELECT id FROM orders WHERE at - INTERVAL '0.000007' SECOND < now() AND day + INTERVAL '90' DAY >= now()",
    "SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name "
    "WHERE o.at > now() AND coalesce(c.limit_cents, 0) < 60",
    "SELECT o.id, c.name FROM customers c LEFT JOIN (SELECT id, customer FROM orders WHERE at <= now()) o "
    "ON o.customer = c.name",
    "SELECT name FROM customers WHERE NOT EXISTS (SELECT 1 FROM orders WHERE customer = name AND at > now())",
    "WITH late AS (SELECT id, customer, cents FROM orders WHERE at < now()) SELECT customer, id, "
    "row_number() OVER (PARTITION BY customer ORDER BY cents, id) AS r FROM late",
    "SELECT DISTINCT customer FROM orders WHERE at < now() UNION ALL SELECT name FROM customers",
    "SELECT id, cents FROM orders WHERE at >= now() - INTERVAL '1' WEEK ORDER BY cents DESC, id LIMIT 3",
    "SELECT customer, paid, count(*) AS n FROM orders WHERE at > now() GROUP BY GROUPING SETS (customer, paid)",
    "SELECT count(*) AS n FROM orders WHERE now() < DATE '2026-02-01'",
)  # fmt: skip
"""The same, with `now()`."""
HOUR_MS = 3_600_000
FIRST_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000) - 500 * HOUR_MS


@dataclass(slots=True)
class Changes:
    """Inserts, deletes and updates of the tables' rows, tick by tick."""

    random: Random
    tables: dict[str, Table]
    contents: dict[str, Counter[Row]] = field(default_factory=dict)

    def tick(self, time: int) -> dict[str, list[tuple[Row, int, int]]]:
        """Return the updates of the next tick."""
        changes: dict[str, list[tuple[Row, int, int]]] = {}
        for name, table in self.tables.items():
            held = self.contents.setdefault(name, Counter())
            made = changes[name] = []
            for _ in range(self.random.randrange(5)):
                if held and self.random.random() < 0.45:
                    row = self.random.choice(sorted(held, key=repr))
                    held[row] -= 1
                    if not held[row]:
                        del held[row]
                    made.append((row, time, -1))
                else:
                    row = tuple(self.value(column) for column in table.columns)
                    held[row] += 1
                    made.append((row, time, 1))
        return changes

    def value(self, column: Column) -> Any:
        """Return a value of a column; few different ones, so that groups and keys meet."""
        random = self.random
        if random.random() < 0.12:
            return None
        match column.type.partition("(")[0]:
            case "STRING":
                return random.choice(("ann", "bob", "alf", "zoe"))
            case "DECIMAL":
                return Decimal(random.randrange(-300, 900)).scaleb(-2)
            case "DOUBLE":
                return canonical(random.choice((0.1, 0.2, 1e6, -3.75, 3.5, 0.0, 7.25)))
            case "DATE":
                return date(2026, 1, 1) + timedelta(days=31 * random.randrange(4))
            case "TIMESTAMP":
                return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=500 * random.randrange(5), microseconds=7)
            case "BOOLEAN":
                return random.random() < 0.5
            case _:
                return random.randrange(100)


def script(shape: str) -> Script:
    """Return the script of one query over both tables."""
    return parse(f"{TABLES}CREATE MATERIALIZED VIEW v AS {shape}")


def expected(shape: Script, contents: dict[str, Counter[Row]], wall_ms: int = 0) -> Counter[Row]:
    """Return the whole query's rows over the tables as they are, evaluated by DuckDB."""
    connection = _connection()
    for table in shape.tables:
        rows = [row for row, count in contents.get(table.name, Counter()).items() for _ in range(count)]
        schema = arrow_schema(table.columns)
        arrays = [pa.array([row[i] for row in rows], each.type) for i, each in enumerate(schema)]
        plain = pa.table(arrays, schema=schema)
        for place, each in enumerate(schema):
            if pa.types.is_timestamp(each.type):
                plain = plain.set_column(place, each.name, plain.column(place).cast(pa.timestamp("us")))
        connection.register(table.name, plain)
    view = shape.views[0]
    now = f"TIMESTAMP '{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}'"
    sql = view.sql.replace("CURRENT_TIMESTAMP()", now)
    found = connection.sql(sqlglot.transpile(sql, read="spark", write="duckdb")[0]).to_arrow_table()
    schema = arrow_schema(view.columns)
    whole = table_of(((row, 0, 1) for row in zip(*(c.to_pylist() for c in found.columns), strict=True)), schema)
    return Counter(row for row, _, _ in updates_of(whole))


@cache
def _connection() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET timezone = 'UTC'")
    return connection


def rounded(rows: Counter[Row]) -> Counter[Row]:
    """Return rows with doubles as precise as the oracle's, which adds them up in the order in which they come."""
    return Counter({tuple(_rounded(value) for value in row): count for row, count in rows.items()})


def _rounded(value: Any) -> Any:
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.9g}")
    return value


def steps(random: Random, ticks: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of ticks, some of one tick, some of many; a view is built at one tick, so the first is of one."""
    start = 1
    while start <= ticks:
        end = min(ticks + 1, start + random.choice((1, 1, 2, 5, 9))) if start > 1 else 2
        yield start, end
        start = end


def wrong_ticks(shape: str, seed: int, engine: Engine, ticks: int = 24) -> list[int]:
    """Play random changes through the flow of a query; return the ticks at which the view is not what it must be."""
    made = script(shape)
    random = Random(seed)
    changes = Changes(random, {table.name: table for table in made.tables})
    with closing(engine.open(made)) as state:
        return _wrong_ticks(made, random, changes, state.flow(made.views[0]), ticks)


def clock(walls: Sequence[tuple[int, int]]) -> pa.Table:
    """Return ticks and their wall time as a flow reads them."""
    ticks, walls_ms = zip(*walls, strict=True)
    return pa.table({TIME: pa.array(ticks, pa.uint64()), WALL: pa.array(walls_ms, pa.int64())})


def _wrong_ticks(made: Script, random: Random, changes: Changes, flow: Flow, ticks: int) -> list[int]:
    held, wrong, wall_ms = Counter[Row](), list[int](), FIRST_MS
    timed = CLOCK in made.views[0].tables
    for start, end in steps(random, ticks):
        inputs: dict[str, list[tuple[Row, int, int]]] = {table.name: [] for table in made.tables}
        wanted, walls = {}, list[tuple[int, int]]()
        for tick in range(start, end):
            for name, updates in changes.tick(tick).items():
                inputs[name] += updates
            wall_ms += HOUR_MS * random.choice((0, 50, 100, 250)) if timed else 0
            walls.append((tick, wall_ms))
            wanted[tick] = expected(made, changes.contents, wall_ms)
        tables = {table.name: table_of(inputs[table.name], arrow_schema(table.columns)) for table in made.tables}
        if timed:
            tables[CLOCK] = clock(walls)
        out = sorted(updates_of(flow.step(tables, end)), key=lambda update: update[1])
        for tick in range(start, end):
            for row, time, diff in out:
                if time == tick:
                    held[row] += diff
                    if not held[row]:
                        del held[row]
            if rounded(held) != rounded(wanted[tick]):
                wrong.append(tick)
    return wrong
