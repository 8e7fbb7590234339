"""Who keeps views after another did, over one log: where dataflows begin, who may write, what shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from time import monotonic
from uuid import uuid4

import pytest

from pavane.compute.core.ports import AllowSink, Build, Request
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.state.reconcile import reconcile
from pavane.compute.wire.commands import CreateDataflow
from pavane.dataflow.controlling import Controller
from pavane.dataflow.entries import Batch, Minted, decode
from pavane.dataflow.keeping import Clocks, Keeper, Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.ports import Fenced
from pavane.dataflow.replica import ReplicaEngine
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.sql import parse
from pavane.dataflow.views import Views
from tests.services.dataflow.test_chains_under_faults import DATA, HOME, TICKS_PARTITION, FaultyLog
from tests.services.eventually import eventually

TABLE = "CREATE TABLE {0} (x BIGINT) USING waltz OPTIONS (partitions '0');"
SUM = TABLE.format("t") + "CREATE MATERIALIZED VIEW v AS SELECT sum(x) AS s FROM t;"
MOST = TABLE.format("t") + "CREATE MATERIALIZED VIEW v AS SELECT max(x) AS s FROM t;"
MANY = TABLE.format("o") + "CREATE MATERIALIZED VIEW w AS SELECT count(*) AS n FROM o;"
INTERVAL_S = 0.01


class Noting(ReplicaEngine):
    """A replica that notes what it was asked for."""

    def __init__(self, log: FaultyLog, generation: int, clocks: Clocks) -> None:
        place = Place(TICKS_PARTITION, HOME)
        super().__init__(ReplicaCore(generation), log, place, PlainEngine, INTERVAL_S, clocks)
        self.asked: list[Request] = []
        self.exits: list[int] = []
        self.address = ""
        self.waiting: list[Request] | None = None
        """Permissions to write, of which it hears later."""

    def carry_out(self, request: Request) -> None:
        self.asked.append(request)
        if self.waiting is not None and isinstance(request, AllowSink):
            self.waiting.append(request)
        else:
            super().carry_out(request)

    def let(self) -> None:
        """Hear of them."""
        waiting, self.waiting = self.waiting or [], None
        for request in waiting:
            super().carry_out(request)


class Pipeline:
    """A log in memory; each controller starts at a later time than the one before."""

    def __init__(self) -> None:
        self.log = FaultyLog(Random(0), kind=True)
        times = count(1000, 1000)
        self.clocks = Clocks(lambda: next(times), monotonic, lambda: uuid4().hex)
        self.last: Controller | None = None
        self.turns = 0
        """Of the last controller, while it leads."""

    async def append(self, *values: int) -> None:
        for value in values:
            await self.log.append(DATA, json.dumps({"x": value}).encode())

    @asynccontextmanager
    async def replica(self, generation: int) -> AsyncIterator[Noting]:
        engine = Noting(self.log, generation, self.clocks)
        bound: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        exits = engine.exits
        serving = asyncio.create_task(
            engine.serve(lambda code, _: exits.append(code), host="127.0.0.1", port=0, listening=bound.set_result)
        )
        engine.address = f"127.0.0.1:{await bound}"
        try:
            yield engine
        finally:
            serving.cancel()
            await asyncio.wait({serving})

    @asynccontextmanager
    async def controller(
        self, scripts: tuple[str, ...], replica: Noting, generation: int = 1, leaves: int = 0
    ) -> AsyncIterator[tuple[Controller, asyncio.Task[None]]]:
        parsed, place = [parse(script) for script in scripts], Place(TICKS_PARTITION, HOME)
        dialled = {"r0": replica.address}
        made = Controller(self.log, parsed, place, dialled, INTERVAL_S, self.clocks, generation)
        made.leaves = leaves
        made.allowed.set()
        self.last, self.turns = made, 0
        running = asyncio.create_task(made.run(self._moved, lambda _: None))
        try:
            yield made, running
        finally:
            running.cancel()
            await asyncio.wait({running})

    def _moved(self, controller: Controller) -> None:
        self.turns += controller is self.last and controller.leads

    @asynccontextmanager
    async def keeper(self, script: str, generation: int) -> AsyncIterator[None]:
        place = Place(TICKS_PARTITION, HOME)
        made = Keeper(self.log, [parse(script)], place, PlainEngine, INTERVAL_S, self.clocks, generation)
        made.allowed.set()
        running = asyncio.create_task(made.run(lambda _: None, lambda _: None))
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def written(self, controller: Controller, answer: int) -> None:
        """Wait until the chain of `v` tells this, and the controller knows how far all views are."""
        await self.shown(answer)
        await eventually(lambda: all(each.upper > controller.tick for each in controller.views))

    async def shown(self, answer: int) -> None:
        """Wait until the chain of `v` tells this."""
        views = Views(self.log, HOME)
        async with asyncio.timeout(20):
            while True:
                await views.look()
                view = views.readers.get("v")
                there = view is not None and view.tick >= view.since
                if there and views.query("SELECT s FROM v")[1].to_pylist() == [{"s": answer}]:
                    break
                await asyncio.sleep(0.01)
        views.close()

    @property
    def minted_by(self) -> list[int]:
        """The generation that minted each tick."""
        found = [decode(record.header, record.data) for record in self.log.partitions[TICKS_PARTITION]]
        return [entry.rank.generation for entry in found if isinstance(entry, Minted)]

    @property
    def batches(self) -> list[Batch]:
        found = [decode(record.header, record.data) for record in self.log.partitions[HOME]]
        return [entry for entry in found if isinstance(entry, Batch)]


async def test_a_controller_that_starts_again_asks_for_what_its_replica_has() -> None:
    pipeline = Pipeline()
    async with pipeline.replica(1) as replica:
        async with pipeline.controller((SUM, MANY), replica) as (first, _):
            await pipeline.append(1, 2)
            await pipeline.written(first, 3)
            await pipeline.append(3)
            await pipeline.written(first, 6)
        uppers = {batch.chain: batch.upper for batch in pipeline.batches}
        had = replica.core._history
        replica.asked.clear()
        async with pipeline.controller((SUM, MANY), replica) as (second, _):
            await pipeline.append(4)
            await pipeline.written(second, 10)
    wanted = [each.description for each in replica.asked if isinstance(each, Build)]
    plan = reconcile(had, [CreateDataflow(each) for each in wanted])
    assert plan.rebuilt == {}
    assert plan.retained == {"u1", "u2"}
    # Nor is a tick skipped that the chains lack.
    assert [each.as_of <= uppers[each.steps[0].id] for each in wanted] == [True, True]
    assert replica.exits == []


async def test_so_does_one_on_a_machine_whose_clock_is_hours_behind() -> None:
    """Its boot number is the time: its replica had accepted a greater one."""
    pipeline = Pipeline()
    async with pipeline.replica(1) as replica, pipeline.controller((SUM,), replica) as (first, former):
        await pipeline.append(1, 2)
        await pipeline.written(first, 3)
        behind = count(1)
        pipeline.clocks = Clocks(lambda: next(behind), monotonic, lambda: uuid4().hex)
        async with pipeline.controller((SUM,), replica) as (second, _):
            await pipeline.append(4)
            with pytest.raises(Fenced):
                async with asyncio.timeout(20):
                    await former
            await pipeline.append(5)
            await pipeline.written(second, 12)
    assert replica.exits == []


async def test_a_changed_script_is_not_undone_by_a_controller_of_the_former_one() -> None:
    pipeline = Pipeline()
    async with (
        pipeline.replica(1) as old,
        pipeline.replica(2) as new,
        pipeline.controller((SUM,), old) as (first, leading),
    ):
        await pipeline.append(1, 2)
        await pipeline.written(first, 3)
        new.waiting = []
        async with pipeline.controller((MOST,), new, 2) as (second, _):
            await eventually(lambda: bool(new.waiting) and pipeline.turns > 3)
            assert pipeline.minted_by == [1], "the former replica could write the tick"
            new.let()
            await pipeline.written(second, 2)
            with pytest.raises(Fenced):
                async with asyncio.timeout(20):
                    await leading
            await eventually(lambda: old.exits == [0])
            async with pipeline.replica(1) as again, pipeline.controller((SUM,), again) as (_, late):
                with pytest.raises(Fenced, match="generation 2"):
                    async with asyncio.timeout(20):
                        await late
            await pipeline.append(5)
            await pipeline.written(second, 5)
    batches = pipeline.batches
    assert [batch.lower for batch in batches[1:]] == [batch.upper for batch in batches[:-1]]
    generations = [batch.rank.generation for batch in batches]
    assert sorted(generations) == generations
    assert pipeline.minted_by == [1, 2, 2]


@pytest.mark.parametrize("generation", [1, 2])
async def test_a_changed_script_shows_although_no_row_comes(generation: int) -> None:
    pipeline = Pipeline()
    await pipeline.append(1, 2)
    async with pipeline.keeper(SUM, 1):
        await pipeline.shown(3)
    async with pipeline.keeper(MOST, generation):
        await pipeline.shown(2)


async def test_a_script_that_is_sent_back_shows_although_a_pod_of_the_one_that_was_left_starts_again() -> None:
    """Both have the same epoch then: that pod took it before who goes back fenced it, and its replica is late."""
    pipeline = Pipeline()
    await pipeline.append(1, 2)
    for script, generation, answer in ((SUM, 1, 3), (MOST, 2, 2)):
        async with pipeline.keeper(script, generation):
            await pipeline.shown(answer)
    async with pipeline.replica(1) as replica:
        replica.waiting = []
        async with pipeline.controller((SUM,), replica, leaves=2):
            await eventually(lambda: bool(replica.waiting))
            ticks = len(pipeline.minted_by)
            (view,) = parse(MOST).views
            late = ChainSink(Home(pipeline.log, HOME), TICKS_PARTITION, view, pipeline.clocks.now_ms, lambda: "late")
            await late.open(1)
            await late.allow((2, 2))
            looked = pipeline.turns
            await eventually(lambda: pipeline.turns > looked + 2)
            assert len(pipeline.minted_by) == ticks, "the one that was left could write the tick"
            replica.let()
            await pipeline.shown(3)
