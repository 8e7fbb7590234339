"""The twin of the file system is as harsh as a real one, and a real folder does what the twin does."""

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pavane.wal import DiskFolder, Folder
from tests.services.memory_disk import MemoryDisk, MemoryFile

CRASHES = range(60)  # so many draws show each outcome of a crash


def after_crashes(prepare: Callable[[MemoryDisk, MemoryFile], None]) -> set[bytes]:
    """Return what a file of ten synced bytes may hold after ``prepare`` and a power cut."""
    outcomes = set()
    for seed in CRASHES:
        disk = MemoryDisk()
        folder = disk.folder("log")
        file = folder.create("a")
        file.append([b"0123456789"])
        file.sync()
        folder.sync()
        prepare(disk, file)
        disk.crash(random.Random(seed))
        content = folder.open("a")
        outcomes.add(content.read(0, content.size))
    return outcomes


def test_truncate_makes_no_unsynced_byte_durable() -> None:
    def prepare(_: MemoryDisk, file: MemoryFile) -> None:
        file.append([b"abcdef"])
        file.truncate(13)

    outcomes = after_crashes(prepare)
    assert b"0123456789" in outcomes
    assert b"0123456789abc" in outcomes


def test_a_cut_that_was_not_synced_may_be_lost_and_one_that_was_stays() -> None:
    def cut(_: MemoryDisk, file: MemoryFile) -> None:
        file.truncate(4)

    def cut_and_sync(_: MemoryDisk, file: MemoryFile) -> None:
        file.truncate(4)
        file.append([b"xy"])
        file.sync()

    assert after_crashes(cut) == {b"0123456789", b"0123"}
    assert after_crashes(cut_and_sync) == {b"0123xy"}


def test_what_a_failed_sync_lost_no_later_sync_brings_back() -> None:
    def prepare(disk: MemoryDisk, file: MemoryFile) -> None:
        file.append([b"lost"])
        disk.failing_syncs = True
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        disk.failing_syncs = False
        assert file.read(10, 4) == b"lost"  # as from the cache of a kernel
        file.append([b"kept"])
        file.sync()

    assert after_crashes(prepare) == {b"0123456789\0\0\0\0kept"}


def test_names_that_a_failed_sync_lost_are_not_synced_later() -> None:
    for seed in CRASHES:
        disk = MemoryDisk()
        folder = disk.folder("log")
        folder.create("a")
        disk.failing_syncs = True
        with pytest.raises(OSError, match="Input/output"):
            folder.sync()
        disk.failing_syncs = False
        with pytest.raises(OSError, match="Read-only"):
            folder.sync()
        disk.crash(random.Random(seed))
        folder.sync()  # a new start mounts it again


def test_rot_makes_no_unsynced_byte_durable() -> None:
    def prepare(disk: MemoryDisk, file: MemoryFile) -> None:
        file.append([b"abc"])
        disk.flip_bit("log", "a", 0)

    assert b"1123456789" in after_crashes(prepare)


def test_a_full_disk_refuses_to_overwrite_what_has_no_room() -> None:
    disk = MemoryDisk()
    file = disk.folder().create("a")
    file.append([b"0123456789"])
    disk.bytes_free = 3
    with pytest.raises(OSError, match="No space") as raised:
        file.overwrite(2, b"abcdef")
    assert raised.value.errno == errno.ENOSPC
    assert file.read(0, 20) == b"01abc56789"


def test_short_writes_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DiskFolder(tmp_path).create("a")
    write, write_all = os.pwrite, os.pwritev

    def short(descriptor: int, data: bytes, offset: int) -> int:
        return write(descriptor, data[:3], offset)

    def short_all(descriptor: int, parts: Sequence[bytes], offset: int) -> int:
        return write_all(descriptor, [parts[0][:2]], offset)

    monkeypatch.setattr(os, "pwrite", short)
    monkeypatch.setattr(os, "pwritev", short_all)
    file.append([b"0123", b"456789"])
    file.overwrite(1, b"abcdefg")
    assert file.read(0, 20) == b"0abcdefg89"
    file.close()


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return DiskFolder(tmp_path / "top") if request.param == "disk" else MemoryDisk().folder("top")


def test_folders_within_have_files_of_their_own(folder: Folder) -> None:
    inner = folder.folder("b")
    folder.folder("a").folder("deep")
    file = inner.create("file")
    file.append([b"inner"])
    file.close()
    folder.create("file").close()
    assert (folder.names(), folder.folders()) == (["file"], ["a", "b"])
    assert folder.folder("b").open("file").size == 5
    assert folder.folder("a").folders() == ["deep"]


def test_a_folder_is_removed_when_nothing_is_in_it(folder: Folder) -> None:
    inner = folder.folder("a")
    inner.create("file").close()
    with pytest.raises(OSError, match="not empty"):
        folder.remove_folder("a")
    inner.remove("file")
    inner.folder("deep")
    with pytest.raises(OSError, match="not empty"):
        folder.remove_folder("a")
    inner.remove_folder("deep")
    folder.remove_folder("a")
    assert folder.folders() == []
    with pytest.raises(FileNotFoundError):
        folder.remove_folder("a")
