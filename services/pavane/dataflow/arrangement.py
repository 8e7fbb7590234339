"""What is kept of a view in memory: what it was at one tick, and what came since (docs/specs/compute.md 14.7, 16.5)."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.evaluating import Contents, Evaluator
from pavane.dataflow.ports import TIME
from pavane.dataflow.rows import table_of

JOINED = 256
"""Tables of updates that become one: thousands of small ones are slow to read."""


class Arrangement:
    """A view at every tick from `since` on, of updates that are taken in the order of their ticks.

    When there are more than twice as many updates as `kept`, and as there were after the last time, `fold` adds up the
    old ones: so memory follows the view and not its history, and the work is in proportion to the updates.
    """

    def __init__(self, schema: pa.Schema, kept: int, since: int = 0) -> None:
        self.schema = schema
        self.since = since
        self.rows = 0
        """How many updates there are in memory."""
        self.size = 0
        """Their bytes."""
        self._kept = self._folded = kept
        self._parts = [table_of((), schema)]
        self._last: list[pa.Table] = []

    def take(self, updates: pa.Table) -> None:
        """Add updates."""
        if not updates.num_rows:
            return
        self._last.append(updates)
        self.rows += updates.num_rows
        self.size += updates.nbytes
        if len(self._last) >= JOINED:
            self._parts = [*self._parts, pa.concat_tables(self._last).combine_chunks()]
            self._last = []

    def contents(self, tick: int) -> Contents:
        """Return what it is at a tick, which is not before `since`."""
        return Contents(self.schema, tick, (*self._parts, *self._last))

    def after(self, tick: int) -> pa.Table:
        """Return the updates behind a tick, which is not before `since`, in the order of their ticks."""
        found = [part.filter(pc.greater(part.column(TIME), tick)) for part in (*self._parts, *self._last)]
        return pa.concat_tables(found).sort_by(TIME)

    async def fold(self, evaluator: Evaluator, since: int | None = None) -> None:
        """Add up the updates to a tick, without one all but about the last `kept`, when there are enough of them.

        None are taken meanwhile.
        """
        if self.rows <= 2 * max(self._kept, self._folded):
            return
        self.since, parts = await asyncio.to_thread(self._added_up, evaluator, since)
        self._parts, self._last = parts, []
        self.rows = self._folded = sum(part.num_rows for part in parts)
        self.size = sum(part.nbytes for part in parts)

    def _added_up(self, evaluator: Evaluator, since: int | None) -> tuple[int, list[pa.Table]]:
        whole = pa.concat_tables([*self._parts, *self._last])
        times = whole.column(TIME)
        since = times[self.rows - self._kept - 1].as_py() if since is None else since
        old = pc.less_equal(times, since)
        base = evaluator.folded(self.schema, [whole.filter(old)], since)
        return since, [base, whole.filter(pc.invert(old)).combine_chunks()]
