"""Our data folder, read while its peer is down; nothing in it is changed (docs/specs/raft.md 13.2, 17)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pavane.raft.offline.writing import mapped
from pavane.raft.state.commands import Recovered
from pavane.raft.state.configuration import Configuration
from pavane.raft.storage.identity import NAME as IDENTITY_NAME
from pavane.raft.storage.identity import Identity, stored_identity
from pavane.raft.storage.records import StoreError, decode_entries
from pavane.raft.storage.recovery import Replay
from pavane.raft.storage.snapshots import BAD_SUFFIX, SnapshotFiles
from pavane.raft.storage.store import LOG_FOLDER, SNAPSHOT_FOLDER, take_lock
from pavane.raft.wire.snapshot import SNAPSHOT_NAME
from pavane.wal import DiskFolder, Folder, ForeignLog, Log, Record, Scanned, SyncedFile, examine
from pavane.wal.record import check_seed, first_sequence_of
from pavane.wal.scan import SET_ASIDE, file_size
from pavane.wire import RemoteProtocolError

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are done."""


def no_progress(done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a log stops being good. ``torn``: an unfinished last write, of which nobody was told; else rot."""

    segment: str
    offset: int
    torn: bool


class StoredLog:
    """A peer's store, opened under its lock and read only; use as a context manager.

    ``log_bytes`` is the size of the log; ``damage`` is where its good part ends early; ``recovered`` is what the
    peer would start from; ``set_aside`` are name and bytes of files that earlier starts found damaged.
    Raises ``StoreLocked`` while the peer runs, ``StoreError`` for what is no store, ``OSError``.
    """

    identity: Identity
    recovered: Recovered
    damage: Damage | None

    def __init__(self, path: Path, progress: Progress = no_progress) -> None:
        if not self.is_one(path):
            raise StoreError(f"{path} holds no {IDENTITY_NAME}: it is not the data folder of a Raft peer")
        self._path = path
        folder = DiskFolder(path)
        self._lock = take_lock(folder)
        try:
            self._read(folder, progress)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, ForeignLog):
                raise StoreError(
                    f"{path}: {error}; {IDENTITY_NAME} is damaged or of another store: put it and log of one together"
                ) from error
            raise

    @staticmethod
    def is_one(path: Path) -> bool:
        """Say whether ``path`` looks like such a folder."""
        return (path / IDENTITY_NAME).is_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files and give up the lock."""
        self._log.close()
        self._lock.release()

    @property
    def configuration(self) -> tuple[int, Configuration] | None:
        """Index and value of the last configuration in log or snapshot; None if there is none.

        Raises ``StoreError`` for a CONFIG entry that states none.
        """
        stated = list(self.recovered.configurations[-1:])
        if not stated and self.recovered.snapshot is not None:
            meta = self.recovered.snapshot.meta
            stated = [(meta.configuration_index, meta.configuration)] if meta.configuration else []
        for index, data in stated:
            try:
                return index, Configuration.decode(data)
            except RemoteProtocolError as error:
                raise StoreError(f"entry {index} is to state a configuration and does not") from error
        return None

    def term_at(self, index: int) -> int:
        """Return the term of an entry that is here, or the last that the snapshot covers."""
        snapshot = self.recovered.snapshot
        if snapshot is not None and snapshot.index == index:
            return snapshot.term
        return max((run for run in self.recovered.term_runs if run[0] <= index), default=(0, 0))[1]

    def snapshot_file(self) -> memoryview:
        """Return the bytes of the newest snapshot's file, mapped; nothing if there is no snapshot."""
        snapshot = self.recovered.snapshot
        if snapshot is None:
            return memoryview(b"")
        return mapped(self._path / SNAPSHOT_FOLDER / SNAPSHOT_NAME.format(index=snapshot.index, term=snapshot.term))

    def entries(self, first: int = 0) -> Iterator[tuple[int, memoryview]]:
        """Yield every entry from ``first`` on with its index, each as a view of its record."""
        replay, log_first = self._replay, self.recovered.first_index
        position = -1
        held: tuple[memoryview, ...] = ()
        held_first = 0
        for index in range(max(first, log_first), self.recovered.last_index + 1):
            if replay.positions[index - log_first] != position:
                position = replay.positions[index - log_first]
                held_first, held = decode_entries(self._log.read(position).payload)
            yield index, held[index - held_first]

    def faults(self) -> list[str]:
        """Return what is wrong with the log, in words; nothing if it is good. An unfinished last write is no fault."""
        faults = []
        if self.damage is not None and not self.damage.torn:
            faults.append(
                f"segment {self.damage.segment} is damaged at offset {self.damage.offset}: entries behind "
                f"{self.recovered.last_index} are lost here; the next start sets them aside and fetches them again"
            )
        elif self._replay.gap or not self._whole:
            faults.append(f"entries behind {self.recovered.last_index} are missing; the next start fetches them again")
        faults += [f"snapshot {name}: {fault}; the one before it counts" for name, fault in self._bad.items()]
        terms = [term for _, term in self.recovered.term_runs]
        if terms != sorted(terms):
            faults.append(f"terms fall: {terms}")
        if terms and terms[-1] > self.recovered.term:
            faults.append(f"the last entry has term {terms[-1]}, the peer {self.recovered.term}")
        for index, data in self.recovered.configurations:
            try:
                Configuration.decode(data)
            except RemoteProtocolError:
                faults.append(f"entry {index} is to state a configuration and does not")
        return faults

    def _read(self, folder: DiskFolder, progress: Progress) -> None:
        stored = stored_identity(folder)
        assert stored is not None  # noqa: S101 - is_one has seen the file, and the lock is ours
        self.identity, store_id = stored
        log_folder = folder.folder(LOG_FOLDER)
        self._replay = Replay()
        names = (name for name in log_folder.names() if first_sequence_of(name) is not None)
        self.log_bytes = sum(file_size(log_folder, name) for name in names)
        done = 0

        def visit(record: Record) -> None:
            nonlocal done
            self._replay.visit(record)
            done += len(record.payload)
            progress(done, self.log_bytes)

        found = examine(log_folder, store_id, visit, SyncedFile(folder, check_seed(store_id)).read())
        self.segments = len(found.names)
        self.set_aside = tuple(_set_aside(folder))
        self.damage = None
        if found.fault is not None:
            name = found.names[found.fault.segment] if found.names else "(none)"
            self.damage = Damage(name, max(0, found.fault.offset), found.fault.torn)
        snapshot, self._bad = SnapshotFiles(folder.folder(SNAPSHOT_FOLDER)).examine(self.identity.machine)
        self._whole = self._replay.complete(snapshot)
        rotten = self._replay.gap or not self._whole or (self.damage is not None and not self.damage.torn)
        self.recovered = self._replay.recovered(rotten)
        self._log = Log(log_folder, store_id, Scanned(found.names, found.last_sequence), list)


def _set_aside(folder: Folder) -> Iterator[tuple[str, int]]:
    for place, mark in ((LOG_FOLDER, SET_ASIDE), (SNAPSHOT_FOLDER, BAD_SUFFIX)):
        inner = folder.folder(place)
        for name in sorted(inner.names()):
            if mark in name:
                yield f"{place}/{name}", file_size(inner, name)
