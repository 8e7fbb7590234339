"""What is kept of a view in memory: what it was at one tick, and what came since (docs/specs/compute.md 14.7, 16.5)."""

from __future__ import annotations

import asyncio
from collections import deque

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.evaluating import Contents, Evaluator, QueryError
from pavane.dataflow.ports import DIFF, TIME
from pavane.dataflow.rows import table_of

JOINED = 256
"""Tables of updates that become one: thousands of small ones are slow to read."""


class Arrangement:
    """A view at every tick from `since` on, of updates that are taken in the order of their ticks.

    `fold` adds up the old ones when they are more than `kept`, than the younger ones, and than the rows that the view
    had at `since` or has now: so memory follows the view and not its history, and the work follows the updates.
    """

    def __init__(self, schema: pa.Schema, kept: int, since: int = 0) -> None:
        self.schema = schema
        self.since = since
        self.rows = 0
        """How many updates there are in memory: what it was at `since`, then old ones, then young ones."""
        self.size = 0
        """Their bytes."""
        self._kept = kept
        self._base = self._old = 0
        self._young: deque[tuple[int, int]] = deque()
        """Ticks whose updates may not be added up yet, and how many these are."""
        self._upto = since
        """The last tick of the old ones."""
        self._balance = 0
        """How many rows it has, each as often as it is there."""
        self._parts = [table_of((), schema)]
        self._last: list[pa.Table] = []

    def take(self, updates: pa.Table) -> None:
        """Add updates."""
        if not updates.num_rows:
            return
        self._last.append(updates)
        self.rows += updates.num_rows
        self.size += updates.nbytes
        self._balance += pc.sum(updates.column(DIFF)).as_py()
        counts = pc.value_counts(updates.column(TIME)).to_pylist()
        for tick, rows in sorted((each["values"], each["counts"]) for each in counts):
            if self._young and tick <= self._young[-1][0]:  # a piece of a tick
                last, before = self._young.pop()
                self._young.append((last, before + rows))
            else:
                self._young.append((tick, rows))
        if len(self._last) >= JOINED:
            self._parts = [*self._parts, pa.concat_tables(self._last).combine_chunks()]
            self._last = []

    def contents(self, tick: int) -> Contents:
        """Return what it is at a tick, which is not before `since`."""
        return Contents(self.schema, tick, (*self._parts, *self._last))

    def after(self, tick: int) -> pa.Table:
        """Return the updates behind a tick in the order of their ticks. Raises `QueryError` for one before `since`."""
        if tick < self.since:
            text = f"changes are known from tick {self.since} on, not from {tick}"
            raise QueryError(f"{text}: read all rows again, then what comes after them")
        found = [part.filter(pc.greater(part.column(TIME), tick)) for part in (*self._parts, *self._last)]
        return pa.concat_tables(found).sort_by(TIME)

    async def fold(self, evaluator: Evaluator, since: int | None = None) -> None:
        """Add up the updates to a tick, without one all but at least the last `kept`, when there are enough of them.

        None are taken meanwhile.
        """
        while self._young and self._is_old(*self._young[0], since):
            tick, rows = self._young.popleft()
            self._upto = max(self._upto, tick)
            self._old += rows
        if not self._old or not self._is_enough():
            return
        self._parts, self._last = await asyncio.to_thread(self._added_up, evaluator), []
        self.since, self._base, self._old = self._upto, self._parts[0].num_rows, 0
        self.rows = sum(part.num_rows for part in self._parts)
        self.size = sum(part.nbytes for part in self._parts)

    def _is_old(self, tick: int, rows: int, since: int | None) -> bool:
        """Tell it of the first young tick; the last ones stay young where nobody says what is read."""
        if since is not None:
            return tick <= since
        return self.rows - self._base - self._old - rows >= max(1, self._kept)

    def _is_enough(self) -> bool:
        # Of a view that has fewer rows than it had much is gone with what was taken back.
        young = self.rows - self._base - self._old
        return self._old > max(self._kept, young, min(self._base, self._balance))

    def _added_up(self, evaluator: Evaluator) -> list[pa.Table]:
        whole = pa.concat_tables([*self._parts, *self._last])
        old = pc.less_equal(whole.column(TIME), self._upto)
        base = evaluator.folded(self.schema, [whole.filter(old)], self._upto)
        return [base, whole.filter(pc.invert(old)).combine_chunks()]
