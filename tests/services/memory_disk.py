"""A file system in memory that forgets like a real one: the twin for simulators and tests.

What was not synced before ``MemoryDisk.crash`` may be lost, kept, kept in part, or kept although earlier writes of the
same file are lost; un-synced names may be lost. Nothing here is random by itself: the caller passes the generator.
"""

import errno
import random
from collections.abc import Callable, Sequence

from pavane.wal.files import Buffer

PLENTY_BYTES = 1 << 40  # what a disk without a limit says it has left


class _Content:
    """What a file holds: the synced bytes, and what was changed since: bytes at an offset, or None for a cut there."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = bytearray()
        self.changes: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes) -> None:
        self.changes.append((offset, data))
        _write(self.data, offset, data)

    def cut(self, size: int) -> None:
        if size < len(self.data):
            self.changes.append((size, None))
            del self.data[size:]

    def sync(self) -> None:
        # Only what changed is copied: a log of thousands of small syncs must not cost its square.
        for offset, written in self.changes:
            if written is None:
                del self.synced[offset:]
            else:
                _write(self.synced, offset, written)
        self.changes.clear()

    def forget_changes(self) -> None:
        """Fail as a kernel does: readers still see the changes, but no later sync writes them."""
        self.changes.clear()

    def crash(self, rng: random.Random) -> None:
        data = bytearray(self.synced)
        for offset, written in self.changes:
            if written is None:
                if rng.random() < 0.5:
                    break  # sizes change in their order: with the cut, all that came after it is lost
                del data[offset:]
            elif kept := rng.choice((0, len(written), rng.randint(0, len(written)))):
                _write(data, offset, written[:kept])
        self.data = data
        self.synced = bytearray(data)
        self.changes.clear()


def _write(content: bytearray, offset: int, data: bytes) -> None:
    content += bytes(max(0, offset - len(content)))
    content[offset : offset + len(data)] = data


class MemoryDisk:
    """One machine's disk: folders, and the faults that hit them.

    ``failing_syncs`` makes every sync raise ``EIO``, and what was to be synced is lost, whatever is synced later.
    ``bytes_free`` (``None`` = plenty) makes a write that does not fit write what fits and raise ``ENOSPC``; bytes that
    are overwritten need room too, as on file systems that copy, but give it back. ``syncs`` counts successful syncs of
    files.
    ``before_sync`` is called ahead of every sync, for a simulation that ends the power there.
    """

    def __init__(self) -> None:
        self.failing_syncs = False
        self.bytes_free: int | None = None
        self.syncs = 0
        self.before_sync: Callable[[], None] | None = None
        self._folders: dict[str, MemoryFolder] = {}

    def folder(self, path: str = "") -> "MemoryFolder":
        """Return the folder at ``path``, made if it is missing."""
        if path not in self._folders:
            self._folders[path] = MemoryFolder(self, path)
        return self._folders[path]

    def crash(self, rng: random.Random) -> None:
        """Lose what was not synced, as a power cut would; open files and locks are void afterwards."""
        for folder in self._folders.values():
            folder.crash(rng)

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders directly within ``path``, sorted."""
        prefix = f"{path}/" if path else ""
        within = (name.removeprefix(prefix) for name in self._folders if name.startswith(prefix) and name != path)
        return sorted({name.partition("/")[0] for name in within})

    def remove_folder(self, path: str) -> None:
        """Remove a folder, durably."""
        if path not in self._folders and not self.folders(path):
            raise FileNotFoundError(errno.ENOENT, "No such folder", path)
        if self.folder(path).names() or self.folders(path):
            raise OSError(errno.ENOTEMPTY, "Folder not empty", path)
        del self._folders[path]

    def flip_bit(self, path: str, name: str, offset: int, bit: int = 0) -> None:
        """Rot: change one bit of a file, in memory and in what survives a crash."""
        content = self._folders[path].content(name)
        content.data[offset] ^= 1 << bit
        if offset < len(content.synced):
            content.synced[offset] ^= 1 << bit


class MemoryFile:
    """``File`` in a ``MemoryFolder``."""

    def __init__(self, disk: MemoryDisk, content: _Content) -> None:
        self._disk = disk
        self._content = content

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self._content.data)

    def append(self, parts: Sequence[Buffer]) -> None:
        """Write at the end, as far as there is room."""
        self._write(self.size, b"".join(parts))

    def overwrite(self, offset: int, data: Buffer) -> None:
        """Write over what is there, as far as there is room."""
        self._write(offset, bytes(data))

    def _write(self, offset: int, data: bytes) -> None:
        free, size = self._disk.bytes_free, self.size
        self._content.write(offset, data[:free])
        if free is not None:
            self._disk.bytes_free = free - (self.size - size)
            if len(data) > free:
                raise OSError(errno.ENOSPC, "No space left on device")

    def begin_sync(self, offset: int) -> None:
        """Do nothing: any of what was not synced may survive a crash."""

    def sync(self) -> None:
        """Make the contents survive a crash."""
        if self._disk.before_sync is not None:
            self._disk.before_sync()
        if self._disk.failing_syncs:
            self._content.forget_changes()
            raise OSError(errno.EIO, "Input/output error")
        self._disk.syncs += 1
        self._content.sync()

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``."""
        return bytes(memoryview(self._content.data)[offset : offset + length])

    def truncate(self, size: int) -> None:
        """Cut the file; like everything else, the cut survives a crash once it is synced."""
        self._content.cut(size)

    def close(self) -> None:
        """Nothing to release."""


class MemoryFolder:
    """``Folder`` on a ``MemoryDisk``."""

    needs_loop = False

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._names: dict[str, _Content] = {}
        self._synced_names: dict[str, _Content] = {}
        self._locked: set[str] = set()
        self._read_only = False

    def names(self) -> list[str]:
        """Return the names of the files, sorted."""
        return sorted(self._names)

    def create(self, name: str) -> MemoryFile:
        """Make an empty file."""
        if name in self._names:
            raise FileExistsError(errno.EEXIST, "File exists", name)
        self._names[name] = _Content()
        return MemoryFile(self._disk, self._names[name])

    def open(self, name: str) -> MemoryFile:
        """Open a file."""
        return MemoryFile(self._disk, self.content(name))

    def content(self, name: str) -> _Content:
        """Return what the file holds."""
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        return self._names[name]

    def link(self, name: str, new_name: str) -> None:
        """Give a file a second name."""
        if new_name in self._names:
            raise FileExistsError(errno.EEXIST, "File exists", new_name)
        self._names[new_name] = self.content(name)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file in one step."""
        self._names[new_name] = self.content(name)
        del self._names[name]

    def remove(self, name: str) -> None:
        """Take a name away."""
        self.content(name)
        del self._names[name]

    def sync(self) -> None:
        """Make the names survive a crash. After one failure none succeeds until the crash, as with journals."""
        if self._disk.before_sync is not None:
            self._disk.before_sync()
        if self._disk.failing_syncs:
            self._read_only = True
            raise OSError(errno.EIO, "Input/output error")
        if self._read_only:
            raise OSError(errno.EROFS, "Read-only file system")
        self._synced_names = dict(self._names)

    def free_bytes(self) -> int:
        """Return ``bytes_free`` of the disk."""
        return PLENTY_BYTES if self._disk.bytes_free is None else self._disk.bytes_free

    def total_bytes(self) -> int:
        """Return the size of a large disk."""
        return PLENTY_BYTES

    def folder(self, name: str) -> "MemoryFolder":
        """Return the folder within."""
        return self._disk.folder(self._within(name))

    def folders(self) -> list[str]:
        """Return the names of the folders within, sorted."""
        return self._disk.folders(self._path)

    def remove_folder(self, name: str) -> None:
        """Remove an empty folder within."""
        self._disk.remove_folder(self._within(name))

    def lock(self, name: str) -> "MemoryLock":
        """Take the exclusive lock ``name``."""
        if name in self._locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "Locked", name)
        self._locked.add(name)
        return MemoryLock(self._locked, name)

    def crash(self, rng: random.Random) -> None:
        """Lose un-synced names, some or all of them, and un-synced contents."""
        if rng.random() < 0.5:
            self._names = dict(self._synced_names)
        self._locked.clear()
        self._read_only = False
        for content in self._names.values():
            content.crash(rng)
        self._synced_names = dict(self._names)

    def _within(self, name: str) -> str:
        return f"{self._path}/{name}" if self._path else name

    def __str__(self) -> str:
        return f"memory:{self._path}"


class MemoryLock:
    """A lock that only this process sees."""

    def __init__(self, locked: set[str], name: str) -> None:
        self._locked = locked
        self._name = name

    def release(self) -> None:
        """Give the lock up."""
        self._locked.discard(self._name)
