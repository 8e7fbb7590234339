"""Our client on clusters of any mixture: the left column of docs/specs/raft.md 11.2, and N14 of 18.4."""

import asyncio
import time
from contextlib import aclosing
from functools import partial

import pytest

from pavane.raft.client import ClientConfig, Entry, Fresh, RaftClient
from pavane.raft.errors import Expired, Refused
from pavane.raft.wire.entry import EntryType
from tests.interop.cluster import Cluster
from tests.interop.conftest import Make
from tests.interop.raw import IDENT
from tests.services.eventually import eventually

DAY_S = 86_400
WAIT_S = 30.0


async def states(client: RaftClient, after: int = 0) -> list[Entry]:
    return [entry async for entry in client.entries(after) if entry.type == EntryType.STATE]


@pytest.mark.proves("our client → ours", "^", "%", "<")
@pytest.mark.proves("our client → JS", "^", "%", "=", "<")
async def test_our_client_updates_reads_and_finds_the_leader(cluster: Cluster) -> None:
    leader = cluster.leader()
    follower = next(url for id_, url in cluster.seed.items() if id_ != leader)
    async with RaftClient([follower], IDENT) as client:
        found = await client.configuration()
        assert (found.leader, found.is_leader) == (leader, True)
        assert dict(found.peers) == cluster.seed
        start = (await client.log_info()).last_index
        data = [b"%d" % number for number in range(300)] + [bytes(size) for size in (65_516, 70_000, 1 << 20)]
        indices = await asyncio.gather(*(client.update(item) for item in data))
        assert len(set(indices)) == len(data)
        read = {entry.index: bytes(entry.data) for entry in await states(client, start)}
        assert [read[index] for index in indices] == data
        assert [entry.index async for entry in client.entries(start, 3)] == [start + 1, start + 2, start + 3]
        reqid = client.new_reqid()
        index = await client.update(b"once", reqid=reqid)
        assert await client.update(b"once", reqid=reqid) == index
        old = (int(time.time()) - DAY_S).to_bytes(4, "big") + reqid[4:]
        with pytest.raises(Expired):
            await client.update(b"too late", reqid=old)
        for id_ in cluster.members:
            assert (await client.log_info(id_)).is_leader == (id_ == leader)
        with pytest.raises(Refused, match="no change in cluster membership"):
            await client.change_members(list(cluster.seed.items()))


@pytest.mark.proves("our client → ours", "*", "PUB")
@pytest.mark.proves("our client → JS", "*", "PUB")
async def test_our_subscriber_follows_the_log(cluster: Cluster) -> None:
    leader = cluster.members[cluster.leader()]
    async with RaftClient(cluster.urls, IDENT) as client:
        assert await client.broadcast_url() == leader.pub
        start = (await client.log_info()).last_index
        before = [await client.update(b"before %d" % number) for number in range(3)]
        async with asyncio.timeout(WAIT_S), aclosing(client.subscribe(start)) as items:
            seen: list[int] = []
            while not isinstance(item := await anext(items), Fresh):
                seen.append(item.index)
            assert seen[:3] == before
            after = await asyncio.gather(*(client.update(b"after %d" % number) for number in range(100)))
            while len(seen) < len(before) + len(after):
                if isinstance(item := await anext(items), Entry):
                    seen.append(item.index)
        assert seen == [*before, *sorted(after)]


@pytest.mark.parametrize(("kinds", "hedge"), [("jjj", True), ("jjj", False), ("ojj", True)])
async def test_our_client_follows_a_killed_leader(make: Make, kinds: str, hedge: bool) -> None:
    cluster = make(kinds, first="a")
    cluster.led_by("a")
    acknowledged: list[bytes] = []
    async with RaftClient(cluster.urls, IDENT, config=ClientConfig(hedge=hedge)) as client:

        async def write() -> None:
            while True:
                data = b"%d" % len(acknowledged)
                await client.update(data)
                acknowledged.append(data)

        writing = asyncio.create_task(write())

        def come_to(goal: int) -> bool:
            return len(acknowledged) >= goal or writing.done()

        await eventually(lambda: acknowledged)
        await asyncio.to_thread(cluster.ready)
        for _ in range(2):
            goal = len(acknowledged) + 20
            await eventually(partial(come_to, goal))
            leader = (await client.configuration()).leader
            assert leader is not None
            cluster.kill(leader)
            goal = len(acknowledged) + 20
            await eventually(partial(come_to, goal))
            await asyncio.to_thread(cluster.start, leader)
        assert not writing.done()
        writing.cancel()
        await asyncio.wait([writing])
        written = [bytes(entry.data) for entry in await states(client)]
        assert written[: len(acknowledged)] == acknowledged
        assert len(written) <= len(acknowledged) + 1
