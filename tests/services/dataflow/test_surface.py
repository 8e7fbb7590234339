"""Whatever the parser understands is read or refused: no argument of a node is left out without a word."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from sqlglot import exp

from pavane.dataflow.ports import Script, SqlError
from pavane.dataflow.reading import statements_of
from pavane.dataflow.sql import checked, parse
from pavane.dataflow.surface import ALWAYS, READ

SCRIPT = """
CREATE TABLE t (id BIGINT, s STRING, d DECIMAL(12,2), f DOUBLE, day DATE, b BOOLEAN) USING waltz
  OPTIONS (partitions '0-1', format 'json');
CREATE TABLE u (id BIGINT, s STRING) USING waltz OPTIONS (partitions '2', key 'id');
CREATE MATERIALIZED VIEW a AS
  WITH w AS (SELECT id, s FROM u WHERE id IS NOT NULL)
  SELECT x.id AS n, upper(x.s) AS up, lower(x.s) AS low, trim(x.s) AS t, length(x.s) AS l, substring(x.s, 2, 3) AS sub,
    concat(x.s, '!') AS c, x.s || 'b' AS p, CAST(x.id AS DOUBLE) AS o, double(x.id) AS o2, TRUE AS yes,
    CASE WHEN x.b THEN 1 ELSE 2 END AS kind, CASE x.id WHEN 1 THEN 2 END AS k2, if(x.b, 1, 2) AS i,
    coalesce(x.s, w.s) AS co, nullif(x.id, 3) AS ni, -x.id AS neg, abs(x.f) AS ab,
    year(x.day) AS y, month(x.day) AS m, day(x.day) AS dd, (x.id + 1) * 2 - x.id / 3 AS ar, x.id % 7 AS mod,
    lpad(x.s, 3, '-') AS pad,
    x.id DIV 7 AS dv, (x.id & 1) + (x.id | 2) + (x.id ^ 4) + ~x.id AS bits, extract(YEAR FROM x.day) AS ey
  FROM t AS x LEFT JOIN w ON x.id = w.id
  WHERE x.s LIKE 'a%' AND (x.id BETWEEN 1 AND 9 OR x.id IN (1, 2) OR NOT x.b) AND x.id <> 4 AND x.id > 0
    AND x.id >= 1 AND x.id < 9 AND x.id <= 8 AND x.s <=> w.s AND x.id IN (SELECT id FROM u)
    AND NOT EXISTS (SELECT id FROM u WHERE u.id > x.id);
CREATE MATERIALIZED VIEW g AS
  SELECT q.s, count(*) AS n, count(DISTINCT id) AS di, sum(id) AS su, avg(f) AS av, min(day) AS mi, max(d) AS ma
  FROM (SELECT s, id, f, day, d FROM t) AS q GROUP BY s HAVING count(id) > 1 ORDER BY s DESC LIMIT 3 OFFSET 1;
CREATE MATERIALIZED VIEW win AS
  SELECT id, row_number() OVER (PARTITION BY s ORDER BY id DESC) AS r, rank() OVER (ORDER BY id) AS k,
    dense_rank() OVER (ORDER BY id) AS dk, lag(id, 2, 5) OVER (ORDER BY id) AS la,
    lead(id, 2, 5) OVER (ORDER BY id) AS le,
    sum(id) OVER (ORDER BY id ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING) AS su FROM t QUALIFY r < 3;
CREATE MATERIALIZED VIEW soon AS SELECT id FROM t WHERE day > current_timestamp() - INTERVAL '3' DAY;
CREATE VIEW plain AS SELECT id, s FROM t;
CREATE MATERIALIZED VIEW both AS SELECT id, s FROM t INTERSECT SELECT id, s FROM u;
CREATE MATERIALIZED VIEW less AS SELECT id, s FROM t EXCEPT SELECT id, s FROM u WHERE id = 1;
CREATE MATERIALIZED VIEW sets AS SELECT id, s, grouping(id) AS gr FROM plain
  GROUP BY ROLLUP(id), CUBE(s), GROUPING SETS ((s, id));
CREATE MATERIALIZED VIEW un AS SELECT DISTINCT id, CAST(NULL AS STRING) AS s FROM t UNION SELECT id, s FROM u;
"""
OTHERS: tuple[Any, ...] = (
    True,
    False,
    "RIGHT",
    exp.DType.DATE,
    exp.DataType.build("DATE"),
    exp.to_identifier("zz"),
    exp.column("zz"),
    [exp.column("zz")],
    exp.Literal.number(7),
    exp.Literal.string("zz"),
    exp.select("1").with_("u", as_="SELECT id, s FROM t").args["with_"],
)
MEANINGLESS = {(exp.Identifier, "quoted")}
"""With or without quotes it is the same name."""


PARSED = statements_of(SCRIPT)
OF_MANY = [
    number for number, tree in enumerate(PARSED) if tree.args.get("properties") is None or tree.args["kind"] == "TABLE"
]
"""Tables, and the view that is not kept."""
THEIRS = [number for number, tree in enumerate(PARSED) if tree.this.name in ("both", "sets")]
"""Views that read them."""
Place = tuple[int, int]
"""A statement, and a node in it."""


def statements(number: int) -> dict[int, exp.Expr]:
    """The least script with a statement: what others read, and one view of it."""
    views = THEIRS if number in OF_MANY else [number]
    return {each: PARSED[each].copy() for each in sorted({*OF_MANY, *views})}


def planned(trees: dict[int, exp.Expr]) -> Script:
    """What a script means, without its text: that says all that the parser understood."""
    made = checked(SCRIPT, [(0, tree) for tree in trees.values()])
    return replace(made, views=tuple(replace(view, sql="") for view in made.views))


PLANNED = [planned(statements(number)) for number in range(len(PARSED))]


def places(kind: type[exp.Expr]) -> list[Place]:
    """Where the nodes of a class are."""
    nodes = ((number, place, node) for number, tree in enumerate(PARSED) for place, node in enumerate(tree.walk()))
    return [(number, place) for number, place, node in nodes if type(node) is kind]


def differs(place: Place, argument: str, value: Any) -> bool:
    """Whether a script in which one argument is set has other plans, or is refused."""
    number, within = place
    trees = statements(number)
    node = next(islice(trees[number].walk(), within, None))
    if node.args.get(argument) == value:
        return False
    node.set(argument, deepcopy(value))
    try:
        return planned(trees) != PLANNED[number]
    except SqlError:
        return True


@pytest.mark.parametrize("kind", READ, ids=lambda kind: kind.__name__)
def test_every_argument_of_a_node_is_read_or_refused(kind: type[exp.Expr]) -> None:
    found = places(kind)
    assert found, "the script above has none"
    for argument in kind.arg_types:
        if (kind, argument) in MEANINGLESS:
            continue
        if argument in READ[kind]:
            assert any(_noticed(place, argument, value) for place in found for value in OTHERS), argument
        else:
            always = ALWAYS.get((kind, argument))
            values = [value for value in (True, exp.column("zz")) if value is not always]
            assert [value for value in values if not differs(found[0], argument, value)] == [], argument


def _noticed(place: Place, argument: str, value: Any) -> bool:
    """The same for an argument that is read, which takes values of some types alone."""
    try:
        return differs(place, argument, value)
    except (AttributeError, TypeError, ValueError):
        return False


def test_the_parser_says_nothing_new_of_the_script() -> None:
    assert {type(node) for tree in PARSED for node in tree.walk()} == set(READ)


@pytest.mark.parametrize(
    "select",
    [
        "SELECT id FROM t WHERE s ILIKE 'a'",
        "SELECT id FROM t WHERE s NOT ILIKE 'a'",
        "SELECT id FROM t WHERE s LIKE ANY ('a', 'b')",
        "SELECT id FROM t WHERE s LIKE 'a' ESCAPE '!'",
        "SELECT id FROM t WHERE id BETWEEN SYMMETRIC 3 AND 1",
        "SELECT id FROM t WHERE id IN ()",
        "SELECT id FROM t LIMIT 3 PERCENT",
        "SELECT CAST(day AS STRING FORMAT 'YYYY') AS x FROM t",
        "SELECT TRY_CAST(id AS INT) AS x FROM t",
        "SELECT CAST(f AS FLOAT) AS x FROM t",
        "SELECT max(id) IGNORE NULLS AS x FROM t",
        "SELECT max(id, 3) AS x FROM t",
        "SELECT count(id, s) AS x FROM t",
        "SELECT sum(id) FILTER (WHERE b) AS x FROM t",
        "SELECT DISTINCT ON (id) s FROM t",
        "SELECT t.id FROM t JOIN u USING (id)",
        "SELECT t.id FROM t NATURAL JOIN u",
        "SELECT /*+ BROADCAST(t) */ id FROM t",
        "SELECT s FROM t GROUP BY ALL",
        "SELECT s FROM t GROUP BY s WITH ROLLUP",
        "SELECT a FROM t AS q(a, b, c, d, e, f)",
        "WITH q(a) AS (SELECT id FROM t) SELECT a FROM q",
        "WITH q AS MATERIALIZED (SELECT id FROM t) SELECT id FROM q",
        "SELECT id FROM t(5)",
        "SELECT id FROM t TABLESAMPLE (10 PERCENT)",
        "SELECT id FROM t FOR UPDATE",
        "SELECT trim(LEADING 'x' FROM s) AS x FROM t",
        "SELECT id FROM t WHERE f > 1e400",
    ],
)
def test_what_a_view_does_not_read_is_refused(select: str) -> None:
    tables = SCRIPT[: SCRIPT.index("CREATE MATERIALIZED")]
    with pytest.raises(SqlError) as refused:
        parse(f"{tables}CREATE MATERIALIZED VIEW v AS\n{select}")
    assert refused.value.line == tables.count("\n") + 2, str(refused.value)


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE IF NOT EXISTS x (id BIGINT) USING waltz OPTIONS (partitions '0')",
        "CREATE OR REPLACE TABLE x (id BIGINT) USING waltz OPTIONS (partitions '0')",
        "CREATE TEMPORARY TABLE x (id BIGINT) USING waltz OPTIONS (partitions '0')",
        "CREATE TABLE x (id BIGINT NOT NULL) USING waltz OPTIONS (partitions '0')",
        "CREATE TABLE x (id BIGINT DEFAULT 1) USING waltz OPTIONS (partitions '0')",
        "CREATE TABLE x (id BIGINT, PRIMARY KEY (id)) USING waltz OPTIONS (partitions '0')",
        "CREATE TABLE x (id BIGINT) USING waltz OPTIONS (partitions '0' || '1')",
        "CREATE TABLE x (id BIGINT) USING waltz PARTITIONED BY (id) OPTIONS (partitions '0')",
        "CREATE TABLE x (id DECIMAL(5, -1)) USING waltz OPTIONS (partitions '0')",
    ],
)
def test_what_a_table_does_not_read_is_refused(table: str) -> None:
    with pytest.raises(SqlError):
        parse(f"{table}; CREATE MATERIALIZED VIEW v AS SELECT id FROM x")
