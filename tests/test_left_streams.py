"""Who leaves a stream by `break`, as docs/connect.md shows, has ended it: at the client and at the servers.

So has who leaves a lock, by Ctrl-C too.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import pavane
from pavane.application import Cluster, Connection
from pavane.raft.client import BlockingRaftClient
from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from pavane.waltz.client import Waltz
from tests.api.plane import BASE, plane, served
from tests.services.eventually import eventually
from tests.services.raft.peers import free_urls
from tests.services.waltz.running import running_log

IDENT = b"of the test"
TIMES = 20
"""One stream is left so often, so that none is taken for one that begins."""


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[RaftServer]:
    """A member of its own, with a tree, which publishes."""
    url, pub = free_urls(2)
    config = Config(id="1", ident=IDENT, url=url, broadcast_url=pub, peers=(("1", url),), machine="Tree")
    server = RaftServer(config, data=tmp_path / "1", bind=url, publish=pub)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def streams_of(server: RaftServer) -> float:
    """How many watches and readers of entries a peer has."""
    kept = ("pavane_raft_kv_watches", "pavane_raft_streams")
    return sum(metric.value for metric in server.metrics() if metric.name in kept)


def watches(raft: Cluster) -> list[Callable[[], Any]]:
    client = raft.client
    return [
        lambda: raft.watch("k", from_revision=1),
        lambda: client.kv.watch(b"k", from_=1),
        lambda: client.tree.watch(b"/n", from_=1),
        client.entries,
        client.subscribe,
    ]


async def test_a_stream_of_raft_that_is_left_by_break_has_ended(peer: RaftServer) -> None:
    async with await pavane.connect(connection=Connection("q", (peer.bound,), IDENT)) as raft:
        await raft.put("k", "v")
        await raft.client.tree.create(b"/n")
        for number in range(len(watches(raft))):
            for _ in range(TIMES):
                async for _ in watches(raft)[number]():
                    break
            await eventually(lambda: not raft.client._streams and not streams_of(peer))


async def test_a_watch_that_somebody_reads_goes_on(peer: RaftServer) -> None:
    async with await pavane.connect(connection=Connection("q", (peer.bound,), IDENT)) as raft:
        await raft.put("k", "v")
        watch = raft.watch("k", from_revision=1)
        assert [event.value async for event in _taken(watch, 1)] == [b"v"]
        assert streams_of(peer) == 1
    with pytest.raises(StopAsyncIteration):  # it ended with its cluster
        await anext(watch)


async def _taken(items: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(items)


async def test_a_stream_without_asyncio_that_is_left_by_break_has_ended(peer: RaftServer) -> None:
    def left() -> None:
        with pavane.connect_sync(connection=Connection("q", (peer.bound,), IDENT)) as raft:
            raft.put("k", "v")
            for _ in range(TIMES):
                for _ in raft.watch("k", from_revision=1):
                    break
            assert not raft.asynchronous.client._streams
        with BlockingRaftClient([peer.bound], IDENT) as client:
            for _ in range(TIMES):
                for _ in client.entries():
                    break
            assert not client.asynchronous._streams

    await asyncio.to_thread(left)
    await eventually(lambda: not streams_of(peer))


async def test_a_lock_is_free_after_ctrl_c_that_comes_when_it_has_just_been_taken(
    peer: RaftServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_twice() -> None:
        with pavane.connect_sync(connection=Connection("q", (peer.bound,), IDENT)) as raft:
            run = raft.run

            def interrupted(work: Any) -> None:
                run(work)
                monkeypatch.undo()
                raise KeyboardInterrupt

            monkeypatch.setattr(raft, "run", interrupted)
            with pytest.raises(KeyboardInterrupt) as caught, raft.lock("k", ttl_s=3600.0):
                pass
            with raft.lock("k"):
                assert caught.tb  # which refers to all that was there: nothing has ended by being forgotten

    async with asyncio.timeout(20):
        await asyncio.to_thread(taken_twice)


async def test_a_stream_of_rest_that_is_left_has_ended(tmp_path: Path) -> None:
    """As docs/rest.md shows it."""
    async with plane(tmp_path) as api, served(api, tmp_path, "Tree", "q") as server:
        await api.http.put(f"{BASE}/q/keys/k", content=b"v")
        for path in (f"{BASE}/q/keys?watch=true&from=1", f"{BASE}?watch=true"):
            for _ in range(TIMES):
                async with api.http.stream("GET", path) as events:
                    async for line in events.aiter_lines():
                        if line.startswith("id: "):
                            break
            await eventually(lambda: not api.app.state.streams.count and not streams_of(server))


async def test_a_feed_of_the_log_that_is_left_by_break_has_ended(tmp_path: Path) -> None:
    async with running_log(tmp_path) as running:
        (server,) = running.servers
        async with Waltz([f"127.0.0.1:{server.port}"]) as log:
            await log.append(0, b"first")
            await log.append(0, b"second")
            before = len(server._listener.streams)
            for bounded in (False, True):
                for _ in range(TIMES):
                    async for _ in log.read(0, 0, 2) if bounded else log.feed(0):
                        break
                await eventually(lambda: len(server._listener.streams) <= before)
                assert len(log._directory._all) <= before
