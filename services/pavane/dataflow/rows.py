"""Rows as Python tuples, equal when their canonical bytes are (docs/specs/compute.md 14.2)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.ports import DIFF, TIME

Row = tuple[Any, ...]
"""Values in the order of the columns; None is NULL."""

_NAN = float("nan")


def canonical(value: Any) -> Any:
    """Return a value that equals itself: there is one NaN, which tuples compare by identity, and one zero."""
    if isinstance(value, float):
        return _NAN if math.isnan(value) else value + 0.0
    return value


def plain(value: Any) -> Any:
    """Return a value as JSON has it: strings for a decimal fraction, which keeps all its digits, for a date, for
    a binary in hexadecimal digits, and for what is no number."""
    if isinstance(value, Decimal):
        return str(value) if value.as_tuple().exponent else int(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, date | datetime | time):
        return value.isoformat()
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def check_times(column: pa.ChunkedArray) -> None:
    """Raises OverflowError for a date or time outside of the years 1 to 9999, which Arrow holds and Python does not."""
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        pc.min_max(column).as_py()


def updates_of(table: pa.Table) -> Iterator[tuple[Row, int, int]]:
    """Yield row, time and diff of each update."""
    columns = []
    for name in table.column_names:
        if name in (TIME, DIFF):
            continue
        column = table.column(name)
        values = column.to_pylist()
        columns.append([canonical(value) for value in values] if pa.types.is_floating(column.type) else values)
    rows = zip(*columns, strict=True) if columns else iter([()] * table.num_rows)
    yield from zip(rows, table.column(TIME).to_pylist(), table.column(DIFF).to_pylist(), strict=True)


def table_of(updates: Iterable[tuple[Row, int, int]], schema: pa.Schema) -> pa.Table:
    """Return updates as Arrow: the columns of `schema`, then time and diff."""
    listed = list(updates)
    arrays = [pa.array([row[i] for row, _, _ in listed], field.type) for i, field in enumerate(schema)]
    arrays.append(pa.array([time for _, time, _ in listed], pa.uint64()))
    arrays.append(pa.array([diff for _, _, diff in listed], pa.int64()))
    return pa.table(arrays, schema=schema.append(pa.field(TIME, pa.uint64())).append(pa.field(DIFF, pa.int64())))


def consolidated(updates: Iterable[tuple[Row, int, int]]) -> list[tuple[Row, int, int]]:
    """Add up the diffs of equal row and time, and leave out what is nothing."""
    sums: dict[tuple[Row, int], int] = defaultdict(int)
    for row, tick, diff in updates:
        sums[row, tick] += diff
    return [(row, tick, diff) for (row, tick), diff in sums.items() if diff]


def stream_of(table: pa.Table) -> pa.Buffer:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


class Multiset:
    """Rows and how often each is there; a row that is there no more takes no room."""

    def __init__(self) -> None:
        self.counts: dict[Row, int] = {}

    def add(self, row: Row, diff: int) -> None:
        """Change the count of a row."""
        count = self.counts.get(row, 0) + diff
        if count:
            self.counts[row] = count
        else:
            self.counts.pop(row, None)
