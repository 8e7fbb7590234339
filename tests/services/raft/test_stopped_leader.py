"""Leaders that are stopped or killed while keys are read and leases run (docs/specs/raft.md 10.5, 12.7, 20 A6, A18).

``PAVANE_STOP_S`` and ``PAVANE_LEASES`` make it larger; the specification asks for 5 s and 1000 leases.
"""

import asyncio
import os
import signal
from typing import Any

import pytest
import zmq
import zmq.asyncio

from pavane.raft.client import RaftClient, prefix_range
from pavane.raft.errors import Code
from pavane.raft.machines.commands import Compare, LeaseGrant, LeaseRevoke, Range, Relation, Target, op_fields
from pavane.raft.wire.decoder import Drop, decode_reply
from pavane.raft.wire.pv import PvRead, PvReply
from tests.services.raft.peers import free_urls
from tests.services.raft.test_peer_process import SECRET, Peers, peers

__all__ = ["peers"]

STOP_S = float(os.environ.get("PAVANE_STOP_S", "1.5"))
LEASES = int(os.environ.get("PAVANE_LEASES", "40"))
TTL_MS = 3000  # far more than a busy machine takes for a renewal
OPTIONS = ("--machine", "KeyValue", "--election-min-ms", "300", "--election-max-ms", "600")
READS = 300


class Cluster:
    """Three peers with keys, as processes."""

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.urls = free_urls(3)

    async def start(self) -> None:
        await self.peers.three_up(self.urls, *OPTIONS)

    def client(self) -> RaftClient:
        return RaftClient(self.urls, SECRET.encode())

    async def leader(self, client: RaftClient) -> str:
        leader = (await client.configuration()).leader
        assert leader is not None
        return leader

    def url(self, peer: str) -> str:
        return self.urls[int(peer) - 1]


@pytest.fixture
async def cluster(peers: Peers) -> Cluster:
    cluster = Cluster(peers)
    await cluster.start()
    return cluster


async def reads_of(url: str, count: int) -> list[PvReply]:
    """Ask one peer alone for a linearizable read, again and again, and return what it answers."""
    found = []
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.connect(url)
    try:
        query = PvRead([0, [op_fields(Range(b"key"))]]).encode(SECRET.encode())
        for number in range(count):
            await socket.send_multipart([number.to_bytes(4, "big"), *query])
        for _ in range(count):
            frames = await asyncio.wait_for(socket.recv_multipart(), 20)
            reply = decode_reply(PvReply, [memoryview(frame) for frame in frames[1:]])
            assert not isinstance(reply, Drop)
            found.append(reply)
        return found
    finally:
        socket.close()
        context.term()


async def test_a_leader_that_was_stopped_answers_no_read_from_its_past(cluster: Cluster) -> None:
    async with cluster.client() as client:
        await client.kv.put(b"key", b"before")
        old = await cluster.leader(client)
        process = cluster.peers.running[old]
        process.send_signal(signal.SIGSTOP)
        stopped = asyncio.get_running_loop().time()
        count = 0
        while asyncio.get_running_loop().time() < stopped + STOP_S or count == 0:
            count += 1
            await client.kv.put(b"key", b"%d" % count)
        asked = asyncio.create_task(reads_of(cluster.url(old), READS))
        await asyncio.sleep(0.09)  # they wait in front of the stopped process
        process.send_signal(signal.SIGCONT)
        for reply in [*await asked, *await reads_of(cluster.url(old), READS)]:
            assert reply.code in {Code.OK, Code.NOT_LEADER}
            if reply.code == Code.OK:
                found: Any = reply.value
                [[_, [[_, value, *_]], _]] = found[2]
                assert int(bytes(value)) == count
        item = await client.kv.get(b"key")
        assert item is not None
        assert item.value == b"%d" % count


async def test_renewed_leases_outlive_a_killed_leader_and_the_others_end(cluster: Cluster) -> None:
    async with cluster.client() as client:
        kv = client.kv
        granted = await asyncio.gather(*(kv.command(LeaseGrant(TTL_MS, b"")) for _ in range(LEASES)))
        leases = [outcome.value[0] for outcome in granted]
        renewed = leases[::2]

        async def renew() -> None:
            while True:
                kept = await asyncio.gather(*(kv.keep_alive(lease) for lease in renewed))
                assert all(kept), "a lease ended although it was renewed"
                await asyncio.sleep(0.09)

        renewing = asyncio.create_task(renew())
        await asyncio.gather(*(kv.put(b"lease/%d" % lease, b"held", lease=lease) for lease in renewed))
        left = [lease for lease in leases if lease not in renewed]
        await asyncio.gather(*(kv.command(LeaseRevoke(lease)) for lease in left[::2]))
        cluster.peers.running[await cluster.leader(client)].kill()
        # Of those that nobody renews none is left, and a life later all others are.
        while any(await asyncio.gather(*(is_alive(client, lease) for lease in left))):
            await asyncio.sleep(0.09)
        end = asyncio.get_running_loop().time() + TTL_MS / 1000
        while asyncio.get_running_loop().time() < end:
            assert not renewing.done(), renewing.exception()
            await asyncio.sleep(0.09)
        found = await kv.list(*prefix_range(b"lease/"))
        assert {item.key for item in found.items} == {b"lease/%d" % lease for lease in renewed}
        renewing.cancel()
        await asyncio.wait({renewing})


async def is_alive(client: RaftClient, lease: int) -> bool:
    alive = Compare(Target.LEASE_ALIVE, Relation.EQUAL, b"", lease)
    return (await client.kv.txn([alive], [])).succeeded
