"""What a controller sends."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pavane.compute.wire.common import NO_RELATION, PROTOCOL_MAJOR, PROTOCOL_MINOR, Epoch, Relation, Token, Value


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Processes and workers of an engine; one worker of one process for every pod that is no compute replica."""

    workers: int = 1
    process: int = 0
    addresses: tuple[str, ...] = ()
    engine: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreateTimely:
    """First message of a stream: version, epoch and a random nonce of ``NONCE_BYTES`` bytes."""

    epoch: Epoch
    nonce: bytes
    config: RuntimeConfig = RuntimeConfig()
    protocol_major: int = PROTOCOL_MAJOR
    protocol_minor: int = PROTOCOL_MINOR


@dataclass(frozen=True, slots=True)
class Introspection:
    """Which collections a replica keeps about itself, and how often they move. ``log_ids``: log name to collection."""

    interval_ms: int = 0
    log_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TickLogRef:
    """Where the ticks are: a partition of a Waltz cluster that holds nothing else."""

    cluster: str
    partition: int
    collection: str = ""


@dataclass(frozen=True, slots=True)
class CreateInstance:
    """Second message of a stream: what the pod is taken for. It may not change while the process lives."""

    kind: str
    generation: int
    settings: Mapping[str, str] = field(default_factory=dict)
    introspection: Introspection | None = None
    result_store: str = ""
    tick_log: TickLogRef | None = None
    sink_root: str = ""


@dataclass(frozen=True, slots=True)
class InitializationComplete:
    """Ends the expected state; the pod becomes read-only."""


@dataclass(frozen=True, slots=True)
class UpdateConfiguration:
    """Settings as text; a key that is absent stays."""

    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class AllowWrites:
    """Permission to write. With ``id`` for one collection only, which a pod of the lifecycle subset has not."""

    token: Token
    id: str | None = None


@dataclass(frozen=True, slots=True)
class SourceImport:
    """A table of the log. ``upper`` is a hint and never compared."""

    id: str
    relation: Relation = NO_RELATION
    partitions: tuple[int, ...] = ()
    format: str = ""
    envelope: str = ""
    key: tuple[int, ...] = ()
    on_error: str = ""
    upper: int | None = None
    monotonic: bool = False


@dataclass(frozen=True, slots=True)
class IndexImport:
    """An index that an earlier dataflow of the same replica exports."""

    id: str
    relation: Relation = NO_RELATION
    monotonic: bool = False


@dataclass(frozen=True, slots=True)
class BuildStep:
    """A step of the plan, as canonical JSON; equal bytes are equal plans."""

    id: str
    plan: bytes = b""
    relation: Relation = NO_RELATION


@dataclass(frozen=True, slots=True)
class IndexExport:
    """An arrangement of the collection ``on``."""

    id: str
    on: str
    key: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MaterializedView:
    """A chain that the dataflow keeps equal to its result."""

    chain: str
    relation: Relation = NO_RELATION
    partition_by: tuple[int, ...] = ()
    format: str = ""
    version: int = 0
    initial_as_of: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Updates travel to the controller."""


@dataclass(frozen=True, slots=True)
class CopyTo:
    """Contents at as_of become files."""

    url: str
    format: str = ""
    max_file_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SinkExport:
    """A result that leaves the dataflow. ``up_to`` is the tick at which it ends, ``None`` = never."""

    id: str
    from_: str
    connection: MaterializedView | Subscribe | CopyTo
    emit_initial: bool = False
    up_to: int | None = None
    non_null: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DataflowDescription:
    """A plan with imports and exports that starts at the tick ``as_of``; ``until`` ``None`` = no end."""

    as_of: int
    debug_name: str = ""
    sources: tuple[SourceImport, ...] = ()
    indexes: tuple[IndexImport, ...] = ()
    steps: tuple[BuildStep, ...] = ()
    index_exports: tuple[IndexExport, ...] = ()
    sink_exports: tuple[SinkExport, ...] = ()
    until: int | None = None

    @property
    def exports(self) -> tuple[str, ...]:
        """Ids of all exports."""
        return (*(export.id for export in self.index_exports), *(export.id for export in self.sink_exports))


@dataclass(frozen=True, slots=True)
class CreateDataflow:
    """Build a dataflow; it may rest until all its exports are scheduled."""

    dataflow: DataflowDescription


@dataclass(frozen=True, slots=True)
class Schedule:
    """Let the dataflow with this export start."""

    id: str


@dataclass(frozen=True, slots=True)
class AllowCompaction:
    """Nobody outside reads ``id`` below ``frontier`` any more; ``CLOSED`` drops it."""

    id: str
    frontier: int


@dataclass(frozen=True, slots=True)
class Literal:
    """One value for each column of an index's key."""

    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """A column to sort by."""

    column: int
    descending: bool = False
    nulls_last: bool = False


@dataclass(frozen=True, slots=True)
class Finishing:
    """What happens to the rows of a peek at its very end; ``limit`` ``None`` = all."""

    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    project: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Peek:
    """Read an index, or a chain, at a tick. Exactly one of ``index`` and ``chain`` is set."""

    uuid: bytes
    timestamp: int
    index: str | None = None
    chain: str | None = None
    literals: tuple[Literal, ...] = ()
    map_filter_project: bytes = b""
    finishing: Finishing | None = None
    result: Relation | None = None


@dataclass(frozen=True, slots=True)
class CancelPeek:
    """Nobody waits for this peek any more."""

    uuid: bytes


Lifecycle = CreateTimely | CreateInstance | InitializationComplete | UpdateConfiguration | AllowWrites
Computation = CreateDataflow | Schedule | AllowCompaction | Peek | CancelPeek
Command = Lifecycle | Computation
COMPUTATION = (CreateDataflow, Schedule, AllowCompaction, Peek, CancelPeek)
