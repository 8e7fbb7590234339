"""A growing buffer for the bytes to be sent."""

from typing import Self

from pavane.wire.errors import LocalProtocolError


class Writer:
    """Appends integers, varints and bytes; methods return the writer so that calls can be chained.

    A number that does not fit its width is our own mistake and raises ``LocalProtocolError``.
    """

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def raw(self, data: bytes | bytearray | memoryview) -> Self:
        """Append ``data`` as it is."""
        self._buffer += data
        return self

    def uint_le(self, value: int, size: int) -> Self:
        """Append ``value`` as an unsigned little-endian integer of ``size`` bytes."""
        return self._fixed(value, size, little=True)

    def uint_be(self, value: int, size: int) -> Self:
        """Append ``value`` as an unsigned big-endian integer of ``size`` bytes."""
        return self._fixed(value, size, little=False)

    def varint(self, value: int) -> Self:
        """Append ``value`` (0 … 2⁶⁴ - 1) as a base-128 varint, low groups first."""
        if not 0 <= value < 1 << 64:
            raise LocalProtocolError(f"{value} does not fit a 64-bit varint")
        while value >= 0x80:
            self._buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self._buffer.append(value)
        return self

    def getvalue(self) -> bytes:
        """Return what was written."""
        return bytes(self._buffer)

    def _fixed(self, value: int, size: int, *, little: bool) -> Self:
        if not 0 <= value < 1 << (8 * size):
            raise LocalProtocolError(f"{value} does not fit {size} unsigned bytes")
        self._buffer += value.to_bytes(size, "little" if little else "big")
        return self
