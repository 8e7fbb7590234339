"""Copies that rot while their storage node runs: it says so and takes no part; readers hear of others, or an error."""

import asyncio
import errno
import struct
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pavane.wal import DiskFolder
from pavane.waltz.client import Rejected, Unavailable, Waltz
from pavane.waltz.core.copying import BRAKE, PAUSE_S_MAX, Copying
from pavane.waltz.core.node import Node
from pavane.waltz.core.outputs import ReadMeta, Send, WriteMeta
from pavane.waltz.core.replica import Replica
from pavane.waltz.core.retention import Keeping
from pavane.waltz.core.session import REJOIN_S, StoreSession
from pavane.waltz.state.store import Damaged
from pavane.waltz.storage import Directory
from pavane.waltz.storage.scrub import Scrub
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import CopyState, RepairStep
from tests.services.waltz.running import ANSWER_S, KEY, Log, running_log
from tests.services.waltz.test_power_loss import record

RECORDS = 40
BAD = 7
"""The transaction that rots: none of those that a server has in memory, or a node looks at when it starts."""
SIZE = 1000
PATIENCE_S = 1.0


def file_of(log: Log, node: int, suffix: str = "seg") -> Path:
    return log.folder / f"node{node}" / "0" / f"{0:019d}.{suffix}"


def rot(log: Log, node: int, txid: int = BAD) -> None:
    """Flip bits in the middle of a record."""
    file = file_of(log, node)
    data = bytearray(file.read_bytes())
    (offset,) = struct.unpack_from(">q", file_of(log, node, "idx").read_bytes(), 128 + 8 * txid)
    data[offset + 100] ^= 0xFF
    with file.open("r+b") as opened:
        opened.seek(offset + 100)
        opened.write(data[offset + 100 : offset + 101])


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    """A log whose server has just begun, so that it has nothing in memory."""
    async with running_log(tmp_path) as running:
        await running.settled()
        async with Waltz([f"127.0.0.1:{running.servers[0].port}"]) as client:
            for number in range(RECORDS):
                await client.append(0, b"%d " % number * (SIZE // 4))
        await running.until_all_vote()
        await running.servers.pop().stop()
        await running.start_server()
        await running.settled()
        await running.until_all_vote()
        yield running


def faults(log: Log) -> dict[int, str]:
    return {
        number: files.fault for number, node in log.nodes.items() for files in node.directory.assigned() if files.fault
    }


async def read_all(log: Log, patience: float = ANSWER_S) -> list[int]:
    async with Waltz([f"127.0.0.1:{log.servers[0].port}"], patience=patience) as client:
        return [each.id async for each in client.read(0, 0, RECORDS)]


async def test_a_copy_that_rots_is_named_and_readers_get_another_one(log: Log) -> None:
    rot(log, 0)
    async with asyncio.timeout(ANSWER_S):
        for _ in range(3):  # whichever node is asked first
            assert await read_all(log) == list(range(RECORDS))
    rotten = log.nodes[0].directory.partition(0)
    assert rotten is not None
    with suppress(Damaged):  # also where nobody asked this node; it may be rebuilt by now
        rotten.read(BAD, 1)
    assert f"damaged from transaction {BAD} on" in (rotten.fault or rotten.mended)
    assert list(faults(log)) in ([0], [])
    async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
        assert await client.append(0, b"the others go on") == RECORDS
    assert await read_all(log) == list(range(RECORDS))


async def test_where_all_copies_rot_a_reader_gets_an_error_in_time(log: Log) -> None:
    for node in log.nodes:
        rot(log, node)
    async with asyncio.timeout(2 * ANSWER_S):
        with pytest.raises(
            (Unavailable, Rejected), match=f"transaction {BAD} now: .*damaged from transaction {BAD} on"
        ):
            await read_all(log, patience=PATIENCE_S)
    assert len(faults(log)) >= 2


async def test_what_was_found_stays_known_after_a_restart(log: Log) -> None:
    rot(log, 1)
    rotten = log.nodes[1].directory.partition(0)
    assert rotten is not None
    with pytest.raises(Damaged):
        rotten.read(BAD, 1)
    await log.stop_node(1)
    await log.start_node(1)
    assert f"damaged from transaction {BAD} on" in faults(log)[1]
    rot(log, 1)  # flipped back: somebody has put the right file there
    await log.stop_node(1)
    await log.start_node(1)
    assert faults(log) == {}


@pytest.mark.parametrize("junk", [b"\xff" * 8, b"\0" * 8, struct.pack(">q", 1 << 40), struct.pack(">q", -5)])
def test_an_index_that_rots_is_damage_and_no_crash(tmp_path: Path, junk: bytes) -> None:
    directory = Directory(DiskFolder(tmp_path), KEY, 1)
    directory.assign([0])
    files = directory.partition(0)
    assert files is not None
    files.append([record(number) for number in range(9)])
    files.sync()
    index = tmp_path / "0" / f"{0:019d}.idx"
    with index.open("r+b") as opened:
        opened.seek(128 + 8 * 4)
        opened.write(junk)
    assert [each.txid for each in files.read(0, 3)] == [0, 1, 2]
    with pytest.raises(Damaged):
        files.read(4, 3)
    assert files.fault
    directory.close()


@pytest.mark.parametrize(("number", "damaged"), [(errno.EMFILE, False), (errno.EIO, True)])
def test_a_scrub_that_runs_out_of_files_says_nothing_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, damaged: bool
) -> None:
    """All nodes of a log may run out of them at once: nobody would have a copy any more."""
    directory = Directory(DiskFolder(tmp_path), KEY, 1)
    directory.assign([0])
    files = directory.partition(0)
    assert files is not None
    files.append([record(number) for number in range(9)])

    def names(folder: DiskFolder) -> list[str]:
        raise OSError(number, "names")

    with monkeypatch.context() as patch:
        patch.setattr(DiskFolder, "names", names)
        if not damaged:
            Scrub(directory).step()
        assert files.scrub(0, SIZE) == -1
    assert (files.state is CopyState.DAMAGED, files.available) == (damaged, not damaged)
    directory.close()


def test_a_damaged_copy_that_a_tool_has_stopped_is_not_given_up(tmp_path: Path) -> None:
    """Somebody looks at it."""
    directory = Directory(DiskFolder(tmp_path), KEY, 1)
    directory.assign([0])
    files = directory.partition(0)
    assert files is not None
    files.append([record(number) for number in range(9)])
    files.sync()
    file = tmp_path / "0" / f"{0:019d}.seg"
    rotten = bytearray(file.read_bytes())
    rotten[-10] ^= 1
    file.write_bytes(rotten)
    with pytest.raises(Damaged):
        files.read(8, 1)
    files.set_available(False)
    node = Node(directory, disk_reserve_bytes=0)
    node.arrive(s.Head(7, 1, 0))
    (told,) = node.execute([s.Repair(s.Head(7, 1, 0), RepairStep.BEGIN)])
    assert (told.state, file.read_bytes()) == (CopyState.SOUND, bytes(rotten))
    files.set_available(True)
    (told,) = node.execute([s.Repair(s.Head(7, 2, 0), RepairStep.BEGIN)])
    assert (told.state, files.max_txid) == (CopyState.REBUILDING, -1)
    directory.close()


def test_a_copy_is_rebuilt_while_appends_never_stop(tmp_path: Path) -> None:
    directories = {str(node): Directory(DiskFolder(tmp_path / str(node)), KEY, 1) for node in range(3)}
    for directory in directories.values():
        directory.assign([0])
    nodes = {name: Node(directory, disk_reserve_bytes=0) for name, directory in directories.items()}
    rotten = directories["0"].partition(0)
    assert rotten is not None
    numbers, meta = iter(range(RECORDS, 9 * RECORDS)), None

    def run(session: StoreSession, outputs: Sequence[Any]) -> None:
        nonlocal meta
        waiting = deque(outputs)
        while waiting:
            match waiting.popleft():
                case ReadMeta():
                    waiting += session.metadata(0.0, meta, -1 if meta is None else 0)
                case WriteMeta() as write:
                    meta = write.meta
                    waiting += session.written(0.0, done=True, version=0)
                case Send(node, message):
                    nodes[node].arrive(message.head)
                    (answer,) = nodes[node].execute([message])
                    if isinstance(message, s.Append) and node == "0" and rotten.fault:
                        # With each piece that the copy gets another record is committed: it is never as far.
                        run(session, session.append(0.0, [record(next(numbers))]))
                    waiting += session.response(0.0, node, answer)

    first, second = (StoreSession(0, 1, list(nodes), nodes) for _ in range(2))
    run(first, first.start(0.0))
    run(first, first.append(0.0, [record(number) for number in range(RECORDS)]))
    assert rotten.max_txid == first.hwm == RECORDS - 1
    file = tmp_path / "0" / "0" / f"{0:019d}.seg"
    data = bytearray(file.read_bytes())
    data[-10] ^= 1
    file.write_bytes(data)
    with pytest.raises(Damaged):
        rotten.read(RECORDS - 1, 1)
    first.close("a copy is damaged")
    run(second, second.start(0.0))
    run(second, second.tick(REJOIN_S))
    assert rotten.available, rotten.fault
    assert second.hwm > RECORDS
    for directory in directories.values():
        directory.close()


class Looking(Copying):
    """Compares copies, and nothing else."""

    def _fail(self, replica: Replica, reason: str) -> None:
        raise AssertionError(reason)

    def _resolve(self) -> None:
        pass


def test_a_rebuild_leaves_voters_most_of_their_time() -> None:
    looking = Looking(0, ("a", "b", "c"), (), Keeping())
    looking.hwm = 0
    work = looking._equal(["a", "b"])
    answer = s.RecordHeaderListResponse(s.Head(1, 1, 0), (s.RecordHeader(0, ReqId(1, 1, 0, 0), 0),))
    question = next(work)
    for node, took_s, pause_s in (("a", 0.1, 0.1 * BRAKE), ("b", 60.0, PAUSE_S_MAX)):
        assert question is not None
        assert question[:2] == (node, s.RecordHeaderListRequest)
        looking._now += took_s
        due = looking._now + pause_s
        assert work.send(answer) is None
        assert looking._pause_due == pytest.approx(due)
        looking._now, looking._pause_due = due - 0.01, None
        assert work.send(None) is None  # somebody else woke it
        assert looking._pause_due is not None
        looking._now, looking._pause_due = due + 0.01, None
        question = next(work, None)
    assert question is None
