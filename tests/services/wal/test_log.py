"""The write-ahead log on real files and on the twin: what was synced comes back, the rest is whole or dropped."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pavane.wal import Appender, CorruptRecord, DiskFolder, Folder, ForeignLog, Log, NewRecord, Scanned, first_fault
from pavane.wal.files import Buffer
from pavane.wal.record import FRAME_BYTES, HEADER_BYTES, check_seed, encode_mark
from tests.services.memory_disk import MemoryDisk, MemoryFile

STORE = bytes(range(16))
DATA = 1
REPAIR = 2
SMALL_SEGMENT = 256

Content = list[tuple[int, bytes]]


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return DiskFolder(tmp_path / "log") if request.param == "disk" else MemoryDisk().folder("log")


def nothing() -> Sequence[NewRecord]:
    return ()


def create(folder: Folder, segment_bytes: int = 1 << 20) -> Log:
    return Log.create(folder, STORE, nothing, segment_bytes)


def reopen(
    folder: Folder,
    repair: Callable[[], Sequence[NewRecord]] = nothing,
    preamble: Callable[[], Sequence[NewRecord]] = nothing,
    store: bytes = STORE,
    synced: int = 0,
) -> tuple[Log, Scanned, Content]:
    content: Content = []
    log, found = Log.open(
        folder,
        store,
        lambda record: content.append((record.kind, bytes(record.payload))),
        repair,
        preamble,
        SMALL_SEGMENT,
        synced,
    )
    return log, found, content


def flush(folder: Folder, log: Log) -> None:
    appender = Appender(folder)
    batch = log.take()
    assert batch is not None
    appender.execute([batch])
    log.completed(batch)
    appender.close()


def write(folder: Folder, log: Log, *payloads: bytes) -> list[int]:
    positions = [log.append(DATA, [payload]) for payload in payloads]
    flush(folder, log)
    return positions


def replace(folder: Folder, name: str, data: bytes) -> None:
    folder.remove(name)
    file = folder.create(name)
    file.append([data])
    file.sync()
    file.close()


def content_of(folder: Folder, name: str) -> bytes:
    file = folder.open(name)
    try:
        return file.read(0, file.size)
    finally:
        file.close()


def test_records_come_back_in_order_with_their_types(folder: Folder) -> None:
    log = create(folder)
    log.append(7, [b"one", b"-", b"two"])
    log.append(8, [b""])
    flush(folder, log)
    log.close()
    _, found, content = reopen(folder)
    assert content == [(7, b"one-two"), (8, b"")]
    assert (found.corrupt, found.torn_bytes) == (False, 0)


def test_a_record_is_readable_before_and_after_it_was_written(folder: Folder) -> None:
    log = create(folder)
    position = log.append(DATA, [b"payload"])
    assert bytes(log.read(position).payload) == b"payload"
    flush(folder, log)
    assert bytes(log.read(position).payload) == b"payload"
    log.close()


def test_segments_roll_and_begin_with_the_preamble(folder: Folder) -> None:
    log = Log.create(folder, STORE, lambda: [(REPAIR, [b"as it stands"])], SMALL_SEGMENT)
    positions = [write(folder, log, b"x" * 60)[0] for _ in range(12)]
    assert len(folder.names()) > 2
    assert [bytes(log.read(position).payload) for position in positions] == [b"x" * 60] * 12
    log.close()
    _, found, content = reopen(folder)
    assert content.count((REPAIR, b"as it stands")) == len(found.names) == len(folder.names())
    assert content.count((DATA, b"x" * 60)) == 12


def test_leading_segments_are_dropped_as_a_whole(folder: Folder) -> None:
    log = create(folder, SMALL_SEGMENT)
    for number in range(12):
        write(folder, log, b"%02d" % number * 30)
    kept_from = log.segment_first_sequences[2]
    log.drop_before(kept_from)
    flush(folder, log)
    assert log.segment_first_sequences[0] == kept_from
    log.close()
    _, found, content = reopen(folder)
    assert not found.corrupt
    assert content[-1] == (DATA, b"11" * 30)
    assert (DATA, b"00" * 30) not in content


def test_the_last_segment_is_never_dropped(folder: Folder) -> None:
    log = create(folder)
    write(folder, log, b"kept")
    log.drop_before(1 << 40)
    assert log.take() is None
    log.close()
    assert reopen(folder)[2] == [(DATA, b"kept")]


def test_a_last_batch_cut_at_any_byte_leaves_all_earlier_ones(folder: Folder) -> None:
    log = create(folder)
    write(folder, log, b"first", b"second")
    [name] = folder.names()
    durable = len(content_of(folder, name))
    write(folder, log, b"third", b"fourth")
    log.close()
    whole = content_of(folder, name)
    complete = []
    for cut in range(durable, len(whole)):
        replace(folder, name, whole[:cut])
        log, found, content = reopen(folder)
        log.close()
        assert content[:2] == [(DATA, b"first"), (DATA, b"second")]
        assert content[2:] in ([], [(DATA, b"third")])
        assert not found.corrupt
        assert found.torn_bytes == len(whole[:cut]) - len(content_of(folder, name))
        complete.append(len(content))
    assert set(complete) == {2, 3}


def test_the_log_goes_on_behind_a_torn_tail(folder: Folder) -> None:
    log = create(folder)
    write(folder, log, b"first")
    write(folder, log, b"lost")
    log.close()
    [name] = folder.names()
    replace(folder, name, content_of(folder, name)[:-1])
    log, _, content = reopen(folder)
    assert content == [(DATA, b"first")]
    write(folder, log, b"next")
    log.close()
    assert reopen(folder)[2] == [(DATA, b"first"), (DATA, b"next")]


def test_a_flipped_bit_below_the_mark_is_corruption_and_never_served(folder: Folder) -> None:
    log = create(folder)
    written: Content = [(DATA, b"number %d" % number) for number in range(4)]
    for _, payload in written:
        write(folder, log, payload)
    [name] = folder.names()
    covered = len(content_of(folder, name))
    log.mark()
    flush(folder, log)
    log.close()
    whole = content_of(folder, name)
    for offset in range(covered):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << offset % 8
        for other in folder.names():
            folder.remove(other)
        file = folder.create(name)
        file.append([damaged])
        file.close()
        log, found, content = reopen(folder, repair=lambda: [(REPAIR, [b"lost"])])
        log.close()
        assert found.corrupt, offset
        assert content == written[: len(content)], offset
        assert len(content) < len(written), offset
        assert [content_of(folder, aside) for aside in found.set_aside] == [damaged], offset
        log, found, again = reopen(folder)
        log.close()
        assert not found.corrupt
        assert again == [*content, (REPAIR, b"lost")], offset


def test_a_check_of_what_is_written_finds_rot_in_any_segment_and_nothing_else(folder: Folder) -> None:
    log = create(folder, SMALL_SEGMENT)
    for number in range(8):
        write(folder, log, b"%02d" % number * 30)
    log.append(DATA, [b"not written yet"])
    segments = log.written_segments()
    assert [name for name, _ in segments] == folder.names()
    assert [first_fault(folder, name, STORE, end) for name, end in segments] == [None] * len(segments)
    for name, end in segments:
        whole = content_of(folder, name)
        for offset in (0, HEADER_BYTES, end - 1):
            damaged = bytearray(whole)
            damaged[offset] ^= 1
            replace(folder, name, bytes(damaged))
            found = first_fault(folder, name, STORE, end)
            assert found is not None
            assert found <= offset
        replace(folder, name, whole)
    log.close()


def test_reading_a_rotten_record_is_refused(folder: Folder) -> None:
    log = create(folder)
    positions = write(folder, log, b"good", b"rotten")
    [name] = folder.names()
    data = bytearray(content_of(folder, name))
    data[-1] ^= 1
    replace(folder, name, bytes(data))
    assert bytes(log.read(positions[0]).payload) == b"good"
    with pytest.raises(CorruptRecord):
        log.read(positions[1])
    log.close()


def test_reading_a_record_with_a_rotten_length_allocates_nothing(folder: Folder) -> None:
    log = create(folder)
    [position] = write(folder, log, b"payload")
    [name] = folder.names()
    data = bytearray(content_of(folder, name))
    start = len(data) - FRAME_BYTES - len(b"payload")
    data[start : start + 4] = b"\xff\xff\xff\xff"
    replace(folder, name, bytes(data))
    with pytest.raises(CorruptRecord):
        log.read(position)
    log.close()


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_segment_in_between_is_corruption(folder: Folder, missing: int) -> None:
    log = create(folder, SMALL_SEGMENT)
    for number in range(16):
        write(folder, log, b"%02d" % number * 30)
    log.close()
    names = folder.names()
    assert len(names) >= 4
    folder.remove(names[missing + 1])
    _, found, content = reopen(folder, repair=lambda: [(REPAIR, [b""])])
    assert found.corrupt
    assert len(found.set_aside) == len(names) - missing - 2
    assert content[0] == (DATA, b"00" * 30)
    assert len(content) < 16


def test_a_log_whose_segments_are_all_gone_is_corrupt(folder: Folder) -> None:
    log, found, content = reopen(folder, repair=lambda: [(REPAIR, [b"empty"])])
    assert found.corrupt
    assert content == []
    log.close()
    assert reopen(folder)[2] == [(REPAIR, b"empty")]


def test_the_log_of_another_store_is_not_touched(folder: Folder) -> None:
    log = create(folder)
    write(folder, log, b"mine")
    log.close()
    before = {name: content_of(folder, name) for name in folder.names()}
    with pytest.raises(ForeignLog, match=STORE.hex()):
        reopen(folder, store=bytes(16))
    assert {name: content_of(folder, name) for name in folder.names()} == before


def test_a_mark_inside_a_payload_is_not_believed(folder: Folder) -> None:
    log = create(folder)
    write(folder, log, b"first")
    forged = b"".join(encode_mark(check_seed(b"somebody else's "), 99, 99))
    write(folder, log, forged)
    log.close()
    [name] = folder.names()
    whole = content_of(folder, name)
    # The batch that holds the payload was not marked as synced, so damage in it is a torn tail.
    damaged = bytearray(whole)
    damaged[-len(forged) - 1] ^= 1
    replace(folder, name, bytes(damaged))
    _, found, content = reopen(folder)
    assert not found.corrupt
    assert content == [(DATA, b"first")]


def test_an_unfinished_new_segment_is_a_torn_tail(folder: Folder) -> None:
    log = create(folder, SMALL_SEGMENT)
    for number in range(6):
        write(folder, log, b"%02d" % number * 30)
    log.close()
    *_, before, last = folder.names()
    for size in (0, 1, HEADER_BYTES - 1):
        whole = content_of(folder, last)
        replace(folder, last, whole[:size])
        log, found, content = reopen(folder)
        log.close()
        assert not found.corrupt
        assert folder.names()[-1] == before
        assert content
        replace_missing(folder, last, whole)


def replace_missing(folder: Folder, name: str, data: bytes) -> None:
    file = folder.create(name)
    file.append([data])
    file.close()


def test_what_a_killed_process_wrote_is_made_durable_before_it_is_used() -> None:
    disk = MemoryDisk()
    folder = disk.folder("log")
    log = create(folder)
    write(folder, log, b"synced")
    log.append(DATA, [b"not synced"], sync=False)
    flush(folder, log)
    assert reopen(folder)[2] == [(DATA, b"synced"), (DATA, b"not synced")]
    disk.crash(random.Random(1))
    assert reopen(folder)[2] == [(DATA, b"synced"), (DATA, b"not synced")]


@pytest.mark.parametrize("synced", [0, 1])
def test_what_a_log_shows_behind_a_failed_sync_stays(synced: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process reads it from the kernel's cache, and writes it again, but not what is known to be synced."""
    overwrite = MemoryFile.overwrite
    for seed in range(20):
        disk = MemoryDisk()
        folder = disk.folder("log")
        log = create(folder)
        write(folder, log, b"synced")
        size = folder.open(folder.names()[0]).size
        log.append(DATA, [b"in doubt"])
        disk.failing_syncs = True
        with pytest.raises(OSError, match="Input/output"):
            flush(folder, log)
        disk.failing_syncs = False
        written: list[int] = []

        def noted(file: MemoryFile, offset: int, data: Buffer, noted: list[int] = written) -> None:
            noted.append(offset)
            overwrite(file, offset, data)

        with monkeypatch.context() as patch:
            patch.setattr(MemoryFile, "overwrite", noted)
            _, _, shown = reopen(folder, synced=synced)
        assert shown == [(DATA, b"synced"), (DATA, b"in doubt")]
        assert written == [size if synced else 0]
        disk.crash(random.Random(seed))
        assert reopen(folder)[2] == shown
