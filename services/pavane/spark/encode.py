"""Rows to records: JSON lines, Arrow streams or the bytes themselves, packed until a record is worth its place."""

import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.ports import Format
from pavane.dataflow.rows import stream_of
from pavane.spark.errors import MalformedRecordError
from pavane.spark.schema import PLACES

RECORD_BYTES = 512 * 1024  # Of a packed record: rows above it begin the next one.
RECORD_BYTES_MAX = 8 * 2**20  # A single row above it is refused: the log's frames end at 16 MiB.
ESCAPED = r'["\\\x00-\x1f\x7f-\x{10ffff}]'


@dataclass(slots=True)
class _Pending:
    parts: list[Any] = field(default_factory=list)
    size: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """Data of one transaction and its header; None leaves that to the writer."""

    partition: int
    data: bytes
    header: int | None = None


class Packer:
    """Packs the rows of one task. `targets` are the partitions that rows may go to."""

    def __init__(self, kind: Format, targets: tuple[int, ...], by: tuple[str, ...], *, rows_apart: bool) -> None:
        self._kind = kind
        self._targets = targets
        self._by = by
        self._rows_apart = rows_apart  # Raw rows are transactions of their own, not rows of an entry.
        self._pending: dict[int, _Pending] = {}

    def add(self, batch: pa.RecordBatch) -> Iterator[Record]:
        """Take rows and yield the records that are full."""
        for target, rows in self._routed(batch):
            if self._kind is Format.RAW and self._rows_apart:
                yield from _raw(target, rows)
            elif self._kind is Format.JSON:
                for text in json_lines(_data(rows)):
                    yield from self._packed(target, text, len(text))
            else:
                for part in _pieces(_data(rows) if self._kind is Format.ARROW else _kept(rows)):
                    yield from self._packed(target, part, part.nbytes)

    def rest(self) -> Iterator[Record]:
        """Yield what is left."""
        for target in sorted(self._pending):
            yield self._record(target)
        self._pending.clear()

    def _packed(self, target: int, part: Any, size: int) -> Iterator[Record]:
        pending = self._pending.setdefault(target, _Pending())
        if pending.parts and pending.size + size > RECORD_BYTES:
            yield self._record(target)
            pending = self._pending[target] = _Pending()
        pending.parts.append(part)
        pending.size += size

    def _record(self, target: int) -> Record:
        parts = self._pending[target].parts
        data = b"".join(parts) if self._kind is Format.JSON else arrow_stream(parts)
        if len(data) > RECORD_BYTES_MAX:
            raise MalformedRecordError(f"a row takes {len(data)} bytes; a record has {RECORD_BYTES_MAX} at most.")
        return Record(target, data)

    def _routed(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        if "partition" in batch.schema.names:
            chosen = batch.column("partition").to_pylist()
        elif self._by:
            chosen = [self._targets[spot % len(self._targets)] for spot in _hashes([batch.column(n) for n in self._by])]
        else:
            yield self._targets[0], batch
            return
        rows: dict[int, list[int]] = {}
        for row, target in enumerate(chosen):
            if target not in self._targets:
                raise MalformedRecordError(
                    f"a row names partition {target}; the write goes to {', '.join(map(str, self._targets))}."
                )
            rows.setdefault(target, []).append(row)
        for target, numbers in rows.items():
            yield target, batch if len(numbers) == batch.num_rows else batch.take(pa.array(numbers, pa.int64()))


def _hashes(columns: list[pa.Array]) -> list[int]:
    """Return a number for each row that depends on its values alone, in every process and for all time."""
    texts = [column.to_pylist() for column in columns]
    return [zlib.crc32(repr(row).encode()) for row in zip(*texts, strict=True)]


def _data(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name not in PLACES])


def _kept(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name != "partition"])


def _raw(target: int, batch: pa.RecordBatch) -> Iterator[Record]:
    headers = batch.column("header").to_pylist() if "header" in batch.schema.names else [None] * batch.num_rows
    for data, header in zip(batch.column("data").to_pylist(), headers, strict=True):
        if data is None or len(data) > RECORD_BYTES_MAX:
            size = "NULL" if data is None else f"{len(data)} bytes"
            raise MalformedRecordError(f"a row's data is {size}; a record has between 0 and {RECORD_BYTES_MAX} bytes.")
        yield Record(target, data, header)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch so that each piece is about a record."""
    rows = max(1, batch.num_rows * RECORD_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def arrow_stream(batches: list[pa.RecordBatch]) -> bytes:
    """Return batches of one schema as an Arrow stream."""
    return bytes(stream_of(pa.Table.from_batches(batches).combine_chunks()))


# --- JSON -------------------------------------------------------------------------------------------------------------
def json_lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield rows as JSON objects, one a line, cut at about the size of a record. What is NULL is left out."""
    if not batch.num_rows:
        return
    members = [
        pc.fill_null(pc.binary_join_element_wise(f",{json.dumps(name)}:", fragments(column), ""), "")
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    # Not joined by commas with null_handling="skip": Arrow then drops the rows that are NULL throughout.
    body = pc.utf8_ltrim(pc.binary_join_element_wise(*members, ""), ",")
    lines = pc.cast(pc.binary_join_element_wise("{", body, "}\n", ""), pa.large_binary())
    offsets = memoryview(lines.buffers()[1]).cast("q")[lines.offset : lines.offset + len(lines) + 1]
    text = memoryview(lines.buffers()[2])
    first = 0
    for row in range(1, len(lines) + 1):
        if row == len(lines) or offsets[row + 1] - offsets[first] > RECORD_BYTES:
            yield bytes(text[offsets[first] : offsets[row]])
            first = row


def fragments(column: pa.Array) -> pa.Array:
    """Return the values of a column as JSON, NULL where they are."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return pc.cast(column, pa.string())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pc.binary_join_element_wise('"', pc.cast(column, pa.string()), '"', "")
    if pa.types.is_string(kind) and not pc.any(pc.match_substring_regex(column, ESCAPED)).as_py():
        return pc.binary_join_element_wise('"', column, '"', "")
    return pa.array([None if value is None else json_text(value) for value in column.to_pylist()], pa.string())


def json_text(value: Any) -> str:
    """Return a value of a column as JSON. Numbers that JSON lacks become the words that Spark writes."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{json_text(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "[" + ",".join(json_text(element) for element in value) + "]"
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}[str(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return json.dumps(value)
    return json.dumps(value.isoformat())
