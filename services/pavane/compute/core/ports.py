"""What a replica's protocol asks of the engine behind it, as data (docs/specs/compute.md 3, 16.3).

``flow`` numbers one incarnation of a dataflow: an id that is dropped and created again gets another number, so results
that come late cannot be taken for those of the new one. Who carries the effects out hands results back as calls of
``ReplicaCore``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pavane.compute.wire.commands import DataflowDescription, Peek
from pavane.compute.wire.common import Token


@dataclass(frozen=True, slots=True)
class EndStream:
    """End ``stream`` with the gRPC status of the name ``code``; the replica's state is kept."""

    stream: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class ExitProcess:
    """End the process with ``code``; ``reason`` goes to the termination log."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Responses wait in the outbox of ``stream``."""

    stream: int


@dataclass(frozen=True, slots=True)
class Configure:
    """Settings have changed; all of them as they are now."""

    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Build:
    """Prepare a dataflow, which rests until ``Start``. Sinks of dropped dataflows were stopped before."""

    flow: int
    description: DataflowDescription


@dataclass(frozen=True, slots=True)
class Start:
    """All exports were scheduled: let the dataflow run."""

    flow: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Drop the dataflow and stop its sinks; later reports about it are ignored. No live dataflow imports it."""

    flow: int


@dataclass(frozen=True, slots=True)
class Compact:
    """Nobody outside reads the export below ``since``; readers inside are the engine's own business."""

    flow: int
    id: str
    since: int


@dataclass(frozen=True, slots=True)
class AllowSink:
    """The materialized view ``id`` may write its chain by ``token``; again with each greater one."""

    flow: int
    id: str
    token: Token


@dataclass(frozen=True, slots=True)
class Read:
    """Answer a peek whose tick is complete, by ``ReplicaCore.answer``."""

    flow: int
    id: str
    peek: Peek


@dataclass(frozen=True, slots=True)
class StopReading:
    """Nobody waits for the answer to this peek any more."""

    uuid: bytes


Request = Configure | Build | Start | Drop | Compact | AllowSink | Read | StopReading
Effect = EndStream | ExitProcess | Wake | Request
