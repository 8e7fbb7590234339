"""Reads views from their chains: contents at a tick, changes as they come (docs/specs/compute.md 14.7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping

import pyarrow as pa

from pavane.dataflow.arrangement import Arrangement
from pavane.dataflow.chain import Chain, columns_of
from pavane.dataflow.entries import Create, decode
from pavane.dataflow.evaluating import Contents, Evaluator, QueryError, QueryTooLarge
from pavane.dataflow.log import Log
from pavane.dataflow.querying import Query
from pavane.dataflow.rows import Row, updates_of
from pavane.dataflow.types import arrow_schema

POLL_S = 0.05
"""Between two looks at the end of the home partition."""
Changes = list[tuple[Row, int, int]]
"""Row, tick, how many more or fewer."""


class ViewReader(Arrangement):
    """One view as its chain tells it, from tick `since` up to the chain's upper."""

    def __init__(self, chain: Chain, created: Create, kept: int) -> None:
        super().__init__(arrow_schema(columns_of(created)), kept, created.as_of)
        self.chain = chain
        self.created = created
        self.shown: tuple[int, pa.Table] | None = None
        """Rows and counts at the last tick that was asked for."""

    @property
    def tick(self) -> int:
        """The last tick at which it is final."""
        return self.chain.upper - 1

    def at(self, tick: int) -> Contents:
        """Return the contents at a tick. Raises `QueryError` for one that cannot be told."""
        if not self.since <= tick < self.chain.upper:
            raise QueryError(
                f"view {self.chain.name} can be read at ticks from {self.since} to {self.tick}, not at {tick}"
            )
        return self.contents(tick)


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
        self._chains: dict[str, Chain] = {}
        self.readers: dict[str, ViewReader] = {}
        """Of the chains that there are, by name."""

    @property
    def size(self) -> int:
        """Bytes that are kept of all views."""
        readers = self.readers.values()
        return sum(each.size + (each.shown[1].nbytes if each.shown is not None else 0) for each in readers)

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
                chain = self._chains.setdefault(entry.chain, Chain(entry.chain))
                updates = chain.take(entry)
                if chain.created is not None and entry.chain not in self.readers:
                    self.readers[entry.chain] = ViewReader(chain, chain.created, self._kept or 0)
                if updates is not None:
                    await self._take(self.readers[entry.chain], updates)

    async def _take(self, reader: ViewReader, updates: pa.Table) -> None:
        reader.take(updates)
        if self._bytes_max is not None and self.size > self._bytes_max:
            raise QueryTooLarge(f"the views are larger than {self._bytes_max} bytes")
        if self._kept is not None:
            await reader.fold(self._evaluator)

    async def read_on(self, until: Mapping[str, int] | None = None) -> None:
        """Read to the end of the partition, at least until each named chain has this upper."""
        while True:
            await self.look()
            uppers = {name: reader.chain.upper for name, reader in self.readers.items()}
            if all(uppers.get(name, 0) >= upper for name, upper in (until or {}).items()):
                return
            await asyncio.sleep(POLL_S)

    async def follow(self, view: str) -> AsyncGenerator[tuple[list[str], Changes], None]:
        """Yield columns and changes of a view whenever its chain grew; its contents come first, as changes.

        Raises `QueryError` where more came at once than is `kept`: changes would be missing.
        """
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
