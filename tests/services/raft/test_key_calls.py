"""What the client makes of each answer about keys (docs/specs/raft.md 4.4, 12.4-12.7)."""

from typing import Any

import pytest

from pavane.raft.client.calls import Done, Elsewhere, Failed, Pending
from pavane.raft.client.key_calls import Changes, CommandCall, KeepAliveCall, Outcome, ReadCall, WatchCall
from pavane.raft.errors import Code, Compacted, Expired, RaftError, Refused, ResultLost, Unsupported
from pavane.raft.machines.commands import Range
from pavane.raft.machines.history import Scope, Watch
from pavane.raft.wire.decoder import decode_request
from pavane.raft.wire.pv import PvReply, PvWatch, PvWatchAcknowledge, PvWatchReply
from tests.services.raft.test_client_procedure import Network

IDENT = b"s3cr3t"
REQID = bytes(range(12))


def command() -> CommandCall:
    return CommandCall(REQID, b"command", 10.0)


def watch(first: int = 5) -> WatchCall:
    return WatchCall(b"id", Watch(Scope.KEYS, b"k", b"", first), 10.0)


def asked(call: WatchCall) -> int:
    """Return the revision from which a request wants to be told."""
    message = decode_request((b"id", *call.frames(IDENT)), IDENT)
    assert isinstance(message, PvWatch)
    first = message.query["from"]
    assert isinstance(first, int)
    assert message.query["progress"] is True
    return first


def told(call: WatchCall, revision: int, *keys: bytes, previous: int, code: Code = Code.OK) -> Any:
    reply = PvWatchReply(code, revision, [[1, key, b"", 1, 0] for key in keys], previous)
    return call.judge(reply.encode())


def read(call: WatchCall) -> list[tuple[int, list[bytes]]]:
    found = [(batch.revision, [event.key for event in batch.events]) for batch in call.batches]
    call.batches.clear()
    return found


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (PvReply(Code.PENDING), Pending()),
        (PvReply(Code.NOT_LEADER, "2"), Elsewhere("2")),
        (PvReply(Code.NOT_LEADER), Elsewhere(None)),
        (PvReply(Code.BUSY, 500), Pending(repeat_after_s=0.5)),
        (PvReply(Code.OK, [0, 7, [True, []]]), Done(Outcome(7, [True, []]))),
        (PvReply(Code.OK, [0, "7", None]), None),
        (PvReply(Code.OK, None), None),
    ],
)
def test_an_answer_is_a_result_or_says_how_to_go_on(reply: PvReply, verdict: object) -> None:
    assert command().judge(reply.encode()) == verdict


@pytest.mark.parametrize(
    ("reply", "kind", "text"),
    [
        (PvReply(Code.NO_NODE, [13, 9, b"/a"]), Refused, "NO_NODE /a"),
        (PvReply(Code.BAD_COMMAND, "not a path"), Refused, "BAD_COMMAND not a path"),
        (PvReply(Code.UNSUPPORTED, 1), Unsupported, "level"),
        (PvReply(Code.RESULT_LOST, 9), ResultLost, "index 9"),
        (PvReply(Code.EXPIRED), Expired, "has expired"),
        (PvReply(99, None), Refused, "unknown code"),
    ],
)
def test_an_answer_that_ends_the_call_is_an_error_that_says_why(
    reply: PvReply, kind: type[RaftError], text: str
) -> None:
    verdict = command().judge(reply.encode())
    assert isinstance(verdict, Failed)
    assert isinstance(verdict.error, kind)
    assert text in str(verdict.error)


def test_frames_that_are_no_answer_are_ignored() -> None:
    assert command().judge((b"",)) is None
    assert watch().judge((b"",)) is None
    assert ReadCall(b"id", [Range(b"k")], 1.0).judge(()) is None
    assert KeepAliveCall(b"id", [1], 1.0).judge(PvReply(Code.OK, []).encode()) is None


def test_a_keep_alive_is_told_what_was_granted() -> None:
    call = KeepAliveCall(b"id", [1, 2], 1.0)
    assert call.judge(PvReply(Code.OK, [[1, 500], [2, 0]]).encode()) == Done(Outcome(0, [[1, 500], [2, 0]]))


def test_a_watcher_reads_each_revision_once() -> None:
    call = watch()
    assert asked(call) == 5
    assert told(call, 5, b"a", previous=0) == Pending()
    assert told(call, 8, b"b", b"c", previous=5) == Pending()
    assert told(call, 9, previous=8) == Pending()
    assert read(call) == [(5, [b"a"]), (8, [b"b", b"c"]), (9, [])]
    # Another server begins where it was asked to; what is known already is only acknowledged.
    assert asked(call) == 10
    assert told(call, 8, b"b", previous=0) == Pending()
    assert told(call, 12, b"d", previous=8) == Pending()
    assert read(call) == [(8, []), (12, [b"d"])]


def test_a_message_behind_a_lost_one_begins_the_stream_anew() -> None:
    call = watch()
    told(call, 5, b"a", previous=0)
    assert told(call, 7, b"c", previous=6) == Pending(repeat_after_s=0.0)
    assert told(call, 8, b"d", previous=7) is None  # one restart is enough, whatever of the old stream still comes
    assert read(call) == [(5, [b"a"])]
    assert asked(call) == 6
    assert told(call, 9, b"e", previous=8) is None
    told(call, 6, b"b", previous=0)
    told(call, 7, b"c", previous=6)
    assert read(call) == [(6, [b"b"]), (7, [b"c"])]


def test_parts_of_a_revision_are_put_together_and_begun_anew_with_the_stream() -> None:
    call = watch()
    told(call, 5, b"a", previous=0, code=Code.PENDING)
    assert read(call) == []
    assert asked(call) == 5
    told(call, 5, b"a", previous=0, code=Code.PENDING)
    told(call, 5, b"b", previous=6, code=Code.PENDING)
    told(call, 5, b"c", previous=7)
    told(call, 6, b"d", previous=5)
    assert read(call) == [(5, [b"a", b"b", b"c"]), (6, [b"d"])]


@pytest.mark.parametrize(("revision", "previous"), [(5, 7), (6, 5)], ids=["between", "last"])
def test_a_lost_part_of_a_revision_begins_the_stream_anew(revision: int, previous: int) -> None:
    call = watch()
    told(call, 5, b"a", previous=0, code=Code.PENDING)
    assert told(call, revision, b"c", previous=previous) == Pending(repeat_after_s=0.0)
    assert read(call) == []
    assert asked(call) == 5


def test_a_watcher_from_now_on_keeps_its_beginning() -> None:
    call = watch(0)
    assert asked(call) == 0
    told(call, 41, previous=0)
    assert asked(call) == 42


def test_the_server_owes_nothing_while_the_reader_holds_messages_back() -> None:
    call = watch()
    assert call.waiting
    told(call, 5, b"a", previous=0)
    assert not call.waiting
    message = decode_request((b"id", *(call.acknowledgement(Changes(5), IDENT) or ())), IDENT)
    assert message == PvWatchAcknowledge(5, proceed=True)
    assert call.waiting
    assert decode_request((b"id", *call.stop(IDENT)), IDENT) == PvWatchAcknowledge(5, proceed=False)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (PvWatchReply(Code.BUSY, 0, [1000]), Pending(repeat_after_s=1.0)),
        (PvWatchReply(Code.NOT_LEADER, 0, ["2"]), Elsewhere("2")),
        (PvWatchReply(Code.NOT_LEADER, 0, [None]), Elsewhere(None)),
        (PvWatchReply(Code.OK, 5, [[1, b"k"]]), None),
        (PvWatchReply(Code.OK, 5, [7]), None),
        (PvWatchReply(Code.BAD_COMMAND, 0, []), None),
    ],
)
def test_a_watch_waits_for_a_busy_server_and_ignores_nonsense(reply: PvWatchReply, verdict: object) -> None:
    assert watch().judge(reply.encode()) == verdict


def test_a_watch_ends_where_the_server_says_why() -> None:
    compacted = watch().judge(PvWatchReply(Code.COMPACTED, 9, [9]).encode())
    assert isinstance(compacted, Failed)
    assert isinstance(compacted.error, Compacted)
    assert compacted.error.first == 9
    refused = watch().judge(PvWatchReply(Code.BAD_COMMAND, 0, ["not a path"]).encode())
    assert isinstance(refused, Failed)
    assert "not a path" in str(refused.error)


def test_a_quiet_watch_is_left_alone_and_a_dead_one_moves_on() -> None:
    network = Network()
    network.leaders = {"1": "1"}
    call = watch()
    network.submit(call)
    network.reply("1", call, PvWatchReply(Code.OK, 5, [], 0))
    call.acknowledgement(call.batches.popleft(), IDENT)
    asked_before = len(network.requests)
    network.run(2.0)
    assert network.requests[asked_before:] == []
    network.leaders = {"2": "2"}
    network.run(2.0)
    assert [request for request in network.requests[asked_before:] if request[1] == "pv.watch"] == [("2", "pv.watch")]
    assert asked(call) == 6
