"""The engine without Spark: DuckDB in this process (docs/specs/compute.md 16.3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from pavane.dataflow.casing import macros
from pavane.dataflow.duckdialect import translated, without_zones
from pavane.dataflow.duckstate import DuckState, Files
from pavane.dataflow.flow import Built
from pavane.dataflow.ports import EngineError, Script, State, ViewError

MADE_BYTES_MAX = 1 << 30
"""Of the rows that one SELECT makes of a batch, where it joins texts: 30 views, each of which doubles what the one
before made, would else be a gigabyte for each byte."""
PIECE_BYTES = 16 << 20
"""What may come of the rows that are evaluated at once, so that a batch that makes too much is noticed early."""
TOO_LARGE = f"the texts that it joins are larger than {MADE_BYTES_MAX >> 20} MiB in one step"


class PlainEngine:
    """Evaluates a SELECT with DuckDB, and keeps the state of views in `files`. Blocks; not thread-safe."""

    def __init__(self, files: Files | None = None) -> None:
        self._files = files if files is not None else Files()
        self._states: list[DuckState] = []
        self._connection = duckdb.connect(config={"threads": 1, "enable_external_access": False})
        for macro in macros():
            self._connection.execute(macro)
        self._translated: dict[str, tuple[str, _Growth]] = {}

    def evaluate(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of one SELECT in Spark's SQL over these tables.

        Raises `ViewError` for a value out of range and texts without measure, `EngineError` for anything else.
        """
        known = self._translated.get(sql)
        if known is None:
            known = self._translated[sql] = translated(sql), _growth(sql)
        text, growth = known
        ((name, table),) = tables.items()  # row by row, so pieces of it make pieces of the result
        made: list[pa.Table] = []
        size = 0
        try:
            for piece in growth.pieces(table):
                self._connection.register(name, without_zones(piece))
                made.append(self._connection.sql(text).to_arrow_table())
                size += made[-1].nbytes
                if growth.texts and size > MADE_BYTES_MAX:
                    raise ViewError(TOO_LARGE)
            return pa.concat_tables(made)
        except (duckdb.OutOfRangeException, duckdb.ConversionException) as error:
            raise ViewError(f"a value is out of range: {error}") from error
        except duckdb.Error as error:
            raise EngineError(f"DuckDB: {error}") from error

    def open(self, script: Script) -> State:
        """See `Engine`."""
        state = DuckState(script, self._files, Built(self).flow)
        self._states.append(state)
        return state

    def close(self) -> None:
        """Let go of memory and files."""
        for state in self._states:
            state.close()
        self._connection.close()


@dataclass(frozen=True, slots=True)
class _Growth:
    """How large a SELECT can make a row."""

    texts: int
    """Columns that it joins to texts; of other functions no result is larger than what it is made of."""
    literals_bytes: int

    def pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows in pieces of which not too much can come. Raises `ViewError` for a row that is too large."""
        most = self.texts * table.nbytes + self.literals_bytes * table.num_rows
        if most <= PIECE_BYTES or table.num_rows <= 1:
            if most > MADE_BYTES_MAX:
                raise ViewError(TOO_LARGE)
            yield table
            return
        middle = table.num_rows // 2
        yield from self.pieces(table.slice(0, middle))
        yield from self.pieces(table.slice(middle))


def _growth(sql: str) -> _Growth:
    tree = sqlglot.parse_one(sql, dialect="spark")
    joined = [column for column in tree.find_all(exp.Column) if column.find_ancestor(exp.DPipe, exp.Concat)]
    return _Growth(len(joined), sum(len(each.name.encode()) for each in tree.find_all(exp.Literal) if each.is_string))
