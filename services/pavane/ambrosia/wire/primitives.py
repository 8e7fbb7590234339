"""Numbers and strings (docs/specs/ambrosia.md 2): zigzag base-128, little-endian fixed width, no padding anywhere."""

import functools
import struct

from pavane.ambrosia.errors import Reason
from pavane.ambrosia.wire.limits import NAME_BYTES_MAX
from pavane.wire import LocalProtocolError, Reader, RemoteProtocolError

ZZ32_BYTES_MAX = 5
ZZ64_BYTES_MAX = 10

_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_SMALL = [bytes([n]) for n in range(128)]

Buffer = bytes | bytearray | memoryview


def zz32(value: int) -> bytes:
    """Encode a 32-bit number in its shortest form; ``LocalProtocolError`` beyond 32 bits."""
    if 0 <= value < 0x40:
        return _SMALL[value << 1]
    if not -(1 << 31) <= value < 1 << 31:
        raise LocalProtocolError(f"{value} does not fit 32 bits")
    return _zigzag(value, 31)


def zz64(value: int) -> bytes:
    """Encode a 64-bit number in its shortest form; ``LocalProtocolError`` beyond 64 bits."""
    if 0 <= value < 0x40:
        return _SMALL[value << 1]
    if not -(1 << 63) <= value < 1 << 63:
        raise LocalProtocolError(f"{value} does not fit 64 bits")
    return _zigzag(value, 63)


def _zigzag(value: int, shift: int) -> bytes:
    rest = (value << 1) ^ (value >> shift)
    if rest < 0x80:
        return _SMALL[rest]
    if rest < 0x4000:
        return bytes((rest & 0x7F | 0x80, rest >> 7))
    if rest < 0x200000:
        return bytes((rest & 0x7F | 0x80, rest >> 7 & 0x7F | 0x80, rest >> 14))
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_zz32(data: Buffer, position: int) -> tuple[int, int]:
    """Return the number at ``position`` and the position behind it.

    Raises ``RemoteProtocolError``: ``short`` when the bytes end within it, ``varint`` when it has too many.
    """
    if 0 <= position < len(data) and (byte := data[position]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read(data, position, ZZ32_BYTES_MAX, 32)


def read_zz64(data: Buffer, position: int) -> tuple[int, int]:
    """As ``read_zz32``, for 64 bits."""
    if 0 <= position < len(data) and (byte := data[position]) < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read(data, position, ZZ64_BYTES_MAX, 64)


def _read(data: Buffer, position: int, bytes_max: int, bits: int) -> tuple[int, int]:
    end = len(data)
    if 0 <= position < end - 1 and (byte := data[position + 1]) < 0x80 <= (first := data[position]):  # two bytes
        value = first & 0x7F | byte << 7
        return (value >> 1) ^ -(value & 1), position + 2
    value = shift = 0
    for at in range(position, position + bytes_max):
        if at >= end:
            raise RemoteProtocolError(Reason.SHORT, "number is cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                break
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    raise RemoteProtocolError(Reason.VARINT, f"more than {bits} bits")


def i32(value: int) -> bytes:
    """Encode four bytes, little endian; ``LocalProtocolError`` beyond 32 bits."""
    try:
        return _I32.pack(value)
    except struct.error as error:
        raise LocalProtocolError(f"{value} does not fit 32 bits") from error


def i64(value: int) -> bytes:
    """Encode eight bytes, little endian; ``LocalProtocolError`` beyond 64 bits."""
    try:
        return _I64.pack(value)
    except struct.error as error:
        raise LocalProtocolError(f"{value} does not fit 64 bits") from error


@functools.lru_cache(maxsize=1024)  # names of peers, again and again
def string(value: str) -> bytes:
    """Encode length and UTF-8 bytes; ``LocalProtocolError`` for text that UTF-8 cannot hold."""
    data = utf8(value)
    return zz32(len(data)) + data


def utf8(value: str) -> bytes:
    """Encode bare text; ``LocalProtocolError`` for lone surrogates."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"{value!r} is no text") from error


def text(data: Buffer) -> str:
    """Decode bare text; ``RemoteProtocolError("name")`` when it is not UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(Reason.NAME, "not UTF-8") from error


class Cursor(Reader):
    """A ``Reader`` that knows the numbers and strings of this protocol; every method raises ``RemoteProtocolError``."""

    __slots__ = ()

    def zz32(self) -> int:
        """Read a zigzag number of 32 bits."""
        return self._zigzag(ZZ32_BYTES_MAX, 32)

    def zz64(self) -> int:
        """Read a zigzag number of 64 bits."""
        return self._zigzag(ZZ64_BYTES_MAX, 64)

    def i32(self) -> int:
        """Read four bytes, little endian, signed."""
        return int.from_bytes(self.take(4), "little", signed=True)

    def i64(self) -> int:
        """Read eight bytes, little endian, signed."""
        return int.from_bytes(self.take(8), "little", signed=True)

    def count(self, value: int, each: int) -> int:
        """Check ``value`` elements of at least ``each`` bytes against what is left, before anybody allocates."""
        if value < 0 or value * each > self.remaining:
            raise RemoteProtocolError(Reason.LENGTH, f"{value} elements, {self.remaining} bytes left")
        return value

    def string(self, bytes_max: int = NAME_BYTES_MAX) -> str:
        """Read length and UTF-8 bytes; longer than ``bytes_max`` is refused."""
        length = self.zz32()
        if length < 0 or length > bytes_max:
            raise RemoteProtocolError(Reason.NAME, f"{length} bytes")
        return text(self.take(length))

    def _zigzag(self, bytes_max: int, bits: int) -> int:
        start = self.position
        value = self.varint()
        if self.position - start > bytes_max or value >> bits:
            raise RemoteProtocolError(Reason.VARINT, f"more than {bits} bits")
        return (value >> 1) ^ -(value & 1)
