"""Arrow streams to columns: a value that does not fit costs its row, not the whole record."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

import pyarrow as pa

from pavane.dataflow.rows import check_times, stream_of


@dataclass(slots=True)
class Record:
    """The rows of one transaction: `table` by the wanted schema, NULL where a value does not fit, and why by row."""

    table: pa.Table
    problems: dict[int, str] = field(default_factory=dict)
    written: pa.Table | None = None  # as it came; None where the stream is none

    def text(self, row: int, data: bytes) -> str:
        """Return what did not fit in base64: a stream with this row alone, the whole record where it is no stream."""
        if self.written is None:
            return base64.b64encode(data).decode()
        return base64.b64encode(stream_of(self.written.slice(row, 1))).decode()


def read(data: bytes, schema: pa.Schema) -> Record:
    """Return the columns of an Arrow stream by name; what is no stream is one row of NULLs. No data are no rows."""
    if not data:
        return Record(schema.empty_table())
    try:
        with pa.ipc.open_stream(data) as stream:
            found = stream.read_all()
        found.validate(full=True)
        record = Record(schema.empty_table(), {}, found)
        columns = [_column(record, part) for part in schema]
    except (pa.ArrowException, OSError) as error:
        return Record(pa.table([pa.nulls(1, part.type) for part in schema], schema=schema), {0: str(error)})
    record.table = pa.table(columns, schema=schema)
    return record


def _column(record: Record, wanted: pa.Field) -> pa.ChunkedArray:
    assert record.written is not None  # noqa: S101 - `read` has just read it
    if wanted.name not in record.written.column_names:
        return pa.chunked_array([pa.nulls(record.written.num_rows, wanted.type)])
    parts = [pa.nulls(0, wanted.type)]
    pending = [(0, record.written.column(wanted.name))]
    while pending:  # halves, the first one on top
        start, values = pending.pop()
        try:
            fitted = values.cast(wanted.type)
            check_times(fitted)
            parts += fitted.chunks
        except pa.ArrowNotImplementedError as error:  # no value of this type ever fits
            for row in range(start, start + len(values)):
                record.problems.setdefault(row, f"column {wanted.name!r}: {error}")
            parts.append(pa.nulls(len(values), wanted.type))
        except (pa.ArrowException, OverflowError) as error:
            half = len(values) // 2
            if half:
                pending += [(start + half, values.slice(half)), (start, values.slice(0, half))]
            else:
                record.problems.setdefault(start, f"column {wanted.name!r}: {error}")
                parts.append(pa.nulls(1, wanted.type))
    return pa.chunked_array(parts, wanted.type)
