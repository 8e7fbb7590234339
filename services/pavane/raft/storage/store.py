"""Log, votes and notes of one peer on disk (docs/specs/raft.md 13.2, 13.3).

``RaftStorage`` belongs to the thread of the event loop. ``execute`` stages commands of the core, ``take`` hands them to
an ``Appender`` or ``Writer`` of ``pavane.wal``, ``completed`` says which tickets are durable. No object is kept per
entry: two arrays say where each one is.
"""

import secrets
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pavane.raft.state.commands import (
    RECOVERING_FLOOR,
    Append,
    CorruptEntry,
    HardState,
    Note,
    Recovered,
    StoreCommand,
    Token,
    Truncate,
)
from pavane.raft.storage.identity import NAME as IDENTITY_NAME
from pavane.raft.storage.identity import Identity, read_identity, write_identity
from pavane.raft.storage.records import (
    ENTRIES_HEADER_BYTES,
    Kind,
    NoteValue,
    StoreError,
    decode_entries,
    decode_hard,
    decode_note,
    decode_token,
    decode_truncate,
    encode_entries,
    encode_hard,
    encode_note,
    encode_token,
    encode_truncate,
)
from pavane.raft.wire.entry import BLOB_LENGTH_BYTES, EntryType, entry_data, entry_reqid, entry_term, entry_type
from pavane.raft.wire.frames import REQID_BYTES
from pavane.wal import Appender, Batch, CorruptRecord, Folder, ForeignLog, Lock, Log, NewRecord, Record, first_fault
from pavane.wal.log import SEGMENT_BYTES
from pavane.wal.record import STORE_ID_BYTES, segment_name
from pavane.wal.scan import file_size
from pavane.wire import LocalProtocolError

LOG_FOLDER = "log"
LOCK = "lock"
NOTE_COMMIT = "commit"  # key of the note that holds the last commit index
EMPTY_LOG_BYTES_MAX = 256  # header, HARD without a vote: a log into which nothing was ever written
# Reading one entry back means reading and checking its whole record, so a batch is cut into records of about this size.
RECORD_BYTES = 64 << 10


class StoreLocked(StoreError):
    """Another process has the data folder open."""


@dataclass(slots=True)
class _Facts:
    """The small records as they stand: what every segment begins with."""

    term: int = 0
    vote: str = ""
    vote_floor: int = 0
    token: Token | None = None
    notes: dict[str, NoteValue] = field(default_factory=dict)

    def records(self) -> list[NewRecord]:
        """Return them for the beginning of a segment."""
        records: list[NewRecord] = [(Kind.HARD, [encode_hard(self.term, self.vote, self.vote_floor)])]
        if self.token is not None:
            records.append((Kind.TOKEN, [encode_token(self.token)]))
        records += [(Kind.NOTE, [encode_note(key, value)]) for key, value in self.notes.items()]
        return records


class Replay:
    """Replays the records of a log into what the core and the storage need at start."""

    def __init__(self) -> None:
        self.facts = _Facts()
        self.positions = array("Q")
        self.offsets = array("I")
        self.reqids = bytearray()
        self.term_runs: list[tuple[int, int]] = []
        self.configurations: list[tuple[int, bytes]] = []
        self.gap = False

    @property
    def last_index(self) -> int:
        """Index of the last entry found so far."""
        return len(self.positions)

    def visit(self, record: Record) -> None:
        """Take the next good record."""
        facts = self.facts
        match record.kind:
            case Kind.ENTRIES:
                self._entries(record)
            case Kind.HARD:
                facts.term, facts.vote, facts.vote_floor = decode_hard(record.payload)
            case Kind.TRUNCATE:
                self._truncate(decode_truncate(record.payload))
                self.gap = False
            case Kind.NOTE:
                key, value = decode_note(record.payload)
                facts.notes[key] = value
            case Kind.TOKEN:
                facts.token = decode_token(record.payload)
            case _:
                raise StoreError(
                    f"the log holds a record of type {record.kind}, which this version does not know; "
                    "start the version that wrote it"
                )

    def repair(self) -> Sequence[NewRecord]:
        """Return the record that makes the loss of synced records known to every later start (5.5)."""
        self.facts.vote_floor = RECOVERING_FLOOR
        return self.facts.records()[:1]

    def _entries(self, record: Record) -> None:
        first, entries = decode_entries(record.payload)
        if first > self.last_index + 1:
            # What lies in between is gone, so these cannot be placed.
            self.gap = True
            return
        self._truncate(first - 1)
        offset = ENTRIES_HEADER_BYTES
        for index, entry in enumerate(entries, first):
            self.positions.append(record.position)
            self.offsets.append(offset)
            offset += BLOB_LENGTH_BYTES + len(entry)
            self.reqids += entry_reqid(entry)
            term = entry_term(entry)
            if not self.term_runs or self.term_runs[-1][1] != term:
                self.term_runs.append((index, term))
            if entry_type(entry) == EntryType.CONFIG:
                self.configurations.append((index, bytes(entry_data(entry))))

    def _truncate(self, after: int) -> None:
        del self.positions[after:]
        del self.offsets[after:]
        del self.reqids[after * REQID_BYTES :]
        while self.term_runs and self.term_runs[-1][0] > after:
            self.term_runs.pop()
        while self.configurations and self.configurations[-1][0] > after:
            self.configurations.pop()

    def recovered(self, corrupt: bool) -> Recovered:
        """Return what the core starts from."""
        facts = self.facts
        commit = facts.notes.get(NOTE_COMMIT, 0)
        return Recovered(
            term=facts.term,
            vote=facts.vote,
            vote_floor=facts.vote_floor,
            last_index=self.last_index,
            term_runs=tuple(self.term_runs),
            reqids=bytes(self.reqids),
            configurations=tuple(self.configurations),
            commit=min(commit, self.last_index) if isinstance(commit, int) else 0,
            notes=dict(facts.notes),
            token=facts.token,
            corrupt=corrupt,
        )


class RaftStorage:
    """The store in ``folder``, made if there is none; open while this process holds its lock.

    ``set_aside`` names the files that keep what was corrupt, ``torn_bytes`` says how
    much of an unfinished last write was dropped. Raises ``StoreLocked``, ``ForeignStore``, ``StoreError``, ``OSError``.
    """

    def __init__(self, folder: Folder, identity: Identity, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._lock = take_lock(folder)
        try:
            self.log_folder = folder.folder(LOG_FOLDER)
            store_id = read_identity(folder, identity)
            if store_id is None:
                store_id = _create(folder, self.log_folder, identity)
            self._store_id = store_id
            recovery = Replay()
            self._facts = recovery.facts
            self._log, found = Log.open(
                self.log_folder, store_id, recovery.visit, recovery.repair, self._facts.records, segment_bytes
            )
        except BaseException as error:
            self._lock.release()
            if isinstance(error, ForeignLog):
                raise StoreError(f"{folder}: {error}; put {IDENTITY_NAME} and log of one store together") from error
            raise
        self.set_aside = found.set_aside
        self.torn_bytes = found.torn_bytes
        self._positions = recovery.positions
        self._offsets = recovery.offsets
        self._scrubbed = 0
        self._tickets: deque[tuple[int, int]] = deque()
        self._synced_sequence = self._log.last_sequence
        if recovery.gap:
            # The core makes the loss known by its vote floor; this lets the log go on behind what can be placed.
            recovery.repair()
            self._log.append(Kind.TRUNCATE, [encode_truncate(recovery.last_index)])
            self._log.append(*self._facts.records()[0])
        self._recovered: Recovered | None = recovery.recovered(found.corrupt or recovery.gap)

    def take_recovered(self) -> Recovered:
        """Return what was found at start, once: it holds twelve bytes per entry that the core keeps in its own way."""
        if self._recovered is None:
            raise LocalProtocolError("what was recovered was taken already")
        recovered, self._recovered = self._recovered, None
        return recovered

    @property
    def last_index(self) -> int:
        """Index of the last entry handed to storage."""
        return len(self._positions)

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
                    self._log.append(Kind.HARD, [encode_hard(term, vote, vote_floor)])
                case Truncate(_, after):
                    self._forget(after)
                    self._log.append(Kind.TRUNCATE, [encode_truncate(after)])
                case Note(_, key, value):
                    self._facts.notes[key] = value
                    self._log.append(Kind.NOTE, [encode_note(key, value)], sync=False)
            self._tickets.append((self._log.last_sequence, command.ticket))

    def store_token(self, token: Token) -> int:
        """Stage the token of AllowWrites; return the sequence that must be synced before it may be acted upon."""
        self._facts.token = token
        self._log.append(Kind.TOKEN, [encode_token(token)])
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
        """Return a check of the next segment in turn, None if nothing is written yet.

        The check reads the whole segment, so it belongs into a thread; it returns what is wrong, None if all is good.
        """
        segments = self._log.written_segments()
        if not segments:
            return None
        name, end = segments[self._scrubbed % len(segments)]
        self._scrubbed += 1

        def check() -> str | None:
            offset = first_fault(self.log_folder, name, self._store_id, end)
            return None if offset is None else f"segment {name} is damaged at offset {offset}"

        return check

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[memoryview]:
        """Return entries from ``first`` on (``EntrySource``); raises ``CorruptEntry``."""
        entries: list[memoryview] = []
        size = 0
        position = -1
        payload = memoryview(b"")
        for index in range(first, min(last, self.last_index) + 1):
            if self._positions[index - 1] != position:
                position = self._positions[index - 1]
                try:
                    payload = self._log.read(position).payload
                except CorruptRecord as error:
                    raise CorruptEntry(index) from error
            start = self._offsets[index - 1] + BLOB_LENGTH_BYTES
            length = int.from_bytes(payload[start - BLOB_LENGTH_BYTES : start], "little")
            size += length
            if entries and size > bytes_max:
                break
            entries.append(payload[start : start + length])
        return entries

    def close(self) -> None:
        """Close files and give up the lock; what was staged and not taken is lost."""
        self._log.close()
        self._lock.release()

    def _append(self, first: int, entries: Sequence[bytes]) -> None:
        if first > self.last_index + 1:
            raise LocalProtocolError(f"entries from {first} on do not follow index {self.last_index}")
        self._forget(first - 1)
        start = 0
        while start < len(entries):
            size = 0
            end = start
            while end < len(entries) and (end == start or size + len(entries[end]) <= RECORD_BYTES):
                size += len(entries[end])
                end += 1
            self._append_record(first + start, entries[start:end])
            start = end

    def _append_record(self, first: int, entries: Sequence[bytes]) -> None:
        position = self._log.append(Kind.ENTRIES, [encode_entries(first, entries)])
        offset = ENTRIES_HEADER_BYTES
        for entry in entries:
            self._positions.append(position)
            self._offsets.append(offset)
            offset += BLOB_LENGTH_BYTES + len(entry)

    def _forget(self, after: int) -> None:
        del self._positions[after:]
        del self._offsets[after:]


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
        batch = Log.create(log_folder, store_id, _Facts().records).take()
        if batch is not None:
            appender.execute([batch])
    finally:
        appender.close()
    write_identity(folder, identity, store_id)
    return store_id
