"""Crowds, silence, slow readers and bad disks at both ports: a clear end, nobody else disturbed, memory bounded."""

import asyncio
import errno
import logging
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pavane.waltz.aio import listener, stream
from pavane.waltz.aio.admin import StorageAdmin
from pavane.waltz.aio.stream import Stream
from pavane.waltz.client import Waltz, trusting
from pavane.waltz.errors import OutcomeUnknown, Unavailable
from pavane.waltz.server import StorageNode
from pavane.waltz.storage.layout import MARK_FILE
from pavane.waltz.wire import messages as m
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.frame import ADMIN_CLIENT, STORAGE_CLIENT, Magic
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, KEY, Log, RawClient, running_log
from tests.services.waltz.test_waltz_tls import certificates

MIB = 1 << 20
CONNECTION_BYTES_MAX = 64 * 1024  # of one that is idle: both of its ends are in this process
ASKED = 400  # times 1 MiB: six times what may wait for one that does not read
PORTS = ("client", "storage")

_logger = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """As many descriptors as the system grants: each connection here costs two."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class RawServer(Stream):
    """Speaks to a storage node as a server does, as a test tells it to."""

    def __init__(self) -> None:
        super().__init__(STORAGE_CLIENT, connecting=True)
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def opened(self) -> None:
        self.send(s.Open(s.OPEN_HEAD, KEY, 1))

    def heard(self, message: Any) -> None:
        if not self.ready.done():
            self.ready.set_result(None)


def port_of(log: Log, which: str) -> int:
    return log.servers[0].port if which == "client" else log.ports[0]


async def connected(log: Log, which: str) -> Stream:
    if which == "client":
        return await RawClient.connect(port_of(log, which), (5,))
    _, server = await asyncio.get_running_loop().create_connection(RawServer, "127.0.0.1", port_of(log, which))
    async with asyncio.timeout(ANSWER_S):
        await server.ready
    return server


def streams_of(log: Log, which: str) -> set[Any]:
    """The connections that a port has."""
    found: set[Any] = log.servers[0]._listener.streams if which == "client" else log.nodes[0].streams
    return found


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@asynccontextmanager
async def used(log: Log) -> AsyncIterator[Waltz]:
    """A client that appends before, and has to be able to afterwards."""
    async with Waltz([f"127.0.0.1:{log.servers[0].port}"], patience=ANSWER_S) as client:
        await client.append(0, b"before")
        yield client
        assert (await client.get(0, await client.append(0, b"after"))).data == b"after"


@pytest.mark.parametrize("which", PORTS)
async def test_a_full_port_serves_those_who_are_there_and_sends_others_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = listener.CONNECTIONS_MAX
    if files != resource.RLIM_INFINITY:
        most = min(most, files // 3)  # fewer where the system does not grant enough
    monkeypatch.setattr(listener, "CONNECTIONS_MAX", most)
    async with running_log(tmp_path) as log, used(log) as client:
        present = streams_of(log, which)
        before, had = resident_bytes(), len(present)
        crowd: list[Stream] = []
        while (room := most - len(present)) > 0:
            crowd += await asyncio.gather(*(connected(log, which) for _ in range(min(64, room))))
        each = (resident_bytes() - before) / (len(present) - had)
        _logger.info("%d connections of the %s port: %.1f KiB each, both ends", len(present), which, each / 1024)
        assert each < CONNECTION_BYTES_MAX
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(log, which))
        async with asyncio.timeout(ANSWER_S):
            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        await client.append(0, b"served on")
        # One leaves: its place is free.
        crowd[0].hang_up("done")
        await eventually(lambda: len(present) < most)
        crowd[0] = await connected(log, which)
        for each_one in crowd:
            each_one.hang_up("done")
        await eventually(lambda: len(present) <= had)


@pytest.mark.parametrize("which", PORTS)
async def test_whoever_says_nothing_is_sent_away_and_who_is_gone_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    async with running_log(tmp_path) as log, used(log):
        monkeypatch.setattr(stream, "HELLO_S", 0.2)
        for said in (b"", b"H\0\0\0\0"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(log, which))
            writer.write(said)
            async with asyncio.timeout(ANSWER_S):
                hello = await reader.read()  # until the end
            assert hello.startswith(b"H")
            writer.close()
            await writer.wait_closed()
        monkeypatch.undo()
        # A peer whose machine is gone sends nothing, not even an end: the kernel has to ask for it.
        assert streams_of(log, which)
        for one in streams_of(log, which):
            sock = one._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == stream.SILENT_S


@pytest.mark.parametrize("which", ["storage", "admin"])
@pytest.mark.parametrize("key", [None, UUID(int=1)], ids=["nothing", "another cluster's"])
async def test_whoever_greets_storage_and_opens_nothing_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, key: UUID | None
) -> None:
    async with running_log(tmp_path) as log, used(log):
        node = log.nodes[0]
        monkeypatch.setattr(stream, "HELLO_S", 0.2)
        side = STORAGE_CLIENT if which == "storage" else ADMIN_CLIENT
        port = log.ports[0] if which == "storage" else node.tools.port
        _, peer = await asyncio.get_running_loop().create_connection(
            lambda: Stream(side, connecting=True), "127.0.0.1", port
        )
        with suppress(ConnectionError):  # on a busy machine it may be too late already
            await peer.greeted()
        if key is not None and not peer.closed:
            peer.send(s.Open(s.OPEN_HEAD, key, 1))
        await eventually(lambda: peer.closed, ANSWER_S)
        monkeypatch.undo()
        async with asyncio.timeout(ANSWER_S):
            tool = await StorageAdmin.connect(log.admin(0), KEY, 1, None)
        tool.hang_up("done")


async def test_whoever_does_not_read_what_it_is_sent_away_with_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_log(tmp_path) as log, used(log) as client:
        monkeypatch.setattr(stream, "FLUSH_S", 0.2)
        txid = await client.append(0, bytes(MIB))
        had = set(streams_of(log, "client"))
        slow = await connected(log, "client")
        assert isinstance(slow, RawClient)
        assert slow._transport is not None
        slow._transport.pause_reading()
        for _ in range(32):  # more than the system takes for a peer that does not read
            slow.send(m.TransactionDataRequest(slow.reqid(), txid))
        [served] = streams_of(log, "client") - had
        await eventually(lambda: served._write_paused, ANSWER_S)
        transport = served._transport
        served.hang_up("it is sent away")
        assert transport.get_write_buffer_size()
        await eventually(lambda: not transport.get_write_buffer_size(), ANSWER_S)
        slow.abort("done")


@pytest.mark.parametrize("which", PORTS)
async def test_whoever_asks_and_does_not_read_is_dropped_before_memory_is_full(tmp_path: Path, which: str) -> None:
    async with running_log(tmp_path) as log, used(log) as client:
        await log.until_all_vote()
        txid = await client.append(0, bytes(MIB))
        slow = await connected(log, which)
        assert slow._transport is not None
        slow._transport.pause_reading()  # its own end, not the other one
        before, present = resident_bytes(), len(streams_of(log, which))
        session = max(info.info.session for info in log.nodes[0].directory.assigned())
        for number in range(ASKED):
            if isinstance(slow, RawClient):
                slow.send(m.TransactionDataRequest(slow.reqid(), txid))
            else:
                slow.send(s.RecordListRequest(s.Head(session, number, 0), txid, 1))
        seen = [before]

        def dropped() -> bool:
            seen.append(resident_bytes())
            return len(streams_of(log, which)) < present

        await eventually(dropped)
        grown = max(seen) - before
        _logger.info("%d MiB asked for at the %s port and not read: %.0f MiB more", ASKED, which, grown / MIB)
        assert grown < 3 * stream.UNSENT_BYTES_MAX
        slow._transport.abort()


async def test_what_is_answered_in_one_turn_is_bounded(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log, used(log):
        known = set(streams_of(log, "client"))
        slow = await connected(log, "client")
        assert slow._transport is not None
        slow._transport.pause_reading()
        assert isinstance(slow, RawClient)
        (served,) = set(streams_of(log, "client")) - known
        assert served._transport is not None
        for _ in range(ASKED):  # as many as a client asks for in one packet; nobody may write meanwhile
            served.send(m.TransactionDataResponse(slow.reqid(), 0, bytes(MIB)))
            kept = len(served._pending) + served._transport.get_write_buffer_size()
            assert kept < stream.UNSENT_BYTES_MAX + 3 * MIB
        assert served._transport.is_closing()
        slow._transport.abort()


async def test_a_feed_that_is_not_read_keeps_little_in_memory_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 24
    monkeypatch.setattr(stream, "UNSENT_BYTES_MAX", 12 * MIB)  # half of what it has credit for
    async with running_log(tmp_path) as log, used(log) as client:
        first = await client.append(0, bytes(MIB))
        for _ in range(count - 1):
            await client.append(0, bytes(MIB))
        slow = await RawClient.connect(log.servers[0].port, (5,))
        assert slow._transport is not None
        slow._transport.pause_reading()
        slow.send(m.FeedBatchRequest(slow.reqid(), first - 1, 1_000_000, (1 << 31) - 1, 0, -1, 0))
        await client.append(0, b"served on")
        slow._transport.resume_reading()
        found = 0
        while found < count:
            found += len((await slow.next(m.FeedBatch)).items)
        slow.hang_up("done")


@pytest.mark.parametrize("how", ["unread", "unfinished"])
async def test_what_all_clients_keep_in_memory_together_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Each keeps less than it may, only the sum is too much: who has kept it for longest goes, the last one stays."""
    each, most = 24, 40  # MiB; the system's own buffers take a part of what is sent
    monkeypatch.setattr(stream, "KEPT_SUM_BYTES_MAX", most * MIB)
    async with running_log(tmp_path, certificates=certificates(tmp_path / "tls")) as log:
        tls = trusting((tmp_path / "tls" / "ca.crt").read_text())
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"], tls=tls, patience=ANSWER_S) as client:
            txid = await client.append(0, bytes(MIB))
            clients, served = [], []
            for _ in range(5):
                known = set(streams_of(log, "client"))
                clients.append(await RawClient.connect(port_of(log, "client"), (5,), tls=tls))
                transport = clients[-1]._transport
                assert transport is not None
                (one,) = set(streams_of(log, "client")) - known
                served.append(one)
                if how == "unread":
                    transport.pause_reading()
                    for _ in range(each):
                        clients[-1].send(m.TransactionDataRequest(clients[-1].reqid(), txid))
                else:
                    transport.write(struct.pack(">bhi", Magic.LOG, 5, 2 * each * MIB) + bytes(each * MIB))
                await eventually(lambda one=one: one.closed or one.kept > each / 2 * MIB, ANSWER_S)  # type: ignore[misc]
            await eventually(lambda: served[0].closed, ANSWER_S)
            # What comes last may be a read beyond it before the oldest one goes.
            await eventually(lambda: sum(one.kept for one in served if not one.closed) <= most * MIB, ANSWER_S)
            assert not served[-1].closed
            assert (await client.get(0, await client.append(0, b"after"))).data == b"after"
            for one in clients:
                one.abort("done")


def of_node(log: Log, index: int, descriptor: int) -> bool:
    """Whether a descriptor is a segment of a storage node."""
    path = Path(f"/proc/self/fd/{descriptor}").readlink()
    return path.is_relative_to(log.folder / f"node{index}") and path.suffix == ".seg"


@pytest.mark.parametrize("fault", ["full", "EIO"])
async def test_one_bad_disk_is_told_and_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    write, sync = os.pwritev, os.fdatasync
    async with running_log(tmp_path) as log, used(log) as client:
        await log.until_all_vote()

        def pwritev(descriptor: int, parts: Any, offset: int) -> int:
            if fault == "full" and of_node(log, 0, descriptor):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, parts, offset)

        def fdatasync(descriptor: int) -> None:
            if fault == "EIO" and of_node(log, 0, descriptor):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            sync(descriptor)

        monkeypatch.setattr(os, "pwritev", pwritev)
        monkeypatch.setattr(os, "fdatasync", fdatasync)
        acknowledged = {await client.append(0, b"%d" % number): b"%d" % number for number in range(50)}
        assert log.nodes[0].failures
        files = log.nodes[0].directory.partition(0)
        assert files is not None
        # What may not be on the disk is not served again; a full disk is whole and waits for room.
        assert ("a sync failed" in files.fault) == (fault == "EIO")
        assert {
            txid: tx.data async for tx in client.read(0, 0, 1 << 40) if (txid := tx.id) in acknowledged
        } == acknowledged
        monkeypatch.undo()
        if fault == "EIO":
            await log.stop_node(0)
            await log.start_node(0)
        await log.until_all_vote()


async def test_a_storage_node_whose_marks_cannot_be_synced_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has acknowledged would not be missed on a disk that is set back."""
    sync = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == MARK_FILE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(descriptor)

    node = StorageNode(tmp_path, KEY, 1, disk_reserve_bytes=0)
    await node.start("127.0.0.1", 0)
    assert node.server is not None
    files = node.server.directory.partition(0)
    assert files is not None
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fdatasync)
        files.raise_fence(7)
        async with asyncio.timeout(ANSWER_S):
            with pytest.raises(OSError, match="Input/output error"):
                await node.run()
    with pytest.raises(OSError, match="an earlier sync failed"):
        await node.stop()
    again = StorageNode(tmp_path, KEY, 1, disk_reserve_bytes=0)
    await again.start("127.0.0.1", 0)
    await again.stop()


async def append(client: Waltz, data: bytes) -> None:
    """Append, again where patience ended while a try was under way."""
    while True:
        with suppress(OutcomeUnknown):
            await client.append(0, data)
            return


async def test_full_disks_refuse_appends_in_words_until_there_is_room(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log, used(log) as client:
        for node in log.nodes.values():
            node.node._reserve = 1 << 60
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"], patience=1.0) as hasty:
            said = ""
            while "bytes are free on the disk" not in said:  # a busy machine takes longer to answer at all
                with pytest.raises(Unavailable) as told:
                    await append(hasty, b"no room")
                said = str(told.value)
        assert (await client.get(0, 0)).data == b"before"
        for node in log.nodes.values():
            node.node._reserve = 0
