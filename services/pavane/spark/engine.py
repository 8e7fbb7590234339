"""The engine on Spark: the driver feeds it Arrow, and gets Arrow back (docs/specs/compute.md 16.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pavane.dataflow.duckstate import DuckState, Files
from pavane.dataflow.ports import EngineError, Script, State
from pavane.spark.faults import said, told_apart
from pavane.spark.kept import Keeping, SparkState
from pavane.spark.runs import signed
from pavane.spark.session import builder
from pavane.spark.tables import Place

REMEMBERED = "10"
"""Jobs, and queries with their plans, that Spark keeps for a page that nobody opens: by default 1,000 of each."""
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": REMEMBERED,
    "spark.ui.retainedStages": REMEMBERED,
    "spark.sql.ui.retainedExecutions": REMEMBERED,
    "spark.sql.constraintPropagation.enabled": "false",  # columns have two names each here, too
}


def started(made: SparkSession.Builder) -> SparkSession:
    """Return a session that evaluates as views need it. Raises `EngineError`."""
    try:
        return made.config(map=SETTINGS).getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        what = " ".join(said(error).splitlines()[:2])  # what was called, and the error without its trace
        _forget_jvm()
        raise EngineError(f"Spark did not start: {what}") from error


class SparkEngine:
    """Evaluates a SELECT with Spark, without a session on this machine. Blocks; not thread-safe; starts in seconds.

    `keeping` is where executors and driver keep state; without it the driver does, in its memory. Executors read the
    log at `place`; without it the driver does.
    """

    def __init__(
        self,
        session: SparkSession | None = None,
        *,
        start: Callable[[], SparkSession] | None = None,
        keeping: Keeping | None = None,
        place: Place | None = None,
    ) -> None:
        self._own = session is None
        self._keeping = keeping
        self._place = place
        self._opened: dict[str, SparkState] = {}
        self._session = session or (start() if start is not None else started(builder("pavane sql")))
        self._session.sparkContext.setLogLevel("ERROR")

    def evaluate(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of one SELECT in Spark's SQL over these tables.

        Raises `ViewError` for a value out of range, `EngineError` for anything else, also for a JVM that died.
        """
        with told_apart():
            for name, table in tables.items():
                self._session.createDataFrame(signed(table)).createOrReplaceTempView(name)
            return self._session.sql(sql).toArrow()

    def open(self, script: Script) -> State:
        """Make the state of a script's views, or open what was kept of it. Raises `EngineError`.

        Without ``keeping``, and for views that executors cannot hold, DuckDB has it in the memory of the driver.
        """
        keeping, name = self._keeping, script.views[0].name if script.views else ""
        held = self._opened.get(name)  # a namesake, which only a foreign controller makes, has no place of its own
        if keeping is None or (held is not None and not held.closed):
            return DuckState(script, Files(), self.evaluate)
        flow = DuckState(script, Files(), self.evaluate).flow
        state = self._opened[name] = SparkState(self._session, script, keeping, self._place, flow)
        return state

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


def _forget_jvm() -> None:
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with its input
        gateway.proc.wait()
