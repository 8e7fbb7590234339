"""Reading the folder of a storage node that does not run, without a change to it (docs/specs/waltz.md 12.1-12.5)."""

import fcntl
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import UUID

from pavane.wal.files import DiskFile
from pavane.waltz.state.store import Damaged
from pavane.waltz.storage import layout
from pavane.waltz.storage.directory import FIRST, ForeignDirectory
from pavane.waltz.storage.segment import HEADER_BYTES, OVERHEAD_BYTES, SEGMENT_HEAD, VERSION, record_at
from pavane.waltz.storage.slots import Slots
from pavane.waltz.wire.storage import Record

PARTITIONS_MAX = 1_000_000
_OFFSET = struct.Struct(">q")


class InUse(Exception):
    """A storage node runs in the folder."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What stands in one partition; ``fault`` says what is wrong with what was acknowledged, if anything is."""

    number: int
    first: int
    last: int
    data_bytes: int
    segments: int
    session: int
    fence: int
    mark: int
    """The last transaction that this node has acknowledged; in a folder of the original its local low-water mark."""
    available: bool
    torn_bytes: int
    """Behind the last whole record, of a write that nobody was told of."""
    fault: str


class _File(DiskFile):
    """A file that is only read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, os.O_RDONLY)
        self.path = path

    def lock(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, HEADER_BYTES, 0)


class StoppedFolder:
    """A storage folder, ours or of the original; ``with StoppedFolder(path) as stored``. It is locked meanwhile.

    Raises ``InUse``, ``ForeignDirectory`` where it is none, and ``OSError``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[_File] = []

    def __enter__(self) -> Self:
        try:
            self._control = self._open(layout.CONTROL_FILE)
        except FileNotFoundError:
            raise ForeignDirectory(
                f"{self._folder} holds no {layout.CONTROL_FILE}: it is no folder of a storage node"
            ) from None
        try:
            self._control.lock()
            self._read_head()
            self._marks = self._open(layout.MARK_FILE) if (self._folder / layout.MARK_FILE).exists() else None
        except BlockingIOError:
            self._close()
            raise InUse(f"a storage node runs in {self._folder}: stop it first, or look at a copy") from None
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        while self._files:
            self._files.pop().close()

    def _open(self, name: str) -> _File:
        self._files.append(_File(self._folder / name))
        return self._files[-1]

    def _read_head(self) -> None:
        head = self._control.read(0, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            raise ForeignDirectory(f"{self._folder}: {layout.CONTROL_FILE} is cut off")
        version, _, key, self.partitions = layout.CONTROL_HEAD.unpack_from(head)
        self.key = UUID(bytes=key)
        if version != VERSION or not 0 < self.partitions <= PARTITIONS_MAX:
            raise ForeignDirectory(
                f"{self._folder}: {layout.CONTROL_FILE} is of version {version}, not {VERSION}, or damaged"
            )

    def reports(self) -> Iterator[PartitionReport]:
        """Check every partition that is assigned to the node: checksums, order, index, and the mark."""
        for number in range(self.partitions):
            place = HEADER_BYTES + number * layout.CONTROL_ENTRY_BYTES + 4
            values = Slots(self._control, place, layout.CONTROL_LAYOUT).found
            if values is None:
                fault = f"both entries in {layout.CONTROL_FILE} are broken"
                yield PartitionReport(number, 0, -1, 0, 0, -1, -1, -1, False, 0, fault)
            elif values[3] & layout.FLAG_ASSIGNED:
                yield self._report(number, values)

    def records(self, number: int) -> Iterator[Record]:
        """Yield the records of a partition in order, as far as they are whole; raises ``Damaged`` behind them."""
        following = None
        for segment in self._segments(number):
            try:
                if following is not None and segment.first != following:
                    raise Damaged(f"{segment.file.path} begins with {segment.first} where {following} belongs")
                following = segment.first
                segment.check_head(self.key, number)
                for _, record in segment.records():
                    yield record
                    following = record.txid + 1
            finally:
                segment.file.close()

    def _segments(self, number: int) -> Iterator["_Segment"]:
        folder = self._folder / str(number)
        for path in sorted(folder.glob("*.seg")):
            if len(path.name) == 23 and path.stem.isdigit():
                yield _Segment(_File(path), int(path.stem))

    def _noted(self, number: int) -> int:
        """Return below which transaction files may have been dropped."""
        names = (path.stem for path in (self._folder / str(number)).glob(f"*{FIRST}"))
        return max((int(name) for name in names if name.isdigit()), default=0)

    def _report(self, number: int, values: tuple[int, ...]) -> PartitionReport:
        session, _, local_lwm, flags = values
        marks, fault = None, ""
        if self._marks is not None:
            marks = Slots(self._marks, HEADER_BYTES + number * layout.MARK_ENTRY_BYTES, layout.MARK_LAYOUT, (0,)).found
            fault = "" if marks is not None else f"both entries in {layout.MARK_FILE} are broken"
        fence, mark = (marks[0], marks[1]) if marks is not None else (session, local_lwm)
        first, last, data_bytes, count, torn, broken = 0, -1, 0, 0, 0, ""
        for segment in self._segments(number):
            try:
                if broken:
                    fault = fault or broken  # what follows a fault was acknowledged before it was begun
                    break
                if count and segment.first != last + 1:
                    fault = fault or f"{segment.file.path} begins with {segment.first} where {last + 1} belongs"
                    break
                if not count and segment.first > self._noted(number):
                    fault = fault or f"{segment.file.path} is the first that there is: files before it are missing"
                first = first if count else segment.first
                last, count, end = segment.first - 1, count + 1, HEADER_BYTES
                segment.check_head(self.key, number)
                offsets = segment.index()
                for offset, record in segment.records():
                    last, end = record.txid, offset + OVERHEAD_BYTES + len(record.data)
                    data_bytes += len(record.data)
                    place = last - segment.first
                    if place < len(offsets) and offsets[place] != offset and last <= local_lwm:
                        fault = fault or f"the index has {offsets[place]} for transaction {last} at {offset}"
            except Damaged as error:
                broken, torn = str(error), segment.file.size - end
            finally:
                segment.file.close()
        if not fault and last < mark:
            fault = broken or f"the log ends at {last}, but transactions up to {mark} were acknowledged"
        available = bool(flags & layout.FLAG_AVAILABLE)
        return PartitionReport(
            number, first, last, data_bytes, count, session, fence, mark, available, 0 if fault else torn, fault
        )


class _Segment:
    def __init__(self, file: _File, first: int) -> None:
        self.file = file
        self.first = first

    def check_head(self, key: UUID, number: int) -> None:
        head = self.file.read(0, HEADER_BYTES)
        if len(head) == HEADER_BYTES:
            version, _, found, partition, first = SEGMENT_HEAD.unpack_from(head)
            if (version, found, partition, first) == (VERSION, key.bytes, number, self.first):
                return
        raise Damaged(f"{self.file.path}: the header is damaged or belongs to another partition or cluster")

    def index(self) -> list[int]:
        """Return the offsets that the index has; none where it is missing: a start makes it again."""
        try:
            data = self.file.path.with_suffix(".idx").read_bytes()[HEADER_BYTES:]
        except FileNotFoundError:
            return []
        return [offset for (offset,) in _OFFSET.iter_unpack(data[: len(data) // _OFFSET.size * _OFFSET.size])]

    def records(self) -> Iterator[tuple[int, Record]]:
        """Yield offsets and records; raises ``Damaged`` at what is none."""
        offset, expected = HEADER_BYTES, self.first
        while offset < self.file.size:
            try:
                record, length = record_at(self.file, offset)
            except Damaged as error:
                raise Damaged(f"{self.file.path}: {error}, at offset {offset}") from error
            if record.txid != expected:
                raise Damaged(f"{self.file.path}: transaction {record.txid} where {expected} belongs")
            yield offset, record
            offset += length
            expected += 1
