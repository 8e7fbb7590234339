"""What was synced of a log, stated a second time in a file of its own (docs/specs/raft.md 13.1).

The log's own marks are in the log, so whatever cuts off its end takes the last of them along. This file is not in it.
It states less than was synced, or as much, never more: it is written after each sync of the log, without waiting for
the disk, and is synced itself now and then.
"""

import struct
import zlib

from pavane.wal.files import File, Folder

NAME = "synced"
SYNC_EVERY = 64  # syncs of the log: one more among so many
SLOT_BYTES = 512  # a torn write damages one of two slots
SLOTS = 2
_SEQUENCE = struct.Struct("<Q")
_CHECK = struct.Struct("<I")


class SyncedFile:
    """The file ``NAME`` in ``folder``, made by the first ``state``; ``seed`` is that of the log's checksums.

    Used by one thread at a time. Every ``OSError`` is as final as one of the log.
    """

    def __init__(self, folder: Folder, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._file: File | None = None
        self._stated = 0  # times
        self._unsynced = 0

    def read(self) -> int:
        """Return the greatest sequence stated; 0 if there is no good statement."""
        if NAME not in self._folder.names():
            return 0
        file = self._folder.open(NAME)
        try:
            slots = [file.read(at * SLOT_BYTES, _SEQUENCE.size + _CHECK.size) for at in range(SLOTS)]
        finally:
            file.close()
        good = (slot[: _SEQUENCE.size] for slot in slots if slot == self._slot(slot[: _SEQUENCE.size]))
        return max((int(_SEQUENCE.unpack(sequence)[0]) for sequence in good), default=0)

    def state(self, sequence: int) -> None:
        """Note that the log was synced up to ``sequence``."""
        if self._file is None:
            self._file = self._open()
        at = self._stated % SLOTS * SLOT_BYTES
        self._file.overwrite(at, self._slot(_SEQUENCE.pack(sequence)))
        self._stated += 1
        self._unsynced += 1
        if self._unsynced >= SYNC_EVERY:
            self.settle()

    def settle(self) -> None:
        """Make durable what was stated."""
        if self._file is not None and self._unsynced:
            self._file.sync()
            self._unsynced = 0

    def forget(self) -> None:
        """Take all back, durably: the log was cut, and whoever cut it has said so elsewhere."""
        self.close()
        if NAME in self._folder.names():
            self._folder.remove(NAME)
            self._folder.sync()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> File:
        if NAME in self._folder.names():
            return self._folder.open(NAME)
        file = self._folder.create(NAME)
        file.append([bytes(SLOT_BYTES * SLOTS)])
        file.sync()
        self._folder.sync()
        return file

    def _slot(self, sequence: bytes) -> bytes:
        return sequence + _CHECK.pack(zlib.crc32(sequence, self._seed))
