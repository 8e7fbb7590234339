"""Folders that are whole or not there, and a store that is written without a peer."""

import mmap
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

from pavane.raft.state.commands import RECOVERING_FLOOR, Recovered, SnapshotInstall, SnapshotPart, StoreCommand
from pavane.raft.state.configuration import Configuration, Members
from pavane.raft.storage import Identity, RaftStorage, StoreError
from pavane.raft.wire.entry import ZERO_REQID, EntryType, encode_entry
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.snapshot import DIGEST_BYTES, SnapshotHead
from pavane.wal import DiskFolder

PIECE_BYTES = 1 << 20  # of a file that is copied


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Give a folder beside ``target`` to fill, which takes its name at the end; after an error nothing is left of it.

    Raises ``StoreError`` if there is something at ``target`` already.
    """
    target = target.resolve()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise StoreError(f"{target} is not empty; name a folder that does not exist")
    unfinished = target.with_name(f".{target.name}.unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir(parents=True, mode=0o700)
    try:
        yield unfinished
        for folder, _, _ in os.walk(unfinished):
            _sync(Path(folder))
        unfinished.replace(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _sync(target.parent)


class StoreWriter:
    """Our store in ``path``, for commands that are durable when ``execute`` returns; use as a context manager.

    Opening mends what a start of the peer would mend. Raises as ``RaftStorage``.
    """

    def __init__(self, path: Path, identity: Identity) -> None:
        self.storage = RaftStorage(DiskFolder(path), identity)
        self._appender = self.storage.appender()

    def execute(self, commands: Sequence[StoreCommand]) -> None:
        """Write ``commands`` and sync."""
        self.storage.execute(commands)
        batch = self.storage.take()
        if batch is not None:
            self._appender.execute([batch])
            self.storage.completed([batch])

    def install(self, index: int, term: int, pieces: Iterable[Frame]) -> None:
        """Let the store, which must be empty, begin with the snapshot up to ``index``, whose file is ``pieces``."""
        for number, piece in enumerate(pieces):
            self.execute([SnapshotPart(0, number == 0, bytes(piece))])
        self.execute([SnapshotInstall(0, index, term, keep_log=False)])

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._appender.close()
        self.storage.close()


def next_term(recovered: Recovered) -> int:
    """Return a term in which the peer has not voted and has not promised not to."""
    floor = 0 if recovered.vote_floor == RECOVERING_FLOOR else recovered.vote_floor
    return max(recovered.term, floor) + 1


def configuration_entry(term: int, members: Members) -> bytes:
    """Return the entry by which a person, not a leader, names the members."""
    return encode_entry(ZERO_REQID, EntryType.CONFIG, term, Configuration(members).encode())


def snapshot_file(index: int, term: int, meta: bytes, data: Frame) -> Iterator[Frame]:
    """Yield a snapshot file (9.2) in pieces; ``data`` are those of the machine."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    front = SnapshotHead(index, term, len(meta), len(data)).encode() + meta
    pieces: list[Frame] = [front, *pieces_of(data)]
    for piece in pieces:
        digest.update(piece)
        yield piece
    yield digest.digest()


def pieces_of(data: Frame) -> Iterator[memoryview]:
    """Yield ``data`` in pieces that are copied one by one."""
    view = memoryview(data)
    return (view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES))


def mapped(path: Path) -> memoryview:
    """Return the bytes of a file without reading them all; they stay mapped as long as a view of them lives."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
