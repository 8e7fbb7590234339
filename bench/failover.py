"""The time without a leader, as a client of the cluster sees it and as the cluster itself needs it (raft.md 19.3)."""

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Sequence

import zmq

from bench.cluster import BenchError
from bench.contestants import Client
from bench.raft import SECRET, Peers
from pavane.raft.messages import has_input, receive, send
from pavane.raft.wire.decoder import decode_reply
from pavane.raft.wire.replies import RequestUpdateReply, UpdateStatus
from pavane.raft.wire.reqid import ReqidGenerator, machine_id, seed
from pavane.raft.wire.requests import RequestUpdate

EVERY_S = 0.003
TIMEOUT_S = 10.0


async def seen_by_client(client: Client, peers: Peers) -> float:
    """Milliseconds from the death of the leader until its client has the next acknowledgement; the peer comes back."""
    leader = await _kill_leader(client, peers)
    (waited,) = await client.sequential(1, 1)
    await peers.rejoin(leader)
    return waited


async def until_commit(client: Client, peers: Peers) -> float:
    """Milliseconds from the death of the leader until one of the others commits; each is asked every 3 ms."""
    with _dealers(peers.urls) as dealers:
        reqids = ReqidGenerator(lambda: seed(machine_id("bench", "", b""), os.getpid(), secrets.randbits(24)))
        await _kill_leader(client, peers)
        began = time.perf_counter()
        while time.perf_counter() < began + TIMEOUT_S:
            for dealer in dealers:
                with contextlib.suppress(zmq.Again):  # that is the one that died
                    request = RequestUpdate(b"\0").encode(SECRET.encode())
                    send(dealer, (reqids.next(int(time.time())), *request))
            await asyncio.sleep(EVERY_S)
            if any(_committed(dealer) for dealer in dealers):
                return (time.perf_counter() - began) * 1000
    raise BenchError(f"nobody has committed anything for {TIMEOUT_S:.0f} s after the death of the leader")


async def _kill_leader(client: Client, peers: Peers) -> str:
    leader = await peers.leader()
    if leader is None:
        raise BenchError("the cluster has no leader")
    await client.sequential(1, 1)
    peers.kill(leader)
    return leader


def _committed(dealer: "zmq.Socket[bytes]") -> bool:
    found = False
    while has_input(dealer):
        frames = receive(dealer)
        reply = decode_reply(RequestUpdateReply, frames[1:]) if frames is not None else None
        found = found or (isinstance(reply, RequestUpdateReply) and reply.status is UpdateStatus.DONE)
    return found


@contextlib.contextmanager
def _dealers(urls: Sequence[str]) -> "Iterator[list[zmq.Socket[bytes]]]":
    context = zmq.Context()
    try:
        dealers = [context.socket(zmq.DEALER) for _ in urls]
        for dealer, url in zip(dealers, urls, strict=True):
            dealer.set(zmq.IMMEDIATE, 1)
            dealer.connect(url)
        yield dealers
    finally:
        context.destroy(linger=0)
