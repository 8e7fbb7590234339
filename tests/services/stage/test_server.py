"""The stage port over real gRPC: the operator's stream, and everything that is none."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from pavane.compute import session as session_module
from pavane.compute.proto import compute_pb2 as proto
from pavane.compute.transport import CALL, CLIENT_OPTIONS, COMMAND_BYTES_MAX, CONNECTION_STREAMS_MAX, SERVER_OPTIONS
from pavane.compute.wire.codec import decode_response, encode_command
from pavane.compute.wire.commands import (
    AllowWrites,
    CancelPeek,
    CreateDataflow,
    CreateInstance,
    CreateTimely,
    DataflowDescription,
    InitializationComplete,
    UpdateConfiguration,
)
from pavane.compute.wire.common import NONCE_BYTES, Epoch, Token
from pavane.compute.wire.responses import Blocker, Frontiers, StageReport
from pavane.stage import server as server_module
from pavane.stage.client import ANSWER_BYTES_MAX, StageStream
from pavane.stage.errors import StageStreamError, StageSuperseded, StageUnreachable, StaleEpoch
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.wire import LocalProtocolError, Stage
from tests.services.eventually import eventually
from tests.services.stage.noting_role import NotingRole

HOST = "127.64.96.1"
GENERATION = 3
TOKEN = Token(GENERATION, 1)
PACKED = {"UNIMPLEMENTED", "INTERNAL"}  # which of them gRPC says depends on what is first: its words, or the end


DATA, HEADERS, RST_STREAM, SETTINGS = 0, 1, 3, 4  # kinds and flags of HTTP/2's frames
END_STREAM, END_HEADERS = 1, 4
MAX_CONCURRENT_STREAMS = 3


def frame(kind: int, stream: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


@dataclass
class Pod:
    role: NotingRole
    server: StageServer
    exits: list[tuple[int, str]] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{HOST}:{self.server.port}"

    def stream(self, major: int = 1, minor: int = 1, on_change: Callable[[], None] | None = None) -> StageStream:
        epoch = Epoch(major, minor)
        return StageStream(self.address, epoch=epoch, kind="raft", generation=GENERATION, on_change=on_change)


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    role = NotingRole(generation=GENERATION)
    exits: list[tuple[int, str]] = []
    server = StageServer(role, lambda code, reason: exits.append((code, reason)), host=HOST, port=0)
    await server.start()
    yield Pod(role, server, exits)
    await server.stop()


@contextlib.asynccontextmanager
async def raw_call(pod: Pod) -> AsyncIterator[Any]:
    """A call that sends whatever bytes a test likes."""
    async with grpc.aio.insecure_channel(pod.address, options=CLIENT_OPTIONS) as channel:
        call: Any = channel.stream_stream(CALL)()
        yield call
        call.cancel()


async def end_of(call: Any) -> tuple[str, str]:
    """The status by which the pod ended a call."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return (await call.code()).name, await call.details()


def timely(minor: int = 1) -> bytes:
    return encode_command(CreateTimely(Epoch(1, minor), bytes(NONCE_BYTES)))


async def test_a_pod_is_led_through_its_four_stages(pod: Pod) -> None:
    async with pod.stream() as stream:
        assert stream.report is not None
        assert (stream.report.stage, stream.report.generation) == (Stage.INITIALIZATION, GENERATION)
        report = await stream.lead_up({"bootstrap": "entry", "initial": "[]", "snapshot.entries": "7", "what": "ever"})
        assert (report.stage, report.fence_seen) == (Stage.READ_ONLY, None)
        await stream.allow_writes(TOKEN)
        report = await stream.wait_for(lambda report: report.stage is Stage.READ_WRITE)
        assert report.fence_seen == TOKEN
    told = {"bootstrap": "entry", "initial": "[]"}
    assert pod.role.calls == [("configure", {"snapshot.entries": "7"}), "read_only", ("read_write", TOKEN, told)]
    assert pod.server.ignored_settings == 1
    assert pod.exits == []


async def test_reports_follow_the_role(pod: Pod) -> None:
    async with pod.stream() as stream:
        await stream.lead_up()
        await stream.allow_writes(TOKEN)
        blocker = Blocker("NoQuorum", "no leader is known", {"asked": "3"})
        pod.role.latest = RoleReport(progress=5, target=9, blockers=(blocker,))
        pod.server.notify()
        report = await stream.wait_for(lambda report: bool(report.blockers))
        assert (report.progress, report.target, report.unit, report.blockers) == (5, 9, "entries", (blocker,))
        pod.role.latest = RoleReport(progress=9, target=9, leads=True, first_write_ms=17, last_write_ms=18)
        pod.server.notify()
        report = await stream.wait_for(lambda report: report.leads)
        assert (report.progress, report.blockers, report.first_write_ms, report.last_write_ms) == (9, (), 17, 18)


async def test_progress_alone_travels_as_frontiers_and_never_falls(pod: Pod) -> None:
    async with raw_call(pod) as call:
        await call.write(timely())
        await call.write(encode_command(CreateInstance("raft", GENERATION)))
        assert isinstance(decode_response(await call.read()), StageReport)
        assert decode_response(await call.read()) == Frontiers("stage", output=0, input=0)
        pod.role.latest = RoleReport(progress=5, target=9)
        pod.server.notify()
        assert decode_response(await call.read()) == Frontiers("stage", output=5, input=9)
        pod.role.latest = RoleReport(progress=2, target=10)
        pod.server.notify()
        assert decode_response(await call.read()) == Frontiers("stage", output=5, input=10)


async def test_a_quiet_pod_reports_again_and_again(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "REPORT_SECONDS", 0.05)
    async with raw_call(pod) as call:
        await call.write(timely())
        await call.write(encode_command(CreateInstance("raft", GENERATION)))
        responses = [decode_response(await call.read()) for _ in range(4)]
    assert [type(response) for response in responses] == [StageReport, Frontiers, StageReport, StageReport]


async def test_leading_means_being_read_write(pod: Pod) -> None:
    pod.role.latest = RoleReport(leads=True)
    async with pod.stream() as stream:
        assert not (await stream.lead_up()).leads
        await stream.allow_writes(TOKEN)
        assert (await stream.wait_for(lambda report: report.stage is Stage.READ_WRITE)).leads


async def test_nothing_is_sent_before_create_instance(pod: Pod) -> None:
    async with raw_call(pod) as call:
        await call.write(timely())
        await eventually(lambda: pod.server.streams)
        pod.server.notify()
        early = asyncio.create_task(call.read())
        await call.write(encode_command(UpdateConfiguration({})))
        with pytest.raises(grpc.aio.AioRpcError):
            await early


async def test_create_timely_is_answered_by_metadata_alone(pod: Pod) -> None:
    async with raw_call(pod) as call:
        await call.write(timely())
        assert dict(await call.initial_metadata())["pavane-accepted"] == "1"
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF


async def test_a_role_that_may_not_write_stays_read_only(pod: Pod) -> None:
    pod.role.may_write = False
    async with pod.stream() as stream:
        await stream.lead_up()
        await stream.allow_writes(TOKEN)
        await eventually(lambda: pod.role.calls[-1] == ("read_write", TOKEN, {}))
        pod.role.may_write = True
        await stream.allow_writes(Token(GENERATION, 2))
        report = await stream.wait_for(lambda report: report.stage is Stage.READ_WRITE)
        assert report.fence_seen == Token(GENERATION, 2)


async def test_the_expected_state_is_told_once_per_stream_and_settings_that_changed_again(pod: Pod) -> None:
    async with pod.stream() as stream:
        await stream.lead_up({"snapshot.entries": "1"})
        for _ in range(2):
            assert (await stream.lead_up({"snapshot.entries": "2"})).stage is Stage.READ_ONLY
        await stream.update_configuration({"snapshot.entries": "3"})
        await eventually(lambda: ("configure", {"snapshot.entries": "3"}) in pod.role.calls)
        told = [call for call in pod.role.calls if call != "read_only"]
        assert told == [("configure", {"snapshot.entries": each}) for each in "123"]


async def test_a_greater_epoch_takes_over_and_the_pod_keeps_its_stage(pod: Pod) -> None:
    async with pod.stream(1, 1) as first:
        await first.lead_up()
        async with pod.stream(1, 2) as second:
            assert second.report is not None
            assert second.report.stage is Stage.READ_ONLY
            with pytest.raises(StageSuperseded):
                await first.wait_for(lambda _: False)
            with pytest.raises(StageSuperseded):
                await first.allow_writes(TOKEN)
            await second.lead_up()
    assert pod.role.calls == ["read_only"]


async def test_a_stale_epoch_is_refused_and_the_running_stream_goes_on(pod: Pod) -> None:
    async with pod.stream(4, 7) as running:
        for major, minor in ((4, 7), (4, 6), (3, 99)):
            with pytest.raises(StaleEpoch) as refused:
                await pod.stream(major, minor).open()
            assert refused.value.accepted == Epoch(4, 7)
        assert (await running.lead_up()).stage is Stage.READ_ONLY


async def test_two_streams_at_once_lead_to_one_that_lives(pod: Pod) -> None:
    streams = [pod.stream(1, minor) for minor in range(1, 9)]
    results = await asyncio.gather(*(stream.open() for stream in streams), return_exceptions=True)
    # Mostly superseded or stale; gRPC loses the reason of a call that ends while a message is on its way.
    assert [result for result in results if not isinstance(result, StageReport | StageStreamError)] == []
    assert (await streams[-1].lead_up()).stage is Stage.READ_ONLY
    await eventually(lambda: pod.server.streams == 1)
    await eventually(lambda: [stream.closed is None for stream in streams] == [False] * 7 + [True])
    for stream in streams:
        await stream.close()


async def test_half_a_stream_leaves_the_pod_where_it_was(pod: Pod) -> None:
    async with raw_call(pod) as call:
        await call.write(timely(1))
        await call.write(encode_command(CreateInstance("raft", GENERATION)))
        await eventually(lambda: pod.server.stage is Stage.INITIALIZATION)
    await eventually(lambda: pod.server.streams == 0)
    async with raw_call(pod) as call:
        await call.write(timely(2))
        await call.done_writing()
        assert (await end_of(call))[0] == "OK"
    async with pod.stream(1, 3) as stream:
        assert (await stream.lead_up()).stage is Stage.READ_ONLY
    assert pod.exits == []


async def test_a_stream_without_a_message_ends(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "FIRST_MESSAGE_SECONDS_MAX", 0.05)
    async with raw_call(pod) as call:
        assert (await end_of(call))[0] == "DEADLINE_EXCEEDED"


async def test_a_stream_that_goes_no_further_than_create_timely_ends(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "FIRST_MESSAGE_SECONDS_MAX", 0.2)
    async with raw_call(pod) as call:
        with contextlib.suppress(grpc.aio.AioRpcError):  # on a busy machine it may be too late already
            await call.write(timely())
        assert (await end_of(call))[0] == "DEADLINE_EXCEEDED"
    monkeypatch.undo()
    async with pod.stream(1, 2) as stream:
        assert (await stream.lead_up()).stage is Stage.READ_ONLY


async def test_a_connection_that_speaks_no_http_ends(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    short = tuple(
        (name, 200 if name == "grpc.server_handshake_timeout_ms" else value) for name, value in SERVER_OPTIONS
    )
    monkeypatch.setattr("pavane.compute.session.SERVER_OPTIONS", short)
    server = StageServer(NotingRole(generation=GENERATION), lambda *_: None, host=HOST, port=0)
    await server.start()
    try:
        for said in (b"", b"PRI * HTTP/2.0"):
            reader, writer = await asyncio.open_connection(HOST, server.port)
            writer.write(said)
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionError):
                    while await reader.read(1000):
                        pass
            writer.close()
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([b"\xff\xff\xff"], "INVALID_ARGUMENT"),
        ([b""], "INVALID_ARGUMENT"),
        ([proto.Command(create_timely=proto.CreateTimely(nonce=b"short")).SerializeToString()], "INVALID_ARGUMENT"),
        ([timely(), proto.Command(allow_writes=proto.AllowWrites()).SerializeToString()], "INVALID_ARGUMENT"),
        ([encode_command(CreateInstance("raft", GENERATION))], "FAILED_PRECONDITION"),
        ([encode_command(InitializationComplete())], "FAILED_PRECONDITION"),
        ([timely(), timely()], "FAILED_PRECONDITION"),
        ([timely(), encode_command(AllowWrites(TOKEN))], "FAILED_PRECONDITION"),
        ([timely(), encode_command(CancelPeek(bytes(16)))], "FAILED_PRECONDITION"),
        (
            [
                timely(),
                encode_command(CreateInstance("raft", GENERATION)),
                encode_command(CreateDataflow(DataflowDescription(as_of=1))),
            ],
            "UNIMPLEMENTED",
        ),
        (
            [encode_command(CreateTimely(Epoch(1, 1), bytes(NONCE_BYTES), protocol_major=2))],
            "UNIMPLEMENTED",
        ),
    ],
)
async def test_a_wrong_message_ends_its_stream_and_nothing_else(pod: Pod, messages: list[bytes], code: str) -> None:
    async with raw_call(pod) as call:
        for message in messages:
            await call.write(message)
        ended, text = await end_of(call)
        assert ended == code
        assert text
    async with pod.stream(1, 2) as stream:
        assert (await stream.lead_up()).stage is Stage.READ_ONLY
    assert pod.exits == []


async def test_a_message_above_the_limit_ends_its_stream_and_nothing_else(pod: Pod) -> None:
    options = (("grpc.enable_http_proxy", 0),)
    async with grpc.aio.insecure_channel(pod.address, options=options) as channel:
        call: Any = channel.stream_stream(CALL)()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.write(bytes(COMMAND_BYTES_MAX + 1))
        assert (await end_of(call))[0] == "RESOURCE_EXHAUSTED"
    async with pod.stream() as stream:
        assert (await stream.lead_up()).stage is Stage.READ_ONLY


async def test_a_pod_taken_for_another_ends_its_process(pod: Pod) -> None:
    async with raw_call(pod) as call:
        await call.write(timely())
        await call.write(encode_command(CreateInstance("raft", GENERATION + 1)))
        await eventually(lambda: pod.exits)
    assert pod.exits == [(3, "CreateInstance names raft of generation 4, this pod is raft of 3")]


async def test_a_hook_that_fails_ends_the_process(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail() -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(pod.role, "read_only", fail)
    async with raw_call(pod) as call:
        await call.write(timely())
        await call.write(encode_command(CreateInstance("raft", GENERATION)))
        await call.write(encode_command(InitializationComplete()))
        await eventually(lambda: pod.exits)
    assert pod.exits == [(1, "InitializationComplete failed: no space left on device")]
    assert pod.server.stage is Stage.INITIALIZATION


async def test_what_a_stream_began_is_finished_when_it_breaks(pod: Pod) -> None:
    pod.role.gate = asyncio.Event()
    async with raw_call(pod) as call:
        await call.write(timely())
        await call.write(encode_command(CreateInstance("raft", GENERATION)))
        await call.write(encode_command(InitializationComplete()))
        await eventually(lambda: pod.role.at_gate)
    await eventually(lambda: pod.server.streams == 0)
    pod.role.gate.set()
    await eventually(lambda: pod.server.stage is Stage.READ_ONLY)


async def test_a_pod_stops_although_its_role_waits_for_what_never_comes(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "TURN_SECONDS_MAX", 0.0)
    pod.role.gate = asyncio.Event()
    async with raw_call(pod) as call:
        await call.write(timely())
        await call.write(encode_command(CreateInstance("raft", GENERATION)))
        await call.write(encode_command(InitializationComplete()))
        await eventually(lambda: pod.role.at_gate)
        try:
            async with asyncio.timeout(20):
                await pod.server.stop()
        finally:
            pod.role.gate.set()
    assert pod.server.stage is Stage.INITIALIZATION
    assert pod.exits == []


async def test_a_pod_walks_by_itself_and_answers_with_its_stage(pod: Pod) -> None:
    await pod.server.walk(to_read_write=False)
    assert pod.server.stage is Stage.READ_ONLY
    async with pod.stream() as stream:
        await pod.server.walk()
        report = await stream.wait_for(lambda report: report.stage is Stage.READ_WRITE)
        assert report.fence_seen == Token(GENERATION, 0)
        await stream.lead_up()
    assert pod.role.calls == ["read_only", ("read_write", Token(GENERATION, 0), {})]


async def test_a_stream_notices_that_the_pod_has_gone(pod: Pod) -> None:
    changes: list[None] = []
    async with pod.stream(on_change=lambda: changes.append(None)) as stream:
        await pod.server.stop()
        with pytest.raises(StageUnreachable):
            await stream.wait_for(lambda _: False)
        assert isinstance(stream.closed, StageUnreachable)
        assert len(changes) >= 2
        with pytest.raises(StageUnreachable):
            await stream.lead_up()


async def test_nobody_there_is_unreachable(pod: Pod) -> None:
    await pod.server.stop()
    with pytest.raises(StageUnreachable):
        await pod.stream().open()


async def test_a_pod_that_comes_back_is_reached_at_once(pod: Pod) -> None:
    port = pod.server.port
    await pod.server.stop()
    for minor in range(1, 5):
        with pytest.raises(StageUnreachable):
            await pod.stream(1, minor).open()
    again = StageServer(NotingRole(), lambda *_: None, host=HOST, port=port)
    await again.start()
    async with pod.stream(1, 9) as stream:
        assert stream.report is not None
    await again.stop()


async def test_a_taken_port_is_an_error(pod: Pod) -> None:
    second = StageServer(NotingRole(), lambda *_: None, host=HOST, port=pod.server.port)
    with pytest.raises(OSError, match="another pod"):
        await second.start()


@pytest.mark.parametrize(
    ("message", "packing", "codes"),
    [
        (b"\xff\xff", grpc.Compression.NoCompression, {"INVALID_ARGUMENT"}),
        (bytes(ANSWER_BYTES_MAX + 1), grpc.Compression.NoCompression, {"RESOURCE_EXHAUSTED"}),
        (bytes(ANSWER_BYTES_MAX), grpc.Compression.Gzip, PACKED),
    ],
    ids=["broken", "too large", "packed"],
)
async def test_an_answer_that_is_refused_closes_the_stream(
    message: bytes, packing: grpc.Compression, codes: set[str]
) -> None:
    async def answer(_: Any, context: Any) -> None:
        await context.read()
        await context.write(message)
        await context.read()

    server = grpc.aio.server(compression=packing)
    handler: Any = grpc.stream_stream_rpc_method_handler(answer)
    service, method = CALL.strip("/").split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    with pytest.raises(StageStreamError) as broken:
        await StageStream(f"{HOST}:{port}", epoch=Epoch(1, 1), kind="raft", generation=1).open()
    assert broken.value.code in codes
    await server.stop(0)


async def test_a_message_that_would_be_too_large_ends_its_stream_before_it_is_there(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "FIRST_MESSAGE_SECONDS_MAX", 600.0)  # no other reason for an end
    call = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": CALL.encode(),
        b":authority": b"pod",
        b"te": b"trailers",
    }
    call[b"content-type"] = b"application/grpc"
    head = b"".join(b"\0%c%s%c%s" % (len(name), name, len(value), value) for name, value in call.items())
    reader, writer = await asyncio.open_connection(HOST, pod.server.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, b"") + frame(HEADERS, 1, head, END_HEADERS))
    writer.write(frame(DATA, 1, struct.pack(">?I", False, COMMAND_BYTES_MAX + 1)))  # of which nothing follows
    async with asyncio.timeout(60):
        kind, flags, stream = SETTINGS, 0, 0
        while (kind, stream) != (RST_STREAM, 1) and not (stream == 1 and flags & END_STREAM):
            length, kind, flags, stream = struct.unpack(">IBBI", b"\0" + await reader.readexactly(9))
            await reader.readexactly(length)
    writer.close()


async def test_a_connection_has_few_streams_at_once(pod: Pod) -> None:
    reader, writer = await asyncio.open_connection(HOST, pod.server.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, b""))
    async with asyncio.timeout(60):
        length, kind, _, _ = struct.unpack(">IBBI", b"\0" + await reader.readexactly(9))
        told = dict(struct.iter_unpack(">HI", await reader.readexactly(length)))
    assert (kind, told[MAX_CONCURRENT_STREAMS]) == (SETTINGS, CONNECTION_STREAMS_MAX)
    writer.close()


async def test_a_packed_message_ends_its_stream_and_nothing_else(pod: Pod) -> None:
    options = (("grpc.enable_http_proxy", 0),)
    packing = grpc.Compression.Gzip
    async with grpc.aio.insecure_channel(pod.address, options=options, compression=packing) as channel:
        call: Any = channel.stream_stream(CALL)()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await call.write(bytes(COMMAND_BYTES_MAX))
        assert (await end_of(call))[0] in PACKED
    async with pod.stream() as stream:
        assert (await stream.lead_up()).stage is Stage.READ_ONLY


async def test_a_stream_that_was_not_opened_says_so(pod: Pod) -> None:
    with pytest.raises(LocalProtocolError):
        await pod.stream().allow_writes(TOKEN)


async def test_more_streams_than_allowed_are_refused(pod: Pod) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(session_module.STREAMS_MAX):
            await stack.enter_async_context(raw_call(pod))
        await eventually(lambda: pod.server.streams == session_module.STREAMS_MAX)
        async with raw_call(pod) as call:
            assert (await end_of(call))[0] == "RESOURCE_EXHAUSTED"
