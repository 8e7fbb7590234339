"""Snapshots on disk: saved, received, chosen at start; the log in front of them goes (docs/specs/raft.md 9.2, 13)."""

import random
from hashlib import blake2b

import pytest

from pavane.raft.state.commands import (
    RECOVERING_FLOOR,
    Append,
    Compact,
    Recovered,
    SnapshotInstall,
    SnapshotPart,
    SnapshotSave,
    StoredSnapshot,
)
from pavane.raft.storage import Identity, RaftStorage
from pavane.raft.wire.entry import EntryType, encode_configuration, encode_entry
from pavane.raft.wire.snapshot import SNAPSHOT_NAME, SnapshotHead, SnapshotMeta, encode_group
from pavane.wal import Appender
from pavane.wire import LocalProtocolError
from tests.services.memory_disk import MemoryDisk, MemoryFolder

IDENTITY = Identity("1", "KeyValue")
META = SnapshotMeta(
    encode_configuration((("1", "tcp://127.0.0.1:1"),), None), 1, "KeyValue", 1, 6, encode_group(7, bytes(16))
)
SEGMENT_BYTES = 2048


def entry(number: int, term: int = 1) -> bytes:
    return encode_entry(b"request" + number.to_bytes(5, "big"), EntryType.STATE, term, b"%d" % number)


def entries(first: int, last: int, term: int = 1) -> tuple[bytes, ...]:
    return tuple(entry(number, term) for number in range(first, last + 1))


def file_of(index: int, term: int = 1, data: bytes = b"state") -> bytes:
    meta = META.encode()
    front = SnapshotHead(index, term, len(meta), len(data)).encode() + meta + data
    return front + blake2b(front, digest_size=32).digest()


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def folder(disk: MemoryDisk) -> MemoryFolder:
    return disk.folder("data")


class Store:
    """A store whose commands are durable at once."""

    def __init__(self, folder: MemoryFolder) -> None:
        self.folder = folder
        self.ticket = 0
        self.storage = RaftStorage(folder, IDENTITY, segment_bytes=SEGMENT_BYTES)
        self.appender = Appender(self.storage.log_folder)
        self.recovered = self.storage.take_recovered()

    def do(self, command: type, *fields: object) -> None:
        self.ticket += 1
        self.storage.execute([command(self.ticket, *fields)])
        self.flush()

    def flush(self) -> None:
        batch = self.storage.take()
        assert batch is not None
        self.appender.execute([batch])
        self.storage.completed([batch])

    def fill(self, first: int, last: int) -> None:
        """One record each, so that segments end in between."""
        for number in range(first, last + 1):
            self.do(Append, number, (entry(number),))

    def save(self, index: int, first_kept: int) -> None:
        writer = self.storage.snapshots.begin(META.encode())
        writer.add(b"st")
        writer.add(b"ate")
        assert writer.finish(index, 1) == len(b"state")
        self.do(SnapshotSave, index, 1)
        self.do(Compact, first_kept)

    def receive(self, index: int, *, keep_log: bool = False, term: int = 1) -> None:
        file = file_of(index, term)
        for offset in range(0, len(file), 50):
            self.do(SnapshotPart, offset == 0, file[offset : offset + 50])
        self.do(SnapshotInstall, index, term, keep_log)

    def reopened(self) -> "Store":
        self.appender.close()
        self.storage.close()
        return Store(self.folder)

    def read(self, first: int, last: int) -> list[bytes]:
        return [bytes(view) for view in self.storage.read(first, last, 1 << 20)]

    @property
    def files(self) -> list[str]:
        return self.folder.folder("snap").names()


def name(index: int, term: int = 1) -> str:
    return SNAPSHOT_NAME.format(index=index, term=term)


def test_saved_snapshot_is_found_again_with_the_log_behind_it(folder: MemoryFolder) -> None:
    store = Store(folder)
    store.fill(1, 100)
    segments = len(store.storage.log_folder.names())
    store.save(90, 81)
    assert store.read(81, 100) == list(entries(81, 100))
    with pytest.raises(LocalProtocolError, match="begins with 81"):
        store.read(80, 100)
    store = store.reopened()
    found = store.recovered
    assert found.snapshot == StoredSnapshot(90, 1, META, 5)
    assert 1 < found.first_index <= 81
    assert found.last_index == 100
    assert found.commit == 90
    assert found.reqids == b"".join(item[:12] for item in entries(found.first_index, 100))
    assert not found.corrupt
    assert store.read(found.first_index, 100) == list(entries(found.first_index, 100))
    assert len(store.storage.log_folder.names()) < segments
    source = store.storage.open_snapshot(90)
    assert source.read(source.head.data_offset, source.head.data_bytes) == b"state"
    assert source.read(0, source.head.total) == file_of(90)


def test_saved_file_is_the_one_that_is_sent(folder: MemoryFolder) -> None:
    store = Store(folder)
    store.fill(1, 10)
    store.save(10, 10)
    assert folder.folder("snap").open(name(10)).read(0, 1 << 20) == file_of(10)


@pytest.mark.parametrize("form", ["whole", "bare"])
@pytest.mark.parametrize("rotten", [False, True])
def test_nobody_is_given_the_last_of_a_file_that_has_rotted_since_the_start(
    disk: MemoryDisk, folder: MemoryFolder, form: str, rotten: bool
) -> None:
    store = Store(folder)
    store.do(SnapshotPart, True, file_of(9, data=b"the state of the machine"))
    store.do(SnapshotInstall, 9, 1, False)
    reader = store.storage.open_snapshot(9)
    start, end = reader.head.data_offset, reader.head.data_offset + reader.head.data_bytes
    if rotten:
        disk.flip_bit("data/snap", name(9), start + 3)
    if form == "whole":
        start, end = 0, reader.head.total
    assert len(reader.read(start, 20)) == 20
    if rotten:
        with pytest.raises(OSError, match="digest"):
            reader.read(start + 20, end - start - 20)
    else:
        assert len(reader.read(start + 20, end - start - 20)) == end - start - 20


def test_a_segment_that_goes_before_it_is_checked_is_no_damage(folder: MemoryFolder) -> None:
    store = Store(folder)
    store.fill(1, 100)
    check = store.storage.next_scrub()
    assert check is not None
    store.save(90, 81)
    assert check() is None


def test_a_whole_log_may_go(folder: MemoryFolder) -> None:
    store = Store(folder)
    store.fill(1, 100)
    store.save(100, 101)
    assert len(store.storage.log_folder.names()) == 1
    store = store.reopened()
    store.fill(101, 102)
    store = store.reopened()
    assert store.recovered.last_index == 102
    assert store.read(101, 102) == list(entries(101, 102))


def test_two_snapshots_are_kept_and_the_older_serves_when_the_newest_rots(
    disk: MemoryDisk, folder: MemoryFolder
) -> None:
    store = Store(folder)
    store.fill(1, 90)
    for index, kept in ((30, 1), (60, 31), (90, 61)):
        store.save(index, kept)
    assert store.files == [name(60), name(90)]
    disk.flip_bit("data/snap", name(90), 100)
    assert "digest" in (store.storage.snapshots.newest_fault() or "")
    store = store.reopened()
    assert store.recovered.snapshot == StoredSnapshot(60, 1, META, 5)
    assert store.recovered.last_index == 90
    assert not store.recovered.corrupt
    assert store.files == [name(60), name(90) + ".bad"]
    assert store.storage.set_aside == (name(90) + ".bad",)


def test_snapshot_that_the_log_needs_and_that_rots_makes_the_peer_recovering(
    disk: MemoryDisk, folder: MemoryFolder
) -> None:
    store = Store(folder)
    store.fill(1, 90)
    store.save(90, 91)
    disk.flip_bit("data/snap", name(90), 100)
    for _ in range(2):
        store = store.reopened()
        found = store.recovered
        assert (found.snapshot, found.last_index, found.vote_floor) == (None, 0, RECOVERING_FLOOR)
    store.receive(90)
    store.fill(91, 92)
    store = store.reopened()
    assert store.recovered.snapshot == StoredSnapshot(90, 1, META, 5)
    assert store.read(91, 92) == list(entries(91, 92))


@pytest.mark.parametrize("keep_log", [True, False])
def test_received_snapshot_takes_the_place_of_the_log(folder: MemoryFolder, keep_log: bool) -> None:
    store = Store(folder)
    store.fill(1, 20 if keep_log else 8)
    store.receive(12, keep_log=keep_log)
    store.do(Compact, 13)
    store.do(Append, 21 if keep_log else 13, (entry(21),))
    store = store.reopened()
    found = store.recovered
    assert found.snapshot == StoredSnapshot(12, 1, META, 5)
    assert found.last_index == (21 if keep_log else 13)
    assert not found.corrupt
    assert store.read(found.last_index, found.last_index) == [entry(21)]


def test_entries_that_contradict_a_received_snapshot_are_forgotten(folder: MemoryFolder) -> None:
    store = Store(folder)
    store.fill(1, 20)
    store.receive(12, term=3)
    store = store.reopened()
    assert (store.recovered.first_index, store.recovered.last_index) == (13, 12)
    assert store.recovered.term_runs == ()


def test_unfinished_files_are_removed(folder: MemoryFolder) -> None:
    store = Store(folder)
    store.fill(1, 5)
    store.storage.snapshots.begin(META.encode()).add(b"half")
    store.do(SnapshotPart, True, file_of(9)[:70])
    store.appender.close()
    folder.crash(random.Random(1))
    store = Store(folder)
    assert store.files == []
    assert store.recovered.snapshot is None
    assert store.recovered.last_index == 5


def test_another_transfer_begins_the_file_anew(folder: MemoryFolder) -> None:
    store = Store(folder)
    store.do(SnapshotPart, True, b"bytes of a leader that has gone")
    store.receive(9)
    assert folder.folder("snap").open(name(9)).read(0, 1 << 20) == file_of(9)


def test_snapshot_of_another_machine_is_not_used(folder: MemoryFolder) -> None:
    store = Store(folder)
    store.receive(9)
    store.appender.close()
    store.storage.close()
    folder.remove("store.json")
    for segment in folder.folder("log").names():
        folder.folder("log").remove(segment)
    storage = RaftStorage(folder, Identity("1", "Tree"))
    assert storage.take_recovered() == Recovered()
    assert storage.set_aside == (name(9) + ".bad",)


@pytest.mark.parametrize("seed", range(60))
def test_a_power_cut_at_any_step_loses_nothing_that_was_durable(seed: int) -> None:
    """Whatever reached the disk of the last commands: the entries behind the snapshot are those that were stored."""
    rng = random.Random(seed)
    disk = MemoryDisk()
    store = Store(disk.folder("data"))
    last = durable = snapshot = 0
    for _ in range(rng.randint(1, 12)):
        count = rng.randint(1, 30)
        store.fill(last + 1, last + count)
        last = durable = last + count
        if rng.random() < 0.4:
            snapshot = rng.randint(max(1, snapshot), last)
            store.save(snapshot, rng.randint(1, snapshot + 1))
        elif rng.random() < 0.2:
            last = durable = snapshot = last + rng.randint(1, 20)
            store.receive(snapshot)
            store.do(Compact, snapshot + 1)
    step = rng.random()
    if step < 0.5:
        writer = store.storage.snapshots.begin(META.encode())
        writer.add(b"state")
        if step < 0.25:
            writer.finish(last, 1)
            if step < 0.1:
                store.storage.execute([SnapshotSave(900, last, 1), Compact(901, last + 1)])
    else:
        store.storage.execute([Append(900, last + 1, entries(last + 1, last + 9))])
    if step < 0.1 or step >= 0.5:
        batch = store.storage.take()
        assert batch is not None
        disk.failing_syncs = True
        with pytest.raises(OSError, match="Input/output"):
            store.appender.execute([batch])
        disk.failing_syncs = False
    disk.crash(rng)
    found = Store(disk.folder("data"))
    recovered = found.recovered
    assert recovered.last_index >= durable
    assert (recovered.snapshot.index if recovered.snapshot else 0) >= snapshot
    assert recovered.first_index <= (recovered.snapshot.index if recovered.snapshot else 0) + 1
    assert not recovered.corrupt
    assert found.read(recovered.first_index, durable) == list(entries(recovered.first_index, durable))
