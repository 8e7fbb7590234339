"""What a replica, or a pod of the lifecycle subset, sends."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pavane.compute.wire.common import Failure, Rows, Token
from pavane.wire import Stage


@dataclass(frozen=True, slots=True)
class Frontiers:
    """Progress of a collection: ticks, ``CLOSED``, or ``None`` for unchanged."""

    id: str
    write: int | None = None
    input: int | None = None
    output: int | None = None


@dataclass(frozen=True, slots=True)
class RowsPart:
    """A numbered part of an answer, from 0; the last one says so."""

    number: int
    last: bool
    rows: Rows


@dataclass(frozen=True, slots=True)
class Stashed:
    """An answer that lies elsewhere."""

    url: str
    row_count: int = 0
    byte_count: int = 0


@dataclass(frozen=True, slots=True)
class Canceled:
    """The peek was cancelled before it was answered."""


@dataclass(frozen=True, slots=True)
class PeekResponse:
    """The answer to one peek, or a part of it."""

    uuid: bytes
    result: Rows | RowsPart | Stashed | Failure | Canceled


@dataclass(frozen=True, slots=True)
class Batch:
    """All updates with ``lower`` <= time < ``upper``, or why there are none."""

    lower: int
    upper: int
    content: Rows | Failure


@dataclass(frozen=True, slots=True)
class SubscribeResponse:
    """``kind`` is a batch; for a subscribe that was dropped it is the last upper."""

    id: str
    kind: Batch | int


@dataclass(frozen=True, slots=True)
class Dropped:
    """The copy was dropped before it was done."""


@dataclass(frozen=True, slots=True)
class CopyToResponse:
    """Rows written, or why there are none."""

    id: str
    result: int | Failure | Dropped


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why a pod does not get on, in words; ``info`` marks one that holds up nothing."""

    reason: str
    text: str = ""
    detail: Mapping[str, str] = field(default_factory=dict)
    info: bool = False


@dataclass(frozen=True, slots=True)
class StageReport:
    """Where a pod is. ``unit`` names the unit of ``progress`` and ``target``.

    ``last_write_ms`` and ``first_write_ms`` are Unix times in milliseconds of writes accepted as leader, 0 = none.
    ``write_gap_ms`` is the longest time that a part of the state had no writer, where such parts move one by one.
    """

    stage: Stage
    generation: int
    fence_seen: Token | None = None
    progress: int = 0
    target: int = 0
    unit: str = ""
    blockers: tuple[Blocker, ...] = ()
    leads: bool = False
    done: bool = False
    last_write_ms: int = 0
    first_write_ms: int = 0
    write_gap_ms: int = 0


@dataclass(frozen=True, slots=True)
class HydrationReport:
    """Size of a collection, and whether it has caught up with its as_of."""

    id: str
    hydrated: bool = False
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class EngineReport:
    """How the engine does."""

    restarts: int = 0
    rows_per_second: int = 0
    text: str = ""


Status = StageReport | HydrationReport | EngineReport
Response = Frontiers | PeekResponse | SubscribeResponse | CopyToResponse | Status
