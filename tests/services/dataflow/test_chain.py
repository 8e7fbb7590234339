"""Large batches travel in pieces, of which only those of the batch count; what does not belong there is corrected."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from random import Random

import pyarrow as pa
import pytest

from pavane.dataflow import sink as module
from pavane.dataflow.chain import Chain, Corrections
from pavane.dataflow.entries import CHAIN_HEADER, Batch, Create, Data, Entry, EntryError, Rank, decode, encode
from pavane.dataflow.rows import Multiset, Row, table_of, updates_of
from pavane.dataflow.sink import ChainSink, Home
from tests.services.dataflow.test_chains_under_faults import HOME, SCHEMA, TICKS_PARTITION, VIEW, FaultyLog, Record

OWN = Rank(1, 1)
COLUMNS = tuple((column.name, column.type) for column in VIEW.columns)


def table(*updates: tuple[Row, int, int]) -> pa.Table:
    return table_of(updates, SCHEMA)


def stream(*updates: tuple[Row, int, int]) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table().schema) as writer:
        writer.write_table(table(*updates))
    return bytes(out.getvalue())


class CountingLog(FaultyLog):
    read_records = 0

    async def read(self, partition: int, start: int, stop: int) -> AsyncIterator[Record]:
        async for record in super().read(partition, start, stop):
            self.read_records += 1
            yield record


def sink_of(log: FaultyLog) -> ChainSink:
    ids = iter(range(1000))
    return ChainSink(Home(log, HOME), TICKS_PARTITION, VIEW, lambda: 0, lambda: f"batch-{next(ids)}")


def entries(log: FaultyLog) -> list[Entry]:
    found = [decode(record.header, record.data) for record in log.partitions[HOME]]
    return [entry for entry in found if entry is not None]


def held(all_: Sequence[Entry]) -> Counter[Row]:
    chain, rows = Chain(VIEW.name), Counter[Row]()
    for entry in all_:
        updates = chain.take(entry)
        for row, _, diff in updates_of(updates) if updates is not None else ():
            rows[row] += diff
    return +rows


async def test_a_large_batch_travels_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 1000)
    log = FaultyLog(Random(0), kind=True)
    sink = sink_of(log)
    await sink.open(1)
    await sink.allow((1, 1))
    sink.desire(table(*(((number,), 1, 1) for number in range(200))), 2)
    assert await sink.advance() == 2
    pieces = [entry for entry in entries(log) if isinstance(entry, Data)]
    assert len(pieces) > 4
    assert all(len(piece.rows) < 2000 for piece in pieces)
    assert held(entries(log)) == Counter({(number,): 1 for number in range(200)})
    assert await sink_of(log).open(1) == 2


def test_pieces_that_came_twice_or_belong_to_nobody_do_not_count_and_a_missing_one_is_an_error() -> None:
    begun = Create(VIEW.name, OWN, COLUMNS, TICKS_PARTITION, 1)
    first, second = (Data(VIEW.name, "a", number, stream(((number,), 1, 1))) for number in range(2))
    foreign = Data(VIEW.name, "b", 1, stream(((7,), 1, 1)))
    other = Data("other view", "a", 1, stream(((8,), 1, 1)))
    batch = Batch(VIEW.name, OWN, "a", 1, 2, 2, b"")
    assert held([begun, first, second, first, second, foreign, other, batch]) == Counter({(0,): 1, (1,): 1})
    with pytest.raises(EntryError, match="batch a names 2 chunks, 1 are there"):
        held([begun, first, first, foreign, other, batch])


async def test_a_partition_is_read_once_for_all_its_views() -> None:
    log = CountingLog(Random(0), kind=True)
    for generation in (1, 2):  # each appends two entries for each view
        home = Home(log, HOME)
        views = [replace(VIEW, name=f"view {number}") for number in range(12)]
        sinks = [ChainSink(home, TICKS_PARTITION, view, lambda: 0, lambda: "batch") for view in views]
        for number, sink in enumerate(sinks):
            assert await sink.open(1) == generation
            await sink.allow((generation, 1))
            sink.desire(table(*(((number,), tick, 1) for tick in range(1, generation + 1))), generation + 1)
            assert await sink.advance() == generation + 1
    assert log.read_records == 24 + 48, "the second one reads those of the first one, too"
    with pytest.raises(ValueError, match="was read before the chain late joined"):
        home.join("late", lambda _: None)


def test_to_read_a_batch_costs_what_is_in_it_not_what_the_view_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    added = []
    add = Multiset.add

    def counted(rows: Multiset, row: Row, diff: int) -> None:
        added.append(row)
        add(rows, row, diff)

    monkeypatch.setattr(Multiset, "add", counted)
    corrections = Corrections()
    for upper in range(2, 102):
        corrections.persisted(table(*(((10 * upper + number,), 1, 1) for number in range(10))), upper)
    assert len(added) == 100 * 10


async def test_rows_that_another_writer_of_the_token_left_are_corrected() -> None:
    log = FaultyLog(Random(0), kind=True)
    sink = sink_of(log)
    await sink.open(1)
    await sink.allow((1, 1))
    sink.desire(table(((1,), 1, 1)), 2)
    wrong = Batch(VIEW.name, OWN, "other", 1, 2, 0, stream(((9,), 1, 1)))
    await log.append(
        HOME, encode(wrong), header=CHAIN_HEADER, write=[(VIEW.name, 0)], seen=len(log.partitions[HOME]) - 1
    )
    sink.desire(table(((2,), 2, 1)), 3)
    assert await sink.advance() == 3
    assert held(entries(log)) == Counter({(1,): 1, (2,): 1})


async def test_who_may_not_write_keeps_nothing_that_another_one_has_written() -> None:
    log = FaultyLog(Random(0), kind=True)
    writer, reader = sink_of(log), sink_of(log)
    for each in (writer, reader):
        await each.open(1)
    await writer.allow((1, 1))
    for tick in range(1, 50):
        for each in (reader, writer):
            each.desire(table(((tick,), tick, 1), *([((tick - 1,), tick, -1)] if tick > 1 else [])), tick + 1)
            await each.advance()
        assert await reader.advance() == tick + 1
        kept = reader._corrections
        assert (kept._by_time, kept._due.counts) == ({}, {})
    assert held(entries(log)) == Counter({(49,): 1})
