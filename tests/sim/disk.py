"""A disk that forgets what was not fsynced: the storage commands of docs/specs/raft.md 5.2 without bytes."""

import random
from array import array
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b

from pavane.raft.state.commands import (
    RECOVERING_FLOOR,
    Append,
    Compact,
    HardState,
    Note,
    Recovered,
    SnapshotInstall,
    SnapshotPart,
    SnapshotSave,
    StoreCommand,
    StoredSnapshot,
    Truncate,
)
from pavane.raft.wire.entry import EntryType, entry_data, entry_digest, entry_reqid, entry_term, entry_type
from pavane.raft.wire.snapshot import DIGEST_BYTES, SnapshotHead, SnapshotMeta, SnapshotScan


def scanned(file: bytes | bytearray) -> tuple[SnapshotHead, SnapshotMeta]:
    scan = SnapshotScan()
    scan.feed(bytes(file))
    return scan.finish()


class SnapshotBytes:
    """A snapshot file being sent."""

    def __init__(self, file: bytes) -> None:
        self.file = file
        self.head = SnapshotHead.decode(file)

    def read(self, offset: int, length: int) -> bytes:
        return self.file[offset : offset + length]

    def close(self) -> None:
        pass


class Disk:
    """What is on the platter (``entries``, ``term``, …) and what is only on its way (``queue``)."""

    def __init__(self) -> None:
        self.queue: deque[StoreCommand] = deque()
        self.wipe()

    def wipe(self) -> None:
        self.queue.clear()
        self.first = 1
        self.entries: list[bytes] = []
        self.snapshots: dict[int, bytes] = {}
        self.incoming = bytearray()
        self.term = 0
        self.vote = ""
        self.vote_floor = 0
        self.votes: dict[int, str] = {}
        self.notes: dict[str, int | str | bytes] = {}

    def submit(self, commands: Sequence[StoreCommand]) -> None:
        self.queue.extend(commands)

    def sync(self, count: int) -> int:
        """Make the oldest ``count`` commands durable; return the last ticket."""
        ticket = 0
        for _ in range(count):
            command = self.queue.popleft()
            self._execute(command)
            ticket = command.ticket
        return ticket

    def crash(self, rng: random.Random) -> None:
        """Lose what was not fsynced, but for a prefix that happened to arrive; the write after it is torn."""
        self.sync(rng.randint(0, len(self.queue)))
        self.queue.clear()

    @property
    def last(self) -> int:
        return self.first + len(self.entries) - 1

    def damage(self, at: int) -> None:
        """Flip a bit in an entry that was fsynced: the scan at start sets it and everything behind it aside."""
        del self.entries[at - 1 :]

    def recovered(self, *, corrupt: bool) -> Recovered:
        if corrupt:
            self.vote_floor = RECOVERING_FLOOR  # written in the step that sets the damage aside (13.3)
        newest = max(self.snapshots, default=0)
        if newest > self.last:
            self.entries, self.first = [], newest + 1  # the log behind it was damaged, and set aside
        runs: list[tuple[int, int]] = []
        configurations: list[tuple[int, bytes]] = []
        for index, entry in enumerate(self.entries, self.first):
            term = entry_term(entry)
            if not runs or runs[-1][1] != term:
                runs.append((index, term))
            if entry_type(entry) == EntryType.CONFIG:
                configurations.append((index, bytes(entry_data(entry))))
        commit = self.notes.get("commit", 0)
        snapshot = None
        if newest:
            head, meta = scanned(self.snapshots[newest])
            snapshot = StoredSnapshot(newest, head.term, meta, head.data_bytes)
            assert newest >= self.first - 1, "the log does not reach the snapshot"
        return Recovered(
            term=self.term,
            vote=self.vote,
            vote_floor=self.vote_floor,
            first_index=self.first,
            last_index=self.last,
            term_runs=tuple(runs),
            reqids=b"".join(entry_reqid(entry) for entry in self.entries),
            digests=array("Q", map(entry_digest, self.entries)).tobytes(),
            configurations=tuple(configurations),
            commit=max(newest, min(commit, self.last) if isinstance(commit, int) else 0),
            notes=dict(self.notes),
            corrupt=corrupt,
            snapshot=snapshot,
        )

    def save(self, index: int, term: int, meta: SnapshotMeta, data: bytes) -> None:
        """Put a snapshot file of the machine in its place, durably."""
        assert index <= self.last, "a snapshot beyond what is durable"
        front = meta.encode()
        file = SnapshotHead(index, term, len(front), len(data)).encode() + front + data
        self.snapshots[index] = file + blake2b(file, digest_size=DIGEST_BYTES).digest()

    def open_snapshot(self, index: int) -> "SnapshotBytes":
        return SnapshotBytes(self.snapshots[index])

    def read(self, first: int, last: int, bytes_max: int) -> Sequence[bytes]:
        assert first >= self.first, "an entry that is gone"
        entries: list[bytes] = []
        size = 0
        for entry in self.entries[first - self.first : last - self.first + 1]:
            size += len(entry)
            if entries and size > bytes_max:
                break
            entries.append(entry)
        return entries

    def _execute(self, command: StoreCommand) -> None:
        match command:
            case HardState(_, term, vote, vote_floor):
                self.term, self.vote, self.vote_floor = term, vote, vote_floor
                if vote:
                    self.votes[term] = vote
            case Append(_, first, entries):
                assert self.first <= first <= self.last + 1, "a gap in the log"
                self.entries[first - self.first :] = entries
            case Truncate(_, after):
                del self.entries[after - self.first + 1 :]
            case SnapshotPart(_, begin, data):
                self.incoming = bytearray(data) if begin else self.incoming + data
            case SnapshotInstall(_, index, term, keep_log):
                head, _ = scanned(self.incoming)
                assert (head.index, head.term) == (index, term), "another file than was announced"
                self.snapshots[index] = bytes(self.incoming)
                held = self.first <= index <= self.last and entry_term(self.entries[index - self.first]) == term
                assert held == keep_log, "the log holds the entry on one side only"
                if not keep_log:
                    self.entries, self.first = [], index + 1
            case SnapshotSave(_, index, _):
                assert index in self.snapshots, "a snapshot without its file is recorded"
            case Compact(_, first_kept):
                gone = max(0, min(first_kept, self.last + 1) - self.first)
                del self.entries[:gone]
                self.first += gone
                for index in sorted(self.snapshots)[:-2]:
                    del self.snapshots[index]
            case Note(_, key, value):
                self.notes[key] = value
