"""DuckDB over contents of views: what one SELECT may cost, and what it is told (docs/specs/compute.md 14.7, 16.7)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.ports import DIFF, TIME

FETCHED_ROWS = 2048
"""Of a result at once, so that one that is too large is noticed before it is whole."""
COUNT_MAX = 2**63 - 1
"""Of one row."""
_OUT_OF_MEMORY = "Out of Memory Error"
"""How DuckDB begins what it says of it."""


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
    memory_bytes: int = 1 << 30
    """Of all queries of one evaluator."""

    @property
    def no_room(self) -> str:
        """What is said of a query that needs more memory."""
        return f"the query needs more than the {self.memory_bytes >> 20} MiB of memory that it may have"

    @property
    def no_time(self) -> str:
        """What is said of a query that takes longer."""
        return f"the query takes longer than {self.seconds:g} s"


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


class Evaluator:
    """Answers queries over contents of views. Its methods block, and may be called from several threads."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._database = duckdb.connect(
            config={
                "threads": 1,
                "enable_external_access": False,
                "memory_limit": f"{self._limits.memory_bytes}B",
                "temp_directory": "",  # beyond its memory a query fails, and fills no disk
            }
        )

    def close(self) -> None:
        """Let go of memory."""
        self._database.close()

    def counted(self, contents: Contents) -> pa.Table:
        """Return the rows of a view and how often each is there. Raises `QueryError` where a count is negative, or more
        than 64 bits can count."""
        summed = self.consolidated(contents.schema, contents.updates, contents.tick)
        if wrong := wrong_count(summed):
            raise QueryError(wrong)
        return summed

    def consolidated(self, schema: pa.Schema, updates: Iterable[pa.Table], tick: int) -> pa.Table:
        """Return the rows at a tick and how often each is there, as column `__diff`; at most `COUNT_MAX` times."""
        return self._summed(schema, updates, tick, f"SELECT * REPLACE ({_within(DIFF)} AS {DIFF}) FROM ({{}})")  # noqa: S608 - numbers

    def folded(self, schema: pa.Schema, updates: Sequence[pa.Table], since: int) -> pa.Table:
        """Return the rows at a tick as updates of it: several of a row that is there more than `COUNT_MAX` times."""
        summed = self.consolidated(schema, updates, since)
        if summed.num_rows and pc.max(pc.abs(summed.column(DIFF))).as_py() == COUNT_MAX:
            number = TIME  # which no user's column is called
            each = _within(f"{DIFF} - sign({DIFF}) * {COUNT_MAX} * {number}::HUGEINT")
            several = f"SELECT *, unnest(range(((abs({DIFF}) - 1) // {COUNT_MAX} + 1)::BIGINT)) AS {number} FROM ({{}})"  # noqa: S608 - numbers
            split = f"SELECT * EXCLUDE ({number}) REPLACE ({each} AS {DIFF}) FROM ({several})"  # noqa: S608 - numbers
            summed = self._summed(schema, updates, since, split)
        times = pa.repeat(pa.scalar(since, pa.uint64()), summed.num_rows)
        return summed.add_column(summed.num_columns - 1, pa.field(TIME, pa.uint64()), times)

    def _summed(self, schema: pa.Schema, updates: Iterable[pa.Table], tick: int, fitting: str) -> pa.Table:
        """Return the rows at a tick; `fitting` makes numbers of 64 bits of how often each is there."""
        listed = ", ".join(map(_quoted, schema.names))
        text = (
            f"SELECT {listed}, sum({DIFF}) AS {DIFF} FROM updates WHERE {TIME} <= {tick} "  # noqa: S608 - quoted
            f"GROUP BY {listed} HAVING sum({DIFF}) <> 0"
        )
        cursor = self._cursor()
        try:
            cursor.register("updates", pa.concat_tables(updates))
            found = cursor.sql(fitting.format(text)).to_arrow_table()
        finally:
            cursor.close()
        return found.cast(schema.append(pa.field(DIFF, pa.int64())))

    def answer(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of a SELECT in DuckDB's SQL over rows and how often each is there. Raises `QueryError`."""
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
                _register(cursor, name, table)
            return self._fetched(cursor.sql(sql))
        except (duckdb.Error, OSError, MemoryError) as error:  # Arrow's reader makes an OSError of DuckDB's
            if late.is_set():
                raise QueryTooSlow(limits.no_time) from error
            if isinstance(error, duckdb.OutOfMemoryException | MemoryError) or _OUT_OF_MEMORY in str(error):
                raise QueryTooLarge(limits.no_room) from error
            raise QueryError(_words(error)) from error
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


def wrong_count(counted: pa.Table) -> str:
    """Return what is wrong with the counts of rows; empty: nothing."""
    least, most = pc.min_max(counted.column(DIFF)).as_py().values() if counted.num_rows else (0, 0)
    if least < 0:
        return f"a row is there {least} times: more rows were taken back than there were"
    return "a row is there more often than 64 bits can count" if most == COUNT_MAX else ""


def _within(count: str) -> str:
    """The number of at most `COUNT_MAX` that is nearest."""
    return f"greatest(-{COUNT_MAX}, least({count}, {COUNT_MAX}))::BIGINT"


def _register(cursor: duckdb.DuckDBPyConnection, name: str, counted: pa.Table) -> None:
    """Let a query read rows, each as often as it is there; none of them is written down twice for that."""
    rows = counted.drop_columns([DIFF])
    if not counted.num_rows or pc.max(counted.column(DIFF)).as_py() == 1:
        cursor.register(name, rows)
        return
    source = _quoted(f"{name} counted")  # no view's name has a blank
    cursor.register(f"{name} counted", counted)
    listed = ", ".join(f"{source}.{_quoted(column)}" for column in rows.column_names)
    cursor.execute(f"CREATE TEMP VIEW {_quoted(name)} AS SELECT {listed} FROM {source}, range({source}.{DIFF})")  # noqa: S608 - quoted


def _quoted(name: str) -> str:
    return f'"{name.replace(chr(34), chr(34) * 2)}"'


def _words(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(line for line in lines[:2] if not line.startswith(("LINE", "^")))
