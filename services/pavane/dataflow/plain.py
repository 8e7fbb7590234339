"""The engine without Spark: DuckDB in this process (docs/specs/compute.md 16.3)."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa
import sqlglot

from pavane.dataflow.ports import EngineError, ViewError


class PlainEngine:
    """Evaluates a SELECT with DuckDB. Blocks; not thread-safe."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"threads": 1, "enable_external_access": False})
        self._translated: dict[str, str] = {}

    def evaluate(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of one SELECT in Spark's SQL over these tables.

        Raises `ViewError` for a value out of range, `EngineError` for anything else.
        """
        text = self._translated.get(sql)
        if text is None:
            text = self._translated[sql] = sqlglot.transpile(sql, read="spark", write="duckdb")[0]
        try:
            for name, table in tables.items():
                self._connection.register(name, _without_zones(table))
            return self._connection.sql(text).to_arrow_table()
        except (duckdb.OutOfRangeException, duckdb.ConversionException) as error:
            raise ViewError(f"a value is out of range: {error}") from error
        except duckdb.Error as error:
            raise EngineError(f"DuckDB: {error}") from error

    def close(self) -> None:
        """Let go of memory."""
        self._connection.close()


def _without_zones(table: pa.Table) -> pa.Table:
    """All times are UTC; said so, DuckDB would want its zone tables."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            plain = pa.timestamp(field.type.unit)
            table = table.set_column(place, field.with_type(plain), table.column(place).cast(plain))
    return table
