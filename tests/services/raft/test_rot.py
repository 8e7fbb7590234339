"""A bit flips in a file of a peer that is down, follower or leader (docs/specs/raft.md 5.5, 9.2, 13.3, 20 A19).

``PAVANE_FLIPS`` says how many bits of each file flip, one after the other; by default two.
"""

import os
import random
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient
from pavane.raft.server import StoreError
from pavane.raft.state.roles import Role
from tests.services.raft.test_snapshots_cluster import Cluster, client, cluster, compacted, without_pause

__all__ = ["client", "cluster", "without_pause"]

FLIPS = int(os.environ.get("PAVANE_FLIPS", "2"))


def flip(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


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
            server = await cluster.start(name)
        except StoreError as error:
            assert str(cluster.folder / name) in str(error), "it is said which folder is meant"
            file.write_bytes(sound)
            server = await cluster.start(name)
        index = await client.kv.put(b"flip", b"%d" % number)
        await cluster.until(name, lambda status: status.applied >= index and not status.recovering)
        for other in cluster.servers:
            await cluster.until(other, lambda status: status.applied >= index)
        machines = [other._machine for other in cluster.servers.values()]
        assert len({machine.digest() for machine in machines}) == 1
    found = await client.kv.list(b"k", b"l")
    assert {item.key: item.value for item in found.items} == {b"k%d" % n: b"v%d" % n for n in range(1, last + 1)}
