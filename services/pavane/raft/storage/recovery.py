"""Replaying a log at start: what the core begins from, and where each entry is (docs/specs/raft.md 13.2, 13.3)."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from pavane.raft.state.commands import RECOVERING_FLOOR, Recovered, StoredSnapshot, Token
from pavane.raft.storage.records import (
    ENTRIES_HEADER_BYTES,
    NoteValue,
    RecordType,
    StoreError,
    decode_entries,
    decode_hard,
    decode_note,
    decode_snapshot,
    decode_token,
    decode_truncate,
    encode_hard,
    encode_note,
    encode_snapshot,
    encode_token,
)
from pavane.raft.wire.entry import (
    BLOB_LENGTH_BYTES,
    entry_data,
    entry_digest,
    entry_reqid,
    entry_term,
    is_configuration,
)
from pavane.raft.wire.frames import REQID_BYTES
from pavane.wal import NewRecord, Record

NOTE_COMMIT = "commit"  # key of the note that holds the last commit index


@dataclass(slots=True)
class Facts:
    """The small records as they stand: what every segment begins with."""

    term: int = 0
    vote: str = ""
    vote_floor: int = 0
    token: Token | None = None
    snapshot: tuple[int, int] | None = None  # index and term of the last entry that it covers
    notes: dict[str, NoteValue] = field(default_factory=dict)

    def records(self) -> list[NewRecord]:
        """Return them for the beginning of a segment."""
        records: list[NewRecord] = [(RecordType.HARD, [encode_hard(self.term, self.vote, self.vote_floor)])]
        if self.token is not None:
            records.append((RecordType.TOKEN, [encode_token(self.token)]))
        if self.snapshot is not None:
            records.append((RecordType.SNAPSHOT, [encode_snapshot(*self.snapshot)]))
        records += [(RecordType.NOTE, [encode_note(key, value)]) for key, value in self.notes.items()]
        return records


class Replay:
    """Replays the records of a log into what the core and the storage need at start."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.first = 1
        self.positions = array("Q")
        self.offsets = array("I")
        self.reqids = bytearray()
        self.digests = array("Q")
        self.term_runs: list[tuple[int, int]] = []
        self.configurations: list[tuple[int, bytes]] = []
        self.gap = False
        self.snapshot: StoredSnapshot | None = None

    @property
    def last_index(self) -> int:
        """Index of the last entry found so far, ``first`` - 1 if there is none."""
        return self.first + len(self.positions) - 1

    def visit(self, record: Record) -> None:
        """Take the next good record."""
        facts = self.facts
        match record.kind:
            case RecordType.ENTRIES:
                self._entries(record)
            case RecordType.HARD:
                facts.term, facts.vote, facts.vote_floor = decode_hard(record.payload)
            case RecordType.TRUNCATE:
                self._truncate(decode_truncate(record.payload))
                self.gap = False
            case RecordType.SNAPSHOT:
                facts.snapshot = decode_snapshot(record.payload)
                self.begin_behind(*facts.snapshot)
            case RecordType.NOTE:
                key, value = decode_note(record.payload)
                facts.notes[key] = value
            case RecordType.TOKEN:
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
        if not self.positions:
            # Segments before this one may be gone, if a snapshot covers what they held; ``complete`` looks.
            self.first = first
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
            self.digests.append(entry_digest(entry))
            term = entry_term(entry)
            if not self.term_runs or self.term_runs[-1][1] != term:
                self.term_runs.append((index, term))
            if is_configuration(entry):
                self.configurations.append((index, bytes(entry_data(entry))))

    def begin_behind(self, index: int, term: int) -> None:
        """Let the log go on behind a snapshot: if it does not hold that entry with that term, it ends (9.4)."""
        if index < self.first or (index <= self.last_index and self._term_at(index) == term):
            return
        self._truncate(self.first - 1)
        self.first = index + 1
        self.gap = False

    def complete(self, snapshot: StoredSnapshot | None) -> bool:
        """Take the snapshot that was found; false if entries between it and the log are missing, which goes then."""
        covered = 0
        if snapshot is not None:
            covered = snapshot.index
            if (self.facts.snapshot or (0, 0))[0] < covered:
                self.begin_behind(snapshot.index, snapshot.term)
        whole = self.first <= covered + 1
        if not whole:
            self._truncate(self.first - 1)
            self.first = covered + 1
        self.facts.snapshot = None if snapshot is None else (snapshot.index, snapshot.term)
        self.snapshot = snapshot
        return whole

    def _term_at(self, index: int) -> int:
        return next(term for start, term in reversed(self.term_runs) if start <= index)

    def _truncate(self, after: int) -> None:
        kept = max(0, after - self.first + 1)
        del self.positions[kept:]
        del self.offsets[kept:]
        del self.reqids[kept * REQID_BYTES :]
        del self.digests[kept:]
        while self.term_runs and self.term_runs[-1][0] > after:
            self.term_runs.pop()
        while self.configurations and self.configurations[-1][0] > after:
            self.configurations.pop()

    def recovered(self, corrupt: bool) -> Recovered:
        """Return what the core starts from."""
        facts = self.facts
        noted = facts.notes.get(NOTE_COMMIT, 0)
        commit = min(noted, self.last_index) if isinstance(noted, int) else 0
        return Recovered(
            term=facts.term,
            vote=facts.vote,
            vote_floor=facts.vote_floor,
            first_index=self.first,
            last_index=self.last_index,
            term_runs=tuple(self.term_runs),
            reqids=bytes(self.reqids),
            digests=self.digests.tobytes(),
            configurations=tuple(self.configurations),
            commit=max(commit, 0 if self.snapshot is None else self.snapshot.index),
            notes=dict(facts.notes),
            token=facts.token,
            corrupt=corrupt,
            snapshot=self.snapshot,
        )
