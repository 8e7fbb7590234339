"""Small records that survive torn writes: each is kept twice, with a sequence number and a CRC.

Both files of a storage folder have this shape (docs/specs/waltz.md 12.1, 12.5). Between two syncs only one of the two
places is written, so the other one, which is durable, can never be torn together with it.
"""

import struct
import zlib

from pavane.wal.files import File

_CRC = struct.Struct(">I")


class Slots:
    """Two places of ``layout`` + CRC at ``offset`` of a file; the value before ``tail`` is the sequence."""

    def __init__(self, file: File, offset: int, layout: struct.Struct, tail: tuple[int, ...] = ()) -> None:
        self._file = file
        self._offset = offset
        self._layout = layout
        self._tail = tail
        self._size = layout.size + _CRC.size
        self._sequence = 0
        self._place = 0
        """Where the next value goes: not where the durable one is."""
        self.dirty = False
        self.found = self._read()
        """What was read or written last, without sequence and tail; ``None`` if neither place is whole."""

    def _read(self) -> tuple[int, ...] | None:
        found = []
        for place in (0, 1):
            data = self._file.read(self._offset + place * self._size, self._size)
            if len(data) == self._size and _CRC.unpack(data[-4:])[0] == zlib.crc32(data[:-4]):
                values = self._layout.unpack(data[:-4])
                keep = len(values) - len(self._tail)
                found.append((values[keep - 1], place, values[: keep - 1]))
        if not found or (len(found) == 2 and found[0][0] == found[1][0]):
            return None
        self._sequence, place, chosen = max(found)
        self._place = 1 - place
        return chosen

    def write_again(self) -> None:
        """Write what was read once more, in its place; after a sync of the file it is durable.

        The sync of a former process may have failed, and then only the kernel's cache has it.
        """
        if self.found is not None:
            at = self._offset + (1 - self._place) * self._size
            self._file.overwrite(at, self._file.read(at, self._size))

    def write(self, *values: int) -> None:
        """Write new values; they are durable after a sync of the file and ``synced``."""
        self.found = values
        self._sequence += 1
        data = self._layout.pack(*values, self._sequence, *self._tail)
        self._file.overwrite(self._offset + self._place * self._size, data + _CRC.pack(zlib.crc32(data)))
        self.dirty = True

    def put(self, *values: int) -> None:
        """Write new values, durably."""
        self.write(*values)
        self._file.sync()
        self.synced()

    def synced(self) -> None:
        """The file was synced: what was written last is what the next write must spare."""
        if self.dirty:
            self._place = 1 - self._place
            self.dirty = False


def first_image(
    layout: struct.Struct, values: tuple[int, ...], sequences: tuple[int, int], tail: tuple[int, ...]
) -> bytes:
    """Return both places as they are in a fresh file."""
    places = [layout.pack(*values, sequence, *tail) for sequence in sequences]
    return b"".join(data + _CRC.pack(zlib.crc32(data)) for data in places)
