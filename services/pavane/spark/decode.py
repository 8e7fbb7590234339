"""Transactions to Arrow batches, by the declared schema and Spark's modes for what does not fit."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.decoding import Rows, decoded
from pavane.dataflow.log import Transaction
from pavane.dataflow.ports import Format, Mode
from pavane.spark.errors import ChainError, MalformedRecordError
from pavane.spark.schema import Columns

BATCH_ROWS_MAX = 65_536  # Of one Arrow batch: Spark's own reader of columns holds several at once.


class Decoder:
    """Decodes records of one partition. Raises MalformedRecordError in mode FAILFAST."""

    def __init__(self, columns: Columns, mode: Mode, partition: int) -> None:
        self._columns = columns
        self._mode = mode
        self._partition = partition

    def batches(self, transactions: Sequence[Transaction], kind: Format) -> Iterator[pa.RecordBatch]:
        """Yield the rows of transactions in their order."""
        rows = decoded(kind, self._columns.data, transactions, self._kept)
        if any(rows.counts):
            yield from self._finish(rows, transactions)

    # --- what does not fit, and the places ----------------------------------------------------------------------------
    def _kept(self, transaction: Transaction, problem: str) -> bool:
        if self._mode is Mode.FAILFAST:
            raise MalformedRecordError(
                f"partition {self._partition}, transaction {transaction.id} does not fit the schema: {problem}. "
                "Option 'mode' = 'PERMISSIVE' reads it as NULL, 'DROPMALFORMED' leaves it out."
            )
        return self._mode is not Mode.DROPMALFORMED

    def _finish(self, rows: Rows, transactions: Sequence[Transaction]) -> Iterator[pa.RecordBatch]:
        found: dict[str, Any] = dict(zip(self._columns.data.names, rows.table.columns, strict=True))
        if self._columns.corrupt is not None:
            found[self._columns.corrupt] = pa.array(rows.corrupt or [None] * sum(rows.counts), pa.string())
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
