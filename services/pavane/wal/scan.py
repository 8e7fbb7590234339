"""Reading a log at start, and judging what is bad in it (docs/specs/raft.md 13.3).

A record is bad if it is cut off, its check fails, or its sequence is not the one after its predecessor's. If a good
MARK anywhere, or the ``SyncedFile`` beside the log, says that this sequence had been synced, the record once was good
and has rotted, or was cut off: *corruption*. Otherwise it belongs to a batch that was never synced, so nobody was told
about it: a *torn tail*, dropped with all that follows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pavane.wal.files import Buffer, Folder
from pavane.wal.record import (
    FRAME_BYTES,
    HEADER_BYTES,
    MARK,
    Record,
    check_seed,
    decode_mark,
    decode_record,
    encode_header,
    encode_record,
    first_sequence_of,
    greatest_mark,
    header_is_good,
    segment_name,
)

REPAIR = "repair.tmp"
SET_ASIDE = ".corrupt"
POSITION_BITS = 32  # low bits of a position: offset in the segment; above: number of the segment
NewRecord = tuple[int, Sequence[Buffer]]


@dataclass(frozen=True, slots=True)
class Scanned:
    """What a scan found: the segments that stand, the last good sequence, and what was wrong.

    ``corrupt`` means that synced records were lost; ``set_aside`` names the files that keep them. ``torn_bytes`` were
    dropped from the tail.
    """

    names: list[str]
    last_sequence: int
    corrupt: bool = False
    set_aside: tuple[str, ...] = ()
    torn_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Where a log stops being good: ``offset`` in the segment with number ``segment``, 0 or less for all of it.

    ``torn`` means that nothing from there on was ever synced, so nobody was told about it; else synced records are bad.
    """

    segment: int
    offset: int
    expected: int
    torn: bool


@dataclass(frozen=True, slots=True)
class Examined:
    """What is in a log: its segments, the last good sequence, and what is wrong, if anything is."""

    names: list[str]
    last_sequence: int
    fault: Fault | None


def scan(
    folder: Folder,
    store_id: bytes,
    visit: Callable[[Record], None],
    repair: Callable[[], Sequence[NewRecord]],
    synced: int = 0,
) -> Scanned:
    """Read the log from its first record, calling ``visit`` for each good one, and leave it good on the disk.

    A torn tail is cut off. At corruption everything from the bad record on is set aside under other names, and the
    records that ``repair`` returns are added in the same step, so that no crash can hide that synced records are gone.
    """
    found = examine(folder, store_id, visit, synced)
    if found.fault is None:
        return Scanned(found.names, found.last_sequence)
    if found.fault.torn:
        return _cut_tail(folder, found.names, found.fault)
    return _set_aside(folder, store_id, found.names, found.fault, repair())


def examine(folder: Folder, store_id: bytes, visit: Callable[[Record], None], synced: int = 0) -> Examined:
    """Read the log as ``scan`` does, up to what is wrong, and change nothing."""
    names = [name for name in folder.names() if first_sequence_of(name) is not None]
    scanner = _Scanner(folder, store_id, visit)
    scanner.mark = synced
    fault = scanner.run(names)
    return Examined(names, scanner.last_sequence, fault)


def first_fault(folder: Folder, name: str, store_id: bytes, end: int) -> int | None:
    """Read the first ``end`` bytes of a segment and return the offset of the first bad record; None if all are good.

    Opens the file by itself, so it may run in any thread while the log goes on.
    """
    scanner = _Scanner(folder, store_id, lambda _: None)
    scanner.last_sequence = (first_sequence_of(name) or 1) - 1
    offset = scanner.read_segment(0, scanner.load(name)[:end])
    return None if offset == end else max(0, offset)


class _Scanner:
    """One pass over the segments; remembers the last good sequence and the greatest mark."""

    def __init__(self, folder: Folder, store_id: bytes, visit: Callable[[Record], None]) -> None:
        self._folder = folder
        self._store_id = store_id
        self._seed = check_seed(store_id)
        self._visit = visit
        self.last_sequence = 0
        self.mark = 0

    def run(self, names: Sequence[str]) -> Fault | None:
        if not names:
            # A log has a segment from its creation on: all of them are missing.
            return Fault(0, 0, 1, torn=False)
        self.last_sequence = (first_sequence_of(names[0]) or 1) - 1
        for number, name in enumerate(names):
            data = self.load(name)
            offset = 0
            if first_sequence_of(name) == self.last_sequence + 1:
                offset = self.read_segment(number, data)
                if offset == len(data):
                    continue
            self.mark = max(self.mark, greatest_mark(data, offset, self._seed))
            for later in names[number + 1 :]:
                self.mark = max(self.mark, greatest_mark(self.load(later), 0, self._seed))
            expected = self.last_sequence + 1
            return Fault(number, offset, expected, torn=expected > self.mark)
        if self.last_sequence < self.mark:
            # All is good, and the end is missing.
            return Fault(number, offset, self.last_sequence + 1, torn=False)
        return None

    def load(self, name: str) -> memoryview:
        """Return the bytes of a segment."""
        file = self._folder.open(name)
        try:
            return memoryview(file.read(0, file.size))
        finally:
            file.close()

    def read_segment(self, number: int, data: memoryview) -> int:
        """Visit the good records of one segment and return the offset behind the last of them."""
        if not header_is_good(data, self.last_sequence + 1, self._store_id):
            # An empty file must not pass for a segment that was read to its end.
            return 0 if len(data) else -1
        offset = HEADER_BYTES
        while offset < len(data):
            record = decode_record(data, offset, self._seed)
            if record is None or record[0] != self.last_sequence + 1:
                break
            sequence, kind, payload = record
            self.last_sequence = sequence
            if kind == MARK:
                self.mark = max(self.mark, decode_mark(payload))
            else:
                self._visit(Record(sequence, kind, payload, number << POSITION_BITS | offset))
            offset += FRAME_BYTES + len(payload)
        return offset


def _cut_tail(folder: Folder, names: list[str], fault: Fault) -> Scanned:
    # Last file first: after a crash in between, what is left is judged a torn tail once more.
    torn = 0
    for name in reversed(names[fault.segment + 1 :]):
        torn += file_size(folder, name)
        folder.remove(name)
    kept = names[: fault.segment + 1]
    if fault.offset <= 0:
        torn += file_size(folder, kept[-1])
        folder.remove(kept.pop())
    folder.sync()
    if fault.offset > 0:
        file = folder.open(kept[-1])
        torn += file.size - fault.offset
        file.truncate(fault.offset)
        file.sync()
        file.close()
    return Scanned(kept, fault.expected - 1, torn_bytes=torn)


def _set_aside(
    folder: Folder, store_id: bytes, names: list[str], fault: Fault, repairs: Sequence[NewRecord]
) -> Scanned:
    if REPAIR in folder.names():
        folder.remove(REPAIR)
    damaged = names[fault.segment :]
    aside = []
    for name in damaged:
        # The second name comes first: whatever happens next, the bytes stay.
        new_name = _free_name(folder, name)
        folder.link(name, new_name)
        aside.append(new_name)
    folder.sync()
    kept = names[: fault.segment]
    replacement = damaged[0] if fault.offset > 0 else segment_name(fault.expected)
    last_sequence = _write_repair(folder, store_id, replacement, fault, damaged, repairs)
    folder.rename(REPAIR, replacement)
    folder.sync()
    for name in damaged:
        if name != replacement:
            folder.remove(name)
    folder.sync()
    return Scanned([*kept, replacement], last_sequence, corrupt=True, set_aside=tuple(aside))


def _write_repair(
    folder: Folder,
    store_id: bytes,
    replacement: str,
    fault: Fault,
    damaged: Sequence[str],
    repairs: Sequence[NewRecord],
) -> int:
    """Write the good part of the damaged segment and the repairs to a new file; return its last sequence."""
    file = folder.create(REPAIR)
    try:
        if fault.offset > 0:
            source = folder.open(damaged[0])
            file.append([source.read(0, fault.offset)])
            source.close()
        else:
            file.append([encode_header(first_sequence_of(replacement) or 1, store_id)])
        sequence = fault.expected - 1
        for kind, parts in repairs:
            sequence += 1
            file.append(encode_record(check_seed(store_id), sequence, kind, parts))
        file.sync()
    finally:
        file.close()
    return sequence


def _free_name(folder: Folder, name: str) -> str:
    taken = set(folder.names())
    number = 1
    while f"{name}{SET_ASIDE}{number}" in taken:
        number += 1
    return f"{name}{SET_ASIDE}{number}"


def file_size(folder: Folder, name: str) -> int:
    """Return the size of the file ``name`` in bytes."""
    file = folder.open(name)
    try:
        return file.size
    finally:
        file.close()
