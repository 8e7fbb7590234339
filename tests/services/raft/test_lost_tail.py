"""A member that lost the end of its log takes no part until it has it back: no acknowledged write is lost."""

import asyncio
from pathlib import Path

from pavane.raft.client import RaftClient
from tests.services.processes import ended
from tests.services.raft.peers import free_urls
from tests.services.raft.test_peer_process import SECRET, Peers, peers, written

__all__ = ["peers"]


async def kill(peers: Peers, peer: str) -> None:
    peers.running[peer].kill()
    await ended(peers.running[peer])


async def test_acknowledged_writes_outlive_a_lost_tail(peers: Peers, tmp_path: Path) -> None:
    urls = free_urls(3)
    members = ",".join(f"{number}={url}" for number, url in enumerate(urls, 1))
    await peers.three_up(urls)
    async with RaftClient(urls, SECRET.encode()) as client:
        await client.update(b"first")
        await kill(peers, "3")
        [segment] = (tmp_path / "1" / "log").glob("*.seg")
        before = segment.stat().st_size
        for number in range(5):  # one after the other, so as many batches
            await client.update(b"%d" % number)
        await kill(peers, "2")
        await kill(peers, "1")
        whole = segment.read_bytes()
        segment.write_bytes(whole[:before] + bytes(len(whole) - before))
        await asyncio.gather(peers.up("1", members), peers.up("3", members))
        async with asyncio.timeout(20):
            while (await client.status(urls[0]))["role"] != "Recovering":
                await asyncio.sleep(0.02)
        await peers.up("2", members)
        assert await written(client) == [b"first", *(b"%d" % number for number in range(5))]
