"""Spark evaluates views as DuckDB does, at every tick."""

from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pavane.dataflow.ports import EngineError, ViewError
from pavane.dataflow.rows import table_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from pavane.spark.engine import SparkEngine
from tests.services.dataflow.oracle import SHAPES, wrong_ticks

TICKS = 8  # each step is a job or two of 0.1 s


@pytest.fixture
def engine(spark: SparkSession) -> SparkEngine:
    return SparkEngine(spark)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_view_is_its_query_at_every_tick(shape: str, engine: SparkEngine) -> None:
    assert wrong_ticks(shape, 5, engine, TICKS) == []


def test_values_come_back_as_they_went(engine: SparkEngine) -> None:
    table = pa.table({"a": pa.array([Decimal("1.50"), None], pa.decimal128(12, 2)), "b": pa.array([b"\0", b""])})
    found = engine.evaluate("SELECT a, b FROM input WHERE a IS NOT NULL", {"input": table})
    assert found.to_pylist() == [{"a": Decimal("1.50"), "b": b"\0"}]


def test_what_goes_wrong_is_told_apart(engine: SparkEngine) -> None:
    table = pa.table({"a": pa.array([2**62], pa.int64())})
    with pytest.raises(ViewError, match="out of range"):
        engine.evaluate("SELECT a + a AS b FROM input", {"input": table})
    with pytest.raises(EngineError, match="Spark: "):
        engine.evaluate("SELECT nothing FROM input", {"input": table})


def test_the_average_of_a_window_does_not_end_where_a_sum_would(engine: SparkEngine) -> None:
    made = parse(
        "CREATE TABLE t (k BIGINT, x BIGINT) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW v AS SELECT k, avg(x) OVER () AS m FROM t"
    )
    rows = [((number, 2**62), 1, 1) for number in range(4)]
    flow = engine.open(made).flow(made.views[0])
    found = flow.step({"t": table_of(rows, arrow_schema(made.tables[0].columns))}, 2)
    assert {row["m"] for row in found.to_pylist()} == {2.0**62}
