"""A replica's port over real gRPC, with a scripted controller and a scripted engine (docs/specs/compute.md 2)."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from pavane.compute import session as session_module
from pavane.compute.client import ReplicaStream, StreamEnded
from pavane.compute.core import outbox as outbox_module
from pavane.compute.core.ports import AllowSink, Build, Drop, Read, Request, Start
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.server import ReplicaServer
from pavane.compute.transport import CALL, CLIENT_OPTIONS
from pavane.compute.wire.codec import encode_command
from pavane.compute.wire.commands import (
    AllowCompaction,
    AllowWrites,
    CreateInstance,
    CreateTimely,
    InitializationComplete,
    Peek,
    RuntimeConfig,
    Schedule,
)
from pavane.compute.wire.common import CLOSED, Epoch, Rows
from pavane.compute.wire.responses import PeekResponse, Response, RowsPart, StageReport
from pavane.wire import LocalProtocolError
from tests.services.compute.replicas import GENERATION, ROWS, TOKEN, UUID, VIEW, frontiers, index
from tests.services.eventually import eventually

HOST = "127.64.96.3"
INSTANCE = CreateInstance("compute", GENERATION)


@dataclass
class Engine:
    """Notes what is asked for, and answers every read at once with the rows it was given."""

    requests: list[Request] = field(default_factory=list)
    rows: tuple[Rows, ...] = (ROWS,)
    server: ReplicaServer | None = None
    fails: bool = False

    def carry_out(self, request: Request) -> None:
        if self.fails:
            raise OSError("no memory")
        self.requests.append(request)
        if isinstance(request, Read) and self.server is not None:
            self.server.carry_out(self.server.core.answer(request.peek.uuid, self.rows))

    def asked(self, kind: type[Request]) -> list[Request]:
        return [request for request in self.requests if isinstance(request, kind)]


@dataclass
class Pod:
    engine: Engine
    server: ReplicaServer
    exits: list[tuple[int, str]]

    @property
    def address(self) -> str:
        return f"{HOST}:{self.server.port}"

    def stream(self, minor: int = 1, config: RuntimeConfig | None = None) -> ReplicaStream:
        return ReplicaStream(self.address, Epoch(1, minor), INSTANCE, config=config)

    def progress(self, flow: int, id_: str, frontier: int) -> None:
        effects = self.server.core.progress(flow, id_, write=frontier, input_=frontier, computed=frontier)
        self.server.carry_out(effects)


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    engine = Engine()
    exits: list[tuple[int, str]] = []
    server = ReplicaServer(
        ReplicaCore(GENERATION), engine, lambda code, why: exits.append((code, why)), host=HOST, port=0
    )
    engine.server = server
    await server.start()
    yield Pod(engine, server, exits)
    await server.stop()


async def said(stream: ReplicaStream, count: int) -> list[Response]:
    """The next responses but reports."""
    responses: list[Response] = []
    while len(responses) < count:
        response = await stream.receive()
        if not isinstance(response, StageReport):
            responses.append(response)
    return responses


async def end_of(stream: ReplicaStream) -> StreamEnded:
    while True:
        try:
            await stream.receive()
        except StreamEnded as ended:
            return ended


@contextlib.asynccontextmanager
async def raw_call(pod: Pod) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(pod.address, options=CLIENT_OPTIONS) as channel:
        call: Any = channel.stream_stream(CALL)()
        yield call
        call.cancel()


async def test_a_dataflow_is_built_reports_and_is_dropped(pod: Pod) -> None:
    async with pod.stream() as stream:
        for command in (index("u1"), Schedule("u1"), InitializationComplete()):
            await stream.send(command)
        assert await said(stream, 1) == [frontiers("u1", 5)]
        assert [type(each) for each in pod.engine.requests] == [Build, Start]
        pod.progress(1, "u1", 9)
        assert await said(stream, 1) == [frontiers("u1", 9)]
        await stream.send(AllowCompaction("u1", CLOSED))
        assert await said(stream, 1) == [frontiers("u1", CLOSED)]
        assert pod.engine.asked(Drop) == [Drop(1)]


async def test_an_empty_initialization_is_answered_with_the_stage(pod: Pod) -> None:
    async with pod.stream() as stream:
        await stream.send(InitializationComplete())
        report = await stream.receive()
        assert isinstance(report, StageReport)
        assert report.generation == GENERATION


async def test_a_peek_that_the_engine_answers_at_once(pod: Pod) -> None:
    async with pod.stream() as stream:
        for command in (index("u1"), InitializationComplete(), Peek(UUID, 8, index="u1")):
            await stream.send(command)
        await said(stream, 1)
        pod.progress(1, "u1", 9)
        assert await said(stream, 2) == [frontiers("u1", 9), PeekResponse(UUID, ROWS)]


async def test_a_large_answer_comes_in_parts(pod: Pod) -> None:
    part = Rows(bytes(5 << 20), 1, 5 << 20)
    pod.engine.rows = (part,) * 4
    async with pod.stream() as stream:
        for command in (index("u1"), InitializationComplete()):
            await stream.send(command)
        await said(stream, 1)
        pod.progress(1, "u1", 9)
        await said(stream, 1)
        await stream.send(Peek(UUID, 8, index="u1"))
        assert await said(stream, 4) == [PeekResponse(UUID, RowsPart(n, n == 3, part)) for n in range(4)]


async def test_a_greater_epoch_supersedes_and_a_stale_one_is_told_which(pod: Pod) -> None:
    async with pod.stream(minor=2) as first:
        await first.send(InitializationComplete())
        with pytest.raises(StreamEnded) as stale:
            await pod.stream(minor=2).open()
        assert stale.value.accepted == Epoch(1, 2)
        async with pod.stream(minor=3) as second:
            assert (await end_of(first)).superseded
            await second.send(InitializationComplete())
            assert isinstance(await second.receive(), StageReport)


async def test_after_a_reconnect_everything_is_built_anew(pod: Pod) -> None:
    async with pod.stream() as stream:
        for command in (VIEW, AllowWrites(TOKEN), InitializationComplete(), Peek(UUID, 8, chain="chain-2")):
            await stream.send(command)
        await said(stream, 1)
    await eventually(lambda: pod.server.streams == 0)
    async with pod.stream(minor=2) as stream:
        for command in (VIEW, InitializationComplete()):
            await stream.send(command)
        assert await said(stream, 1) == [frontiers("u2", 5)]
        assert pod.engine.requests[-3:] == [Drop(1), Build(2, VIEW.dataflow), AllowSink(2, "u2", TOKEN)]
        pod.progress(1, "u2", 20)
        pod.progress(2, "u2", 9)
        assert await said(stream, 1) == [frontiers("u2", 9)]


async def test_another_engine_ends_the_process(pod: Pod) -> None:
    async with pod.stream() as stream:
        await stream.send(InitializationComplete())
        await stream.receive()
    with pytest.raises(StreamEnded, match="exits with code 3"):
        await pod.stream(minor=2, config=RuntimeConfig(workers=2)).open()
    assert [code for code, _ in pod.exits] == [3]


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([b"\xff\xff"], "INVALID_ARGUMENT"),
        ([b""], "INVALID_ARGUMENT"),
        ([encode_command(InitializationComplete())], "FAILED_PRECONDITION"),
        ([encode_command(CreateTimely(Epoch(1, 1), bytes(16), protocol_major=2))], "UNIMPLEMENTED"),
        ([encode_command(CreateTimely(Epoch(1, 1), bytes(16)))] * 2, "FAILED_PRECONDITION"),
    ],
)
async def test_a_wrong_message_ends_its_stream_and_no_other(pod: Pod, messages: list[bytes], code: str) -> None:
    async with raw_call(pod) as call:
        for message in messages:
            await call.write(message)
        assert (await call.code()).name == code
    async with pod.stream(minor=99) as stream:
        await stream.send(InitializationComplete())
        assert isinstance(await stream.receive(), StageReport)


@pytest.mark.parametrize("message", [b"\xff\xff", b"", encode_command(Schedule("u1"))])
async def test_a_running_stream_does_not_notice_a_wrong_message_on_another(pod: Pod, message: bytes) -> None:
    async with pod.stream() as stream:
        for command in (index("u1"), InitializationComplete()):
            await stream.send(command)
        await said(stream, 1)
        async with raw_call(pod) as call:
            await call.write(message)
            assert await call.code() != grpc.StatusCode.OK
        pod.progress(1, "u1", 9)
        assert await said(stream, 1) == [frontiers("u1", 9)]
    assert pod.exits == []


async def test_a_stream_that_says_nothing_ends(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "FIRST_MESSAGE_SECONDS_MAX", 0.01)
    async with raw_call(pod) as call:
        assert await call.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_unread_responses_above_the_limit_end_the_stream(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "UNSENT_BYTES_MAX", 4000)
    async with pod.stream() as stream:
        for command in (index("u1"), InitializationComplete()):
            await stream.send(command)
        await said(stream, 1)
        for tick in range(6, 100):
            pod.progress(1, "u1", tick)
        assert (await end_of(stream)).code == "RESOURCE_EXHAUSTED"


async def test_an_engine_that_raises_ends_the_process(pod: Pod) -> None:
    pod.engine.fails = True
    async with pod.stream() as stream:
        for command in (index("u1"), InitializationComplete()):
            await stream.send(command)
        await eventually(lambda: pod.exits)
    assert pod.exits == [(1, "Build failed: no memory")]


async def test_two_replicas_do_not_share_a_port(pod: Pod) -> None:
    other = ReplicaServer(ReplicaCore(1), Engine(), lambda *_: None, host=HOST, port=pod.server.port)
    with pytest.raises(OSError, match="cannot listen"):
        await other.start()


async def test_a_replica_that_stops_says_so(pod: Pod) -> None:
    async with pod.stream() as stream:
        await stream.send(InitializationComplete())
        await stream.receive()
        await pod.server.stop()
        assert (await end_of(stream)).code == "UNAVAILABLE"
        with pytest.raises(StreamEnded):
            await stream.send(Schedule("u1"))


async def test_nobody_there() -> None:
    with pytest.raises(StreamEnded) as raised:
        await ReplicaStream(f"{HOST}:1", Epoch(1, 1), INSTANCE).open()
    assert raised.value.code == "UNAVAILABLE"


async def test_a_stream_that_was_not_opened() -> None:
    stream = ReplicaStream(f"{HOST}:1", Epoch(1, 1), INSTANCE)
    with pytest.raises(LocalProtocolError):
        await stream.send(Schedule("u1"))
    with pytest.raises(LocalProtocolError):
        await stream.receive()
    await stream.close()
