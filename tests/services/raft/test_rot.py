"""Disks that rot or are lost: of a follower, of a leader, under load (docs/specs/raft.md 5.5, 9.2, 13.3, 20 A19, A21).

``PAVANE_FLIPS`` says how many bits of each file flip, one after the other, ``PAVANE_WIPES`` how many voters are wiped.
"""

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient
from pavane.raft.machines.keyvalue import Tree
from pavane.raft.server import StoreError
from pavane.raft.state.roles import Role
from tests.services.eventually import eventually
from tests.services.raft.peers import free_urls
from tests.services.raft.test_peer_process import SECRET, Peers, peers, written
from tests.services.raft.test_snapshots_cluster import Cluster, client, cluster, compacted, without_pause

__all__ = ["client", "cluster", "peers", "without_pause"]

FLIPS = int(os.environ.get("PAVANE_FLIPS", "2"))
WIPES = int(os.environ.get("PAVANE_WIPES", "1"))
OPTIONS = ("--election-min-ms", "300", "--election-max-ms", "600")


def flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


async def same(cluster: Cluster, hurt: str) -> None:
    """Wait until everybody has applied all, and see that everybody came to the same."""
    index = max(server.status().commit for server in cluster.servers.values())
    await cluster.until(hurt, lambda status: not status.recovering)
    for name in cluster.servers:
        await cluster.until(name, lambda status: status.applied >= index)
    machines = [server._machine for server in cluster.servers.values()]
    assert len({machine.digest() for machine in machines if isinstance(machine, Tree)}) == 1


@pytest.mark.timeout(60 + 3 * FLIPS)
@pytest.mark.parametrize("role", [Role.FOLLOWER, Role.LEADER])
@pytest.mark.parametrize("kind", ["log/*.seg", "snap/*.pvs", "store.json"])
async def test_a_flipped_bit_is_never_served(cluster: Cluster, client: RaftClient, kind: str, role: Role) -> None:
    rng = random.Random(f"{kind} {role}")
    last = await compacted(cluster, client, 1)
    last = await compacted(cluster, client, last + 1)
    for number in range(FLIPS):
        name = next(name for name, server in cluster.servers.items() if server.status().role is role)
        await cluster.stop(name)
        file = rng.choice(sorted((cluster.folder / name).glob(kind)))
        sound = file.read_bytes()
        flip(file, rng)
        try:
            await cluster.start(name)
        except StoreError:  # it says so, and serves nothing
            file.write_bytes(sound)
            await cluster.start(name)
        await client.kv.put(b"flip", b"%d" % number)
        await same(cluster, name)
    found = await client.kv.list(b"k", b"l")
    assert {item.key: item.value for item in found.items} == {b"k%d" % n: b"v%d" % n for n in range(1, last + 1)}


@pytest.mark.timeout(60 + 20 * WIPES)
async def test_a_wiped_voter_and_a_killed_leader_lose_nothing_acknowledged(peers: Peers, tmp_path: Path) -> None:
    """The voter's forgotten acknowledgements could elect a leader without what they helped to commit (A21)."""
    urls = free_urls(3)
    members = ",".join(f"{number}={url}" for number, url in enumerate(urls, 1))
    await peers.three_up(urls, *OPTIONS)
    rng = random.Random(21)
    acknowledged: list[bytes] = []
    enough = asyncio.Event()

    async def write(client: RaftClient) -> None:
        while not enough.is_set():
            data = b"%d" % len(acknowledged)
            await client.update(data, timeout_s=40)
            acknowledged.append(data)

    async def end(peer: str) -> None:
        peers.running[peer].kill()
        await peers.running[peer].communicate()

    async with RaftClient(urls, SECRET.encode()) as client:
        writing = asyncio.create_task(write(client))

        async def more(writes: int) -> None:
            goal = len(acknowledged) + writes
            await eventually(lambda: len(acknowledged) >= goal or writing.done(), 40)

        for _ in range(WIPES):
            await more(50)
            leader = (await client.configuration()).leader
            assert leader is not None
            wiped = rng.choice([peer for peer in "123" if peer != leader])
            await end(wiped)
            await more(20)
            shutil.rmtree(tmp_path / wiped)
            await peers.up(wiped, members, *OPTIONS)
            await more(rng.choice([0, 5, 50]))
            await end(leader)
            await peers.up(leader, members, *OPTIONS)
            await more(20)
        enough.set()
        await writing
        assert await written(client) == acknowledged
