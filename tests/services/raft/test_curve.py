"""CURVE on real sockets: a cluster whose peers and clients are encrypted, and who is kept out (14.2)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.curve import REREAD_S, CurveKeys, CurveServer, Zap
from pavane.raft.errors import Unreachable
from pavane.raft.server import RaftServer
from pavane.raft.sockets import Sockets
from pavane.raft.wire.decoder import decode_broadcast
from pavane.raft.wire.requests import StateBroadcast
from tests.services.raft.peers import ELECTION_MAX_MS, ELECTION_MIN_MS, free_url

IDENT = b"s3cr3t"
STRUCK_OFF_S = 60.0
"""Within a minute nobody is served whose key is not listed any more."""
CURVE_GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0CURVE" + bytes(47)
WAIT_S = 20.0
LONE_PUBLIC, LONE_SECRET = zmq.curve_keypair()
REFUSED_S = 1.0
"""How long a client that is kept out tries."""


def pair() -> tuple[bytes, bytes]:
    return zmq.curve_keypair()


class Cluster:
    """Three encrypted peers; ``keys`` is what a listed client connects with."""

    def __init__(self, folder: Path) -> None:
        self.clients = folder / "clients"
        self.clients.mkdir()
        public, secret = pair()
        _, server_secret = pair()
        self.curve = CurveServer(server_secret, self.clients)
        self.keys = CurveKeys(self.curve.public, public, secret)
        (self.clients / "client.pub").write_bytes(public + b"\n")
        self.members = tuple((str(number), free_url()) for number in range(1, 4))
        self.servers = [self._server(folder, peer, url) for peer, url in self.members]

    def _server(self, folder: Path, peer: str, url: str) -> RaftServer:
        config = Config(
            id=peer,
            ident=IDENT,
            url=url,
            peers=self.members,
            election_min=ELECTION_MIN_MS,
            election_max=ELECTION_MAX_MS,
        )
        return RaftServer(config, data=folder / peer, bind=url, curve=self.curve)

    @property
    def urls(self) -> list[str]:
        return [url for _, url in self.members]

    def client(self, keys: CurveKeys | None) -> RaftClient:
        return RaftClient(self.urls, IDENT, curve=keys)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(tmp_path)
    async with AsyncExitStack() as stack:
        for server in made.servers:
            stack.push_async_callback(server.stop)
            await server.start()
        yield made


async def test_encrypted_peers_agree_and_serve_a_listed_client(cluster: Cluster) -> None:
    async with cluster.client(cluster.keys) as client:
        indices = [await client.update(b"%d" % number) for number in range(20)]
        assert indices == sorted(set(indices))
        assert len((await client.configuration()).peers) == 3


@pytest.mark.parametrize("kind", ["clear", "unlisted", "other server"])
async def test_others_are_not_served(cluster: Cluster, kind: str) -> None:
    public, secret = pair()
    keys = {
        "clear": None,
        "unlisted": CurveKeys(cluster.curve.public, public, secret),
        "other server": CurveKeys(public, cluster.keys.public, cluster.keys.secret),
    }
    async with cluster.client(cluster.keys) as listed, cluster.client(keys[kind]) as other:
        await listed.update(b"the cluster serves")
        with pytest.raises(Unreachable):
            await other.update(b"from outside", timeout_s=REFUSED_S)


async def test_a_key_that_is_struck_off_is_refused_and_its_connections_end(
    cluster: Cluster,
) -> None:
    public, secret = pair()
    (cluster.clients / "stays.pub").write_bytes(public)
    stays = CurveKeys(cluster.curve.public, public, secret)
    async with cluster.client(cluster.keys) as struck, cluster.client(stays) as client:
        for each in (struck, client):
            await each.update(b"both are connected")
        (cluster.clients / "client.pub").unlink()

        async def is_refused() -> bool:
            try:
                await struck.update(b"from outside", timeout_s=REFUSED_S)
            except Unreachable:
                return True
            return False

        async with asyncio.timeout(STRUCK_OFF_S):
            while not await is_refused():
                await client.update(b"served all the while")
        await client.update(b"and afterwards")
        with pytest.raises(Unreachable):
            async with cluster.client(cluster.keys) as again:
                await again.update(b"by a new connection", timeout_s=REFUSED_S)


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[RaftServer]:
    """One encrypted peer that lists no clients and publishes."""
    url, publish = free_url(), free_url()
    config = Config("1", IDENT, url=url, peers=(("1", url),), broadcast_url=publish, broadcast_heartbeat=50)
    server = RaftServer(config, data=tmp_path / "1", bind=url, publish=publish, curve=CurveServer(LONE_SECRET))
    await server.start()
    yield server
    await server.stop()


async def test_everybody_who_knows_the_cluster_key_may_connect_where_no_clients_are_listed(lone: RaftServer) -> None:
    async with RaftClient([lone.bound], IDENT, curve=CurveKeys(LONE_PUBLIC, *pair())) as client:
        assert await client.update(b"x") > 0


async def test_what_is_published_is_encrypted_too(lone: RaftServer) -> None:
    keys = CurveKeys(LONE_PUBLIC, *pair())
    context = zmq.asyncio.Context()
    asking, subscriber, clear = context.socket(zmq.DEALER), context.socket(zmq.SUB), context.socket(zmq.SUB)
    monitor = clear.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_SUCCEEDED)
    try:
        keys.secure(asking)
        asking.connect(lone.bound)
        await asking.send_multipart([b"id", b"*", IDENT])
        _, url = await asking.recv_multipart()
        keys.secure(subscriber)
        for socket in (subscriber, clear):
            socket.set(zmq.SUBSCRIBE, IDENT)
            socket.connect(url.decode())
        assert parse_monitor_message(await monitor.recv_multipart())["event"] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        assert isinstance(decode_broadcast(await subscriber.recv_multipart(), IDENT), StateBroadcast)
    finally:
        clear.disable_monitor()
        context.destroy(linger=0)


@pytest.mark.parametrize("said", [b"", CURVE_GREETING], ids=["nothing", "a greeting and no HELLO"])
async def test_half_a_handshake_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr("pavane.raft.sockets.HANDSHAKE_MS", 200)
    loop, curve = asyncio.get_running_loop(), CurveServer(pair()[1], tmp_path)
    sockets = Sockets("tcp://127.0.0.1:0", "", "", lambda host: [host], loop, lambda: None, curve=curve)
    try:
        host, _, port = sockets.bound.removeprefix("tcp://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        async with asyncio.timeout(WAIT_S):
            while await reader.read(1000):
                pass
        writer.close()
    finally:
        await sockets.close()


def test_listed_keys_are_read_again(tmp_path: Path) -> None:
    public, _ = pair()
    now = [100.0]
    loop = asyncio.new_event_loop()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    zap = Zap(CurveServer(pair()[1], tmp_path), context, loop, clock=lambda: now[0])
    try:
        assert not zap.accepts(z85.decode(public))
        (tmp_path / "late.pub").write_bytes(public)
        (tmp_path / "broken.pub").write_bytes(b"no key")
        now[0] += REREAD_S
        assert zap.accepts(z85.decode(public))
        (tmp_path / "late.pub").unlink()
        now[0] += REREAD_S
        assert not zap.accepts(z85.decode(public))
    finally:
        zap.close()
        context.term()
        loop.close()


@pytest.mark.parametrize("key", [b"", b"short", b"x" * 41, b"~" * 40, b"#" * 40])
def test_what_is_no_key_is_refused_without_repeating_it(key: bytes) -> None:
    with pytest.raises(ValueError, match=r"40 characters of Z85") as refused:
        CurveServer(key)
    assert len(key) < 5 or key.decode() not in str(refused.value)
