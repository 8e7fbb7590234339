"""One peer of either kind among mates that this script plays: N8 and N9 of docs/specs/raft.md 18.4."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio

from pavane.raft.wire.entry import EntryType, encode_entry
from pavane.raft.wire.frames import decode_uint, encode_uint
from pavane.raft.wire.msgpack import encode_js
from pavane.raft.wire.replies import RequestLogInfoReply
from tests.interop import raw
from tests.interop.cluster import Cluster, until
from tests.interop.conftest import Make
from tests.interop.raw import IDENT, Raw
from tests.interop.test_clients import final_index, new_reqid

WAIT_S = 20.0
PATIENT_MS = (8000, 12_000)  # a peer that is led by the script never stands itself
QUICK_MS = (400, 600)
TERM = 10
RESEND_MS = 200

Frames = list[bytes]


class Mates:
    """The other two members. They answer polls as peers with empty logs; what else they are told is queued."""

    def __init__(self, cluster: Cluster) -> None:
        self._context = zmq.asyncio.Context()
        self._peers = encode_js([list(peer) for peer in cluster.seed.items()])
        self._tasks: list[asyncio.Task[None]] = []
        self._routers: list[zmq.asyncio.Socket] = []
        self._routes: dict[str, bytes] = {}
        self.told: dict[str, asyncio.Queue[Frames]] = {}
        for number, id_ in enumerate("bc"):
            router = self._context.socket(zmq.ROUTER)
            router.setsockopt(zmq.LINGER, 0)
            router.bind(cluster.url(id_))
            self._routers.append(router)
            self.told[id_] = asyncio.Queue()
            self._tasks.append(asyncio.create_task(self._serve(id_, self._routers[number])))

    async def _serve(self, id_: str, router: zmq.asyncio.Socket) -> None:
        zeros = [b"\x00", b"\x01", *[b"\x00"] * 5]
        polls = {b"^": [b"", encode_js(None), self._peers], b"%": [b"", encode_js(None), *zeros]}
        while True:
            route, *frames = await router.recv_multipart()
            if frames[1] in polls:
                await router.send_multipart([route, frames[0], *polls[frames[1]]])
            elif not frames[1].startswith(b"pv."):
                self._routes[id_] = route
                self.told[id_].put_nowait(frames)

    async def next(self, id_: str, wanted: Callable[[Frames], bool]) -> Frames:
        """Return the first message to a mate that is ``wanted``; others are forgotten."""
        async with asyncio.timeout(WAIT_S):
            while not wanted(frames := await self.told[id_].get()):
                pass
        return frames

    async def answer(self, id_: str, *frames: bytes) -> None:
        await self._routers["bc".index(id_)].send_multipart([self._routes[id_], *frames])

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._context.destroy(linger=0)


@asynccontextmanager
async def mates_of(cluster: Cluster) -> AsyncIterator[Mates]:
    mates = Mates(cluster)
    try:
        yield mates
    finally:
        await mates.close()


def info(cluster: Cluster) -> RequestLogInfoReply:
    found = raw.log_info(cluster.url("a"))
    assert found is not None
    return found


def entry(text: str, term: int) -> bytes:
    return encode_entry(new_reqid(), EntryType.STATE, term, text.encode())


class ScriptedLeader:
    """Speaks to the peer as member b; replies are returned without their id."""

    def __init__(self, peer: Raw) -> None:
        self._peer = peer
        self.id = 0

    def append(self, term: int, previous: int, previous_term: int, commit: int, *entries: bytes) -> Frames:
        numbers = [encode_uint(number) for number in (term, previous, previous_term, commit)]
        return self._ask(b"+", IDENT, b"b", *numbers, *entries)

    def vote(self, term: int, last: int, last_term: int, candidate: bytes = b"b") -> Frames:
        return self._ask(b"?", IDENT, candidate, *map(encode_uint, (term, last, last_term)))

    def _ask(self, *frames: bytes) -> Frames:
        """Send until it is answered, as peers do: one of ours first asks its mates whether it is new."""
        self.id += 1
        id_ = encode_uint(self.id)

        def answer() -> Frames:
            answer = self._peer.ask(id_, *frames, within_ms=RESEND_MS)
            while answer and answer[0] != id_:  # to a repetition of the one before
                answer = self._peer.receive(RESEND_MS)
            return answer

        return until(answer, "an answer")[1:]


@pytest.mark.parametrize("kind", ["o", "j"])
async def test_a_follower_answers_its_leader_in_the_frames_of_the_document(make: Make, kind: str) -> None:
    cluster = make(kind + "jj", elections=PATIENT_MS, start="")
    async with mates_of(cluster):
        await asyncio.to_thread(cluster.start, "a")
        await asyncio.to_thread(follow, cluster)


def follow(cluster: Cluster) -> None:
    ten, yes, no = encode_uint(TERM), b"\x01", b""
    one, two, three, four = (entry(text, TERM) for text in ("one", "two", "three", "four"))
    with Raw(cluster.url("a")) as peer:
        leader = ScriptedLeader(peer)
        assert leader.append(TERM, 0, 0, 0) == [ten, yes]
        assert leader.append(TERM, 50, TERM, 0) == [ten, no, encode_uint(1)]  # how long its log is
        assert leader.append(TERM, 0, 0, 0, one, two, three) == [ten, yes]
        assert (info(cluster).last_index, info(cluster).commit_index, info(cluster).leader) == (3, 0, "b")
        leader.id -= 1
        assert leader.append(TERM, 0, 0, 0, entry("again", TERM)) == [ten, yes]  # the reply that this id had
        assert info(cluster).last_index == 3
        assert leader.append(TERM, 3, TERM - 1, 0) == [ten, no]
        assert leader.append(TERM, 3, TERM, 2) == [ten, yes]
        while (info(cluster).commit_index, info(cluster).applied_index) != (2, 2):
            assert leader.append(TERM, 3, TERM, 2) == [ten, yes]
        assert leader.append(TERM, 2, TERM, 2, three, four) == [ten, yes]
        assert info(cluster).last_index == 4
        assert leader.append(TERM - 1, 4, TERM, 4) == [ten, no]
        assert peer.is_silent(bytes(4), b"+", IDENT, b"b", ten, b"\x04", ten, b"\x04")
        assert leader.vote(TERM, 4, TERM - 1) == [ten, no]
        assert leader.vote(TERM, 3, TERM) == [ten, no]
        assert leader.vote(TERM, 4, TERM) == [ten, yes]
        assert leader.vote(TERM, 9, TERM, b"c") == [ten, no]
        assert leader.vote(TERM, 4, TERM) == [ten, yes]
        assert leader.vote(TERM + 1, 3, TERM) == [encode_uint(TERM + 1), no]
        assert peer.is_silent(b"\x63", b"?", IDENT, b"stranger", encode_uint(TERM + 9), b"\x63", b"\x63")
        # Another leader holds something else behind the second entry.
        term = encode_uint(TERM + 2)
        assert leader.append(TERM + 2, 2, TERM, 2, entry("other", TERM + 2)) == [term, yes]
        assert leader.append(TERM + 2, 3, TERM + 2, 3) == [term, yes]
        assert (info(cluster).last_index, info(cluster).term) == (3, TERM + 2)


def is_vote(frames: Frames) -> bool:
    return frames[1] == b"?"


def is_append(frames: Frames) -> bool:
    return frames[1] == b"+"


@pytest.mark.parametrize("kind", ["o", "j"])
async def test_a_candidate_repeats_one_request_and_leads_after_one_vote(make: Make, kind: str) -> None:
    cluster = make(kind + "jj", elections=QUICK_MS, start="")
    async with mates_of(cluster) as mates:
        await asyncio.to_thread(cluster.start, "a")
        request = await mates.next("b", is_vote)
        term = decode_uint(request[4])
        assert request[1:] == [b"?", IDENT, b"a", encode_uint(term), b"\x00", b"\x00"]
        for _ in range(20):  # several election time-outs: as long as nobody answers the term stays
            assert await mates.next("b", is_vote) == request
        await mates.answer("b", request[0], request[4], b"\x01")

        heartbeat = await mates.next("b", is_append)
        assert heartbeat[1:] == [b"+", IDENT, b"a", request[4], b"\x00", b"\x00", b"\x00"]
        assert await mates.next("b", is_append) == heartbeat
        await mates.answer("b", heartbeat[0], heartbeat[4], b"\x01")
        following = await mates.next("b", lambda frames: is_append(frames) and frames[0] != heartbeat[0])
        assert decode_uint(following[0]) == decode_uint(heartbeat[0]) + 1
        assert following[1:] == heartbeat[1:]
        await mates.answer("b", following[0], following[4], b"\x01")

        writing = asyncio.create_task(asyncio.to_thread(write, cluster))
        while len(full := await mates.next("b", is_append)) <= 8:  # the entry waits until this one is answered
            await mates.answer("b", full[0], full[4], b"\x01")
        assert full[5:8] == [b"\x00", b"\x00", b"\x00"]
        assert full[8][12:] == bytes([EntryType.STATE]) + term.to_bytes(7, "little") + b"data"
        assert await mates.next("b", is_append) == full  # sent again as it was
        await mates.answer("b", full[0], full[4], b"\x01")
        assert await writing == 1
        committed = await mates.next("b", lambda frames: is_append(frames) and frames[0] != full[0])
        assert committed[5:] == [b"\x01", encode_uint(term), b"\x01"]
        await mates.answer("b", committed[0], encode_uint(term + 40), b"")
        async with asyncio.timeout(WAIT_S):
            while (found := await asyncio.to_thread(info, cluster)).is_leader:
                pass
        assert found.term >= term + 40


def write(cluster: Cluster) -> int:
    with Raw(cluster.url("a")) as peer:
        reqid = new_reqid()
        peer.send(reqid, b"=", IDENT, b"data")
        return final_index(peer, reqid)
