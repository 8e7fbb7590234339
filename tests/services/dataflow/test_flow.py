"""Views are exact at every tick, whatever is inserted, changed and deleted."""

import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from fractions import Fraction
from random import Random

import duckdb
import pyarrow as pa
import pytest

from pavane.dataflow import duckflow, growth, joining, touched
from pavane.dataflow.deltas import Dialect
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.plan import Plan
from pavane.dataflow.ports import TIME, Column, SqlError, ViewError
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from tests.services.dataflow.oracle import SHAPES, TIMED, Changes, script, wrong_ticks


@pytest.fixture(scope="module")
def engine() -> PlainEngine:
    return PlainEngine()


@pytest.fixture(params=["", "short"])
def kept(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Also with fronts without a row to spare, and states that are added up at every other step."""
    if request.param:
        monkeypatch.setattr(touched, "SPARE", 0)
        monkeypatch.setattr(duckflow, "JOINED_ROWS", 3)
    return int(bool(request.param))


@pytest.mark.parametrize("shape", SHAPES + TIMED)
def test_a_view_is_its_query_at_every_tick(shape: str, kept: int, engine: PlainEngine) -> None:
    assert wrong_ticks(shape, kept, engine) == []


def kept_rows(self: touched.Front, now: str) -> str:
    """A row that is taken back stays in the front."""
    return f"SELECT * FROM ({KEPT(self, now)}) WHERE n > 0"


def null_is_equal(self: joining.Join, prefix: str, plan: Plan) -> None:
    """NULL is a key like others."""
    JOIN(self, prefix, plan)
    self._on = self._on.replace(" = ", " IS NOT DISTINCT FROM ")
    self._known = ("TRUE", "TRUE")


def never_lacking(self: touched.Front, now: str) -> str:
    """No front is filled again."""
    return f"{LACKING(self, now)} LIMIT 0"


def merged(self: Dialect, source: str, columns: Sequence[Column]) -> str:
    """All that comes in a step is of its last tick."""
    return CONSOLIDATED(self, f"SELECT * REPLACE (max({TIME}) OVER () AS {TIME}) FROM ({source})", columns)


def never_alone(self: joining.Join, matched: str) -> str:
    """Who finds a match stays alone as well."""
    return f"SELECT * FROM ({UNMATCHED(self, matched)}) LIMIT 0"


KEPT, LACKING = touched.Front.kept, touched.Front.lacking
JOIN, UNMATCHED = joining.Join.__init__, joining.Join.unmatched
CONSOLIDATED = Dialect.consolidated


@pytest.mark.parametrize(
    ("owner", "name", "fault", "shape", "first"),
    [
        (touched.Front, "kept", kept_rows, "max(price) AS most", 1),
        (touched.Front, "lacking", never_lacking, "max(price) AS most", 56),
        (joining.Join, "__init__", null_is_equal, "JOIN customers c ON o.customer = c.name WHERE", 5),
        (joining.Join, "unmatched", never_alone, "LEFT JOIN customers c ON o.customer = c.name AND", 0),
        (Dialect, "consolidated", merged, "count(*) AS n, sum(cents) AS total FROM orders GROUP BY customer", 0),
    ],
)
def test_a_fault_is_found(
    owner: object,
    name: str,
    fault: object,
    shape: str,
    first: int,
    engine: PlainEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within 100 seeds; `first` finds it, so that the test is quick."""
    monkeypatch.setattr(touched, "SPARE", 0)
    monkeypatch.setattr(duckflow, "JOINED_ROWS", 3)
    monkeypatch.setattr(owner, name, fault)
    query = next(each for each in SHAPES if shape in each)
    assert any(wrong_ticks(query, seed, engine, 8) for seed in range(first, 100))


def contents(sql: str, columns: str, rows: Sequence[tuple[Row, int, int]]) -> Counter[tuple[object, ...]]:
    """What a view over a table `t` holds after these updates."""
    made = parse(
        f"CREATE TABLE t ({columns}) USING waltz OPTIONS (partitions '0'); CREATE MATERIALIZED VIEW v AS {sql}"
    )
    with closing(PlainEngine()) as engine:
        view = engine.open(made).flow(made.views[0])
        out = view.step({"t": table_of(rows, arrow_schema(made.tables[0].columns))}, 10)
    held: Counter[tuple[object, ...]] = Counter()
    for row, _, diff in updates_of(out):
        held[row] += diff
    return +held


def test_sums_of_doubles_do_not_depend_on_their_order() -> None:
    values = [(1e16,), (1.0,), (-1e16,), (0.1,), (1.0,)]
    there = contents("SELECT sum(x) AS s FROM t", "x DOUBLE", [(row, 1, 1) for row in values])
    back = contents("SELECT sum(x) AS s FROM t", "x DOUBLE", [(row, 1, 1) for row in reversed(values)])
    assert there == back == Counter({(math.fsum(value for (value,) in values),): 1})


def test_nan_and_zero_are_one_value_each() -> None:
    rows = [((float("nan"),), 1, 1), ((float("nan"),), 2, -1), ((-0.0,), 1, 1), ((0.0,), 3, 1)]
    assert contents("SELECT x, count(*) AS n FROM t GROUP BY x", "x DOUBLE", rows) == Counter({(0.0, 2): 1})


def test_decimals_are_added_exactly() -> None:
    rows = [((Decimal("99999999999999999999.99"),), 1, 1), ((Decimal("0.01"),), 1, 1), ((Decimal("0.01"),), 2, 1)]
    wanted = Counter({(Decimal("100000000000000000000.01"),): 1})
    assert contents("SELECT sum(x) AS s FROM t", "x DECIMAL(22,2)", rows) == wanted


@pytest.mark.parametrize("sql", ["SELECT sum(x) AS s FROM t", "SELECT x + x AS s FROM t"])
def test_a_number_out_of_range_is_said(sql: str) -> None:
    with pytest.raises(ViewError, match=r"out of range|does not fit"):
        contents(sql, "x BIGINT", [((2**62,), 1, 1), ((2**62,), 1, 1)])


def test_texts_that_grow_without_measure_end_their_view(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, many = "id BIGINT, s STRING", [((number, "ab" * 500), 1, 1) for number in range(300)]
    found = contents("SELECT id, s || s AS x FROM t WHERE id <> 7", columns, many)
    assert found == Counter({(number, "ab" * 1000): 1 for number in range(300) if number != 7})
    monkeypatch.setattr(growth, "MADE_BYTES_MAX", 1 << 20)
    for expression in (" || ".join(["s"] * 8), f"CASE WHEN id > 0 THEN '{'x' * 4000}' || s END"):
        with pytest.raises(ViewError, match="the texts that it joins are larger than"):
            contents(f"SELECT id, {expression} AS x FROM t", columns, many)
    with pytest.raises(ViewError, match="the texts that it joins are larger than"):  # one row is too large already
        contents("SELECT s || s AS x FROM t", "s STRING", [(("a" * (1 << 20),), 1, 1)])
    with pytest.raises(ViewError, match="the texts that it joins are larger than"):
        contents(f"SELECT {' || '.join(['x'] * 8)} AS x FROM t", columns.replace("s ", "x ") + ", s STRING",
                 [((*row, "a"), tick, diff) for row, tick, diff in many])  # fmt: skip
    # What stands beside the joined columns does not count.
    found = contents(f"SELECT {' || '.join(['w'] * 8)} AS x, s FROM t", columns + ", w STRING",
                     [((*row, "a"), tick, diff) for row, tick, diff in many])  # fmt: skip
    assert found == Counter({("a" * 8, "ab" * 500): 300})


def shown(expression: str, columns: str, *rows: tuple[object, ...]) -> list[object]:
    """What an expression over the columns of a row is, for each row."""
    numbered = [((number, *row), 1, 1) for number, row in enumerate(rows)]
    found = contents(f"SELECT number, {expression} AS x FROM t", f"number BIGINT, {columns}", numbered)
    return [x for _, x in sorted(found, key=lambda row: str(row[0]).zfill(9))]


def test_a_time_is_in_utc_wherever_the_process_runs() -> None:
    program = """
from datetime import UTC, datetime
from tests.services.dataflow.test_flow import shown
rows = [(datetime(2026, 3, day, 2, 30, tzinfo=UTC),) for day in (8, 9)]
print(shown("CAST(CAST(ts AS DATE) AS STRING)", "ts TIMESTAMP", *rows))
print(shown("ts", "ts TIMESTAMP", *rows) == [*map(max, rows)])
"""
    for zone in ("UTC", "America/New_York", "Europe/Berlin"):
        told = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True
        )
        assert told.stdout.split("\n") == ["['2026-03-08', '2026-03-09']", "True", ""], zone


def test_not_like_is_the_opposite_of_like() -> None:
    rows = [((text,), 1, 1) for text in ("ab", "b", "xb", "a", None)]
    assert contents("SELECT s FROM t WHERE s NOT LIKE '%b'", "s STRING", rows) == Counter({("a",): 1})
    assert contents("SELECT s FROM t WHERE NOT s NOT LIKE 'x%'", "s STRING", rows) == Counter({("xb",): 1})
    grouped = "SELECT s, count(*) AS n FROM t GROUP BY s HAVING s NOT LIKE '%b'"
    assert contents(grouped, "s STRING", rows) == Counter({("a", 1): 1})


def test_string_literals_are_those_of_spark() -> None:
    written = {
        "'q''q'": "q'q",
        "''''": "'",
        "'q' 'q'": "qq",
        '"q""q"': 'q"q',
        r"'a\nb\\c\'d'": "a\nb\\c'd",
        r"'\u00e9\101\q'": "éAq",
        "''": "",
    }
    for text, value in written.items():
        assert shown(text, "s STRING", ("x",)) == [value], text
        assert contents(f"SELECT s FROM t WHERE s = {text}", "s STRING", [((value,), 1, 1)]) == Counter({(value,): 1})


def test_a_cast_to_a_narrow_integer_is_of_its_range() -> None:
    assert shown("CAST(i AS INT) + 1", "i BIGINT", (2**31 - 1,), (None,)) == [2**31, None]
    with pytest.raises(ViewError, match="out of range"):
        shown("CAST(i AS INT)", "i BIGINT", (2**31,))


def test_decimals_of_two_types_are_compared_exactly() -> None:
    rows = ((Decimal("9" * 30),), (Decimal(1),), (Decimal(0),))
    assert shown("p > 0.5", "p DECIMAL(30,0)", *rows) == [True, True, False]
    assert shown("p IN (1.5, 1)", "p DECIMAL(30,0)", *rows) == [False, True, False]
    both = ((None, Decimal("9" * 20)), (Decimal("0.5"), None))
    assert shown("coalesce(p, q)", "p DECIMAL(11,10), q DECIMAL(20,0)", *both) == [Decimal("9" * 20), Decimal("0.5")]
    with pytest.raises(SqlError, match=r"a comparison of .* needs 39 digits, DECIMAL has 38"):
        shown("p > 0.5", "p DECIMAL(38,0)", *rows)


def test_between_compares_each_side_in_its_own_type() -> None:
    assert shown("n BETWEEN m AND x", "n BIGINT, m BIGINT, x DOUBLE", (2**53, 2**53 + 1, 1e300)) == [False]


def test_a_whole_number_counts_as_many_digits_as_spark_says() -> None:
    assert shown("n * p", "n BIGINT, p DECIMAL(17,10)", (2, Decimal("1.5"))) == [Decimal(3)]
    with pytest.raises(SqlError, match="the result needs 39 digits"):  # Spark would round the last one away
        shown("n * p", "n BIGINT, p DECIMAL(18,10)", (2, Decimal("1.5")))


def test_decimals_are_multiplied_and_added_in_full() -> None:
    most = Decimal("99999999999999.9999")
    assert shown("p * p", "p DECIMAL(18,4)", (most,)) == [Decimal("9999999999999999980000000000.00000001")]
    assert shown("p + p", "p DECIMAL(18,4)", (most,)) == [most + most]
    exact = Decimal("0.12345678901234567891")
    assert shown("CAST(p AS DOUBLE)", "p DECIMAL(38,20)", (exact,)) == [float(exact)]


def test_case_and_blanks_are_those_of_spark() -> None:
    words = [("ß",), ("İ",), ("ΑΣ ΣΑΣ.",), ("ŉ",), ("\u00a0a\u3000",), (" \ta ",), (None,)]
    assert shown("upper(s)", "s STRING", *words)[:4] == ["SS", "İ", "ΑΣ ΣΑΣ.", "ʼN"]
    assert shown("lower(s)", "s STRING", *words)[:4] == ["ß", "i̇", "ας σας.", "ŉ"]
    nested = "s"
    for _ in range(6):  # each level costs as much as the one before
        nested = f"lower(upper({nested}))"
    assert shown(nested, "s STRING", *words)[0] == "ss"
    assert shown("trim(s)", "s STRING", *words)[4:] == ["\u00a0a\u3000", "\ta", None]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ((1e308, 1e308, -1e308), 1e308),
        ((1e308, 1e308), math.inf),
        ((-1e308, -1e308), -math.inf),
        ((1e308, 1e308, -1e308, -1e308, 0.1), 0.1),
    ],
)
def test_a_sum_of_doubles_may_be_too_large_on_its_way(values: tuple[float, ...], wanted: float) -> None:
    rows = [((value,), 1, 1) for value in values]
    assert contents("SELECT sum(x) AS s FROM t", "x DOUBLE", rows) == Counter({(wanted,): 1})


def steps_of(options: str, columns: str, *steps: Sequence[tuple[Row, int, int]]) -> list[set[tuple[Row, int, int]]]:
    """What a view over all columns of a table says at each step."""
    made = parse(
        f"CREATE TABLE t ({columns}) USING waltz OPTIONS (partitions '0', {options});"
        f"CREATE MATERIALIZED VIEW v AS SELECT {', '.join(each.split()[0] for each in columns.split(','))} FROM t"
    )
    with closing(PlainEngine()) as engine:
        view, schema = engine.open(made).flow(made.views[0]), arrow_schema(made.tables[0].columns)
        return [set(updates_of(view.step({"t": table_of(rows, schema)}, 10))) for rows in steps]


def test_a_row_that_was_taken_back_before_it_came_is_not_there() -> None:
    early, late, more = [(("a",), 1, -1)], [(("a",), 2, 1), (("b",), 2, 1)], [(("a",), 3, 2)]
    gone = [(("b",), 4, -1), (("a",), 5, -2)]
    held = steps_of("diff 'true'", "s STRING", early, late, more, gone)
    assert held == [set(), {(("b",), 2, 1)}, {(("a",), 3, 2)}, set(gone)]


def test_a_key_alone_deletes_and_the_last_row_of_a_tick_counts() -> None:
    first = [((1, "x", 2), 4, 1), ((1, "y", 2), 4, 1), ((3, "x", None), 4, 1), ((7, None, 7), 4, 1)]
    second = [((None, "x", None), 5, 1), ((None, "z", None), 5, 1), ((1, "y", 2), 6, 1), ((8, None, 8), 6, 1)]
    many = [((number, "w", number), 7, 1) for number in range(3000)]
    held = steps_of("key 'k'", "a BIGINT, k STRING, b BIGINT", first, second, many, many[:2000])
    assert held == [
        {((3, "x", None), 4, 1), ((1, "y", 2), 4, 1), ((7, None, 7), 4, 1)},
        {((3, "x", None), 5, -1), ((7, None, 7), 6, -1), ((8, None, 8), 6, 1)},
        {((2999, "w", 2999), 7, 1)},
        {((2999, "w", 2999), 7, -1), ((1999, "w", 1999), 7, 1)},
    ]


def test_a_table_with_a_key_may_have_columns_called_as_the_engine_calls_its_own() -> None:
    """Of `t` two rows of a key were there at once, of `c0` one row took the place of another key's."""
    rows = [((1, 10, 9), 1, 1), ((2, 10, 8), 1, 1), ((2, 20, 7), 1, 1)]
    for columns in (
        "k BIGINT, t BIGINT, c0 BIGINT",
        "k BIGINT, c0 BIGINT, __place BIGINT",
        "k BIGINT, n BIGINT, t BIGINT",
    ):
        assert steps_of("key 'k'", columns, rows) == [{rows[0], rows[2]}], columns


def test_sums_of_random_doubles_are_rounded_once() -> None:
    random = Random(7)
    kinds: tuple[Callable[[], float], ...] = (
        lambda: random.uniform(-1, 1),
        lambda: random.choice((1, -1)) * 2.0 ** random.randrange(-1074, 1023),
        lambda: random.choice((5e-324, -5e-324, 2.0**-1022, 1e308, -1e308, 2.0**53 + 1, 0.1)),
        lambda: math.ldexp(random.getrandbits(53), random.randrange(-1070, 960)),
    )
    groups = []
    for _ in range(300):
        kind = random.choice(kinds)
        values = [kind() for _ in range(random.randrange(1, 9))]
        groups.append(values + [-value * (1 + random.choice((0, 2.0**-52))) for value in values[: random.randrange(9)]])
    rows = [((number, value), 1, 1) for number, values in enumerate(groups) for value in values]
    random.shuffle(rows)
    found = contents("SELECT k, sum(x) AS s FROM t GROUP BY k", "k BIGINT, x DOUBLE", rows)
    exact = [sum(map(Fraction, values), Fraction()) for values in groups]
    most = Fraction(math.nextafter(math.inf, 0)) + Fraction(2) ** 970  # from here on infinity is nearer
    wanted = [float(e) if abs(e) < most else (math.inf if e > 0 else -math.inf) for e in exact]
    assert found == Counter((number, value) for number, value in enumerate(wanted))


def test_an_aggregate_over_nothing_has_one_row() -> None:
    assert contents("SELECT count(*) AS n, sum(x) AS s FROM t", "x BIGINT", []) == Counter({(0, None): 1})


@pytest.mark.parametrize("group", ["", " GROUP BY k"])
@pytest.mark.parametrize(("kind", "value"), [("BIGINT", 7), ("DOUBLE", 0.5), ("DECIMAL(9, 2)", Decimal("1.25"))])
def test_an_aggregate_is_null_again_when_its_last_value_is_taken_back(kind: str, value: object, group: str) -> None:
    made = parse(
        f"CREATE TABLE t (k BIGINT, x {kind}) USING waltz OPTIONS (partitions '0', diff 'true');"
        f"CREATE MATERIALIZED VIEW v AS SELECT sum(x) AS s, min(x) AS a, max(x) AS b, min(x > 0) AS every,"
        f" max(x > 0) AS one, count(x) AS n FROM t{group}"
    )
    schema, held = arrow_schema(made.tables[0].columns), Counter[Row]()
    with closing(PlainEngine()) as engine:
        view = engine.open(made).flow(made.views[0])
        for tick, (row, diff) in enumerate([((1, None), 1), ((1, value), 1), ((1, value), -1)], 1):
            for found, _, change in updates_of(view.step({"t": table_of([(row, tick, diff)], schema)}, tick + 1)):
                held[found] += change
            ((aggregates, count),) = ((row, count) for row, count in held.items() if count)
            assert count == 1
            assert aggregates == ((value, value, value, True, True, 1) if tick == 2 else (*[None] * 5, 0))


def test_the_least_number_has_a_remainder() -> None:
    assert shown("x % y", "x BIGINT, y BIGINT", (-(2**63), -1), (-7, 3), (7, 0)) == [0, -1, None]


def test_what_duckdb_does_not_take_is_a_fault_of_the_view() -> None:
    with pytest.raises(ViewError, match="DuckDB does not take"), duckflow.told_apart():
        duckdb.sql("SELECT sum(1) OVER (ORDER BY 1 ROWS BETWEEN 1 FOLLOWING AND CURRENT ROW)")


def test_a_division_by_zero_is_null() -> None:
    assert contents("SELECT x / 0 AS d, x % 0 AS m FROM t", "x BIGINT", [((7,), 1, 1)]) == Counter({(None, None): 1})


def test_the_random_changes_reach_all_kinds_of_updates() -> None:
    made = script(SHAPES[0])
    changes = Changes(Random(3), {table.name: table for table in made.tables})
    diffs = Counter(diff for tick in range(1, 30) for made_ in changes.tick(tick).values() for _, _, diff in made_)
    assert diffs[1] > 20
    assert diffs[-1] > 20
    assert isinstance(table_of((), pa.schema([])), pa.Table)


@pytest.mark.parametrize("join", ["LEFT JOIN", "JOIN"])
def test_what_is_joined_at_no_tick_is_not_computed_with(join: str) -> None:
    """It would be out of range."""
    made = parse(
        "CREATE TABLE a (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0', diff 'true');"
        "CREATE TABLE b (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '1', diff 'true');"
        f"CREATE MATERIALIZED VIEW v AS SELECT CAST(coalesce(b.x, {2**40}) AS INT) AS y FROM a {join} b ON a.k = b.k"
    )
    schema = arrow_schema(made.tables[0].columns)
    with closing(PlainEngine()) as engine:
        view = engine.open(made).flow(made.views[0])
        first = {"a": table_of([], schema), "b": table_of([((1, 2**40), 1, 1), ((1, 3), 1, 1)], schema)}
        assert list(updates_of(view.step(first, 2))) == []
        then = {"a": table_of([((1, 0), 3, 1)], schema), "b": table_of([((1, 2**40), 2, -1)], schema)}
        assert list(updates_of(view.step(then, 4))) == [((3,), 3, 1)]
