"""Logs of machine Broadcast that are cut by their application (docs/specs/raft.md 9.1)."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from pavane.raft import aio
from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.core import snapshots
from pavane.raft.machine import Broadcast
from pavane.raft.offline.store import StoredLog
from pavane.raft.server import Exit, RaftServer
from pavane.raft.storage.js_files import JsSnapshot, encode_snapshot
from pavane.wire import LocalProtocolError
from tests.services.eventually import eventually
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT


class Sums(Broadcast):
    """A snapshot is the sum of all numbers in the log."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def compact(self, entries: Iterable[tuple[int, memoryview]], previous: bytes | None) -> bytes:
        pairs = [(index, int(bytes(data))) for index, data in entries]
        self.calls.append((pairs[0][0], pairs[-1][0]))
        return b"%d" % (int(previous or 0) + sum(number for _, number in pairs))


class Broken(Broadcast):
    def compact(self, entries: Iterable[tuple[int, memoryview]], previous: bytes | None) -> bytes:
        raise RuntimeError("not with me")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PAUSE_S", 0.0)
    monkeypatch.setattr(aio, "OFFER_PAUSE_S", 0.01)


@asynccontextmanager
async def running(folder: Path, machine: Broadcast) -> AsyncIterator[tuple[RaftServer, RaftClient]]:
    (url,) = free_urls(1)
    config = Config(id="1", ident=IDENT, url=url, peers=(("1", url),), snapshot_entries=20, log_retention=5)
    server = RaftServer(config, data=folder, bind=url, machine=machine)
    await server.start()
    try:
        async with RaftClient([server.bound], IDENT) as client:
            yield server, client
    finally:
        await server.stop()


async def test_the_compactor_of_an_application_keeps_the_log_short(tmp_path: Path) -> None:
    machine = Sums()
    written = 0
    for _ in range(2):  # once more after a restart
        async with running(tmp_path, machine) as (server, client):
            for _ in range(2):  # the second snapshot stands for the first one, too
                before = server.status().snapshot
                while server.status().snapshot == before:
                    written += 1
                    await client.update(b"%d" % written)
            found = await client.snapshot()
            assert found is not None
            assert int(found.data) == sum(range(1, found.index + 1))
            assert server.status().first > 1
    assert machine.calls[0][0] == 1
    assert [first for first, _ in machine.calls[1:]] == [last + 1 for _, last in machine.calls[:-1]]


async def test_a_compactor_waits_until_all_members_are_known_as_ours(tmp_path: Path) -> None:
    members = tuple(zip("123", free_urls(3), strict=True))
    machine = Sums()
    async with AsyncExitStack() as stack:

        async def start(name: str, url: str) -> RaftServer:
            config = Config(id=name, ident=IDENT, url=url, peers=members, snapshot_entries=20)
            server = RaftServer(config, data=tmp_path / name, bind=url, machine=machine)
            await server.start()
            stack.push_async_callback(server.stop)
            return server

        servers = [await start(*member) for member in members[:2]]
        client = await stack.enter_async_context(RaftClient([url for _, url in members], IDENT))
        for _ in range(50):
            await client.update(b"1")
        await eventually(lambda: all(server.status().applied >= 50 for server in servers))
        assert machine.calls == []
        servers.append(await start(*members[2]))
        await eventually(lambda: all(each.kind == "ours" for each in servers[0].status().members))
        for _ in range(2):  # known by now; the first one may be applied while it is not
            await client.update(b"1")
        await eventually(lambda: servers[0].status().snapshot)


async def test_a_compactor_that_fails_ends_the_peer(tmp_path: Path) -> None:
    async with running(tmp_path, Broken()) as (server, client):
        for _ in range(20):
            await client.update(b"1")
        failure = await server.failure
    assert failure.exit_code is Exit.FAILED
    assert "not with me" in failure.reason


class Patient(Broadcast):
    """Waits in the middle of its work until it may go on."""

    def __init__(self) -> None:
        self.waits, self.may_go_on = threading.Event(), threading.Event()
        self.seen = 0
        self.ended = False

    def compact(self, entries: Iterable[tuple[int, memoryview]], previous: bytes | None) -> bytes:
        try:
            for _ in entries:
                self.seen += 1
                self.waits.set()
                self.may_go_on.wait()
        finally:
            self.ended = True
        return b"everything"


async def test_a_compactor_does_not_go_on_behind_a_server_that_was_stopped(tmp_path: Path) -> None:
    machine = Patient()
    async with running(tmp_path, machine) as (server, client):
        for _ in range(20):
            await client.update(b"1")
        await eventually(machine.waits.is_set)
        stopping = asyncio.create_task(server.stop())
        await eventually(lambda: not runs(server))
        assert not stopping.done()
        machine.may_go_on.set()
        await stopping
        assert (machine.ended, machine.seen) == (True, 1)


def runs(server: RaftServer) -> bool:
    try:
        server.status()
    except LocalProtocolError:
        return False
    return True


def offer(folder: Path, index: int, term: int, data: bytes) -> None:
    parts = encode_snapshot(JsSnapshot(index, term, data), "2026-01-01T00:00:00Z", "host")
    partly = folder / "compact" / "partly"
    partly.write_bytes(b"".join(map(bytes, parts)))
    partly.rename(partly.with_name("snap.new"))


def left(folder: Path) -> list[str]:
    return [path.name for path in (folder / "compact").iterdir()]


async def test_a_file_of_the_application_becomes_the_snapshot(tmp_path: Path) -> None:
    async with running(tmp_path, Broadcast()) as (server, client):
        for _ in range(30):
            await client.update(b"data")
        term = server.status().term
        offer(tmp_path, 25, term, b"thirty less five")
        await eventually(lambda: server.status().snapshot == 25 and left(tmp_path) == [])
        assert server.status().first == 1  # the one before it is the beginning
        offer(tmp_path, 40, term, b"forty")
        await eventually(lambda: left(tmp_path) == ["snap.claimed"])
        for _ in range(10):
            await client.update(b"data")
        await eventually(lambda: server.status().snapshot == 40 and left(tmp_path) == [])
        found = await client.snapshot()
        assert found is not None
        assert (found.index, found.term, found.data) == (40, term, b"forty")
        assert server.status().first == 26


@pytest.mark.parametrize(
    ("index", "term", "cut", "why"),
    [(20, 1, 3, "bytes of data"), (20, 999, 0, "has term"), (0, 0, 0, "there is a snapshot up to 0 already")],
)
async def test_a_file_that_cannot_be_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, index: int, term: int, cut: int, why: str
) -> None:
    async with running(tmp_path, Broadcast()) as (server, client):
        for _ in range(20):
            await client.update(b"data")
        offer(tmp_path, index, term, b"data")
        if cut:
            whole = tmp_path / "compact" / "snap.new"
            whole.write_bytes(whole.read_bytes()[:-cut])
        await eventually(lambda: left(tmp_path) == ["snap.refused"])
        assert server.status().snapshot == 0
    assert why in caplog.text


async def test_a_peer_that_was_stopped_in_order_left_its_commit_index(tmp_path: Path) -> None:
    async with running(tmp_path, Broadcast()) as (_, client):
        last = [await client.update(b"data") for _ in range(5)][-1]
    with StoredLog(tmp_path) as stored:
        assert stored.recovered.commit == last
