"""The engine without Spark: DuckDB in this process (docs/specs/compute.md 16.3)."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

import duckdb
import pyarrow as pa

from pavane.dataflow.casing import macros
from pavane.dataflow.duckdialect import translated, without_zones
from pavane.dataflow.duckstate import DuckState, Files
from pavane.dataflow.growth import Growth, growth_of
from pavane.dataflow.ports import EngineError, Script, State, ViewError


class PlainEngine:
    """Evaluates a SELECT with DuckDB, and keeps the state of views in `files`. Blocks; not thread-safe."""

    def __init__(self, files: Files | None = None) -> None:
        self._files = files if files is not None else Files()
        self._states: list[DuckState] = []
        self._lock = Lock()
        self._connection = duckdb.connect(config={"threads": 1, "enable_external_access": False})
        for macro in macros():
            self._connection.execute(macro)
        self._translated: dict[str, tuple[str, Growth]] = {}

    def evaluate(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of one SELECT in Spark's SQL over these tables.

        Raises `ViewError` for a value out of range and texts without measure, `EngineError` for anything else.
        """
        known = self._translated.get(sql)
        if known is None:
            known = self._translated[sql] = translated(sql), growth_of(sql)
        text, growth = known
        ((name, table),) = tables.items()  # row by row, so pieces of it make pieces of the result
        made: list[pa.Table] = []
        size = 0
        try:
            for piece in growth.pieces(table):
                with self._lock:
                    self._connection.register(name, without_zones(piece))
                    made.append(self._connection.sql(text).to_arrow_table())
                size += made[-1].nbytes
                growth.check(size)
            return pa.concat_tables(made)
        except (duckdb.OutOfRangeException, duckdb.ConversionException) as error:
            raise ViewError(f"a value is out of range: {error}") from error
        except duckdb.Error as error:
            raise EngineError(f"DuckDB: {error}") from error

    def open(self, script: Script) -> State:
        """See `Engine`."""
        state = DuckState(script, self._files)
        self._states.append(state)
        return state

    def close(self) -> None:
        """Let go of memory and files."""
        for state in self._states:
            state.close()
        self._connection.interrupt()  # a thread that nobody waits for any more may evaluate
        with self._lock:
            self._connection.close()
