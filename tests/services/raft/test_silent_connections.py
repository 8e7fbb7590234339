"""Connections that stand and carry nothing, between real peers and clients (docs/specs/raft.md 14.3).

Everything goes by ways that take what is sent on a silenced connection and acknowledge it, as a proxy whose other side
is gone does: the system cannot find out.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from functools import partial
from pathlib import Path

import pytest

from pavane.raft.client import Changes, RaftClient
from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from tests.services.cutting import Way, cuttable
from tests.services.eventually import eventually
from tests.services.ports import free_ports
from tests.services.raft.peers import IDENT, leads, started

WITHIN_S = 20.0  # of busy processors; without help of ours it is never
ROUNDS = 3


class Cluster:
    """Three peers that know each other by ways, and are known by them."""

    def __init__(self, servers: list[RaftServer], ways: list[Way]) -> None:
        self.servers = servers
        self._ways = ways

    @property
    def urls(self) -> list[str]:
        return [_url(way.port) for way in self._ways]

    def silence(self) -> None:
        """Let every connection there is carry nothing from now on."""
        for way in self._ways:
            way.silence()


def _has(got: list[bytes], count: int) -> bool:
    return len(got) == count


def _url(port: int) -> str:
    return f"tcp://127.0.0.1:{port}"


@pytest.fixture
async def cluster(tmp_path: Path, stack: AsyncExitStack) -> Cluster:
    ports = free_ports(3)
    ways = [await stack.enter_async_context(cuttable(port)) for port in ports]
    members = tuple((str(number), _url(way.port)) for number, way in enumerate(ways))
    servers = []
    for (peer, url), port in zip(members, ports, strict=True):
        config = Config(
            id=peer, ident=IDENT, url=url, peers=members, machine="Tree", election_min=300, election_max=600
        )
        servers.append(await started(stack, RaftServer(config, data=tmp_path / peer, bind=_url(port))))
    await eventually(lambda: any(map(leads, servers)))
    return Cluster(servers, ways)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[RaftClient]:
    async with RaftClient(cluster.urls, IDENT) as client:
        await client.kv.put(b"begin", b"")
        yield client


async def test_peers_elect_and_commit_again_when_all_connections_went_silent(cluster: Cluster) -> None:
    for number in range(ROUNDS):
        cluster.silence()
        async with asyncio.timeout(WITHIN_S), RaftClient(cluster.urls, IDENT) as fresh:
            await fresh.kv.put(b"key", b"%d" % number)


async def test_a_client_whose_connections_went_silent_dials_anew(cluster: Cluster, client: RaftClient) -> None:
    for number in range(ROUNDS):
        cluster.silence()
        async with asyncio.timeout(WITHIN_S):
            await client.kv.put(b"key", b"%d" % number)
            found = await client.kv.get(b"key")
        assert found is not None
        assert found.value == b"%d" % number


async def test_a_watch_goes_on_without_gap_or_double_over_silent_connections(
    cluster: Cluster, client: RaftClient
) -> None:
    got: list[bytes] = []

    async def watch() -> None:
        async with aclosing(client.kv.watch(b"w", from_=1)) as changes:
            async for change in changes:
                assert isinstance(change, Changes)
                got.extend(event.data or b"" for event in change.events)

    watching = asyncio.create_task(watch())
    try:
        for number in range(ROUNDS):
            async with asyncio.timeout(WITHIN_S), RaftClient(cluster.urls, IDENT) as fresh:
                await fresh.kv.put(b"w", b"%d before" % number)
                await eventually(partial(_has, got, 2 * number + 1))
                cluster.silence()
                await fresh.kv.put(b"w", b"%d behind" % number)
                await eventually(partial(_has, got, 2 * number + 2))
    finally:
        watching.cancel()
        await asyncio.wait((watching,))
    assert got == [b"%d %s" % (number, when) for number in range(ROUNDS) for when in (b"before", b"behind")]


async def test_a_lock_is_kept_over_silent_connections(cluster: Cluster, client: RaftClient) -> None:
    async with client.kv.lease(8.0) as held:
        await client.kv.lock(b"lock", held.id)
        cluster.silence()
        async with asyncio.timeout(WITHIN_S):
            await client.kv.put(b"key", b"", lease=held.id)
