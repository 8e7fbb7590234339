"""One SELECT over views, answered by DuckDB: what it names, and what it may cost (docs/specs/compute.md 14.7, 16.7)."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp
from sqlglot.errors import SqlglotError

from pavane.dataflow.ports import DIFF, TIME
from pavane.dataflow.reading import statements_of

# The parser warns of what it does not know; DuckDB refuses it.
logging.getLogger("sqlglot").setLevel(logging.ERROR)
_COUNT = "__count"
_QUOTED = re.compile(r'"([^"]+)"|name (\w+)|column (\w+)')
FETCHED_ROWS = 2048
"""Of a result at once, so that one that is too large is noticed before it is whole."""


class QueryError(Exception):
    """A query cannot be answered: what is wrong with it, and where (both from 1; 0 = nobody knows)."""

    def __init__(self, text: str, line: int = 0, column: int = 0) -> None:
        self.text, self.line, self.column = text, line, column
        super().__init__(f"line {line}, column {column}: {text}" if line else text)


class QueryTooLarge(QueryError):
    """The answer, or the way to it, is larger than what was agreed."""


class QueryTooSlow(QueryError):
    """The query takes longer than what was agreed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may cost; None = what it takes."""

    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    memory: str = "1GB"
    """As DuckDB writes it, of all queries of one evaluator."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a view is at a tick: updates that add up to it."""

    schema: pa.Schema
    tick: int
    updates: tuple[pa.Table, ...]

    @property
    def size(self) -> int:
        """Updates in all."""
        return sum(part.num_rows for part in self.updates)


class Query:
    """A SELECT in Spark's SQL. Raises `QueryError`."""

    def __init__(self, sql: str) -> None:
        self._text = sql
        try:
            statements = statements_of(sql)
        except (SqlglotError, RecursionError, ValueError) as error:
            raise _unreadable(error) from None
        if len(statements) != 1 or not isinstance(statements[0], exp.Query):
            raise QueryError("a query is one SELECT", 1, 1)
        self._select = statements[0]

    def views(self, known: Iterable[str]) -> list[str]:
        """Return the views that it reads. Raises `QueryError` for one that there is not."""
        inner = {each.alias.lower() for each in self._select.find_all(exp.CTE)}
        names = {name.lower(): name for name in known}
        found: dict[str, None] = {}
        for table in self._select.find_all(exp.Table):
            if not isinstance(table.this, exp.Identifier):
                raise self._error(f"{table.sql(dialect='spark')} is no view", table)
            name = table.name.lower()
            if name in names and not table.db:
                found[names[name]] = None
            elif name not in inner or table.db:
                raise self._error(
                    f"there is no view {table.sql(dialect='spark')}; "
                    f"views here: {', '.join(sorted(names.values())) or 'none'}",
                    table,
                )
        return list(found)

    def translated(self) -> str:
        """Return it in DuckDB's SQL."""
        return self._select.sql(dialect="duckdb")

    def refused(self, error: duckdb.Error) -> QueryError:
        """Return what DuckDB says of it, at the place of the name that it speaks of."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = " ".join(line for line in lines[:2] if not line.startswith(("LINE", "^")))
        named = {(a or b or c).lower() for a, b, c in _QUOTED.findall(text)}
        for node in self._select.walk():
            if isinstance(node, exp.Identifier | exp.Anonymous) and node.name.lower() in named:
                return self._error(text, node)
        return QueryError(text)

    def _error(self, text: str, node: exp.Expr) -> QueryError:
        starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
        if not starts:
            return QueryError(text, 1, 1)
        before = self._text[: min(starts)]
        return QueryError(text, before.count("\n") + 1, min(starts) - (before.rfind("\n") + 1) + 1)


def _unreadable(error: Exception) -> QueryError:
    first: dict[str, Any] = (getattr(error, "errors", None) or [{}])[0]
    text = str(first.get("description") or str(error).partition("\n")[0] or "nested too deeply")
    text = text.partition(" but got <")[0].rstrip(".")
    return QueryError(f"this is no SQL: {text}", int(first.get("line") or 1), int(first.get("col") or 1))


class Evaluator:
    """Answers queries over contents of views. Its methods block, and may be called from several threads."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._database = duckdb.connect(
            config={
                "threads": 1,
                "enable_external_access": False,
                "memory_limit": self._limits.memory,
                "temp_directory": "",  # beyond its memory a query fails, and fills no disk
            }
        )

    def close(self) -> None:
        """Let go of memory."""
        self._database.close()

    def table(self, contents: Contents) -> pa.Table:
        """Return the rows of a view, each as often as it is there. Raises `QueryError` where a count is negative."""
        summed = self.consolidated(contents.schema, contents.updates, contents.tick)
        counts = summed.column(DIFF)
        rows = summed.select(contents.schema.names)
        if not rows.num_rows:
            return contents.schema.empty_table()
        least, most = pc.min(counts).as_py(), pc.max(counts).as_py()
        if least < 0:
            raise QueryError(f"a row is there {least} times: more rows were taken back than there were")
        if most > 1:
            places = [place for place, count in enumerate(counts.to_pylist()) for _ in range(count)]
            rows = rows.take(pa.array(places, pa.int64()))
        return rows.cast(contents.schema)

    def consolidated(self, schema: pa.Schema, updates: Iterable[pa.Table], tick: int) -> pa.Table:
        """Return the rows at a tick and how often each is there, as column `__diff`."""
        names = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in schema.names]
        cursor = self._cursor()
        try:
            cursor.register("updates", pa.concat_tables(updates))
            listed = ", ".join(names)
            text = (
                f"SELECT {listed}, sum({DIFF})::BIGINT AS {DIFF} FROM updates WHERE {TIME} <= {tick} "  # noqa: S608 - quoted
                f"GROUP BY {listed} HAVING sum({DIFF}) <> 0"
            )
            found = cursor.sql(text).to_arrow_table()
        finally:
            cursor.close()
        return found.cast(schema.append(pa.field(DIFF, pa.int64())))

    def answer(self, query: Query, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of a query. Raises `QueryError`."""
        limits = self._limits
        cursor = self._cursor()
        late = threading.Event()

        def stop() -> None:
            late.set()
            cursor.interrupt()

        timer = threading.Timer(limits.seconds, stop) if limits.seconds is not None else None
        if timer is not None:
            timer.start()
        try:
            for name, table in tables.items():
                cursor.register(name, table)
            return self._fetched(cursor.sql(query.translated()))
        except duckdb.OutOfMemoryException as error:
            raise QueryTooLarge(f"the query needs more than the {limits.memory} of memory that it may have") from error
        except duckdb.Error as error:
            if late.is_set():
                raise QueryTooSlow(f"the query takes longer than {limits.seconds:g} s") from error
            raise query.refused(error) from error
        finally:
            if timer is not None:
                timer.cancel()
            cursor.close()

    def _fetched(self, relation: duckdb.DuckDBPyRelation) -> pa.Table:
        limits = self._limits
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        reader = relation.to_arrow_reader(FETCHED_ROWS)
        for batch in reader:
            batches.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if limits.rows is not None and rows > limits.rows:
                raise QueryTooLarge(f"the answer has more than {limits.rows} rows: add LIMIT, or aggregate")
            if limits.bytes is not None and size > limits.bytes:
                raise QueryTooLarge(f"the answer has more than {limits.bytes} bytes: add LIMIT, or take fewer columns")
        return pa.Table.from_batches(batches, reader.schema)

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        cursor = self._database.cursor()
        cursor.execute("SET timezone = 'UTC'")
        return cursor
