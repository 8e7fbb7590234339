"""Writes a view to its chain, corrects what is wrong there, stops when fenced (docs/specs/compute.md 12.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pyarrow as pa

from pavane.dataflow.chain import Chain, Corrections
from pavane.dataflow.entries import CHAIN_HEADER, Batch, Create, Data, Entry, EntryError, Fence, Rank, decode, encode
from pavane.dataflow.log import Log
from pavane.dataflow.ports import Fenced, SqlView
from pavane.dataflow.rows import stream_of
from pavane.dataflow.types import arrow_schema
from pavane.waltz.errors import Conflict, OutcomeUnknown

LAG_S = 0.02
"""Between two looks at a server that has not read what another one answered."""
CHUNK_BYTES = 8 * 2**20
"""Rows of a batch beyond it travel before the batch, in pieces: a transaction of the log holds 16 MiB."""
MAX_LAG_MS = 1000
"""Ticks that change nothing are joined for so long."""


class Home:
    """The partition of the log in which the chains of some views are. It is read and decoded once for all of them."""

    def __init__(self, log: Log, partition: int) -> None:
        self.log = log
        self.partition = partition
        self.position = 0
        """Everything before it was read."""
        self._takes: dict[str, Callable[[Entry], None]] = {}

    def join(self, chain: str, take: Callable[[Entry], None]) -> None:
        """Give the entries of a chain to `take`, from the first one on."""
        if self.position:
            raise ValueError(f"partition {self.partition} was read before the chain {chain} joined")
        self._takes[chain] = take

    async def read_on(self, least: int = 0) -> None:
        """Give everybody what came, to the end of the partition and at least before transaction `least`."""
        end = max(await self.log.hwm(self.partition) + 1, least)
        while self.position < end:
            async for transaction in self.log.read(self.partition, self.position, end):
                self.position = transaction.id + 1
                entry = decode(transaction.header, transaction.data)
                if entry is not None and entry.chain in self._takes:
                    self._takes[entry.chain](entry)
            if self.position < end:  # this server lags
                await asyncio.sleep(LAG_S)


class ChainSink:
    """One view's chain in its home partition; it counts the ticks of partition `ticks`.

    `now_ms` is a clock, `make_id` makes names of batches. Chains of one home are used in turn, not at once.
    """

    def __init__(
        self, home: Home, ticks: int, view: SqlView, now_ms: Callable[[], int], make_id: Callable[[], str]
    ) -> None:
        self._ticks = ticks
        self._home = home
        self._view = view
        self._schema = arrow_schema(view.columns)
        self._now_ms = now_ms
        self._make_id = make_id
        self._chain = Chain(view.name)
        self._corrections = Corrections()
        self._desired = 0
        self._as_of = 0
        self._own: Rank | None = None
        self._written_ms = 0
        home.join(view.name, self._take)

    @property
    def rank(self) -> Rank:
        """The greatest rank that was read."""
        return self._chain.rank

    @property
    def begins(self) -> int:
        """The tick at which the chain begins, or is to begin."""
        return self._as_of if self._chain.created is None else self._chain.created.as_of

    async def open(self, as_of: int) -> int:
        """Read the chain to its end and return its upper; `as_of` where there is no chain yet.

        Raises `EntryError` if the chain holds another view, or counts other ticks.
        """
        self._as_of = as_of
        await self._read_on()
        created = self._chain.created
        if created is None:
            return as_of
        wanted = tuple((column.name, column.type) for column in self._view.columns)
        if created.columns != wanted:
            raise EntryError(
                f"partition {self._home.partition} holds a view {self._view.name} with the columns "
                f"{_listed(created.columns)}, not {_listed(wanted)}: give the new view another name"
            )
        if created.ticks != self._ticks:
            raise EntryError(
                f"the view {self._view.name} in partition {self._home.partition} counts the ticks of partition "
                f"{created.ticks}, not of {self._ticks}: name that one, or give the new view another name"
            )
        return self._chain.upper

    def desire(self, updates: pa.Table, upper: int) -> None:
        """What the view is, up to a tick; also while nothing may be written."""
        self._corrections.desire(updates)
        self._desired = upper

    async def allow(self, token: tuple[int, ...]) -> None:
        """Write from now on by this token. Raises `Fenced` if somebody with a greater token does."""
        own = Rank(*token)
        self._own = None  # another writer of this token may have fenced what our former token wrote
        await self._read_on()
        while self._chain.rank != own:
            if self._chain.rank > own:
                raise self._fenced()
            await self._append(self._created(own) if self._chain.created is None else Fence(self._view.name, own))
        self._own = own

    async def advance(self, *, at_once: bool = False) -> int:
        """See `Sink`."""
        await self._read_on()
        while self._own is not None and self._desired > self._chain.upper:
            updates = self._corrections.until(self._desired, self._schema)
            now = self._now_ms()
            if not updates.num_rows and now - self._written_ms < MAX_LAG_MS and not at_once:
                break
            self._written_ms = now
            await self._write(updates, self._own)
        return self._chain.upper

    async def _write(self, updates: pa.Table, own: Rank) -> None:
        position, lower, upper = self._home.position, self._chain.upper, self._desired
        batch, rows, chunks = self._make_id(), b"", 0
        if updates.nbytes > CHUNK_BYTES:
            each = max(1, updates.num_rows * CHUNK_BYTES // updates.nbytes)
            for start in range(0, updates.num_rows, each):
                data = Data(self._view.name, batch, chunks, bytes(stream_of(updates.slice(start, each))))
                await self._home.log.append(self._home.partition, encode(data), header=CHAIN_HEADER)
                chunks += 1
        elif updates.num_rows:
            rows = bytes(stream_of(updates))
        await self._append(Batch(self._view.name, own, batch, lower, upper, chunks, rows), position)

    async def _append(self, entry: Entry, position: int | None = None) -> None:
        """Append an entry if nobody wrote to the chain since `position`, which its content rests on; read on."""
        home, data, lock = self._home, encode(entry), [(self._view.name, 0)]
        seen = (home.position if position is None else position) - 1
        try:
            await home.log.append(home.partition, data, header=CHAIN_HEADER, write=lock, seen=seen)
        except Conflict as conflict:
            await self._read_on(conflict.txid + 1)
        except OutcomeUnknown:
            await self._read_on()  # either it comes before the next append, which fails then, or never
        else:
            await self._read_on()

    async def _read_on(self, least: int = 0) -> None:
        """Take what came; only what was read counts as persisted. Raises `Fenced` when a greater rank writes."""
        await self._home.read_on(least)
        if self._own is not None and self._chain.rank > self._own:
            raise self._fenced()

    def _take(self, entry: Entry) -> None:
        before = self._chain.upper
        updates = self._chain.take(entry)
        if self._chain.upper != before:
            self._corrections.persisted(updates, self._chain.upper)

    def _created(self, own: Rank) -> Create:
        columns = tuple((column.name, column.type) for column in self._view.columns)
        return Create(self._view.name, own, columns, self._ticks, self._as_of)

    def _fenced(self) -> Fenced:
        rank = self._chain.rank
        return Fenced(f"generation {rank.writer}, epoch {rank.epoch} writes the view {self._view.name}")


def _listed(columns: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
