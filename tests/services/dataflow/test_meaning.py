"""Queries that engines understand differently: what Spark says of a few rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema

TABLES = """
CREATE TABLE t (k BIGINT, x BIGINT, v BIGINT, f DOUBLE) USING waltz OPTIONS (partitions '0');
CREATE TABLE u (k BIGINT, y BIGINT) USING waltz OPTIONS (partitions '1');
"""
T: list[Row] = [(1, 10, 9, 0.0), (2, 20, 3, -0.0), (3, None, 7, math.nan), (None, 40, None, None)]
U: list[Row] = [(1, 10), (2, 7)]


@pytest.fixture(scope="module")
def engine() -> Iterator[PlainEngine]:
    with closing(PlainEngine()) as made:
        yield made


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        # ORDER BY means what the SELECT makes, then what it reads; also where only its first row counts.
        ("SELECT -y AS y FROM u ORDER BY y + 1 LIMIT 1", [(-10,)]),
        ("SELECT -y AS y FROM u ORDER BY u.y + 1 LIMIT 1", [(-7,)]),
        ("SELECT -y AS z FROM u ORDER BY z + 1 LIMIT 1", [(-10,)]),
        ("SELECT k, -max(x) AS x FROM t GROUP BY k ORDER BY abs(x) DESC LIMIT 1", [(None, -40)]),
        ("SELECT k, (SELECT y AS k FROM u ORDER BY k LIMIT 1) AS m FROM t WHERE k = 1", [(1, 7)]),
        ("SELECT k, (SELECT -y AS y FROM u ORDER BY y + 1 LIMIT 1) AS m FROM t WHERE k = 1", [(1, -10)]),
        ("SELECT count(*) AS n, (SELECT k AS y FROM u ORDER BY y DESC LIMIT 1) AS m FROM t", [(4, 2)]),
        ("SELECT count(*) AS n, (SELECT k FROM t WHERE v IS NOT NULL ORDER BY v LIMIT 1) AS m FROM u", [(2, 2)]),
        # IN takes the rows of several SELECTs, whatever their columns are called.
        ("SELECT k FROM t WHERE x IN (SELECT k FROM u UNION SELECT y FROM u UNION SELECT y + 13 FROM u)", [(1,), (2,)]),
        ("SELECT k FROM u UNION SELECT x FROM t INTERSECT SELECT y FROM u", [(1,), (2,), (10,)]),
        ("SELECT k FROM t WHERE x IN (SELECT y + 0 AS g FROM u GROUP BY g)", [(1,)]),
        ("SELECT k FROM t WHERE k IN (SELECT rank() OVER (ORDER BY y) AS r FROM u QUALIFY r < 2)", [(1,)]),
        ("SELECT k FROM t WHERE EXISTS (SELECT u.k, t.k, 1, 2 FROM u JOIN t ON u.k = t.k LIMIT 1) AND k > 2", [(3,)]),
        ("SELECT k FROM t WHERE x IN (SELECT y AS `from` FROM u ORDER BY `from` DESC LIMIT 1)", [(1,)]),
        # Windows: 0.0 and -0.0 are equal, and so are NaNs; NULL comes first.
        (
            "SELECT k, rank() OVER (ORDER BY -f) AS r, count(*) OVER (PARTITION BY -f) AS n FROM t",
            [(None, 1, 1), (1, 2, 2), (2, 2, 2), (3, 4, 1)],
        ),
        ("SELECT k, lag(v, 1, -1) OVER (ORDER BY v) AS l FROM t", [(None, -1), (2, None), (3, 3), (1, 7)]),
        # QUALIFY knows columns of the SELECT, also beside groups; a SELECT within it knows its own.
        (
            "SELECT v > 5 AS y, count(*) AS n, rank() OVER (ORDER BY count(*) DESC) AS r FROM t GROUP BY v > 5 "
            "QUALIFY r + 1 = 2 AND n < (SELECT max(y) FROM u)",
            [(True, 2, 1)],
        ),
        # An empty list is no NULL, and NULL is no empty list.
        ("SELECT k FROM t WHERE x NOT IN (SELECT y FROM u WHERE u.k = t.k)", [(2,), (3,), (None,)]),
        ("SELECT k FROM t WHERE EXISTS (SELECT k FROM u LIMIT 0)", []),
        ("SELECT count(*) AS n FROM t WHERE k > 5 GROUP BY GROUPING SETS ((), (k))", []),
        (
            "SELECT t.k, u.k AS uk FROM t FULL JOIN u ON t.k = u.k AND t.x > 15",
            [(1, None), (2, 2), (3, None), (None, None), (None, 1)],
        ),
    ],
)
def test_a_query_means_what_it_means_in_spark(sql: str, wanted: list[Row], engine: PlainEngine) -> None:
    made = parse(f"{TABLES}CREATE MATERIALIZED VIEW v AS {sql}")
    with closing(engine.open(made)) as state:
        rows = {"t": T, "u": U}
        inputs = {
            each.name: table_of([(row, 1, 1) for row in rows[each.name]], arrow_schema(each.columns))
            for each in made.tables
        }
        out = state.flow(made.views[0]).step(inputs, 2)
    assert Counter({row: diff for row, _, diff in updates_of(out)}) == Counter(wanted)
