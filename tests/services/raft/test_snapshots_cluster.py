"""Snapshots of real peers over sockets and disks (docs/specs/raft.md 9, 20 A12, A14)."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.core import snapshots
from pavane.raft.core.status import Status
from pavane.raft.errors import Compacted, RaftError, ReqidTaken
from pavane.raft.machines.keyvalue import Tree
from pavane.raft.server import RaftServer
from pavane.raft.state.commands import StoredSnapshot
from pavane.raft.state.roles import Role
from pavane.raft.storage.snapshots import SnapshotFiles
from pavane.raft.wire.entry import EntryType
from pavane.raft.wire.snapshot import decode_groups
from pavane.wal import DiskFolder
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT

ENTRIES = 40
RETENTION = 5


class Cluster:
    """Peers whose logs stay short, and a client of theirs."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.urls = dict(zip("123", free_urls(3), strict=True))
        self.members = tuple(self.urls.items())
        self.servers: dict[str, RaftServer] = {}
        self._stack = stack

    async def start(self, name: str, **settings: Any) -> RaftServer:
        url = self.urls.setdefault(name, free_urls(1)[0])
        config = Config(
            id=name,
            ident=IDENT,
            url=url,
            machine="Tree",
            election_min=300,
            election_max=600,
            snapshot_entries=ENTRIES,
            log_retention=RETENTION,
            **({"peers": self.members} | settings),
        )
        server = RaftServer(config, data=self.folder / name, bind=url)
        await server.start()
        self._stack.push_async_callback(server.stop)
        self.servers[name] = server
        return server

    async def stop(self, name: str) -> None:
        await self.servers.pop(name).stop()

    async def until(self, name: str, holds: Callable[[Status], bool]) -> Status:
        """Wait until what a peer tells of itself holds, and return it."""
        while not holds(self.servers[name].status()):
            assert not self.servers[name].failure.done(), self.servers[name].failure
            await asyncio.sleep(0.02)
        return self.servers[name].status()

    def stored(self, name: str) -> StoredSnapshot | None:
        """Return the newest good snapshot on a peer's disk."""
        return SnapshotFiles(DiskFolder(self.folder / name / "snap")).recover("Tree")[0]


@pytest.fixture(autouse=True)
def without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PAUSE_S", 0.0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        for name in "123":
            await cluster.start(name)
        yield cluster


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[RaftClient]:
    async with RaftClient(list(cluster.urls.values()), IDENT) as client:
        yield client


async def write(client: RaftClient, first: int, last: int) -> None:
    await asyncio.gather(*(client.kv.put(b"k%d" % number, b"v%d" % number) for number in range(first, last + 1)))


async def compacted(cluster: Cluster, client: RaftClient, first: int) -> int:
    """Write until every peer has compacted its log, and return the last number written."""
    number = first
    while True:
        await write(client, number, number + ENTRIES)
        number += ENTRIES
        statuses = [server.status() for server in cluster.servers.values()]
        if all(status.first > RETENTION and status.snapshot > 0 for status in statuses):
            return number


async def value(client: RaftClient, key: bytes) -> bytes | None:
    item = await client.kv.get(key)
    return None if item is None else item.value


async def test_log_is_cut_and_a_restart_begins_from_the_snapshot(cluster: Cluster, client: RaftClient) -> None:
    last = await compacted(cluster, client, 1)
    before = cluster.servers["1"].status()
    assert before.snapshot >= before.first
    for name in "123":
        await cluster.stop(name)
        await cluster.start(name)
    assert await value(client, b"k1") == b"v1"
    assert await value(client, b"k%d" % last) == b"v%d" % last
    assert cluster.servers["1"].status().snapshot >= before.snapshot


async def test_client_reads_the_snapshot_and_the_log_behind_it(cluster: Cluster, client: RaftClient) -> None:
    assert await client.snapshot() is None
    last = await compacted(cluster, client, 1)
    with pytest.raises(Compacted):
        await anext(client.entries())
    found = await client.snapshot()
    assert found is not None
    machine = Tree()
    machine.restore([found.data], found.index)
    async for entry in client.entries(found.index):
        if entry.type == EntryType.STATE:
            machine.apply(entry.index, entry.reqid, entry.data)
    for number in (1, last):
        record = machine.state.keys.get(b"k%d" % number)
        assert record is not None
        assert record.value == b"v%d" % number


async def test_wiped_voter_catches_up_by_snapshot_and_serves(cluster: Cluster, client: RaftClient) -> None:
    await cluster.until("1", lambda status: status.leader is not None)
    leader = cluster.servers["1"].status().leader
    assert leader is not None
    victim = next(name for name in "123" if name != leader)
    last = await compacted(cluster, client, 1)
    await cluster.stop(victim)
    shutil.rmtree(cluster.folder / victim)
    await write(client, last + 1, last + 5)
    server = await cluster.start(victim)
    commit = max(other.status().commit for other in cluster.servers.values())
    status = await cluster.until(victim, lambda status: status.applied >= commit and status.role is Role.FOLLOWER)
    assert status.first > 1
    assert server.status().snapshot > 0
    await cluster.stop(leader)  # now its state is one half of what decides
    assert await value(client, b"k1") == b"v1"


async def test_new_generation_follows_by_snapshot_and_is_promoted(cluster: Cluster, client: RaftClient) -> None:
    last = await compacted(cluster, client, 1)
    learner = await cluster.start("4", peers=(), seeds=tuple(cluster.urls.values()))
    await cluster.until("4", lambda status: status.applied >= last)
    assert learner.status().first > 1
    await client.change_members([*cluster.members[:2], ("4", cluster.urls["4"])])
    await cluster.until("4", lambda status: status.role in {Role.FOLLOWER, Role.LEADER})
    await write(client, last + 1, last + 5)
    assert await value(client, b"k1") == b"v1"


async def test_update_is_known_behind_two_compactions_and_a_new_leader(cluster: Cluster, client: RaftClient) -> None:
    once = client.new_reqid()
    told = await client.kv.put(b"counter", b"1", reqid=once)
    last = await compacted(cluster, client, 1)
    first = cluster.servers["1"].status().snapshot
    while cluster.servers["1"].status().snapshot <= first + ENTRIES:
        last = await compacted(cluster, client, last + 1)
    leader = cluster.servers["1"].status().leader
    assert leader is not None
    await cluster.stop(leader)
    assert await client.kv.put(b"counter", b"1", reqid=once) == told
    with pytest.raises(ReqidTaken):
        await client.kv.put(b"counter", b"2", reqid=once)
    assert await value(client, b"counter") == b"1"
    snapshot = cluster.stored(next(iter(cluster.servers)))
    assert snapshot is not None
    assert decode_groups(snapshot.meta.ids)


async def test_snapshot_that_rots_while_the_peer_is_down_is_replaced(cluster: Cluster, client: RaftClient) -> None:
    last = await compacted(cluster, client, 1)
    await cluster.stop("1")
    newest = max((cluster.folder / "1" / "snap").glob("*.pvs"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    with contextlib.suppress(RaftError):
        await write(client, last + 1, last + 3)
    await cluster.start("1")
    commit = max(other.status().commit for name, other in cluster.servers.items() if name != "1")
    await cluster.until("1", lambda status: status.applied >= commit)
    assert newest.with_suffix(".pvs.bad").exists()
