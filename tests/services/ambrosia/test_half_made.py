"""Who says nothing, or half of it, holds nobody up for ever (docs/specs/ambrosia.md 5, 11.5)."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pavane.ambrosia.client.connection import Address, connect
from pavane.ambrosia.client.engine import Engine
from pavane.ambrosia.client.serving import EngineRunner
from pavane.ambrosia.errors import Fatal, FatalError
from pavane.ambrosia.ports import BindingPort, SocketOrder, close_writer
from pavane.ambrosia.wire.links import Answer, Channel, Code, Hello
from pavane.ambrosia.wire.messages import Type, attach_to, checkpoint, frame
from pavane.pods.coordinator_instance import NOT_YET, Instance
from pavane.pods.coordinator_settings import RECEIVE_PORT, CoordinatorConfig
from tests.services.ambrosia import accounts
from tests.services.ambrosia.bank import Account
from tests.services.ambrosia.test_server import JS_INITIAL, WAIT_S, ended, hello, options, running
from tests.services.ambrosia.test_server import connect as dial
from tests.services.eventually import eventually
from tests.services.ports import free_ports

NET = f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 200 + 20}"
"""Each pod has an address of its own, and each run of this test."""
ESTABLISHED = "01"


def is_established(port: int) -> bool:
    """Whether somebody's connection to a port of this machine stands, taken by a program or not."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and row[3] == ESTABLISHED for row in rows)


@contextlib.asynccontextmanager
async def coordinator(folder: Path, ports: list[int]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A coordinator as a process, from the moment on at which its application can come."""
    port, rp, sp = ports
    places = [f"--port={port}", f"--receivePort={rp}", f"--sendPort={sp}", f"--log={folder}/logs/"]
    command = [sys.executable, "-m", "pavane.ambrosia.server", "--instanceName=alice", *places]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            while await process.stdout.readline() != b"Ready ...\n":
                pass
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


@pytest.mark.timeout(240)  # three starts of processes, on a machine that does other things too
async def test_an_application_finds_the_coordinator_that_follows_the_one_that_was_killed_between_its_streams(
    tmp_path: Path,
) -> None:
    ports = free_ports(3)
    address = {"PAVANE_AMBROSIA": f"127.0.0.1:{ports[1]},{ports[2]}"}
    account = Account(tmp_path, "alice", address)
    try:
        async with coordinator(tmp_path, ports) as first:
            os.kill(first.pid, signal.SIGSTOP)  # its system still takes the connection
            await account.start()
            await eventually(lambda: is_established(ports[1]), WAIT_S)
        async with coordinator(tmp_path, ports):
            await eventually(lambda: "alice is live" in (tmp_path / "alice.out").read_text(), WAIT_S)
    finally:
        assert account.process is not None
        if account.process.returncode is None:
            account.process.kill()
        await account.process.wait()


@pytest.mark.parametrize("reset", [False, True])
async def test_an_application_dials_both_again_once_the_first_is_closed(*, reset: bool) -> None:
    rp, sp = free_ports(2)
    said: list[str] = []
    taken: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    former = await asyncio.start_server(lambda _, writer: taken.put_nowait(writer), "127.0.0.1", rp)
    connecting = asyncio.create_task(connect(Address(rp, sp), None, said.append))
    writer = await taken.get()
    former.close()
    if reset:
        writer.transport.abort()
    else:
        writer.close()
    port = BindingPort("127.0.0.1", rp, sp, SocketOrder.CURRENT, 0.0)
    async with asyncio.timeout(WAIT_S):
        binding = await port.accept()
        streams = await connecting
    assert said == [f"the coordinator at 127.0.0.1:{rp} closed the connection before it took the second one"]
    streams.outgoing[1].write(b"to the coordinator")
    assert await binding[0][0].read(100) == b"to the coordinator"
    binding[1][1].write(b"to the application")
    assert await streams.incoming[0].read(100) == b"to the application"
    streams.close()
    await streams.closed()
    for _, end in binding:
        await close_writer(end)


@contextlib.asynccontextmanager
async def beside() -> AsyncIterator[tuple[EngineRunner, list[str], Any]]:
    """An application whose coordinator has taken both streams and is a stranger."""
    rp, sp = free_ports(2)
    port = BindingPort("127.0.0.1", rp, sp, SocketOrder.CURRENT, 0.0)
    accepting = asyncio.create_task(port.accept())
    streams = await connect(Address(rp, sp), None, lambda _: None)
    binding = await accepting
    lost: list[str] = []
    runner = EngineRunner(Engine(accounts.Account, "alice"), streams, lost.append)
    tasks = [asyncio.create_task(runner.run()), asyncio.create_task(runner.watch())]
    try:
        yield runner, lost, binding
    finally:
        await runner.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        streams.close()
        await streams.closed()
        for _, writer in binding:
            await close_writer(writer)


async def test_an_application_leaves_a_coordinator_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pavane.ambrosia.client.serving.FIRST_RECORD_S", 0.1)
    async with beside() as (_, lost, _):
        await eventually(lambda: lost, WAIT_S)
    assert lost[0] == "the coordinator took both connections and said nothing for 0 s"


@pytest.mark.parametrize("stream", [0, 1], ids=["rp", "sp"])
async def test_an_application_ends_with_either_stream(stream: int) -> None:
    async with beside() as (_, lost, binding):
        await close_writer(binding[stream][1])
        await eventually(lambda: lost, WAIT_S)
        assert "the coordinator" in lost[0]


@pytest.mark.parametrize("order", SocketOrder)
async def test_whoever_opens_one_stream_and_no_other_gives_way_to_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: SocketOrder
) -> None:
    given = options(tmp_path, order=order)
    async with running(given) as life:
        monkeypatch.setattr("pavane.ambrosia.ports.LB_CONNECT_S", 0.3)
        reader, stranger = await dial(given.receive_port)
        life.binding.writers.append(stranger)
        stranger.write(b"half of something")
        await ended(reader)
        monkeypatch.undo()
        told = f"Error: whoever opened port {given.receive_port} did not open port {given.send_port} within 0 s"
        assert any(line.startswith(told) for line in life.lines)
        if order is not SocketOrder.LEGACY:
            await life.begin()
            assert life.server.missing == ""


@pytest.mark.parametrize(
    "sent", [b"", JS_INITIAL[:5], JS_INITIAL, JS_INITIAL + checkpoint(800)[:2], JS_INITIAL + checkpoint(800) + b"half"]
)
async def test_a_stranger_on_both_streams_gives_way_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("pavane.ambrosia.server.FIRST_STATE_S", 0.3)
    async with running(options(tmp_path)) as life:
        await life.binding.connect(life.server)
        life.binding.writer.write(sent)
        error = await life.error()
    assert isinstance(error, FatalError)
    assert error.fatal is Fatal.STORAGE
    assert "sent no first state within 0 s" in str(error)


async def test_an_application_that_owes_its_state_is_named(tmp_path: Path) -> None:
    given = options(tmp_path)
    owed = "the application is connected but has not sent its state yet"
    async with running(given) as life:
        await life.binding.connect(life.server)
        await life.binding.record()
        assert life.server.missing == owed
        life.binding.writer.write(JS_INITIAL + checkpoint(2) + b"{}")
        await life.binding.record()
        assert life.server.missing == ""
    async with running(given) as life:  # in its second life it is restored, and asked for its state then
        await life.binding.connect(life.server)
        assert (await life.binding.record()).body == checkpoint(2)
        assert await life.binding.reader.readexactly(2) == b"{}"
        assert (await life.binding.record()).body == JS_INITIAL
        assert (await life.binding.record()).body == frame(Type.TAKE_BECOMING_PRIMARY_CHECKPOINT)
        assert life.server.missing == owed
        life.binding.writer.write(checkpoint(2) + b"{}")
        await eventually(lambda: life.server.live, WAIT_S)
        assert life.server.missing == ""


async def test_a_restored_application_has_all_the_time_it_needs_for_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be long, and what was replayed is handled before it."""
    given = options(tmp_path)
    async with running(given) as life:
        await life.begin()
    monkeypatch.setattr("pavane.ambrosia.server.FIRST_STATE_S", 0.0)
    async with running(given) as life:
        await life.binding.connect(life.server)
        assert (await life.binding.record()).body == checkpoint(2)
        assert await life.binding.reader.readexactly(2) == b"{}"
        assert (await life.binding.record()).body == JS_INITIAL
        assert (await life.binding.record()).body == frame(Type.TAKE_BECOMING_PRIMARY_CHECKPOINT)
        life.binding.writer.write(checkpoint(2) + b"{}")
        await eventually(lambda: life.server.live, WAIT_S)


async def test_a_pod_whose_application_is_half_connected_is_not_ready_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "alice-1").mkdir()
    host = f"{NET}.1"
    found = Instance(CoordinatorConfig(instance="alice", log="alice-1"), tmp_path, host, "default", 1)
    running = asyncio.create_task(found.run())
    stranger: asyncio.StreamWriter | None = None

    def names(text: str) -> bool:
        return any(each.reason == "ApplicationMissing" and text in each.text for each in found.report().blockers)

    try:
        await found.allow_writes()
        await eventually(lambda: names("has not connected to"), WAIT_S)
        assert found.unready() == NOT_YET
        async with asyncio.timeout(WAIT_S):
            while stranger is None:
                with contextlib.suppress(ConnectionRefusedError):
                    _, stranger = await asyncio.open_connection(host, RECEIVE_PORT, local_addr=(host, 0))
                await asyncio.sleep(0.01)
        await eventually(lambda: names(f"has opened {host}:{RECEIVE_PORT} but not"), WAIT_S)
        assert found.unready() == NOT_YET
        assert not found.report().leads
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if stranger is not None:
            await close_writer(stranger)


@pytest.mark.parametrize("sent", [b"", Hello("bob", "server", Channel.DATA, "test", (0, 0), 1).encode()[:-3]])
async def test_a_link_without_a_whole_hello_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    async with running(options(tmp_path)) as life:
        await life.begin()
        monkeypatch.setattr("pavane.ambrosia.aio.LINK_HELLO_S", 0.2)
        reader, writer = await dial(life.server.options.port)
        life.binding.writers.append(writer)
        writer.write(sent)
        await ended(reader)
        assert life.server.links_refused == 1
        monkeypatch.undo()
        await hello(life, "client", Channel.DATA)


async def test_a_stream_that_was_ended_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as life:
        await life.begin()
        runner = life.server._runner
        assert runner is not None
        for number in range(3):
            reader, writer = await hello(life, f"mallory-{number}", Channel.DATA)
            writer.write(b"\xff" * 12)
            await ended(reader)
        await eventually(lambda: not runner._holds, WAIT_S)
        assert not runner._hellos


@pytest.mark.parametrize("answer", [b"", Answer(Code.SUCCESS).encode()[:-1], Answer(Code.SUCCESS).encode()])
async def test_a_peer_that_answers_by_half_is_dialled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    dialled: list[asyncio.StreamWriter] = []

    def accepted(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.append(writer)
        writer.write(answer)

    async with running(options(tmp_path)) as life, await asyncio.start_server(accepted, "127.0.0.1", 0) as stranger:
        port = stranger.sockets[0].getsockname()[1]
        await life.begin()
        monkeypatch.setattr("pavane.ambrosia.aio.LINK_HELLO_S", 0.2)
        runner = life.server._runner
        assert runner is not None

        async def resolve(_: str) -> list[tuple[str, int]]:
            return [("127.0.0.1", port)]

        monkeypatch.setattr(runner, "_resolve", resolve)
        life.binding.writer.write(attach_to("peer"))
        await eventually(lambda: len(dialled) > 2, WAIT_S)  # two streams, and again
        await eventually(lambda: life.server.status()["peers"]["peer"].startswith("unreachable"), WAIT_S)
        life.server.stop()
        await asyncio.wait({life.task})
        for writer in dialled:
            await close_writer(writer)
