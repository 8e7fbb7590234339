"""The sockets of a peer against plain ØMQ sockets over real TCP (docs/specs/raft.md 14.3)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest
import zmq

from pavane.raft import messages as messages_module
from pavane.raft import sockets as sockets_module
from pavane.raft.core.outputs import PUBLISH, Channel, PeerChannel
from pavane.raft.dealer import INPUT_MESSAGES
from pavane.raft.messages import has_input
from pavane.raft.sockets import NOISE_MESSAGES, CannotBind, Input, Sockets
from pavane.raft.wire.frames import FRAME_BYTES, FRAMES_MAX
from tests.services.eventually import eventually
from tests.services.raft.crowd import Member, message
from tests.services.raft.peers import free_url
from tests.services.raft.stranger import Stranger

WAIT_S = 20.0
ZMTP_GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48)
ZMTP_SUB = b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
ANYWHERE = "tcp://127.0.0.1:0"


class Bench:
    """One peer's sockets and everything that they took in."""

    def __init__(
        self, resolve: Callable[[str], Sequence[str]], publish: str = "", source: str = "", ident: bytes | None = None
    ) -> None:
        self.woken = asyncio.Event()
        self.got = Input()
        loop = asyncio.get_running_loop()
        self.sockets = Sockets(ANYWHERE, publish, source, resolve, loop, self.woken.set, ident=ident)

    def poll(self) -> None:
        found = self.sockets.poll()
        self.got.connections += found.connections
        self.got.replies += found.replies
        self.got.requests += found.requests
        self.got.dropped += found.dropped

    async def until(self, condition: Callable[[], bool]) -> None:
        """Poll whenever there is something, until ``condition`` holds."""
        async with asyncio.timeout(WAIT_S):
            while True:
                self.poll()
                if condition():
                    return
                if not self.sockets.has_input():
                    self.woken.clear()
                    await self.woken.wait()


def literal(host: str) -> Sequence[str]:
    raise AssertionError(f"{host} needs no resolving")


@asynccontextmanager
async def bench(
    resolve: Callable[[str], Sequence[str]] = literal, publish: str = "", source: str = "", ident: bytes | None = None
) -> AsyncIterator[Bench]:
    made = Bench(resolve, publish, source, ident)
    try:
        yield made
    finally:
        await made.sockets.close()


class Outside:
    """Plain sockets of other programs."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []

    def open(self, kind: int) -> zmq.Socket[bytes]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.set(zmq.RCVTIMEO, int(WAIT_S * 1000))
        socket.set(zmq.LINGER, 0)
        self._sockets.append(socket)
        return socket

    def client(self, url: str) -> zmq.Socket[bytes]:
        socket = self.open(zmq.DEALER)
        socket.connect(url)
        return socket

    def server(self, url: str = ANYWHERE) -> tuple[zmq.Socket[bytes], str]:
        socket = self.open(zmq.ROUTER)
        socket.bind(url)
        bound = socket.get(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return socket, bound.rstrip(b"\0").decode()

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._context.term()


@pytest.fixture
def outside() -> Iterator[Outside]:
    outside = Outside()
    yield outside
    outside.close()


async def sent(peer: Bench, to: PeerChannel, *frames: bytes) -> None:
    """Send as soon as there is a connection, which is a moment after it was reported."""
    async with asyncio.timeout(WAIT_S):
        while not peer.sockets.send(to, frames):
            peer.poll()
            await asyncio.sleep(0.01)


async def test_a_request_is_answered_on_its_route(outside: Outside) -> None:
    async with bench() as peer:
        asking = outside.client(peer.sockets.bound)
        asking.send_multipart([b"id", b"^", b""])
        await peer.until(lambda: bool(peer.got.requests))
        [(route, frames)] = peer.got.requests
        assert frames == [b"id", b"^", b""]
        assert peer.sockets.send_route(route, [b"id", memoryview(b"answer")])
        assert await asyncio.to_thread(asking.recv_multipart) == [b"id", b"answer"]


async def test_an_answer_to_a_route_that_is_gone_is_reported_as_lost() -> None:
    async with bench() as peer:
        assert not peer.sockets.send_route(b"nobody", [b"id"])


async def test_a_batch_is_limited_and_nothing_is_lost(outside: Outside) -> None:
    async with bench() as peer:
        asking = outside.client(peer.sockets.bound)
        count = INPUT_MESSAGES + 100
        for number in range(count):
            asking.send_multipart([b"%d" % number])
        batches: list[int] = []

        def complete() -> bool:
            batches.append(len(peer.got.requests) - sum(batches))
            return sum(batches) == count

        await peer.until(complete)
        assert max(batches) <= INPUT_MESSAGES
        assert [frames for _, frames in peer.got.requests] == [[b"%d" % number] for number in range(count)]


@pytest.mark.parametrize("noise", [[b"1", b"=", b"other", b"x"], [b""], [b"x"] * 10])
async def test_a_batch_ends_soon_among_noise(
    outside: Outside, noise: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages_module, "FRAMES_MAX", 8)
    async with bench(ident=b"ours") as peer:
        asking = outside.client(peer.sockets.bound)
        for _ in range(3 * NOISE_MESSAGES):
            asking.send_multipart(noise)
        asking.send_multipart([b"1", b"=", b"ours", b"x"])
        batches: list[int] = []

        def complete() -> bool:
            batches.append(len(peer.got.requests) + peer.got.dropped - sum(batches))
            return sum(batches) == 3 * NOISE_MESSAGES + 1

        await peer.until(complete)
        assert max(batches) <= NOISE_MESSAGES


async def test_a_flood_of_noise_waits_while_the_other_sockets_are_served(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets_module, "NOISE_WINDOW_S", 3600.0)
    async with bench(ident=b"ours") as peer:
        router, url = outside.server()
        to = PeerChannel(Channel.SIDE, "2", url)
        await sent(peer, to, b"id")
        route, _ = await asyncio.to_thread(router.recv_multipart)
        asking = outside.client(peer.sockets.bound)
        for _ in range(NOISE_MESSAGES + 1):
            asking.send_multipart([b"1", b"=", b"other", b"x"])
        await peer.until(lambda: len(peer.got.requests) == NOISE_MESSAGES)
        await eventually(lambda: has_input(peer.sockets._router))
        assert not peer.sockets.has_input()
        router.send_multipart([route, b"id", b"reply"])
        await peer.until(lambda: bool(peer.got.replies))
        assert len(peer.got.requests) == NOISE_MESSAGES


async def test_who_reads_nothing_is_dropped_with_what_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets_module, "UNREAD_MS", 200)
    async with bench() as peer:
        host, _, port = peer.sockets.bound.removeprefix("tcp://").rpartition(":")
        transport, member = await asyncio.get_running_loop().create_connection(
            lambda: Member(message(b"hello"), reads=False), host, int(port)
        )
        await member.done
        await peer.until(lambda: bool(peer.got.requests))
        [(route, _)] = peer.got.requests
        # SNDHWM would refuse as well, but only after ten thousand of them.
        await eventually(lambda: not peer.sockets.send_route(route, [bytes(64 << 10)]))
        transport.abort()


async def test_the_router_can_be_left_alone(outside: Outside) -> None:
    async with bench() as peer:
        asking = outside.client(peer.sockets.bound)
        asking.send(b"id")
        async with asyncio.timeout(WAIT_S):
            while not peer.sockets.has_input():
                peer.woken.clear()
                await peer.woken.wait()
        assert peer.sockets.poll(requests=False).requests == []
        assert not peer.sockets.has_input(requests=False)
        await peer.until(lambda: len(peer.got.requests) == 1)


async def test_a_message_of_too_many_frames_is_dropped_whole(outside: Outside) -> None:
    async with bench() as peer:
        asking = outside.client(peer.sockets.bound)
        asking.send_multipart([b""] * (FRAMES_MAX + 1))
        asking.send_multipart([b"next"])
        await peer.until(lambda: bool(peer.got.requests))
        assert peer.got.dropped == 1
        assert [frames for _, frames in peer.got.requests] == [[b"next"]]


async def test_a_frame_that_is_too_large_ends_only_its_own_connection(
    outside: Outside,
) -> None:
    async with bench() as peer:
        rude, polite = outside.client(peer.sockets.bound), outside.client(peer.sockets.bound)
        rude.send(bytes(FRAME_BYTES + 1))
        polite.send(b"hello")
        await peer.until(lambda: bool(peer.got.requests))
        assert [frames for _, frames in peer.got.requests] == [[b"hello"]]


async def test_connections_are_reported_and_replies_carry_their_channel(
    outside: Outside,
) -> None:
    async with bench() as peer:
        router, url = outside.server()
        rpc, side = PeerChannel(Channel.RPC, "2", url), PeerChannel(Channel.SIDE, "2", url)
        for to in (rpc, side):
            await sent(peer, to, b"id", to.channel.value.encode())
            route, *frames = await asyncio.to_thread(router.recv_multipart)
            assert frames == [b"id", to.channel.value.encode()]
            router.send_multipart([route, b"id", b"reply"])
        await peer.until(lambda: len(peer.got.replies) == 2)
        assert {to for to, _ in peer.got.replies} == {rpc, side}
        router.close(0)
        await peer.until(lambda: {(rpc, False), (side, False)} <= set(peer.got.connections))
        assert not peer.sockets.send(rpc, [b"id"])


async def test_a_peer_is_reached_behind_a_stranger_that_answered_in_its_place(outside: Outside) -> None:
    """A proxy may do so before a Service has its rules, or a new pod with a former one's address."""
    stranger = Stranger()
    to = PeerChannel(Channel.SIDE, "2", stranger.url)
    async with bench() as peer:
        peer.sockets.send(to, [b"early"])
        await asyncio.to_thread(stranger.answer_and_go)
        router, _ = outside.server(stranger.url)
        await sent(peer, to, b"hello")
        assert (await asyncio.to_thread(router.recv_multipart))[1] == b"hello"


async def test_a_closed_channel_opens_anew_with_another_identity(outside: Outside) -> None:
    async with bench() as peer:
        router, url = outside.server()
        to = PeerChannel(Channel.RPC, "2", url)
        await sent(peer, to, b"first")
        first = await asyncio.to_thread(router.recv_multipart)
        peer.sockets.disconnect(to)
        peer.got.connections.clear()
        await sent(peer, to, b"second")
        second = await asyncio.to_thread(router.recv_multipart)
        assert (first[1], second[1]) == (b"first", b"second")
        assert first[0] != second[0]


async def test_a_name_is_asked_again_until_it_has_an_address_and_when_its_peer_is_silent(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets_module, "RESOLVE_AGAIN_S", 0.05)
    addresses: list[list[str]] = []

    def resolve(host: str) -> Sequence[str]:
        assert host == "pod-0.example"
        if not addresses:
            raise OSError("unknown name")
        return addresses[-1]

    async with bench(resolve) as peer:
        first, url = outside.server("tcp://127.0.0.2:0")
        port = url.rpartition(":")[2]
        second, _ = outside.server(f"tcp://127.0.0.3:{port}")
        to = PeerChannel(Channel.SIDE, "2", f"tcp://pod-0.example:{port}")
        assert not peer.sockets.send(to, [b"early"])
        addresses.append(["127.0.0.2"])
        await sent(peer, to, b"to the first")
        assert (await asyncio.to_thread(first.recv_multipart))[1] == b"to the first"
        addresses.append(["127.0.0.3"])
        peer.got.connections.clear()
        await sent_until_received(peer, to, second)


async def test_one_answer_of_the_name_service_connects_all_sockets_to_a_peer(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets_module, "RESOLVE_AGAIN_S", 60.0)
    asked: list[str] = []

    def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async with bench(resolve) as peer:
        _, url = outside.server()
        named = url.replace("127.0.0.1", "pod-0.example")
        side, rpc = (PeerChannel(channel, "2", named) for channel in (Channel.SIDE, Channel.RPC))
        peer.sockets.send(side, [b"early"])
        await peer.until(lambda: {(side, True), (rpc, True)} <= set(peer.got.connections))
    assert asked == ["pod-0.example"]


async def sent_until_received(peer: Bench, to: PeerChannel, *routers: zmq.Socket[bytes]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not all(router.poll(0) for router in routers):
            peer.poll()
            peer.sockets.send(to, [b"again"])
            await asyncio.sleep(0.02)


async def test_a_seed_is_asked_at_all_its_addresses(outside: Outside) -> None:
    async with bench(lambda host: ["127.0.0.4", "127.0.0.5"]) as peer:
        first, url = outside.server("tcp://127.0.0.4:0")
        port = url.rpartition(":")[2]
        second, _ = outside.server(f"tcp://127.0.0.5:{port}")
        seed = f"tcp://service.example:{port}"
        to = PeerChannel(Channel.SEED, seed, seed)
        peer.sockets.send(to, [b"early"])
        await peer.until(lambda: peer.got.connections.count((to, True)) == 2)
        # In turn, but libzmq may take note of a second connection up to a millisecond after it was reported as made.
        await sent_until_received(peer, to, first, second)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "tcp://",
        "tcp://10.0.0.1",
        "tcp://10.0.0.1:0",
        "tcp://[::1:7",
        "tcp://10.0.0.1:99999",
        "ipc:///x",
        "tcp://a b:7",
    ],
)
async def test_an_url_that_leads_nowhere_ends_nobody(url: str) -> None:
    """A leader's configuration, or a seed's answer, may hold any text."""
    async with bench() as peer:
        assert not peer.sockets.send(PeerChannel(Channel.SEED, url, url), [b"question"])
        assert not peer.sockets.send(PeerChannel(Channel.SIDE, "b", url), [b"question"])


async def test_connections_come_from_the_source_address(outside: Outside) -> None:
    async with bench(source="127.0.0.6") as peer:
        router, url = outside.server()
        await sent(peer, PeerChannel(Channel.RPC, "2", url), b"id")
        frames = await asyncio.to_thread(router.recv_multipart, copy=False)
        assert frames[1]["Peer-Address"] == "127.0.0.6"


async def test_published_messages_reach_subscribers_and_leave_only_while_there_are_some(outside: Outside) -> None:
    url = "tcp://127.0.0.7:28048"
    async with bench(publish=url) as peer:
        assert not peer.sockets.send(PUBLISH, [b"topic", b"data"])
        subscriber = outside.open(zmq.SUB)
        subscriber.set(zmq.SUBSCRIBE, b"topic")
        subscriber.connect(url)
        await published_to(peer, subscriber)
        assert subscriber.recv_multipart() == [b"topic", b"data"]
        subscriber.close(0)
        async with asyncio.timeout(WAIT_S):
            while peer.sockets.send(PUBLISH, [b"topic", b"data"]):
                await asyncio.sleep(0.01)


async def published_to(peer: Bench, subscriber: zmq.Socket[bytes]) -> None:
    """Publish until something arrives."""
    async with asyncio.timeout(WAIT_S):
        while not subscriber.poll(0):
            peer.sockets.send(PUBLISH, [b"topic", b"data"])
            await asyncio.sleep(0.01)


async def test_who_ends_what_others_subscribe_takes_it_from_nobody(outside: Outside) -> None:
    url = free_url()
    async with bench(publish=url) as peer:
        subscriber = outside.open(zmq.SUB)
        subscriber.set(zmq.SUBSCRIBE, b"topic")
        subscriber.connect(url)
        await published_to(peer, subscriber)
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(ZMTP_GREETING + ZMTP_SUB)
        await reader.readuntil(b"READY")
        # libzmq itself ends nothing that it does not subscribe; "top" is a prefix of the topic.
        writer.write(b"\x00\x06\x00topic" * 3 + b"\x00\x04\x01top")
        reads = asyncio.create_task(reader.readuntil(b"data"))
        async with asyncio.timeout(WAIT_S):
            while not reads.done():
                peer.sockets.send(PUBLISH, [b"topic", b"data"])
                await asyncio.sleep(0.01)
        writer.close()


async def test_without_a_publisher_nothing_is_published() -> None:
    async with bench() as peer:
        assert not peer.sockets.send(PUBLISH, [b"topic"])


@pytest.mark.parametrize(
    "said", [b"", ZMTP_GREETING[:12], ZMTP_GREETING], ids=["nothing", "half a greeting", "no READY"]
)
async def test_a_connection_that_ends_no_handshake_is_ended(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets_module, "HANDSHAKE_MS", 200)
    published = free_url()
    async with bench(publish=published) as peer:
        for url in (peer.sockets.bound, published):
            host, _, port = url.removeprefix("tcp://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            async with asyncio.timeout(WAIT_S):
                while await reader.read(1000):
                    pass
            writer.close()


async def test_an_address_in_use_is_named() -> None:
    async with bench() as peer:
        with pytest.raises(CannotBind, match=peer.sockets.bound):
            Sockets(peer.sockets.bound, "", "", literal, asyncio.get_running_loop(), lambda: None)
