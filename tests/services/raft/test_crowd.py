"""Many idle clients, some that read nothing, and one that floods a peer with noise (docs/specs/raft.md 14, 20 A22).

``PAVANE_IDLE_CLIENTS``, ``PAVANE_STOPPED_CLIENTS`` and ``PAVANE_FLOOD_S`` make it larger; the specification asks for
10,000 and 100. How long others wait is printed: it is a matter of a quiet machine.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient
from tests.services.raft.peers import free_urls
from tests.services.raft.test_peer_process import SECRET, Peers, peers

__all__ = ["peers"]

IDLE = int(os.environ.get("PAVANE_IDLE_CLIENTS", "200"))
STOPPED = int(os.environ.get("PAVANE_STOPPED_CLIENTS", "5"))
FLOOD_S = float(os.environ.get("PAVANE_FLOOD_S", "1"))
GROWN_BYTES_MAX = 128 << 20
BYTES_PER_CLIENT_MAX = 40_000
BIG_BYTES = 64 << 10
BIG_ENTRIES = 32
PIPE = asyncio.subprocess.PIPE
FLOOD = """
import sys, time, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
noise = [[b"\\x01", b"+", sys.argv[2].encode()], [b"\\x01", b"=", b"other", b"x"], [b""], [b"x" * 20] * 9]
begun, sent = time.monotonic(), 0
while time.monotonic() < begun + float(sys.argv[3]):
    for _ in range(100):
        socket.send_multipart(noise[sent % 4])
        sent += 1
    socket.poll(max(0, int(1000 * (begun + sent / 50_000 - time.monotonic()))))
print(sent)
socket.close(linger=0)
"""


def resident_bytes(process: asyncio.subprocess.Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) << 10


async def puts(client: RaftClient, seconds: float) -> list[float]:
    """Put for a while, one after the other; return how long each took, shortest first."""
    took: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(took) < 20:
        begun = time.monotonic()
        await client.kv.put(b"key", b"%d" % len(took))
        took.append(time.monotonic() - begun)
    return sorted(took)


async def begin_flood(url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", FLOOD, url, SECRET, str(FLOOD_S), stdout=PIPE)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc: Linux is needed")
@pytest.mark.timeout(60 + IDLE // 50 + 5 * FLOOD_S)
async def test_a_crowd_and_a_flood_do_not_fill_a_peer(peers: Peers) -> None:
    url, other_url = free_urls(2)
    peer = await peers.up("1", f"1={url}", "--machine", "KeyValue")
    await peers.up("2", f"2={other_url}")
    async with RaftClient([url], SECRET.encode()) as client:
        for number in range(BIG_ENTRIES):
            await client.kv.put(b"big/%d" % number, bytes(BIG_BYTES))
        alone = await puts(client, FLOOD_S)
        # What the machine makes of it when its processors are shared with a flood that somebody else has to bear.
        flood = await begin_flood(other_url)
        beside = await puts(client, FLOOD_S)
        await flood.communicate()
        before = resident_bytes(peer)
        crowd = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.services.raft.crowd", url, SECRET, str(IDLE), str(STOPPED), stdout=PIPE
        )
        try:
            assert crowd.stdout is not None
            assert await crowd.stdout.readline() == b"ready %d\n" % (IDLE + STOPPED)
            with_crowd = resident_bytes(peer) - before
            flood = await begin_flood(url)
            crowded = await puts(client, FLOOD_S)
            noise, _ = await flood.communicate()
            grown = resident_bytes(peer) - before
        finally:
            crowd.kill()
            await crowd.wait()
        p99 = [took[-1 - len(took) // 100] * 1000 for took in (alone, beside, crowded)]
        print(  # noqa: T201
            f"{IDLE} idle, {STOPPED} stopped, {int(noise) / FLOOD_S:.0f} messages/s of noise: "
            f"puts p99 {p99[0]:.1f} ms alone, {p99[1]:.1f} ms while another peer is flooded, {p99[2]:.1f} ms then; "
            f"{with_crowd >> 20} MiB for the crowd, {grown >> 20} MiB in all"
        )
        assert grown < GROWN_BYTES_MAX + IDLE * BYTES_PER_CLIENT_MAX
        item = await client.kv.get(b"key")
        assert item is not None
        assert item.value == b"%d" % (len(crowded) - 1)
