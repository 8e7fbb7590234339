"""Tables of a script: rows of the log, each with the tick at which it came (docs/specs/compute.md 13.3, 14.1)."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

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
STEP_BYTES_MAX = 16 << 20
"""Of transactions that a step takes. The partitions share it equally; each may give one transaction that is larger."""
TRANSACTION_BYTES = 1024
"""What one costs beside its data, as an object and as rows: small ones are bounded by their number."""
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


@dataclass(slots=True)
class _Held:
    """Transactions of a partition from `start` up to `end`, without entries of chains."""

    start: int
    end: int
    transactions: list[Transaction] = field(default_factory=list)
    bytes: int = 0


class LogSource(Decoding):
    """Reads tables from the log, and keeps note of rows that could not be decoded."""

    def __init__(self, log: Log, tracing: Tracing | None = None) -> None:
        super().__init__()
        self._log = log
        self._tracing = tracing
        self._kept_rows: dict[Table, tuple[object, pa.Table, list[Transaction]]] = {}  # views read alike, in turn
        self._held: dict[int, _Held] = {}

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
            while True:
                stop = await self._fitting(partition, start, end, STEP_BYTES_MAX) if summed else end
                transactions = await self._transactions(partition, start, stop)
                taken += transactions if self._tracing is not None else ()
                times = [ticks[bisect_right(ends, transaction.id)].tick for transaction in transactions]
                came = self.decoded(table, partition, transactions, times)
                parts = [_summed([*parts, _with_diffs(came, WIDE)])] if summed else [*parts, came]
                if (start := stop) >= end:
                    break
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

    async def reach(self, after: Mapping[int, int], upto: Mapping[int, int]) -> dict[int, int]:
        """See `Source`. What it read is kept for `read`."""
        share = STEP_BYTES_MAX // max(1, len(upto))
        return {each: await self._fitting(each, after.get(each, 0), end, share) for each, end in upto.items()}

    def forget(self) -> None:
        """Let go of the rows that were read last."""
        self._kept_rows.clear()
        self._held.clear()

    def _took(self, transactions: list[Transaction]) -> None:
        if self._tracing is not None:
            self._tracing.took(transactions)

    async def _fitting(self, partition: int, start: int, end: int, limit: int) -> int:
        """Return up to where the transactions have so many bytes, or the first one, which may have more."""
        held = self._held.get(partition)
        if held is None or held.start != start:
            held = self._held[partition] = _Held(start, start)
        await self._read_on(held, partition, end, limit)
        total = 0
        for number, each in enumerate(held.transactions):
            total += _bytes_of(each)
            if each.id >= end or (number and total > limit):
                return min(end, each.id)
        return min(end, held.end)

    async def _transactions(self, partition: int, start: int, stop: int) -> list[Transaction]:
        held = self._held.get(partition)
        if held is None or not held.start <= start <= stop <= held.end:
            held = _Held(start, start)
            await self._read_on(held, partition, stop, inf)
        first, last = (bisect_left(held.transactions, place, key=lambda each: each.id) for place in (start, stop))
        return held.transactions[first:last]

    async def _read_on(self, held: _Held, partition: int, stop: int, limit: float) -> None:
        """Read up to `stop`, or until there are more bytes. Waits for a server that lags."""
        while held.end < stop and held.bytes <= limit:
            reading = self._log.read(partition, held.end, stop)
            try:
                async for transaction in reading:
                    held.end = transaction.id + 1
                    if transaction.header != CHAIN_HEADER:  # entries of a chain are no rows
                        held.transactions.append(transaction)
                        held.bytes += _bytes_of(transaction)
                    if held.bytes > limit:
                        return
            finally:
                if isinstance(reading, AsyncGenerator):
                    await reading.aclose()
            if held.end < stop:
                await asyncio.sleep(LAG_S)


def _bytes_of(transaction: Transaction) -> int:
    return TRANSACTION_BYTES + len(transaction.data)


def _summed(parts: Sequence[pa.Table]) -> pa.Table:
    """Add up the diffs of equal rows, and leave out what is nothing."""
    rows = pa.concat_tables(parts)
    keys = [name for name in rows.column_names if name != DIFF]
    sums = rows.group_by(keys).aggregate([(DIFF, "sum")]).rename_columns([*keys, DIFF])
    return sums.filter(pc.not_equal(sums.column(DIFF), 0))


def _with_diffs(rows: pa.Table, kind: pa.DataType) -> pa.Table:
    place = rows.column_names.index(DIFF)
    return rows.set_column(place, DIFF, rows.column(DIFF).cast(kind))
