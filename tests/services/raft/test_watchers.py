"""Watchers over killed leaders and an installed snapshot: no gap and no repetition (docs/specs/raft.md 12.6, 20 A16).

``PAVANE_WATCHERS``, ``PAVANE_CHANGES`` and ``PAVANE_FAILOVERS`` make it larger; the specification asks for 100, 10 000
and 5.
"""

import asyncio
import os
import shutil
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from pavane.raft.client import Changes, RaftClient
from tests.services.raft.peers import free_urls
from tests.services.raft.test_peer_process import SECRET, Peers, peers

__all__ = ["peers"]

WATCHERS = int(os.environ.get("PAVANE_WATCHERS", "8"))
CHANGES = int(os.environ.get("PAVANE_CHANGES", "400"))
FAILOVERS = int(os.environ.get("PAVANE_FAILOVERS", "1"))
CLIENTS_MAX = 4  # watchers share the connections of a few clients
OPTIONS = (
    "--machine",
    "KeyValue",
    "--election-min-ms",
    "300",
    "--election-max-ms",
    "600",
    "--snapshot-entries",
    "50",
    "--log-retention",
    "10",
)


async def seen_by(client: RaftClient, started: asyncio.Semaphore) -> list[bytes]:
    """Return the values of all changes, in the order in which one watcher is told of them, until the last."""
    values: list[bytes] = []
    async with aclosing(client.kv.watch(b"key", from_=1)) as changes:
        async for change in changes:
            assert isinstance(change, Changes), f"the history was cut at {change}"
            values += [event.data or b"" for event in change.events]
            if values:
                started.release()
            if values[-1:] == [b"%d" % CHANGES]:
                return values
    raise AssertionError("the watch ended by itself")


@pytest.mark.timeout(60 + CHANGES // 5)
async def test_every_watcher_sees_every_change_once_and_in_order(peers: Peers, tmp_path: Path) -> None:
    urls = free_urls(3)
    members = ",".join(f"{number}={url}" for number, url in enumerate(urls, 1))
    await peers.three_up(urls, *OPTIONS)
    started = asyncio.Semaphore(0)
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(RaftClient(urls, SECRET.encode()))
        clients = [
            await stack.enter_async_context(RaftClient(urls, SECRET.encode()))
            for _ in range(min(WATCHERS, CLIENTS_MAX))
        ]
        tasks = [asyncio.create_task(seen_by(clients[at % len(clients)], started)) for at in range(WATCHERS)]
        kill_at = {CHANGES * (at + 1) // (FAILOVERS + 1) for at in range(FAILOVERS)}
        wiped = False
        for number in range(1, CHANGES + 1):
            await writer.kv.put(b"key", b"%d" % number)
            if number not in kill_at:
                continue
            for _ in tasks:
                await started.acquire()  # everybody is in the middle of it
            leader = (await writer.configuration()).leader
            assert leader is not None
            peers.running[leader].kill()
            await peers.running[leader].communicate()
            if not wiped:
                wiped = True
                shutil.rmtree(tmp_path / leader)
            await peers.up(leader, members, *OPTIONS)
        found = await asyncio.gather(*tasks)
        expected = [b"%d" % number for number in range(1, CHANGES + 1)]
        assert all(values == expected for values in found)
        infos = [await writer.log_info(url) for url in urls]
        assert any(info.snapshot_bytes for info in infos)
