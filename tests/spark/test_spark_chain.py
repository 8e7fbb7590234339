"""Chains without Spark: who commits, who repeats, who comes too late."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

from pavane.dataflow.ports import Format
from pavane.spark import chain as chains
from pavane.spark.chain import DataEntry, Piece
from pavane.spark.errors import ChainError, DataLossError
from pavane.spark.log import BlockingLog
from pavane.waltz.errors import Conflict, OutcomeUnknown


@dataclass
class Transaction:
    id: int
    header: int
    data: bytes


@dataclass
class MemoryLog:
    """Two partitions with locks, in memory. `lose` answers are lost, before or after the append took place."""

    records: dict[int, list[Transaction]] = field(default_factory=lambda: {0: [], 1: []})
    locks: dict[tuple[int, str], int] = field(default_factory=dict)
    lose: list[bool] = field(default_factory=list)
    meanwhile: list[bytes] = field(default_factory=list)

    async def append(
        self,
        partition: int,
        data: bytes,
        *,
        header: int = 0,
        write: Sequence[tuple[str, int]] = (),
        read: Sequence[tuple[str, int]] = (),
        seen: int | None = None,
    ) -> int:
        if self.meanwhile and write:
            self._take(partition, self.meanwhile.pop(), chains.CHAIN_HEADER, write)
        last = max((self.locks.get((partition, name), -1) for name, _ in write), default=-1)
        if seen is not None and last > seen:
            raise Conflict(partition, last)
        if self.lose and write:
            if self.lose.pop():
                self._take(partition, data, header, write)
            raise OutcomeUnknown(partition, (0, 0, 0, 0))
        return self._take(partition, data, header, write)

    def _take(self, partition: int, data: bytes, header: int, write: Sequence[tuple[str, int]]) -> int:
        txid = len(self.records[partition])
        self.records[partition].append(Transaction(txid, header, data))
        self.locks.update({(partition, name): txid for name, _ in write})
        return txid

    async def read(self, partition: int, start: int, stop: int) -> AsyncIterator[Transaction]:
        for record in self.records[partition][start:stop]:
            yield record

    async def get(self, partition: int, txid: int) -> Transaction:
        return self.records[partition][txid]

    async def hwm(self, partition: int) -> int:
        return len(self.records[partition]) - 1

    async def first(self, partition: int) -> int:
        return 0

    async def partitions(self) -> Mapping[int, object]:
        return self.records

    def log(self) -> BlockingLog:
        @asynccontextmanager
        async def connect() -> AsyncIterator[MemoryLog]:
            yield self

        return BlockingLog(connect)


def written(memory: MemoryLog, *rows: bytes, partition: int = 0) -> Piece:
    name = uuid4().hex
    first = len(memory.records[partition])
    for number, row in enumerate(rows):
        entry = DataEntry("c", name, number, Format.JSON, row)
        memory._take(partition, entry.encode(), chains.CHAIN_HEADER, [])
    return Piece(partition, first, len(memory.records[partition]) - 1, name, len(rows))


def contents(memory: MemoryLog) -> list[bytes]:
    with memory.log() as log:
        pieces = chains.committed(log, 0, "c", 0, len(memory.records[0]))
        return [r.data for piece in pieces for _, some in chains.data_of(log, piece, "c") for r in some]


def commit(memory: MemoryLog, writer: str, batch: int, *pieces: Piece) -> bool:
    with memory.log() as log:
        return chains.commit(log, 0, "c", writer, batch, pieces)


def test_only_rows_that_a_batch_names_are_read_and_a_repeat_adds_none() -> None:
    memory = MemoryLog()
    first = written(memory, b"a", b"b")
    written(memory, b"stray")
    other = written(memory, b"x", partition=1)
    assert commit(memory, "w", 0, first, other)
    assert contents(memory) == [b"a", b"b", b"x"]
    again = written(memory, b"a", b"b")
    assert not commit(memory, "w", 0, again)
    assert commit(memory, "w", 1, written(memory, b"c"))
    assert not commit(memory, "w", 0, written(memory, b"old"))
    assert commit(memory, "v", 0, written(memory, b"d"))
    assert commit(memory, "w", 2)
    assert contents(memory) == [b"a", b"b", b"x", b"c", b"d"]


def test_the_last_batch_is_found_far_behind() -> None:
    memory = MemoryLog()
    assert commit(memory, "w", 0, written(memory, b"a"))
    written(memory, *[b"stray"] * 1000)
    assert not commit(memory, "w", 0, written(memory, b"a"))
    assert commit(memory, "w", 1, written(memory, b"b"))
    assert contents(memory) == [b"a", b"b"]


@pytest.mark.parametrize("took_place", [True, False])
def test_an_answer_that_is_lost_doubles_nothing(took_place: bool) -> None:
    memory = MemoryLog(lose=[took_place])
    assert commit(memory, "w", 0, written(memory, b"a"))
    assert contents(memory) == [b"a"]


def test_of_two_that_commit_the_same_batch_one_wins() -> None:
    memory = MemoryLog()
    ours, theirs = written(memory, b"a"), written(memory, b"a")
    twin = chains.BatchEntry("c", "twin", 0, 1, {"w": 0}, (theirs,))
    memory.meanwhile = [twin.encode()]
    assert not commit(memory, "w", 0, ours)
    assert contents(memory) == [b"a"]


def test_another_writer_in_between_is_followed() -> None:
    memory = MemoryLog()
    ours, theirs = written(memory, b"a"), written(memory, b"b")
    memory.meanwhile = [chains.BatchEntry("c", "other", 0, 1, {"v": 4}, (theirs,)).encode()]
    assert commit(memory, "w", 0, ours)
    assert contents(memory) == [b"b", b"a"]
    assert not commit(memory, "v", 4, written(memory, b"b"))


def test_a_doubled_chunk_counts_once_and_a_missing_one_is_an_error() -> None:
    memory = MemoryLog()
    piece = written(memory, b"a", b"b")
    memory.records[0].append(Transaction(2, chains.CHAIN_HEADER, memory.records[0][0].data))
    assert commit(memory, "w", 0, Piece(0, 0, 2, piece.id, 2))
    assert contents(memory) == [b"a", b"b"]
    assert commit(memory, "w", 1, Piece(0, 0, 2, piece.id, 3))
    with pytest.raises(ChainError, match="holds 2 of 3 chunks"):
        contents(memory)


def test_a_batch_without_the_lock_and_garbage_are_told() -> None:
    memory = MemoryLog()
    for lower in (0, 5):
        entry = chains.BatchEntry("c", "x", lower, lower + 1, {}, ())
        memory._take(0, entry.encode(), chains.CHAIN_HEADER, [])
    with pytest.raises(ChainError, match="begins at 5, the one before it ended at 1"):
        contents(memory)
    for garbage in (b"", b"{}", b"null", b'{"kind":"later"}', b"\xff"):
        with pytest.raises(ChainError, match="transaction 3"):
            chains.decode(Transaction(3, chains.CHAIN_HEADER, garbage))


def test_a_log_that_is_shorter_than_it_was_is_a_loss() -> None:
    memory = MemoryLog()
    written(memory, b"a")
    with memory.log() as log, pytest.raises(DataLossError, match="ends before transaction 1"):
        list(log.read(0, 0, 5))
