"""A peer hangs up on those for whom it has no descriptor, and serves the others (docs/specs/raft.md 14.4)."""

import asyncio
import logging
import resource
import socket
from pathlib import Path
from typing import cast

import pytest
import zmq

from pavane.raft import connections
from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.connections import CONNECTIONS_MAX, DESCRIPTORS_KEPT, Connections, connections_max
from pavane.raft.server import RaftServer
from tests.services.eventually import eventually
from tests.services.raft.crowd import Member, message
from tests.services.raft.peers import free_urls
from tests.services.raft.test_peer_process import SECRET, Peers, peers

__all__ = ["peers"]

FILES = 200  # that the peer's process may open
MORE = 300  # who come
QUESTION = message(b"id", b"^", b"nobody knows it")


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("tcp://").rpartition(":")
    return host, int(port)


async def join(url: str, *, reads: bool = False) -> tuple[asyncio.Transport, Member]:
    """One that is done when it is connected, or, if it reads, when the peer hangs up: its question has no answer."""
    loop = asyncio.get_running_loop()
    return await loop.create_connection(lambda: Member(QUESTION, reads=reads), *address(url))


def value(server: RaftServer, name: str) -> float:
    [found] = [value for metric, _, value in server.metrics() if metric == f"pavane_raft_{name}"]
    return found


async def test_the_newest_is_refused_until_somebody_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 3)
    [publish] = free_urls(1)
    config = Config("1", SECRET.encode(), url="tcp://127.0.0.1:1", peers=(("1", "tcp://127.0.0.1:1"),))
    server = RaftServer(config, data=tmp_path, bind="tcp://127.0.0.1:0", publish=publish)
    await server.start()
    try:
        subscriber, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *address(publish))
        among = [await join(server.bound) for _ in range(2)]
        for _, member in among:
            await member.done
        await eventually(lambda: value(server, "connections") == 3)
        _, refused = await join(server.bound, reads=True)
        with pytest.raises(ConnectionError):
            await refused.done
        assert value(server, "connections") == 3
        assert value(server, "connections_refused_total") == 1
        [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert line.startswith("3 programs are connected")
        among.pop()[0].close()
        await eventually(lambda: value(server, "connections") == 2)
        among.append(await join(server.bound))
        await among[-1][1].done
        for transport in (subscriber, *(transport for transport, _ in among)):
            transport.close()
        await eventually(lambda: value(server, "connections") == 0)
    finally:
        await server.stop()


async def test_a_peer_of_few_files_serves_those_who_are_there(peers: Peers) -> None:
    [url] = free_urls(1)
    await peers.up("1", f"1={url}", "--machine", "KeyValue", limit=f"ulimit -n {FILES}")
    async with RaftClient([url], SECRET.encode()) as client:
        await client.kv.put(b"key", b"first")
        others = [await join(url, reads=True) for _ in range(MORE)]
        await eventually(lambda: sum(member.done.done() for _, member in others) >= MORE - FILES // 2)
        await client.kv.put(b"key", b"second")
        for transport, _ in others:
            transport.close()
        await asyncio.gather(*(member.done for _, member in others), return_exceptions=True)


@pytest.mark.parametrize(
    ("files", "most"),
    [
        (resource.RLIM_INFINITY, CONNECTIONS_MAX),
        (1 << 20, CONNECTIONS_MAX),
        (1024, 1024 - DESCRIPTORS_KEPT),
        (200, 100),
    ],
)
def test_what_may_be_open_limits_the_connections(monkeypatch: pytest.MonkeyPatch, files: int, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert connections_max() == most


class Said:
    """The first frame of a message, as ØMQ says whose it is."""

    def __init__(self, number: int, name: str) -> None:
        self._known: dict[object, object] = {zmq.SRCFD: number, "User-Id": name}

    def get(self, option: object) -> object:
        return self._known[option]


async def test_a_connection_that_may_count_under_the_name_of_an_older_one_ends() -> None:
    """A message of a connection that is gone was read when its descriptor was another's already."""
    here, there = socket.socketpair()
    with zmq.Context() as context, context.socket(zmq.PAIR) as monitor, here, there:
        found = Connections([], context, asyncio.get_running_loop(), named=True)
        key = monitor, here.fileno()
        found._open[key], found._before[key] = None, 0
        counts = []
        for route, name in ((b"gone", "struck off"), (b"gone", "struck off"), (b"here", "listed")):
            found.heard[route] = cast("zmq.Frame", Said(here.fileno(), name))
            found.end_all_but(lambda _: True)
            counts.append(found.count)
        found.close()
    assert counts == [1, 1, 0]
