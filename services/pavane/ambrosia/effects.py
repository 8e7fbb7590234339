"""What a coordinator wants done, in this order (docs/specs/ambrosia.md 10): persist, answer and deliver, send.

The edge carries out storage effects one after the other and reports each with ``Coordinator.stored``; nothing that
depends on one is in the list before that.
"""

from dataclasses import dataclass
from enum import Enum

from pavane.ambrosia.state import Meta
from pavane.ambrosia.wire.files import CheckpointHead
from pavane.ambrosia.wire.records import LogRecord

COMMIT_COALESCE_S = 0.02  # acknowledgements free memory, nobody waits for them
COMMIT_COALESCE_MESSAGES = 1000
LINK_DIVERGED_S = 30.0  # a person is needed


class Step(Enum):
    """Why metadata change, and so what comes next."""

    LOG = "a log was created"
    CHECKPOINT = "a checkpoint is durable"
    CONNECTION = "a name was attached, or compared with a backup"


@dataclass(frozen=True, slots=True)
class Append:
    """Storage: append the record to the current log, durably; ``parts`` are its form there."""

    record: LogRecord
    parts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CreateLog:
    """Storage: create log ``number``; a leftover of that name is put aside."""

    number: int


@dataclass(frozen=True, slots=True)
class StoreMeta:
    """Storage: replace the metadata, durably."""

    meta: Meta
    step: Step


@dataclass(frozen=True, slots=True)
class BeginCheckpoint:
    """Storage: begin checkpoint ``number``; ``head.size`` bytes of the application follow as ``CheckpointBytes``."""

    number: int
    head: CheckpointHead


@dataclass(frozen=True, slots=True)
class CheckpointBytes:
    """Storage: the next bytes of the application."""

    data: bytes


@dataclass(frozen=True, slots=True)
class EndCheckpoint:
    """Storage: make the checkpoint visible, durably and whole."""

    number: int


@dataclass(frozen=True, slots=True)
class ToBinding:
    """Write to the application; report with ``binding_wrote``."""

    data: bytes


@dataclass(frozen=True, slots=True)
class BlobToBinding:
    """Write the application's bytes of checkpoint ``number`` to it."""

    number: int


@dataclass(frozen=True, slots=True)
class Attach:
    """Dial both streams to ``peer``, now and whenever one ends."""

    peer: str


@dataclass(frozen=True, slots=True)
class ToStream:
    """Write to a stream; report with ``Coordinator.wrote``."""

    stream: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CloseStream:
    """Close a stream; its dialler waits ``hold_seconds`` longer than usual."""

    stream: int
    text: str
    hold_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Say:
    """Print one line; ``error`` marks what a person should see."""

    text: str
    error: bool = False


@dataclass(frozen=True, slots=True)
class Timer:
    """Call ``Coordinator.timer`` with ``name`` after ``seconds``."""

    name: str
    seconds: float


Storage = Append | CreateLog | StoreMeta | BeginCheckpoint | CheckpointBytes | EndCheckpoint
Effect = Storage | ToBinding | BlobToBinding | Attach | ToStream | CloseStream | Say | Timer
