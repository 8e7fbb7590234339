"""Log, votes and notes of one peer on disk (docs/specs/raft.md 13.2, 13.3).

``RaftStorage`` belongs to the thread of the event loop. ``execute`` stages commands of the core, ``take`` hands them to
an ``Appender`` or ``Writer`` of ``pavane.wal``, ``completed`` says which tickets are durable. No object is kept per
entry: two arrays say where each one is.
"""

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, repeat

from pavane.raft.config import BROADCAST
from pavane.raft.state.commands import (
    Append,
    Compact,
    CorruptEntry,
    HardState,
    Note,
    Recovered,
    SnapshotInstall,
    SnapshotPart,
    SnapshotSave,
    StoreCommand,
    Token,
    Truncate,
)
from pavane.raft.storage.identity import NAME as IDENTITY_NAME
from pavane.raft.storage.identity import Identity, read_identity, write_identity
from pavane.raft.storage.offers import FOLDER as OFFERS_FOLDER
from pavane.raft.storage.offers import Offers
from pavane.raft.storage.records import (
    ENTRIES_HEADER_BYTES,
    RecordType,
    StoreError,
    encode_entries,
    encode_hard,
    encode_note,
    encode_snapshot,
    encode_token,
    encode_truncate,
)
from pavane.raft.storage.recovery import Facts, Replay
from pavane.raft.storage.snapshots import SnapshotFiles, SnapshotReader
from pavane.raft.wire.entry import BLOB_LENGTH_BYTES
from pavane.wal import Appender, Batch, CorruptRecord, Folder, ForeignLog, Lock, Log, SyncedFile, first_fault
from pavane.wal.log import SEGMENT_BYTES
from pavane.wal.record import STORE_ID_BYTES, check_seed, segment_name
from pavane.wal.scan import file_size
from pavane.wire import LocalProtocolError

LOG_FOLDER = "log"
SNAPSHOT_FOLDER = "snap"
LOCK = "lock"
EMPTY_LOG_BYTES_MAX = 256  # header, HARD without a vote: a log into which nothing was ever written
# Reading one entry back means reading and checking its whole record, so a batch is cut into records of about this size.
RECORD_BYTES = 64 << 10


class StoreLocked(StoreError):
    """Another process has the data folder open."""


class RaftStorage:
    """The store in ``folder``, made if there is none; open while this process holds its lock.

    ``set_aside`` names the files that keep what was corrupt, ``torn_bytes`` says how
    much of an unfinished last write was dropped. Raises ``StoreLocked``, ``ForeignStore``, ``StoreError``, ``OSError``.
    """

    def __init__(self, folder: Folder, identity: Identity, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._lock = take_lock(folder)
        try:
            self.log_folder = folder.folder(LOG_FOLDER)
            self.snapshots = SnapshotFiles(folder.folder(SNAPSHOT_FOLDER))
            self.offers = Offers(folder.folder(OFFERS_FOLDER)) if identity.machine == BROADCAST else None
            store_id = read_identity(folder, identity)
            if store_id is None:
                store_id = _create(folder, self.log_folder, identity)
            self._store_id = store_id
            recovery = Replay()
            self._facts = recovery.facts
            self._synced = SyncedFile(folder, check_seed(store_id))
            self._log, found = Log.open(
                self.log_folder,
                store_id,
                recovery.visit,
                recovery.repair,
                self._facts.records,
                segment_bytes,
                self._synced.read(),
            )
            if found.corrupt:
                self._synced.forget()
            snapshot, bad = self.snapshots.recover(identity.machine)
            whole = recovery.complete(snapshot)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, ForeignLog):
                raise StoreError(f"{folder}: {error}; put {IDENTITY_NAME} and log of one store together") from error
            raise
        self.set_aside = (*found.set_aside, *bad)
        self.torn_bytes = found.torn_bytes
        self._first = recovery.first
        self._positions = recovery.positions
        self._offsets = recovery.offsets
        self._scrubbed = 0
        self._tickets: deque[tuple[int, int]] = deque()
        self._synced_sequence = self._log.last_sequence
        if recovery.gap or not whole:
            # The core makes the loss known by its vote floor; this lets the log go on behind what can be placed.
            recovery.repair()
            if snapshot is not None:
                self._log.append(RecordType.SNAPSHOT, [encode_snapshot(snapshot.index, snapshot.term)])
            self._log.append(RecordType.TRUNCATE, [encode_truncate(recovery.last_index)])
            self._log.append(*self._facts.records()[0])
        self._recovered: Recovered | None = recovery.recovered(found.corrupt or recovery.gap or not whole)

    def appender(self) -> Appender:
        """Return what writes the batches that ``take`` returns; one at a time."""
        return Appender(self.log_folder, self._synced)

    def take_recovered(self) -> Recovered:
        """Return what was found at start, once: it holds twelve bytes per entry that the core keeps in its own way."""
        if self._recovered is None:
            raise LocalProtocolError("what was recovered was taken already")
        recovered, self._recovered = self._recovered, None
        return recovered

    @property
    def last_index(self) -> int:
        """Index of the last entry handed to storage."""
        return self._first + len(self._positions) - 1

    @property
    def log_bytes(self) -> int:
        """Bytes of the log's files, as far as they are written."""
        return sum(size for _, size in self._log.written_segments())

    @property
    def synced_sequence(self) -> int:
        """Every record up to this sequence is durable."""
        return self._synced_sequence

    def execute(self, commands: Sequence[StoreCommand]) -> None:
        """Stage ``commands`` in order."""
        for command in commands:
            match command:
                case Append():
                    self._append(command.first, command.entries)
                case HardState(_, term, vote, vote_floor):
                    facts = self._facts
                    facts.term, facts.vote, facts.vote_floor = term, vote, vote_floor
                    self._log.append(RecordType.HARD, [encode_hard(term, vote, vote_floor)])
                case Truncate(_, after):
                    self._forget(after)
                    self._log.append(RecordType.TRUNCATE, [encode_truncate(after)])
                case Note(_, key, value):
                    self._facts.notes[key] = value
                    self._log.append(RecordType.NOTE, [encode_note(key, value)], sync=False)
                case SnapshotPart(_, begin, data):
                    self._log.before_next(partial(self.snapshots.receive, data, begin=begin), len(data))
                case SnapshotInstall(_, index, term, keep_log):
                    self._log.before_next(partial(self.snapshots.install, index, term))
                    if not keep_log:
                        self._forget(self._first - 1)
                        self._first = index + 1
                    self._name_snapshot(index, term)
                case SnapshotSave(_, index, term):
                    self._name_snapshot(index, term)
                case Compact(_, first_kept):
                    self._compact(first_kept)
            self._tickets.append((self._log.last_sequence, command.ticket))

    def store_token(self, token: Token) -> int:
        """Stage the token of AllowWrites; return the sequence that must be synced before it may be acted upon."""
        self._facts.token = token
        self._log.append(RecordType.TOKEN, [encode_token(token)])
        return self._log.last_sequence

    @property
    def token(self) -> Token | None:
        """The token staged last."""
        return self._facts.token

    def mark(self, *, sync: bool = False) -> None:
        """Stage a MARK if the log needs one: to be called when nothing was written for a while (13.1)."""
        self._log.mark(sync=sync)

    def take(self) -> Batch | None:
        """Return what was staged since the last call, for ``pavane.wal.Writer`` or ``Appender``."""
        return self._log.take()

    def completed(self, batches: Sequence[Batch]) -> int | None:
        """Take the news that ``batches`` were executed; return the greatest ticket that this makes durable."""
        for batch in batches:
            self._log.completed(batch)
        # One sync covers all batches of one turn of the appender.
        if any(batch.sync for batch in batches):
            self._synced_sequence = batches[-1].last_sequence
        ticket = None
        while self._tickets and self._tickets[0][0] <= batches[-1].last_sequence:
            ticket = self._tickets.popleft()[1]
        return ticket

    def next_scrub(self) -> Callable[[], str | None] | None:
        """Return a check of the next segment in turn, or of the snapshot; None if nothing is written yet.

        The check reads the whole file, so it belongs into a thread; it returns what is wrong, None if all is good.
        """
        segments = self._log.written_segments()
        if not segments:
            return None
        turn = self._scrubbed % (len(segments) + 1)
        self._scrubbed += 1
        if turn == len(segments):
            return self.snapshots.newest_fault
        name, end = segments[turn]

        def check() -> str | None:
            try:
                offset = first_fault(self.log_folder, name, self._store_id, end)
            except FileNotFoundError:
                return None  # it was there a moment ago: a snapshot stands for it now
            return None if offset is None else f"segment {name} is damaged at offset {offset}"

        return check

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[memoryview]:
        """Return entries from ``first`` on (``EntrySource``); raises ``CorruptEntry``."""
        if first < self._first:
            raise LocalProtocolError(f"entry {first} is asked for, and the log begins with {self._first}")
        entries: list[memoryview] = []
        size = 0
        position = -1
        payload = memoryview(b"")
        for index in range(first, min(last, self.last_index) + 1):
            at = index - self._first
            if self._positions[at] != position:
                position = self._positions[at]
                try:
                    payload = self._log.read(position).payload
                except CorruptRecord as error:
                    raise CorruptEntry(index) from error
            start = self._offsets[at] + BLOB_LENGTH_BYTES
            length = int.from_bytes(payload[start - BLOB_LENGTH_BYTES : start], "little")
            size += length
            if entries and size > bytes_max:
                break
            entries.append(payload[start : start + length])
        return entries

    def open_snapshot(self, index: int) -> SnapshotReader:
        """Open the snapshot file up to entry ``index`` (``EntrySource``)."""
        return self.snapshots.open(index)

    def close(self) -> None:
        """Close files and give up the lock; what was staged and not taken is lost."""
        self._log.close()
        self.snapshots.close()
        self._lock.release()

    def _append(self, first: int, entries: Sequence[bytes]) -> None:
        if first > self.last_index + 1:
            raise LocalProtocolError(f"entries from {first} on do not follow index {self.last_index}")
        self._forget(first - 1)
        start = size = 0
        for end, length in enumerate(map(len, entries)):
            if size + length > RECORD_BYTES and end > start:
                self._append_record(first + start, entries[start:end])
                start, size = end, 0
            size += length
        self._append_record(first + start, entries[start:])

    def _append_record(self, first: int, entries: Sequence[bytes]) -> None:
        position = self._log.append(RecordType.ENTRIES, [encode_entries(first, entries)])
        self._positions.extend(repeat(position, len(entries)))
        steps = (BLOB_LENGTH_BYTES + len(entry) for entry in entries[:-1])
        self._offsets.extend(accumulate(steps, initial=ENTRIES_HEADER_BYTES))

    def _forget(self, after: int) -> None:
        kept = max(0, after - self._first + 1)
        del self._positions[kept:]
        del self._offsets[kept:]

    def _name_snapshot(self, index: int, term: int) -> None:
        self._facts.snapshot = (index, term)
        self._log.append(RecordType.SNAPSHOT, [encode_snapshot(index, term)])

    def _compact(self, first_kept: int) -> None:
        gone = min(first_kept, self.last_index + 1) - self._first
        if gone > 0:
            del self._positions[:gone]
            del self._offsets[:gone]
            self._first += gone
        if self._positions:
            self._log.drop_segments_before(self._positions[0])
        else:
            self._log.drop_before(self._log.last_sequence + 1)
        self._log.after_next(self.snapshots.prune)


def take_lock(folder: Folder) -> Lock:
    """Take the lock of a data folder; raises ``StoreLocked``."""
    try:
        return folder.lock(LOCK)
    except BlockingIOError as error:
        raise StoreLocked(f"{folder} is in use by another process; stop it or use another data folder") from error


def _create(folder: Folder, log_folder: Folder, identity: Identity) -> bytes:
    """Make an empty log, then ``store.json``, whose presence says that the log was made; return the store id."""
    for name in log_folder.names():
        # An unfinished creation leaves one small segment behind; anything else is a log that lost its store.json.
        if name != segment_name(1) or file_size(log_folder, name) > EMPTY_LOG_BYTES_MAX:
            raise StoreError(
                f"{folder} holds a log but no {IDENTITY_NAME}; restore that file from a copy, or use an empty folder"
            )
        log_folder.remove(name)
    store_id = secrets.token_bytes(STORE_ID_BYTES)
    appender = Appender(log_folder)
    try:
        batch = Log.create(log_folder, store_id, Facts().records).take()
        if batch is not None:
            appender.execute([batch])
    finally:
        appender.close()
    write_identity(folder, identity, store_id)
    return store_id
