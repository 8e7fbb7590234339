"""The file system as a write-ahead log sees it, and its real implementation.

``Folder`` and ``File`` are the port: the log above works on any implementation; tests have one that loses what was
not synced. Every method may raise ``OSError``; whoever appends treats that as fatal, because after a
failed sync the kernel may have dropped the pages and a second sync would lie (docs/specs/raft.md 5.3).
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

PARTS_MAX = 1024  # buffers per system call: IOV_MAX of Linux
WRITE_BYTES = 1 << 20  # written again at a time

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """A file that grows at its end and is read anywhere."""

    @property
    def size(self) -> int:
        """Bytes in the file, written but perhaps not synced."""
        ...

    def append(self, parts: Sequence[Buffer]) -> None:
        """Write ``parts`` in order at the end."""
        ...

    def overwrite(self, offset: int, data: Buffer) -> None:
        """Write ``data`` over bytes that the file has already."""
        ...

    def begin_sync(self, offset: int) -> None:
        """Have what is behind ``offset`` written soon, so that the ``sync`` of several files costs one commit."""
        ...

    def sync(self) -> None:
        """Return when everything written is on stable storage; once it has failed on a real file it fails for good."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``; fewer at the end of the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        ...

    def close(self) -> None:
        """Release the file; it is not synced by this."""
        ...


class Folder(Protocol):
    """A folder of files; changes of names are durable after ``sync``."""

    needs_loop: bool
    """Whether writing waits for the event loop, so that it must not be done there."""

    def names(self) -> list[str]:
        """Return the names of the files, sorted."""
        ...

    def create(self, name: str) -> File:
        """Make an empty file; ``FileExistsError`` if there is one."""
        ...

    def open(self, name: str) -> File:
        """Open a file; ``FileNotFoundError`` if there is none."""
        ...

    def link(self, name: str, new_name: str) -> None:
        """Give a file a second name."""
        ...

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file, replacing whatever has the new name, in one step."""
        ...

    def remove(self, name: str) -> None:
        """Take a name away."""
        ...

    def sync(self) -> None:
        """Return when names made, changed and removed are on stable storage."""
        ...

    def free_bytes(self) -> int:
        """Return how much more this process may write to the file system."""
        ...

    def total_bytes(self) -> int:
        """Return how large the file system is."""
        ...

    def folder(self, name: str) -> "Folder":
        """Return the folder within, made durably if it is missing."""
        ...

    def folders(self) -> list[str]:
        """Return the names of the folders within, sorted."""
        ...

    def remove_folder(self, name: str) -> None:
        """Remove a folder within, durably after ``sync``; ``OSError`` if anything is in it."""
        ...

    def lock(self, name: str) -> "Lock":
        """Take the exclusive lock ``name``; ``BlockingIOError`` while another process holds it."""
        ...


class Lock(Protocol):
    """An exclusive lock; the end of the process releases it too."""

    def release(self) -> None:
        """Give the lock up."""
        ...


class DiskFile:
    """``File`` over a descriptor."""

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        self._end = self.size
        self._failed: OSError | None = None

    @property
    def size(self) -> int:
        """Bytes in the file, also those that another descriptor appended."""
        return os.fstat(self._descriptor).st_size

    def append(self, parts: Sequence[Buffer]) -> None:
        """Write ``parts`` at the end with as few system calls as the kernel allows."""
        for start in range(0, len(parts), PARTS_MAX):
            self._append(parts[start : start + PARTS_MAX])

    def _append(self, parts: Sequence[Buffer]) -> None:
        wanted = sum(len(part) for part in parts)
        written = os.pwritev(self._descriptor, parts, self._end)
        self._end += written
        if written < wanted:
            # The kernel takes at most 2 GiB at a time, and less when a signal or a quota interferes.
            rest = memoryview(b"".join(parts))[written:]
            try:
                self.overwrite(self._end, rest)
            finally:
                self._end = self.size

    def overwrite(self, offset: int, data: Buffer) -> None:
        """Write all of ``data`` over what is there."""
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._descriptor, rest, offset)
            offset += written
            rest = rest[written:]

    def begin_sync(self, offset: int) -> None:
        """Start the kernel's writing: what it has begun for all files is in the commit that the first sync waits for.

        Pages that are being written stay in the cache. What goes wrong is told by ``sync``.
        """
        os.posix_fadvise(self._descriptor, offset, 0, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Sync contents and size; after a failure never again: the kernel may take pages that it lost for clean."""
        if self._failed is not None:
            raise OSError(self._failed.errno, f"an earlier sync failed: {self._failed.strerror}")
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._failed = error
            raise

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``."""
        chunks = []
        while length > 0 and (chunk := os.pread(self._descriptor, length, offset)):
            chunks.append(chunk)
            offset += len(chunk)
            length -= len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        os.ftruncate(self._descriptor, size)
        self._end = size

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


class DiskFolder:
    """``Folder`` over a directory, which is made (durably) if it is missing."""

    needs_loop = False

    def __init__(self, path: Path) -> None:
        self._path = path
        missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700)
            _sync_directory(folder.parent)

    def names(self) -> list[str]:
        """Return the names of regular files, sorted."""
        return sorted(path.name for path in self._path.iterdir() if path.is_file())

    def create(self, name: str) -> DiskFile:
        """Make an empty file."""
        return DiskFile(self._path / name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open(self, name: str) -> DiskFile:
        """Open a file."""
        return DiskFile(self._path / name, os.O_RDWR)

    def link(self, name: str, new_name: str) -> None:
        """Give a file a second name."""
        (self._path / new_name).hardlink_to(self._path / name)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file in one step."""
        (self._path / name).replace(self._path / new_name)

    def remove(self, name: str) -> None:
        """Unlink a file."""
        (self._path / name).unlink()

    def sync(self) -> None:
        """Sync the directory."""
        _sync_directory(self._path)

    def free_bytes(self) -> int:
        """Return what the file system has left for users without privileges."""
        found = os.statvfs(self._path)
        return found.f_bavail * found.f_frsize

    def total_bytes(self) -> int:
        """Return the size of the file system."""
        found = os.statvfs(self._path)
        return found.f_blocks * found.f_frsize

    def folder(self, name: str) -> "DiskFolder":
        """Return the directory within."""
        return DiskFolder(self._path / name)

    def folders(self) -> list[str]:
        """Return the names of directories, sorted."""
        return sorted(path.name for path in self._path.iterdir() if path.is_dir())

    def remove_folder(self, name: str) -> None:
        """Remove an empty directory."""
        (self._path / name).rmdir()

    def lock(self, name: str) -> "DiskLock":
        """Take the exclusive lock ``name``."""
        return DiskLock(self._path / name)

    def __str__(self) -> str:
        return str(self._path)


class DiskLock:
    """``flock`` on a file of its own, which stays behind: removing it would let two processes hold two locks."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        """Give the lock up."""
        os.close(self._descriptor)


def replace_file(folder: Folder, name: str, data: bytes) -> None:
    """Write ``data`` under ``name``, durably, whole or not at all."""
    temporary = f"{name}.tmp"
    if temporary in folder.names():
        folder.remove(temporary)
    file = folder.create(temporary)
    try:
        file.append([data])
        file.sync()
    finally:
        file.close()
    folder.rename(temporary, name)
    folder.sync()


def write_again(file: File, begin: int, end: int) -> None:
    """Write bytes of a file once more, in their place, so that the next sync proves them.

    Where the sync of a former process has failed only the kernel's cache has them, takes them for written, and another
    sync alone would succeed and prove nothing.
    """
    for at in range(begin, end, WRITE_BYTES):
        file.overwrite(at, file.read(at, min(WRITE_BYTES, end - at)))


def read_file(folder: Folder, name: str) -> bytes | None:
    """Return a whole small file, ``None`` if there is none."""
    try:
        file = folder.open(name)
    except FileNotFoundError:
        return None
    try:
        return file.read(0, file.size)
    finally:
        file.close()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
