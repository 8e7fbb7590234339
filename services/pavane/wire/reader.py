"""A cursor over received bytes that never reads past their end and never copies them."""

from pavane.wire.errors import RemoteProtocolError

VARINT_BYTES_MAX = 10  # a 64-bit number in groups of seven bits


class Reader:
    """Reads integers, varints and slices from ``data`` in order.

    Every method raises ``RemoteProtocolError("short")`` when fewer bytes are left than it needs; a failed read leaves
    the cursor where it was.
    """

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)
        self._position = 0

    @property
    def position(self) -> int:
        """Bytes consumed so far."""
        return self._position

    @property
    def remaining(self) -> int:
        """Bytes left."""
        return len(self._data) - self._position

    def take(self, size: int) -> memoryview:
        """Return the next ``size`` bytes as a view of the input."""
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise RemoteProtocolError("short", f"{size} bytes wanted, {self.remaining} left")
        view = self._data[self._position : end]
        self._position = end
        return view

    def rest(self) -> memoryview:
        """Return everything that is left as a view of the input."""
        return self.take(self.remaining)

    def uint_le(self, size: int) -> int:
        """Read an unsigned little-endian integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "little")

    def uint_be(self, size: int) -> int:
        """Read an unsigned big-endian integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big")

    def varint(self) -> int:
        """Read a base-128 varint, low groups first, of at most 64 bits; raises ``RemoteProtocolError("varint")``."""
        value = 0
        for count in range(VARINT_BYTES_MAX):
            position = self._position + count
            if position >= len(self._data):
                raise RemoteProtocolError("short", "varint is cut off")
            byte = self._data[position]
            value |= (byte & 0x7F) << (7 * count)
            if byte < 0x80:
                if value >= 1 << 64:
                    break
                self._position = position + 1
                return value
        raise RemoteProtocolError("varint", "more than 64 bits")
