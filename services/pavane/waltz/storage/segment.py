"""One segment of a partition's log: records in a ``.seg`` file, their offsets in an ``.idx`` file (12.2, 12.3)."""

import struct
import zlib
from collections.abc import Sequence
from uuid import UUID

from pavane.wal.files import File, Folder, write_again
from pavane.waltz.state.store import Damaged
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record

HEADER_BYTES = 128
VERSION = 0
INDEX_SYNC_RECORDS = 1000  # the original's: after a crash the index is trusted up to a multiple of it
LIST_BYTES_MAX = 4 * 1024 * 1024  # of one answer, but one record at least
SEGMENT_HEAD = struct.Struct(">iq16siq")  # version, time, key, partition, first transaction
RECORD_LAYOUT = struct.Struct(">qiiiiiiI")  # transaction, request id, header, length and CRC of the data
_OFFSET = struct.Struct(">q")
CRC = struct.Struct(">I")
OVERHEAD_BYTES = RECORD_LAYOUT.size + CRC.size


class Segment:
    """Records from ``first`` on. A new one is made durable, empty, before anything is written to it.

    One that was not ``found`` at the start replaces what is there: the rest of a try whose sync failed, say.
    """

    def __init__(
        self, folder: Folder, first: int, key: UUID, partition: int, now_ms: int, *, found: bool = False
    ) -> None:
        self.first = first
        self._folder = folder
        self._name = f"{first:019d}"
        self._head = SEGMENT_HEAD.pack(VERSION, now_ms, key.bytes, partition, first).ljust(HEADER_BYTES, b"\0")
        if not found:
            for name in {f"{self._name}.seg", f"{self._name}.idx"} & {*folder.names()}:
                folder.remove(name)
        self._seg, self._idx = self._open("seg"), self._open("idx")
        self.created_ms: int = SEGMENT_HEAD.unpack_from(self._seg.read(0, HEADER_BYTES))[1]
        self.end = max(HEADER_BYTES, self._seg.size)
        self.last = first - 1
        self._index_synced = first - 1
        self._synced = self.end

    def _open(self, suffix: str) -> File:
        name = f"{self._name}.{suffix}"
        if name not in self._folder.names():
            file = self._folder.create(name)
        else:
            file = self._folder.open(name)
            head = file.read(0, HEADER_BYTES)
            if len(head) == HEADER_BYTES and any(head):
                if _foreign(head, self._head):
                    raise Damaged(f"{name} belongs to another partition or store")
                return file
            file.truncate(0)  # the power went while it was made
        file.append([self._head])
        file.sync()
        self._folder.sync()
        return file

    @property
    def size(self) -> int:
        """Bytes of both files."""
        return self.end + HEADER_BYTES + (self.last - self.first + 1) * _OFFSET.size

    def close(self) -> None:
        """Close both files."""
        self._seg.close()
        self._idx.close()

    def remove(self) -> None:
        """Delete the segment, durably."""
        self.close()
        for suffix in ("seg", "idx"):
            self._folder.remove(f"{self._name}.{suffix}")
        self._folder.sync()

    def recover(self, local_lwm: int) -> str:
        """Find the last whole record and return what is behind it: nothing (empty), or what is wrong there."""
        entries = max(0, (self._idx.size - HEADER_BYTES) // _OFFSET.size)
        index_last = self.first + entries - 1
        start = index_last
        if index_last > local_lwm:
            start = max((index_last - 1) // INDEX_SYNC_RECORDS * INDEX_SYNC_RECORDS, local_lwm)
        offset = HEADER_BYTES
        self.last = self.first - 1
        if start > self.first and (found := self._at(start)) is not None:
            self.last, offset = start, found
        self._idx.truncate(HEADER_BYTES + (self.last - self.first + 1) * _OFFSET.size)
        return self._scan(offset)

    def _at(self, txid: int) -> int | None:
        """Return where the record behind ``txid`` begins, ``None`` if ``txid`` is not where the index says."""
        offset = self._offset(txid)
        if offset is None:
            return None
        try:
            record, size = record_at(self._seg, offset)
        except Damaged:
            return None
        return offset + size if record.txid == txid else None

    def _scan(self, offset: int) -> str:
        size = self._seg.size
        fault = ""
        offsets = bytearray()
        while offset < size:
            try:
                record, length = record_at(self._seg, offset)
            except Damaged as error:
                fault = str(error)
                break
            if record.txid != self.last + 1:
                fault = f"transaction {record.txid} where {self.last + 1} belongs"
                break
            offsets += _OFFSET.pack(offset)
            offset += length
            self.last += 1
        self._idx.append([offsets])
        self.end = offset
        return fault

    def settle(self, mark: int) -> None:
        """Cut what is behind the last whole record and make the rest durable.

        What no sync may stand behind is written again: of the records what is behind ``mark``, of the index, which is
        synced more rarely, all; and the size is set again.
        """
        self._seg.truncate(self.end)
        at = self.end
        if mark < self.first:
            at = 0
        elif mark < self.last:
            at = self._offset(mark + 1) or 0
        write_again(self._seg, at, self.end)
        write_again(self._idx, 0, self._idx.size)
        self._seg.append([b"\0"])
        self._seg.truncate(self.end)
        self._seg.sync()
        self._idx.sync()
        self._folder.sync()
        self._synced = self.end

    def append(self, records: Sequence[Record]) -> None:
        """Write records; ``OSError`` leaves the segment as it was. ``Damaged``: nobody knows what is behind its end."""
        parts: list[bytes] = []
        offsets = []
        end = self.end
        for txid, reqid, header, data, crc in records:
            head = RECORD_LAYOUT.pack(txid, *reqid, header, len(data), crc)
            parts += (head, data, CRC.pack(zlib.crc32(data, zlib.crc32(head))))
            offsets.append(end)
            end += OVERHEAD_BYTES + len(data)
        try:
            self._seg.append([b"".join(parts)])
            self._idx.append([struct.pack(f">{len(offsets)}q", *offsets)])
        except OSError as error:
            try:
                self._seg.truncate(self.end)
                self._idx.truncate(HEADER_BYTES + (self.last - self.first + 1) * _OFFSET.size)
            except OSError as cut:
                raise Damaged(f"a write failed: {error}; what it left cannot be cut: {cut}") from error
            raise
        self.end = end
        self.last += len(records)

    def begin_sync(self) -> None:
        """Have the records written soon; they are durable after ``sync``."""
        self._seg.begin_sync(self._synced)

    def sync(self) -> None:
        """Make the records durable, and the index every ``INDEX_SYNC_RECORDS``."""
        if self._synced < self.end:
            self._seg.sync()
            self._synced = self.end
        if (self.last + 1) // INDEX_SYNC_RECORDS > (self._index_synced + 1) // INDEX_SYNC_RECORDS:
            self.sync_index()

    def finish(self) -> None:
        """Make records and index durable: another segment follows."""
        self.sync()
        self.sync_index()

    def sync_index(self) -> None:
        """Make the index durable."""
        self._idx.sync()
        self._index_synced = self.last

    def truncate(self, txid: int) -> None:
        """Cut everything behind ``txid`` (at least ``first`` - 1), durably."""
        if txid >= self.last:
            return
        offset = self._offset(txid + 1)
        if offset is None:
            raise Damaged(f"the index has no offset of transaction {txid + 1}")
        self._seg.truncate(offset)
        self._idx.truncate(HEADER_BYTES + (txid - self.first + 1) * _OFFSET.size)
        self._seg.sync()
        self._idx.sync()
        self.end, self.last, self._synced = offset, txid, offset
        self._index_synced = min(self._index_synced, txid)

    def read(self, txid: int, count: int) -> list[Record]:
        """Return records from ``txid`` on, as many as fit one answer, up to what is damaged.

        Raises ``Damaged`` if that is ``txid`` itself.
        """
        last = min(self.last, txid + count - 1)
        if not self.first <= txid <= last:
            return []
        raw = self._idx.read(HEADER_BYTES + (txid - self.first) * _OFFSET.size, (last - txid + 1) * _OFFSET.size)
        offsets = [offset for (offset,) in _OFFSET.iter_unpack(raw[: len(raw) // _OFFSET.size * _OFFSET.size])]
        whole = 0
        for offset in offsets:
            if not (offsets[whole - 1] if whole else HEADER_BYTES - 1) < offset < self.end:
                break
            whole += 1
        if not whole:
            raise Damaged("the index has no offset of it")
        last, offsets = txid + whole - 1, offsets[:whole]
        ends = [*offsets[1:], self._offset(last + 1) or self.end if last < self.last else self.end]
        begin = offsets[0]
        fitting = [end for end in ends if end - begin <= LIST_BYTES_MAX] or ends[:1]
        data = self._seg.read(begin, fitting[-1] - begin)
        found: list[Record] = []
        for index in range(len(fitting)):
            try:
                record, _ = parse_record(data, offsets[index] - begin)
                if record.txid != txid + index:
                    raise Damaged(f"transaction {record.txid} is in its place")
            except Damaged:
                if not found:
                    raise
                break  # whoever asks for what comes next is told
            found.append(record)
        return found

    def check(self, txid: int, size: int) -> int:
        """Check about ``size`` bytes of records from ``txid`` on, and what the index says of them; return what follows.

        Raises ``Damaged``, which names the first bad transaction, and ``OSError``.
        """
        if txid == self.first:
            self._check_files()
        if txid > self.last:
            return txid
        offset = HEADER_BYTES if txid == self.first else self._offset(txid)
        if offset is None:
            raise Damaged("the index has no offset of it", txid)
        data = self._seg.read(offset, min(size, self.end - offset))
        offsets, at = bytearray(), 0
        while txid + len(offsets) // _OFFSET.size <= self.last and at < len(data):
            following = txid + len(offsets) // _OFFSET.size
            try:
                record, length = parse_record(data, at) if at else record_at(self._seg, offset)
            except Damaged as error:
                if at:
                    break  # it may only be cut off here: the next call looks at the whole of it
                raise Damaged(str(error), following) from error
            if record.txid != following:
                raise Damaged(f"transaction {record.txid} is in its place", following)
            offsets += _OFFSET.pack(offset + at)
            at += length
        found = self._idx.read(HEADER_BYTES + (txid - self.first) * _OFFSET.size, len(offsets))
        if found != offsets:
            bad = next((at for at in range(0, len(offsets), 8) if found[at : at + 8] != offsets[at : at + 8]), 0)
            raise Damaged("the index has a wrong offset of it", txid + bad // _OFFSET.size)
        if not offsets:
            raise Damaged("a record is cut off", txid)
        return txid + len(offsets) // _OFFSET.size

    def _check_files(self) -> None:
        names = self._folder.names()
        for suffix, file in (("seg", self._seg), ("idx", self._idx)):
            name = f"{self._name}.{suffix}"
            if name not in names:
                raise Damaged(f"{name} is missing", self.first)
            if _foreign(file.read(0, HEADER_BYTES), self._head):
                raise Damaged(f"the header of {name} is damaged", self.first)

    def _offset(self, txid: int) -> int | None:
        data = self._idx.read(HEADER_BYTES + (txid - self.first) * _OFFSET.size, _OFFSET.size)
        if len(data) < _OFFSET.size:
            return None
        (offset,) = _OFFSET.unpack(data)
        return int(offset) if HEADER_BYTES <= offset <= self._seg.size else None


def record_at(file: File, offset: int) -> tuple[Record, int]:
    """Return the record at an offset of a segment, and its length there; raises ``Damaged``."""
    head = file.read(offset, OVERHEAD_BYTES)
    size = RECORD_LAYOUT.unpack_from(head)[6] if len(head) == OVERHEAD_BYTES else -1
    if not 0 <= size <= file.size:
        raise Damaged(f"the record at offset {offset} is cut off")
    return parse_record(file.read(offset, OVERHEAD_BYTES + size), 0)


def parse_record(data: bytes, at: int) -> tuple[Record, int]:
    """Return the record at an offset, and its length there; raises ``Damaged``."""
    if len(data) - at < OVERHEAD_BYTES:
        raise Damaged("a record is cut off")
    txid, client, generation, partition, seq, header, size, crc = RECORD_LAYOUT.unpack_from(data, at)
    end = at + RECORD_LAYOUT.size + size
    if size < 0 or end + CRC.size > len(data):
        raise Damaged("a record is cut off")
    if zlib.crc32(memoryview(data)[at:end]) != CRC.unpack_from(data, end)[0]:
        raise Damaged("a record does not match its CRC")
    payload = data[at + RECORD_LAYOUT.size : end]
    return Record(txid, ReqId(client, generation, partition, seq), header, payload, crc), OVERHEAD_BYTES + size


def _foreign(head: bytes, wanted: bytes) -> bool:
    return head[:4] + head[12:] != wanted[:4] + wanted[12:]  # all but the time
