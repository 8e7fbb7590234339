"""A replica's process over a real log, led by a scripted controller that speaks the protocol itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from pavane.compute.client import ReplicaStream, StreamEnded
from pavane.compute.wire.commands import (
    AllowCompaction,
    AllowWrites,
    CreateDataflow,
    CreateInstance,
    DataflowDescription,
    Finishing,
    IndexExport,
    IndexImport,
    InitializationComplete,
    MaterializedView,
    Peek,
    Schedule,
    SinkExport,
    Subscribe,
)
from pavane.compute.wire.common import CLOSED, Epoch, Failure, Rows, Token
from pavane.compute.wire.responses import Batch, Frontiers, PeekResponse, Response, SubscribeResponse
from pavane.dataflow.description import DescriptionError, described, script_of
from pavane.dataflow.ports import DIFF, TIME
from pavane.dataflow.rows import Row
from pavane.dataflow.sql import parse
from pavane.dataflow.ticks import Ticks
from pavane.waltz.client import Waltz
from tests.services.dataflow.recomputed import revenue, wrong_ticks
from tests.services.dataflow.test_views_of_a_log import SCRIPT, TICKS, VIEWS, WAIT_S, Bench, bench, largest, order
from tests.services.ports import free_ports

INSTANCE = CreateInstance("compute", 1)
Kind = TypeVar("Kind", bound=Response)


@asynccontextmanager
async def replica(views: Bench, port: int, generation: int = 1) -> AsyncIterator[asyncio.subprocess.Process]:
    """A replica in a process of its own, once it listens."""
    options = ["--ticks", str(TICKS), "--listen", f"127.0.0.1:{port}", "--interval", "0.1"]
    process = await views.sql("replica", *options, "--generation", str(generation))
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            line = await process.stdout.readline()
        assert b"waiting for a controller" in line, (line, await process.communicate())
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def minted(log: Waltz, ticks: Ticks) -> int:
    """One more tick."""
    await ticks.mint()
    return await ticks.last()


async def said(stream: ReplicaStream, kind: type[Kind]) -> Kind:
    async with asyncio.timeout(WAIT_S):
        while True:
            response = await stream.receive()
            if isinstance(response, kind):
                return response


async def until_output(stream: ReplicaStream, id_: str, least: int) -> Frontiers:
    while True:
        frontiers = await said(stream, Frontiers)
        if frontiers.id == id_ and (frontiers.output or 0) >= least:
            return frontiers


def rows_of(rows: Rows) -> list[dict[str, object]]:
    with pa.ipc.open_stream(rows.arrow_ipc) as stream:
        found: list[dict[str, object]] = stream.read_all().to_pylist()
    assert len(found) == rows.row_count
    return found


def counted(rows: Rows) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for each in rows_of(rows):
        count = each.pop(DIFF)
        assert isinstance(count, int)
        found[tuple(each.values())] += count
    return found


def index_of(as_of: int) -> DataflowDescription:
    script = parse(SCRIPT)
    names = [view.name for view in script.views]
    whole = described(script, dict(zip(names, names, strict=True)), as_of, dict.fromkeys(names, as_of))
    sinks = (SinkExport("t1", "largest", Subscribe(), emit_initial=True),)
    return replace(whole, sink_exports=sinks, index_exports=(IndexExport("u1", "revenue"),))


@pytest.fixture
async def minting(tmp_path: Path) -> AsyncIterator[tuple[Bench, Waltz, Ticks]]:
    async with bench(tmp_path) as (views, log):
        ticks = Ticks(log, TICKS, (0, 1), lambda: 0)
        await ticks.fence((1, 1))
        yield views, log, ticks


@pytest.mark.timeout(120)
async def test_a_foreign_controller_joins_peeks_follows_and_lets_write(minting: tuple[Bench, Waltz, Ticks]) -> None:
    views, log, ticks = minting
    (port,) = free_ports(1)
    orders = [{"id": number, "customer": f"c{number % 5}", "cents": number * 7 % 101} for number in range(40)]
    for number in range(20):
        await log.append(number % 2, order(number))
    first = await minted(log, ticks)
    address = f"127.0.0.1:{port}"
    async with replica(views, port) as process:
        async with ReplicaStream(address, Epoch(1, 1), INSTANCE) as stream:
            for command in (CreateDataflow(index_of(first)), InitializationComplete(), Schedule("u1"), Schedule("t1")):
                await stream.send(command)
            await until_output(stream, "u1", first + 1)
            for number in range(20, 40):
                await log.append(number % 2, order(number))
            second = await minted(log, ticks)
            for tick, count in ((second, 40), (first, 20)):  # the later one waits until its tick is complete
                await stream.send(Peek(bytes([tick] * 16), tick, index="u1"))
                answer = await said(stream, PeekResponse)
                assert isinstance(answer.result, Rows), answer
                assert counted(answer.result) == revenue(orders[:count])
            await stream.send(AllowCompaction("u1", second))
            await stream.send(Peek(bytes(16), first, index="u1"))
            late = (await said(stream, PeekResponse)).result
            assert isinstance(late, Failure)
            assert late.code == "SinceAdvanced"
            await stream.send(Peek(bytes(16), second, index="u1", finishing=Finishing(limit=1)))
            refused = (await said(stream, PeekResponse)).result
            assert isinstance(refused, Failure)
            assert refused.code == "Unsupported"
        async with ReplicaStream(address, Epoch(1, 2), INSTANCE) as stream:  # comes back, and follows from the start
            for command in (CreateDataflow(index_of(first)), InitializationComplete(), Schedule("u1"), Schedule("t1")):
                await stream.send(command)
            upper, held = 0, Counter[Row]()
            while upper <= second:
                batch = (await said(stream, SubscribeResponse)).kind
                assert isinstance(batch, Batch)
                assert batch.lower == upper
                assert isinstance(batch.content, Rows)
                for row in rows_of(batch.content):
                    time, diff = row.pop(TIME), row.pop(DIFF)
                    assert isinstance(time, int)
                    assert isinstance(diff, int)
                    assert batch.lower <= time < batch.upper
                    held[tuple(row.values())] += diff
                upper = batch.upper
            assert +held == largest(orders)
            for id_ in ("u1", "t1"):
                await stream.send(AllowCompaction(id_, CLOSED))
            script = parse(SCRIPT)
            begins = {"revenue": second, "largest": second}
            chains = described(script, {"revenue": "u3", "largest": "u4"}, second, begins)
            await stream.send(CreateDataflow(chains))
            for id_ in ("u3", "u4"):
                await stream.send(Schedule(id_))
            await until_output(stream, "u4", second + 1)
            assert await log.hwm(VIEWS) == -1  # it has computed, and writes nothing before it may
            await stream.send(AllowWrites(Token(1, 1)))
            await stream.send(Peek(bytes(16), second, chain="revenue"))  # waits for the chain
            answer = await said(stream, PeekResponse)
            assert isinstance(answer.result, Rows)
            assert counted(answer.result) == revenue(orders)
            expected = {"revenue": revenue, "largest": largest}
            assert await wrong_ticks(log, (0, 1), TICKS, VIEWS, expected) == (2, [])
            await ticks.fence((2, 1))
            taken = await views.sql("run", str(views.script), "--ticks", str(TICKS), "--interval", "0.02")
            try:
                ended = await end_of(stream)  # generation 2 writes, so this one goes
                assert ended.exit_code == 0
                async with asyncio.timeout(WAIT_S):
                    assert await process.wait() == 0
            finally:
                taken.kill()
                await taken.communicate()


async def end_of(stream: ReplicaStream) -> StreamEnded:
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await stream.receive()
            except StreamEnded as ended:
                return ended


@pytest.mark.timeout(120)
async def test_a_dataflow_that_cannot_be_ends_the_process_and_says_why(minting: tuple[Bench, Waltz, Ticks]) -> None:
    views, log, ticks = minting
    (port,) = free_ports(1)
    await log.append(0, order(1))
    broken = replace(index_of(await minted(log, ticks)), sources=())
    async with replica(views, port) as process, ReplicaStream(f"127.0.0.1:{port}", Epoch(1, 1), INSTANCE) as stream:
        twin = await views.sql("replica", "--ticks", str(TICKS), "--listen", f"127.0.0.1:{port}")
        _, error = await twin.communicate()
        assert (twin.returncode, b"is another one running there?; --listen names" in error) == (1, True), error
        for command in (CreateDataflow(broken), InitializationComplete(), Schedule("u1"), Schedule("t1")):
            await stream.send(command)
        ended = await end_of(stream)
        assert ended.exit_code == 4
        assert "reads orders, which does not stand before it" in ended.text
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 4


def test_a_script_travels_as_a_dataflow() -> None:
    text = (
        "CREATE TABLE a (k STRING, n BIGINT) USING waltz OPTIONS (partitions '0-1', key 'k');"
        "CREATE TABLE b (k STRING) USING waltz OPTIONS (partitions '2', format 'arrow', diff 'true');"
        "CREATE MATERIALIZED VIEW v AS SELECT a.k, n FROM a JOIN b ON a.k = b.k;"
        "CREATE MATERIALIZED VIEW w AS SELECT count(*) AS n FROM v;"
        "CREATE MATERIALIZED VIEW x AS WITH s AS (SELECT k FROM a) "
        "SELECT s.k FROM s JOIN v ON s.k = v.k JOIN b ON b.k = s.k;"
    )
    script = parse(text)
    whole = described(script, {"v": "u1", "w": "u2", "x": "u3"}, 7, {"v": 5, "w": 5, "x": 6})
    found = script_of(whole)
    assert found.tables == script.tables
    assert found.views == tuple(replace(view, sql="") for view in script.views)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"indexes": (IndexImport("u9"),)}, "an index of another dataflow, whose plan can be a step instead"),
        ({"until": 9}, "until"),
        ({"sink_exports": (SinkExport("u1", "v", Subscribe(), non_null=(0,)),)}, "non_null of u1"),
        ({"sink_exports": (SinkExport("u1", "v", MaterializedView("v"), up_to=9),)}, "up_to of u1"),
        ({"sink_exports": (SinkExport("u1", "v", MaterializedView("v", partition_by=(0,))),)}, "partition_by of u1"),
        ({"sink_exports": (SinkExport("u1", "v", MaterializedView("v", format="csv")),)}, "format of u1"),
        ({"sink_exports": (SinkExport("u1", "v", MaterializedView("v", version=1)),)}, "version of u1"),
    ],
)
def test_what_a_dataflow_asks_for_in_vain_is_refused(asked: dict[str, Any], said: str) -> None:
    script = parse(
        "CREATE TABLE t (x BIGINT) USING waltz OPTIONS (partitions '0');"
        "CREATE MATERIALIZED VIEW v AS SELECT sum(x) AS s FROM t;"
    )
    with pytest.raises(DescriptionError, match=f"this replica does not use {said}: leave it out"):
        script_of(replace(described(script, {"v": "u1"}, 7, {"v": 5}), **asked))
