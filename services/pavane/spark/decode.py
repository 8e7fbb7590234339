"""Transactions to Arrow batches, by the declared schema and Spark's modes for what does not fit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow import arrowrows, jsonrows
from pavane.dataflow.log import Transaction
from pavane.spark.errors import ChainError, MalformedRecordError
from pavane.spark.options import Format, Mode
from pavane.spark.schema import Columns

BATCH_ROWS_MAX = 65_536  # Of one Arrow batch: Spark's own reader of columns holds several at once.


@dataclass(slots=True)
class Rows:
    """Rows of some transactions: columns of the data, rows for each transaction, records that did not fit."""

    columns: list[pa.ChunkedArray | pa.Array]
    counts: list[int]
    corrupt: list[str | None] = field(default_factory=list)  # One for each row; empty if all fit.

    @property
    def total(self) -> int:
        """Return how many rows there are."""
        return sum(self.counts)


class Decoder:
    """Decodes records of one partition. Raises MalformedRecordError in mode FAILFAST."""

    def __init__(self, columns: Columns, mode: Mode, partition: int) -> None:
        self._columns = columns
        self._mode = mode
        self._partition = partition

    def batches(self, transactions: Sequence[Transaction], kind: Format) -> Iterator[pa.RecordBatch]:
        """Yield the rows of transactions in their order."""
        rows = {Format.RAW: self._raw, Format.JSON: self._json, Format.ARROW: self._arrow}[kind](transactions)
        yield from self._finish(rows, transactions)

    # --- formats ------------------------------------------------------------------------------------------------------
    def _raw(self, transactions: Sequence[Transaction]) -> Rows:
        data = pa.array([t.data for t in transactions], pa.binary())
        return Rows([data for _ in self._columns.data], [1] * len(transactions))

    def _json(self, transactions: Sequence[Transaction]) -> Rows:
        quick = jsonrows.fast([t.data for t in transactions], self._columns.data)
        if quick is not None:
            return Rows(quick[0].columns, quick[1])
        rows, counts, corrupt = [], [], []
        for transaction in transactions:
            count = 0
            for document in jsonrows.documents(transaction.data):
                values, problem = jsonrows.fitted(document, self._columns.data)
                if problem and self._dropped(transaction, problem):
                    continue
                rows.append(values)
                corrupt.append(document.text if problem else None)
                count += 1
            counts.append(count)
        return Rows(jsonrows.arrays(rows, self._columns.data), counts, corrupt)

    def _arrow(self, transactions: Sequence[Transaction]) -> Rows:
        tables, counts, corrupt = [], [], list[str | None]()
        for transaction in transactions:
            record = arrowrows.read(transaction.data, self._columns.data)
            left_out = {row for row, problem in sorted(record.problems.items()) if self._dropped(transaction, problem)}
            rows = [row for row in range(record.table.num_rows) if row not in left_out]
            tables.append(record.table.take(pa.array(rows, pa.int64())) if left_out else record.table)
            counts.append(len(rows))
            corrupt += [record.text(row, transaction.data) if row in record.problems else None for row in rows]
        whole = pa.concat_tables(tables) if tables else self._columns.data.empty_table()
        return Rows(whole.columns, counts, corrupt)

    # --- what does not fit, and the places ----------------------------------------------------------------------------
    def _dropped(self, transaction: Transaction, problem: str) -> bool:
        if self._mode is Mode.FAILFAST:
            raise MalformedRecordError(
                f"partition {self._partition}, transaction {transaction.id} does not fit the schema: {problem}. "
                "Option 'mode' = 'PERMISSIVE' reads it as NULL, 'DROPMALFORMED' leaves it out."
            )
        return self._mode is Mode.DROPMALFORMED

    def _finish(self, rows: Rows, transactions: Sequence[Transaction]) -> Iterator[pa.RecordBatch]:
        total = rows.total
        if not total:
            return
        found: dict[str, Any] = dict(zip(self._columns.data.names, rows.columns, strict=True))
        if self._columns.corrupt is not None:
            found[self._columns.corrupt] = pa.array(rows.corrupt or [None] * total, pa.string())
        wanted = self._columns.output
        for name in wanted.names:
            if name not in found:
                found[name] = self._place(name, rows.counts, transactions)
        for part in wanted:
            if not part.nullable and found[part.name].null_count:
                raise MalformedRecordError(
                    f"partition {self._partition}: column {part.name!r} is NOT NULL, but one of the transactions "
                    f"{transactions[0].id} to {transactions[-1].id} has no value for it."
                )
        table = pa.table([found[name] for name in wanted.names], schema=wanted)
        for batch in table.to_batches(max_chunksize=BATCH_ROWS_MAX):
            if batch.num_rows:
                yield batch

    def _place(self, name: str, counts: list[int], transactions: Sequence[Transaction]) -> pa.Array:
        if name == "partition":
            return pa.repeat(pa.scalar(self._partition, pa.int32()), sum(counts))
        if name == "seq":
            return pa.array(chain.from_iterable(range(count) for count in counts), pa.int32())
        each = pa.array([t.id if name == "txid" else t.header for t in transactions], pa.int64())
        if any(count != 1 for count in counts):
            each = each.take(pa.array(chain.from_iterable([i] * count for i, count in enumerate(counts)), pa.int64()))
        return each if name == "txid" else pc.cast(each, pa.int32())


def check_ordinary(transactions: Sequence[Transaction], partition: int, chain_header: int) -> None:
    """Raise ChainError if one of the transactions is an entry of a chain: its rows count only once committed."""
    for transaction in transactions:
        if transaction.header == chain_header:
            raise ChainError(
                f"partition {partition}, transaction {transaction.id} is an entry of a chain: read it with option "
                "'chain' (the name that its writer gave), and option 'partition' if its home is not partition 0."
            )
