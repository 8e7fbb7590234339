"""Each function of the table means in DuckDB, and in the plan, what Spark makes of it as it is written.

Values are those at which engines differ.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pavane.dataflow import casing, functions
from pavane.dataflow.duckdialect import translated, with_zones, without_zones
from pavane.dataflow.duckflow import told_apart
from pavane.dataflow.functions import FUNCTIONS, Function
from pavane.dataflow.plan import Plan
from pavane.dataflow.ports import DIFF, TIME, SqlError, ViewError
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_type
from pavane.spark.engine import SparkEngine

TABLE = """CREATE TABLE t (s1 STRING, s2 STRING, s3 STRING, n1 BIGINT, n2 BIGINT, n3 BIGINT, m1 BIGINT, m2 BIGINT,
  m3 BIGINT, x1 DOUBLE, x2 DOUBLE, x3 DOUBLE, d1 DECIMAL(20,6), day1 DATE, day2 DATE, at1 TIMESTAMP, at2 TIMESTAMP,
  b1 BOOLEAN, bin1 BINARY, bin2 BINARY) USING waltz OPTIONS (partitions '0');"""
COLUMNS = dict(re.findall(r"(\w+) ([A-Z]+(?:\(\d+,\d+\))?)[,)]", TABLE.partition("(")[2].partition(" USING")[0]))
TEXTS = (
    "", " ", "a", "ab", "abc", "A", "aAbB", " a ", "  a\t", "ß", "İ", "ΑΣ", "é", "e\u0301", "e\u0301a😀", "😀", "😀😀b",
    "\u00a0a", "a,b,,c", ",", ",,", "aaa", "aa", "q'q", "a\nb", "\0", "a\0b", "0", "1F", "1f2", "zz", "a b~*-_.é+%/",
    "www.example.org", "\uffff", "\U0010ffff", "ab" * 40,
)  # fmt: skip
DAYS = (
    "0001-01-01", "0001-12-31", "1582-10-04", "1582-10-15", "1600-02-29", "1899-12-31", "1900-02-28", "1900-03-01",
    "1969-12-31", "1970-01-01", "2000-02-29", "2000-12-31", "2021-01-03", "2023-01-31", "2024-02-29", "2024-12-30",
    "2026-05-31", "9999-12-31",
)  # fmt: skip
TIMES = (
    "0001-01-01T00:00:00", "1582-10-10T12:30:59.5", "1900-01-01T00:00:00.000001", "1969-12-31T23:59:59.999999",
    "1969-12-31T23:59:58.5", "1970-01-01T00:00:00", "2024-02-29T23:59:59.999999", "2024-03-10T02:30:00.123456",
    "2026-01-01T00:00:00", "2026-08-15T13:14:15.000999", "9999-12-31T23:59:59.999999",
)  # fmt: skip
VALUES: dict[str, Sequence[Any]] = {
    "s": TEXTS,
    "n": (0, 1, -1, 2, -2, 3, 7, 255, 256, 1000, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63), 86_400),
    "m": (0, 1, -1, 2, -2, 3, 5, 12, 13, 20, 21, 28, 29, 31, 63, 64, 65, 400, 1999, -4000, 9999),
    "x": (
        0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, 0.5, -0.5, 1.5, 2.5, -3.75, 1e308, 5e-324, 2.0**53, 2.0**63,
        -(2.0**63), 1e19, 180.0, 57.3,
    ),
    "d": tuple(map(Decimal, ("0.000000", "1.500000", "-0.000001", "99999999999999.999999", "-99999999999999.999999"))),
    "day": tuple(map(date.fromisoformat, DAYS)),
    "at": tuple(datetime.fromisoformat(text).replace(tzinfo=UTC) for text in TIMES),
    "b": (True, False),
    "bin": (b"", b"\0", b"abc", b"\xff\xfe", bytes(57), bytes(range(64)), bytes(114)),
}  # fmt: skip
ROWS = 300
ALONE = 24
"""So many rows are evaluated one by one where one of all stops the view."""
Evaluate = Callable[[pa.Table], pa.Table]


def _value(random: Random, column: str) -> Any:
    return None if random.random() < 0.08 else random.choice(VALUES[column.rstrip("123")])


def rows(random: Random, count: int) -> pa.Table:
    """Rows of the table, each with its number as the time."""
    columns = {
        name: pa.array([_value(random, name) for _ in range(count)], arrow_type(kind)) for name, kind in COLUMNS.items()
    }
    numbers = {TIME: pa.array(range(count), pa.uint64()), DIFF: pa.array([1] * count, pa.int64())}
    return pa.table(columns | numbers)


INPUT = rows(Random(1), ROWS)


@dataclass(frozen=True)
class Call:
    """One expression."""

    text: str
    raw: str
    """As Spark is asked: where a view narrows a BIGINT, that is written."""


def _of_kind(kind: str, place: int) -> list[tuple[str, str]]:
    """Arguments that are taken, for a view and for Spark."""
    kind = kind.partition("=")[0].strip(" *")
    number = place % 3 + 1
    if kind in ("LITERAL", "DELIMITER"):
        return [(text, text) for text in ("''", "'a'", "'é😀'", "', '")]
    if "'" in kind:
        return [(text, text) for text in re.findall(r"'[^']*'", kind)]
    if ".." in kind:
        ends = {int(end) for pair in re.findall(r"(-?\d+)\.\.(-?\d+)", kind) for end in pair}
        inner = {end + step for end in ends for step in (-2, -1, 1, 2)}
        spans = [(int(low), int(high)) for low, high in re.findall(r"(-?\d+)\.\.(-?\d+)", kind)]
        numbers = [each for each in sorted(ends | inner) if any(low <= each <= high for low, high in spans)]
        return [(str(each), str(each)) for each in numbers]
    found: list[tuple[str, str]] = []
    for each in kind.split("/"):
        match each.split()[0]:
            case "STRING":
                found.append((f"s{number}",) * 2)
            case "BIGINT":
                found.append((f"n{number}",) * 2)
            case "INT" | "DIGITS":
                found.append((f"m{number}", _narrow(each, f"m{number}")))
            case "DOUBLE":
                found.append((f"x{number}",) * 2)
            case "NUMBER":
                found += [(f"x{number}",) * 2, (f"n{number}",) * 2, ("d1", "d1")]
            case "DATE":
                found.append((f"day{min(number, 2)}",) * 2)
            case "TIMESTAMP":
                found.append((f"at{min(number, 2)}",) * 2)
            case "BINARY":
                found.append((f"bin{min(number, 2)}",) * 2)
            case "BOOLEAN":
                found.append(("b1", "b1"))
            case "DECIMAL":
                found.append(("d1", "d1"))
            case "ANY" | "ALIKE":
                found += [
                    (name, name) for name in (f"n{number}", f"s{number}", f"x{number}", "d1", "day1", "at1", "b1")
                ]
    return found


def _narrow(kind: str, text: str) -> str:
    return f"CAST({text} AS INT)" if kind == "INT" or int(kind.split()[1]) < 10 else text


def calls(row: Function) -> list[Call]:
    """Calls of a row that a view takes: each kind of argument, each number of them."""
    kinds = [*row.takes, row.takes[-1]] if row.many else list(row.takes)
    made = []
    for count in range(row.least, len(kinds) + 1):
        choices = [_of_kind(kind, place) for place, kind in enumerate(kinds[:count])]
        if len({len(each) for each in choices}) == 1 and all(
            kind.startswith(("ALIKE", "ANY")) for kind in kinds[:count]
        ):
            picked = list(zip(*choices, strict=True))  # of one type
        else:
            picked = list(itertools.product(*choices))
        for given in picked[:24]:
            texts, raws = ", ".join(each[0] for each in given), ", ".join(each[1] for each in given)
            made.append(Call(f"{row.name}({texts})", f"{row.name}({raws})"))
    last = made[-1]
    return [*made, Call(_costly(last.text), _costly(last.raw))]


def _costly(text: str) -> str:
    """The same of values that are not at hand."""
    return re.sub(r"\w+", lambda found: f"coalesce({found[0]}, {found[0]})" if found[0] in COLUMNS else found[0], text)


class Engines:
    """Both of them, and Spark as it is."""

    def __init__(self, session: SparkSession) -> None:
        self._spark = SparkEngine(session)

    def raw(self, call: Call) -> Evaluate:
        sql = f"SELECT {call.raw} AS c0, {TIME} FROM input"
        return lambda table: self._spark.evaluate(sql, {"input": table})

    def planned(self, call: Call) -> tuple[Evaluate, Evaluate]:
        """Spark and DuckDB, over what a view plans."""
        made = parse(f"{TABLE} CREATE MATERIALIZED VIEW v AS SELECT {call.text} AS r FROM t;")
        plan = made.views[0].plan
        sql = Plan.decode(plan).sides[0].select.sql
        return (lambda table: self._spark.evaluate(sql, {"input": table}), _duck(sql, plan.decode()))


def _duck(sql: str, plan: str) -> Evaluate:
    def answer(table: pa.Table) -> pa.Table:
        with closing(duckdb.connect()) as run, told_apart():
            run.execute("SET timezone = 'UTC'")
            for macro in (*casing.macros(), *functions.macros(plan)):
                run.execute(macro)
            run.register("input", without_zones(table))
            return with_zones(run.sql(translated(sql)).to_arrow_table())

    return answer


def taken(call: Call) -> bool:
    """Whether a view takes it: what stands for other functions takes what these do."""
    try:
        parse(f"{TABLE} CREATE MATERIALIZED VIEW v AS SELECT {call.text} AS r FROM t;")
    except SqlError:
        return not FUNCTIONS[call.text.partition("(")[0]][0].means
    return True


def _values(found: pa.Table) -> dict[int, object]:
    column = found.column("c0")
    if pa.types.is_temporal(column.type):  # Python's have years up to 9999
        column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    times, values = found.column(TIME).to_pylist(), column.to_pylist()
    return {time: _comparable(value) for time, value in zip(times, values, strict=True)}


def _comparable(value: object) -> object:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def answered(evaluate: Evaluate, table: pa.Table) -> dict[int, object]:
    """What there is for each row; where one of all rows stops the view, the first ones are evaluated one by one."""
    try:
        return _values(evaluate(table))
    except ViewError:
        found: dict[int, object] = {}
        for number in range(min(ALONE, len(table))):
            try:
                found |= _values(evaluate(table.slice(number, 1)))
            except ViewError:
                found[number] = "stops"
        return found


def differences(engines: Engines, call: Call, table: pa.Table) -> list[str]:
    """Where the three do not say the same."""
    spark, duck = engines.planned(call)
    said = [answered(evaluate, table) for evaluate in (engines.raw(call), spark, duck)]
    both = said[0].keys() & said[1].keys() & said[2].keys()
    names = sorted({name for name in re.findall(r"\w+", call.text) if name in COLUMNS})
    return [
        f"{call.text} of {table.slice(number, 1).select(names).to_pylist()[0]}: "
        + ", ".join(repr(each[number]) for each in said)
        for number in sorted(both)
        if any(type(each[number]) is not type(said[0][number]) or each[number] != said[0][number] for each in said[1:])
    ]


@pytest.fixture(scope="module")
def engines(spark: SparkSession) -> Iterator[Engines]:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield Engines(spark)
    spark.conf.unset("spark.sql.session.timeZone")


OPERATORS = [
    *(Call(f"n1 {sign} n2", f"n1 {sign} n2") for sign in ("&", "|", "^")),
    Call("~n1", "~n1"),
    Call("(-m1 & ~n2) | (m3 ^ 7) + 1", "(-m1 & ~n2) | (m3 ^ 7L) + 1"),
    Call("n1 DIV n2", "n1 DIV nullif(n2, 0)"),  # as with / and % a division by 0 is NULL
    *(
        Call(f"day1 {sign} INTERVAL '7' {unit}", f"day1 {sign} INTERVAL '7' {unit}")
        for sign in "+-"
        for unit in ("DAY", "MONTH", "YEAR")
    ),
    *(
        Call(f"at1 {sign} INTERVAL '31' {unit}", f"at1 {sign} INTERVAL '31' {unit}")
        for sign in "+-"
        for unit in ("SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR")
    ),
    *(
        Call(f"extract({part} FROM day1)", f"extract({part} FROM day1)")
        for part in ("YEAR", "quarter", "MONTH", "WEEK", "DAY", "DAYOFWEEK", "DOW", "DOY")
    ),
    *(Call(f"extract({part} FROM at1)", f"extract({part} FROM at1)") for part in ("YEAR", "DAY", "HOUR", "MINUTE")),
]


@pytest.mark.parametrize("call", OPERATORS, ids=lambda call: call.text)
def test_an_operator_means_what_it_means_in_spark(call: Call, engines: Engines) -> None:
    assert differences(engines, call, INPUT)[:3] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_means_what_it_means_in_spark(name: str, engines: Engines) -> None:
    made = [call for row in FUNCTIONS[name] for call in calls(row) if taken(call)]
    assert made
    assert [text for call in made for text in differences(engines, call, INPUT)[:3]] == []


def test_a_body_that_means_something_else_is_found(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(
        functions.MACROS["reverse"], body="reverse(a)"
    )  # DuckDB's own keeps a letter and its accent together
    monkeypatch.setitem(functions.MACROS, "reverse", wrong)
    call = calls(wrong)[0]
    assert differences(engines, call, INPUT)
