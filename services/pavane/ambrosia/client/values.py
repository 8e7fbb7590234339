"""Values of an application as bytes: pydantic decides the form, MessagePack writes it (18.6)."""

import random
from collections.abc import Iterator
from typing import Any

import msgpack
from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import to_jsonable_python

from pavane.ambrosia.client.guard import unwatched

MARKER = b"\xff"
"""First byte of arguments that are not JSON."""


_SCALARS = frozenset({bool, bytes, float, int, str, type(None)})
_packers = [msgpack.Packer()]  # for what it knows: no Python runs in it, so threads may share it
PACKER_BYTES_MAX = 1 << 20  # it keeps as much memory as its largest value needed


def _other(value: Any) -> Any:
    """What MessagePack does not know: sets sorted by their bytes, whole numbers beyond 64 bits and the rest as text."""
    if isinstance(value, (set, frozenset)):
        return [unpack(each) for each in sorted(pack(each) for each in value)] if value else []
    if isinstance(value, int):
        return str(value)
    return to_jsonable_python(value)


def pack(value: Any) -> bytes:
    """Return plain ``value`` (also dates, decimals, sets …) as MessagePack."""
    try:
        packed: bytes = _packers[0].pack(value)
    except (TypeError, OverflowError):
        packed = msgpack.packb(value, default=_other)
    if len(packed) > PACKER_BYTES_MAX:
        _packers[0] = msgpack.Packer()
    return packed


def unpack(data: bytes | memoryview) -> Any:
    """Return what ``pack`` was given, with tuples for sequences; raises ``ValueError`` for anything else."""
    try:
        return msgpack.unpackb(data, use_list=False, strict_map_key=False)
    except (msgpack.UnpackException, msgpack.exceptions.ExtraData, UnicodeDecodeError) as error:
        raise ValueError(f"no MessagePack: {error}") from error


class Codec:
    """Values of one annotated type; raises what pydantic raises for a type that it does not know."""

    __slots__ = ("_adapter", "_plain")

    def __init__(self, kind: Any) -> None:
        with unwatched():
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
        self._plain = kind if isinstance(kind, type) and kind in _SCALARS else Codec
        """A value of this very type is as MessagePack writes it."""

    def plain(self, value: Any) -> Any:
        """Return ``value`` in what MessagePack can write; raises ``ValueError`` if it is not of the type."""
        if type(value) is self._plain:
            return value
        return self._adapter.serializer.to_python(value, warnings="error")

    def pack(self, value: Any) -> bytes:
        """Return ``value`` as bytes; raises ``ValueError`` if it is not of the type."""
        return pack(self.plain(value))

    def check(self, plain: Any) -> Any:
        """Return the value that ``plain`` stands for; raises ``ValueError``."""
        return self._adapter.validator.validate_python(plain)

    def unpack(self, data: bytes | memoryview) -> Any:
        """Return the value that ``pack`` was given; raises ``ValueError``."""
        return self.check(unpack(data))

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of what ``check`` takes; empty for a type that has none."""
        try:
            return self._adapter.json_schema()
        except PydanticInvalidForJsonSchema:
            return {}

    def json(self, value: Any) -> Any:
        """Return ``value`` as plain JSON values."""
        return self._adapter.dump_python(value, mode="json")


class ShuffledSet(set[Any]):
    """A set in an order of its own: code that depends on the order of a set gives another result after a restore."""

    def __init__(self, values: Any, seed: random.Random) -> None:
        super().__init__(values)
        self._seed = seed

    def __iter__(self) -> Iterator[Any]:
        values = sorted(super().__iter__(), key=pack)
        self._seed.shuffle(values)
        return iter(values)
