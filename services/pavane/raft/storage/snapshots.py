"""The folder of snapshot files: saving, receiving, sending, choosing one at start (docs/specs/raft.md 9.2, 13.3)."""

import re
import zlib
from hashlib import blake2b

from pavane.raft.state.commands import StoredSnapshot
from pavane.raft.wire.snapshot import (
    DIGEST_BYTES,
    HEAD_BYTES,
    SNAPSHOT_NAME,
    BadSnapshotFile,
    SnapshotHead,
    SnapshotScan,
)
from pavane.wal import Folder
from pavane.wal.files import Buffer, File

KEPT = 2  # the second one is what remains when the newest has rotted
READ_BYTES = 1 << 20
OUTGOING = "tmp-own"  # being saved
INCOMING = "tmp-leader"  # being received
BAD_SUFFIX = ".bad"
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.pvs")


class SnapshotFiles:
    """The folder. Each method says which thread may call it; files that are complete are only read or removed."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._incoming: File | None = None

    def recover(self, machine: str) -> tuple[StoredSnapshot | None, list[str]]:
        """Return the newest good snapshot of the machine, and the new names of bad ones; used before all else."""
        for name in (OUTGOING, INCOMING):
            if name in self._folder.names():
                self._folder.remove(name)
        found, bad = self.examine(machine)
        for name in bad:
            self._folder.rename(name, name + BAD_SUFFIX)
        return found, [name + BAD_SUFFIX for name in bad]

    def examine(self, machine: str) -> tuple[StoredSnapshot | None, dict[str, str]]:
        """Return the newest good snapshot of the machine, and what is wrong with each newer one; changes nothing."""
        bad: dict[str, str] = {}
        for name in reversed(self._names()):
            try:
                return self._check(name, machine), bad
            except BadSnapshotFile as error:
                bad[name] = str(error)
        return None, bad

    def begin(self, front: bytes) -> "SnapshotWriter":
        """Begin to save a snapshot with this meta part; any thread, one at a time."""
        return SnapshotWriter(self._folder, front)

    def open(self, index: int) -> "SnapshotReader":
        """Open the file of the snapshot up to entry ``index``; any thread. Raises ``OSError``."""
        name = next((name for name in self._names() if _index_of(name) == index), None)
        if name is None:
            raise FileNotFoundError(f"{self._folder} has no snapshot of index {index}")
        return SnapshotReader(self._folder.open(name))

    def newest_fault(self) -> str | None:
        """Read the newest file to its end and return what is wrong with it; any thread."""
        for name in reversed(self._names()):
            try:
                self._check(name, None)
            except BadSnapshotFile as error:
                return f"snapshot {name}: {error}"
            except FileNotFoundError:
                continue  # replaced meanwhile
            return None
        return None

    def receive(self, data: Buffer, *, begin: bool) -> None:
        """Take the next bytes of a leader's file; the storage thread."""
        if begin:
            self._drop_incoming()
            self._incoming = self._folder.create(INCOMING)
        if self._incoming is not None:
            self._incoming.append([data])

    def install(self, index: int, term: int) -> None:
        """Put what was received in its place, durably; the storage thread."""
        if self._incoming is None:
            raise OSError("no snapshot was received")
        self._incoming.sync()
        self._incoming.close()
        self._incoming = None
        self._folder.rename(INCOMING, SNAPSHOT_NAME.format(index=index, term=term))
        self._folder.sync()

    def prune(self) -> None:
        """Remove all but the newest files; the storage thread, once the newest is what the log names."""
        old = self._names()[:-KEPT]
        for name in old:
            self._folder.remove(name)
        if old:
            self._folder.sync()

    def close(self) -> None:
        """Let go of a file that was not received to its end."""
        self._drop_incoming()

    def _drop_incoming(self) -> None:
        if self._incoming is not None:
            self._incoming.close()
            self._incoming = None
            self._folder.remove(INCOMING)

    def _names(self) -> list[str]:
        return [name for name in self._folder.names() if _NAME.fullmatch(name)]

    def _check(self, name: str, machine: str | None) -> StoredSnapshot:
        scan = SnapshotScan()
        file = self._folder.open(name)
        try:
            for offset in range(0, file.size, READ_BYTES):
                scan.feed(file.read(offset, READ_BYTES))
        finally:
            file.close()
        head, meta = scan.finish()
        if name != SNAPSHOT_NAME.format(index=head.index, term=head.term):
            raise BadSnapshotFile("it has another file's name")
        if machine is not None and meta.machine != machine:
            raise BadSnapshotFile(f"it is one of machine {meta.machine}")
        return StoredSnapshot(head.index, head.term, meta, head.data_bytes)


class SnapshotWriter:
    """Saves one snapshot. A crash before ``finish`` leaves a file that the next start removes."""

    def __init__(self, folder: Folder, front: bytes) -> None:
        if OUTGOING in folder.names():
            folder.remove(OUTGOING)
        self._folder = folder
        self._file = folder.create(OUTGOING)
        self._meta_bytes = len(front)
        self._check = zlib.crc32(front)
        self._size = 0
        self._finished = False
        self._file.append([bytes(HEAD_BYTES), front])

    def add(self, data: Buffer) -> None:
        """Write the next bytes of the machine's data."""
        self._file.append([data])
        self._check = zlib.crc32(data, self._check)
        self._size += len(data)

    def finish(self, index: int, term: int) -> int:
        """Write head and digest, after a look at what was written; put the file in place; return its data's bytes."""
        head = SnapshotHead(index, term, self._meta_bytes, self._size)
        self._file.overwrite(0, head.encode())
        digest = blake2b(digest_size=DIGEST_BYTES)
        digest.update(self._file.read(0, HEAD_BYTES))
        check = 0
        end = head.total - DIGEST_BYTES
        for offset in range(HEAD_BYTES, end, READ_BYTES):
            data = self._file.read(offset, min(READ_BYTES, end - offset))
            check = zlib.crc32(data, check)
            digest.update(data)
        if check != self._check:
            raise OSError(f"the snapshot of index {index} does not read back as it was written")
        self._file.append([digest.digest()])
        self._file.sync()
        self._file.close()
        self._folder.rename(OUTGOING, SNAPSHOT_NAME.format(index=index, term=term))
        self._finished = True
        self._folder.sync()
        return self._size

    def abort(self) -> None:
        """Give it up, unless it is in its place already."""
        if self._finished:
            return
        self._file.close()
        self._folder.remove(OUTGOING)


class SnapshotReader:
    """``SnapshotSource`` over a file, which stays readable when the folder forgets it.

    A reader that goes on from the beginning, of the file or of the machine's data, never gets the end of one that has
    rotted.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self.head = SnapshotHead.decode(file.read(0, HEAD_BYTES))
        self._digest = blake2b(digest_size=DIGEST_BYTES)
        self._seen = 0  # bytes from the beginning on that the digest covers

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``; raises ``OSError``."""
        data = self._file.read(offset, length)
        if len(data) < length:
            raise OSError("the snapshot file is cut off")
        if self._seen == 0 and offset == self.head.data_offset:
            self._see(self._file.read(0, offset))
        if offset == self._seen:
            self._see(data)
        return data

    def _see(self, data: bytes) -> None:
        end = self.head.total - DIGEST_BYTES
        if self._seen < end:
            self._digest.update(memoryview(data)[: end - self._seen])
            if self._seen + len(data) >= end and self._digest.digest() != self._file.read(end, DIGEST_BYTES):
                raise OSError("the snapshot file does not match its digest")
        self._seen += len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _index_of(name: str) -> int:
    return int(name.partition("-")[0], 16)
