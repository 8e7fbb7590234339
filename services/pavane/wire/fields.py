"""Fields and layouts: how a row of a table turns into an encoder and a total decoder.

A ``Layout`` is one row: a message class and the fields of its attributes in wire order. Its ``decode`` raises only
``RemoteProtocolError``, its ``encode`` only ``LocalProtocolError``. A ``get`` may also raise ``struct.error`` where the
bytes end: whoever calls it without a layout around it translates that.
"""

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields as dataclass_fields
from itertools import groupby
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from pavane.wire.errors import LimitExceeded, LocalProtocolError, RemoteProtocolError

T = TypeVar("T")
M = TypeVar("M")


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
    """A number of fixed width, named by its ``struct`` code; ``order`` of its bytes: ``>`` or ``<``."""

    def __init__(self, code: str, order: str = ">") -> None:
        self.code, self.order = code, order
        self._struct = struct.Struct(order + code)
        self.size_min = self._struct.size

    def put(self, out: bytearray, value: int) -> None:
        """Append ``value``."""
        out += self._struct.pack(value)

    def get(self, body: bytes, at: int) -> tuple[int, int]:
        """Read the number at ``at``."""
        return self._struct.unpack_from(body, at)[0], at + self.size_min


class Enumerated(Generic[T]):
    """A number of which only the members of ``members``, an enumeration of numbers, are known."""

    def __init__(self, scalar: Scalar, members: Callable[[int], T]) -> None:
        self._scalar = scalar
        self._members = members
        self.size_min = scalar.size_min

    def put(self, out: bytearray, value: T) -> None:
        """Append the number of ``value``."""
        number = int(value)  # type: ignore[call-overload]  # every table uses an IntEnum
        try:
            self._members(number)
        except ValueError as error:
            raise LocalProtocolError(str(error)) from None
        self._scalar.put(out, number)

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
        found = taken(body, at, self.size_min)
        if found != self._data:
            raise RemoteProtocolError("version", f"{found.hex()} found where {self._data.hex()} belongs")
        return None, at + self.size_min


class Ids(Generic[T]):
    """A group of numbers that travels everywhere as one value, a NamedTuple; ``codes`` with the order of the bytes."""

    def __init__(self, codes: str, make: Callable[..., T]) -> None:
        self._struct = struct.Struct(codes)
        self._make = make
        self.size_min = self._struct.size

    def put(self, out: bytearray, value: T) -> None:
        """Append ``value``."""
        out += self._struct.pack(*value)  # type: ignore[misc]  # a NamedTuple

    def get(self, body: bytes, at: int) -> tuple[T, int]:
        """Read the group at ``at``."""
        return self._make(*self._struct.unpack_from(body, at)), at + self.size_min


class Raw:
    """So many bytes as they are."""

    def __init__(self, size: int) -> None:
        self.size_min = size

    def put(self, out: bytearray, value: bytes) -> None:
        """Append ``value``."""
        out += value

    def get(self, body: bytes, at: int) -> tuple[bytes, int]:
        """Read the bytes at ``at``."""
        return taken(body, at, self.size_min), at + self.size_min


class Data:
    """A length and bytes; null, which Java writes as a negative length, is refused.

    ``length`` is a ``struct`` format, ``limit`` the name of a constant and how many bytes it allows to be read.
    """

    def __init__(self, length: str = ">i", limit: tuple[str, int] | None = None) -> None:
        self.length = struct.Struct(length)
        self._limit = limit
        self.size_min = self.length.size

    def put(self, out: bytearray, value: bytes | bytearray) -> None:
        """Append ``value``."""
        out += self.length.pack(len(value))
        out += value

    def get(self, body: bytes, at: int) -> tuple[bytes, int]:
        """Read the bytes at ``at``."""
        (size,) = self.length.unpack_from(body, at)
        if size < 0:
            raise RemoteProtocolError("null", "null where bytes belong")
        at += self.size_min
        value = taken(body, at, size)
        if self._limit is not None and size > self._limit[1]:
            raise LimitExceeded(self._limit[0], size, self._limit[1])
        return value, at + size


class Text:
    """UTF-8 as the ``data`` has it; with ``nullable`` a negative length is ``None``."""

    def __init__(self, data: Data, *, nullable: bool = False) -> None:
        self._data = data
        self._nullable = nullable
        self.size_min = data.size_min

    def put(self, out: bytearray, value: str | None) -> None:
        """Append ``value``."""
        if value is None:
            if not self._nullable:
                raise LocalProtocolError("a text is missing")
            out += self._data.length.pack(-1)
            return
        try:
            self._data.put(out, value.encode())
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"{value!r} is no UTF-8 text: {error.reason}") from None

    def get(self, body: bytes, at: int) -> tuple[str | None, int]:
        """Read the text at ``at``."""
        if self._nullable and self._data.length.unpack_from(body, at)[0] < 0:
            return None, at + self.size_min
        data, at = self._data.get(body, at)
        try:
            return data.decode(), at
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("utf8", error.reason) from None


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


Rows = Mapping[int, Layout[Any]]


class Table:
    """Messages whose first byte is their type: those of one version and one direction.

    A type that is not in it has the reason ``unknown``.
    """

    def __init__(self, rows: Rows, unknown: str = "type") -> None:
        self.rows = MappingProxyType(dict(rows))
        self._types = {layout.cls: (number, layout) for number, layout in rows.items()}
        self._unknown = unknown

    def number(self, cls: type[object]) -> int:
        """Return the type byte of ``cls``; raises ``LocalProtocolError`` if the table has none."""
        if cls not in self._types:
            raise LocalProtocolError(f"unknown message type here: {cls.__name__}")
        return self._types[cls][0]

    def encode(self, message: object) -> bytearray:
        """Return the body of ``message``: type byte and payload; raises ``LocalProtocolError``."""
        if (row := self._types.get(type(message))) is None:
            raise LocalProtocolError(f"unknown message type here: {type(message).__name__}")
        body = bytearray((row[0],))
        row[1].put(body, message)
        return body

    def decode(self, body: bytes) -> Any:
        """Return the message of ``body``; raises ``RemoteProtocolError``."""
        if not body:
            raise RemoteProtocolError("short", "a message without a type")
        if (layout := self.rows.get(body[0])) is None:
            raise RemoteProtocolError(self._unknown, f"unknown message type {body[:1].hex()}")
        return layout.decode(body, 1)


def names_of(cls: type[Any]) -> tuple[str, ...]:
    """Return the attributes of a message; those that are made most often are NamedTuples, which take half the time."""
    return getattr(cls, "_fields", None) or tuple(field.name for field in dataclass_fields(cls))


def taken(body: bytes, at: int, size: int) -> bytes:
    """Return ``size`` bytes; raises ``RemoteProtocolError`` where there are fewer."""
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
    for order, run in groupby(fields, lambda field: field.order if isinstance(field, Scalar) else ""):
        if order:
            codes = "".join(field.code for field in run)
            steps.append((struct.Struct(order + codes), len(codes), None))
        else:
            steps += [(None, 0 if isinstance(field, Constant) else 1, field) for field in run]
    return steps
