"""Mixed clusters whose processes are killed and stopped under two clients: N12 of docs/specs/raft.md 18.4."""

import asyncio
import random

import pytest

from pavane.raft.client import RaftClient
from tests.interop.cluster import FIRST_ELECTION_MS, Cluster
from tests.interop.conftest import Make
from tests.interop.javascript import Javascript
from tests.interop.raw import IDENT
from tests.interop.writing import Writer, check_logs, writer

ELECTION_MS = (500, 900)  # short: each blow costs an election, and one more does no harm here
BLOWS = 5


async def strike(cluster: Cluster, writing: Writer, rng: random.Random) -> None:
    """Kill or stop the leader or another peer; the others go on, then it comes back."""
    leader = await asyncio.to_thread(cluster.leader)
    victim = leader if rng.random() < 0.6 else rng.choice(sorted(cluster.members))
    if rng.random() < 0.6:
        cluster.kill(victim)
        await writing.more(20)
        await asyncio.to_thread(cluster.start, victim)
    else:
        cluster.suspend(victim)
        try:
            await writing.more(20)
        finally:
            cluster.resume(victim)


@pytest.mark.parametrize(
    ("kinds", "seed"),
    [("ojj", 1), *(pytest.param(*each, marks=pytest.mark.long) for each in (("joo", 2), ("oojjj", 3), ("ooojj", 4)))],
)
async def test_logs_stay_equal_and_nothing_acknowledged_is_lost_or_doubled(
    make: Make, js: Javascript, kinds: str, seed: int
) -> None:
    cluster = make(kinds, elections=ELECTION_MS)
    rng = random.Random(seed)
    client = await js.call("client", cluster.urls)
    async with writer(cluster) as writing:
        js_writer = await js.call("write", client, "js")
        await writing.more(20)
        await asyncio.to_thread(cluster.ready)
        for _ in range(BLOWS):
            await writing.more(20)
            await strike(cluster, writing, rng)
        for id_ in cluster.members:
            cluster.kill(id_)
        await asyncio.to_thread(cluster.start_all)
        await writing.more(20)
    by_js = [(index, bytes.fromhex(data)) for index, data in await js.call("finish", js_writer)]
    assert by_js
    await asyncio.to_thread(check_logs, cluster, [*writing.acknowledged, *by_js])


async def test_one_of_ours_with_an_older_log_and_shorter_times_lets_a_js_peer_lead(make: Make) -> None:
    """A peer of zmq-raft that is asked for its vote in a higher term waits anew, even if it refuses."""
    cluster = make("ojj")
    async with RaftClient(cluster.urls, IDENT) as client:
        await client.update(b"everywhere")
        await asyncio.to_thread(cluster.ready)
        cluster.kill("a")
        await client.update(b"at the others")
        leader = await asyncio.to_thread(cluster.leader)
        cluster.kill(leader)
        cluster.members["a"].elections = FIRST_ELECTION_MS
        await asyncio.to_thread(cluster.start, "a")
        await asyncio.to_thread(cluster.led_by, "c" if leader == "b" else "b")
        await client.update(b"again")
