"""A file system in memory that forgets like a real one: the twin for simulators and tests.

What was not synced before ``MemoryDisk.crash`` may be lost, kept, kept in part, or kept although earlier writes of the
same file are lost; un-synced names may be lost. Nothing here is random by itself: the caller passes the generator.
"""

import errno
import random
from collections.abc import Sequence

from pavane.wal.files import Buffer

PLENTY_BYTES = 1 << 40  # what a disk without a limit says it has left


class _Content:
    """What a file holds: the synced bytes, and what was written over them since."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = bytearray()
        self.writes: list[tuple[int, bytes]] = []

    def append(self, data: bytes) -> None:
        self.writes.append((len(self.data), data))
        self.data += data

    def overwrite(self, offset: int, data: bytes) -> None:
        self.writes.append((offset, data))
        self.data[offset : offset + len(data)] = data

    def sync(self) -> None:
        # Only what changed is copied: a log of thousands of small syncs must not cost its square.
        for offset, written in self.writes:
            self.synced[offset : offset + len(written)] = written
        self.writes.clear()

    def crash(self, rng: random.Random) -> None:
        data = bytearray(self.synced)
        for offset, written in self.writes:
            kept = rng.choice((0, len(written), rng.randint(0, len(written))))
            if kept:
                data += bytes(max(0, offset + kept - len(data)))
                data[offset : offset + kept] = written[:kept]
        self.data = data
        self.synced = bytearray(data)
        self.writes.clear()


class MemoryDisk:
    """One machine's disk: folders, and the faults that hit them.

    ``failing_syncs`` makes every sync raise ``EIO``; ``bytes_free`` (``None`` = plenty) makes an append that does not
    fit write what fits and raise ``ENOSPC``. ``syncs`` counts successful syncs of files.
    """

    def __init__(self) -> None:
        self.failing_syncs = False
        self.bytes_free: int | None = None
        self.syncs = 0
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

    def check_sync(self) -> None:
        """Raise ``EIO`` while syncs fail."""
        if self.failing_syncs:
            raise OSError(errno.EIO, "Input/output error")

    def flip_bit(self, path: str, name: str, offset: int, bit: int = 0) -> None:
        """Rot: change one bit of a file, in memory and in what survives a crash."""
        content = self._folders[path].content(name)
        content.data[offset] ^= 1 << bit
        content.synced = bytearray(content.data)


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
        data = b"".join(parts)
        free = self._disk.bytes_free
        if free is not None:
            self._disk.bytes_free = max(0, free - len(data))
            self._content.append(data[:free])
            if len(data) > free:
                raise OSError(errno.ENOSPC, "No space left on device")
        else:
            self._content.append(data)

    def overwrite(self, offset: int, data: Buffer) -> None:
        """Write over what is there."""
        self._content.overwrite(offset, bytes(data))

    def sync(self) -> None:
        """Make the contents survive a crash."""
        self._disk.check_sync()
        self._disk.syncs += 1
        self._content.sync()

    def read(self, offset: int, length: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``."""
        return bytes(memoryview(self._content.data)[offset : offset + length])

    def truncate(self, size: int) -> None:
        """Cut the file; the cut survives a crash, which is harsher for a log than forgetting it."""
        del self._content.data[size:]
        self._content.synced = bytearray(self._content.data)
        self._content.writes.clear()

    def close(self) -> None:
        """Nothing to release."""


class MemoryFolder:
    """``Folder`` on a ``MemoryDisk``."""

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._names: dict[str, _Content] = {}
        self._synced_names: dict[str, _Content] = {}
        self._locked: set[str] = set()

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
        """Make the names survive a crash."""
        self._disk.check_sync()
        self._synced_names = dict(self._names)

    def free_bytes(self) -> int:
        """Return ``bytes_free`` of the disk."""
        return PLENTY_BYTES if self._disk.bytes_free is None else self._disk.bytes_free

    def folder(self, name: str) -> "MemoryFolder":
        """Return the folder within."""
        return self._disk.folder(f"{self._path}/{name}" if self._path else name)

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
        for content in self._names.values():
            content.crash(rng)
        self._synced_names = dict(self._names)

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
