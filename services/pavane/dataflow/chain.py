"""A view's chain as far as it was read, and what it lacks, without I/O (docs/specs/compute.md 12)."""

from __future__ import annotations

import pyarrow as pa

from pavane.dataflow.entries import Batch, Create, Data, Entry, EntryError, Fence, Rank
from pavane.dataflow.ports import Column
from pavane.dataflow.rows import Multiset, Row, table_of, updates_of

OPEN_IDS_MAX = 16
"""Of large batches that are under way; writers that died leave such ids behind."""


class Chain:
    """The state of one chain: feed it all entries of its home partition, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.created: Create | None = None
        self.rank = Rank()
        self.upper = 0
        self._chunks: dict[str, dict[int, bytes]] = {}

    def take(self, entry: Entry) -> pa.Table | None:
        """Take the next entry; return the updates that it adds. Raises `EntryError` where the chain is broken."""
        if entry.chain != self.name:
            return None
        if isinstance(entry, Data):
            self._chunks.setdefault(entry.id, {})[entry.number] = entry.rows
            while len(self._chunks) > OPEN_IDS_MAX:
                self._chunks.pop(next(iter(self._chunks)))
            return None
        if entry.rank < self.rank:
            raise EntryError(f"chain {self.name}: {entry.rank} wrote after {self.rank}, without the chain's lock")
        self.rank = entry.rank
        if isinstance(entry, Create) and self.created is None:
            self.created, self.upper = entry, entry.as_of
        elif isinstance(entry, Batch):
            return self._batch(entry)
        elif not isinstance(entry, Fence):
            raise EntryError(f"chain {self.name}: an entry {type(entry).__name__} does not belong there")
        return None

    def _batch(self, entry: Batch) -> pa.Table | None:
        if self.created is None or entry.lower != self.upper or entry.upper <= entry.lower:
            raise EntryError(
                f"chain {self.name}: a batch from {entry.lower} to {entry.upper} does not follow {self.upper}; "
                "somebody wrote without the chain's lock"
            )
        self.upper = entry.upper
        chunks = self._chunks.pop(entry.id, {})
        if entry.chunks > len(chunks):
            raise EntryError(
                f"chain {self.name}: batch {entry.id} names {entry.chunks} chunks, {len(chunks)} are there"
            )
        streams = [chunks[number] for number in range(entry.chunks)] or ([entry.rows] if entry.rows else [])
        if not streams:
            return None
        tables = []
        for stream in streams:
            with pa.ipc.open_stream(stream) as opened:
                tables.append(opened.read_all())
        return pa.concat_tables(tables)


class Corrections:
    """Desired minus persisted, consolidated: what is still to be written from the chain's upper on."""

    def __init__(self) -> None:
        self.lower = 0
        self._due = Multiset()  # at `lower`: each batch that is read moves only what came since the one before it
        self._by_time: dict[int, Multiset] = {}  # behind it

    def desire(self, updates: pa.Table) -> None:
        """Updates that the view has."""
        for row, time, diff in updates_of(updates):
            rows = self._due if time <= self.lower else self._by_time.setdefault(time, Multiset())
            rows.add(row, diff)

    def persisted(self, updates: pa.Table | None, upper: int) -> None:
        """Updates that the chain has, up to its upper."""
        self.lower = upper
        for time in [time for time in self._by_time if time <= upper]:
            for row, diff in self._by_time.pop(time).counts.items():
                self._due.add(row, diff)
        if updates is not None:
            for row, _, diff in updates_of(updates):
                self._due.add(row, -diff)

    def until(self, upper: int, schema: pa.Schema) -> pa.Table:
        """Return what a batch from `lower` up to `upper` is to write."""
        listed: list[tuple[Row, int, int]] = [(row, self.lower, diff) for row, diff in self._due.counts.items()]
        for time in sorted(self._by_time):
            if time < upper:
                listed += [(row, time, diff) for row, diff in self._by_time[time].counts.items()]
        return table_of(listed, schema)


def columns_of(created: Create) -> tuple[Column, ...]:
    """Return the columns that a chain was created with."""
    return tuple(Column(name, kind) for name, kind in created.columns)
