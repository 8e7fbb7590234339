"""Messages of the stage stream: both directions, and bytes that are none."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pavane.compute.proto import compute_pb2 as proto
from pavane.compute.wire import (
    METHOD,
    NONCE_BYTES,
    SERVICE,
    AllowWrites,
    Blocker,
    Command,
    Computation,
    CreateInstance,
    CreateTimely,
    Epoch,
    Frontiers,
    InitializationComplete,
    Lifecycle,
    Response,
    Result,
    RuntimeConfig,
    StageReport,
    Token,
    UpdateConfiguration,
    decode_command,
    decode_response,
    encode_command,
    encode_response,
)
from pavane.wire import RemoteProtocolError, Stage

NONCE = bytes(range(NONCE_BYTES))
U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
TEXT = st.text(max_size=20)
SETTINGS = st.dictionaries(TEXT, TEXT, max_size=4)
TOKENS = st.builds(Token, U64, U64)
FRONTIERS = st.none() | st.lists(U64, max_size=3).map(tuple)
COMMANDS = st.one_of(
    st.builds(
        CreateTimely,
        epoch=st.builds(Epoch, U64, U64),
        nonce=st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES),
        config=st.builds(RuntimeConfig, U32, U32, st.lists(TEXT, max_size=3).map(tuple), SETTINGS),
        protocol_major=U32,
        protocol_minor=U32,
    ),
    st.builds(CreateInstance, st.text(min_size=1, max_size=20), st.integers(1, (1 << 64) - 1), SETTINGS),
    st.just(InitializationComplete()),
    st.builds(UpdateConfiguration, SETTINGS),
    st.builds(AllowWrites, TOKENS, st.none() | TEXT),
)
RESPONSES = st.one_of(
    st.builds(Frontiers, st.text(min_size=1, max_size=9), FRONTIERS, FRONTIERS, FRONTIERS),
    st.builds(
        StageReport,
        stage=st.sampled_from(Stage),
        generation=U64,
        fence_seen=st.none() | TOKENS,
        progress=U64,
        target=U64,
        unit=TEXT,
        blockers=st.lists(st.builds(Blocker, TEXT, TEXT, SETTINGS, st.booleans()), max_size=3).map(tuple),
        leads=st.booleans(),
        done=st.booleans(),
        last_write_ms=U64,
        first_write_ms=U64,
        write_gap_ms=U64,
    ),
)


@given(COMMANDS, TEXT)
def test_a_command_is_what_was_sent(command: Lifecycle, traceparent: str) -> None:
    assert decode_command(encode_command(command, traceparent)) == (command, traceparent)


@given(RESPONSES)
def test_a_response_is_what_was_sent(response: Frontiers | StageReport) -> None:
    assert decode_response(encode_response(response)) == response


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_the_peers_fault(data: bytes) -> None:
    reasons = set()
    for decode in (decode_command, decode_response):
        try:
            decode(data)
        except RemoteProtocolError as error:
            reasons.add(error.reason)
    assert reasons <= {"kind", "missing", "nonce", "stage", "undecodable"}


@given(COMMANDS, st.data())
def test_a_damaged_command_is_a_message_or_the_peers_fault(command: Lifecycle, draw: st.DataObject) -> None:
    data = bytearray(encode_command(command))
    if data:
        data[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    with contextlib.suppress(RemoteProtocolError):
        decode_command(bytes(data))


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
        (proto.Response(status=proto.Status(stage=proto.StageReport(generation=1))), "stage"),
    ],
)
def test_what_a_response_must_have(message: proto.Response, reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as raised:
        decode_response(message.SerializeToString())
    assert raised.value.reason == reason


@pytest.mark.parametrize("name", ["create_dataflow", "schedule", "allow_compaction", "peek", "cancel_peek"])
def test_computation_commands_are_recognised_by_name(name: str) -> None:
    message = proto.Command()
    getattr(message, name).SetInParent()
    expected: tuple[Command, str] = (Computation(name), "")
    assert decode_command(message.SerializeToString()) == expected


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (proto.Response(peek=proto.PeekResponse()), "peek"),
        (proto.Response(subscribe=proto.SubscribeResponse()), "subscribe"),
        (proto.Response(copy_to=proto.CopyToResponse()), "copy_to"),
        (proto.Response(status=proto.Status(engine=proto.EngineReport())), "status.engine"),
    ],
)
def test_results_are_recognised_by_name(message: proto.Response, name: str) -> None:
    expected: Response = Result(name)
    assert decode_response(message.SerializeToString()) == expected


def test_unknown_fields_are_ignored() -> None:
    unknown_field_100 = b"\xa2\x06\x03abc"
    assert decode_command(encode_command(InitializationComplete()) + unknown_field_100)[0] == InitializationComplete()


def test_a_closed_frontier_is_not_an_absent_one() -> None:
    response = decode_response(encode_response(Frontiers("stage", output=())))
    assert isinstance(response, Frontiers)
    assert (response.output, response.input) == ((), None)


def test_the_call_has_the_name_of_the_specification() -> None:
    assert f"/{SERVICE}/{METHOD}" == "/pavane.compute.v1.ProtoCompute/CommandResponseStream"


def test_epochs_and_tokens_compare_left_to_right() -> None:
    assert Epoch(1, 9) < Epoch(2, 0) < Epoch(2, 1)
    assert Token(1, 9) < Token(2, 0) < Token(2, 1)
