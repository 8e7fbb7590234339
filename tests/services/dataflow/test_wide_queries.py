"""SELECTs within expressions, joins of all kinds, windows and sets of rows: at each tick what the whole query gives."""

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from pavane.dataflow import duckflow
from pavane.dataflow.duckstate import Files
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Binding, ViewError
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from tests.services.dataflow.oracle import TABLES, Changes, wrong_ticks

TICKS = 8
QUERIES = """
-- SELECTs within expressions.
SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM customers WHERE name = customer);
SELECT id FROM orders o WHERE NOT EXISTS (SELECT c.city FROM customers c WHERE c.name = o.customer AND c.limit_cents >
  o.cents);
SELECT o.id, o.cents FROM orders o WHERE EXISTS (SELECT p.id FROM orders p WHERE p.customer = o.customer AND p.id <>
  o.id) AND NOT EXISTS (SELECT p.id FROM orders p WHERE p.customer = o.customer AND p.id <> o.id AND p.cents >
  o.cents);
SELECT id FROM orders WHERE customer NOT IN (SELECT name FROM customers WHERE limit_cents > 50);
SELECT id FROM orders WHERE NOT EXISTS (SELECT name FROM customers WHERE limit_cents > 80);
SELECT id, customer IN (SELECT name FROM customers) AS known, paid OR id NOT IN (SELECT limit_cents FROM customers
  WHERE city = customer) AS other FROM orders;
SELECT id FROM orders o WHERE cents IN (SELECT limit_cents FROM customers c WHERE c.name < o.customer);
SELECT id FROM orders o WHERE cents NOT IN (SELECT limit_cents FROM customers c WHERE c.name < o.customer);
SELECT id, (SELECT max(limit_cents) FROM customers WHERE name = customer) AS most, cents - (SELECT count(*) + 1 FROM
  customers WHERE name = customer) AS less FROM orders;
SELECT id FROM orders WHERE cents > (SELECT avg(limit_cents) FROM customers);
SELECT o.customer, sum(o.cents) AS total FROM orders o WHERE o.cents >= (SELECT max(p.cents) FROM orders p WHERE
  p.customer = o.customer) GROUP BY o.customer;
SELECT id FROM orders WHERE EXISTS (SELECT count(*) AS n FROM customers) AND customer IN (SELECT city FROM customers
  GROUP BY city HAVING count(*) > 1);
SELECT id, (SELECT coalesce(sum(limit_cents), 0) FROM customers WHERE name = customer) AS total FROM orders o
  WHERE NOT EXISTS (SELECT 1 FROM customers WHERE o.paid);
-- Joins.
SELECT o.id, c.city FROM orders o RIGHT JOIN customers c ON o.customer = c.name AND o.paid;
SELECT o.id, c.city, c.name FROM orders o FULL JOIN customers c ON o.customer = c.name AND o.cents > 20 AND
  c.limit_cents > 30;
SELECT a.n, b.n AS m FROM (SELECT sum(cents) AS n FROM orders) a FULL JOIN (SELECT max(limit_cents) AS n FROM
  customers) b ON a.n = b.n;
SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.name AND o.paid AND c.limit_cents > 9;
SELECT o.id, t.n FROM orders o CROSS JOIN (SELECT count(*) AS n FROM customers) t;
SELECT count(*) AS n FROM orders o JOIN customers c ON o.cents < c.limit_cents;
SELECT o.id, p.id AS other, c.name FROM orders o, orders p, customers c WHERE o.customer = c.name AND ((c.city =
  p.customer AND p.paid) OR (c.city = p.customer AND p.cents > 50));
-- Windows. Equal rows are in the order of all their columns, which the oracle has to be told.
SELECT id, customer, cents, row_number() OVER (PARTITION BY customer ORDER BY cents DESC NULLS LAST, id NULLS FIRST)
  AS place FROM orders QUALIFY place <= 2;
SELECT customer, cents, rank() OVER (PARTITION BY customer ORDER BY cents) AS r, dense_rank() OVER (PARTITION BY
  customer ORDER BY cents) AS d, count(*) OVER (PARTITION BY customer) AS n, sum(price) OVER () AS whole FROM orders;
SELECT day, cents, id, lag(cents) OVER (PARTITION BY day ORDER BY id, cents) AS was, lead(id, 2, 0L) OVER (PARTITION
  BY day ORDER BY id, cents) AS next, sum(cents) OVER (PARTITION BY day ORDER BY id, cents ROWS BETWEEN 2 PRECEDING
  AND CURRENT ROW) AS moving, sum(cents) OVER (PARTITION BY day ORDER BY id) AS running, max(cents) OVER (PARTITION BY
  paid ORDER BY cents, id, day ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS most FROM orders;
SELECT customer, sum(cents) AS total, rank() OVER (ORDER BY sum(cents) DESC) AS r, avg(count(*)) OVER () AS mean FROM
  orders GROUP BY customer HAVING count(*) > 1;
SELECT o.id, o.cents, c.city, row_number() OVER (PARTITION BY c.city ORDER BY o.cents, o.id) AS r FROM orders o LEFT
  JOIN customers c ON o.customer = c.name QUALIFY r = 1 OR count(c.city) OVER (PARTITION BY o.customer) > 3;
-- SELECTs beside groups.
SELECT customer, sum(cents) AS total, (SELECT max(limit_cents) FROM customers) AS most FROM orders GROUP BY customer
  HAVING sum(cents) > (SELECT avg(cents) FROM orders);
SELECT customer, count(*) AS n, rank() OVER (ORDER BY count(*)) AS r FROM orders GROUP BY customer HAVING count(*) >=
  (SELECT min(limit_cents) % 3 FROM customers);
-- Sets of rows.
SELECT customer, paid FROM orders INTERSECT SELECT name, limit_cents > 20 AS b FROM customers;
SELECT customer, cents FROM orders WHERE paid EXCEPT SELECT name, limit_cents FROM customers UNION SELECT city, 1 AS n
  FROM customers;
-- Grouping sets. Of no rows there is no group, as in Spark; the oracle's engine has one for ().
SELECT customer, paid, sum(cents) AS total, grouping(paid) AS g, max(paid) AS most FROM orders
  GROUP BY ROLLUP(customer, paid) HAVING count(*) > 0;
SELECT c.city, o.day, count(*) + grouping(c.city) AS n FROM orders o JOIN customers c
  ON o.customer = c.name GROUP BY CUBE(c.city, o.day) HAVING count(*) > 0;
SELECT c.city, o.day, count(*) AS n FROM orders o LEFT JOIN customers c ON o.customer = c.name
  WHERE o.paid AND o.cents > 5 GROUP BY ROLLUP(c.city, o.day) HAVING count(*) > 0;
SELECT customer, day, count(*) AS n FROM orders GROUP BY paid, GROUPING SETS ((customer, day), (day), ())
  HAVING count(*) > 0;
SELECT DISTINCT customer, count(*) AS n FROM orders GROUP BY ROLLUP(customer, day) HAVING count(*) > 0
  ORDER BY n DESC, customer LIMIT 3;
"""
SHAPES = [text.strip() for text in re.sub("--.*", "", QUERIES).split(";") if text.strip()]


@pytest.fixture(scope="module")
def engine() -> PlainEngine:
    return PlainEngine()


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_a_view_is_what_the_whole_query_gives(shape: int, engine: PlainEngine) -> None:
    assert wrong_ticks(SHAPES[shape], shape + 100, engine, TICKS) == []


def test_a_view_that_is_not_kept_stands_where_it_is_named(engine: PlainEngine) -> None:
    plain = "CREATE VIEW p AS SELECT customer, sum(cents) AS total FROM orders GROUP BY customer;\n"
    plain += (
        "CREATE VIEW q AS SELECT a.customer, a.total + b.total AS twice FROM p a JOIN p b ON a.customer = b.customer;\n"
    )
    inner = "(SELECT customer, sum(cents) AS total FROM orders GROUP BY customer)"
    written = f"SELECT a.customer, a.total + b.total AS twice FROM {inner} a JOIN {inner} b ON a.customer = b.customer"
    made = parse(f"{TABLES}{plain}CREATE MATERIALIZED VIEW v AS SELECT customer, twice FROM q WHERE twice > 90")
    assert [view.name for view in made.views] == ["v"]
    whole = parse(f"{TABLES}CREATE MATERIALIZED VIEW v AS SELECT customer, twice FROM ({written}) x WHERE twice > 90")
    outs = []
    for script in (made, whole):
        changes = Changes(Random(1), {table.name: table for table in script.tables})
        with closing(engine.open(script)) as state:
            flow = state.flow(script.views[0])
            for tick in range(1, 9):
                came = changes.tick(tick)
                tables = {each.name: table_of(came[each.name], arrow_schema(each.columns)) for each in script.tables}
                outs.append((tick, sorted(updates_of(flow.step(tables, tick + 1)), key=repr)))
    assert outs[:8] == outs[8:]
    assert any(updates for _, updates in outs)


def test_views_that_are_not_kept_do_not_multiply() -> None:
    doubled = "".join(f"CREATE VIEW p{i + 1} AS SELECT a.k FROM p{i} a JOIN p{i} b ON a.k = b.k;\n" for i in range(20))
    script = f"{TABLES}CREATE VIEW p0 AS SELECT customer AS k FROM orders;\n{doubled}"
    assert len(parse(f"{script}CREATE MATERIALIZED VIEW v AS SELECT k FROM p20").views[0].plan) < 100_000


WINDOWS = [number for number, shape in enumerate(SHAPES) if " OVER (" in shape]


@pytest.mark.parametrize("shape", WINDOWS)
@pytest.mark.parametrize("most", [1, 12])
def test_windows_are_evaluated_piece_by_piece(
    shape: int, most: int, engine: PlainEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duckflow, "PIECE_ROWS", most)
    assert wrong_ticks(SHAPES[shape], shape + 200, engine, 3 * TICKS) == []


RANKED = parse(
    "CREATE TABLE t (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0', diff 'true');"
    "CREATE MATERIALIZED VIEW v AS SELECT k, x, sum(x) OVER (PARTITION BY k ORDER BY x) AS s FROM t"
)
SCHEMA = arrow_schema(RANKED.tables[0].columns)


@pytest.mark.parametrize("ends", [[41], [2, 41], [2, 11, 21, 31, 41]])
def test_a_view_that_lives_tick_by_tick_lives_through_its_catch_up(
    ends: list[int], engine: PlainEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one partition may be at one tick is bounded, not what all of them are at all ticks of a step."""
    monkeypatch.setattr(duckflow, "PARTITION_ROWS_MAX", 10)
    monkeypatch.setattr(duckflow, "PIECE_ROWS", 10)
    random, there, history = Random(1), list[tuple[int, int]](), list[list[tuple[tuple[int, int], int, int]]]()
    for tick in range(1, 41):
        row = (tick % 4, random.randrange(9))
        there.append(row)
        history.append([(row, tick, 1)])
        if tick % 3 == 0:
            history[-1].append((there.pop(random.randrange(len(there))), tick, -1))

    def held(steps: Iterable[int]) -> list[Counter[Row]]:
        """What the view is at each tick."""
        rows, found, start = Counter[Row](), list[Counter[Row]](), 1
        with closing(engine.open(RANKED)) as state:
            for end in steps:
                came = [update for part in history[start - 1 : end - 1] for update in part]
                out = list(updates_of(state.flow(RANKED.views[0]).step({"t": table_of(came, SCHEMA)}, end)))
                for tick in range(start, end):
                    rows.update({row: diff for row, time, diff in out if time == tick})
                    found.append(+rows)
                start = end
        return found

    def built() -> Counter[Row]:
        """What it is when it is built at the last tick."""
        with closing(engine.open(RANKED)) as state:
            for number, part in enumerate(history, 1):
                came = table_of([(row, 40, diff) for row, _, diff in part], SCHEMA)
                out = state.flow(RANKED.views[0]).step({"t": came}, 41, more=number < 40)
        return Counter({row: diff for row, _, diff in updates_of(out)})

    every = held(range(2, 42))
    assert held(ends) == every
    assert built() == every[-1]


def test_a_partition_that_is_too_large_ends_its_view(engine: PlainEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duckflow, "PARTITION_ROWS_MAX", 10)
    table = table_of([((1, x), 1, 1) for x in range(11)], SCHEMA)
    with (
        closing(engine.open(RANKED)) as state,
        pytest.raises(ViewError, match="a partition of a window function has more than 10 rows"),
    ):
        state.flow(RANKED.views[0]).step({"t": table}, 2)


@pytest.mark.parametrize("single", [False, True])
def test_many_ticks_of_a_large_partition_take_little_more_room_than_one(
    single: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In pieces of one step, and in steps of one tick after a checkpoint, which are one transaction, too."""
    monkeypatch.setattr(duckflow, "PIECE_ROWS", 20_000)
    rows, ticks, memory_mib, disk_mib = 5_000, 40, 24, 2
    with closing(PlainEngine(Files(tmp_path, memory_mib, disk_mib))) as engine:
        state = engine.open(RANKED)
        flow = state.flow(RANKED.views[0])
        flow.step({"t": table_of([((1, x), 1, 1) for x in range(rows)], SCHEMA)}, 2)
        state.checkpoint({"v": Binding(1, {0: 1}, 1)})
        start, found = 2, list[tuple[Row, int, int]]()
        for end in range(3, ticks + 3) if single else [ticks + 2]:
            came = [((1, rows + tick), tick, 1) for tick in range(start, end)]
            found += updates_of(flow.step({"t": table_of(came, SCHEMA)}, end))
            start = end
    before, last = sum(range(rows)), range(2, ticks + 2)
    assert sorted(found) == [
        ((1, rows + tick, before + sum(rows + each for each in last if each <= tick)), tick, 1) for tick in last
    ]
