"""A ComputeCluster's pod beside the one that writes: what it says of itself while its engine starts."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest

from pavane.compute.core.replica import ReplicaCore
from pavane.compute.transport import STAGE_PORT
from pavane.compute.wire.common import Epoch, Token
from pavane.compute.wire.responses import StageReport
from pavane.dataflow.duckstate import DuckState, Files
from pavane.dataflow.keeping import Place
from pavane.dataflow.plain import PlainEngine
from pavane.dataflow.replica import ReplicaEngine
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.views import Views
from pavane.pods import common, computing
from pavane.pods.compute_controller import ComputePod, LedViews, OwnViews
from pavane.pods.compute_replica import ReplicaPod
from pavane.pods.compute_settings import REPLICA_PORT, ComputeConfig, ComputeSettings
from pavane.pods.computing import Kept, make_clocks
from pavane.runtime.process import Process
from pavane.stage.client import StageStream
from pavane.waltz.aio.archive import Archive
from pavane.waltz.client import Consumer, ConsumerInfo, Rejected, Waltz
from pavane.waltz.core.retention import Policy
from pavane.waltz.errors import ArchiveError
from pavane.wire import Stage
from tests.services.dataflow.hooked import Hooked
from tests.services.eventually import eventually
from tests.services.pods.raft_pods import claimed_address
from tests.services.ports import free_ports
from tests.services.waltz.running import running_log

SCRIPT = """
CREATE TABLE orders (id BIGINT, cents BIGINT) USING waltz OPTIONS (partitions '0');
CREATE MATERIALIZED VIEW total AS SELECT sum(cents) AS total FROM orders;
"""
WAIT_S = 40.0


class SlowEngine(Hooked):
    """Starts when it is let, as Spark does after seconds, and makes steps when it is let."""

    start = threading.Event()
    work = threading.Event()

    def __init__(self, files: Files | None = None) -> None:
        assert self.start.wait(WAIT_S)
        super().__init__(files)

    def around(self, step: Callable[[], pa.Table], inputs: Mapping[str, pa.Table]) -> pa.Table:
        assert self.work.wait(WAIT_S)
        return step()


def settings_of(folder: Path, generation: int, address: str) -> ComputeSettings:
    return ComputeSettings.model_validate(
        {
            "resource": "main",
            "kind": "ComputeCluster",
            "role": "controller",
            "generation": generation,
            "config": folder / "config.yaml",
            "waltz_client": folder,
            "POD_NAME": "main-0",
            "POD_NAMESPACE": "default",
            "POD_IP": address,
        }
    )


V = TypeVar("V", OwnViews, LedViews)


@asynccontextmanager
async def replica(
    folder: Path, generation: int, kind: type[V], replicas: Mapping[str, str] | None = None
) -> AsyncIterator[V]:
    """The views of one generation, led to ReadOnly."""
    settings = settings_of(folder, generation, "127.0.0.1")
    config = ComputeConfig(scripts={"totals": SCRIPT}, ticks=1, views=2, interval_ms=20, replicas=dict(replicas or {}))
    found = kind(settings, config)
    found.following.set()
    running = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.wait({running})


@asynccontextmanager
async def replica_of(generation: int, port: int, log: Waltz) -> AsyncIterator[ReplicaEngine]:
    """A replica of a generation, once it listens."""
    engine = ReplicaEngine(ReplicaCore(generation), log, Place(1, 2), PlainEngine, 0.02, make_clocks())
    listening = asyncio.Event()
    serving = asyncio.create_task(
        engine.serve(lambda *_: None, host="127.0.0.1", port=port, listening=lambda _: listening.set())
    )
    await listening.wait()
    try:
        yield engine
    finally:
        serving.cancel()
        await asyncio.wait({serving})


def waits_for(of: Kept[Any]) -> list[str]:
    return [blocker.reason for blocker in of.report().blockers]


def test_the_scripts_of_a_pod_share_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=600 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    settings = settings_of(tmp_path, 1, "127.0.0.1").model_copy(update={"state": tmp_path})
    config = ComputeConfig(scripts=dict.fromkeys(("one", "two", "three"), SCRIPT), ticks=1, views=2)
    with closing(computing.engine_of(settings, config)()) as engine:
        state = engine.open(config.parsed()[0])
        assert isinstance(state, DuckState)
        assert state._connection is not None
        found = state._connection.execute("SELECT current_setting('max_temp_directory_size')").fetchall()
    assert found == [("100.0 MiB",)], "a third of half of it"


async def test_a_replica_is_not_hydrated_until_its_engine_started_and_its_views_are_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_log(tmp_path / "log", partitions=3, nodes=3) as log:
        await log.settled()
        (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client, replica(tmp_path, 1, OwnViews) as first:
            # With no tick in the log there is nothing to build: the first generation may write.
            await eventually(lambda: waits_for(first) == [], WAIT_S)
            await client.append(0, b'{"id": 1, "cents": 7}')
            first.allowed.set()
            await eventually(lambda: first.report().progress > 0, WAIT_S)
            monkeypatch.setattr(computing, "PlainEngine", SlowEngine)
            async with replica(tmp_path, 2, OwnViews) as second:
                await eventually(lambda: second.keeping is not None, WAIT_S)
                assert waits_for(second) == ["NotHydrated"]
                assert second.unready() == "the views are not built yet"
                SlowEngine.start.set()
                await eventually(lambda: second.report().target > 0, WAIT_S)  # it has read the ticks
                assert waits_for(second) == ["NotHydrated"]
                SlowEngine.work.set()
                await eventually(lambda: waits_for(second) == [], WAIT_S)
                told = second.report()
                assert told.progress == told.target > 0
                assert second.unready() is None


async def test_a_controller_says_which_replica_it_waits_for_and_takes_over_when_all_have_built_the_views(
    tmp_path: Path,
) -> None:
    old, one, other = free_ports(3)
    both = {"a": f"127.0.0.1:{one}", "b": f"127.0.0.1:{other}"}
    async with running_log(tmp_path / "log", partitions=3, nodes=3) as log:
        await log.settled()
        (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")
        async with (
            Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client,
            replica(tmp_path, 1, LedViews, {"old": f"127.0.0.1:{old}"}) as first,
            replica_of(1, old, client),
        ):
            # With no tick in the log there is nothing to build: the first generation may write.
            await eventually(lambda: waits_for(first) == [], WAIT_S)
            assert not first.report().leads
            await client.append(0, b'{"id": 1, "cents": 7}')
            await client.append(0, b"no JSON")
            first.allowed.set()
            await eventually(lambda: first.report().leads and first.unready() is None, WAIT_S)
            assert first.report().write_gap_ms == 0  # nobody wrote before it
            assert [view["name"] for view in first.views()["views"]] == ["total"]
            await eventually(lambda: first.views()["views"][0]["badRows"] == {"orders": 1}, WAIT_S)
            assert [row["transaction"] for row in first.views()["lastBadRows"]] == [1]
            async with replica(tmp_path, 2, LedViews, both) as second, replica_of(2, one, client):
                await eventually(lambda: second.keeping is not None and "a" not in second.keeping.missing, WAIT_S)
                assert waits_for(second) == ["NotHydrated"]
                assert second.unready() == "b is not connected"
                async with replica_of(2, other, client):
                    await eventually(lambda: waits_for(second) == [], WAIT_S)
                    assert second.unready() is None
                    assert not second.report().leads
                    second.allowed.set()
                    await eventually(lambda: second.report().leads, WAIT_S)
                    assert second.report().write_gap_ms > 0
                    await eventually(lambda: first.fenced, WAIT_S)
                await eventually(lambda: waits_for(second) == ["ReplicaMissing"], WAIT_S)
                assert second.report().blockers[0].text == "b is not connected"
                assert second.unready() is None  # one is enough
            await eventually(lambda: first.report().done, WAIT_S)


async def test_a_replicas_pod_is_ready_once_its_views_are_built_and_ends_with_code_0_when_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "FENCED_SECONDS", 0.01)
    with claimed_address() as address:
        async with running_log(tmp_path / "log", partitions=3, nodes=3) as log:
            await log.settled()
            (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")

            @asynccontextmanager
            async def pod() -> AsyncIterator[tuple[ReplicaPod, Process]]:
                process = Process()
                config = ComputeConfig(scripts={}, ticks=1, views=2, interval_ms=20)
                made = ReplicaPod(settings_of(tmp_path, 1, address), config, process)
                await made.start()
                try:
                    yield made, process
                finally:
                    await made.stop()
                    await process.cancel_tasks()

            async def ended(process: Process) -> int:
                async with asyncio.timeout(WAIT_S):
                    return (await process.ended()).code

            async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client, pod() as (served, process):
                await client.append(0, b'{"id": 1, "cents": 7}')
                await eventually(lambda: served._ready_fault() == "no controller has told what to compute", WAIT_S)
                async with replica(tmp_path, 1, LedViews, {"main": f"{address}:{REPLICA_PORT}"}) as first:
                    first.allowed.set()
                    await eventually(lambda: first.report().leads and served._ready_fault() is None, WAIT_S)
                    async with replica(tmp_path, 2, OwnViews) as second:
                        second.allowed.set()
                        assert await ended(process) == 0
                assert served._ready_fault() == "the pod stops"
            async with pod() as (_, process):
                assert await ended(process) == 0  # started again, it finds the later generation in the log


async def test_a_pod_that_was_killed_behind_its_first_fence_writes_without_an_operator(tmp_path: Path) -> None:
    with claimed_address() as address:
        async with running_log(tmp_path / "log", partitions=3, nodes=3) as log:
            await log.settled()
            (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")
            async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
                await client.append(0, b'{"id": 1, "cents": 7}')
                await Ticks(client, 1, (0,), lambda: 0).fence((1, 1))
                assert await client.hwm(2) == -1  # it had not come to the chain
                process = Process()
                config = ComputeConfig(scripts={"totals": SCRIPT}, ticks=1, views=2, interval_ms=20)
                pod = ComputePod(settings_of(tmp_path, 1, address), config, process)
                await pod.start()
                try:
                    await eventually(lambda: pod._stage_json()["stage"] == Stage.READ_WRITE.title, WAIT_S)
                    await eventually(lambda: pod._ready_fault() is None, WAIT_S)
                    views = Views(client, 2)
                    await views.read_on({"total": 2})
                    assert views.query("SELECT total FROM total")[1].to_pylist() == [{"total": 7}]
                finally:
                    await pod.stop()
                    await process.cancel_tasks()


@asynccontextmanager
async def pod_of(folder: Path, generation: int, address: str) -> AsyncIterator[ComputePod]:
    """A pod that computes the views itself."""
    process = Process()
    config = ComputeConfig(scripts={"totals": SCRIPT}, ticks=1, views=2, interval_ms=20)
    made = ComputePod(settings_of(folder, generation, address), config, process)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
        await process.cancel_tasks()


class Lead:
    """Leads pods as the operator does, each stream with a greater epoch."""

    def __init__(self) -> None:
        self._epochs = 0

    @asynccontextmanager
    async def stream(self, generation: int, address: str) -> AsyncIterator[StageStream]:
        self._epochs += 1
        made = StageStream(
            f"{address}:{STAGE_PORT}", epoch=Epoch(1, self._epochs), kind="computecluster", generation=generation
        )
        async with made:
            yield made

    async def to_read_only(self, generation: int, address: str) -> None:
        """Lead a pod that has begun anew to where it follows."""
        async with asyncio.timeout(WAIT_S), self.stream(generation, address) as stream:
            await stream.lead_up()
            await stream.wait_for(lambda report: not report.blockers and not report.done and report.progress > 0)

    async def to_read_write(self, generation: int, address: str, **told: str) -> StageReport:
        async with asyncio.timeout(WAIT_S), self.stream(generation, address) as stream:
            await stream.lead_up(told)
            await stream.wait_for(lambda report: not report.blockers)
            await stream.allow_writes(Token(generation, 1))
            return await stream.wait_for(lambda report: report.leads and report.fence_seen is not None)


async def test_a_generation_that_was_left_follows_and_takes_the_right_to_write_back(tmp_path: Path) -> None:
    lead = Lead()

    async def row(client: Waltz, cents: int) -> None:
        txid = await client.append(0, b'{"id": 1, "cents": %d}' % cents)
        tick = await Ticks(client, 1, (0,), lambda: 0).including(0, txid)
        await views.read_on({"total": tick + 1})

    with claimed_address() as old, claimed_address() as new:
        async with running_log(tmp_path / "log", partitions=3, nodes=3) as log:
            await log.settled()
            (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")
            async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client, pod_of(tmp_path, 2, new) as second:
                views = Views(client, 2)
                async with pod_of(tmp_path, 1, old) as first:
                    await lead.to_read_write(1, old)
                    await row(client, 1)
                    assert (await lead.to_read_write(2, new)).fence_seen == Token(2, 1)
                    await eventually(lambda: first._stage_json()["stage"] == Stage.CREATION.title, WAIT_S)
                    assert first._ready_fault() == "fenced by a later generation"
                    await lead.to_read_only(1, old)
                    assert first._ready_fault() is None
                    assert first._stage_json()["fence"] == 2
                async with pod_of(tmp_path, 1, old) as first:  # it restarts
                    await lead.to_read_only(1, old)
                    await row(client, 10)
                    await eventually(lambda: first._role.report().progress >= second._role.report().progress, WAIT_S)
                    # A permission of before is none to take the right to write back.
                    async with lead.stream(1, old) as stream:
                        await stream.lead_up()
                        await stream.allow_writes(Token(1, 1))
                        await eventually(lambda: stream.closed is not None, WAIT_S)
                    assert second._role.leads
                    await lead.to_read_only(1, old)
                    back = await lead.to_read_write(1, old, left="2")
                    assert back.fence_seen == Token(2, 2)
                    assert back.write_gap_ms > 0
                    await eventually(lambda: second._stage_json()["done"], WAIT_S)
                    await row(client, 100)
                    assert views.query("SELECT total FROM total")[1].to_pylist() == [{"total": 111}]
                async with pod_of(tmp_path, 1, old) as first:
                    # Nobody leads it: it finds in the log that the right to write is its own.
                    await eventually(lambda: first._stage_json()["leads"], WAIT_S)
                    assert first._stage_json()["fence"] == 2
                    await row(client, 1000)
                    assert views.query("SELECT total FROM total")[1].to_pylist() == [{"total": 1111}]


OTHER = """
CREATE TABLE later (id BIGINT) USING waltz OPTIONS (partitions '3');
CREATE MATERIALIZED VIEW total AS SELECT count(*) AS total FROM later;
"""


@asynccontextmanager
async def views_of(folder: Path, generation: int, script: str) -> AsyncIterator[OwnViews]:
    config = ComputeConfig(scripts={"totals": script}, ticks=1, views=2, interval_ms=20)
    found = OwnViews(settings_of(folder, generation, "127.0.0.1"), config)
    found.following.set()
    running = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_the_log_keeps_what_views_are_built_of_until_nobody_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "HOLD_S", 0.05)
    monkeypatch.setattr(computing, "GONE_S", 1.0)
    async with running_log(tmp_path / "log", partitions=5, nodes=3) as log:
        await log.settled()
        (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:

            async def consumers(*expected: list[tuple[str, int]]) -> None:
                async with asyncio.timeout(WAIT_S):
                    while [[(one.name, one.position) for one in await client.consumers(p)] for p in range(5)] != [
                        *expected
                    ]:
                        await asyncio.sleep(0.05)

            for cents in (7, 8):
                await client.append(0, b'{"id": 1, "cents": %d}' % cents)
            held = [("computecluster.main", 0)]
            async with AsyncExitStack() as stack, views_of(tmp_path, 1, SCRIPT) as first:
                first.allowed.set()
                await eventually(lambda: first.report().leads and first.report().progress > 0, WAIT_S)
                await consumers(held, held, held, [], [])
                with pytest.raises(Rejected, match=r"computecluster.main \(from 0\)"):
                    await client.trim(0, 1)
                former = await stack.enter_async_context(views_of(tmp_path, 1, SCRIPT))
                await eventually(lambda: former.keeping is not None, WAIT_S)
                second = await stack.enter_async_context(views_of(tmp_path, 2, OTHER))
                await eventually(lambda: second.keeping is not None, WAIT_S)
                await client.consumer("computecluster.main").start(4, 0)  # of a generation that is long gone
                await consumers(*[held] * 5)
                second.allowed.set()
                await eventually(lambda: second.report().leads, WAIT_S)
                await consumers(held, held, held, held, [])  # the former one follows, for it may have to come back
                await stack.aclose()
                async with views_of(tmp_path, 2, OTHER) as second:
                    second.allowed.set()
                    await consumers([], held, held, held, [])


async def test_views_that_are_followed_are_kept_again_once_they_were_taken_for_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "HOLD_S", 0.05)
    async with running_log(tmp_path / "log", partitions=3, nodes=3) as log:
        await log.settled()
        (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await client.append(0, b'{"id": 1, "cents": 7}')
            async with views_of(tmp_path, 1, SCRIPT) as former:
                await eventually(lambda: former.keeping is not None, WAIT_S)
                for _ in range(2):
                    await client.consumer("computecluster.main").remove(0)
                    async with asyncio.timeout(WAIT_S):
                        while not (found := await client.consumers(0)):
                            await asyncio.sleep(0.05)
                    assert [(one.name, one.position) for one in found] == [("computecluster.main", 0)]


async def test_views_show_that_they_read_before_they_look_who_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "HOLD_S", 0.05)
    done: list[tuple[str, int]] = []
    commit, look = Consumer.commit, Waltz.consumers

    async def committed(consumer: Consumer, partition: int, applied: int) -> None:
        done.append(("commit", partition))
        await commit(consumer, partition, applied)

    async def looked(log: Waltz, partition: int) -> list[ConsumerInfo]:
        done.append(("look", partition))
        return await look(log, partition)

    monkeypatch.setattr(Consumer, "commit", committed)
    monkeypatch.setattr(Waltz, "consumers", looked)
    async with running_log(tmp_path / "log", partitions=5, nodes=3) as log:
        await log.settled()
        (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")
        async with views_of(tmp_path, 1, OTHER) as views:
            views.allowed.set()
            await eventually(lambda: ("look", 4) in done, WAIT_S)
    assert done[done.index(("look", 4)) - 1] == ("look", 0)


async def test_views_whose_first_transactions_are_trimmed_are_never_built_without_them(tmp_path: Path) -> None:
    async with running_log(tmp_path / "log", partitions=3, nodes=3) as log:
        await log.settled()
        (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            for cents in (7, 8):
                await client.append(0, b'{"id": 1, "cents": %d}' % cents)
            await client.trim(0, 1)
            async with views_of(tmp_path, 1, SCRIPT) as first:
                first.allowed.set()
                await eventually(lambda: "HistoryTrimmed" in waits_for(first), WAIT_S)
                await eventually(lambda: first.keeping is None, WAIT_S)  # it has met it
                assert first.unready() == "the views are not built yet"
                (told,) = [each for each in first.report().blockers if each.reason == "HistoryTrimmed"]
                assert "partition 0 begins with transaction 1" in told.text
                assert await client.hwm(2) in (-1, 0)  # a fence of the chain, and no row


async def test_views_are_built_of_what_only_the_archive_has(tmp_path: Path) -> None:
    def archive() -> Archive:
        return Archive(f"file://{tmp_path}/archive", {})

    policy = Policy(archives=True)
    async with running_log(tmp_path / "log", partitions=3, policy=policy, archive=archive) as log:
        await log.settled()
        (tmp_path / "servers").write_text(f"127.0.0.1:{log.servers[0].port}")
        kept = log.servers[0].running.owned[0].keeping.archive
        assert kept is not None
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            for cents in (7, 8):
                await client.append(0, b'{"id": 1, "cents": %d}' % cents)
            await eventually(lambda: kept.end == 2, WAIT_S)
            assert (await client.trim(0, 1)).first == 1
            async with views_of(tmp_path, 1, SCRIPT) as views:
                views.allowed.set()
                await eventually(lambda: views.report().leads and views.report().progress > 0, WAIT_S)
                assert not waits_for(views)
                assert [(one.name, one.position) for one in await client.consumers(0)] == [("computecluster.main", 1)]
                total = (7 + 8).to_bytes(8, "little")
                async with asyncio.timeout(WAIT_S):
                    while total not in b"".join([one.data async for one in client.read(2, 0, await client.hwm(2) + 1)]):
                        await asyncio.sleep(0.05)


async def test_a_log_that_refuses_for_a_while_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it reads is only in the archive, which is away."""
    away = asyncio.Event()

    def archive() -> Archive:
        if away.is_set():
            raise ArchiveError("it is away")
        return Archive(f"file://{tmp_path}/archive", {})

    policy = Policy(archives=True)
    async with running_log(tmp_path / "log", partitions=3, policy=policy, archive=archive) as log:
        await log.settled()
        kept = log.servers[0].running.owned[0].keeping.archive
        assert kept is not None
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await client.append(0, b'{"id": 1, "cents": 7}')
            await eventually(lambda: kept.end == 1, WAIT_S)
            assert (await client.trim(0, 1)).first == 1
        await log.servers.pop().stop()
        away.set()
        await log.start_server()
        await log.settled()
        address = f"127.0.0.1:{log.servers[0].port}"
        (tmp_path / "servers").write_text(address)
        # Not so little patience when it is back: a slow machine would never come to the end of anything.
        monkeypatch.setattr(computing, "log_of", lambda _: Waltz([address], patience=0.5 if away.is_set() else WAIT_S))
        async with views_of(tmp_path, 1, SCRIPT) as views:
            views.allowed.set()
            await eventually(lambda: "it is away" in (views.unready() or ""), WAIT_S)
            away.clear()
            await eventually(lambda: views.report().leads and views.report().progress > 0, WAIT_S)
