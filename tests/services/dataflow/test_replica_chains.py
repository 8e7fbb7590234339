"""A replica beside others that write its view: it gives way to a later token, and skips no tick of a chain."""

from __future__ import annotations

import asyncio

from pavane.compute.client import ReplicaStream
from pavane.compute.wire.commands import AllowWrites, CreateDataflow, Schedule
from pavane.compute.wire.common import Token
from pavane.dataflow.chain import Chain
from pavane.dataflow.description import described
from pavane.dataflow.entries import Batch, Create, Rank, decode
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.rows import updates_of
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.sql import parse
from tests.services.dataflow.test_chains_under_faults import HOME, TICKS_PARTITION, FaultyLog
from tests.services.dataflow.test_replica import until_output
from tests.services.dataflow.test_replica_failures import SCRIPT, Pipeline, sum_at


async def chained(stream: ReplicaStream, as_of: int) -> None:
    """Have the view written to its chain, too."""
    await stream.send(CreateDataflow(described(parse(SCRIPT), {"v": "u5"}, as_of, {"v": as_of})))
    await stream.send(Schedule("u5"))


def foreign(log: FaultyLog) -> ChainSink:
    """Another writer of the same chain."""
    view = parse(SCRIPT).views[0]
    return ChainSink(Home(log, HOME), TICKS_PARTITION, view, lambda: 0, lambda: "foreign")


def told(log: FaultyLog) -> tuple[list[Rank], dict[int, int]]:
    """Who wrote each batch, and the sum at each tick at which it changed."""
    chain, ranks, sums = Chain("v"), list[Rank](), dict[int, int]()
    for record in log.partitions[HOME]:
        entry = decode(record.header, record.data)
        assert entry is not None
        updates = chain.take(entry)
        if isinstance(entry, Batch):
            ranks.append(entry.rank)
        sums.update({time: row[0] for row, time, diff in (updates_of(updates) if updates else ()) if diff > 0})
    return ranks, sums


async def test_a_later_token_in_the_chain_halts_the_replica_until_it_is_given_one() -> None:
    pipeline = Pipeline()
    async with pipeline.replica(PlainEngine) as stream:
        await chained(stream, 1)
        await stream.send(AllowWrites(Token(1, 1), "u5"))
        await until_output(stream, "u5", await pipeline.append(2) + 1)
        other = foreign(pipeline.log)
        await other.open(1)
        await other.allow((1, 2))
        tick = await pipeline.append(3)
        assert await sum_at(stream, tick) == 6  # answered once all dataflows are brought to this tick
        assert max(told(pipeline.log)[1]) == tick - 1
        await stream.send(AllowWrites(Token(1, 2), "u5"))
        await until_output(stream, "u5", tick + 1)
        ranks, sums = told(pipeline.log)
        assert sums == {1: 1, 2: 3, 3: 6}
        assert sorted(ranks) == ranks
        assert set(ranks) == {Rank(1, 1), Rank(1, 2)}
    assert pipeline.exits == []


async def test_a_dataflow_that_begins_behind_the_end_of_its_chain_ends_the_process() -> None:
    pipeline = Pipeline()
    async with pipeline.replica(PlainEngine) as stream:
        other = foreign(pipeline.log)  # begins the chain after the controller chose a tick
        await other.open(1)
        await other.allow((1, 1))
        tick = await pipeline.append(2, 3, 4)
        await chained(stream, tick)
        await stream.send(AllowWrites(Token(1, 1), "u5"))
        async with asyncio.timeout(20):
            await pipeline.exited.wait()
    assert pipeline.exits == [(4, "the chain ends at 1, and the dataflow begins at 4")]
    entries = [decode(record.header, record.data) for record in pipeline.log.partitions[HOME]]
    assert [type(entry) for entry in entries] == [Create]
