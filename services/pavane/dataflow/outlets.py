"""Where a view's rows go on a replica: its chain, the rows that peeks read, subscribes (docs/specs/compute.md 4, 16).

The runner takes an outlet for the view's sink, so a replica computes as the single process does.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pavane.compute.core.outbox import PART_BYTES_MAX
from pavane.compute.wire.commands import SinkExport
from pavane.compute.wire.common import CLOSED, Failure, Rows
from pavane.dataflow.arrangement import Arrangement
from pavane.dataflow.evaluating import Contents, Evaluator, wrong_count
from pavane.dataflow.ports import DIFF, TIME
from pavane.dataflow.rows import consolidated, stream_of, table_of, updates_of
from pavane.dataflow.sink import ChainSink

BATCH_BYTES_MAX = 32 << 20
"""Of one batch of a subscribe, which travels in one message."""


class ChainBehind(Exception):
    """The chain ends before the dataflow begins, so ticks would be missing."""


def answer(contents: Contents, evaluator: Evaluator) -> tuple[Rows, ...] | Failure:
    """Return the rows at a tick, and how often each is there. Blocks."""
    found = evaluator.consolidated(contents.schema, contents.updates, contents.tick)
    if wrong := wrong_count(found):
        return Failure("WrongCount", wrong)
    streams = _streams(found)
    if any(len(data) > PART_BYTES_MAX for data, _ in streams):
        return Failure("TooLarge", f"a row takes more than {PART_BYTES_MAX} bytes")
    return tuple(Rows(data, rows, len(data)) for data, rows in streams)


class Subscription:
    """A subscribe, and what waits until its ticks are complete. `told` is the upper of what was handed out."""

    def __init__(self, export: SinkExport, as_of: int, told: int) -> None:
        self.id = export.id
        self.told = told
        self._first = as_of if export.emit_initial else as_of + 1
        self._end = export.up_to
        self._waiting: list[pa.Table] = []

    def take(self, updates: pa.Table) -> None:
        """Add updates."""
        if self.told != CLOSED:
            self._waiting.append(updates)

    def batch(self, upper: int) -> tuple[int, Rows | Failure] | None:
        """Return the next batch, now that all is there below `upper`."""
        if upper <= self.told or not self._waiting:
            return None
        end = upper if self._end is None else min(upper, self._end)
        whole, several = pa.concat_tables(self._waiting), len(self._waiting) > 1
        self._waiting.clear()
        times = whole.column(TIME)
        # After a restart of the engine the view is built again, and what was told is not told again.
        news = whole.filter(pc.and_(pc.greater_equal(times, max(self._first, self.told)), pc.less(times, end)))
        self.told = CLOSED if self._end is not None and upper >= self._end else upper
        if several:  # a view that is built in pieces changes its mind within a tick
            columns = pa.schema([field for field in news.schema if field.name not in (TIME, DIFF)])
            news = table_of(consolidated(updates_of(news)), columns)
        if news.nbytes > BATCH_BYTES_MAX:
            return self.told, Failure("TooLarge", f"a batch of more than {BATCH_BYTES_MAX} bytes")
        data = bytes(stream_of(news))
        return self.told, Rows(data, news.num_rows, len(data))


class Outlet:
    """A `Sink` for one view. It begins at `as_of`, whatever there is in its chain."""

    def __init__(
        self,
        as_of: int,
        arrangement: Arrangement | None,
        subscriptions: Sequence[Subscription],
        chain: ChainSink | None,
        initial_as_of: int = 0,
    ) -> None:
        self.arrangement = arrangement
        self.subscriptions = tuple(subscriptions)
        self.chain = chain
        self._as_of = as_of
        self._initial_as_of = initial_as_of
        self._upper = 0

    async def open(self, as_of: int) -> int:
        """See `Sink`. The runner begins one tick before what this returns."""
        if self.chain is not None:
            initial = max(1, self._initial_as_of)
            upper = await self.chain.open(initial)
            if upper < self._as_of:
                raise ChainBehind(f"the chain ends at {upper}, and the dataflow begins at {self._as_of}")
        return self._as_of + 1

    def desire(self, updates: pa.Table, upper: int) -> None:
        """See `Sink`."""
        self._upper = upper
        if self.arrangement is not None:
            self.arrangement.take(updates)
        for each in self.subscriptions:
            each.take(updates)
        if self.chain is not None:
            self.chain.desire(updates, upper)

    async def allow(self, token: tuple[int, ...]) -> None:
        """See `Sink`."""
        if self.chain is not None:
            await self.chain.allow(token)

    async def advance(self, *, at_once: bool = False) -> int:
        """See `Sink`."""
        return await self.chain.advance(at_once=at_once) if self.chain is not None else self._upper


def _streams(table: pa.Table) -> list[tuple[bytes, int]]:
    """Return a table as streams of at most `PART_BYTES_MAX`; halves of halves, as sizes are known once written."""
    data = bytes(stream_of(table))
    if len(data) <= PART_BYTES_MAX or table.num_rows <= 1:
        return [(data, table.num_rows)]
    middle = table.num_rows // 2
    return _streams(table.slice(0, middle)) + _streams(table.slice(middle))
