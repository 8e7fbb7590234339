"""What Spark raises, as what the pipeline makes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pavane.dataflow.ports import EngineError, ViewError

DATA_EXCEPTION = "22"
"""The class of SQLSTATE of a value that does not fit, or that a function does not take."""


@contextlib.contextmanager
def told_apart() -> Iterator[None]:
    """Raise `ViewError` for a value out of range, `EngineError` for anything else, also for a JVM that died."""
    try:
        yield
    except PySparkException as error:
        raise _refused(error) from error
    except (Py4JError, OSError) as error:
        raise EngineError(f"Spark's JVM does not answer: {said(error)}") from error


def _refused(error: PySparkException) -> EngineError | ViewError:
    with contextlib.suppress(Py4JError, OSError):
        if (error.getSqlState() or "").startswith(DATA_EXCEPTION):
            return ViewError(f"a value is out of range: {error.getMessage()}")
    return EngineError(f"Spark: {said(error)}")


def said(error: Exception) -> str:
    """Return what an error says: of many only the JVM knows, which may have ended."""
    try:
        return str(error)
    except (Py4JError, OSError):
        return type(error).__name__
