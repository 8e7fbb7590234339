"""Clients of the npm package and bare frames on clusters of any mixture: N1 to N4 of docs/specs/raft.md 18.4."""

import time

import pytest

from pavane.raft.wire.frames import ENTRY_DATA_BYTES, decode_uint, encode_uint
from pavane.raft.wire.msgpack import decode, encode_js
from pavane.raft.wire.reqid import ReqidGenerator, seed
from tests.interop.cluster import Cluster, Kind
from tests.interop.javascript import Javascript, JsError
from tests.interop.raw import IDENT, Raw

TRUE = b"\x01"
MINUTE_S = 60
REQIDS = ReqidGenerator(lambda: seed(b"tst", 1, 1))


def new_reqid(offset_s: int = 0) -> bytes:
    """Return a fresh request id of a client whose clock is wrong by ``offset_s``."""
    return (int(time.time()) + offset_s).to_bytes(4, "big") + REQIDS.next(int(time.time()))[4:]


def index_or_none(raw: Raw, reqid: bytes) -> int | None:
    """Read accepts until the final answer of an update; return its index, None of a peer that does not lead."""
    while True:
        answer = raw.receive()
        assert answer[0] == reqid, answer
        if answer[1] != TRUE:
            return None
        if len(answer) == 3:
            index = decode(answer[2])
            assert isinstance(index, int)
            return index


def final_index(raw: Raw, reqid: bytes) -> int:
    """Return the index of an update that a leader takes."""
    index = index_or_none(raw, reqid)
    assert index is not None
    return index


def test_every_peer_answers_in_the_frames_of_the_document(cluster: Cluster) -> None:
    leader = cluster.leader()
    for member in cluster.members.values():
        with Raw(member.url) as raw:
            for id_ in (b"", b"\x00", b"\xff\xff\xff\xff", b"twelve bytes"):
                answer = raw.ask(id_, b"^", IDENT)
                assert answer[0] == id_
                assert answer[1:3] == [TRUE if member.id == leader else b"", encode_js(leader)]
                assert answer[3:] == [encode_js([list(peer) for peer in cluster.seed.items()])]
            assert raw.ask(b"x", b"^", IDENT, b"more", b"frames") == [b"x", *answer[1:]]
            info = raw.ask(b"x", b"%", IDENT)
            assert len(info) == 10
            term, first, applied, commit, last, snapshot, prune = map(decode_uint, info[3:])
            assert term >= 1
            assert first == 1
            assert prune <= applied <= commit <= last
            assert snapshot == 0
            assert raw.ask(b"x", b"*", IDENT) == [b"x", member.pub.encode()]
            assert raw.is_silent(b"x", b"^", b"wrong ident")
            assert raw.is_silent(b"x", b"^")
            assert raw.is_silent(b"x", b"W", IDENT)
            assert raw.is_silent(b"x", b"unknown type", IDENT, b"frame")
            if member.kind is Kind.JS:  # what ours say to each other (docs/specs/raft.md 4.1)
                for type_ in (b"pv.hello", b"pv.vote", b"pv.append", b"pv.update"):
                    assert raw.is_silent(b"\x01", type_, IDENT, b"a", encode_uint(1), bytes(8))


@pytest.mark.proves("JS client → ours", "%", "=", "<")
@pytest.mark.proves("our peer → JS", "?", "+")
@pytest.mark.proves("JS peer → ours", "?", "+")
async def test_js_client_updates_and_reads_back(cluster: Cluster, js: Javascript) -> None:
    client = await js.call("client", cluster.urls)
    start = (await js.call("logInfo", client))["lastIndex"]
    sizes = [1, 2, 1000, 65_515, 65_516, 65_536, 70_000, 1 << 20, *range(1, 200)]
    indices = [await js.call("update", client, new_reqid().hex(), bytes([number]).hex()) for number in range(10)]
    assert indices == sorted(set(indices))
    written = await js.call("updates", client, sizes)
    read = await js.call("entries", client, start, None, 0)
    assert [item["index"] for item in read] == list(range(start + 1, start + len(read) + 1))
    found = {item["index"]: bytes.fromhex(item["entry"]) for item in read}
    assert len({index for _, index in written}) == len(sizes)
    for number, (size, (reqid, index)) in enumerate(zip(sizes, written, strict=True)):
        entry = found[index]
        assert (entry[:12].hex(), entry[12]) == (reqid, 0)
        assert entry[20:] == bytes([number % 256]) * size
    cluster.settled()


def test_the_largest_update_is_taken_and_a_larger_one_meets_silence(cluster: Cluster) -> None:
    reqid, index = new_reqid(), None
    while index is None:  # on a busy machine so large an entry can cost a leader its lead
        with Raw(cluster.url(cluster.leader())) as raw:
            raw.send(reqid, b"=", IDENT, bytes(ENTRY_DATA_BYTES))
            index = index_or_none(raw, reqid)
    with Raw(cluster.url(cluster.leader())) as raw:
        assert raw.is_silent(new_reqid(), b"=", IDENT, bytes(ENTRY_DATA_BYTES + 1))
        assert raw.is_silent(new_reqid(), b"=", IDENT, b"")
        assert raw.is_silent(b"eleven byte", b"=", IDENT, b"data")
        answer = raw.ask(b"read", b"<", IDENT, encode_uint(index - 1), encode_uint(1))
        status, nothing, last, entry = answer[1:]
        assert (decode_uint(status), decode(nothing), decode_uint(last)) == (1, None, index)
        assert entry[20:] == bytes(ENTRY_DATA_BYTES)
    cluster.settled()


def test_an_update_is_accepted_then_done_and_happens_once(cluster: Cluster) -> None:
    leader = cluster.leader()
    url = cluster.url(leader)
    with Raw(url) as raw, Raw(url) as other:
        reqid = new_reqid()
        assert raw.ask(reqid, b"=", IDENT, b"data") == [reqid, TRUE]
        index = final_index(raw, reqid)
        assert raw.ask(reqid, b"=", IDENT, b"data") == [reqid, TRUE, encode_js(index)]
        # An original leader does not look at the data, and they are lost.
        compares = cluster.members[leader].kind is Kind.OURS
        taken = [reqid, b""] if compares else [reqid, TRUE, encode_js(index)]
        assert other.ask(reqid, b"=", IDENT, b"other data") == taken
        both = new_reqid()
        assert raw.ask(both, b"=", IDENT, b"twice") == [both, TRUE]  # who asked first is told the end
        assert other.ask(both, b"=", IDENT, b"twice")[:2] == [both, TRUE]
        assert final_index(raw, both) == index + 1
        last = new_reqid()
        raw.send(last, b"=", IDENT, b"behind")
        assert final_index(raw, last) == index + 2


@pytest.mark.parametrize(
    ("minutes", "fresh"), [(-7 * 60 - 44, True), (-7 * 60 - 46, False), (14, True), (16, False)], ids=str
)
def test_request_ids_are_fresh_for_as_long_as_the_document_says(cluster: Cluster, minutes: int, fresh: bool) -> None:
    with Raw(cluster.url(cluster.leader())) as raw:
        reqid = new_reqid(minutes * MINUTE_S)
        if fresh:
            raw.send(reqid, b"=", IDENT, b"data")
            assert final_index(raw, reqid) > 0
        else:
            assert raw.ask(reqid, b"=", IDENT, b"data") == [reqid, b""]


def test_a_repetition_of_a_pending_update_is_accepted_again(cluster: Cluster) -> None:
    leader = cluster.leader()
    followers = [id_ for id_ in cluster.members if id_ != leader]
    with Raw(cluster.url(leader)) as raw:
        for id_ in followers:
            cluster.suspend(id_)
        try:
            reqid = new_reqid()
            assert raw.ask(reqid, b"=", IDENT, b"pending") == [reqid, TRUE]
            assert raw.ask(reqid, b"=", IDENT, b"pending") == [reqid, TRUE]
            if cluster.members[leader].kind is Kind.OURS:
                assert raw.receive() == [reqid, TRUE]  # unasked, so that a client does not go elsewhere
        finally:
            for id_ in followers:
                cluster.resume(id_)
        assert final_index(raw, reqid) > 0
    cluster.led_by(leader)


async def test_whoever_asks_a_follower_is_told_the_leader(cluster: Cluster, js: Javascript) -> None:
    leader = cluster.leader()
    for member in cluster.members.values():
        if member.id == leader:
            continue
        with Raw(member.url) as raw:
            reqid = new_reqid()
            assert raw.ask(reqid, b"=", IDENT, b"data") == [reqid, b"", encode_js(leader)]
            reqid = new_reqid()
            peers = encode_js([["z", "tcp://127.0.0.1:1"]])
            assert raw.ask(reqid, b"&", IDENT, peers) == [reqid, b"\x00", encode_js(leader)]
            assert raw.ask(b"read", b"<", IDENT, b"\x00") == [b"read", b"\x00", encode_js(leader)]
        single = await js.call("peer", member.url)
        with pytest.raises(JsError) as refused:
            await js.call("update", single, new_reqid().hex(), "00")
        assert refused.value.fields["isPeerNotLeader"]
        assert refused.value.fields["leaderId"] == leader
        client = await js.call("client", [member.url])
        assert await js.call("update", client, new_reqid().hex(), "00") > 0
        assert await js.call("urls", client) == [cluster.url(leader)]
