"""The storage thread: what it reports as done is synced, one sync serves all that waited, a failure is final."""

import errno
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pavane.wal import Appender, Batch, DiskFolder, Log, NewRecord, Writer
from pavane.wal.files import Buffer
from pavane.wal.times import SLOW_S
from pavane.wal.writer import HERE_BYTES, QUEUE_BATCHES
from tests.services.memory_disk import MemoryDisk, MemoryFile, MemoryFolder

STORE = bytes(16)
WAIT_S = 20.0


def nothing() -> Sequence[NewRecord]:
    return ()


class Bench:
    """A log whose writer reports into lists; ``finished`` is set by every report."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.disk = disk
        folder = disk.folder("log")
        self.log = Log.create(folder, STORE, nothing)
        self.done: list[int] = []
        self.errors: list[Exception] = []
        self.finished = threading.Event()
        self.writer = Writer(Appender(folder), self.on_done, self.on_failed)

    def on_done(self, batches: Sequence[Batch]) -> None:
        self.done += [batch.last_sequence for batch in batches]
        self.finished.set()

    def on_failed(self, error: Exception) -> None:
        self.errors.append(error)
        self.finished.set()

    def submit(self, payload: bytes = b"x", *, sync: bool = True) -> int:
        self.log.append(1, [payload], sync=sync)
        batch = self.log.take()
        assert batch is not None
        self.writer.submit(batch)
        return batch.last_sequence


def test_batches_that_wait_share_one_sync_and_are_reported_in_order() -> None:
    bench = Bench(MemoryDisk())
    sequences = [bench.submit() for _ in range(50)]
    bench.writer.start()
    bench.writer.close()
    assert bench.done == sequences
    assert bench.writer.syncs == 1


def test_close_writes_what_is_queued() -> None:
    disk = MemoryDisk()
    bench = Bench(disk)
    bench.writer.start()
    last = bench.submit(b"last words")
    bench.writer.close()
    assert bench.done[-1] == last
    [name] = disk.folder("log").names()
    assert b"last words" in bytes(disk.folder("log").content(name).synced)


def test_a_failed_sync_is_reported_once_and_nothing_is_done_after_it() -> None:
    disk = MemoryDisk()
    bench = Bench(disk)
    disk.failing_syncs = True
    bench.writer.start()
    bench.submit()
    assert bench.finished.wait(WAIT_S)
    disk.failing_syncs = False
    bench.submit()
    bench.writer.close()
    assert bench.done == []
    assert [getattr(error, "errno", None) for error in bench.errors] == [errno.EIO]


def test_a_full_disk_is_reported() -> None:
    disk = MemoryDisk()
    bench = Bench(disk)
    disk.bytes_free = 100
    bench.writer.start()
    bench.submit(bytes(1000))
    bench.writer.close()
    assert bench.done == []
    assert [getattr(error, "errno", None) for error in bench.errors] == [errno.ENOSPC]


def test_a_step_that_fails_by_a_mistake_of_ours_is_reported_too() -> None:
    def mistaken() -> None:
        raise ValueError

    bench = Bench(MemoryDisk())
    bench.log.before_next(mistaken)
    bench.writer.start()
    bench.submit()
    assert bench.finished.wait(WAIT_S)
    bench.writer.close()
    assert bench.done == []
    assert [type(error) for error in bench.errors] == [ValueError]


def test_the_queue_says_when_it_is_full_and_when_there_is_room_again() -> None:
    bench = Bench(MemoryDisk())
    for _ in range(QUEUE_BATCHES - 1):
        bench.submit()
    assert not bench.writer.is_full
    bench.submit()
    assert bench.writer.is_full
    bench.writer.start()
    bench.writer.close()
    assert not bench.writer.is_full


def test_a_batch_nobody_waits_for_costs_no_sync() -> None:
    disk = MemoryDisk()
    bench = Bench(disk)
    bench.submit()
    bench.writer.start()
    assert bench.finished.wait(WAIT_S)
    bench.finished.clear()
    before = disk.syncs
    bench.submit(sync=False)
    bench.writer.close()
    assert len(bench.done) == 2
    assert disk.syncs == before


def test_a_write_that_the_kernel_takes_in_pieces_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DiskFolder(tmp_path).create("file")
    whole = os.pwritev

    def short(descriptor: int, parts: Sequence[Buffer], offset: int) -> int:
        return whole(descriptor, [b"".join(parts)[:5]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    file.append([b"abc", b"def", b"ghi"])
    file.append([b"jkl"])
    assert file.read(0, 100) == b"abcdefghijkl"
    file.close()


def test_twin_keeps_synced_bytes_and_may_lose_the_rest() -> None:
    outcomes = set()
    for seed in range(40):
        disk = MemoryDisk()
        folder: MemoryFolder = disk.folder("log")
        file: MemoryFile = folder.create("file")
        folder.sync()
        file.append([b"synced"])
        file.sync()
        file.append([b"-lost"])
        disk.crash(random.Random(seed))
        file = folder.open("file")
        outcomes.add(file.read(0, 100))
    assert all(outcome.startswith(b"synced") for outcome in outcomes)
    assert {b"synced", b"synced-lost"} < outcomes


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path)
    lock = folder.lock("lock")
    with pytest.raises(BlockingIOError):
        folder.lock("lock")
    lock.release()
    folder.lock("lock").release()


class Clock:
    """Time that passes by what syncs are said to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.sync_s = 0.0
        monkeypatch.setattr("pavane.wal.writer.time.perf_counter", self._perf_counter)

    def _perf_counter(self) -> float:
        self.now_s += self.sync_s
        return self.now_s


def taken(bench: Bench, payload: bytes = b"x") -> Batch:
    bench.log.append(1, [payload])
    batch = bench.log.take()
    assert batch is not None
    return batch


def test_the_caller_writes_itself_once_syncs_were_quick_and_until_one_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, bench = Clock(monkeypatch), Bench(MemoryDisk())
    first = taken(bench)
    assert not bench.writer.suits_here(first)  # it makes a file, and nobody knows the disk yet
    bench.writer.write_here(first)
    clock.sync_s = 0.0001
    while not bench.writer.suits_here(batch := taken(bench)):
        bench.writer.write_here(batch)
    assert bench.writer.syncs > 1
    clock.sync_s = SLOW_S
    bench.writer.write_here(batch)
    assert not bench.writer.suits_here(taken(bench))


def test_the_caller_writes_nothing_large_and_takes_no_steps_for_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    bench = Bench(MemoryDisk())
    for _ in range(10):
        bench.writer.write_here(taken(bench))
    assert bench.writer.suits_here(taken(bench))
    assert not bench.writer.suits_here(taken(bench, bytes(HERE_BYTES)))
    bench.log.after_next(lambda: None)
    assert not bench.writer.suits_here(taken(bench))
