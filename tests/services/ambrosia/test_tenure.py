"""A writer that stands still is overtaken, and what it does later counts for nobody (docs/specs/ambrosia.md 14)."""

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
from pavane.ambrosia.errors import FatalError, Superseded
from pavane.ambrosia.state import Meta, Progress
from pavane.ambrosia.storage import CheckpointReader, FileStore, Registry, Replay
from pavane.ambrosia.tenure import STILL_LOOKS, TURN, Tenure
from pavane.ambrosia.wire.files import CheckpointHead
from pavane.ambrosia.wire.messages import OUR_INITIAL_MESSAGE, Call, RpcType, incoming
from pavane.ambrosia.wire.records import LogRecord
from tests.services.memory_disk import MemoryDisk

OVERTAKEN = "stood still, and another one took over"
HEAD = CheckpointHead(7, 0, b"", {}, {}, {}, {}, 5)


def record(seq: int, arguments: bytes = b"") -> Append:
    """Return what logs a record; the same number with other arguments is another history."""
    body = incoming(Call(7, RpcType.FORK, arguments)) if seq else OUR_INITIAL_MESSAGE
    found = LogRecord(7, seq, body, {"client": (seq, seq)} if seq else {})
    return Append(found, found.parts())


def checkpoint(number: int, blob: bytes) -> list[Storage]:
    return [BeginCheckpoint(number, HEAD), CheckpointBytes(blob), EndCheckpoint(number)]


def store(disk: MemoryDisk, generation: int = 0) -> FileStore:
    return FileStore(disk.folder("x"), Registry(disk.folder("registry")), "x", generation)


def writer(disk: MemoryDisk) -> FileStore:
    """Return one that leads, with a checkpoint and two records."""
    found = store(disk)
    found.lock("old", "a:1")
    begun: list[Storage] = [CreateLog(1), StoreMeta(Meta(last_log=1), Step.LOG), *checkpoint(1, b"state")]
    for effect in (*begun, StoreMeta(Meta(0, 1, 1), Step.CHECKPOINT), record(0), record(1)):
        found.carry_out(effect)
    return found


def read(disk: MemoryDisk, last_log: int = 1) -> tuple[Replay, list[LogRecord]]:
    replay = Replay(disk.folder("x"), 1, last_log, Progress(7))
    found = []
    while (each := replay.next()) is not None:
        found.append(each)
    return replay, found


def overtaken(disk: MemoryDisk) -> FileStore:
    """Take the lead from whoever has it; return the one that leads now."""
    new = store(disk)
    new.tenure.overtake()
    replay, _ = read(disk)
    new.lock("new", "b:1")
    new.finish(replay)
    return new


def test_a_record_that_comes_too_late_is_never_acknowledged_and_never_read() -> None:
    for seed in range(10):
        disk = MemoryDisk()
        old = writer(disk)
        new = overtaken(disk)
        with pytest.raises(FatalError, match=OVERTAKEN):
            old.carry_out(record(2, b"late"))
        for effect in (CreateLog(2), StoreMeta(Meta(0, 1, 2), Step.LOG), record(2, b"new")):
            new.carry_out(effect)
        disk.crash(random.Random(seed))
        replay, found = read(disk, last_log=2)
        assert found == [record(0).record, record(1).record, record(2, b"new").record]
        replay.finish()


def test_a_record_that_came_in_time_counts_although_its_writer_was_overtaken() -> None:
    disk = MemoryDisk()
    old = writer(disk)
    new = store(disk)
    new.tenure.overtake()
    with pytest.raises(FatalError, match=OVERTAKEN):
        old.carry_out(record(2, b"in time"))
    replay, found = read(disk)
    new.lock("new", "b:1")
    new.finish(replay)
    disk.crash(random.Random(1))
    assert found[2:] == [record(2, b"in time").record]
    assert read(disk)[1] == found


def test_nothing_of_which_there_is_one_is_changed_by_who_was_overtaken() -> None:
    disk = MemoryDisk()
    old = writer(disk)
    old.carry_out(BeginCheckpoint(2, HEAD))
    old.carry_out(CheckpointBytes(b"old's"))
    new = overtaken(disk)
    for effect in (CreateLog(2), StoreMeta(Meta(0, 1, 2), Step.LOG), *checkpoint(2, b"new's")):
        new.carry_out(effect)
    names, row = disk.folder("x").names(), store(disk).row
    late: list[Storage] = [CreateLog(2), StoreMeta(Meta(0, 2, 2), Step.CHECKPOINT), EndCheckpoint(2)]
    for effect in (*late, BeginCheckpoint(2, HEAD)):
        with pytest.raises(FatalError, match=OVERTAKEN) as raised:
            old.carry_out(effect)
        assert raised.value.exit_code == 4
    with pytest.raises(FatalError, match=OVERTAKEN):
        old.lock("old", "a:1")
    assert (disk.folder("x").names(), store(disk).row) == (names, row)
    assert b"".join(CheckpointReader(disk.folder("x"), 2).blob()) == b"new's"


def test_only_one_overtakes_and_its_peers_know_it_by_its_token() -> None:
    disk = MemoryDisk()
    old = writer(disk)
    one, other = store(disk), store(disk)
    with pytest.raises(FatalError, match="is already running: process old since"):
        one.lock("one", "b:1")
    one.tenure.overtake()
    one.lock("one", "b:1")
    with pytest.raises(FatalError, match=OVERTAKEN):
        other.tenure.overtake()
    with pytest.raises(FatalError, match=OVERTAKEN):
        old.tenure.beat()
    assert one.tenure.token > old.tenure.token
    with pytest.raises(FatalError, match="is already running: process one since"):
        store(disk).lock("third", "c:1")
    next_generation = store(disk, 1)
    next_generation.tenure.fence()
    assert next_generation.tenure.token > one.tenure.token
    with pytest.raises(Superseded):
        one.tenure.beat()


def test_a_writer_stands_still_when_look_after_look_its_beat_is_the_same() -> None:
    disk = MemoryDisk()
    follower = store(disk).tenure
    assert not any(follower.stands_still() for _ in range(2 * STILL_LOOKS))  # nobody has written yet
    old = writer(disk).tenure
    for _ in range(2 * STILL_LOOKS):
        old.beat()
        assert not follower.stands_still()
    assert [follower.stands_still() for _ in range(STILL_LOOKS)].index(True) == STILL_LOOKS - 1
    old.beat()
    assert not follower.stands_still()


def test_nobody_overtakes_a_writer_in_the_middle_of_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pavane.ambrosia.tenure.TURN_S", 0.0)
    disk = MemoryDisk()
    old = writer(disk)
    changing = disk.folder("x").lock(TURN)
    with pytest.raises(FatalError, match=f"a process that stands still holds .*{TURN}: end it"):
        Tenure(disk.folder("x"), "x").overtake()
    changing.release()
    old.carry_out(record(2))
