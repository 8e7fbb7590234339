"""Torn tails are skipped, damaged records are named (docs/specs/ambrosia.md 12, 13)."""

import random

import pytest

from pavane.ambrosia.effects import (
    Append,
    BeginCheckpoint,
    CheckpointBytes,
    CreateLog,
    EndCheckpoint,
    Step,
    Storage,
    StoreMeta,
)
from pavane.ambrosia.errors import FatalError, LogDamaged, Superseded
from pavane.ambrosia.state import Meta, Progress
from pavane.ambrosia.storage import CheckpointReader, FileStore, Registry, Replay
from pavane.ambrosia.tenure import read_fence
from pavane.ambrosia.wire.files import CheckpointHead
from pavane.ambrosia.wire.messages import OUR_INITIAL_MESSAGE, Call, RpcType, incoming
from pavane.ambrosia.wire.records import LogRecord
from tests.services.memory_disk import MemoryDisk, MemoryFolder

FORK = incoming(Call(7, RpcType.FORK, b"some arguments"))
RECORDS = [
    LogRecord(7, 0, OUR_INITIAL_MESSAGE),
    LogRecord(7, 1, FORK, {"client": (1, 1)}),
    LogRecord(7, 2, FORK * 2, {"client": (3, 3)}),
    LogRecord(7, 3, FORK, {"client": (4, 4)}),
]
DATA = [record.encode() for record in RECORDS]


def written(*logs: bytes) -> MemoryFolder:
    folder = MemoryDisk().folder("x")
    for number, data in enumerate(logs, start=1):
        file = folder.create(f"serverlog{number}")
        file.append([data])
        file.sync()
    folder.sync()
    return folder


def replayed(folder: MemoryFolder, last_log: int = 1) -> list[LogRecord]:
    replay = Replay(folder, 1, last_log, Progress(7))
    found = []
    while (record := replay.next()) is not None:
        found.append(record)
    replay.finish()
    return found


def test_a_record_whose_sync_failed_is_durable_before_anybody_is_told_of_it() -> None:
    """The next process finds it in the kernel's cache, which takes it for written."""
    disk = MemoryDisk()
    folder = disk.folder("x")
    store = FileStore(folder, Registry(disk.folder("registry")), "server")
    store.carry_out(CreateLog(1))
    for record in RECORDS[:3]:
        store.carry_out(Append(record, record.parts()))
    disk.failing_syncs = True
    with pytest.raises(OSError, match="Input/output error"):
        store.carry_out(Append(RECORDS[3], RECORDS[3].parts()))
    disk.failing_syncs = False
    replay = Replay(folder, 1, 1, Progress(7))
    assert [replay.next() for _ in range(5)] == [*RECORDS, None]
    FileStore(folder, Registry(disk.folder("registry")), "server").finish(replay)
    disk.crash(random.Random(1))
    assert replayed(disk.folder("x")) == RECORDS


def test_a_tail_torn_at_any_byte_costs_its_record_alone() -> None:
    for cut in range(len(DATA[3])):
        assert replayed(written(b"".join(DATA[:3]) + DATA[3][:cut])) == RECORDS[:3]
        # Garbage behind it, as some writers leave it, and the next file of the recovery after the crash.
        torn = b"".join(DATA[:3]) + DATA[3][:cut]
        assert replayed(written(torn + b"\xff" * 100)) == RECORDS[:3]
        assert replayed(written(torn, DATA[3]), 2) == RECORDS


def test_a_flipped_bit_in_any_byte_of_a_record_with_a_successor_is_named() -> None:
    start = len(DATA[0] + DATA[1])
    for at in range(len(DATA[2])):
        damaged = bytearray(b"".join(DATA))
        damaged[start + at] ^= 1 << (at % 8)
        with pytest.raises(LogDamaged, match=f"record 2 at offset {start} is damaged"):
            replayed(written(bytes(damaged)))


def test_a_missing_file_or_record_is_named() -> None:
    with pytest.raises(LogDamaged, match="serverlog2 is missing"):
        replayed(written(b"".join(DATA)), 2)
    with pytest.raises(LogDamaged, match="serverlog2 begins with record 3; record 2 is missing"):
        replayed(written(b"".join(DATA[:2]), DATA[3]), 2)


def test_records_older_than_the_checkpoint_are_passed_over() -> None:
    replay = Replay(written(b"".join(DATA)), 1, 1, Progress(7, 2, {"client": (1, 1)}))
    assert replay.next() == RECORDS[2]


def test_a_reader_follows_a_file_that_grows() -> None:
    folder = written(b"")
    writer = folder.open("serverlog1")
    replay = Replay(folder, 1, 1, Progress(7))
    for record, data in zip(RECORDS, DATA, strict=True):
        writer.append([data[:10]])
        assert replay.next() is None
        writer.append([data[10:]])
        assert replay.next() == record
    assert replay.next() is None


def store(disk: MemoryDisk, generation: int = 0) -> FileStore:
    return FileStore(disk.folder("x"), Registry(disk.folder("registry")), "x", generation)


def test_what_was_carried_out_survives_a_power_cut() -> None:
    for seed in range(20):
        disk = MemoryDisk()
        first = store(disk)
        first.lock("p", "a:1")
        head = CheckpointHead(7, 0, b"", {}, {}, {}, {}, 5)
        meta = Meta(last_log=1, connections=("bob",))
        effects: list[Storage] = [
            CreateLog(1),
            StoreMeta(meta, Step.LOG),
            BeginCheckpoint(1, head),
            CheckpointBytes(b"state"),
            EndCheckpoint(1),
            StoreMeta(Meta(0, 1, 1, ("bob",)), Step.CHECKPOINT),
            *(Append(record, record.parts()) for record in RECORDS),
        ]
        for effect in effects:
            first.carry_out(effect)
        disk.crash(random.Random(seed))
        assert store(disk).row.meta == Meta(0, 1, 1, ("bob",))
        reader = CheckpointReader(disk.folder("x"), 1)
        assert (reader.head, b"".join(reader.blob())) == (head, b"state")
        assert replayed(disk.folder("x")) == RECORDS


def test_a_leftover_of_the_next_number_is_put_aside() -> None:
    folder = MemoryDisk()
    first = store(folder)
    folder.folder("x").create("serverlog1").append([b"old"])
    first.carry_out(CreateLog(1))
    names = folder.folder("x").names()
    assert "serverlog1" in names
    assert any(name.startswith("serverlog1.stale-") for name in names)


def test_a_damaged_checkpoint_is_named_before_anything_is_delivered() -> None:
    disk = MemoryDisk()
    first = store(disk)
    head = CheckpointHead(7, 0, b"", {}, {}, {}, {}, 5)
    for effect in (BeginCheckpoint(1, head), CheckpointBytes(b"state"), EndCheckpoint(1)):
        first.carry_out(effect)
    disk.flip_bit("x", "serverchkpt1", 40)
    with pytest.raises(FatalError, match="serverchkpt1 is damaged") as raised:
        CheckpointReader(disk.folder("x"), 1)
    assert raised.value.exit_code == 2


def test_a_fenced_writer_acknowledges_nothing() -> None:
    disk = MemoryDisk()
    old, new = store(disk, 1), store(disk, 2)
    old.lock("old", "a:1")
    old.carry_out(CreateLog(1))
    old.carry_out(Append(RECORDS[0], RECORDS[0].parts()))
    new.tenure.fence()
    assert read_fence(disk.folder("x")) == 2
    with pytest.raises(Superseded):
        old.carry_out(Append(RECORDS[1], RECORDS[1].parts()))
    old.close()
    new.lock("new", "b:1")
    with pytest.raises(Superseded):
        old.lock("old", "a:1")


def test_metadata_that_somebody_else_changed_are_not_overwritten() -> None:
    disk = MemoryDisk()
    first, second = store(disk), store(disk)
    first.carry_out(StoreMeta(Meta(last_log=1), Step.LOG))
    with pytest.raises(Superseded):
        second.carry_out(StoreMeta(Meta(last_log=9), Step.LOG))
    assert store(disk).row.meta.last_log == 1
