"""Exactly once, whatever Spark repeats: rows count only when an entry names them (docs/specs/compute.md 12.1).

Tasks append *data* entries, each task under an id of its own. When all have ended, the commit appends one *batch* entry
to the chain's home partition: it names the ids, and carries the number of the last batch of each writer. It is appended
under the chain's lock and the position up to which the chain was read, so of two that try only one succeeds; the other
reads on, and finds whether its own batch is in. What no batch names is never read.

An entry is a line of JSON and, in a data entry, the rows behind it. All entries have the same transaction header.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pavane.dataflow.log import Transaction
from pavane.dataflow.ports import Format
from pavane.spark.errors import ChainError
from pavane.spark.log import BlockingLog
from pavane.waltz.errors import Conflict, OutcomeUnknown

CHAIN_HEADER = 0x50564348  # "PVCH". Applications number their own records from 0.
WRITERS_MAX = 1000  # Each batch entry carries the last batch of each writer; more would make entries large.
LOOK_BACK = 64  # Transactions read at first in search of the last batch entry; doubled until it is found.
ATTEMPTS_MAX = 100  # Each lost attempt is another writer's success, so only a crowd of writers comes near it.


@dataclass(frozen=True, slots=True)
class DataEntry:
    """Rows of one task and partition: chunk `number` of entry `id`."""

    chain: str
    id: str
    number: int
    format: Format
    rows: bytes

    def encode(self) -> bytes:
        """Return the data of the entry's record."""
        head = {"chain": self.chain, "chunk": self.number, "format": self.format, "id": self.id, "kind": "data"}
        return _line(head) + self.rows


@dataclass(frozen=True, slots=True)
class Piece:
    """Where the chunks of one id lie: between two transactions of a partition, both included."""

    partition: int
    first: int
    last: int
    id: str
    chunks: int


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """What makes rows count: the chain's step from `lower` to `upper`."""

    chain: str
    id: str
    lower: int
    upper: int
    writers: dict[str, int]
    pieces: tuple[Piece, ...]

    def encode(self) -> bytes:
        """Return the data of the entry's record."""
        pieces = [[p.partition, p.first, p.last, p.id, p.chunks] for p in self.pieces]
        return _line({"chain": self.chain, "data": pieces, "id": self.id, "kind": "batch", "lower": self.lower,
                      "token": [0, 0], "upper": self.upper, "writers": self.writers})  # fmt: skip


def _line(head: dict[str, Any]) -> bytes:
    return json.dumps(head, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def decode(record: Transaction) -> DataEntry | BatchEntry | None:
    """Return the entry of a record, None if it is none. Raise ChainError if it claims to be one and is not."""
    if record.header != CHAIN_HEADER:
        return None
    line, _, rows = record.data.partition(b"\n")
    try:
        head = json.loads(line)
        if head["kind"] == "data":
            return DataEntry(str(head["chain"]), str(head["id"]), int(head["chunk"]), Format(head["format"]), rows)
        if head["kind"] == "batch":
            pieces = tuple(Piece(int(p), int(a), int(b), str(i), int(n)) for p, a, b, i, n in head["data"])
            writers = {str(writer): int(batch) for writer, batch in head["writers"].items()}
            return BatchEntry(
                str(head["chain"]), str(head["id"]), int(head["lower"]), int(head["upper"]), writers, pieces
            )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ChainError(
            f"transaction {record.id} has the header of a chain's entry, but it is none: {error!r}"
        ) from None
    raise ChainError(f"transaction {record.id} is an entry of an unknown kind, {head['kind']!r}: use a newer version.")


def batches(records: Iterable[Transaction], chain: str) -> Iterator[tuple[int, BatchEntry]]:
    """Yield the batch entries of a chain and where they are. Raise ChainError where one does not follow the last."""
    upper: int | None = None
    for record in records:
        entry = decode(record)
        if isinstance(entry, BatchEntry) and entry.chain == chain:
            if upper is not None and entry.lower != upper:
                raise ChainError(
                    f"chain {chain!r}: the batch in transaction {record.id} begins at {entry.lower}, the one before it "
                    f"ended at {upper}. Somebody wrote without the chain's lock."
                )
            upper = entry.upper
            yield record.id, entry


@dataclass(slots=True)
class Home:
    """A chain in its home partition, as far as it was read."""

    log: BlockingLog
    partition: int
    chain: str
    last: BatchEntry | None = None
    end: int = 0  # Everything before it was read.

    def open(self, before: int) -> None:
        """Find the last batch entry before a position, from its end backwards."""
        high, step = before, LOOK_BACK
        self.last, self.end = None, before
        while high > 0 and self.last is None:
            low = max(0, high - step)
            self.last = self._latest(low, high)
            high, step = low, step * 2

    def read_on(self, end: int) -> None:
        """Read up to a position that lies behind."""
        if end > self.end:
            self.last = self._latest(self.end, end) or self.last
            self.end = end

    def _latest(self, start: int, stop: int) -> BatchEntry | None:
        latest = None
        for some in self.log.read(self.partition, start, stop):
            for _, entry in batches(some, self.chain):
                latest = entry
        return latest


def commit(log: BlockingLog, home: int, chain: str, writer: str, batch: int, pieces: tuple[Piece, ...]) -> bool:
    """Make the rows of a batch count. Return False if this batch of this writer, or a later one, did before.

    Raises ChainError if the chain cannot take it, and what the log's client raises for reasons that stay.
    """
    ours = [p.first for p in pieces if p.partition == home]
    state = Home(log, home, chain)
    state.open(min(ours, default=log.ends([home])[home]))
    for _ in range(ATTEMPTS_MAX):
        writers = dict(state.last.writers) if state.last else {}
        if writers.get(writer, -1) >= batch:
            return False
        writers[writer] = batch
        if len(writers) > WRITERS_MAX:
            raise ChainError(f"chain {chain!r} has {WRITERS_MAX} writers, which is all it takes: begin another chain.")
        lower = state.last.upper if state.last else 0
        entry = BatchEntry(chain, uuid4().hex, lower, lower + 1, writers, pieces)
        try:
            log.append(home, entry.encode(), header=CHAIN_HEADER, write=[(chain, 0)], seen=state.end - 1)
        except Conflict as conflict:
            state.read_on(max(conflict.txid + 1, state.end))
        except OutcomeUnknown:
            # Either it is in by now and is found, or it comes before the next one, which then fails, or never.
            state.read_on(log.ends([home])[home])
            if state.last is not None and state.last.id == entry.id:
                return True
        else:
            return True
    raise ChainError(
        f"chain {chain!r}: {ATTEMPTS_MAX} commits in a row lost against other writers; Spark may repeat the batch."
    )


def committed(log: BlockingLog, partition: int, chain: str, start: int, stop: int) -> list[Piece]:
    """Return what the batches between two positions of the home partition name, in order."""
    records = (record for some in log.read(partition, start, stop) for record in some)
    return [piece for _, entry in batches(records, chain) for piece in entry.pieces]


def data_of(log: BlockingLog, piece: Piece, chain: str) -> Iterator[tuple[Format, list[Transaction]]]:
    """Yield the data entries of a piece, each chunk once. Raise ChainError if one is missing."""
    seen: set[int] = set()
    for some in log.read(piece.partition, piece.first, piece.last + 1):
        found: list[Transaction] = []
        kind = Format.JSON
        for record in some:
            entry = decode(record)
            if (
                isinstance(entry, DataEntry)
                and entry.chain == chain
                and entry.id == piece.id
                and entry.number not in seen
            ):
                seen.add(entry.number)
                kind = entry.format
                found.append(Rows(record.id, record.header, entry.rows))
        if found:
            yield kind, found
    if len(seen) != piece.chunks:
        raise ChainError(
            f"chain {chain!r}: partition {piece.partition} holds {len(seen)} of {piece.chunks} chunks of {piece.id!r}, "
            "which a batch names. The log has lost records."
        )


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a data entry, in the place of its record."""

    id: int
    header: int
    data: bytes
