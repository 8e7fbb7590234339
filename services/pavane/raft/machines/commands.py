"""Commands of the key-value machines and how they are written (docs/specs/raft.md 12.3); ``decoding`` reads them."""

from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeAlias

from pavane.raft.errors import Code
from pavane.raft.wire.msgpack import Value, encode_pv

END_OF_KEYS = b"\x00"  # as the end of a range: to the end of the key space
ANY_VERSION = -1
ROOT = b"/"
SEQUENCE_DIGITS = 10


class Failed(Exception):
    """A command or read ends with ``code`` and its ``argument`` (4.4) and changes nothing."""

    def __init__(self, code: Code, argument: Value) -> None:
        super().__init__(f"{code.name} {argument!r}")
        self.code = code
        self.argument = argument


class Target(IntEnum):
    """What a compare looks at. 16 and up are of the tree."""

    VALUE = 1
    VERSION = 2
    CREATE_REVISION = 3
    MOD_REVISION = 4
    LEASE = 5
    LEASE_ALIVE = 6
    DATA_VERSION = 16
    CVERSION = 17


class Relation(IntEnum):
    """How the stored value, on the left, must stand to the operand. For LEASE_ALIVE: 0 is alive, 1 is not."""

    EQUAL = 0
    NOT_EQUAL = 1
    LESS = 2
    GREATER = 3


@dataclass(frozen=True, slots=True)
class Compare:
    """One condition of a TXN; ``key`` is a path for the targets of the tree and empty for LEASE_ALIVE."""

    target: Target
    relation: Relation
    key: bytes
    operand: bytes | int

    def fields(self) -> list[Value]:
        """Return the array of the wire."""
        return [int(self.target), int(self.relation), self.key, self.operand]


@dataclass(frozen=True, slots=True)
class Put:
    """Write ``key`` and bind it to ``lease``; 0 binds it to none."""

    NUMBER: ClassVar[int] = 1

    key: bytes
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete ``key`` if it is there."""

    NUMBER: ClassVar[int] = 2

    key: bytes


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Delete every key of a range, which is that of ``Range``."""

    NUMBER: ClassVar[int] = 3

    start: bytes
    end: bytes


@dataclass(frozen=True, slots=True)
class Range:
    """Read keys from ``start`` to before ``end``; an empty end is the one key, ``END_OF_KEYS`` all that follow."""

    NUMBER: ClassVar[int] = 4
    KEYS_ONLY: ClassVar[int] = 1
    COUNT_ONLY: ClassVar[int] = 2
    DESCENDING: ClassVar[int] = 4

    start: bytes
    end: bytes = b""
    limit: int = 0
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node; its parent exists. ``SEQUENTIAL`` appends the parent's counter to the name."""

    NUMBER: ClassVar[int] = 16
    EPHEMERAL: ClassVar[int] = 1
    SEQUENTIAL: ClassVar[int] = 2

    path: bytes
    data: bytes = b""
    flags: int = 0
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Set:
    """Replace a node's data if it has ``version``."""

    NUMBER: ClassVar[int] = 17

    path: bytes
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a node without children if it has ``version``."""

    NUMBER: ClassVar[int] = 18

    path: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Fail unless the node exists and has ``version``."""

    NUMBER: ClassVar[int] = 19

    path: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Get:
    """Read a node."""

    NUMBER: ClassVar[int] = 20

    path: bytes


@dataclass(frozen=True, slots=True)
class Children:
    """Read the names of a node's children."""

    NUMBER: ClassVar[int] = 21

    path: bytes


Op: TypeAlias = Put | Delete | DeleteRange | Range | Create | Set | Remove | Check | Get | Children
ReadOp: TypeAlias = Range | Get | Children


@dataclass(frozen=True, slots=True)
class Txn:
    """All of ``compares`` hold: ``then``, else ``otherwise``; atomically."""

    NUMBER: ClassVar[int] = 1

    compares: tuple[Compare, ...] = ()
    then: tuple[Op, ...] = ()
    otherwise: tuple[Op, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """Begin a lease; its id is the revision of this command. ``ttl_ms`` is brought into the limits."""

    NUMBER: ClassVar[int] = 2

    ttl_ms: int
    holder: bytes = b""


@dataclass(frozen=True, slots=True)
class LeaseRevoke:
    """End a lease and delete what is bound to it."""

    NUMBER: ClassVar[int] = 3

    lease: int


@dataclass(frozen=True, slots=True)
class LeaseExpire:
    """The leader's entry that ends leases whose time is over. From a client it is BAD_COMMAND."""

    NUMBER: ClassVar[int] = 4

    leases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetLevel:
    """Raise the level (12.2); a level that is reached changes nothing."""

    NUMBER: ClassVar[int] = 5

    level: int


Command: TypeAlias = Txn | LeaseGrant | LeaseRevoke | LeaseExpire | SetLevel


def span(start: bytes, end: bytes) -> tuple[bytes, bytes | None]:
    """Return the first key of a range and the first behind it, ``None`` at the end of the key space."""
    if end == END_OF_KEYS:
        return start, None
    return start, end or start + b"\x00"


def prefix_range(prefix: bytes) -> tuple[bytes, bytes]:
    """Return start and end of the range of all keys that begin with ``prefix``."""
    stem = prefix.rstrip(b"\xff")
    return prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else END_OF_KEYS


def parent_of(path: bytes) -> bytes:
    """Return the path of the node above ``path``, which is not the root."""
    return path[: path.rindex(b"/")] or ROOT


def encode_command(command: Command) -> bytes:
    """Encode ``command`` for a STATE entry or frame 4 of ``pv.kv``; limits are the receiver's to judge."""
    fields: list[Value]
    match command:
        case Txn(compares, then, otherwise):
            fields = [
                [compare.fields() for compare in compares],
                [op_fields(op) for op in then],
                [op_fields(op) for op in otherwise],
            ]
        case LeaseGrant(ttl_ms, holder):
            fields = [ttl_ms, holder]
        case LeaseRevoke(lease):
            fields = [lease]
        case LeaseExpire(leases):
            fields = [list(leases)]
        case SetLevel(level):
            fields = [level]
    return encode_pv([command.NUMBER, *fields])


def op_fields(op: Op) -> list[Value]:
    """Return the array of the wire: number, then the fields in their order."""
    return [op.NUMBER, *(getattr(op, name) for name in op.__slots__)]
