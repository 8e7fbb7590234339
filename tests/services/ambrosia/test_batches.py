"""Batches that are read in one pass hold what their calls hold one by one, whatever a peer wrote."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from pavane.ambrosia.wire import limits
from pavane.ambrosia.wire.batches import count_calls, read_calls, split_calls
from pavane.ambrosia.wire.messages import (
    Call,
    Frame,
    Return,
    RpcType,
    Type,
    batch,
    incoming,
    is_impulse,
    outgoing,
    read_batch,
    read_frames,
    read_rpc,
    split_outgoing,
)
from pavane.wire import RemoteProtocolError
from tests.services.ambrosia.test_wire import names, rpcs

Sent = list[tuple[str, Call | Return]]
sent = st.lists(st.tuples(names, rpcs), min_size=2, max_size=5)


def damaged(data: bytes, at: int, change: bytes) -> bytes:
    at %= len(data) + 1
    return data[:at] + change + data[at + len(change) :]


def outcome(read: Callable[[Frame], object], message: Frame) -> object:
    try:
        return read(message)
    except RemoteProtocolError:
        return "refused"


def counted(message: Frame) -> tuple[int, int]:
    frames = read_batch(message)
    return len(frames), sum(not is_impulse(each.data) for each in frames)


@given(sent, st.integers(0, 1000), st.binary(max_size=3))
def test_what_an_application_sends_is_split_as_its_calls_one_by_one(calls: Sent, at: int, change: bytes) -> None:
    (whole,) = read_frames(batch([outgoing(to, rpc) for to, rpc in calls], count_replayable=False))
    message = Frame(whole.type, damaged(whole.data, at, change), b"")
    assert outcome(split_calls, whole) == [split_outgoing(each) for each in read_batch(whole)]
    assert outcome(split_calls, message) == outcome(
        lambda it: [split_outgoing(each) for each in read_batch(it)], message
    )


@given(sent, st.integers(0, 1000), st.binary(max_size=3))
def test_what_a_peer_sends_is_counted_and_read_as_its_calls_one_by_one(calls: Sent, at: int, change: bytes) -> None:
    impulses = sum(isinstance(rpc, Call) and rpc.rpc is RpcType.IMPULSE for _, rpc in calls)
    (whole,) = read_frames(batch([incoming(rpc) for _, rpc in calls], impulses=impulses))
    for message in (whole, Frame(whole.type, damaged(whole.data, at, change), b"")):
        assert outcome(count_calls, message) == outcome(counted, message)
        one_by_one = outcome(lambda it: [read_rpc(each.data) for each in read_batch(it)], message)
        assert outcome(read_calls, message) == one_by_one
    assert read_calls(whole) == [rpc for _, rpc in calls]


def test_large_calls_are_split_as_small_ones() -> None:
    call = Call(7, RpcType.IMPULSE, bytes(2 * limits.MIB))
    (message,) = read_frames(batch([outgoing("bob", call)] * 2, count_replayable=False))
    assert message.type == Type.RPC_BATCH
    assert split_calls(message) == [("bob", incoming(call), True)] * 2
