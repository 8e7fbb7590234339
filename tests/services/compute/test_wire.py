"""Messages of the compute protocol: both directions, and bytes that are none."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.compute.proto import compute_pb2 as proto
from pavane.compute.wire.codec import METHOD, SERVICE, decode_command, decode_response, encode_command, encode_response
from pavane.compute.wire.commands import AllowCompaction, Command, InitializationComplete
from pavane.compute.wire.common import CLOSED, NONCE_BYTES, Epoch, Token
from pavane.compute.wire.responses import Frontiers, Response
from pavane.wire import RemoteProtocolError
from tests.services.compute.messages import COMMANDS, RESPONSES, TEXT

NONCE = bytes(range(NONCE_BYTES))
AS_OF = proto.Frontier(elements=[proto.Time(tick=4)])


@given(COMMANDS, TEXT)
def test_a_command_is_what_was_sent(command: Command, traceparent: str) -> None:
    assert decode_command(encode_command(command, traceparent)) == (command, traceparent)


@given(RESPONSES)
def test_a_response_is_what_was_sent(response: Response) -> None:
    assert decode_response(encode_response(response)) == response


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_the_peers_fault(data: bytes) -> None:
    reasons = set()
    for decode in (decode_command, decode_response):
        try:
            decode(data)
        except RemoteProtocolError as error:
            reasons.add(error.reason)
    assert reasons <= {"kind", "missing", "nonce", "stage", "undecodable", "uuid", "value"}


@given(COMMANDS | RESPONSES, st.data())
def test_a_damaged_message_is_a_message_or_the_peers_fault(message: Command | Response, draw: st.DataObject) -> None:
    encoders: tuple[tuple[Callable[..., bytes], Callable[[bytes], object]], ...] = (
        (encode_command, decode_command),
        (encode_response, decode_response),
    )
    for encode, decode in encoders:
        with contextlib.suppress(KeyError):  # of the other direction
            data = bytearray(encode(message))
            if data:
                data[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
            with contextlib.suppress(RemoteProtocolError):
                decode(bytes(data))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (proto.Command(), "kind"),
        (proto.Command(traceparent="00-1"), "kind"),
        (proto.Command(create_timely=proto.CreateTimely(nonce=NONCE, config=proto.RuntimeConfig())), "missing"),
        (proto.Command(create_timely=proto.CreateTimely(nonce=NONCE, epoch=proto.Epoch(major=1))), "missing"),
        (
            proto.Command(
                create_timely=proto.CreateTimely(
                    nonce=NONCE[1:], epoch=proto.Epoch(major=1), config=proto.RuntimeConfig()
                )
            ),
            "nonce",
        ),
        (proto.Command(create_instance=proto.CreateInstance(kind="raft")), "missing"),
        (proto.Command(create_instance=proto.CreateInstance(generation=1)), "missing"),
        (proto.Command(allow_writes=proto.AllowWrites()), "missing"),
        (proto.Command(create_dataflow=proto.CreateDataflow()), "missing"),
        (proto.Command(create_dataflow=proto.CreateDataflow(dataflow=proto.DataflowDescription())), "missing"),
        (
            proto.Command(
                create_dataflow=proto.CreateDataflow(
                    dataflow=proto.DataflowDescription(as_of=AS_OF, sink_exports=[proto.SinkExport(id="u1")])
                )
            ),
            "kind",
        ),
        (proto.Command(schedule=proto.Schedule()), "missing"),
        (proto.Command(allow_compaction=proto.AllowCompaction(id="u1")), "missing"),
        (proto.Command(allow_compaction=proto.AllowCompaction(frontier=AS_OF)), "missing"),
        (proto.Command(peek=proto.Peek(uuid=NONCE)), "kind"),
        (proto.Command(peek=proto.Peek(uuid=NONCE[1:], index="u1")), "uuid"),
        (
            proto.Command(
                peek=proto.Peek(uuid=NONCE, index="u1", literals=[proto.Literal(values=[proto.Value(decimal="one")])])
            ),
            "value",
        ),
        (proto.Command(cancel_peek=proto.CancelPeek()), "uuid"),
    ],
)
def test_what_a_command_must_have(message: proto.Command, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        decode_command(message.SerializeToString())
    assert raised.value.reason == reason


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (proto.Response(), "kind"),
        (proto.Response(status=proto.Status()), "kind"),
        (proto.Response(frontiers=proto.Frontiers()), "missing"),
        (proto.Response(peek=proto.PeekResponse(uuid=NONCE)), "kind"),
        (proto.Response(peek=proto.PeekResponse(canceled=proto.Canceled())), "uuid"),
        (proto.Response(peek=proto.PeekResponse(uuid=NONCE, part=proto.RowsPart())), "missing"),
        (proto.Response(subscribe=proto.SubscribeResponse(id="t1")), "kind"),
        (
            proto.Response(subscribe=proto.SubscribeResponse(id="t1", batch=proto.Batch(lower=AS_OF, upper=AS_OF))),
            "kind",
        ),
        (
            proto.Response(
                subscribe=proto.SubscribeResponse(id="t1", batch=proto.Batch(lower=AS_OF, updates=proto.Rows()))
            ),
            "missing",
        ),
        (
            proto.Response(
                subscribe=proto.SubscribeResponse(id="t1", batch=proto.Batch(upper=AS_OF, updates=proto.Rows()))
            ),
            "missing",
        ),
        (proto.Response(copy_to=proto.CopyToResponse(id="t1")), "kind"),
        (proto.Response(status=proto.Status(stage=proto.StageReport(generation=1))), "stage"),
    ],
)
def test_what_a_response_must_have(message: proto.Response, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        decode_response(message.SerializeToString())
    assert raised.value.reason == reason


def test_unknown_fields_are_ignored() -> None:
    unknown_field_100 = b"\xa2\x06\x03abc"
    assert decode_command(encode_command(InitializationComplete()) + unknown_field_100)[0] == InitializationComplete()


def test_a_closed_frontier_is_not_an_absent_one() -> None:
    response = decode_response(encode_response(Frontiers("stage", output=CLOSED)))
    assert isinstance(response, Frontiers)
    assert (response.output, response.input) == (CLOSED, None)


def test_a_frontier_of_several_times_is_its_least() -> None:
    several = proto.Frontier(elements=[proto.Time(tick=9), proto.Time(tick=4)])
    message = proto.Command(allow_compaction=proto.AllowCompaction(id="u1", frontier=several))
    assert decode_command(message.SerializeToString())[0] == AllowCompaction("u1", 4)


def test_the_call_has_the_name_of_the_specification() -> None:
    assert f"/{SERVICE}/{METHOD}" == "/pavane.compute.v1.ProtoCompute/CommandResponseStream"


def test_epochs_and_tokens_compare_left_to_right() -> None:
    assert Epoch(1, 9) < Epoch(2, 0) < Epoch(2, 1)
    assert Token(1, 9) < Token(2, 0) < Token(2, 1)
