"""Views are exact at every tick, whatever is inserted, changed and deleted."""

import math
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest

from pavane.dataflow import flow
from pavane.dataflow.flow import ViewFlow
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import ViewError
from pavane.dataflow.rows import Multiset, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from tests.services.dataflow.oracle import SHAPES, Changes, script, wrong_ticks

SEEDS = 2  # 20 s; many more were played while the operators were written


@pytest.fixture(scope="module")
def engine() -> PlainEngine:
    return PlainEngine()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_view_is_its_query_at_every_tick(shape: str, engine: PlainEngine) -> None:
    assert {seed: wrong for seed in range(SEEDS) if (wrong := wrong_ticks(shape, seed, engine))} == {}


def broken_multiset(self: Multiset, row: tuple[object, ...], diff: int) -> None:
    """Retractions are dropped."""
    if diff > 0:
        self.counts[row] = self.counts.get(row, 0) + diff


def first_float(self: flow.Sum, value: object, diff: int) -> None:
    """Sums are those of floats, rounded to what a double of half the size holds."""
    self._count += diff
    self._sum = float(f"{float(self._sum) + float(value) * diff:.2g}")  # type: ignore[arg-type]


def never_left(self: flow.Join, keys: int, left: bool, width: int) -> None:
    """Rows without a match are forgotten."""
    del left
    ORIGINAL(self, keys, False, width)


ORIGINAL = flow.Join.__init__


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [(Multiset, "add", broken_multiset), (flow.Sum, "add", first_float), (flow.Join, "__init__", never_left)],
)
def test_a_fault_is_found(
    owner: type, name: str, fault: object, engine: PlainEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, fault)
    found = []
    for shape in SHAPES:
        try:
            found += wrong_ticks(shape, 1, engine)
        except (ViewError, KeyError):
            found.append(0)
        if found:
            return
    raise AssertionError(f"nobody noticed: {fault!r}")


def contents(sql: str, columns: str, rows: Sequence[flow.Update]) -> Counter[tuple[object, ...]]:
    """What a view over a table `t` holds after these updates."""
    made = parse(
        f"CREATE TABLE t ({columns}) USING waltz OPTIONS (partitions '0'); CREATE MATERIALIZED VIEW v AS {sql}"
    )
    view = ViewFlow(made.views[0], PlainEngine())
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


def test_an_aggregate_over_nothing_has_one_row() -> None:
    assert contents("SELECT count(*) AS n, sum(x) AS s FROM t", "x BIGINT", []) == Counter({(0, None): 1})


def test_a_division_by_zero_is_null() -> None:
    assert contents("SELECT x / 0 AS d, x % 0 AS m FROM t", "x BIGINT", [((7,), 1, 1)]) == Counter({(None, None): 1})


def test_the_random_changes_reach_all_kinds_of_updates() -> None:
    made = script(SHAPES[0])
    changes = Changes(Random(3), {table.name: table for table in made.tables})
    diffs = Counter(diff for tick in range(1, 30) for made_ in changes.tick(tick).values() for _, _, diff in made_)
    assert diffs[1] > 20
    assert diffs[-1] > 20
    assert isinstance(table_of((), pa.schema([])), pa.Table)
