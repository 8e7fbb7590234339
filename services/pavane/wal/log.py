"""A segmented append-only log of typed records (docs/specs/raft.md 13.1, 13.3).

``Log`` belongs to one thread, usually that of the event loop: ``append`` gives every record its sequence and position
and keeps its bytes readable at once; ``take`` hands what was appended to an ``Appender``, which writes and syncs it in
whatever thread the caller likes, and ``completed`` tells the log that it is durable. So a reader never waits for a
writer, and positions are known before the disk was touched.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pavane.wal.files import Buffer, File, Folder, write_again
from pavane.wal.record import (
    FRAME_BYTES,
    HEADER_BYTES,
    Record,
    check_seed,
    decode_record,
    encode_header,
    encode_mark,
    encode_record,
    first_sequence_of,
    payload_length,
    segment_name,
)
from pavane.wal.scan import POSITION_BITS, NewRecord, Scanned, file_size, scan
from pavane.wal.synced import SyncedFile

SEGMENT_BYTES = 64 << 20  # a leading segment is dropped as a whole, so not too large; nor thousands of files
READERS_MAX = 16  # open segments for reading: descriptors are few, and readers stay near the end
_OFFSET_MASK = (1 << POSITION_BITS) - 1


class CorruptRecord(Exception):
    """A record that was good when it was written does not match its checksum any more."""

    def __init__(self, position: int) -> None:
        super().__init__(f"record at offset {position & _OFFSET_MASK} of a segment does not match its checksum")
        self.position = position


@dataclass(slots=True)
class _Write:
    """Bytes for one segment; ``create`` makes the file first, ``remove`` names segments that may go."""

    name: str
    create: bool = False
    parts: list[Buffer] = field(default_factory=list)
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Batch:
    """Records that become durable together. ``sync`` is false if nobody waits for them.

    ``settle`` says that nothing else is to be written, so that there is time to sync what the ``SyncedFile`` states.
    ``before`` and ``after`` are steps for other files that the appender takes before it writes, and when all is synced.
    """

    writes: tuple[_Write, ...]
    last_sequence: int
    sync: bool
    size: int
    before: tuple[Callable[[], None], ...] = ()
    after: tuple[Callable[[], None], ...] = ()
    settle: bool = False


class Log:
    """The log in ``folder``; see the module's docstring for who calls what."""

    def __init__(
        self,
        folder: Folder,
        store_id: bytes,
        found: Scanned,
        preamble: Callable[[], Sequence[NewRecord]],
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._folder = folder
        self._store_id = store_id
        self._seed = check_seed(store_id)
        self._preamble = preamble
        self._segment_bytes = segment_bytes
        self._names = list(found.names)
        self._dropped = 0
        self._last_sequence = found.last_sequence
        self._synced = found.last_sequence
        self._marked = 0
        self._staged: list[_Write] = []
        self._staged_bytes = 0
        self._wants_sync = False
        self._settles = False
        self._before: list[Callable[[], None]] = []
        self._after: list[Callable[[], None]] = []
        self._pending: dict[int, tuple[int, bytes]] = {}
        self._readers: OrderedDict[int, File] = OrderedDict()
        self._size = file_size(folder, self._names[-1]) if self._names else 0
        if not self._names:
            self._begin_segment()

    @classmethod
    def open(
        cls,
        folder: Folder,
        store_id: bytes,
        visit: Callable[[Record], None],
        repair: Callable[[], Sequence[NewRecord]],
        preamble: Callable[[], Sequence[NewRecord]],
        segment_bytes: int = SEGMENT_BYTES,
        synced: int = 0,
    ) -> tuple["Log", Scanned]:
        """Scan the log that stands in ``folder``, mend its tail, make all of it durable, and open it for appending.

        ``visit`` sees every good record, in order; ``repair`` is asked for records when synced ones are lost (see
        ``pavane.wal.scan``); ``preamble`` for the records that every new segment begins with;
        ``synced`` is what a ``SyncedFile`` states.
        """
        proven = 0

        def seen(record: Record) -> None:
            nonlocal proven
            if record.sequence <= synced:
                proven = record.position + FRAME_BYTES + len(record.payload)
            visit(record)

        found = scan(folder, store_id, seen, repair, synced)
        if found.names:
            number, offset = proven >> POSITION_BITS, proven & _OFFSET_MASK
            _write_again(folder, found.names[-1], offset if number == len(found.names) - 1 else 0)
            folder.sync()
        return cls(folder, store_id, found, preamble, segment_bytes), found

    @classmethod
    def create(
        cls,
        folder: Folder,
        store_id: bytes,
        preamble: Callable[[], Sequence[NewRecord]],
        segment_bytes: int = SEGMENT_BYTES,
    ) -> "Log":
        """Begin an empty log; its first segment becomes durable with the first batch."""
        return cls(folder, store_id, Scanned([], 0), preamble, segment_bytes)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record appended."""
        return self._last_sequence

    @property
    def segment_first_sequences(self) -> list[int]:
        """First sequence of every segment, ascending: what ``drop_before`` can be told."""
        return [first_sequence_of(name) or 0 for name in self._names[self._dropped :]]

    def append(self, kind: int, parts: Sequence[Buffer], *, sync: bool = True) -> int:
        """Append one record and return its position; ``sync=False`` if nobody waits for it to be durable."""
        if self._size >= self._segment_bytes:
            self._begin_segment()
        if not self._staged and self._synced > self._marked:
            self._append_mark()
        self._wants_sync = self._wants_sync or sync
        return self._append(kind, parts)

    def mark(self, *, sync: bool = False) -> None:
        """Append a MARK if syncs have covered more than the last one says; ``sync`` if it is to be durable at once."""
        if self._synced > self._marked and (sync or not self._staged):
            self._append_mark()
            self._wants_sync = self._wants_sync or sync
            self._settles = True

    def take(self) -> Batch | None:
        """Return what was appended since the last call, for ``Appender.execute``; None if there is nothing."""
        if not self._staged and not self._before and not self._after:
            return None
        batch = Batch(
            tuple(self._staged),
            self._last_sequence,
            self._wants_sync,
            self._staged_bytes,
            tuple(self._before),
            tuple(self._after),
            self._settles,
        )
        self._staged = []
        self._before, self._after = [], []
        self._staged_bytes = 0
        self._wants_sync = self._settles = False
        return batch

    def completed(self, batch: Batch) -> None:
        """Note that ``batch``, and with it all before it, was executed."""
        if batch.sync:
            self._synced = max(self._synced, batch.last_sequence)
        done = []
        for position, (sequence, _) in self._pending.items():
            if sequence > batch.last_sequence:
                break
            done.append(position)
        for position in done:
            del self._pending[position]

    def read(self, position: int) -> Record:
        """Return the record at ``position``, checked; raises ``CorruptRecord``."""
        pending = self._pending.get(position)
        data = memoryview(pending[1]) if pending else self._read_file(position)
        record = decode_record(data, 0, self._seed)
        if record is None:
            raise CorruptRecord(position)
        sequence, kind, payload = record
        return Record(sequence, kind, payload, position)

    def written_segments(self) -> list[tuple[str, int]]:
        """Return name and length of what is written of every segment, oldest first: what ``first_fault`` may check."""
        position = next(iter(self._pending), (len(self._names) - 1) << POSITION_BITS | self._size)
        number, end = position >> POSITION_BITS, position & _OFFSET_MASK
        whole = [(name, file_size(self._folder, name)) for name in self._names[self._dropped : number]]
        return [*whole, (self._names[number], end)] if end > HEADER_BYTES else whole

    def before_next(self, step: Callable[[], None], size: int = 0) -> None:
        """Have the appender take ``step`` before it writes what is appended from now on.

        ``size`` is what the step keeps in memory until then. An ``OSError`` of the step is as final as one of a write.
        """
        self._before.append(step)
        self._staged_bytes += size

    def after_next(self, step: Callable[[], None]) -> None:
        """Have the appender take ``step`` once everything appended up to now is durable."""
        self._after.append(step)
        self._wants_sync = True

    def drop_segments_before(self, position: int) -> None:
        """Drop the segments in front of the one that holds the record at ``position``."""
        self.drop_before(first_sequence_of(self._names[position >> POSITION_BITS]) or 0)

    def drop_before(self, sequence: int) -> None:
        """Drop the leading segments that hold nothing from ``sequence`` on; the last segment always stays."""
        keep = self._dropped
        while keep + 1 < len(self._names) and (first_sequence_of(self._names[keep + 1]) or 0) <= sequence:
            keep += 1
        if keep > self._dropped:
            names = tuple(self._names[self._dropped : keep])
            for number in range(self._dropped, keep):
                if number in self._readers:
                    self._readers.pop(number).close()
            self._dropped = keep
            self._staged.append(_Write(self._names[-1], remove=names))
            self._wants_sync = True

    def close(self) -> None:
        """Close the files opened for reading."""
        while self._readers:
            self._readers.popitem()[1].close()

    def _begin_segment(self) -> None:
        # The appender syncs the old segment before it makes the new one, so the new one may say so.
        before = self._last_sequence
        name = segment_name(before + 1)
        self._names.append(name)
        header = encode_header(before + 1, self._store_id)
        self._staged.append(_Write(name, create=True, parts=[header]))
        self._staged_bytes += len(header)
        self._size = HEADER_BYTES
        self._wants_sync = True
        if before:
            self._append_record(encode_mark(self._seed, before + 1, before))
            self._marked = max(self._marked, before)
        for kind, parts in self._preamble():
            self._append(kind, parts)

    def _append_mark(self) -> None:
        self._marked = self._synced
        self._append_record(encode_mark(self._seed, self._last_sequence + 1, self._synced))

    def _append(self, kind: int, parts: Sequence[Buffer]) -> int:
        return self._append_record(encode_record(self._seed, self._last_sequence + 1, kind, parts))

    def _append_record(self, parts: Sequence[Buffer]) -> int:
        self._last_sequence += 1
        position = (len(self._names) - 1) << POSITION_BITS | self._size
        data = b"".join(parts)
        self._pending[position] = (self._last_sequence, data)
        if not self._staged or self._staged[-1].remove:
            self._staged.append(_Write(self._names[-1]))
        self._staged[-1].parts.append(data)
        self._staged_bytes += len(data)
        self._size += len(data)
        return position

    def _read_file(self, position: int) -> memoryview:
        number, offset = position >> POSITION_BITS, position & _OFFSET_MASK
        file = self._readers.pop(number, None)
        if file is None:
            file = self._folder.open(self._names[number])
            if len(self._readers) >= READERS_MAX:
                self._readers.popitem(last=False)[1].close()
        self._readers[number] = file
        frame = file.read(offset, FRAME_BYTES)
        if len(frame) < FRAME_BYTES:
            raise CorruptRecord(position)
        length = payload_length(frame)
        # A rotten length must not make us allocate gigabytes: what the file does not hold cannot be read.
        if offset + FRAME_BYTES + length > file.size:
            raise CorruptRecord(position)
        return memoryview(frame + file.read(offset + FRAME_BYTES, length))


def _write_again(folder: Folder, name: str, offset: int) -> None:
    """Prove what is behind ``offset``: it was read, and must not vanish later."""
    file = folder.open(name)
    try:
        write_again(file, offset, file.size)
        file.sync()
    finally:
        file.close()


class Appender:
    """Writes batches in the order they were taken; used by one thread at a time. Every ``OSError`` is final.

    ``synced`` is told what was synced, and closed with this.
    """

    def __init__(self, folder: Folder, synced: SyncedFile | None = None) -> None:
        self._folder = folder
        self._synced = synced
        self._file: File | None = None

    def execute(self, batches: Sequence[Batch]) -> None:
        """Write ``batches`` and sync once for all of them, unless none asks for it."""
        removed: list[str] = []
        created = False
        for batch in batches:
            for step in batch.before:
                step()
            for write in batch.writes:
                created = self._write(write) or created
                removed += write.remove
        if any(batch.sync for batch in batches):
            if self._file is not None:
                self._file.sync()
            if created:
                self._folder.sync()
            if self._synced is not None:
                self._synced.state(batches[-1].last_sequence)
        if self._synced is not None and any(batch.settle for batch in batches):
            self._synced.settle()
        if removed:
            for name in removed:
                self._folder.remove(name)
            self._folder.sync()
        for batch in batches:
            for step in batch.after:
                step()

    def close(self) -> None:
        """Close the file being written."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._synced is not None:
            self._synced.close()

    def _write(self, write: _Write) -> bool:
        if write.create:
            if self._file is not None:
                self._file.sync()
                self._file.close()
            self._file = self._folder.create(write.name)
        elif self._file is None:
            self._file = self._folder.open(write.name)
        if write.parts:
            self._file.append(write.parts)
        return write.create
