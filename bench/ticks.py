"""What views must be at every tick: their queries, evaluated by plain Spark over the rows that the log had then."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pavane.dataflow.chain import Chain
from pavane.dataflow.entries import Minted, decode
from pavane.dataflow.rows import Row, updates_of
from pavane.waltz.client import Waltz

EVERYTHING = 2**40
TABLES = """
CREATE TABLE orders (id BIGINT, customer STRING, cents BIGINT, price DECIMAL(12,2), day DATE, paid BOOLEAN)
  USING waltz OPTIONS (partitions '0', diff 'true');
CREATE TABLE customers (name STRING, city STRING, limit_cents BIGINT) USING waltz OPTIONS (partitions '1', diff 'true');
"""
COLUMNS = {
    "orders": "id BIGINT, customer STRING, cents BIGINT, price DECIMAL(12,2), day DATE, paid BOOLEAN",
    "customers": "name STRING, city STRING, limit_cents BIGINT",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """A query, and the same at all ticks at once.

    There the tables have a column `tick` more, and a row stands at each tick at which it is in the table. `ticks` has
    all of them.
    """

    sql: str
    at_ticks: str


SHAPES: Mapping[str, Shape] = {
    "chosen": Shape(
        "SELECT id, cents * 2 - 1 AS twice FROM orders WHERE cents > 800 AND customer LIKE 'c1%'",
        "SELECT tick, id, cents * 2 - 1 FROM orders WHERE cents > 800 AND customer LIKE 'c1%'",
    ),
    "revenue": Shape(
        "SELECT customer, count(*) AS n, sum(cents) AS total FROM orders GROUP BY customer",
        "SELECT tick, customer, count(*), sum(cents) FROM orders GROUP BY tick, customer",
    ),
    "extremes": Shape(
        "SELECT paid, min(cents) AS least, max(price) AS most, avg(cents) AS mean FROM orders GROUP BY paid",
        "SELECT tick, paid, min(cents), max(price), avg(cents) FROM orders GROUP BY tick, paid",
    ),
    "whole": Shape(
        "SELECT count(*) AS n, sum(price) AS total, max(day) AS last FROM orders",
        "SELECT t.tick, count(o.id), sum(o.price), max(o.day) FROM ticks t LEFT JOIN orders o ON o.tick = t.tick "
        "GROUP BY t.tick",
    ),
    "per_day": Shape(
        "SELECT day, count(DISTINCT customer) AS customers, count(cents) AS known FROM orders GROUP BY day",
        "SELECT tick, day, count(DISTINCT customer), count(cents) FROM orders GROUP BY tick, day",
    ),
    "frequent": Shape(
        "SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING count(*) > 12",
        "SELECT tick, customer, count(*) FROM orders GROUP BY tick, customer HAVING count(*) > 12",
    ),
    "seen": Shape(
        "SELECT DISTINCT customer, paid FROM orders",
        "SELECT DISTINCT tick, customer, paid FROM orders",
    ),
    "placed": Shape(
        "SELECT o.id, c.city FROM orders o JOIN customers c ON o.customer = c.name WHERE o.cents < c.limit_cents",
        "SELECT o.tick, o.id, c.city FROM orders o JOIN customers c ON o.customer = c.name AND o.tick = c.tick "
        "WHERE o.cents < c.limit_cents",
    ),
    "unplaced": Shape(
        "SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name AND c.limit_cents > 500",
        "SELECT o.tick, o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name AND o.tick = c.tick "
        "AND c.limit_cents > 500",
    ),
    "cities": Shape(
        "SELECT c.city, count(*) AS n, sum(o.cents) AS total FROM orders o JOIN customers c ON o.customer = c.name "
        "GROUP BY c.city",
        "SELECT o.tick, c.city, count(*), sum(o.cents) FROM orders o JOIN customers c "
        "ON o.customer = c.name AND o.tick = c.tick GROUP BY o.tick, c.city",
    ),
    "greatest": Shape(
        "SELECT id, cents FROM orders ORDER BY cents DESC, id LIMIT 5",
        "SELECT tick, id, cents FROM (SELECT tick, id, cents, "
        "row_number() OVER (PARTITION BY tick ORDER BY cents DESC, id) AS place FROM orders) WHERE place <= 5",
    ),
    "kinds": Shape(
        "SELECT CASE WHEN cents % 3 = 0 THEN 'third' WHEN paid THEN 'paid' ELSE upper(customer) END AS kind, "
        "count(*) AS n, sum(cents) / count(*) AS mean FROM orders GROUP BY 1",
        "SELECT tick, CASE WHEN cents % 3 = 0 THEN 'third' WHEN paid THEN 'paid' ELSE upper(customer) END, "
        "count(*), sum(cents) / count(*) FROM orders GROUP BY 1, 2",
    ),
}


@dataclass(slots=True)
class Oracle:
    """The tables at every tick, from the log alone."""

    bindings: list[Minted]
    versions: dict[str, list[dict[str, Any]]]
    """Rows as JSON has them, with the ticks `born` and `died` between which they were in the table."""
    broken: int
    compared: int = field(default=0)

    @property
    def ticks(self) -> int:
        """How many there are."""
        return len(self.bindings)

    @classmethod
    async def read(cls, log: Waltz, tables: Mapping[str, Sequence[int]], ticks_in: int) -> "Oracle":
        """Read ticks and tables. The tables' rows are objects, or lists of them, with `__diff`."""
        entries = [decode(each.header, each.data) async for each in log.read(ticks_in, 0, EVERYTHING)]
        bindings = [entry for entry in entries if isinstance(entry, Minted)]
        broken = sum(entry.tick != number for number, entry in enumerate(bindings, 1))
        versions = {}
        for name, partitions in tables.items():
            changes = [change for p in partitions async for change in _changes(log, p, bindings)]
            versions[name] = _versions(changes, bindings[-1].tick + 1)
        return cls(bindings, versions, broken)


async def _changes(log: Waltz, partition: int, bindings: Sequence[Minted]) -> Any:
    """Yield the tick at which a change counts, the row as text, and its diff."""
    following = iter(bindings)
    binding = next(following)
    async for transaction in log.read(partition, 0, EVERYTHING):
        while transaction.id >= binding.next[partition]:
            following_binding = next(following, None)
            if following_binding is None:
                return  # no tick has it
            binding = following_binding
        document = json.loads(transaction.data)
        for row in document if isinstance(document, list) else [document]:
            diff = row.pop("__diff", 1)
            yield binding.tick, json.dumps(row, sort_keys=True), diff


def _versions(changes: Sequence[tuple[int, str, int]], end: int) -> list[dict[str, Any]]:
    alive: dict[str, list[int]] = defaultdict(list)
    found = []
    for tick, row, diff in sorted(changes, key=lambda change: change[0]):
        if diff > 0:
            alive[row] += [tick] * diff
            continue
        for _ in range(-diff):
            born = alive[row].pop()
            if born < tick:
                found.append({**json.loads(row), "born": born, "died": tick})
    found += [{**json.loads(row), "born": tick, "died": end} for row, ticks in alive.items() for tick in ticks]
    return found


async def wrong_ticks(
    oracle: Oracle,
    log: Waltz,
    views_in: int,
    say: Callable[[str], None],
    shapes: Mapping[str, Shape] = SHAPES,
    columns: Mapping[str, str] = COLUMNS,
) -> list[tuple[str, int]]:
    """Return the views and ticks at which a chain had other rows than its query, said by plain Spark."""
    chains = {name: Chain(name) for name in shapes}
    updates: dict[str, list[tuple[Row, int, int]]] = {name: [] for name in shapes}
    async for transaction in log.read(views_in, 0, EVERYTHING):
        entry = decode(transaction.header, transaction.data)
        if entry is None:
            raise ValueError(f"transaction {transaction.id} of the views' partition is no entry of a chain")
        table = chains[entry.chain].take(entry)
        updates[entry.chain] += updates_of(table) if table is not None else ()
    wrong: list[tuple[str, int]] = []
    with _spark(oracle, columns) as evaluate:
        for name, shape in shapes.items():
            wanted = evaluate(shape.at_ticks)
            held: Counter[Row] = Counter()
            changes: dict[int, list[tuple[Row, int]]] = defaultdict(list)
            for row, tick, diff in updates[name]:
                changes[tick].append((row, diff))
            chain, found = chains[name], 0
            if chain.created is None:
                raise ValueError(f"the view {name} was never written")
            end = min(chain.upper, oracle.ticks + 1)  # others may have come since
            for tick in range(chain.created.as_of, end):
                for row, diff in changes[tick]:
                    held[row] += diff
                    if not held[row]:
                        del held[row]
                oracle.compared += 1
                if held != wanted.get(tick, Counter()):
                    wrong.append((name, tick))
                    found += 1
            changed = sum(map(len, changes.values()))
            say(f"{name}: {end - chain.created.as_of} ticks, {changed} changes, {found} ticks wrong")
    return wrong


class _spark:
    """Plain Spark over the tables at every tick."""

    def __init__(self, oracle: Oracle, columns: Mapping[str, str]) -> None:
        from pavane.spark.session import builder  # noqa: PLC0415 - Spark is an extra

        self._session = builder("oracle").config("spark.ui.showConsoleProgress", "false").getOrCreate()
        self._session.sparkContext.setLogLevel("ERROR")
        session = self._session
        ticks = pa.table({"tick": pa.array([entry.tick for entry in oracle.bindings], pa.int64())})
        session.createDataFrame(ticks).createOrReplaceTempView("ticks")
        for name, rows in oracle.versions.items():
            lines = session.createDataFrame(pa.table({"value": pa.array([json.dumps(row) for row in rows])}))
            schema = f"{columns[name]}, born BIGINT, died BIGINT"
            parsed = lines.selectExpr(f"from_json(value, '{schema}') AS row").select("row.*")
            parsed.createOrReplaceTempView(f"{name}_versions")
            at = session.sql(
                f"SELECT t.tick, v.* FROM ticks t JOIN {name}_versions v ON v.born <= t.tick AND t.tick < v.died"
            )
            at.drop("born", "died").cache().createOrReplaceTempView(name)

    def __enter__(self) -> Callable[[str], dict[int, Counter[Row]]]:
        return self._evaluate

    def __exit__(self, *_: object) -> None:
        self._session.stop()

    def _evaluate(self, sql: str) -> dict[int, Counter[Row]]:
        table = self._session.sql(sql).toArrow()
        found: dict[int, Counter[Row]] = defaultdict(Counter)
        for tick, *row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            found[tick][tuple(row)] += 1
        return found
