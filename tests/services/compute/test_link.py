"""A controller and replicas over real gRPC: everything is told again after a loss, nothing twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import pytest

from pavane.compute import link as link_module
from pavane.compute.client import ReplicaStream, StreamEnded
from pavane.compute.core.controller import Answered, ControllerCore, Effect, Quarantined
from pavane.compute.core.ports import Build, Drop, Read, Request
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.link import ReplicaLinks
from pavane.compute.server import ReplicaServer
from pavane.compute.transport import CLIENT_OPTIONS, HANDSHAKE_MS
from pavane.compute.wire.commands import CreateInstance
from pavane.compute.wire.common import Epoch, Rows
from pavane.compute.wire.responses import Frontiers
from pavane.runtime.certificates import Certificates
from tests.services.compute.replicas import GENERATION, UUID, index
from tests.services.eventually import eventually
from tests.services.ports import free_ports
from tests.services.stage.certificates import authority, certificate, publish

HOST = "127.0.0.1"
INSTANCE = CreateInstance("compute", GENERATION)


class Counting:
    """An engine whose dataflows have computed everything below ``upper`` as soon as they are built."""

    def __init__(self, upper: int, bad: str) -> None:
        self.upper = upper
        self.bad = bad
        self.server: ReplicaServer | None = None
        self.requests: list[Request] = []

    def carry_out(self, request: Request) -> None:
        assert self.server is not None
        self.requests.append(request)
        core, upper = self.server.core, self.upper
        match request:
            case Build(flow, description) if self.bad in description.exports:
                self.server.carry_out(core.broken(flow, f"{self.bad} cannot be built"))
            case Build(flow, description):
                for id_ in description.exports:
                    self.server.carry_out(core.progress(flow, id_, write=upper, input_=upper, computed=upper))
            case Read():
                self.server.carry_out(core.answer(request.peek.uuid, [Rows(str(request.peek.timestamp).encode())]))
            case _:
                pass


@dataclass
class World:
    core: ControllerCore
    links: ReplicaLinks
    port: int
    effects: list[Effect]
    superseded: list[str] = field(default_factory=list)
    exits: list[int] = field(default_factory=list)

    async def replica(self, upper: int = 20, bad: str = "") -> ReplicaServer:
        engine = Counting(upper, bad)
        core = ReplicaCore(GENERATION)
        server = ReplicaServer(core, engine, lambda code, _: self.exits.append(code), host=HOST, port=self.port)
        engine.server = server
        await server.start()
        return server

    async def exited(self, times: int) -> None:
        await eventually(lambda: len(self.exits) == times)

    async def written(self, frontier: int) -> None:
        await eventually(lambda: self.core.collections["u1"].write == frontier)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(link_module, "DIAL_SECONDS_MAX", 0.05)
    core = ControllerCore(GENERATION, 7)
    effects: list[Effect] = []
    superseded: list[str] = []
    links = ReplicaLinks(core, INSTANCE, effects.append, superseded.append)
    (port,) = free_ports(1)
    world = World(core, links, port, effects, superseded)
    task = asyncio.create_task(links.run("r0", f"{HOST}:{port}"))
    yield world
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_dataflow_and_a_peek_outlive_their_replica(world: World) -> None:
    links, core = world.links, world.core
    links.carry_out(core.create(index("u1").dataflow))
    first = await world.replica()
    await world.written(20)
    links.carry_out(core.peek(UUID, "u1", at=25))
    await eventually(lambda: len(first.core._history.peeks) == 1)
    await first.stop()
    await eventually(lambda: not core.connected)
    assert core.now("u1") == 19
    second = await world.replica(upper=30)
    await eventually(lambda: world.effects)
    assert world.effects == [Answered(UUID, 25, (Rows(b"25"),))]
    links.carry_out(core.drop(["u1"]))
    await eventually(lambda: not core.collections)
    await second.stop()
    assert world.exits == []


async def test_certificates_are_read_again_at_each_dial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "DIAL_SECONDS_MAX", 0.05)
    first, second = authority(), authority()
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        publish(tmp_path / name, certificate(first), first)
    core = ControllerCore(GENERATION, 7)
    ours, theirs = (Certificates(tmp_path / name) for name in ("ours", "theirs"))
    links = ReplicaLinks(core, INSTANCE, ignored, ignored, certificates=ours)
    (port,) = free_ports(1)
    engine = Counting(20, "")
    server = engine.server = ReplicaServer(
        ReplicaCore(GENERATION), engine, ignored, host=HOST, port=port, certificates=theirs
    )
    await server.start()
    task = asyncio.create_task(links.run("r0", f"localhost:{port}"))
    try:
        await eventually(lambda: core.connected)
        with pytest.raises(StreamEnded):  # in clear nobody gets in
            await ReplicaStream(f"{HOST}:{port}", Epoch(99, 1), INSTANCE).open()
        publish(tmp_path / "theirs", certificate(second), second)
        server._sessions[max(server._sessions)].end("UNAVAILABLE", "as the test asked")
        await eventually(lambda: not core.connected)
        publish(tmp_path / "ours", certificate(second), second)
        await eventually(lambda: core.connected)
        (stream,) = server._sessions
        publish(tmp_path / "ours", certificate(second), authority())  # the replica's counts no more
        ours.refresh()
        await eventually(lambda: stream not in server._sessions and not core.connected)
    finally:
        task.cancel()
        await asyncio.wait({task})
        await server.stop()


def ignored(*_: object) -> None:
    """Nobody listens."""


async def test_a_replica_that_lives_on_drops_and_builds_again(world: World) -> None:
    replica = await world.replica()
    world.links.carry_out(world.core.create(index("u1").dataflow))
    await world.written(20)
    # A response that cannot be: the controller hangs up and dials again, the process goes on.
    session = max(replica._sessions)
    replica.core.outbox(session).put(Frontiers("u1", write=1))
    replica._sessions[session].changed.set()
    engine = replica._engine
    assert isinstance(engine, Counting)
    await eventually(lambda: [type(each) for each in engine.requests].count(Build) == 2)
    assert [type(each) for each in engine.requests].count(Drop) == 1
    await eventually(lambda: bool(world.core.connected) and world.core.collections["u1"].output == 20)
    world.links.carry_out(world.core.drop(["u1"]))
    await eventually(lambda: not world.core.collections)
    assert world.exits == []
    await replica.stop()


async def test_a_dataflow_with_which_no_replica_can_go_on_is_left_out(world: World) -> None:
    core, links = world.core, world.links
    links.carry_out(core.create(index("u1").dataflow))
    links.carry_out(core.create(index("u2").dataflow))
    for exits in range(1, 4):
        replica = await world.replica(bad="u2")
        await world.exited(exits)
        await replica.stop()
    await eventually(lambda: bool(world.effects))
    (left_out,) = world.effects
    assert isinstance(left_out, Quarantined)
    assert left_out.exports == ("u2",)
    assert "cannot be built" in left_out.reason
    replica = await world.replica(bad="u2")
    await world.written(20)
    await replica.stop()
    assert world.exits == [4, 4, 4]


async def test_who_is_superseded_is_told(world: World) -> None:
    replica = await world.replica()
    await eventually(lambda: bool(world.core.connected))
    async with ReplicaStream(f"{HOST}:{world.port}", Epoch(8, 1), INSTANCE):
        await eventually(lambda: bool(world.superseded))
    await replica.stop()


async def test_a_dropped_dataflow_is_not_told_to_a_replica_that_comes_later(world: World) -> None:
    world.links.carry_out(world.core.create(index("u1").dataflow))
    world.links.carry_out(world.core.drop(["u1"]))
    assert world.core.collections == {}
    world.links.carry_out(world.core.create(index("u1", as_of=9).dataflow))
    replica = await world.replica()
    await world.written(20)
    engine = replica._engine
    assert isinstance(engine, Counting)
    assert [each.description.as_of for each in engine.requests if isinstance(each, Build)] == [9]
    world.links.carry_out(world.core.drop(["u1"]))
    await eventually(lambda: not world.core.collections)
    await replica.stop()


async def test_a_connection_on_which_nobody_speaks_is_given_up_before_its_handshake() -> None:
    name, quick_ms = "grpc.min_reconnect_backoff_ms", 200
    options = dict(CLIENT_OPTIONS)
    assert options[name] == HANDSHAKE_MS
    taken: list[asyncio.StreamWriter] = []
    twice = asyncio.Event()

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        if len(taken) == 2:
            twice.set()

    async with await asyncio.start_server(take, HOST, 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        quick = [*{**options, name: quick_ms}.items()]
        async with grpc.aio.insecure_channel(f"{HOST}:{port}", options=quick) as channel:
            channel.get_state(try_to_connect=True)
            await twice.wait()
        for writer in taken:
            writer.transport.abort()
