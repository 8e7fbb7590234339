"""Dataflows that come and go while another one is built, and ticks that change nothing: what their controller hears."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pyarrow as pa

from pavane.compute.client import ReplicaStream
from pavane.compute.wire import (
    CLOSED,
    AllowCompaction,
    CreateDataflow,
    DataflowDescription,
    Failure,
    IndexExport,
    Schedule,
)
from pavane.dataflow.description import described
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import DIFF
from pavane.dataflow.sql import parse
from pavane.dataflow.ticks import Ticks
from tests.services.dataflow.test_chains_under_faults import DATA, TICKS_PARTITION
from tests.services.dataflow.test_replica import until_output
from tests.services.dataflow.test_replica_failures import Pipeline, peeked, sum_at

OTHER = 3
"""A partition that the first dataflow's table does not have."""
WAIT_S = 20.0


class Held(PlainEngine):
    """Evaluates once it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.let = threading.Event(), threading.Event()
        self.columns: set[str] = set()
        """Of what was evaluated."""

    def evaluate(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        self.begun.set()
        assert self.let.wait(WAIT_S)
        self.columns.update(*(table.column_names for table in tables.values()))
        return super().evaluate(sql, tables)


def other(as_of: int) -> DataflowDescription:
    script = parse(
        "CREATE TABLE o (y BIGINT) USING waltz OPTIONS (partitions '0,3', format 'json');"
        "CREATE MATERIALIZED VIEW w AS SELECT count(*) AS n FROM o;"
    )
    whole = described(script, {"w": "w"}, as_of, as_of)
    exports = (IndexExport("u2", "w"),)
    return DataflowDescription(as_of, sources=whole.sources, steps=whole.steps, index_exports=exports)


async def create(stream: ReplicaStream, description: DataflowDescription, id_: str) -> None:
    await stream.send(CreateDataflow(description))
    await stream.send(Schedule(id_))


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
