"""What a controller hears of dataflows that come and go, of ticks that change nothing, of what cannot be asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from pavane.compute.client import ReplicaStream
from pavane.compute.wire.commands import (
    AllowCompaction,
    CreateDataflow,
    DataflowDescription,
    Finishing,
    IndexExport,
    Literal,
    Order,
    Peek,
    Schedule,
)
from pavane.compute.wire.common import CLOSED, Epoch, Failure, Rows
from pavane.compute.wire.responses import Batch, PeekResponse, SubscribeResponse
from pavane.dataflow import source
from pavane.dataflow.arrangement import Arrangement
from pavane.dataflow.description import described
from pavane.dataflow.duckstate import Files
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import DIFF, TIME
from pavane.dataflow.sql import parse
from pavane.dataflow.ticks import Ticks
from tests.services.dataflow.hooked import Hooked
from tests.services.dataflow.test_chains_under_faults import DATA, TICKS_PARTITION
from tests.services.dataflow.test_replica import rows_of, said, until_output
from tests.services.dataflow.test_replica_failures import Change, Pipeline, index, peeked, sum_at

OTHER = 3
"""A partition that the first dataflow's table does not have."""
WAIT_S = 20.0


class Held(Hooked):
    """Makes a step once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let = threading.Event(), threading.Event()
        self.columns: set[str] = set()
        """Of what was read."""
        self.inside = self.most = 0
        """How many steps are made now, and how many were at once."""

    def around(self, step: Callable[[], pa.Table], inputs: Mapping[str, pa.Table]) -> pa.Table:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.begun.set()
        assert self.let.wait(WAIT_S)
        self.columns.update(*(table.column_names for table in inputs.values()))
        found = step()
        self.inside -= 1
        return found


def other(as_of: int, id_: str = "u2") -> DataflowDescription:
    script = parse(
        "CREATE TABLE o (y BIGINT) USING waltz OPTIONS (partitions '0,3', format 'json');"
        "CREATE MATERIALIZED VIEW w AS SELECT count(*) AS n FROM o;"
    )
    whole = described(script, {"w": "w"}, as_of, {"w": as_of})
    exports = (IndexExport(id_, "w"),)
    return DataflowDescription(as_of, sources=whole.sources, steps=whole.steps, index_exports=exports)


def both(as_of: int) -> DataflowDescription:
    """Two indexes of one view."""
    return replace(index(as_of), index_exports=(IndexExport("u6", "v"), IndexExport("u7", "v")), sink_exports=())


async def create(stream: ReplicaStream, description: DataflowDescription, id_: str) -> None:
    await stream.send(CreateDataflow(description))
    await stream.send(Schedule(id_))


async def followed(stream: ReplicaStream, least: int) -> list[Change]:
    """What the subscribe tells from its beginning until its upper is so great."""
    upper, changes = 0, list[Change]()
    while upper < least:
        batch = (await said(stream, SubscribeResponse)).kind
        assert isinstance(batch, Batch)
        assert isinstance(batch.content, Rows)
        assert batch.lower == upper
        upper = batch.upper
        changes += sorted((row[TIME], row[DIFF], row["s"]) for row in rows_of(batch.content))
    return changes


async def test_one_that_is_dropped_while_it_is_built_is_closed_and_one_that_comes_meanwhile_is_complete() -> None:
    pipeline, engine = Pipeline(), Held()
    async with pipeline.replica(lambda: engine) as stream:
        assert await asyncio.to_thread(engine.begun.wait, WAIT_S)
        last = await pipeline.append(2, 3)
        await stream.send(AllowCompaction("u1", CLOSED))
        await stream.send(AllowCompaction("t1", CLOSED))
        await until_output(stream, "u1", CLOSED)
        await create(stream, other(last), "u2")
        engine.let.set()
        assert await peeked(stream, "u2", last) == [{"n": 3, DIFF: 1}]
        engine.columns.clear()
        assert await peeked(stream, "u2", await pipeline.append(4)) == [{"n": 4, DIFF: 1}]
        assert "x" not in engine.columns, "what was dropped is still computed"
    assert pipeline.exits == []


async def test_a_frontier_moves_over_ticks_without_a_row_and_another_table_is_no_restart() -> None:
    pipeline = Pipeline()
    pipeline.log.partitions[OTHER] = []
    pipeline.ticks = Ticks(pipeline.log, TICKS_PARTITION, (DATA, OTHER), lambda: 0)
    async with pipeline.replica(PlainEngine) as stream:
        assert await sum_at(stream, 1) == 1
        await pipeline.log.append(OTHER, b'{"y": 7}')
        await pipeline.ticks.mint()
        await until_output(stream, "u1", 3)
        await create(stream, other(2), "u2")
        assert await peeked(stream, "u2", 2) == [{"n": 2, DIFF: 1}]
        assert await sum_at(stream, await pipeline.append(4)) == 5


async def test_permission_to_compact_what_is_not_there_yet_loses_nothing() -> None:
    pipeline = Pipeline()
    async with pipeline.replica(PlainEngine) as stream:
        assert await sum_at(stream, 1) == 1
        await stream.send(AllowCompaction("u1", 5))
        for value in range(2, 8):
            tick = await pipeline.append(value)
            if tick >= 5:
                assert await sum_at(stream, tick) == value * (value + 1) // 2
        assert await sum_at(stream, 5) == 15
        too_early = await sum_at(stream, 4)
        assert isinstance(too_early, Failure)
        assert too_early.code == "SinceAdvanced"


async def test_dataflows_are_built_one_after_the_other() -> None:
    pipeline, engine = Pipeline(), Held()
    async with pipeline.replica(lambda: engine) as stream:
        assert await asyncio.to_thread(engine.begun.wait, WAIT_S)
        last = await pipeline.append(2, 3)
        for id_ in ("u2", "u3"):
            await create(stream, other(last, id_), id_)
        assert isinstance(await peeked(stream, "u9", last), Failure)  # so it knows of all three
        engine.let.set()
        await until_output(stream, "u1", last + 1)
        for id_ in ("u2", "u3"):
            assert await peeked(stream, id_, last) == [{"n": 3, DIFF: 1}]
        engine.begun.clear()
        engine.let.clear()
        last = await pipeline.append(4)
        assert await asyncio.to_thread(engine.begun.wait, WAIT_S)
        assert isinstance(await peeked(stream, "u9", last), Failure)
        engine.let.set()
        assert await peeked(stream, "u3", last) == [{"n": 4, DIFF: 1}]
    assert engine.most == 1


async def test_namesakes_are_kept_apart_and_who_is_dropped_lets_go_of_its_file(tmp_path: Path) -> None:
    pipeline, files = Pipeline(), Files(tmp_path, every_s=0.0)
    async with pipeline.replica(lambda: PlainEngine(files)) as stream:
        last = await pipeline.append(2, 3)
        for id_ in ("u2", "u3"):
            await create(stream, other(last, id_), id_)
        for id_ in ("u2", "u3"):
            assert await peeked(stream, id_, last) == [{"n": 3, DIFF: 1}]
        assert len(files.in_use) == 2
        for id_ in ("u2", "u3"):
            await stream.send(AllowCompaction(id_, CLOSED))
        last = await pipeline.append(4)
        assert await sum_at(stream, last) == 10
        assert len(files.in_use) == 1
        await create(stream, other(last, "u4"), "u4")
        assert await peeked(stream, "u4", last) == [{"n": 4, DIFF: 1}]
    assert pipeline.exits == []


async def test_a_subscribe_is_begun_afresh_by_each_connection() -> None:
    pipeline = Pipeline()
    async with pipeline.replica(PlainEngine) as stream:
        last = await pipeline.append(2, 3)
        assert await followed(stream, last + 1) == [(1, 1, 1), (2, -1, 1), (2, 1, 3), (3, -1, 3), (3, 1, 6)]
        async with pipeline.connected(Epoch(1, 2), 2) as again:  # the same description, but for its as_of
            assert await followed(again, last + 1) == [(2, 1, 3), (3, -1, 3), (3, 1, 6)]
            assert await sum_at(again, last) == 6
            await until_output(again, "u1", await pipeline.append(4))


@pytest.mark.parametrize(
    "less",
    [
        Peek(bytes(16), 1, literals=(Literal((1,)),)),
        Peek(bytes(16), 1, map_filter_project=b"{}"),
        Peek(bytes(16), 1, finishing=Finishing((Order(0),))),
    ],
)
async def test_a_peek_for_less_than_all_rows_is_refused_and_no_other_one(less: Peek) -> None:
    pipeline = Pipeline()
    async with pipeline.replica(PlainEngine) as stream:
        await stream.send(replace(less, uuid=uuid4().bytes, index="u1"))
        result = (await said(stream, PeekResponse)).result
        assert isinstance(result, Failure)
        assert result.code == "Unsupported"
        assert await peeked(stream, "u1", 1) == [{"s": 1, DIFF: 1}]


async def test_what_is_built_in_pieces_reaches_a_subscriber_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STEP_BYTES_MAX", 1)
    pipeline = Pipeline()
    async with pipeline.replica(PlainEngine):
        last = await pipeline.append(2, 3)
        async with pipeline.connected(Epoch(1, 2), last) as stream:
            assert await followed(stream, last + 1) == [(3, 1, 6)]


async def test_what_an_open_peek_or_another_export_of_the_view_reads_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arrangement, "_is_enough", lambda _: True)  # all that may be added up is, at each step
    pipeline = Pipeline()
    async with pipeline.replica(PlainEngine) as stream:
        await stream.send(CreateDataflow(both(1)))
        for id_ in ("u6", "u7"):
            await stream.send(Schedule(id_))
        waiting = Peek(uuid4().bytes, 3, index="u1")
        await stream.send(waiting)
        for id_ in ("u1", "u7"):
            await stream.send(AllowCompaction(id_, 5))
        last = await pipeline.append(2, 3, 4, 5, 6)
        answer = await said(stream, PeekResponse)
        assert (answer.uuid, isinstance(answer.result, Rows)) == (waiting.uuid, True)
        assert isinstance(answer.result, Rows)
        assert rows_of(answer.result) == [{"s": 6, DIFF: 1}]
        assert await sum_at(stream, last) == 21
        assert await peeked(stream, "u6", 2) == [{"s": 3, DIFF: 1}]
        await stream.send(AllowCompaction("u6", CLOSED))  # from now on the other one decides
        assert await peeked(stream, "u7", 5) == [{"s": 15, DIFF: 1}]
