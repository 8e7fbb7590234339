"""A peer whose volume is full (13.4)."""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from pavane.raft import aio, room
from pavane.raft.client import RaftClient
from pavane.raft.core import transfer
from pavane.raft.errors import Code, RaftError
from pavane.raft.machines.commands import SetLevel, encode_command
from pavane.raft.sockets import Input
from pavane.raft.state.commands import Note
from pavane.raft.wire.decoder import decode_reply
from pavane.raft.wire.pv import PvKv, PvReply
from pavane.raft.wire.pv_update import PvUpdate, PvUpdateReply, UpdateItem
from pavane.wal import Batch, Writer
from pavane.wal.files import DiskFolder
from tests.services.eventually import eventually
from tests.services.raft.peers import IDENT, leads, places, started, written

WAIT_MS = 20_000


async def told_without_room(url: str) -> list[int]:
    """Return the codes that our own messages for updates are answered with; another secret meets silence."""
    context = zmq.asyncio.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.connect(url)
        command, reqids = encode_command(SetLevel(1)), [bytes([number]) * 12 for number in range(3)]
        await socket.send_multipart([reqids[0], *PvKv(command).encode(b"another secret")])
        await socket.send_multipart([reqids[1], *PvKv(command).encode(IDENT)])
        await socket.send_multipart([b"id", *PvUpdate((UpdateItem(reqids[2], b"data"),)).encode(IDENT)])
        assert await socket.poll(WAIT_MS)
        told, *frames = await socket.recv_multipart()
        of_command = decode_reply(PvReply, frames)
        assert (told, isinstance(of_command, PvReply)) == (reqids[1], True)
        assert await socket.poll(WAIT_MS)
        told, *frames = await socket.recv_multipart()
        of_updates = decode_reply(PvUpdateReply, frames)
        assert isinstance(of_command, PvReply)
        assert isinstance(of_updates, PvUpdateReply)
        [(reqid, code, _)] = of_updates.results
        assert (told, reqid) == (b"id", reqids[2])
        return [of_command.code, code]
    finally:
        context.destroy(linger=0)


async def test_a_leader_stops_taking_updates_before_its_disk_is_full_and_goes_on_when_there_is_room(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CHECK_S", 0.0)
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    async with RaftClient([place.url], IDENT) as client:
        first = await client.update(b"room")
        with monkeypatch.context() as patch:
            patch.setattr(room, "DISK_RESERVE_BYTES", 1 << 62)
            patch.setattr(room, "RESERVE_SHARE", 1)  # all of the volume
            with pytest.raises(RaftError):
                await client.update(b"no room", timeout_s=1.0)
            assert server.status().last == first
            assert await written(client) == [b"room"]
            assert await told_without_room(place.url) == [Code.BUSY, Code.BUSY]
            assert "the volume is full" in (server.full() or "")
        assert await client.update(b"room again") == first + 1
        assert server.full() is None


async def test_signs_of_life_are_answered_while_the_storage_queue_is_full(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    async with RaftClient([place.url], IDENT) as client:
        first = await client.update(b"room")
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "is_full", True)
            waiting = []
            for number in range(200):  # each a message of its own
                waiting.append(asyncio.ensure_future(client.update(b"waits %d" % number)))
                await asyncio.sleep(0)
            for _ in range(3):
                assert (await client.configuration(timeout_s=WAIT_MS / 1000)).is_leader
            assert not any(each.done() for each in waiting)
        assert server._adapter is not None
        server._adapter.wake()  # as the next completion of the storage does
        assert await asyncio.gather(*waiting) == [first + 1 + number for number in range(200)]


async def test_a_sign_of_life_that_was_put_off_is_answered_when_the_storage_queue_is_full_then(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    [place] = places(tmp_path, 1)
    adapter = (await started(stack, place.server()))._adapter
    assert adapter is not None
    sign, update = (b"route", [b"id", b"^"]), (b"route", [b"id", b"="])
    adapter._put_off = [update, sign]  # as a turn does that has enough entries
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "is_full", True)
        assert adapter._admitted([]) == [sign]
    assert adapter._admitted([]) == [update]


async def test_only_updates_wait_for_the_next_turn(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    [place] = places(tmp_path, 1)
    adapter = (await started(stack, place.server()))._adapter
    assert adapter is not None
    got: list[bytes] = []
    with monkeypatch.context() as patch:
        patch.setattr(aio, "TURN_ENTRIES", 0)
        patch.setattr(adapter.core, "receive", lambda _route, frames, _now: got.append(frames[1]))
        updates = [(b"route", [b"id", kind]) for kind in (b"=", b"pv.update")]
        adapter._put_off = [*updates, (b"route", [b"id", b"pv.follow"])]
        adapter._give(Input())
        assert (got, adapter._put_off) == ([b"pv.follow"], updates)
        adapter._put_off = []


async def test_nothing_is_written_behind_a_write_that_failed(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_writer: Writer, _batch: Batch) -> None:
        raise OSError("as the test asked")

    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    adapter = server._adapter
    assert adapter is not None
    handed: list[Batch] = []
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "suits_here", lambda _writer, _batch: True)
        patch.setattr(Writer, "write_here", fails)
        patch.setattr(Writer, "submit", lambda _writer, batch: handed.append(batch))
        adapter._queued = 0
        adapter._storage.execute([Note(1, "commit", 1)])
        adapter._store()
        assert (await server.failure).reason == "the log cannot be written: as the test asked"
        handed.clear()
        adapter._storage.execute([Note(2, "commit", 2)])
        adapter._rotten("an entry is damaged")  # found by a task that went on
        assert not handed


async def test_what_is_stored_while_a_peer_stops_goes_to_the_thread_that_is_closed_with_it(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    adapter = server._adapter
    assert adapter is not None
    here: list[Batch] = []
    with monkeypatch.context() as patch:
        patch.setattr(Writer, "suits_here", lambda _writer, _batch: True)
        patch.setattr(Writer, "write_here", lambda _writer, batch: here.append(batch))
        await server.stop()
        adapter._storage.execute([Note(1, "commit", 1)])  # as what follows a commit in the last completions
        adapter._store()
    assert not [batch for batch in here if batch.last_sequence == adapter._storage._log.last_sequence]


async def test_what_waits_for_the_storage_queue_is_bounded_in_bytes(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "PUT_OFF_BYTES", 1 << 20)
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    async with RaftClient([place.url], IDENT) as client:
        first = await client.update(b"room")
        adapter = server._adapter
        assert adapter is not None
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "is_full", True)
            waiting = []
            for _ in range(2):
                waiting.append(asyncio.ensure_future(client.update(bytes(6 << 20))))
                await asyncio.sleep(0)
            await eventually(lambda: not adapter._takes_requests())
            assert not any(each.done() for each in waiting)
        adapter.wake()
        assert sorted(await asyncio.gather(*waiting)) == [first + 1, first + 2]


async def test_a_small_volume_keeps_a_part_of_itself_free(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CHECK_S", 0.0)
    free = 60 << 20  # much less than what is kept of a large one
    monkeypatch.setattr(DiskFolder, "total_bytes", lambda _: 64 << 20)
    monkeypatch.setattr(DiskFolder, "free_bytes", lambda _: free)
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    async with RaftClient([place.url], IDENT) as client:
        assert await client.update(b"room")
        free = 3 << 20
        with pytest.raises(RaftError):
            await client.update(b"no room", timeout_s=1.0)
        assert server.full() == "the volume is full: 3 MiB are free, 4 MiB are kept for compaction"


async def test_a_leader_without_room_hands_the_lead_to_a_member_that_has_some(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CHECK_S", 0.0)
    monkeypatch.setattr(transfer, "ROOM_AGAIN_S", 0.0)
    full: set[Path] = set()
    real = os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        found = real(path)
        return os.statvfs_result((*found[:4], 0, *found[5:])) if any(map(path.is_relative_to, full)) else found

    monkeypatch.setattr(os, "statvfs", statvfs)
    peers = places(tmp_path, 3)
    servers = [await started(stack, place.server()) for place in peers]
    async with RaftClient([place.url for place in peers], IDENT) as client:
        written_first = await client.update(b"room everywhere")
        [old] = await eventually(lambda: [at for at in range(3) if leads(servers[at])])
        other, spare = (at for at in range(3) if at != old)  # who is asked first has no room either
        led_at: list[int] = []
        servers[other].on_change(lambda: led_at.append(other) if leads(servers[other]) else None)
        full |= {peers[old].data, peers[other].data}
        await eventually(lambda: leads(servers[spare]))
        assert not led_at
        assert await client.update(b"room in one place") > written_first
        assert "the volume is full" in (servers[old].full() or "")
        told = [at for at, server in enumerate(servers) if "VolumeFull" in server.status().blockers]
        assert told == sorted((old, other))
        await servers[spare].stop()
        await eventually(lambda: any(map(leads, (servers[old], servers[other]))))
        full.clear()
        await client.update(b"room again")
        assert await written(client) == [b"room everywhere", b"room in one place", b"room again"]
