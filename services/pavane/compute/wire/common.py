"""What commands and responses share: versions, epochs, tokens, frontiers, rows, relations, values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0
NONCE_BYTES = 16
UUID_BYTES = 16
MESSAGE_BYTES_MAX = 64 << 20  # of a message on the stream
STAGE_COLLECTION = "stage"  # id under which a lifecycle pod's progress travels in Frontiers

CLOSED = 1 << 64
"""The empty frontier: above every tick, so that frontiers compare as numbers."""


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """Number of a connection: (controller's boot, its connection), compared left to right."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"({self.major}, {self.minor})"


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """Permission to write: (generation, epoch of the controller), compared left to right."""

    generation: int
    epoch: int

    def __str__(self) -> str:
        return f"({self.generation}, {self.epoch})"


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows as an Arrow IPC stream, which nothing here looks into."""

    arrow_ipc: bytes = b""
    row_count: int = 0
    byte_count: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in words, instead of a result. ``code`` is for programs."""

    code: str
    text: str = ""
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``type`` is one of Spark's names."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Relation:
    """Columns of a collection, and the positions of those that make a key."""

    columns: tuple[Column, ...] = ()
    key: tuple[int, ...] = ()


NO_RELATION = Relation()

Value = bool | int | float | str | bytes | Decimal | None
