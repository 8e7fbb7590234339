"""A replica whose engine fails, whose log is away, and whose view has no right contents: what its controller hears."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from time import monotonic
from uuid import uuid4

import pyarrow as pa
import pytest

from pavane.compute.client import ReplicaStream
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.wire.commands import (
    CreateDataflow,
    CreateInstance,
    DataflowDescription,
    IndexExport,
    InitializationComplete,
    Peek,
    Schedule,
    SinkExport,
    Subscribe,
)
from pavane.compute.wire.common import Epoch, Failure, Rows
from pavane.compute.wire.responses import Batch, Frontiers, PeekResponse, StageReport, SubscribeResponse
from pavane.dataflow import replica as module
from pavane.dataflow.description import described
from pavane.dataflow.keeping import Clocks, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import DIFF, TIME, Engine, EngineError
from pavane.dataflow.replica import ReplicaEngine
from pavane.dataflow.sql import parse
from pavane.dataflow.ticks import Ticks
from tests.services.dataflow.hooked import Hooked
from tests.services.dataflow.test_chains_under_faults import DATA, HOME, TICKS_PARTITION, FaultyLog
from tests.services.dataflow.test_replica import rows_of, said

SCRIPT = (
    "CREATE TABLE t (x BIGINT) USING waltz OPTIONS (partitions '0', format 'json');"
    "CREATE MATERIALIZED VIEW v AS SELECT sum(x) AS s FROM t;"
)
Change = tuple[object, object, object]
"""Tick, how many more or fewer, sum."""
CLOCKS = Clocks(lambda: 0, monotonic, lambda: uuid4().hex)


class Breaking(Hooked):
    """Makes so many steps, and then fails."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def around(self, step: Callable[[], pa.Table], inputs: Mapping[str, pa.Table]) -> pa.Table:
        if not self.left:
            raise EngineError("no memory")
        self.left -= 1
        return step()


class Pipeline:
    """A log in memory with ticks, and a replica in this process behind a real port."""

    def __init__(self) -> None:
        self.log = FaultyLog(Random(0), kind=True)
        self.ticks = Ticks(self.log, TICKS_PARTITION, (DATA,), lambda: 0)
        self.exits: list[tuple[int, str]] = []
        self.exited = asyncio.Event()
        self.address = ""

    async def append(self, *values: int) -> int:
        """Append rows, each at a tick of its own; return the last tick."""
        for value in values:
            await self.log.append(DATA, json.dumps({"x": value}).encode())
            await self.ticks.mint()
        return await self.ticks.last()

    def exit(self, code: int, reason: str) -> None:
        self.exits.append((code, reason))
        self.exited.set()

    @asynccontextmanager
    async def replica(self, engine: Callable[[], Engine]) -> AsyncIterator[ReplicaStream]:
        await self.ticks.fence((1, 1))
        first = await self.append(1)
        serving = ReplicaEngine(ReplicaCore(1), self.log, Place(TICKS_PARTITION, HOME), engine, 0.01, CLOCKS)
        bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serving.serve(self.exit, host="127.0.0.1", port=0, listening=bound.set_result))
        try:
            self.address = f"127.0.0.1:{await bound}"
            async with self.connected(Epoch(1, 1), first) as stream:
                yield stream
        finally:
            task.cancel()
            await asyncio.wait({task})

    @asynccontextmanager
    async def connected(self, epoch: Epoch, as_of: int) -> AsyncIterator[ReplicaStream]:
        """A connection that tells of the dataflow."""
        async with ReplicaStream(self.address, epoch, CreateInstance("compute", 1)) as stream:
            commands = (CreateDataflow(index(as_of)), InitializationComplete(), Schedule("u1"), Schedule("t1"))
            for command in commands:
                await stream.send(command)
            yield stream


def index(as_of: int) -> DataflowDescription:
    whole = described(parse(SCRIPT), {"v": "v"}, as_of, {"v": as_of})
    return DataflowDescription(
        as_of,
        sources=whole.sources,
        steps=whole.steps,
        index_exports=(IndexExport("u1", "v"),),
        sink_exports=(SinkExport("t1", "v", Subscribe(), emit_initial=True),),
    )


async def peeked(stream: ReplicaStream, id_: str, tick: int) -> object:
    """The rows of an index, or why there are none."""
    await stream.send(Peek(uuid4().bytes, tick, index=id_))
    result = (await said(stream, PeekResponse)).result
    return rows_of(result) if isinstance(result, Rows) else result


async def sum_at(stream: ReplicaStream, tick: int) -> object:
    found = await peeked(stream, "u1", tick)
    return found[0]["s"] if isinstance(found, list) else found


async def test_an_engine_that_fails_is_made_anew_and_no_answer_changes() -> None:
    pipeline = Pipeline()
    engines = iter([Breaking(5), PlainEngine()])
    async with pipeline.replica(lambda: next(engines)) as stream:
        changes: list[Change] = []
        last = 1
        for value in range(2, 8):
            last = await pipeline.append(value)
            assert await sum_at_following(stream, last, changes) == sum(range(1, value + 1))
        assert await sum_at_following(stream, 1, changes) == 1
        assert next(engines, None) is None
        later = [each for n in range(2, last + 1) for each in ((n, -1, total(n - 1)), (n, 1, total(n)))]
        assert changes == [(1, 1, 1), *later]
    assert pipeline.exits == []


def total(count: int) -> int:
    """1 + 2 + …"""
    return count * (count + 1) // 2


async def sum_at_following(stream: ReplicaStream, tick: int, changes: list[Change]) -> object:
    """Peek, and note what the subscribe says up to this tick, in order."""
    uuid = uuid4().bytes
    await stream.send(Peek(uuid, tick, index="u1"))
    while True:
        async with asyncio.timeout(20):
            response = await stream.receive()
        if isinstance(response, SubscribeResponse):
            assert isinstance(response.kind, Batch)
            assert isinstance(response.kind.content, Rows)
            rows = rows_of(response.kind.content)
            changes += sorted((row[TIME], row[DIFF], row["s"]) for row in rows)
        elif isinstance(response, PeekResponse):
            assert isinstance(response.result, Rows)
            return rows_of(response.result)[0]["s"]


@pytest.mark.parametrize("left", range(1, 4))
async def test_an_engine_that_fails_between_two_dataflows_doubles_nothing_and_no_frontier_falls(left: int) -> None:
    pipeline, frontiers = Pipeline(), dict[tuple[str, str], int]()
    engines = iter([Breaking(left), PlainEngine()])
    changes: dict[str, list[Change]] = {"t1": [], "t2": []}
    uppers = dict.fromkeys(changes, 0)
    async with pipeline.replica(lambda: next(engines)) as stream:
        second = replace(index(1), index_exports=(IndexExport("u2", "v"),))
        second = replace(second, sink_exports=(SinkExport("t2", "v", Subscribe(), emit_initial=True),))
        for command in (CreateDataflow(second), Schedule("u2"), Schedule("t2")):
            await stream.send(command)
        last = await pipeline.append(2, 3, 4)
        while min(uppers.values()) <= last:
            async with asyncio.timeout(20):
                response = await stream.receive()
            if isinstance(response, Frontiers):
                for kind in ("write", "input", "output"):
                    told = getattr(response, kind)
                    if told is not None:
                        assert told > frontiers.get((response.id, kind), 0)
                        frontiers[response.id, kind] = told
            elif isinstance(response, SubscribeResponse):
                batch = response.kind
                assert isinstance(batch, Batch)
                assert isinstance(batch.content, Rows)
                assert batch.lower == uppers[response.id]
                uppers[response.id] = batch.upper
                rows = rows_of(batch.content)
                changes[response.id] += sorted((row[TIME], row[DIFF], row["s"]) for row in rows)
    assert next(engines, None) is None
    later = [each for n in range(2, last + 1) for each in ((n, -1, total(n - 1)), (n, 1, total(n)))]
    assert changes == {id_: [(1, 1, 1), *later] for id_ in changes}
    assert pipeline.exits == []


async def test_an_engine_that_fails_again_and_again_ends_the_process() -> None:
    pipeline = Pipeline()
    async with pipeline.replica(lambda: Breaking(0)):
        async with asyncio.timeout(20):
            await pipeline.exited.wait()
        assert pipeline.exits == [(5, "no memory")]


async def test_a_log_that_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    pipeline = Pipeline()
    async with pipeline.replica(PlainEngine) as stream:
        assert await sum_at(stream, 1) == 1
        pipeline.log.away = True
        while not (await said(stream, StageReport)).blockers:
            pass
        pipeline.log.away = False
        while (await said(stream, StageReport)).blockers:
            pass
        assert await sum_at(stream, await pipeline.append(2)) == 3


async def test_a_view_that_has_no_right_contents_fails_its_subscribes_and_peeks() -> None:
    pipeline = Pipeline()
    async with pipeline.replica(PlainEngine) as stream:
        assert await sum_at(stream, 1) == 1
        tick = await pipeline.append(2**63 - 1)
        while True:
            batch = (await said(stream, SubscribeResponse)).kind
            assert isinstance(batch, Batch)
            if isinstance(batch.content, Failure):
                break
        assert batch.content.code == "ViewFailed"
        assert batch.upper > tick
        report = await said(stream, StageReport)
        assert {blocker.reason for blocker in report.blockers} == {"DataflowFailed"}
        failure = await sum_at(stream, tick)
        assert isinstance(failure, Failure)
        assert failure.code == "ViewFailed"
        assert failure.text.startswith("v: ")
