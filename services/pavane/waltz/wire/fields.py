"""Fields and layouts: how a table row turns into an encoder and a total decoder (docs/specs/waltz.md 2.2).

A ``Layout`` is one row of a table: a message class and the fields of its attributes in wire order. Decoding raises only
``RemoteProtocolError``, encoding only ``LocalProtocolError``. Every count is checked against the bytes that are left
before anything is allocated for it.
"""

import operator
import struct
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import fields as dataclass_fields
from enum import IntEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pavane.wire import LimitExceeded, LocalProtocolError, RemoteProtocolError

ELEMENTS_MAX = 65_536  # of one list: more partitions or locks than anybody has, and a bound for what one frame costs
TEXT_BYTES_MAX = 4096  # of what stands in a request that may have to wait: a thousand of a connection do
NULL_LOCKS = "null-locks"  # Java ignores an append whose lock array is null and keeps the connection; so do we
T = TypeVar("T")
M = TypeVar("M")
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


class Field(Protocol[T]):
    """One value on the wire. ``size_min`` is the least number of bytes that it takes."""

    @property
    def size_min(self) -> int:
        """Bytes."""

    def put(self, out: bytearray, value: T) -> None:
        """Append ``value``."""

    def get(self, body: bytes, at: int) -> tuple[T, int]:
        """Return the value at ``at`` and where it ends."""


class Scalar:
    """A number of fixed width, named by its ``struct`` code."""

    def __init__(self, code: str) -> None:
        self.code = code
        self._struct = struct.Struct(">" + code)
        self.size_min = self._struct.size

    def put(self, out: bytearray, value: int) -> None:
        """Append ``value``."""
        out += self._struct.pack(value)

    def get(self, body: bytes, at: int) -> tuple[int, int]:
        """Read the number at ``at``."""
        return self._struct.unpack_from(body, at)[0], at + self.size_min


class Boolean:
    """One byte: written 0 or 1, read as ``== 1``."""

    size_min = 1

    def put(self, out: bytearray, value: bool) -> None:
        """Append ``value``."""
        out.append(1 if value else 0)

    def get(self, body: bytes, at: int) -> tuple[bool, int]:
        """Read the byte at ``at``."""
        return _slice(body, at, 1) == b"\x01", at + 1


class Enumerated(Generic[T]):
    """A number of which only the members of ``members`` are known."""

    def __init__(self, scalar: Scalar, members: Callable[[int], T]) -> None:
        self._scalar = scalar
        self._members = members
        self.size_min = scalar.size_min

    def put(self, out: bytearray, value: T) -> None:
        """Append the number of ``value``."""
        assert isinstance(value, IntEnum)  # noqa: S101 - every table uses an IntEnum
        try:
            self._members(value)
        except ValueError as error:
            raise LocalProtocolError(str(error)) from None
        self._scalar.put(out, int(value))

    def get(self, body: bytes, at: int) -> tuple[T, int]:
        """Read the number at ``at``."""
        number, at = self._scalar.get(body, at)
        try:
            return self._members(number), at
        except ValueError as error:
            raise RemoteProtocolError("value", str(error)) from None


class Constant:
    """Bytes that are always the same, for example a blob's magic and version; its value is ``None``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size_min = len(data)

    def put(self, out: bytearray, value: None) -> None:
        """Append the bytes."""
        out += self._data

    def get(self, body: bytes, at: int) -> tuple[None, int]:
        """Compare the bytes at ``at``."""
        found = _slice(body, at, self.size_min)
        if found != self._data:
            raise RemoteProtocolError("version", f"{found.hex()} found where {self._data.hex()} belongs")
        return None, at + self.size_min


class Ids(Generic[T]):
    """A group of int32 that travels everywhere as one value, for example a ReqId."""

    def __init__(self, codes: str, make: Callable[..., T]) -> None:
        self._struct = struct.Struct(">" + codes)
        self._make = make
        self.size_min = self._struct.size

    def put(self, out: bytearray, value: T) -> None:
        """Append ``value``."""
        out += self._struct.pack(*value)  # type: ignore[misc]  # a NamedTuple

    def get(self, body: bytes, at: int) -> tuple[T, int]:
        """Read the group at ``at``."""
        return self._make(*self._struct.unpack_from(body, at)), at + self.size_min


class Uuid:
    """Sixteen bytes, most significant first."""

    size_min = 16

    def put(self, out: bytearray, value: uuid.UUID) -> None:
        """Append ``value``."""
        out += value.bytes

    def get(self, body: bytes, at: int) -> tuple[uuid.UUID, int]:
        """Read the UUID at ``at``."""
        return uuid.UUID(bytes=_slice(body, at, 16)), at + 16


class Data:
    """int32 length and bytes; null, which Java writes as a negative length, is refused."""

    size_min = 4

    def put(self, out: bytearray, value: bytes) -> None:
        """Append ``value``."""
        out += _INT32.pack(len(value))
        out += value

    def get(self, body: bytes, at: int) -> tuple[bytes, int]:
        """Read the bytes at ``at``."""
        (size,) = _INT32.unpack_from(body, at)
        if size < 0:
            raise RemoteProtocolError("null", "null where bytes belong")
        at += 4
        return _slice(body, at, size), at + size


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


class Text:
    """int32 length and UTF-8; with ``nullable`` a negative length is ``None``. ``short``: TEXT_BYTES_MAX at most."""

    size_min = 4

    def __init__(self, *, nullable: bool = False, short: bool = False) -> None:
        self._nullable = nullable
        self._short = short

    def put(self, out: bytearray, value: str | None) -> None:
        """Append ``value``."""
        if value is None:
            if not self._nullable:
                raise LocalProtocolError("a text is missing")
            out += _INT32.pack(-1)
            return
        try:
            DATA.put(out, value.encode())
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"{value!r} is no UTF-8 text: {error.reason}") from None

    def get(self, body: bytes, at: int) -> tuple[str | None, int]:
        """Read the text at ``at``."""
        if self._nullable and _INT32.unpack_from(body, at)[0] < 0:
            return None, at + 4
        data, at = DATA.get(body, at)
        if self._short and len(data) > TEXT_BYTES_MAX:
            raise LimitExceeded("TEXT_BYTES_MAX", len(data), TEXT_BYTES_MAX)
        try:
            return data.decode(), at
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("utf8", error.reason) from None


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
        size = int.from_bytes(_slice(body, at, 2), "big")
        at += 2
        data = _slice(body, at, size)
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


def names_of(cls: type[Any]) -> tuple[str, ...]:
    """Return the attributes of a message; those that are made most often are NamedTuples, which take half the time."""
    return getattr(cls, "_fields", None) or tuple(field.name for field in dataclass_fields(cls))


class Layout(Generic[M]):
    """One row of a table: a class and its attributes' fields in wire order; itself a field, for what is nested.

    ``absent`` names attributes that an older version cannot carry: encoding refuses them unless they are empty.
    """

    def __init__(self, cls: type[M], *fields: Any, absent: Sequence[str] = ()) -> None:
        self.cls = cls
        names = [name for name in names_of(cls) if name not in absent]
        values = [field for field in fields if not isinstance(field, Constant)]
        assert len(names) == len(values), (cls, names)  # noqa: S101 - a table that is wrong does not import
        self._names = tuple(names)
        self._values_of: Callable[[M], tuple[Any, ...]] = _getter(names)
        self._absent = tuple(absent)
        self._steps = _steps(fields)
        self.size_min = sum(field.size_min for field in fields)

    def put(self, out: bytearray, value: M) -> None:
        """Append ``value``; raises ``LocalProtocolError`` for what does not fit."""
        for name in self._absent:
            if getattr(value, name):
                raise LocalProtocolError(f"{name} locks need a newer server: this one speaks an older version")
        values = self._values_of(value)
        index = 0
        try:
            for run, width, field in self._steps:
                if run is not None:
                    out += run.pack(*values[index : index + width])
                elif width:
                    field.put(out, values[index])
                else:
                    field.put(out, None)
                index += width
        except (struct.error, TypeError, AttributeError) as error:
            raise LocalProtocolError(f"{self.cls.__name__}: {error}") from None

    def get(self, body: bytes, at: int) -> tuple[M, int]:
        """Read one value at ``at``."""
        values: list[Any] = []
        for run, width, field in self._steps:
            if run is not None:
                values += run.unpack_from(body, at)
                at += run.size
            else:
                value, at = field.get(body, at)
                if width:
                    values.append(value)
        if self._absent:
            return self.cls(**dict(zip(self._names, values, strict=True)), **dict.fromkeys(self._absent, ())), at
        return self.cls(*values), at

    def encode(self, value: M) -> bytes:
        """Return ``value`` alone."""
        out = bytearray()
        self.put(out, value)
        return bytes(out)

    def decode(self, body: bytes, at: int = 0) -> M:
        """Read ``value``, which ends where ``body`` ends; raises ``RemoteProtocolError``."""
        try:
            value, at = self.get(body, at)
        except struct.error:
            raise RemoteProtocolError("short", f"{self.cls.__name__} is cut off") from None
        if at != len(body):
            raise RemoteProtocolError("trailing", f"{len(body) - at} bytes behind {self.cls.__name__}")
        return value


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


def _slice(body: bytes, at: int, size: int) -> bytes:
    if at + size > len(body):
        raise RemoteProtocolError("short", f"{size} bytes wanted, {max(0, len(body) - at)} left")
    return body[at : at + size]


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return operator.attrgetter(*names)
    if not names:
        return lambda _: ()
    one = operator.attrgetter(names[0])
    return lambda value: (one(value),)


def _steps(fields: Sequence[Any]) -> list[tuple[struct.Struct | None, int, Any]]:
    """Join neighbouring scalars to one ``struct``: half the time of a message goes into its fields."""
    steps: list[tuple[struct.Struct | None, int, Any]] = []
    codes = ""
    for field in [*fields, None]:
        if isinstance(field, Scalar):
            codes += field.code
            continue
        if codes:
            steps.append((struct.Struct(">" + codes), len(codes), None))
            codes = ""
        if field is not None:
            steps.append((None, 0 if isinstance(field, Constant) else 1, field))
    return steps


_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
BYTE = Scalar("b")
INT32 = Scalar("i")
INT64 = Scalar("q")
BOOLEAN = Boolean()
DATA = Data()
CHECKED_DATA = CheckedData()
TEXT = Text()
NULLABLE_TEXT = Text(nullable=True)
SHORT_TEXT = Text(short=True)
JAVA_TEXT = JavaText()
INTS = Ints()
LOCKS = Ints(null=NULL_LOCKS)
SOME_INTS = Ints(least=1)
REQID = Ids("iiii", ReqId)
UUID = Uuid()
