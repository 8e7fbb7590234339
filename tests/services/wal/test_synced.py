"""A log that lost its end knows it, however many batches were in it: a second file states what was synced."""

import random
from pathlib import Path

import pytest

from pavane.wal import Appender, DiskFolder, Folder, Log, Scanned, SyncedFile
from pavane.wal.record import check_seed
from pavane.wal.synced import NAME, SYNC_EVERY
from tests.services.memory_disk import MemoryDisk
from tests.services.wal.test_log import DATA, REPAIR, STORE, content_of, nothing, replace

SEED = check_seed(STORE)


def write(folder: Folder, batches: int, *, settle: bool = False) -> list[int]:
    """Write so many batches of one record; return where each ends."""
    log = Log.create(folder.folder("log"), STORE, nothing)
    appender = Appender(folder.folder("log"), SyncedFile(folder, SEED))
    ends = []
    for number in range(batches):
        log.append(DATA, [b"batch %d" % number])
        if settle and number == batches - 1:
            flush(log, appender)
            log.mark()
        flush(log, appender)
        [name] = folder.folder("log").names()
        ends.append(len(content_of(folder.folder("log"), name)))
    log.close()
    appender.close()
    return ends


def flush(log: Log, appender: Appender) -> None:
    batch = log.take()
    assert batch is not None
    appender.execute([batch])
    log.completed(batch)


def reopen(folder: Folder) -> tuple[Scanned, list[bytes]]:
    content: list[bytes] = []
    synced = SyncedFile(folder, SEED)
    log, found = Log.open(
        folder.folder("log"),
        STORE,
        lambda record: content.append(bytes(record.payload)),
        lambda: [(REPAIR, [b"lost"])],
        nothing,
        synced=synced.read(),
    )
    log.close()
    if found.corrupt:
        synced.forget()
    return found, content


@pytest.mark.parametrize("disk", ["disk", "memory"])
@pytest.mark.parametrize("zeroed", [False, True], ids=["cut", "zeroed"])
@pytest.mark.parametrize("batches", [1, 2, 5])
@pytest.mark.parametrize("into", [0, 3], ids=["whole batches", "and a part"])
def test_a_lost_tail_of_synced_batches_is_damage(
    tmp_path: Path, disk: str, batches: int, into: int, *, zeroed: bool
) -> None:
    folder: Folder = DiskFolder(tmp_path) if disk == "disk" else MemoryDisk().folder("data")
    ends = write(folder, 8)
    log = folder.folder("log")
    [name] = log.names()
    whole = content_of(log, name)
    kept = ends[7 - batches] + into
    damaged = whole[:kept] + bytes(len(whole) - kept if zeroed else 0)
    replace(log, name, damaged)
    found, content = reopen(folder)
    assert found.corrupt
    assert content == [b"batch %d" % number for number in range(8 - batches)]
    assert [content_of(log, aside) for aside in found.set_aside] == [damaged]
    found, content = reopen(folder)
    assert not found.corrupt
    assert content[-1] == b"lost"


def test_what_was_never_synced_is_no_damage(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path)
    write(folder, 3)
    log = folder.folder("log")
    [name] = log.names()
    whole = content_of(log, name)
    replace(log, name, whole + b"half a rec")
    found, content = reopen(folder)
    assert (found.corrupt, found.torn_bytes, len(content)) == (False, 10, 3)


@pytest.mark.parametrize("seed", range(20))
def test_it_never_states_more_than_survives_a_power_cut(seed: int) -> None:
    disk = MemoryDisk()
    folder = disk.folder("data")
    rng = random.Random(seed)
    write(folder, rng.randrange(1, 2 * SYNC_EVERY))
    disk.crash(rng)
    found, _ = reopen(folder)
    assert not found.corrupt


@pytest.mark.parametrize(("batches", "settle"), [(SYNC_EVERY, False), (3, True)], ids=["busy", "idle"])
def test_it_survives_a_power_cut_itself(batches: int, *, settle: bool) -> None:
    disk = MemoryDisk()
    folder = disk.folder("data")
    write(folder, batches, settle=settle)
    disk.crash(random.Random(1))
    assert SyncedFile(folder, SEED).read() >= batches


def test_a_torn_statement_leaves_the_one_before(tmp_path: Path) -> None:
    folder = DiskFolder(tmp_path)
    write(folder, 5)
    stated = SyncedFile(folder, SEED).read()
    whole = content_of(folder, NAME)
    for offset in (0, 512):
        torn = bytearray(whole)
        torn[offset] ^= 0xFF
        replace(folder, NAME, bytes(torn))
        assert 0 < SyncedFile(folder, SEED).read() <= stated
    replace(folder, NAME, b"")
    assert SyncedFile(folder, SEED).read() == 0
