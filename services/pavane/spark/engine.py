"""The engine on Spark: the driver feeds it Arrow, and gets Arrow back (docs/specs/compute.md 16.3)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pavane.dataflow.duckstate import DuckState, Files
from pavane.dataflow.ports import EngineError, Script, State, ViewError
from pavane.spark.session import builder

OUT_OF_RANGE = ("ARITHMETIC_OVERFLOW", "NUMERIC_VALUE_OUT_OF_RANGE", "CAST_OVERFLOW", "DECIMAL_PRECISION_EXCEEDS")


def started(made: SparkSession.Builder) -> SparkSession:
    """Return a session that evaluates as views need it. Raises `EngineError`."""
    settings = {"spark.sql.session.timeZone": "UTC", "spark.ui.showConsoleProgress": "false"}
    try:
        return made.config(map=settings).getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        what = " ".join(said(error).splitlines()[:2])  # what was called, and the error without its trace
        _forget_jvm()
        raise EngineError(f"Spark did not start: {what}") from error


class SparkEngine:
    """Evaluates a SELECT with Spark, without a session on this machine. Blocks; not thread-safe; starts in seconds."""

    def __init__(self, session: SparkSession | None = None, *, start: Callable[[], SparkSession] | None = None) -> None:
        self._own = session is None
        self._session = session or (start() if start is not None else started(builder("pavane sql")))
        self._session.sparkContext.setLogLevel("ERROR")

    def evaluate(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of one SELECT in Spark's SQL over these tables.

        Raises `ViewError` for a value out of range, `EngineError` for anything else, also for a JVM that died.
        """
        try:
            for name, table in tables.items():
                self._session.createDataFrame(_signed(table)).createOrReplaceTempView(name)
            return self._session.sql(sql).toArrow()
        except PySparkException as error:
            raise _refused(error) from error
        except (Py4JError, OSError) as error:
            raise EngineError(f"Spark's JVM does not answer: {said(error)}") from error

    def open(self, script: Script) -> State:
        """Make the state of a script's views, which DuckDB keeps in the memory of the driver."""
        return DuckState(script, Files(), self.evaluate)

    def close(self) -> None:
        """End the session, if it is our own. Where its JVM died, forget it, so that the next session starts another."""
        if not self._own:
            return
        try:
            self._session.stop()
        except (PySparkException, Py4JError, OSError):
            SparkContext._active_spark_context = None
            SparkSession._instantiatedSession = None
        _forget_jvm()


def _refused(error: PySparkException) -> EngineError | ViewError:
    with contextlib.suppress(Py4JError, OSError):
        if (error.getCondition() or "").startswith(OUT_OF_RANGE):
            return ViewError(f"a value is out of range: {error.getMessage()}")
    return EngineError(f"Spark: {said(error)}")


def said(error: Exception) -> str:
    """Return what an error says: of many only the JVM knows, which may have ended."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__


def _forget_jvm() -> None:
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with its input
        gateway.proc.wait()


def _signed(table: pa.Table) -> pa.Table:
    """Spark has no unsigned numbers; ticks are far below 2^63."""
    for place, field in enumerate(table.schema):
        if pa.types.is_uint64(field.type):
            table = table.set_column(place, field.with_type(pa.int64()), table.column(place).cast(pa.int64()))
    return table
