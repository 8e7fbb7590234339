"""Every message there and back, and every way to break one (docs/specs/raft.md 3, 4, 18.1)."""

from collections.abc import Callable
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane.raft.errors import DropReason
from pavane.raft.wire import pv, pv_update, replies
from pavane.raft.wire.decoder import Drop, Reply, Request, decode_reply, decode_request
from pavane.raft.wire.entry import encode_blob, encode_configuration, encode_entry
from pavane.raft.wire.frames import ENTRY_DATA_BYTES, FRAMES_MAX, Frame
from pavane.raft.wire.pv import (
    PvAppend,
    PvAppendReply,
    PvFollow,
    PvFollowReply,
    PvHello,
    PvHelloReply,
    PvKv,
    PvLease,
    PvNow,
    PvNowReply,
    PvRead,
    PvReply,
    PvSnapshot,
    PvStatus,
    PvTransfer,
    PvVote,
    PvVoteReply,
    PvWatch,
    PvWatchAcknowledge,
    PvWatchReply,
)
from pavane.raft.wire.pv_update import PvUpdate, PvUpdateReply, UpdateItem, UpdateResult
from pavane.raft.wire.replies import (
    AppendEntriesReply,
    ConfigStatus,
    ConfigUpdateReply,
    EntriesStatus,
    InstallSnapshotReply,
    RequestBroadcastUrlReply,
    RequestConfigReply,
    RequestEntriesReply,
    RequestLogInfoReply,
    RequestUpdateReply,
    RequestVoteReply,
    SnapshotPart,
    UpdateStatus,
)
from pavane.raft.wire.requests import (
    AppendEntries,
    ClientDispatch,
    ConfigUpdate,
    InstallSnapshot,
    PeerPoll,
    RequestBroadcastUrl,
    RequestConfig,
    RequestEntries,
    RequestLogInfo,
    RequestUpdate,
    RequestVote,
)

IDENT = b"s3cr3t"
REQID = bytes(range(12))
RPC_ID = b"\x01"
FEW = settings(max_examples=50)
ENTRY = encode_entry(REQID, 0, 3, b"data")
CONFIG_ENTRY = encode_entry(REQID, 1, 3, encode_configuration([("1", "tcp://127.0.0.1:1")]))
BAD_CONFIG_ENTRY = encode_entry(REQID, 1, 3, b"\xc0")

indices = st.integers(0, (1 << 53) - 1)
small = st.integers(0, 1 << 20)
texts = st.text(max_size=20)
binaries = st.binary(max_size=40)
data = st.binary(min_size=1, max_size=40)
reqids = st.binary(min_size=12, max_size=12)
nonces = st.binary(min_size=8, max_size=8)
entries = st.lists(
    st.builds(encode_entry, reqids, st.sampled_from([0, 2, 9]), indices, data) | st.just(CONFIG_ENTRY), max_size=4
).map(tuple)
blobs = entries.map(encode_blob)
scalars = st.none() | st.booleans() | st.integers(-(1 << 31), 1 << 50) | texts | binaries
maps = st.dictionaries(texts, scalars, max_size=4)
lists = st.lists(scalars, max_size=4)
polls = st.none() | st.builds(PeerPoll, texts, indices)
peers = st.lists(st.tuples(texts, texts), max_size=4).map(tuple)
leaders = st.none() | texts
chunks = st.tuples(small, binaries, small)


def snapshot(kind: Callable[..., Request]) -> st.SearchStrategy[Request]:
    def build(leader: str, term: int, index: int, last_term: int, place: tuple[int, bytes, int]) -> Request:
        offset, chunk, rest = place
        return kind(leader, term, index, last_term, offset, offset + len(chunk) + rest, chunk)

    return st.builds(build, texts, indices, indices, indices, chunks)


def snapshot_message(index: int, term: int, place: tuple[int, bytes, int]) -> RequestEntriesReply:
    offset, chunk, rest = place
    part = SnapshotPart(offset, offset + len(chunk) + rest, term)
    return RequestEntriesReply(EntriesStatus.SNAPSHOT, index, (chunk,), part=part)


dispatch_types = st.binary(min_size=2, max_size=12).filter(lambda kind: not kind.startswith(b"pv."))
REQUESTS: dict[type[Request], st.SearchStrategy[Request]] = {
    RequestVote: st.builds(RequestVote, texts, indices, indices, indices),
    AppendEntries: st.builds(AppendEntries, texts, indices, indices, indices, indices, entries),
    InstallSnapshot: snapshot(InstallSnapshot),
    RequestConfig: st.builds(RequestConfig, polls),
    RequestLogInfo: st.builds(RequestLogInfo, polls),
    RequestUpdate: st.builds(RequestUpdate, data),
    ConfigUpdate: st.builds(ConfigUpdate, scalars) | st.builds(ConfigUpdate.of, peers),
    RequestEntries: st.builds(RequestEntries, indices, st.none() | indices, st.none() | indices),
    RequestBroadcastUrl: st.builds(RequestBroadcastUrl),
    ClientDispatch: st.builds(ClientDispatch, dispatch_types, st.lists(binaries, max_size=3).map(tuple)),
    PvHello: st.builds(PvHello, texts, indices, nonces, maps),
    PvVote: st.builds(PvVote, texts, indices, indices, indices, st.integers(0, 2)),
    PvAppend: st.builds(PvAppend, texts, indices, indices, indices, indices, entries),
    PvSnapshot: snapshot(PvSnapshot),
    PvNow: st.builds(PvNow, texts, indices, indices, indices),
    PvFollow: st.builds(PvFollow, texts, indices, indices, indices, st.none() | indices),
    PvUpdate: st.builds(PvUpdate, st.lists(st.builds(UpdateItem, reqids, data), min_size=1, max_size=4).map(tuple)),
    PvKv: st.builds(PvKv, data),
    PvRead: st.builds(PvRead, lists),
    PvWatch: st.builds(PvWatch, maps),
    PvWatchAcknowledge: st.builds(PvWatchAcknowledge, indices, st.booleans()),
    PvLease: st.builds(PvLease, lists),
    PvStatus: st.builds(PvStatus),
    PvTransfer: st.builds(PvTransfer, leaders),
}
entry_batches = st.builds(
    RequestEntriesReply, st.sampled_from([EntriesStatus.LAST, EntriesStatus.MORE]), indices, entries
)
REPLIES: dict[type[Reply], st.SearchStrategy[Reply]] = {
    RequestVoteReply: st.builds(RequestVoteReply, indices, st.booleans()),
    AppendEntriesReply: st.builds(AppendEntriesReply, indices, st.booleans(), st.none() | indices),
    InstallSnapshotReply: st.builds(InstallSnapshotReply, indices, st.none() | indices),
    RequestConfigReply: st.builds(RequestConfigReply, st.booleans(), leaders, peers),
    RequestLogInfoReply: st.builds(RequestLogInfoReply, st.booleans(), leaders, *[indices] * 7),
    RequestUpdateReply: st.sampled_from([UpdateStatus.ACCEPTED, UpdateStatus.EXPIRED]).map(RequestUpdateReply)
    | st.builds(RequestUpdateReply, st.just(UpdateStatus.DONE), index=indices)
    | st.builds(RequestUpdateReply, st.just(UpdateStatus.NOT_LEADER), leader=leaders),
    ConfigUpdateReply: st.sampled_from(ConfigStatus).map(ConfigUpdateReply)
    | st.builds(ConfigUpdateReply, st.just(ConfigStatus.NOT_LEADER), leaders)
    | st.builds(ConfigUpdateReply, st.just(ConfigStatus.ACCEPTED), indices)
    | st.builds(ConfigUpdateReply, st.just(ConfigStatus.ARGUMENT), maps),
    RequestEntriesReply: entry_batches
    | st.builds(RequestEntriesReply, st.just(EntriesStatus.NOT_LEADER), leader=leaders)
    | st.builds(snapshot_message, indices, indices, chunks),
    RequestBroadcastUrlReply: st.builds(RequestBroadcastUrlReply, leaders),
    PvHelloReply: st.builds(PvHelloReply, nonces, maps),
    PvVoteReply: st.builds(PvVoteReply, indices, st.booleans(), st.integers(0, 6)),
    PvAppendReply: st.builds(PvAppendReply, indices, st.booleans(), indices, st.none() | st.tuples(indices, indices)),
    PvNowReply: st.builds(PvNowReply, indices, st.booleans()),
    PvFollowReply: st.builds(PvFollowReply, st.integers(0, 20), lists, indices, binaries),
    PvUpdateReply: st.builds(
        PvUpdateReply,
        leaders,
        st.lists(st.builds(UpdateResult, reqids, st.integers(0, 20), indices), max_size=4).map(tuple),
    ),
    PvWatchReply: st.builds(PvWatchReply, st.integers(0, 20), indices, lists, indices),
    PvReply: st.builds(PvReply, st.integers(0, 20), scalars),
}
REQID_REQUESTS = (RequestUpdate, ConfigUpdate, PvKv)


def framed(request: Request) -> tuple[memoryview, ...]:
    message_id = REQID if isinstance(request, REQID_REQUESTS) else RPC_ID
    return tuple(memoryview(bytes(frame)) for frame in (message_id, *request.encode(IDENT)))


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_request_round_trip(kind: type[Request]) -> None:
    @FEW
    @given(REQUESTS[kind])
    def check(request: Request) -> None:
        assert decode_request(framed(request), IDENT) == request

    check()


@pytest.mark.parametrize("kind", REPLIES, ids=lambda kind: kind.__name__)
def test_reply_round_trip(kind: type[Reply]) -> None:
    @FEW
    @given(REPLIES[kind])
    def check(reply: Reply) -> None:
        assert decode_reply(kind, tuple(memoryview(bytes(frame)) for frame in reply.encode())) == reply

    check()


def test_the_tables_here_hold_every_message() -> None:
    assert REQUESTS.keys() == _REQUEST_EXAMPLES.keys() == set(get_args(Request))
    modules = (pv, pv_update, replies)
    named = {value for module in modules for name, value in vars(module).items() if name.endswith("Reply")}
    assert REPLIES.keys() == _REPLY_EXAMPLES.keys() == named


def mutations(frames: tuple[Frame, ...]) -> list[tuple[Frame, ...]]:
    """One frame removed, emptied, doubled, oversized; for every frame."""
    oversized = bytes(ENTRY_DATA_BYTES + 100)
    return [
        frames[:position] + replacement + frames[position + 1 :]
        for position, frame in enumerate(frames)
        for replacement in ((), (b"",), (frame, frame), (oversized,))
    ]


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_every_broken_request_is_a_message_or_a_reason(kind: type[Request]) -> None:
    request = _REQUEST_EXAMPLES[kind]
    for frames in mutations(framed(request)):
        outcome = decode_request(frames, IDENT)
        assert isinstance(outcome, Request | Drop)
        if isinstance(outcome, Drop):
            assert outcome.reason in DropReason


@pytest.mark.parametrize("kind", REPLIES, ids=lambda kind: kind.__name__)
def test_every_broken_reply_is_a_message_or_a_reason(kind: type[Reply]) -> None:
    reply = _REPLY_EXAMPLES[kind]
    for frames in mutations(reply.encode()):
        assert isinstance(decode_reply(kind, frames), kind | Drop)


@FEW
@given(st.lists(st.binary(max_size=30), max_size=12), st.sampled_from([None, *"?+$^%=&<*", "pv.vote", "pv.update"]))
def test_any_frames_are_a_request_or_a_reason(frames: list[bytes], kind: str | None) -> None:
    if kind is not None:
        frames = [RPC_ID, kind.encode(), IDENT, *frames]
    assert isinstance(decode_request(frames, IDENT), Request | Drop)


@FEW
@given(st.sampled_from(list(REPLIES)), st.lists(st.binary(max_size=30), max_size=10))
def test_any_frames_are_a_reply_or_a_reason(kind: type[Reply], frames: list[bytes]) -> None:
    assert isinstance(decode_reply(kind, frames), kind | Drop)


VOTE = (RPC_ID, b"?", IDENT, b"1", b"\x01", b"\x00", b"\x00")
APPEND = (RPC_ID, b"+", IDENT, b"1", b"\x01", b"\x00", b"\x00", b"\x00")
UPDATE = (REQID, b"=", IDENT, b"data")


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ((), "frames"),
        ((RPC_ID, b"?"), "frames"),
        (VOTE[:-1], "frames"),
        ((*APPEND, *[ENTRY] * FRAMES_MAX), "frames"),
        ((b"\x01\x02\x03\x04", *VOTE[1:]), "id"),
        ((b"", *VOTE[1:]), "id"),
        ((REQID[:11], *UPDATE[1:]), "id"),
        ((bytes(65), b"^", IDENT), "id"),
        ((RPC_ID, b"", IDENT), "type"),
        ((RPC_ID, b"W", IDENT), "type"),
        ((RPC_ID, b"pv.unknown", IDENT), "type"),
        ((RPC_ID, b"?", b"other", *VOTE[3:]), "ident"),
        ((RPC_ID, b"?", b"", *VOTE[3:]), "ident"),
        ((*VOTE[:4], b"", *VOTE[5:]), "uint"),
        ((*VOTE[:4], b"\xff" * 7, *VOTE[5:]), "uint"),
        ((*VOTE[:3], b"\xff", *VOTE[4:]), "utf8"),
        ((*APPEND, bytes(20)), "entry"),
        ((*APPEND, BAD_CONFIG_ENTRY), "config"),
        ((*APPEND, bytes(ENTRY_DATA_BYTES + 21)), "size"),
        ((REQID, b"=", IDENT, b""), "size"),
        ((REQID, b"=", IDENT, bytes(ENTRY_DATA_BYTES + 1)), "size"),
        ((RPC_ID, b"$", IDENT, b"1", b"\x01", b"\x01", b"\x01", b"\x05", b"\x07", b"abc"), "size"),
        ((RPC_ID, b"pv.append", IDENT, b"1", b"\x01", b"\x00", b"\x00", b"\x00", b"\x05\x00\x00\x00ab"), "size"),
        ((RPC_ID, b"pv.update", IDENT, b""), "size"),
        ((RPC_ID, b"pv.update", IDENT, bytes(16)), "size"),
        ((RPC_ID, b"pv.hello", IDENT, b"1", b"\x01", bytes(7), b"\x80"), "size"),
        ((RPC_ID, b"pv.hello", IDENT, b"1", b"\x01", bytes(8), b"\x01"), "json"),
        ((RPC_ID, b"pv.transfer", IDENT, b"\x01"), "json"),
    ],
)
def test_drop_reasons(frames: tuple[bytes, ...], reason: str) -> None:
    assert decode_request(frames, IDENT) == Drop(DropReason(reason))


def test_largest_message_of_the_leader_is_taken() -> None:
    frames = (*APPEND, *[ENTRY] * (FRAMES_MAX - len(APPEND)))
    assert isinstance(decode_request(frames, IDENT), AppendEntries)


def test_unreadable_members_are_a_request_because_they_are_answered() -> None:
    assert decode_request((REQID, b"&", IDENT, b"\xc1"), IDENT) == ConfigUpdate(None, readable=False)


def test_surplus_frames_of_a_client_are_ignored() -> None:
    assert decode_request((*UPDATE, b"more"), IDENT) == RequestUpdate(b"data")
    assert decode_request((RPC_ID, b"^", IDENT, b"\xff", b""), IDENT) == RequestConfig()
    assert decode_request((RPC_ID, b"<", IDENT, b"\x0a", b"", b"\x00", b"x"), IDENT) == RequestEntries(10, None, 0)


def test_client_ids_have_up_to_64_bytes() -> None:
    for client_id in (b"", bytes(64)):
        assert decode_request((client_id, b"%", IDENT), IDENT) == RequestLogInfo()


def test_long_fields_are_views_of_the_input() -> None:
    frames = framed(RequestUpdate(b"x" * 1000))
    request = decode_request(frames, IDENT)
    assert isinstance(request, RequestUpdate)
    assert request.data is frames[3]


def test_golden_requests_of_a_new_peer() -> None:
    def spelled(request: Request, message_id: bytes) -> str:
        return "|".join(bytes(frame).hex() for frame in (message_id, *request.encode(IDENT)))

    assert spelled(RequestVote("1", 1, 0, 0), b"\x01") == "01|3f|733363723374|31|01|00|00"
    assert spelled(AppendEntries("1", 1, 0, 0, 0), b"\x02") == "02|2b|733363723374|31|01|00|00|00"


@pytest.mark.parametrize(
    ("reply", "frames"),
    [
        (AppendEntriesReply(10, True), "0a|01"),
        (AppendEntriesReply(10, False, 1), "0a||01"),
        (AppendEntriesReply(10, False), "0a|"),
        (InstallSnapshotReply(20, 400), "14|9001"),
        (InstallSnapshotReply(20), "14"),
        (RequestUpdateReply(UpdateStatus.ACCEPTED), "01"),
        (RequestUpdateReply(UpdateStatus.NOT_LEADER), "|c0"),
        (RequestUpdateReply(UpdateStatus.EXPIRED), ""),
        (ConfigUpdateReply(ConfigStatus.NOT_LEADER), "00|c0"),
    ],
)
def test_golden_replies(reply: Reply, frames: str) -> None:
    assert "|".join(bytes(frame).hex() for frame in reply.encode()) == frames


@pytest.mark.parametrize(
    ("kind", "frames", "reason"),
    [
        (RequestVoteReply, (b"\x01",), "frames"),
        (AppendEntriesReply, (b"", b""), "uint"),
        (RequestEntriesReply, (b"\x01", b"\xc0"), "frames"),
        (RequestEntriesReply, (b"\x03", b"\x93\x00\x02\x01", b"\x28"), "frames"),
        (RequestEntriesReply, (b"\x03", b"\x93\x00\x02\x01", b"\x28", b"abc"), "size"),
        (RequestEntriesReply, (b"\x04", b"\xc0", b"\x01"), "uint"),
        (RequestEntriesReply, (b"\x02", b"\xc0", b"\x01", bytes(20)), "entry"),
        (RequestUpdateReply, (b"\x01", b"\xa132"), "json"),
        (RequestUpdateReply, (b"\x01", b"\xc3"), "json"),
        (RequestUpdateReply, (b"", b"\x07"), "json"),
        (RequestConfigReply, (b"\x01", b"\xa131", b"\x91\x91\xa131"), "json"),
        (PvHelloReply, (b"other-program", bytes(8), b"\x80"), "stale"),
        (PvUpdateReply, (b"\xc0", bytes(19)), "size"),
    ],
)
def test_reply_drop_reasons(kind: type[Reply], frames: tuple[bytes, ...], reason: str) -> None:
    assert decode_reply(kind, frames) == Drop(DropReason(reason))


_REQUEST_EXAMPLES: dict[type[Request], Request] = {
    RequestVote: RequestVote("1", 1, 300, 1),
    AppendEntries: AppendEntries("1", 1, 300, 1, 299, (ENTRY, CONFIG_ENTRY)),
    InstallSnapshot: InstallSnapshot("1", 1, 300, 1, 4, 9, b"chunk"),
    RequestConfig: RequestConfig(PeerPoll("1", 1)),
    RequestLogInfo: RequestLogInfo(PeerPoll("1", 1)),
    RequestUpdate: RequestUpdate(b"data"),
    ConfigUpdate: ConfigUpdate.of([("1", "tcp://127.0.0.1:1")]),
    RequestEntries: RequestEntries(300, 5, 0),
    RequestBroadcastUrl: RequestBroadcastUrl(),
    ClientDispatch: ClientDispatch(b"custom", (b"argument",)),
    PvHello: PvHello("1", 1, bytes(8), {"v": 1}),
    PvVote: PvVote("1", 1, 300, 1, 1),
    PvAppend: PvAppend("1", 1, 300, 1, 299, (ENTRY, CONFIG_ENTRY)),
    PvSnapshot: PvSnapshot("1", 1, 300, 1, 4, 9, b"chunk"),
    PvNow: PvNow("1", 1, 300, 300),
    PvFollow: PvFollow("1", 1, 300, 1, 0),
    PvUpdate: PvUpdate((UpdateItem(REQID, b"data"),)),
    PvKv: PvKv(b"\x93\x02\x01\xc4\x00"),
    PvRead: PvRead([0, []]),
    PvWatch: PvWatch({"from": 0}),
    PvWatchAcknowledge: PvWatchAcknowledge(7, True),
    PvLease: PvLease([41]),
    PvStatus: PvStatus(),
    PvTransfer: PvTransfer("2"),
}
_REPLY_EXAMPLES: dict[type[Reply], Reply] = {
    RequestVoteReply: RequestVoteReply(1, True),
    AppendEntriesReply: AppendEntriesReply(1, False, 4),
    InstallSnapshotReply: InstallSnapshotReply(1, 4),
    RequestConfigReply: RequestConfigReply(True, "1", (("1", "tcp://127.0.0.1:1"),)),
    RequestLogInfoReply: RequestLogInfoReply(True, "1", 1, 1, 2, 3, 4, 5, 6),
    RequestUpdateReply: RequestUpdateReply(UpdateStatus.DONE, 7),
    ConfigUpdateReply: ConfigUpdateReply(ConfigStatus.ARGUMENT, {"name": "Error", "message": "no"}),
    RequestEntriesReply: RequestEntriesReply(EntriesStatus.MORE, 7, (ENTRY,)),
    RequestBroadcastUrlReply: RequestBroadcastUrlReply("tcp://127.0.0.1:1"),
    PvHelloReply: PvHelloReply(bytes(8), {"v": 1}),
    PvVoteReply: PvVoteReply(1, False, 2),
    PvAppendReply: PvAppendReply(1, False, 0, (4, 1)),
    PvNowReply: PvNowReply(1, True),
    PvFollowReply: PvFollowReply(2, [1, 1, 1], 7, encode_blob([ENTRY])),
    PvUpdateReply: PvUpdateReply("1", (UpdateResult(REQID, 0, 7),)),
    PvWatchReply: PvWatchReply(0, 7, [], 3),
    PvReply: PvReply(0, {"term": 1}),
}
