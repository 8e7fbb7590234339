"""The power goes at every write and sync of a storage node: what it acknowledged is there, or it says damaged."""

import errno
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

import pytest

from pavane.waltz.core.node import Node
from pavane.waltz.state.store import Damaged
from pavane.waltz.storage import Directory
from pavane.waltz.storage.clock import Clock
from pavane.waltz.storage.directory import REBUILDS_MAX, REBUILT_MS, PartitionFiles
from pavane.waltz.storage.segment import INDEX_SYNC_RECORDS
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from tests.services.memory_disk import MemoryDisk, MemoryFile, MemoryFolder

KEY = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
DRAWS = 6  # outcomes of each crash that are looked at
STEPS_MAX = 200
SEGMENT_BYTES = 500  # so that the operations cross segments
BATCH_BYTES = 200  # so that each batch is a segment


class PowerCutError(BaseException):
    """The machine ends here."""


def record(txid: int) -> s.Record:
    return s.Record.of(txid, ReqId(1, 1, 0, txid), 0, b"data of %d" % txid)


def head(session: int = 1, seq: int = 0) -> s.Head:
    return s.Head(session, seq, 0)


def opened(disk: MemoryDisk, segment_bytes: int = SEGMENT_BYTES) -> Directory:
    directory = Directory(disk.folder(), KEY, 1, segment_bytes=segment_bytes)
    directory.assign([0])
    return directory


def prepared(disk: MemoryDisk, segment_bytes: int = SEGMENT_BYTES) -> tuple[Directory, Node]:
    """Twelve records in several segments, acknowledged in session 1."""
    directory = opened(disk, segment_bytes)
    node = Node(directory, disk_reserve_bytes=0)
    node.arrive(head())
    requests: list[s.SetLowWaterMark | s.Append] = [s.SetLowWaterMark(head(), -1, False)]
    requests += [s.Append(head(), tuple(record(n) for n in range(first, first + 3)), False) for first in (0, 3, 6, 9)]
    for request in requests:
        assert node.execute([request]) == [s.Success(request.head)]
    directory.sync_marks()
    return directory, node


@contextmanager
def power_until(step: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Let so many writes and syncs happen; at the next one the power goes."""
    done = [0]

    def counted(method: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            if done[0] == step:
                raise PowerCutError
            done[0] += 1
            method(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("append", "overwrite", "sync", "truncate"):
            patch.setattr(MemoryFile, name, counted(getattr(MemoryFile, name)))
        for name in ("sync", "remove"):
            patch.setattr(MemoryFolder, name, counted(getattr(MemoryFolder, name)))
        yield done


OPERATIONS: dict[str, tuple[s.Append | s.Truncate | s.SetLowWaterMark, int]] = {
    "append": (s.Append(head(), tuple(record(n) for n in range(12, 15)), False), 11),
    "truncate-one-segment": (s.Truncate(head(), 10, False), 10),
    "truncate-many-segments": (s.Truncate(head(), 1, False), 1),
    "set-low-water-mark": (s.SetLowWaterMark(head(2), 20, False), 11),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_was_acknowledged_survives_or_is_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request, kept = OPERATIONS[name]
    for step in range(STEPS_MAX):
        for draw in range(DRAWS):
            disk = MemoryDisk()
            _, node = prepared(disk)
            cut, answers = False, list[object]()
            with power_until(step, monkeypatch):
                try:
                    node.arrive(request.head)
                    answers = node.execute([request])
                except PowerCutError:
                    cut = True
            disk.crash(random.Random(1000 * step + draw))
            files = opened(disk).partition(0)
            assert files is not None
            if not files.available:
                assert "damaged" in files.fault
                continue
            found = files.read(0, 100)
            while found[-1].txid < files.max_txid:
                found += files.read(found[-1].txid + 1, 100)
            assert [one.txid for one in found] == list(range(len(found)))
            assert all(one == record(one.txid) for one in found)
            assert len(found) > kept
            if answers:
                assert files.fence >= request.head.session
                after = {"append": 14, "set-low-water-mark": 11}.get(name, kept)
                assert files.max_txid == after
                if isinstance(request, s.SetLowWaterMark):
                    assert files.info.session == 2
        if not cut:
            assert step > 0
            return
    raise AssertionError("the operation does not end")


@pytest.mark.parametrize(("start", "least"), [(7, 6), (9, 9), (12, 9), (40, 40)], ids=str)
def test_a_trim_survives_a_power_cut_at_every_write_and_removal(
    start: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is the end of the log without a gap, never less than from ``start`` on."""
    request = s.Retain(head(2), start, -1, -1)
    for step in range(STEPS_MAX):
        for draw in range(DRAWS):
            disk = MemoryDisk()
            _, node = prepared(disk, BATCH_BYTES)
            cut = False
            with power_until(step, monkeypatch):
                try:
                    node.arrive(request.head)
                    [answer] = node.execute([request])
                    assert (answer.first, answer.last) == (least, max(11, start - 1))
                except PowerCutError:
                    cut = True
            disk.crash(random.Random(1000 * step + draw))
            again = opened(disk, BATCH_BYTES)
            files = again.partition(0)
            assert files is not None
            assert files.available, files.fault
            found = files.read(files.first, 100) if files.first <= files.max_txid else []
            while found and found[-1].txid < files.max_txid:
                found += files.read(found[-1].txid + 1, 100)
            assert found == [record(n) for n in range(files.first, files.max_txid + 1)]
            if start <= 12:
                assert files.first <= start
                assert files.max_txid == 11
            if not cut:
                assert (files.first, files.max_txid) == (least, max(11, start - 1))
                assert files.fence == 2
            # Whatever was left undone is done when it is asked for again, and the log goes on behind it.
            node = Node(again, disk_reserve_bytes=0)
            node.arrive(request.head)
            assert node.execute([request])[0].first == least
            assert node.execute([s.Truncate(head(2), 0, False)])[0].txid == max(0, least - 1)
            following = s.Append(head(2), (record(max(1, least)),), False)
            assert node.execute([following]) == [s.Success(head(2))]
            names = disk.folder("0").names()
            assert [name[:-4] for name in names if name.endswith("idx")] == [n[:-4] for n in names if n.endswith("seg")]
        if not cut:
            assert step > 0
            return
    raise AssertionError("the operation does not end")


def test_a_first_segment_that_is_lost_is_damage_and_no_trim() -> None:
    disk = MemoryDisk()
    _, node = prepared(disk, BATCH_BYTES)
    node.arrive(head(2))
    [kept] = node.execute([s.Retain(head(2), 3, -1, -1)])
    assert kept.first == 3
    for lost in (3, 6):
        disk.folder("0").remove(f"{lost:019d}.seg")
        files = opened(disk, BATCH_BYTES).partition(0)
        assert files is not None
        assert files.fault.startswith(
            f"damaged from transaction 3 on: the first segment there is begins with {lost + 3}"
        )


def test_a_rebuild_survives_a_power_cut_at_every_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until all was said to be verified the copy is damaged, or being rebuilt, or whole; whoever goes on ends well."""
    records = tuple(record(number) for number in range(12))

    def rebuild(directory: Directory, session: int) -> PartitionFiles:
        node = Node(directory, disk_reserve_bytes=0)
        node.arrive(head(session))
        files = directory.partition(0)
        assert files is not None
        if files.available:
            return files
        [begun] = node.execute([s.Repair(head(session), s.RepairStep.BEGIN)])
        assert begun.state == s.CopyState.REBUILDING
        [refused] = node.execute([s.LastSessionInfoRequest(head(session), False)])
        assert isinstance(refused, s.Failure)
        lacking = records[files.max_txid + 1 :]
        append = s.Append(head(session), lacking, False)
        assert node.execute([s.SetLowWaterMark(head(session), 11, False), append])[1] == s.Success(head(session))
        [done] = node.execute([s.Repair(head(session), s.RepairStep.DONE)])
        assert done.state == s.CopyState.SOUND
        return files

    for step in range(STEPS_MAX):
        for draw in range(DRAWS):
            disk = MemoryDisk()
            prepared(disk)
            disk.flip_bit("0", f"{0:019d}.seg", 200)
            directory = opened(disk)
            cut = False
            with power_until(step, monkeypatch):
                try:
                    rebuild(directory, 2)
                except PowerCutError:
                    cut = True
            disk.crash(random.Random(1000 * step + draw))
            again = opened(disk)
            found = again.partition(0)
            assert found is not None
            assert found.fence >= 1
            if found.available:
                assert found.info.session == 2
            else:
                assert found.state in (s.CopyState.DAMAGED, s.CopyState.REBUILDING)
            whole = rebuild(again, 3)
            txid = 0
            while txid <= 11:
                read = whole.read(txid, 100)
                assert read == list(records[txid : txid + len(read)])
                txid += len(read)
        if not cut:
            assert step > 20
            return
    raise AssertionError("the rebuild does not end")


def test_a_disk_that_spoils_each_copy_that_was_whole_is_left_alone_for_a_day() -> None:
    steady = [1e6]
    disk = MemoryDisk()
    prepared(disk)
    directory = Directory(disk.folder(), KEY, 1, clock=Clock(lambda: steady[0], lambda: steady[0]))
    directory.assign([0])
    node, files, number = Node(directory, disk_reserve_bytes=0), directory.partition(0), iter(range(2, 100))
    assert files is not None

    def spoiled() -> s.Repaired:
        """What an owner hears that looks at the copy, whose first record rots."""
        disk.flip_bit("0", f"{0:019d}.seg", 140)
        with pytest.raises(Damaged):
            files.read(0, 12)
        session = head(next(number))
        node.arrive(session)
        [found] = node.execute([s.Repair(session, s.RepairStep.LOOK)])
        assert isinstance(found, s.Repaired)
        return found

    def rebuilt() -> None:
        session = head(next(number))
        node.arrive(session)
        records = s.Append(session, tuple(record(n) for n in range(12)), False)
        done = s.Repair(session, s.RepairStep.DONE)
        node.execute([s.Repair(session, s.RepairStep.BEGIN), s.SetLowWaterMark(session, 11, False), records, done])
        assert files.available

    for _ in range(REBUILDS_MAX):
        assert spoiled().state == s.CopyState.DAMAGED
        steady[0] += REBUILT_MS / 1000 - 1
        rebuilt()
    told = spoiled()
    assert told.state == s.CopyState.SOUND  # nobody gives it up, nor uses it
    assert not files.available
    assert told.fault.startswith("damaged from transaction ")
    assert told.fault.endswith("it was copied anew 3 times, each within a day: replace the disk")
    steady[0] += REBUILT_MS / 1000
    rebuilt()
    assert spoiled().state == s.CopyState.DAMAGED


def test_a_repair_that_an_older_session_asks_for_is_refused() -> None:
    disk = MemoryDisk()
    prepared(disk)
    disk.flip_bit("0", f"{0:019d}.seg", 200)
    directory = opened(disk)
    node = Node(directory, disk_reserve_bytes=0)
    node.arrive(head(5))
    [refused] = node.execute([s.Repair(head(4), s.RepairStep.BEGIN)])
    assert isinstance(refused, s.Failure)
    [told] = node.execute([s.Repair(head(5), s.RepairStep.LOOK)])
    assert (told.state, told.session) == (s.CopyState.DAMAGED, 1)
    assert told.fault.startswith("damaged from transaction 1 on")


def test_a_bit_that_rots_below_the_mark_makes_the_partition_unavailable() -> None:
    disk = MemoryDisk()
    prepared(disk)
    disk.flip_bit("0", f"{0:019d}.seg", 200)
    directory = opened(disk)
    files = directory.partition(0)
    assert files is not None
    assert "damaged" in files.fault
    [answer] = Node(directory, disk_reserve_bytes=0).execute([s.MaxTransactionIdRequest(head(), False)])
    assert isinstance(answer, s.Failure)
    assert "damaged" in str(answer.message)


def test_a_torn_tail_above_the_mark_is_cut() -> None:
    disk = MemoryDisk()
    prepared(disk)
    names = [name for name in disk.folder("0").names() if name.endswith(".seg")]
    disk.folder("0").open(names[-1]).append([b"half a record"])
    files = opened(disk).partition(0)
    assert files is not None
    assert files.available
    assert files.max_txid == 11


def test_an_old_session_is_not_obeyed_after_a_restart() -> None:
    disk = MemoryDisk()
    _, node = prepared(disk)
    node.arrive(head(5))
    assert isinstance(node.execute([s.MaxTransactionIdRequest(head(5), False)])[0], s.MaxTransactionIdResponse)
    disk.crash(random.Random(1))
    [answer] = Node(opened(disk), disk_reserve_bytes=0).execute([s.Append(head(1), (record(12),), False)])
    assert isinstance(answer, s.Failure)
    assert answer.message is not None
    assert answer.message.startswith("session id has changed")


def test_a_full_disk_refuses_appends_and_keeps_what_is_there() -> None:
    disk = MemoryDisk()
    directory, node = prepared(disk)
    disk.bytes_free = 20
    [answer] = node.execute([s.Append(head(), (record(12),), False)])
    assert isinstance(answer, s.Failure)
    disk.bytes_free = None
    assert node.execute([s.Append(head(), (record(12),), False)]) == [s.Success(head())]
    files = directory.partition(0)
    assert files is not None
    assert files.max_txid == 12


def test_a_write_that_fails_and_cannot_be_cut_makes_the_partition_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    _, node = prepared(disk)
    disk.bytes_free = 20

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryFile, "truncate", fail)
        [answer] = node.execute([s.Append(head(), (record(12),), False)])
    assert isinstance(answer, s.Failure)
    disk.bytes_free = None
    [answer] = node.execute([s.Append(head(), (record(12),), False)])
    assert isinstance(answer, s.Failure), "it would be behind what is left of the first one"
    assert "a write failed: [Errno 28]" in (answer.message or "")


def test_a_failed_sync_makes_the_partition_unavailable() -> None:
    disk = MemoryDisk()
    _, node = prepared(disk)
    disk.failing_syncs = True
    [answer] = node.execute([s.Append(head(), (record(12),), False)])
    assert isinstance(answer, s.Failure)
    disk.failing_syncs = False
    [answer] = node.execute([s.MaxTransactionIdRequest(head(), False)])
    assert isinstance(answer, s.Failure)


@pytest.mark.parametrize("suffix", ["seg", "idx"])
def test_a_sync_that_failed_when_a_segment_was_full_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """One of several appends begins a segment; the kernel drops what it could not write, and says so once."""
    disk = MemoryDisk()
    directory, node = prepared(disk)
    files = directory.partition(0)
    assert files is not None
    failing = disk.folder("0").content([name for name in disk.folder("0").names() if name.endswith(suffix)][-1])
    sync = MemoryFile.sync
    failures: list[MemoryFile] = []

    def fail_once(file: MemoryFile) -> None:
        if file._content is failing and not failures:
            failures.append(file)
            failing.forget_changes()
            raise OSError(errno.EIO, "Input/output error")
        sync(file)

    monkeypatch.setattr(MemoryFile, "sync", fail_once)
    answers = node.execute([s.Append(head(), (record(txid),), False) for txid in range(12, 12 + 10)])
    assert failures
    assert all(isinstance(answer, s.Failure) for answer in answers)
    assert files.fault.startswith("a sync failed: [Errno 5]")


def failing_sync(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one sync of a file fail as a kernel does: what it was to write stays readable, and is never written."""
    sync, count = MemoryFile.sync, [0]

    def counted(file: MemoryFile) -> None:
        count[0] += 1
        if count[0] == step:
            file._content.forget_changes()
            raise OSError(errno.EIO, "Input/output error")
        sync(file)

    monkeypatch.setattr(MemoryFile, "sync", counted)


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_process_behind_a_failed_sync_tells_only_what_survives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process reads from the kernel's cache what never reached the disk: it says nothing that a cut undoes."""
    request, _ = OPERATIONS[name]
    for step in range(1, STEPS_MAX):
        for draw in range(DRAWS):
            disk = MemoryDisk()
            _, node = prepared(disk)
            failed = True
            with monkeypatch.context() as patch, suppress(OSError):  # of a fence: then the process ends
                failing_sync(step, patch)
                node.arrive(request.head)
                failed = isinstance(node.execute([request])[0], s.Failure)
            again = opened(disk).partition(0)
            assert again is not None
            assert again.available
            told = again.info, again.fence, again.read(9, 100), again.max_txid
            disk.crash(random.Random(1000 * step + draw))
            files = opened(disk).partition(0)
            assert files is not None
            assert (files.info, files.fence, files.read(9, 100), files.max_txid) == told, (step, draw, files.fault)
        if not failed:
            return
    raise AssertionError("it never ends")


def test_a_folder_whose_making_failed_is_begun_durably_by_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(1, STEPS_MAX):
        disk = MemoryDisk()
        with monkeypatch.context() as patch:
            failing_sync(step, patch)
            try:
                opened(disk)
                failed = False
            except OSError:
                failed = True
        node = Node(opened(disk), disk_reserve_bytes=0)
        node.arrive(head())
        assert node.execute([s.Append(head(), (record(0),), False)]) == [s.Success(head())]
        disk.crash(random.Random(step))
        files = opened(disk).partition(0)
        assert files is not None
        assert (files.fault, files.max_txid, files.fence) == ("", 0, 1)
        if not failed:
            return
    raise AssertionError("it never ends")


def test_a_segment_whose_header_was_not_written_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that finds no room, or a disk that failed once, is sent again: its segment must not lack its header."""
    disk = MemoryDisk()
    directory, node = prepared(disk)
    files = directory.partition(0)
    assert files is not None
    last = files.max_txid
    while not files.is_full():
        last += 1
        assert node.execute([s.Append(head(), (record(last),), False)]) == [s.Success(head())]
    sync, failures = MemoryFile.sync, list[MemoryFile]()

    def fail_once(file: MemoryFile) -> None:
        name = f"{last + 1:019d}.seg"
        made = disk.folder("0").content(name) if name in disk.folder("0").names() else None
        if not failures and file._content is made:
            failures.append(file)
            file._content.forget_changes()
            raise OSError(errno.EIO, "Input/output error")
        sync(file)

    monkeypatch.setattr(MemoryFile, "sync", fail_once)
    following = s.Append(head(), (record(last + 1),), False)
    answers = node.execute([following]) + node.execute([following])
    assert failures
    assert isinstance(answers[0], s.Failure)
    assert answers[1] == s.Success(head())
    directory.sync_marks()
    disk.crash(random.Random(1))
    again = opened(disk).partition(0)
    assert again is not None
    assert (again.fault, again.max_txid) == ("", last + 1)


def test_a_tool_cannot_write_to_a_copy_of_which_no_segment_is_there() -> None:
    """It is told so, and the storage node goes on with its other partitions."""
    disk = MemoryDisk()
    directory, _ = prepared(disk)
    directory.close()
    first, *_ = disk.folder("0").names()
    disk.folder("0").remove(first.replace("idx", "seg"))
    directory = Directory(disk.folder(), KEY, 2, segment_bytes=SEGMENT_BYTES)
    directory.assign([1])
    node = Node(directory, disk_reserve_bytes=0)
    node.arrive(s.Head(5, 1, 1))
    tail = s.Append(head(), (record(0),), True)
    other = s.Append(s.Head(5, 1, 1), (record(0),), False)
    found = node.execute([tail, s.SetLowWaterMark(head(), 0, True), other])
    assert [type(each) for each in found] == [s.Failure, s.Failure, s.Success]
    assert "the first segment there is begins with" in found[0].message


def test_an_index_whose_sync_failed_is_written_again_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a hole stays before the entries that are durable, and records that are whole cannot be read."""
    disk = MemoryDisk()
    node = Node(opened(disk, 1 << 20), disk_reserve_bytes=0)
    node.arrive(head())
    last = INDEX_SYNC_RECORDS + 10
    batches = [range(INDEX_SYNC_RECORDS // 2), range(INDEX_SYNC_RECORDS // 2, last + 1)]
    requests = [s.Append(head(), tuple(map(record, batch)), False) for batch in batches]
    assert node.execute([s.SetLowWaterMark(head(), -1, False), requests[0]])[1] == s.Success(head())
    index, sync = disk.folder("0").content(f"{0:019d}.idx"), MemoryFile.sync

    def fail(file: MemoryFile) -> None:
        if file._content is index:
            index.forget_changes()
            raise OSError(errno.EIO, "Input/output error")
        sync(file)

    with monkeypatch.context() as failing:
        failing.setattr(MemoryFile, "sync", fail)
        (answer,) = node.execute([requests[1]])
        assert isinstance(answer, s.Failure)
    again = Node(opened(disk, 1 << 20), disk_reserve_bytes=0)
    again.arrive(head(2))
    behind = range(last + 1, 2 * INDEX_SYNC_RECORDS + 10)
    last = behind[-1]
    assert again.execute([s.Append(head(2), tuple(map(record, behind)), False)]) == [s.Success(head(2))]
    disk.crash(random.Random(1))
    files = opened(disk, 1 << 20).partition(0)
    assert files is not None
    assert (files.fault, files.max_txid) == ("", last)
    for txid in range(last + 1):
        assert [found.txid for found in files.read(txid, 1)] == [txid]


def test_a_copy_of_which_only_some_segments_could_be_opened_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool would find an end in the middle, and make the segment behind it anew."""
    disk = MemoryDisk()
    prepared(disk)[0].close()
    names, opening = disk.folder("0").names(), MemoryFolder.open
    last = [name for name in names if name.endswith(".seg")][-1]

    def refused(folder: MemoryFolder, name: str) -> MemoryFile:
        if name == last:
            raise OSError(errno.EMFILE, "Too many open files")
        return opening(folder, name)

    with monkeypatch.context() as few:
        few.setattr(MemoryFolder, "open", refused)
        directory = opened(disk)
    node = Node(directory, disk_reserve_bytes=0)
    node.arrive(head())
    for txid in range(12):
        (found,) = node.execute([s.Append(head(), tuple(map(record, range(txid, txid + 3))), True)])
        assert isinstance(found, s.Failure)
    directory.close()
    assert disk.folder("0").names() == names
    files = opened(disk).partition(0)
    assert files is not None
    assert (files.fault, files.max_txid) == ("", 11)
