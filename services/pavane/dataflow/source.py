"""Tables of a script: rows of the log, each with the tick at which it came (docs/specs/compute.md 13.3, 14.1)."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.decoding import decoded
from pavane.dataflow.entries import CHAIN_HEADER
from pavane.dataflow.log import Log, Transaction
from pavane.dataflow.ports import DIFF, TIME, BadRow, BadRowError, Binding, Mode, Table, ViewError
from pavane.dataflow.tracing import Tracing
from pavane.dataflow.types import arrow_schema

BAD_ROWS_KEPT = 100
"""The last ones, to be shown; all are counted."""
PIECE_TRANSACTIONS = 5000
"""Of one partition in memory, where rows that were taken back meanwhile are left out."""
WIDE = pa.decimal128(38, 0)
"""Of sums of diffs in between: those of Arrow's integers wrap around."""
LAG_S = 0.05
"""Between two looks at a server that has not read what a tick names."""


class Decoding:
    """Transactions to the updates of a table; bad rows are noted."""

    def __init__(self) -> None:
        self.bad: deque[BadRow] = deque(maxlen=BAD_ROWS_KEPT)
        self.bad_count = 0
        self.bad_of: Counter[Table] = Counter()
        self._noted: dict[tuple[Table, int], int] = {}  # up to where the bad rows of a table's partition were counted

    def decoded(self, table: Table, partition: int, transactions: Sequence[Transaction], times: list[int]) -> pa.Table:
        """Return the updates that these transactions are, each with its time. Raises `BadRowError` in mode FAILFAST."""
        schema = arrow_schema(table.columns)
        if table.diff:
            schema = schema.append(pa.field(DIFF, pa.int64()))

        def keep(transaction: Transaction, problem: str) -> bool:
            place = bisect_left(transactions, transaction.id, key=lambda each: each.id)
            return self._kept(table, partition, transaction, times[place], problem)

        needed = (DIFF,) if table.diff else table.key
        made = decoded(table.format, schema, transactions, keep, needed)
        rows, counts = made.table, made.counts
        each = [time for time, count in zip(times, counts, strict=True) for _ in range(count)]
        if not table.diff:
            rows = rows.append_column(DIFF, pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))
        rows = rows.append_column(TIME, pa.array(each, pa.uint64()))
        return rows.select([*(column.name for column in table.columns), TIME, DIFF])

    def _kept(self, table: Table, partition: int, transaction: Transaction, time: int, problem: str) -> bool:
        """Take note of a bad row; whether what could be read of it counts, NULL where it does not fit."""
        if transaction.id >= self._noted.get((table, partition), 0):  # views of one table all read it
            self.bad_count += 1
            self.bad_of[table] += 1
            self.bad.append(BadRow(table.name, time, partition, transaction.id, problem))
        if table.mode is Mode.FAILFAST:
            raise BadRowError(
                f"table {table.name}: partition {partition}, transaction {transaction.id} cannot be decoded: {problem}."
                " Mode PERMISSIVE reads NULL, DROPMALFORMED leaves the row out"
            )
        return table.mode is Mode.PERMISSIVE and not table.diff and not table.key


class LogSource(Decoding):
    """Reads tables from the log, and keeps note of rows that could not be decoded."""

    def __init__(self, log: Log, tracing: Tracing | None = None) -> None:
        super().__init__()
        self._log = log
        self._tracing = tracing
        self._kept_rows: dict[Table, tuple[object, pa.Table, list[Transaction]]] = {}  # views read alike, in turn

    async def read(self, table: Table, after: Binding | None, upto: Binding, ticks: Sequence[Binding]) -> pa.Table:
        """Return the updates of a table between two bindings, each with the first of `ticks` that includes it.

        For one tick these are the sums of a table's `__diff`: a row that was taken back is not among them, so a long
        history costs no engine more than what is left of it. Waits for a server that lags. Raises `BadRowError` in mode
        FAILFAST, `ViewError` where such a sum does not fit.
        """
        wanted = after and after.next, upto.next, tuple(ticks)
        held = self._kept_rows.get(table)
        if held is not None and held[0] == wanted:
            self._took(held[2])
            return held[1]
        parts: list[pa.Table] = []
        taken: list[Transaction] = []
        summed = table.diff and len(ticks) == 1
        for partition in table.partitions:
            start = after.next.get(partition, 0) if after is not None else 0
            end = upto.next.get(partition, 0)
            ends = [binding.next.get(partition, 0) for binding in ticks]
            size = PIECE_TRANSACTIONS if summed else max(1, end - start)
            for position in range(start, max(start + 1, end), size):
                stop = min(end, position + size)
                transactions = await self._transactions(partition, position, stop)
                taken += transactions if self._tracing is not None else ()
                times = [ticks[bisect_right(ends, transaction.id)].tick for transaction in transactions]
                came = self.decoded(table, partition, transactions, times)
                parts = [_summed([*parts, _with_diffs(came, WIDE)])] if summed else [*parts, came]
            self._noted[table, partition] = max(self._noted.get((table, partition), 0), end)
        self._took(taken)
        rows = pa.concat_tables(parts)
        if summed:
            try:
                rows = _with_diffs(rows, pa.int64())
            except pa.ArrowInvalid as error:
                text = f"table {table.name}: a row is there, or was taken back, more often than 64 bits can count"
                raise ViewError(text) from error
        self._kept_rows[table] = wanted, rows, taken
        return rows

    async def note(self, table: Table, places: Sequence[tuple[int, int]], upto: Binding) -> None:
        """See `Source`."""
        for partition, txid in sorted(places):
            self.decoded(table, partition, await self._transactions(partition, txid, txid + 1), [upto.tick])
        for partition in table.partitions:
            self._noted[table, partition] = max(self._noted.get((table, partition), 0), upto.next.get(partition, 0))

    def forget(self) -> None:
        """Let go of the rows that were read last."""
        self._kept_rows.clear()

    def _took(self, transactions: list[Transaction]) -> None:
        if self._tracing is not None:
            self._tracing.took(transactions)

    async def _transactions(self, partition: int, start: int, stop: int) -> list[Transaction]:
        found: list[Transaction] = []
        position = start
        while position < stop:
            async for transaction in self._log.read(partition, position, stop):
                position = transaction.id + 1
                if transaction.header != CHAIN_HEADER:  # entries of a chain are no rows
                    found.append(transaction)
            if position < stop:
                await asyncio.sleep(LAG_S)
        return found


def _summed(parts: Sequence[pa.Table]) -> pa.Table:
    """Add up the diffs of equal rows, and leave out what is nothing."""
    rows = pa.concat_tables(parts)
    keys = [name for name in rows.column_names if name != DIFF]
    sums = rows.group_by(keys).aggregate([(DIFF, "sum")]).rename_columns([*keys, DIFF])
    return sums.filter(pc.not_equal(sums.column(DIFF), 0))


def _with_diffs(rows: pa.Table, kind: pa.DataType) -> pa.Table:
    place = rows.column_names.index(DIFF)
    return rows.set_column(place, DIFF, rows.column(DIFF).cast(kind))
