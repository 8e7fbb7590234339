"""Fields of Waltz beside those of ``pavane.wire.fields`` (docs/specs/waltz.md 2.2).

Every count is checked against the bytes that are left before anything is allocated for it.
"""

import struct
import uuid
import zlib
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from pavane.wire import LimitExceeded, LocalProtocolError, RemoteProtocolError
from pavane.wire.fields import Data, Field, Ids, Scalar, Text, taken

ELEMENTS_MAX = 65_536  # of one list: more partitions or locks than anybody has, and a bound for what one frame costs
TEXT_BYTES_MAX = 4096  # of what stands in a request that may have to wait: a thousand of a connection do
NULL_LOCKS = "null-locks"  # Java ignores an append whose lock array is null and keeps the connection; so do we
T = TypeVar("T")
new = tuple.__new__  # what a NamedTuple's own __new__ calls, at half the time


class Shared(tuple[T, ...]):
    """Elements of a list that goes to several peers: they are encoded once."""

    encoded: bytes | None = None


class ReqId(NamedTuple):
    """Identity of a request; an append's is stored with its record."""

    client: int
    generation: int
    partition: int
    seq: int


class ChecksumError(RemoteProtocolError):
    """The data of an append does not match its CRC. ``reqid`` and ``kind`` name the message for a REJECT."""

    def __init__(self, reqid: ReqId | None = None, kind: int = -1) -> None:
        super().__init__("crc", "data does not match its CRC-32")
        self.reqid = reqid
        self.kind = kind


class Boolean:
    """One byte: written 0 or 1, read as ``== 1``."""

    size_min = 1

    def put(self, out: bytearray, value: bool) -> None:
        """Append ``value``."""
        out.append(1 if value else 0)

    def get(self, body: bytes, at: int) -> tuple[bool, int]:
        """Read the byte at ``at``."""
        return taken(body, at, 1) == b"\x01", at + 1


class Uuid:
    """Sixteen bytes, most significant first."""

    size_min = 16

    def put(self, out: bytearray, value: uuid.UUID) -> None:
        """Append ``value``."""
        out += value.bytes

    def get(self, body: bytes, at: int) -> tuple[uuid.UUID, int]:
        """Read the UUID at ``at``."""
        return uuid.UUID(bytes=taken(body, at, 16)), at + 16


class CheckedData:
    """``Data`` and its CRC-32, which is made here and verified here."""

    size_min = 8

    def put(self, out: bytearray, value: bytes) -> None:
        """Append ``value`` and its CRC."""
        out += _INT32.pack(len(value))
        out += value
        out += _UINT32.pack(zlib.crc32(value))

    def get(self, body: bytes, at: int) -> tuple[bytes, int]:
        """Read the bytes at ``at``; raises ``ChecksumError``."""
        value, at = DATA.get(body, at)
        (crc,) = _UINT32.unpack_from(body, at)
        if zlib.crc32(value) != crc:
            raise ChecksumError
        return value, at + 4


class JavaText:
    """uint16 length and modified UTF-8, as Java's ``DataOutput.writeUTF`` has it."""

    size_min = 2

    def put(self, out: bytearray, value: str) -> None:
        """Append ``value``."""
        data = bytearray()
        try:
            units = value.encode("utf-16-be")
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"{value!r} is no text: {error.reason}") from None
        for unit in struct.unpack(f">{len(units) // 2}H", units):
            data += b"\xc0\x80" if unit == 0 else chr(unit).encode("utf-8", "surrogatepass")
        if len(data) > 0xFFFF:
            raise LocalProtocolError(f"a text of {len(data)} bytes does not fit a blob (65535)")
        out += len(data).to_bytes(2, "big")
        out += data

    def get(self, body: bytes, at: int) -> tuple[str, int]:
        """Read the text at ``at``."""
        size = int.from_bytes(taken(body, at, 2), "big")
        at += 2
        data = taken(body, at, size)
        try:
            units = data.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
            text = units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("utf8", error.reason) from None
        return text, at + size


class Ints:
    """int32 count and int32 elements, never null; ``null`` is the reason under which a null is refused."""

    size_min = 4

    def __init__(self, least: int = 0, null: str = "null") -> None:
        self._least = least
        self._null = null

    def put(self, out: bytearray, value: Sequence[int]) -> None:
        """Append ``value``."""
        if len(value) < self._least:
            raise LocalProtocolError("an empty list")
        out += _INT32.pack(_bounded(len(value)))
        out += struct.pack(f">{len(value)}i", *value)

    def get(self, body: bytes, at: int) -> tuple[tuple[int, ...], int]:
        """Read the list at ``at``."""
        count, at = read_count(body, at, 4, null=self._null)
        if count < self._least:
            raise RemoteProtocolError("empty", "an empty list")
        return struct.unpack_from(f">{count}i", body, at), at + 4 * count


class Listed(Generic[T]):
    """int32 count and elements of one kind; at most ``most`` of them."""

    size_min = 4

    def __init__(self, element: Field[T], most: int = ELEMENTS_MAX) -> None:
        self._element = element
        self._most = most

    def put(self, out: bytearray, value: Sequence[T]) -> None:
        """Append ``value``."""
        out += _INT32.pack(_bounded(len(value), self._most))
        for element in value:
            self._element.put(out, element)

    def get(self, body: bytes, at: int) -> tuple[tuple[T, ...], int]:
        """Read the list at ``at``."""
        count, at = read_count(body, at, self._element.size_min, self._most)
        get = self._element.get
        values: list[T] = []
        for _ in range(count):
            value, at = get(body, at)
            values.append(value)
        return tuple(values), at


class Optional(Generic[T]):
    """A boolean, and the value if it is true."""

    size_min = 1

    def __init__(self, element: Field[T]) -> None:
        self._element = element

    def put(self, out: bytearray, value: T | None) -> None:
        """Append ``value``."""
        out.append(0 if value is None else 1)
        if value is not None:
            self._element.put(out, value)

    def get(self, body: bytes, at: int) -> tuple[T | None, int]:
        """Read the value at ``at``."""
        present, at = BOOLEAN.get(body, at)
        return self._element.get(body, at) if present else (None, at)


def read_count(body: bytes, at: int, size_min: int, most: int = ELEMENTS_MAX, null: str = "null") -> tuple[int, int]:
    """Read a count and check it against what is left: nothing is allocated for elements that were not sent."""
    (count,) = _INT32.unpack_from(body, at)
    at += 4
    if count < 0:
        raise RemoteProtocolError(null, "null where a list belongs")
    if count > (len(body) - at) // size_min:
        raise RemoteProtocolError("short", f"{count} elements do not fit {len(body) - at} bytes")
    if count > most:
        raise LimitExceeded("ELEMENTS_MAX", count, most)
    return count, at


def encoded_once(value: Sequence[T], encode: Callable[[Sequence[T]], bytes]) -> bytes:
    """Return the bytes of a list, which ``Shared`` ones keep."""
    if not isinstance(value, Shared):
        return encode(value)
    if value.encoded is None:
        value.encoded = encode(value)
    return value.encoded


def _bounded(count: int, most: int = ELEMENTS_MAX) -> int:
    if count > most:
        raise LocalProtocolError(f"a list of {count} is more than one message may hold ({most})")
    return count


_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
BYTE = Scalar("b")
INT32 = Scalar("i")
INT64 = Scalar("q")
BOOLEAN = Boolean()
DATA = Data()
CHECKED_DATA = CheckedData()
TEXT = Text(DATA)
NULLABLE_TEXT = Text(DATA, nullable=True)
SHORT_TEXT = Text(Data(limit=("TEXT_BYTES_MAX", TEXT_BYTES_MAX)))
JAVA_TEXT = JavaText()
INTS = Ints()
LOCKS = Ints(null=NULL_LOCKS)
SOME_INTS = Ints(least=1)
REQID = Ids(">iiii", ReqId)
UUID = Uuid()
