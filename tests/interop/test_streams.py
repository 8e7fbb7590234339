"""Reading the log and following it, on clusters of any mixture: N5 and N6 of docs/specs/raft.md 18.4."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import zmq

from pavane.raft.wire.decoder import decode_broadcast
from pavane.raft.wire.frames import decode_uint, encode_uint
from pavane.raft.wire.msgpack import decode
from pavane.raft.wire.requests import StateBroadcast
from tests.interop import raw
from tests.interop.cluster import Cluster
from tests.interop.javascript import Javascript
from tests.interop.raw import IDENT, Raw
from tests.interop.test_clients import final_index, new_reqid

LAST, MORE = 1, 2
WINDOW = 5  # messages of a stream that nobody has acknowledged
QUIET_MS = 100
BEATS = 3
WAIT_S = 20.0


def filled(cluster: Cluster, sizes: list[int]) -> int:
    """Append updates of these sizes, one behind the other; return the index before them."""
    with Raw(cluster.url(cluster.leader())) as peer:
        for size in sizes:
            reqid = new_reqid()
            peer.send(reqid, b"=", IDENT, bytes(size))
            last = final_index(peer, reqid)
    return last - len(sizes)


def batch(peer: Raw, id_: bytes, after: int) -> tuple[int, int]:
    """Read a message whose first entry must follow ``after``; return its status and the index of its last entry."""
    answer = peer.receive()
    assert answer[:1] == [id_], answer
    status, nothing, last, *entries = answer[1:]
    assert decode(nothing) is None
    assert decode_uint(last) == after + len(entries)
    return decode_uint(status), decode_uint(last)


def batches(peer: Raw, id_: bytes, after: int, count: int) -> list[int]:
    """Read ``count`` messages that are not the last, and nothing comes behind them; return where each ends."""
    ends = [after]
    for _ in range(count):
        status, last = batch(peer, id_, ends[-1])
        assert status == MORE
        ends.append(last)
    assert peer.receive(QUIET_MS) == []
    return ends[1:]


def test_a_stream_of_entries_keeps_its_window(cluster: Cluster) -> None:
    start = filled(cluster, [40_000] * 24)  # one or two fill a message
    end = start + 24
    with Raw(cluster.url(cluster.leader())) as peer:

        def ask(id_: bytes, after: int, *count: bytes) -> None:
            peer.send(id_, b"<", IDENT, encode_uint(after), *count)

        ask(b"all", start)
        ends = batches(peer, b"all", start, WINDOW)
        for _ in range(3):
            ask(b"all", ends.pop(0))
            ends += batches(peer, b"all", ends[-1], 1)
        ask(b"all", ends[1])  # not the oldest that waits: a new beginning
        begun = batches(peer, b"all", ends[1], WINDOW)
        ask(b"all", begun[0], encode_uint(0))
        assert peer.receive(QUIET_MS) == []
        ask(b"all", begun[1])  # there is no such stream any more
        assert batch(peer, b"all", begun[1])[0] == MORE
        peer.send(b"all", b"<", IDENT, encode_uint(end), encode_uint(0))

    with Raw(cluster.url(cluster.leader())) as peer:
        for count, last in ((1, start + 1), (3, start + 3), (99, end)):
            ask(b"some", start, encode_uint(count))
            unread, reached = [], start
            while reached < last:
                status, reached = batch(peer, b"some", reached)
                assert (status == LAST) == (reached == last)
                unread.append(reached)
                if len(unread) == WINDOW:
                    ask(b"some", unread.pop(0))
            for acknowledged in unread[:-1]:  # those of the messages before the last come late, and begin nothing
                ask(b"some", acknowledged)
            assert peer.receive(QUIET_MS) == []
        ask(b"nil", end - 1, b"")
        assert batch(peer, b"nil", end - 1) == (LAST, end)
        ask(b"end", end)
        assert batch(peer, b"end", end) == (LAST, end)
        ask(b"past", end + 999)
        assert batch(peer, b"past", end) == (LAST, end)


async def test_js_stream_reads_large_entries_with_pauses(cluster: Cluster, js: Javascript) -> None:
    sizes = [70_000, 1 << 20, 1, 300_000, *[100] * 40]
    start = await asyncio.to_thread(filled, cluster, sizes)
    client = await js.call("client", cluster.urls)
    items = await js.call("entries", client, start, None, 5)
    assert [item["index"] for item in items] == list(range(start + 1, start + len(sizes) + 1))
    assert [len(item["entry"]) // 2 - 20 for item in items] == sizes
    assert len(await js.call("entries", client, start, 3, 0)) == 3


async def seen_when(js: Javascript, subscription: int, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return what a subscription saw, once ``condition`` holds for it."""
    async with asyncio.timeout(WAIT_S):
        while not condition(seen := await js.call("seen", subscription)):
            assert seen["errors"] == []
    return dict(seen)


@pytest.mark.proves("JS client → ours", "<", "*", "PUB")
async def test_js_subscribers_follow_the_log(cluster: Cluster, js: Javascript) -> None:
    start = await asyncio.to_thread(filled, cluster, [1] * 10)
    members = [await js.call("subscribe", cluster.urls, start), await js.call("subscribe", [cluster.url("b")], start)]
    forever = await js.call("follow", cluster.url(cluster.leader()), start)
    for subscription in members:
        await seen_when(js, subscription, lambda seen: len(seen["items"]) >= 10 and seen["fresh"] >= 1)
    ids = [new_reqid().hex() for _ in range(50)]
    await asyncio.gather(*(js.call("publish", members[0], id_, "00") for id_ in ids))
    last = await asyncio.to_thread(cluster.settled)
    for subscription in (*members, forever):
        seen = await seen_when(js, subscription, lambda seen: len(seen["items"]) >= last - start)
        assert [item["index"] for item in seen["items"]] == list(range(start + 1, last + 1))
        assert {item["entry"][:24] for item in seen["items"]} >= set(ids)


def test_the_leader_publishes_its_entries_and_heartbeats(cluster: Cluster) -> None:
    leader = cluster.members[cluster.leader()]
    info = raw.log_info(leader.url)
    assert info is not None
    subscriber: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
    try:
        subscriber.setsockopt(zmq.LINGER, 0)
        subscriber.setsockopt(zmq.SUBSCRIBE, IDENT)
        subscriber.connect(leader.pub)

        def received() -> StateBroadcast:
            assert subscriber.poll(int(WAIT_S * 1000))
            message = decode_broadcast(subscriber.recv_multipart(), IDENT)
            assert isinstance(message, StateBroadcast)
            return message

        for _ in range(BEATS):
            beat = received()
            assert (beat.term, beat.entries) == (info.term, ())
            assert beat.applied_index >= info.applied_index
        sizes = [10, 70_000, 1, 1]
        after = filled(cluster, sizes)
        index, held = after, []
        while index < after + len(sizes):
            message = received()
            index += len(message.entries)
            assert not message.entries or message.applied_index == index
            held += [len(bytes(entry)) - 20 for entry in message.entries]
        assert held == sizes
    finally:
        subscriber.close()
