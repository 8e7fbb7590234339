"""Whoever sends a peer what never becomes a message takes a bounded part of its memory (docs/specs/raft.md 14.4)."""

import asyncio
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
import zmq

from pavane.raft import connections
from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.connections import UNFINISHED_SUM_BYTES_MAX, Connections
from pavane.raft.curve import CurveKeys
from pavane.raft.server import RaftServer
from tests.services.eventually import eventually
from tests.services.raft.crowd import GREETING, READY
from tests.services.raft.peers import free_urls
from tests.services.raft.test_connections import address, value
from tests.services.raft.test_peer_process import SECRET, Peers, peers

__all__ = ["peers"]

CURVE_GREETING = GREETING.replace(b"NULL".ljust(20, b"\0"), b"CURVE".ljust(20, b"\0"))
ENDLESS = b"\x01\x01x" * 20_000  # frames of one byte, each with more behind it
TEN_MIB = (10 << 20).to_bytes(8, "big")
BEGINNING = b"\x02" + TEN_MIB  # of a frame
COMMAND = b"\x06" + TEN_MIB  # the beginning of a command, before the handshake is over
ZEROS = bytes(60_000)
OVERSHOOT_BYTES = 512 << 20
"""What may come between two looks, which a busy machine delays; without them it is 1.2 GiB."""


async def pour(url: str, greeting: bytes, first: bytes, more: bytes, size: int) -> None:
    """Send ``size`` bytes without coming to an end, and wait to be cut off."""
    reader, writer = await asyncio.open_connection(*address(url))
    try:
        writer.write(greeting)
        await reader.readexactly(len(GREETING))
        writer.write(first)
        for _ in range(size // len(more)):
            writer.write(more)
            await writer.drain()
        while await reader.read(1 << 16):
            pass
    except OSError:
        return
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


def most_memory_bytes(process: asyncio.subprocess.Process) -> int:
    [line] = [line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("encrypted", [False, True], ids=["endless messages", "commands before the handshake, CURVE"])
async def test_a_peer_keeps_its_memory_and_serves_others(peers: Peers, tmp_path: Path, *, encrypted: bool) -> None:
    [url] = free_urls(1)
    options, keys = [], None
    if encrypted:
        (server, server_secret), client = zmq.curve_keypair(), zmq.curve_keypair()
        (tmp_path / "server").write_bytes(server_secret)
        (tmp_path / "client.pub").write_bytes(client[0])
        options = ["--curve-secret-file", str(tmp_path / "server"), "--curve-clients", str(tmp_path)]
        keys = CurveKeys(server, *client)
    process = await peers.up("1", f"1={url}", "--machine", "KeyValue", *options)
    async with RaftClient([url], SECRET.encode(), curve=keys) as client_of_peer:
        await client_of_peer.kv.put(b"key", b"before")
        before = most_memory_bytes(process)
        if encrypted:
            attacks = [pour(url, CURVE_GREETING, COMMAND, ZEROS, 10_000_000) for _ in range(120)]
        else:
            attacks = [pour(url, GREETING, READY, ENDLESS, 60_000_000)]
        attacking = [asyncio.create_task(attack) for attack in attacks]
        written = 0
        async with asyncio.timeout(60):
            while written < 100 or (not encrypted and not all(task.done() for task in attacking)):
                await client_of_peer.kv.put(b"key", b"%d" % written)
                written += 1
        for task in attacking:
            task.cancel()
        await asyncio.wait(attacking)
        assert most_memory_bytes(process) - before < UNFINISHED_SUM_BYTES_MAX + OVERSHOOT_BYTES


def test_a_look_that_waits_for_the_processor_lengthens_no_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses_s: list[float] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_later(self, delay: float, *_: object, **__: object) -> asyncio.TimerHandle:
            pauses_s.append(delay)
            return asyncio.TimerHandle(0.0, lambda: None, (), self)

    waiting = threading.Event()
    monkeypatch.setattr(connections, "resident_bytes", lambda: int(waiting.wait(0.05)))
    with closing(Loop()) as loop, zmq.Context() as context:
        Connections([], context, loop)._look_at_memory()
    assert pauses_s == [connections.LOOK_S] * 2


async def test_who_is_cut_off_is_who_completes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GROWTH_BYTES", 0)
    monkeypatch.setattr(connections, "UNFINISHED_BYTES_MAX", 4 << 20)
    monkeypatch.setattr(connections, "resident_bytes", lambda: 1)  # so that a byte that came costs one of memory
    [publish] = free_urls(1)
    config = Config("1", SECRET.encode(), url="tcp://127.0.0.1:1", peers=(("1", "tcp://127.0.0.1:1"),))
    server = RaftServer(config, data=tmp_path, bind="tcp://127.0.0.1:0", publish=publish)
    await server.start()
    try:
        async with RaftClient([server.bound], SECRET.encode()) as client:
            for _ in range(6):  # more than the limit, but in whole messages
                await client.update(bytes(1 << 20))
            async with asyncio.timeout(20):
                await pour(server.bound, GREETING, READY, ENDLESS, 6_000_000)
                await pour(server.bound, GREETING, COMMAND, ZEROS, 6_000_000)
                await pour(publish, GREETING, READY.replace(b"\x06DEALER", b"\x03SUB", 1), ENDLESS, 6_000_000)
            assert await client.update(b"after") > 6
            await eventually(lambda: value(server, "connections") == 1)
            assert value(server, "connections_refused_total") >= 2
    finally:
        await server.stop()


async def test_many_beginnings_are_bounded_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "GROWTH_BYTES", 0)
    monkeypatch.setattr(connections, "UNFINISHED_SUM_BYTES_MAX", 4 << 20)
    monkeypatch.setattr(connections, "resident_bytes", lambda: 1)
    config = Config("1", SECRET.encode(), url="tcp://127.0.0.1:1", peers=(("1", "tcp://127.0.0.1:1"),))
    server = RaftServer(config, data=tmp_path, bind="tcp://127.0.0.1:0")
    await server.start()
    attacking: list[asyncio.Task[None]] = []
    try:
        async with RaftClient([server.bound], SECRET.encode()) as client:
            await client.update(b"before")
            attacks = [pour(server.bound, GREETING, READY + BEGINNING, ZEROS, 1_000_000) for _ in range(8)]
            attacking = [asyncio.create_task(attack) for attack in attacks]
            await eventually(lambda: value(server, "connections_refused_total") >= 4)
            await client.update(b"after")
            assert value(server, "connections") == 5
    finally:
        for task in attacking:
            task.cancel()
        await asyncio.wait(attacking)
        await server.stop()
