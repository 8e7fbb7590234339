"""Reads views from their chains: contents at a tick, changes as they come (docs/specs/compute.md 14.7)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.chain import Chain, columns_of
from pavane.dataflow.entries import decode
from pavane.dataflow.evaluating import Contents, Evaluator, QueryError, QueryTooLarge
from pavane.dataflow.log import Log
from pavane.dataflow.ports import TIME
from pavane.dataflow.querying import Query
from pavane.dataflow.rows import Row, table_of, updates_of
from pavane.dataflow.types import arrow_schema

POLL_S = 0.05
"""Between two looks at the end of the home partition."""
JOINED = 256
"""Batches of a view that become one table: thousands of small ones are slow to read."""

Changes = list[tuple[Row, int, int]]
"""Row, tick, how many more or fewer."""


@dataclass(slots=True)
class ViewReader:
    """One view as its chain tells it, from tick `since` up to the chain's upper."""

    chain: Chain
    since: int = 0
    base: pa.Table | None = None  # what it is at `since`
    recent: deque[pa.Table] = field(default_factory=deque)  # updates after it, in order
    last: list[pa.Table] = field(default_factory=list)  # the last ones, a table for each batch
    shown: tuple[int, pa.Table] | None = None  # rows and counts at the last tick that was asked for

    def take(self, updates: pa.Table) -> bool:
        """Take what a batch of the chain adds; whether it is time to look how large it is."""
        self.last.append(updates)
        large: bool = updates.num_rows >= JOINED
        if len(self.last) >= JOINED:
            self.recent.append(pa.concat_tables(self.last).combine_chunks())
            self.last.clear()
            return True
        return large

    @property
    def recent_rows(self) -> int:
        """Updates after `since`, but for the very last ones."""
        return sum(part.num_rows for part in self.recent)

    @property
    def tick(self) -> int:
        """The last tick at which it is final."""
        return self.chain.upper - 1

    @property
    def size(self) -> int:
        """Bytes that are kept of it."""
        shown = self.shown[1].nbytes if self.shown is not None else 0
        return int(sum(part.nbytes for part in self._parts()) + shown)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the view."""
        assert self.chain.created is not None  # noqa: S101 - a reader is made by its chain's first entry
        return arrow_schema(columns_of(self.chain.created))

    def at(self, tick: int) -> Contents:
        """Return the contents at a tick. Raises `QueryError` for one that cannot be told."""
        if self.chain.created is None or not self.since <= tick < self.chain.upper:
            raise QueryError(
                f"view {self.chain.name} can be read at ticks from {self.since} to {self.tick}, not at {tick}"
            )
        return Contents(self.schema, tick, (table_of((), self.schema), *self._parts()))

    def after(self, tick: int) -> pa.Table:
        """Return the updates behind a tick, which is `since` or later, in the order of their ticks."""
        found = [part for part in (*self.recent, *self.last) if _last_time(part) > tick]
        table = pa.concat_tables([table_of((), self.schema), *found])
        return table.filter(pc.greater(table.column(TIME), tick)).sort_by(TIME)

    async def fold(self, evaluator: Evaluator, kept: int) -> None:
        """Join all but about the last `kept` updates to what it is at a later `since`."""
        rows, folded = self.recent_rows, 0
        while folded < len(self.recent) and rows - self.recent[folded].num_rows >= kept:
            rows -= self.recent[folded].num_rows
            folded += 1
        parts = [*([self.base] if self.base is not None else []), *list(self.recent)[:folded]]
        if not folded:
            return
        since = _last_time(self.recent[folded - 1])
        self.base = await asyncio.to_thread(evaluator.folded, self.schema, parts, since)
        self.since = since
        for _ in range(folded):
            self.recent.popleft()

    def _parts(self) -> list[pa.Table]:
        return [*([self.base] if self.base is not None else []), *self.recent, *self.last]


def _last_time(part: pa.Table) -> int:
    last: int = pc.max(part.column(TIME)).as_py()
    return last


class Views:
    """All views that have their chains in one home partition.

    With `kept` about so many updates of each view can be told one by one; older ones are joined, so that memory follows
    the views and not their history. They may take `bytes_max`.
    """

    def __init__(
        self,
        log: Log,
        partition: int,
        evaluator: Evaluator | None = None,
        kept: int | None = None,
        bytes_max: int | None = None,
    ) -> None:
        self._log = log
        self._partition = partition
        self._kept = kept
        self._bytes_max = bytes_max
        self._position = 0
        self._reading = asyncio.Lock()
        self._evaluator = evaluator or Evaluator()
        self.readers: dict[str, ViewReader] = {}

    @property
    def size(self) -> int:
        """Bytes that are kept of all views."""
        return sum(reader.size for reader in self.readers.values())

    @property
    def position(self) -> int:
        """How many transactions of the partition were read."""
        return self._position

    def close(self) -> None:
        """Let go of memory."""
        self._evaluator.close()

    async def look(self) -> None:
        """Read to what is the end of the partition now. Raises `EntryError`, and `QueryTooLarge` above `bytes_max`."""
        async with self._reading:
            end = await self._log.hwm(self._partition) + 1
            async for transaction in self._log.read(self._partition, self._position, end):
                self._position = transaction.id + 1
                entry = decode(transaction.header, transaction.data)
                if entry is None:
                    continue
                reader = self.readers.setdefault(entry.chain, ViewReader(Chain(entry.chain)))
                updates = reader.chain.take(entry)
                if reader.since == 0 and reader.chain.created is not None:
                    reader.since = reader.chain.created.as_of
                if updates is not None and reader.take(updates):
                    await self._bound(reader)

    async def _bound(self, reader: ViewReader) -> None:
        if self._bytes_max is not None and self.size > self._bytes_max:
            raise QueryTooLarge(f"the views are larger than {self._bytes_max} bytes")
        if self._kept is None:
            return
        joined = reader.base.num_rows if reader.base is not None else 0
        if reader.recent_rows > 2 * self._kept + joined:  # so the work is in proportion to the rows that came
            await reader.fold(self._evaluator, self._kept)

    async def read_on(self, until: Mapping[str, int] | None = None) -> None:
        """Read to the end of the partition, at least until each named chain has this upper."""
        while True:
            await self.look()
            uppers = {name: reader.chain.upper for name, reader in self.readers.items()}
            if all(uppers.get(name, 0) >= upper for name, upper in (until or {}).items()):
                return
            await asyncio.sleep(POLL_S)

    async def follow(self, view: str) -> AsyncGenerator[tuple[list[str], Changes], None]:
        """Yield columns and changes of a view whenever its chain grew; its contents come first, as changes."""
        upper = 0
        while True:
            await self.read_on()
            reader = self.readers.get(view)
            if reader is not None and reader.chain.upper > upper and reader.tick >= reader.since:
                table = reader.after(upper - 1) if upper else pa.concat_tables(reader.at(reader.tick).updates)
                upper = reader.chain.upper
                yield reader.schema.names, list(updates_of(table))
            await asyncio.sleep(POLL_S)

    def names(self, sql: str) -> tuple[str, ...]:
        """Return the views that a query reads. Raises `QueryError`."""
        return tuple(Query(sql).views(self.readers))

    def tick_of(self, views: Collection[str]) -> int:
        """Return the last tick at which all of these are final."""
        return min((self.readers[name].tick for name in views), default=0)

    def asked(self, sql: str, tick: int | None = None) -> tuple[Query, int, dict[str, Contents]]:
        """Return a SELECT in Spark's SQL, a tick, and the views that it reads as they are there. Raises `QueryError`.

        Without a tick it is the last one at which all these views are final.
        """
        query = Query(sql)
        names = query.views(self.readers)
        tick = self.tick_of(names) if tick is None else tick
        return query, tick, {name: self.readers[name].at(tick) for name in names}

    def query(self, sql: str, tick: int | None = None) -> tuple[int, pa.Table]:
        """Return the tick and the rows of a SELECT that you trust, as `asked`: others belong in `Confined`. Blocks."""
        query, tick, contents = self.asked(sql, tick)
        try:
            return tick, self._evaluator.answer(query.translated(), self.tables(contents))
        except QueryError as error:
            raise query.placed(error) from error

    def tables(self, contents: Mapping[str, Contents]) -> dict[str, pa.Table]:
        """Return the rows of views and how often each is there. Blocks; may be called in a thread."""
        return {name: self.rows(name, each) for name, each in contents.items()}

    def rows(self, view: str, contents: Contents) -> pa.Table:
        """Return the rows of a view and how often each is there; those of the last call are kept. Blocks."""
        reader = self.readers[view]
        shown = reader.shown
        if shown is not None and shown[0] == contents.tick:
            return shown[1]
        table = self._evaluator.counted(contents)
        reader.shown = contents.tick, table
        return table
