"""Random queries over random changes: at every tick a view is what Spark's batch answers, with both engines.

`SEEDS=300` plays so many, `PAVANE_SEED=17` one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Engine
from pavane.dataflow.rows import Row
from pavane.dataflow.types import arrow_schema
from pavane.spark.engine import SparkEngine
from pavane.spark.kept import Keeping
from tests.services.dataflow.grammar import TICKS, Case, case, comparable, played

SEEDS = int(os.environ.get("SEEDS", "300"))
OUT_OF_RANGE = ("ARITHMETIC_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE", "CAST_OVERFLOW")
SPARK_EVERY = 4
"""Of the seeds one in so many is played with the engine on Spark, too: it needs a job for each step of each SELECT."""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> Iterator[SparkSession]:
    changed = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
    }
    before = {name: spark.conf.get(name) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    yield spark
    for name, was in before.items():
        if was is not None:
            spark.conf.set(name, was)


def batch(session: SparkSession, made: Case) -> list[Counter[Row] | None]:
    """Return what Spark answers over the tables at each tick; None where a value is out of range.

    One query for all ticks: planning one costs more than its rows.
    """
    for table in made.script.tables:
        schema = arrow_schema(table.columns)
        rows = [
            (tick, *row)
            for tick, contents in enumerate(made.contents, 1)
            for row in contents.get(table.name, Counter()).elements()
        ]
        kinds = [pa.int64(), *schema.types]
        arrays = [pa.array([row[place] for row in rows], kind) for place, kind in enumerate(kinds)]
        session.createDataFrame(pa.table(arrays, names=["tick", *schema.names])).createOrReplaceTempView(table.name)
    try:
        return _answers(session, made, range(1, TICKS + 1))
    except PySparkException as error:
        if not (error.getCondition() or "").startswith(OUT_OF_RANGE):
            raise
    found: list[Counter[Row] | None] = []
    for tick in range(1, TICKS + 1):
        try:
            found += _answers(session, made, [tick])
        except PySparkException as error:
            if not (error.getCondition() or "").startswith(OUT_OF_RANGE):
                raise
            found.append(None)
    return found


def _answers(session: SparkSession, made: Case, ticks: range | list[int]) -> list[Counter[Row] | None]:
    parts = []
    for tick in ticks:
        for table in made.script.tables:
            names = ", ".join(column.name for column in table.columns)
            session.sql(f"SELECT {names} FROM {table.name} WHERE tick = {tick}").createOrReplaceTempView(
                f"{table.name}_{tick}"
            )
        parts.append(f"SELECT {tick} AS tick__, q.* FROM ({made.query.at(tick)}) AS q")
    found: dict[int, Counter[Row]] = {tick: Counter() for tick in ticks}
    table = session.sql(" UNION ALL ".join(parts)).toArrow()
    for tick, *row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        found[tick][comparable(tuple(row))] += 1
    return list(found.values())


def differences(made: Case, wanted: list[Counter[Row] | None], engine: Engine) -> list[str]:
    """Return the ticks at which a view is not what Spark's batch says."""
    found = played(made, engine)
    if isinstance(found, str):
        return [] if None in wanted else [f"stopped: {found}"]
    return [
        f"tick {tick}: {sorted((have - want).items(), key=repr)} instead of {sorted((want - have).items(), key=repr)}"
        for tick, (have, want) in enumerate(zip(found, wanted, strict=True), 1)
        if want is not None and have != want
    ]


@pytest.mark.timeout(3000)
def test_views_are_what_spark_answers_at_every_tick(session: SparkSession, tmp_path: Path) -> None:
    one = os.environ.get("PAVANE_SEED")
    keeping = Keeping(str(tmp_path), durable=False)  # else DuckDB would keep the state, in the driver
    engines: dict[str, Engine] = {"plain": PlainEngine(), "spark": SparkEngine(session, keeping=keeping)}
    wrong: dict[str, object] = {}
    answered = 0
    for seed in [int(one)] if one else range(SEEDS):
        made = case(seed)
        try:
            wanted = batch(session, made)
        except PySparkException as error:
            wrong[f"{seed}: {made.query.view}"] = f"Spark refuses it: {str(error)[:300]}"
            continue
        answered += sum(bool(rows) for rows in wanted)
        for name, engine in engines.items():
            if name == "plain" or one or seed % SPARK_EVERY == 0:
                different = differences(made, wanted, engine)
                if different:
                    wrong[f"{seed} on {name}: {made.query.view}"] = different[:2]
    assert wrong == {}
    assert one or answered > SEEDS * TICKS // 3  # many queries have rows
