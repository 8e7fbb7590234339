"""A log whose metadata store was lost is adopted: from real storage nodes, under load, with nothing lost (13.6)."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from pavane.pods.waltz_metadata import RaftMetadata
from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from pavane.waltz.aio.adopting import adopt_cluster
from pavane.waltz.client import Waltz, WaltzError
from pavane.waltz.core import storing
from pavane.waltz.core.retention import Policy
from pavane.waltz.errors import StorageRefused
from pavane.waltz.state.adoption import CLIENT_STEP, COUNTED_FROM_S, HOLDER, SESSION_STEP, Copy, adopt, counter
from pavane.waltz.state.recovery import Info, Member, Plan, Report, Verdict, classify, resolve
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.blobs import UNRESOLVED, Rollout
from tests.services.eventually import eventually
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT
from tests.services.waltz import running
from tests.services.waltz.memory import MemoryMetadata
from tests.services.waltz.running import Log, RawClient, running_log
from tests.services.waltz.test_consumers import BYTES_MAX

NODES = ("a", "b", "c")
PARTITIONS = 2
WAIT_S = 90.0  # a busy machine takes long to notice, to adopt and to recover


class Writer:
    """Appends to one partition, again and again, and remembers what it was told."""

    def __init__(self, log: Waltz, partition: int) -> None:
        self._log, self.partition = log, partition
        self.acknowledged: dict[int, bytes] = {}
        self.sent: set[bytes] = set()
        self._stopping = False
        self._task = asyncio.create_task(self._write())

    async def more(self) -> None:
        """Wait until appends are acknowledged that were sent from now on."""
        wanted = len(self.acknowledged) + 20
        await eventually(lambda: len(self.acknowledged) >= wanted, WAIT_S)

    async def stop(self) -> None:
        self._stopping = True
        await self._task

    async def check(self, log: Waltz) -> None:
        """Read the whole partition: nothing is lost, doubled, moved or invented."""
        found = {each.id: each.data async for each in log.read(self.partition, 0, await log.hwm(self.partition) + 1)}
        assert list(found) == list(range(len(found)))
        assert {txid: found.get(txid) for txid in self.acknowledged} == self.acknowledged
        assert len(set(found.values())) == len(found)
        assert set(found.values()) <= self.sent

    async def _write(self) -> None:
        while not self._stopping:
            data = b"%d" % len(self.sent)
            self.sent.add(data)
            try:
                self.acknowledged[await self._log.append(self.partition, data)] = data
            except WaltzError:
                await asyncio.sleep(0)


@asynccontextmanager
async def writing(client: Waltz) -> AsyncIterator[list[Writer]]:
    writers = [Writer(client, number) for number in range(PARTITIONS)]
    try:
        for writer in writers:
            await writer.more()
        yield writers
    finally:
        for writer in writers:
            await writer.stop()


def servers(log: Log) -> list[str]:
    return [f"127.0.0.1:{server.port}" for server in log.servers]


def admins(log: Log) -> list[str]:
    return [log.admin(index) if index in log.nodes else f"127.0.0.1:{port}" for index, port in enumerate(log.ports)]


async def test_a_log_whose_registry_was_created_anew_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer with the metadata is emptied under load; the servers go on running, and so does their client."""
    monkeypatch.setattr(running, "SESSION_S", 6.0)  # after a third of it they notice
    [url] = free_urls(1)
    config = Config(
        id="1", ident=IDENT, url=url, peers=(("1", url),), machine="Tree", election_min=300, election_max=600
    )

    async def peer() -> RaftServer:
        server = RaftServer(config, data=tmp_path / "raft", bind=url)
        await server.start()
        return server

    async with AsyncExitStack() as stack:
        registry = await peer()
        store = await stack.enter_async_context(RaftMetadata(RaftClient([url], IDENT)))
        log = await stack.enter_async_context(running_log(tmp_path, partitions=PARTITIONS, servers=2, metadata=store))
        await log.settled()
        with pytest.raises(StorageRefused, match="there is nothing to be adopted"):
            await adopt_cluster(store, log.config, admins(log), None, None)
        client = await stack.enter_async_context(Waltz(servers(log), patience=WAIT_S))
        async with writing(client) as writers:
            for writer in writers:
                await writer.more()
            await registry.stop()
            shutil.rmtree(tmp_path / "raft")
            stack.push_async_callback((await peer()).stop)
            await log.stop_node(0)
            await log.stop_node(1)
            with pytest.raises(StorageRefused, match="1 of 3 copies can be used, which is no majority"):
                await adopt_cluster(store, log.config, admins(log), None, None)
            await log.start_node(1)
            seen = await adopt_cluster(store, log.config, admins(log), None, None, dry_run=True)
            assert [one.kept for one in seen] == [log.config.storage[1:]] * PARTITIONS
            assert await store.get(log.config.root) is None, "a dry run changes nothing"
            await adopt_cluster(store, log.config, admins(log), None, Rollout(0, 2))
            for writer in writers:
                await writer.more()
            await log.start_node(0)  # it is copied anew
            await log.until_all_vote()
            await log.stop_node(1)
            for writer in writers:
                await writer.more()
        for writer in writers:
            await writer.check(client)


async def test_an_owner_that_has_not_noticed_writes_nothing_any_more(tmp_path: Path) -> None:
    """It still reaches the store that everybody else has lost."""
    async with running_log(tmp_path, partitions=PARTITIONS) as log, Waltz(servers(log), patience=1.0) as client:
        await log.settled()
        async with writing(client) as writers:
            [old], log.metadata = log.servers, MemoryMetadata()
            await adopt_cluster(log.metadata, log.config, admins(log), None, None)
            await eventually(lambda: not any(one.healthy for one in old.running.owned.values()), WAIT_S)
            new = await log.start_server()
            await eventually(lambda: len(new.running.owned) == PARTITIONS, WAIT_S)
            await eventually(lambda: all(one.healthy for one in new.running.owned.values()), WAIT_S)
        async with Waltz([f"127.0.0.1:{new.port}"], patience=WAIT_S) as other:
            for writer in writers:
                writer.acknowledged[await other.append(writer.partition, b"new")] = b"new"
                writer.sent.add(b"new")
                await writer.check(other)
        assert not any(one.healthy for one in old.running.owned.values())


async def test_what_consumers_need_is_kept_though_nobody_knows_of_them_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a client that calls itself by the last id there is leaves ids for those that come."""
    monkeypatch.setattr(storing, "LOOK_S", 0.05)
    async with running_log(tmp_path, policy=Policy(bytes_max=BYTES_MAX)) as log:
        await log.settled()
        raw = await RawClient.connect(log.servers[0].port, client=(1 << 31) - 1)
        await raw.mount()
        raw.append(b"by the last one")
        assert await raw.next(m.AppendAck)
        raw.hang_up("done")
        async with Waltz(servers(log)) as client:
            await client.consumer("billing").start(0, 0)
            for _ in range(2 * BYTES_MAX // 1000):
                await client.append(0, bytes(1000))
        await log.servers.pop().stop()
        log.metadata = MemoryMetadata()
        await adopt_cluster(log.metadata, log.config, admins(log), None, None, hold=True)
        owned = (await log.start_server()).running.owned
        await log.settled()
        await eventually(lambda: [(one.name, one.held_ms >= 0) for one in owned[0].consumers()] == [(HOLDER, True)])
        assert owned[0].first == 0
        async with Waltz(servers(log)) as client:
            assert await client.consumer("billing").start(0, 0) == 0
            await client.consumer(HOLDER).remove(0)
            await client.consumer("billing").commit(0, 20)
            await eventually(lambda: owned[0].first == 21)


def test_who_took_part_in_the_last_session_is_believed() -> None:
    copies = {"a": Copy(7, 10, 12, "", 0, 3, 9), "b": Copy(7, 10, 14, "", 5, 3, 4), "c": Copy(4, 8, 9)}
    found = adopt(1, NODES, copies)
    assert (found.last, found.kept, found.anew) == (14, ("a", "b"), ("c",))
    assert found.metadata is not None
    assert found.metadata.session == 7 + SESSION_STEP
    assert found.metadata.generation > 3
    assert found.metadata.start == 5
    states = {state.address: Member(state.session, state.closing_hwm) for state in found.metadata.replicas}
    assert states["a"] == states["b"] == Member(7, UNRESOLVED)
    # Whatever the third holds is given up, and it counts as one that may have acknowledged more.
    assert classify(states, "c", Info(4, 8, 8, 9)) == Plan(lossy=True, truncate_to=-1)
    reports = {"a": Report(12, voting=True, lossy=False), "b": Report(14, voting=True, lossy=False)}
    assert resolve(states, reports) is Verdict.BLOCKED
    assert resolve(states, reports | {"c": Report(-1, voting=False, lossy=True)}) is Verdict.BLOCKED
    assert resolve(states, reports | {"a": Report(14, voting=True, lossy=False)}) == 14


def test_too_few_copies_are_refused_by_name() -> None:
    copies = {node: Copy(7, 10, 12) for node in NODES}
    with pytest.raises(StorageRefused, match=r"first: b \(the disk\), c \(no answer\)"):
        adopt(1, NODES, {"a": copies["a"], "b": copies["b"]._replace(fault="the disk")})
    with pytest.raises(StorageRefused, match=r"only a took part in the last store session, 7, .* get b, c running"):
        adopt(1, NODES, {"a": copies["a"], "b": copies["b"]._replace(session=6)})
    with pytest.raises(StorageRefused, match="lacks what it decided"):
        adopt(1, NODES, {node: copy._replace(last=9) for node, copy in copies.items()})
    nothing = adopt(1, NODES, {node: Copy(-1, -1, -1) for node in NODES[:2]})
    assert nothing.metadata is None


def test_a_counter_never_goes_back() -> None:
    assert counter(COUNTED_FROM_S + 200_000_000, 5) == 200_000_000
    assert counter(COUNTED_FROM_S + 200_000_000, 200_000_000) == 200_000_000 + CLIENT_STEP
