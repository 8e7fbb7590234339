"""The client over real sockets, against peers that follow a script (docs/specs/raft.md 11)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

import pytest
import zmq
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pavane.raft.client import ClientConfig, RaftClient, inflight
from pavane.raft.errors import Closed, TooLarge, UnderWay, Unreachable
from pavane.raft.wire.decoder import Drop, Reply, Request, decode_request
from pavane.raft.wire.entry import PeerList, encode_entry
from pavane.raft.wire.pv import PvHello, PvReply, PvStatus, PvTransfer
from pavane.raft.wire.replies import (
    EntriesStatus,
    RequestConfigReply,
    RequestEntriesReply,
    RequestLogInfoReply,
    RequestUpdateReply,
    UpdateStatus,
)
from pavane.raft.wire.reqid import reqid_second
from pavane.raft.wire.requests import ConfigUpdate, RequestConfig, RequestEntries, RequestLogInfo, RequestUpdate
from pavane.telemetry import derived

IDENT = b"s3cr3t"
REQID = bytes(range(12))
FAST = ClientConfig(timeout_ms=100, grace_ms=50)


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


@dataclass
class Cluster:
    """What all scripted peers share: the leader, the members, the log."""

    leader: str | None = "1"
    members: PeerList = ()
    log: dict[bytes, bytes] = field(default_factory=dict)
    hold: bool = False
    """While true an update is taken and not answered."""


class ScriptedPeer:
    """A real ROUTER that answers as a peer does, and writes down what it was asked."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", name: str, cluster: Cluster, bind: str) -> None:
        self.name = name
        self.cluster = cluster
        self.requests: list[Request] = []
        self.raw: list[list[bytes]] = []
        self.sources: set[str] = set()
        self.acknowledged: list[int] = []
        self.router: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self.router.set(zmq.LINGER, 0)
        self.router.bind(bind)
        self.url = self.router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._descriptor = self.router.fileno()
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        self._open = True

    def close(self) -> None:
        if self._open:
            self._open = False
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self.router.close(0)

    def updates(self) -> list[RequestUpdate]:
        return [request for request in self.requests if isinstance(request, RequestUpdate)]

    def _read(self) -> None:
        while self._open and int(self.router.get(zmq.EVENTS)) & zmq.POLLIN:
            message = self.router.recv_multipart(copy=False)
            self.sources.add(str(message[0].get("Peer-Address")))
            route, *frames = [frame.bytes for frame in message]
            request = decode_request(frames, IDENT)
            assert not isinstance(request, Drop)
            if isinstance(request, PvHello):
                continue  # as a peer of the original program
            self.raw.append(frames)
            self.requests.append(request)
            for reply in self._answer(frames[0], request):
                self.router.send_multipart([route, frames[0], *reply.encode()])

    def _answer(self, message_id: bytes, request: Request) -> Iterator[Reply]:
        cluster, leads = self.cluster, self.cluster.leader == self.name
        match request:
            case RequestConfig():
                yield RequestConfigReply(leads, cluster.leader, cluster.members)
            case RequestLogInfo():
                yield RequestLogInfoReply(leads, cluster.leader, 1, 1, 5, 5, 5, 0, 0)
            case RequestUpdate(data):
                if not leads:
                    yield RequestUpdateReply(UpdateStatus.NOT_LEADER, leader=cluster.leader)
                    return
                cluster.log.setdefault(message_id, bytes(data))
                if not cluster.hold:
                    yield RequestUpdateReply(UpdateStatus.ACCEPTED)
                    yield RequestUpdateReply(UpdateStatus.DONE, list(cluster.log).index(message_id) + 1)
            case RequestEntries():
                yield from self.stream(request)
            case PvStatus():
                yield PvReply(0, {"id": self.name})
            case PvTransfer(target):
                yield PvReply(0, target or "2")
            case ConfigUpdate():
                pass
            case other:
                raise AssertionError(other)

    def stream(self, request: RequestEntries) -> Iterator[Reply]:
        """Answer with messages of ten entries, at most five of them unacknowledged."""
        if request.count == 0:
            return
        first_of_window = request.previous_index + 1
        if self.acknowledged or request.previous_index:
            self.acknowledged.append(request.previous_index)
            first_of_window = request.previous_index + 41
            if first_of_window > 100:
                return
            firsts = [first_of_window]
        else:
            firsts = [first_of_window + 10 * number for number in range(5)]
        for first in firsts:
            entries = tuple(encode_entry(REQID, 0, 1, b"%d" % index) for index in range(first, first + 10))
            status = EntriesStatus.LAST if first == 91 else EntriesStatus.MORE
            yield RequestEntriesReply(status, first + 9, entries)


MakePeer = Callable[..., ScriptedPeer]


@pytest.fixture
async def make_peer() -> AsyncIterator[MakePeer]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peers: list[ScriptedPeer] = []

    def make(name: str, cluster: Cluster, bind: str = "tcp://127.0.0.1:*") -> ScriptedPeer:
        peer = ScriptedPeer(context, name, cluster, bind)
        peers.append(peer)
        return peer

    yield make
    for peer in peers:
        peer.close()
    context.destroy(linger=0)


@pytest.fixture
async def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def peers(make_peer: MakePeer, cluster: Cluster) -> dict[str, ScriptedPeer]:
    made = {name: make_peer(name, cluster) for name in "123"}
    cluster.members = tuple((name, peer.url) for name, peer in made.items())
    return made


def urls(peers: dict[str, ScriptedPeer]) -> list[str]:
    return [peer.url for peer in peers.values()]


async def test_update_reaches_the_leader_whoever_it_is(peers: dict[str, ScriptedPeer], cluster: Cluster) -> None:
    cluster.leader = "3"
    async with RaftClient(urls(peers), IDENT) as client:
        assert await client.update(b"one") == 1
        assert await client.update(b"two") == 2
    assert list(cluster.log.values()) == [b"one", b"two"]
    assert peers["1"].updates() == peers["2"].updates() == []
    assert all(abs(reqid_second(reqid) - time.time()) < 60 for reqid in cluster.log)


async def test_one_seed_is_enough(peers: dict[str, ScriptedPeer], cluster: Cluster) -> None:
    cluster.leader = "2"
    async with RaftClient([peers["1"].url], IDENT) as client:
        assert await client.update(b"one") == 1


async def test_a_thousand_updates_at_once_each_get_their_own_index(peers: dict[str, ScriptedPeer]) -> None:
    async with RaftClient(urls(peers), IDENT) as client:
        indices = await asyncio.gather(*(client.update(b"%d" % number) for number in range(1000)))
    assert sorted(indices) == list(range(1, 1001))


async def test_new_leader_is_followed_when_the_old_one_names_it(
    peers: dict[str, ScriptedPeer], cluster: Cluster
) -> None:
    async with RaftClient(urls(peers), IDENT) as client:
        await client.update(b"one")
        cluster.leader = "2"
        assert await client.update(b"two") == 2
    assert [bytes(update.data) for update in peers["2"].updates()] == [b"two"]


async def test_killed_leader_is_left_and_the_same_ids_go_to_the_next(
    peers: dict[str, ScriptedPeer], cluster: Cluster
) -> None:
    cluster.hold = True
    async with RaftClient(urls(peers), IDENT, config=ClientConfig(timeout_ms=60_000, grace_ms=50)) as client:
        calls = [asyncio.create_task(client.update(b"%d" % number)) for number in range(5)]
        await eventually(lambda: len(cluster.log) == 5)
        before = list(cluster.log)
        cluster.leader, cluster.hold = "2", False
        peers["1"].close()
        assert await asyncio.gather(*calls) == [1, 2, 3, 4, 5]
    assert list(cluster.log) == before


@pytest.mark.parametrize("config", [FAST, ClientConfig(timeout_ms=100, grace_ms=50, hedge=False)])
async def test_silent_leader_is_left_for_the_one_that_the_others_name(
    peers: dict[str, ScriptedPeer], cluster: Cluster, config: ClientConfig
) -> None:
    async with RaftClient(urls(peers), IDENT, config=config) as client:
        assert await client.update(b"first") == 1
        stale = Cluster(leader="1", members=cluster.members, hold=True)
        peers["1"].cluster = stale
        cluster.leader = "2"
        assert await client.update(b"data") == 2
    assert list(stale.log) == list(cluster.log)[1:]


async def test_members_that_replaced_all_known_ones_are_found(
    peers: dict[str, ScriptedPeer], cluster: Cluster, make_peer: MakePeer
) -> None:
    async with RaftClient(urls(peers), IDENT, config=FAST) as client:
        await client.update(b"one")
        successor = make_peer("4", cluster)
        cluster.members, cluster.leader = (("4", successor.url),), "4"
        assert await client.update(b"two") == 2
        for peer in peers.values():
            peer.close()
        assert await client.update(b"three") == 3


async def test_back_pressure_by_count(
    peers: dict[str, ScriptedPeer], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflight, "CLIENT_INFLIGHT", 10)
    cluster.hold = True
    async with RaftClient(urls(peers), IDENT, config=FAST) as client:
        calls = [asyncio.create_task(client.update(b"%d" % number)) for number in range(15)]
        await eventually(lambda: len(cluster.log) >= 10)
        repeated = len(peers["1"].updates())
        await eventually(lambda: len(peers["1"].updates()) > repeated + 10)
        assert len(cluster.log) == 10
        cluster.hold = False
        assert sorted(await asyncio.gather(*calls)) == list(range(1, 16))


async def test_back_pressure_by_bytes_lets_a_single_large_update_pass(
    peers: dict[str, ScriptedPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflight, "CLIENT_INFLIGHT_BYTES", 100)
    async with RaftClient(urls(peers), IDENT) as client:
        indices = await asyncio.gather(*(client.update(bytes(1 + 60 * number)) for number in range(6)))
    assert sorted(indices) == [1, 2, 3, 4, 5, 6]


async def test_update_that_waits_for_room_ends_in_its_time_and_frees_nothing(
    peers: dict[str, ScriptedPeer], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inflight, "CLIENT_INFLIGHT", 1)
    cluster.hold = True
    async with RaftClient(urls(peers), IDENT, config=FAST) as client:
        first = asyncio.create_task(client.update(b"first"))
        await eventually(lambda: len(cluster.log) == 1)
        with pytest.raises(Unreachable):
            await client.update(b"second", timeout_s=0.05)
        cancelled = asyncio.create_task(client.update(b"third"))
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        cluster.hold = False
        assert await first == 1
        assert await client.update(b"fourth") == 2
    assert list(cluster.log.values()) == [b"first", b"fourth"]


async def test_a_caller_that_gives_up_in_the_moment_that_room_is_made_is_told_just_that() -> None:
    room = inflight.InflightLimit()
    assert room.try_enter(inflight.CLIENT_INFLIGHT_BYTES)
    gives_up, waits = (asyncio.create_task(room.enter(1)) for _ in range(2))
    await asyncio.sleep(0)
    gives_up.cancel()
    room.leave(inflight.CLIENT_INFLIGHT_BYTES)
    with pytest.raises(asyncio.CancelledError):
        await gives_up
    await waits


async def test_nobody_there_is_unreachable_with_the_id_to_repeat() -> None:
    async with RaftClient(["tcp://127.0.0.1:1"], IDENT) as client:
        with pytest.raises(Unreachable) as caught:
            await client.update(b"data", reqid=REQID, timeout_s=0.2)
    assert caught.value.reqid == REQID
    assert caught.value.peers == ("tcp://127.0.0.1:1",)
    assert REQID.hex() in str(caught.value)


async def test_repeating_with_the_same_id_gives_the_same_index(
    peers: dict[str, ScriptedPeer], cluster: Cluster
) -> None:
    async with RaftClient(urls(peers), IDENT) as client:
        reqid = client.new_reqid()
        assert await client.update(b"data", reqid=reqid) == 1
        assert await client.update(b"data", reqid=reqid) == 1
    assert list(cluster.log) == [reqid]


async def test_wrong_arguments_are_refused_at_once(peers: dict[str, ScriptedPeer], cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="tcp://host:port"):
        RaftClient(["127.0.0.1:8047"], IDENT)
    with pytest.raises(ValueError, match=":99999"):
        RaftClient(["tcp://127.0.0.1:99999"], IDENT)
    with pytest.raises(ValueError, match="at least one"):
        RaftClient([], IDENT)
    cluster.hold = True
    async with RaftClient(urls(peers), IDENT) as client:
        with pytest.raises(TooLarge):
            await client.update(bytes(10 * 1024 * 1024 + 1))
        with pytest.raises(ValueError, match="one byte"):
            await client.update(b"")
        with pytest.raises(ValueError, match="12 bytes"):
            await client.update(b"data", reqid=b"short")
        first = asyncio.create_task(client.update(b"data", reqid=REQID))
        await eventually(lambda: len(cluster.log) == 1)
        with pytest.raises(UnderWay, match="under way"):
            await client.update(b"data", reqid=REQID)
        with pytest.raises(ValueError, match="no member"):
            await client.status("unknown")
        first.cancel()


async def test_a_repetition_is_answered_whenever_it_is_tried(peers: dict[str, ScriptedPeer]) -> None:
    """Also in the turn of the loop between the answer to the first call and its end."""

    async def repeated() -> int:
        while True:
            await asyncio.sleep(0)
            with suppress(UnderWay):
                return await client.update(b"data", reqid=REQID)

    async with RaftClient(urls(peers), IDENT) as client, asyncio.timeout(20):
        first = asyncio.create_task(client.update(b"data", reqid=REQID))
        assert await repeated() == await first


async def test_entries_stream_acknowledges_message_by_message(peers: dict[str, ScriptedPeer]) -> None:
    async with RaftClient(urls(peers), IDENT) as client:
        entries = [entry async for entry in client.entries()]
    assert [entry.index for entry in entries] == list(range(1, 101))
    assert [bytes(entry.data) for entry in entries] == [b"%d" % index for index in range(1, 101)]
    assert peers["1"].acknowledged[:5] == [10, 20, 30, 40, 50]


async def test_slow_reader_holds_the_server_back(peers: dict[str, ScriptedPeer]) -> None:
    async with RaftClient(urls(peers), IDENT, config=FAST) as client, aclosing(client.entries()) as stream:
        await anext(stream)
        await asyncio.gather(*(client.update(b"x") for _ in range(10)))
        assert peers["1"].acknowledged == []


async def test_reader_that_leaves_ends_the_stream_at_the_server(peers: dict[str, ScriptedPeer]) -> None:
    async with RaftClient(urls(peers), IDENT) as client:
        async with aclosing(client.entries()) as stream:
            async for entry in stream:
                if entry.index == 25:
                    break
        await eventually(
            lambda: any(isinstance(request, RequestEntries) and request.count == 0 for request in peers["1"].requests)
        )


async def test_count_of_entries(peers: dict[str, ScriptedPeer]) -> None:
    async with RaftClient(urls(peers), IDENT) as client:
        assert [entry.index async for entry in client.entries(count=13)] == list(range(1, 14))
        assert [entry async for entry in client.entries(count=0)] == []


async def test_questions_to_leader_and_to_named_peers(peers: dict[str, ScriptedPeer], cluster: Cluster) -> None:
    cluster.leader = "2"
    async with RaftClient(urls(peers), IDENT) as client:
        configuration = await client.configuration()
        assert (configuration.leader, configuration.peers) == ("2", cluster.members)
        assert (await client.log_info()).is_leader
        assert not (await client.log_info("3")).is_leader
        assert not (await client.log_info(peers["1"].url)).is_leader
        assert await client.status("3") == {"id": "3"}
        assert await client.status(peers["1"].url) == {"id": "1"}
        assert await client.transfer("3") == "3"
        assert await client.transfer() == "2"


async def test_closing_ends_what_is_under_way(peers: dict[str, ScriptedPeer], cluster: Cluster) -> None:
    cluster.hold = True
    async with RaftClient(urls(peers), IDENT) as client:
        update = asyncio.create_task(client.update(b"data"))
        change = asyncio.create_task(client.change_members([("1", peers["1"].url)]))
        await eventually(lambda: len(cluster.log) == 1)
    for call in (update, change):
        with pytest.raises(Closed, match="unknown"):
            await call


async def test_client_that_is_not_open_says_so_at_once(peers: dict[str, ScriptedPeer]) -> None:
    client = RaftClient(urls(peers), IDENT)
    with pytest.raises(Closed, match="async with"):
        await client.update(b"data")
    async with client:
        await client.update(b"data")
        with pytest.raises(Closed, match="make a new RaftClient"):
            await client.__aenter__()
        await client.update(b"data")  # it does not mind
    with pytest.raises(Closed, match="closed; make a new one by `async with"):
        await client.configuration()
    with pytest.raises(Closed, match="closed"):
        await anext(client.entries())
    with pytest.raises(Closed, match="make a new RaftClient"):
        async with client:
            pass


async def test_host_name_is_looked_up_again_when_its_address_is_gone(cluster: Cluster, make_peer: MakePeer) -> None:
    first = make_peer("1", cluster, "tcp://127.0.77.1:*")
    port = first.url.rpartition(":")[2]
    url = f"tcp://pod-0.example:{port}"
    cluster.members = (("1", url),)
    addresses = ["127.0.77.1"]
    asked: list[str] = []

    def resolve(host: str) -> Sequence[str]:
        asked.append(host)
        return addresses

    async with RaftClient([url], IDENT, config=FAST, resolve=resolve) as client:
        assert await client.update(b"one") == 1
        first.close()
        make_peer("1", cluster, f"tcp://127.0.77.2:{port}")
        addresses[:] = ["127.0.77.2"]
        assert await client.update(b"two") == 2
    assert set(asked) == {"pod-0.example"}


async def test_name_that_nobody_knows_yet_is_asked_for_until_it_is_known(
    peers: dict[str, ScriptedPeer], cluster: Cluster
) -> None:
    attempts = 0

    def resolve(host: str) -> Sequence[str]:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise OSError(f"{host} is unknown")
        return ["127.0.0.1"]

    port = peers["1"].url.rpartition(":")[2]
    async with RaftClient([f"tcp://service.example:{port}"], IDENT, config=FAST, resolve=resolve) as client:
        assert await client.update(b"one", timeout_s=20) == 1


async def test_connections_come_from_the_source_address(peers: dict[str, ScriptedPeer]) -> None:
    async with RaftClient(urls(peers), IDENT, config=ClientConfig(source="127.0.88.9")) as client:
        await client.update(b"one")
    assert peers["1"].sources == {"127.0.88.9"}


async def test_peer_that_answers_nonsense_disturbs_nobody(
    peers: dict[str, ScriptedPeer], cluster: Cluster, make_peer: MakePeer
) -> None:
    liar = make_peer("liar", cluster)

    def nonsense(message_id: bytes, request: Request) -> Iterator[Reply]:
        yield RequestUpdateReply(UpdateStatus.DONE, 12345)
        yield PvReply(99, [])

    liar._answer = nonsense  # type: ignore[method-assign]
    async with RaftClient([liar.url, *urls(peers)], IDENT, config=FAST) as client:
        assert await client.update(b"one") == 1


async def bytes_on_the_wire(
    peers: dict[str, ScriptedPeer], provider: TracerProvider | None
) -> tuple[list[list[bytes]], int]:
    peer = peers["1"]
    peer.raw.clear()
    tracer = None if provider is None else provider.get_tracer("test")
    async with RaftClient([peer.url], IDENT, tracer=tracer) as client:
        index = await client.update(b"data", reqid=REQID)
    return [frames for frames in peer.raw if frames[1] == b"="], index


async def test_update_is_one_linked_span_and_its_bytes_do_not_change(
    peers: dict[str, ScriptedPeer], cluster: Cluster
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    traced = await bytes_on_the_wire(peers, provider)
    assert traced == await bytes_on_the_wire(peers, None)
    (span,) = exporter.get_finished_spans()
    assert span.name == "raft/RequestUpdate"
    assert [link.context for link in span.links] == [derived("raft", "", REQID)]
    assert span.attributes is not None
    assert span.attributes["pavane.raft.reqid"] == REQID.hex()
    assert span.attributes["pavane.raft.index"] == 1
    provider.shutdown()
