"""TPC-H: what the views are in the end is what Spark answers over their tables, and so are the other wide queries."""

from collections import Counter
from contextlib import closing
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Script
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.sql import parse
from pavane.dataflow.types import arrow_schema
from pavane.spark.engine import SparkEngine
from tests.services.dataflow.oracle import rounded, wrong_ticks
from tests.services.dataflow.test_wide_queries import SHAPES
from tests.services.dataflow.tpch import QUERIES, TABLES, changes, contents

TICKS = 20
CHANGES = changes(Random(5), TICKS)
ON_SPARK = (5, 16, 21, 25, 27, 30)
"""Of the wide queries those that are played with the engine on Spark."""


def maintained(made: Script) -> Counter[Row]:
    """Return a view after all changes, most of which come in one step."""
    held, start = Counter[Row](), 1
    with closing(PlainEngine().open(made)) as state:
        flow = state.flow(made.views[0])
        for end in (2, TICKS // 2 + 1, TICKS, TICKS + 1):
            tables = {
                each.name: table_of(
                    [
                        (row, tick, diff)
                        for tick in range(start, end)
                        for name, row, diff in CHANGES[tick - 1]
                        if name == each.name
                    ],
                    arrow_schema(each.columns),
                )
                for each in made.tables
            }
            for row, _, diff in updates_of(flow.step(tables, end)):
                held[row] += diff
            start = end
    return +held


def answered(spark: SparkSession, made: Script, query: str) -> Counter[Row]:
    """Return what Spark answers over the tables at the end."""
    held = contents(CHANGES)
    for table in made.tables:
        schema = arrow_schema(table.columns)
        rows = list(held.get(table.name, Counter()).elements())
        arrays = [pa.array([row[place] for row in rows], each.type) for place, each in enumerate(schema)]
        spark.createDataFrame(pa.table(arrays, schema=schema)).createOrReplaceTempView(table.name)
    found = spark.sql(query).toArrow()
    for table in made.tables:
        spark.catalog.dropTempView(table.name)  # other tests share the session, and make an `orders` of their own
    schema = arrow_schema(made.views[0].columns)
    answer = zip(*(column.to_pylist() for column in found.columns), strict=True)
    return Counter(row for row, _, _ in updates_of(table_of(((row, 0, 1) for row in answer), schema)))


@pytest.mark.parametrize("number", range(len(QUERIES)), ids=lambda number: f"q{number + 1}")
def test_a_view_is_what_spark_answers(number: int, spark: SparkSession) -> None:
    made = parse(f"{TABLES}CREATE MATERIALIZED VIEW v AS {QUERIES[number]}")
    wanted = answered(spark, made, QUERIES[number])
    assert rounded(maintained(made)) == rounded(wanted)


@pytest.mark.parametrize("shape", ON_SPARK)
def test_executors_evaluate_wide_queries(shape: int, spark: SparkSession) -> None:
    assert wrong_ticks(SHAPES[shape], 5, SparkEngine(spark), 4) == []
