"""The table of functions: what is written of it, what is refused, and what stops a view."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

import pytest
import sqlglot
from sqlglot import exp

from pavane.dataflow.functions import FUNCTIONS, ViewsSql
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Script, SqlError, ViewError
from pavane.dataflow.rows import table_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema

TABLE = "CREATE TABLE t (s STRING, n BIGINT, x DOUBLE, day DATE) USING waltz OPTIONS (partitions '0');\n"
DOCS = Path(__file__).parents[3] / "docs" / "compute.md"


def view(expression: str) -> Script:
    return parse(f"{TABLE}CREATE MATERIALIZED VIEW v AS SELECT {expression} AS r FROM t")


def answers(expression: str, *rows: tuple[object, ...]) -> list[object]:
    """What a view of DuckDB makes of rows."""
    made = view(expression)
    engine = PlainEngine()
    try:
        flow = engine.open(made).flow(made.views[0])
        updates = [(row, 1, 1) for row in rows]
        return [
            row["r"] for row in flow.step({"t": table_of(updates, arrow_schema(made.tables[0].columns))}, 2).to_pylist()
        ]
    finally:
        engine.close()


def test_the_page_lists_the_table() -> None:
    section = DOCS.read_text().partition("### Functions\n")[2].partition("\nTheir results")[0]
    assert sorted(re.findall(r"`(\w+)`", section)) == sorted(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_parser_leaves_a_call_as_it_is_written(name: str) -> None:
    call = sqlglot.parse_one(f"{name}(a, b)", dialect=ViewsSql)
    assert (type(call), call.name, [each.name for each in call.expressions]) == (exp.Anonymous, name, ["a", "b"])


@pytest.mark.parametrize(("call", "depth", "given"), [("rpad({}, 5, s)", 25, "ababa"), ("reverse({})", 20, "ab")])
def test_a_call_within_a_call_is_evaluated_once(call: str, depth: int, given: str) -> None:
    nested = "s"
    for _ in range(depth):
        nested = call.format(nested)
    assert answers(nested, ("ab", 1, 1.0, None)) == [given]


@pytest.mark.parametrize(
    ("expression", "column", "text"),
    [
        ("lpad(s)", 8, r"lpad does not take 1 arguments. Write lpad\(STRING, 0..1000, STRING = ' '\)"),
        ("1 + lpad(s, n)", 20, "n is no such literal, lpad takes 0..1000"),
        ("lpad(s, 1001)", 16, "1001 is no such literal"),
        ("left(n, 2)", 13, "n is BIGINT, left takes STRING"),
        ("trunc(day, 'DECADE')", 19, "'DECADE' is no such literal, trunc takes 'YEAR' 'QUARTER' 'MONTH' 'WEEK'"),
        ("greatest(n, s)", 17, "greatest of BIGINT and STRING"),
        ("start_with(s, 'a')", 8, "is not supported. Is startswith meant?"),
        ("n & 1 | 2", 8, "bind differently. Write brackets"),
        ("n & x", 12, "x is DOUBLE, not a whole number"),
        ("day + INTERVAL '1' HOUR", 8, "is no interval here. Write INTERVAL '1' DAY"),
        ("s + INTERVAL '1' DAY", 8, "s is STRING, neither DATE nor TIMESTAMP"),
        ("substring_index(s, 'aba', 1)", 27, "'aba' is no such literal, substring_index takes DELIMITER"),
        ("dayofmonth(s)", 19, "s is STRING"),
        ("extract(CENTURY FROM day)", None, "'CENTURY' is no part of a date here"),
        ("exp(x)", None, "is not supported. Known: "),
        ("nvl2(s, n, s)", 16, "CASE of BIGINT and STRING"),
    ],
)
def test_a_wrong_call_is_refused_where_it_stands(expression: str, column: int | None, text: str) -> None:
    with pytest.raises(SqlError, match=text) as refused:
        view(expression)
    where = refused.value
    assert column is None or (where.line, where.column) == (2, column + len("CREATE MATERIALIZED VIEW v AS "))


@pytest.mark.parametrize(
    "expression", ["pmod(n, 0)", "make_date(2025, 2, n)", "date_add(day, n * 1000000)", "left(s, n * 100000000)"]
)
def test_what_a_function_does_not_take_stops_the_view_alone(expression: str) -> None:
    with pytest.raises(ViewError, match="out of range"):
        answers(expression, ("a", 30, 0.0, None), ("a", 30, 0.0, date(2024, 2, 29)))


@pytest.mark.parametrize(
    "expression",
    [
        "repeat(repeat(repeat(repeat('x', 1000), 1000), 1000), 1000)",
        "repeat(repeat(repeat(s, 1000), 1000), 1000)",
        "length(repeat(repeat(repeat(CAST(n AS STRING), 1000), 1000), 1000))",
        "length(repeat(repeat(repeat(chr(65), 1000), 1000), 1000))",
        "length(repeat(repeat(repeat(md5(s), 1000), 1000), 1000))",
        "length(repeat(repeat(repeat(lpad(s, 9), 1000), 1000), 1000))",
        "replace(replace(replace(replace(s, 's', '{0}'), 'x', '{0}'), 'x', '{0}'), 'x', '{0}')".format("x" * 1000),
    ],
)
def test_a_text_that_would_not_fit_into_memory_is_not_made(expression: str) -> None:
    with pytest.raises(ViewError, match="larger than 1024 MiB"):
        answers(expression, ("ss", 1, 0.0, None))
