"""Messages of the compute protocol as frozen classes (docs/specs/compute.md 5); nothing above sees protobuf.

The lifecycle commands of section 6 and the responses that a pod sends about its stage are converted in full. Of the
other kinds only the name is kept (``Computation``, ``Result``): a pod that is no compute replica has to recognise and
refuse them, no more.

``decode_command`` and ``decode_response`` are total: whatever the bytes are, they return a message or raise
``RemoteProtocolError``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError, Message

from pavane.compute.proto import compute_pb2 as proto
from pavane.wire import RemoteProtocolError, Stage

PROTOCOL_MAJOR = 1
PROTOCOL_MINOR = 0
NONCE_BYTES = 16
MESSAGE_BYTES_MAX = 64 << 20  # of a message on the stream, set on both sides (docs/specs/compute.md 2.1)
SERVICE = proto.DESCRIPTOR.services_by_name["ProtoCompute"].full_name
METHOD = proto.DESCRIPTOR.services_by_name["ProtoCompute"].methods[0].name
STAGE_COLLECTION = "stage"  # id under which a pod's progress travels in Frontiers (docs/specs/compute.md 6)


@dataclass(frozen=True, slots=True, order=True)
class Epoch:
    """Number of a connection: (controller's boot, its connection), compared left to right (2.3)."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"({self.major}, {self.minor})"


@dataclass(frozen=True, slots=True, order=True)
class Token:
    """Permission to write: (generation, epoch of the controller), compared left to right (docs/specs/compute.md 0)."""

    generation: int
    epoch: int

    def __str__(self) -> str:
        return f"({self.generation}, {self.epoch})"


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How the engine of a process is cut: one worker of one process for every pod that is no compute replica."""

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
class CreateInstance:
    """Second message of a stream: what the pod is taken for. ``settings`` may not change while the process lives."""

    kind: str
    generation: int
    settings: Mapping[str, str] = field(default_factory=dict)


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
class Computation:
    """A command of the full protocol that the lifecycle subset lacks; ``name`` is its field, as ``create_dataflow``."""

    name: str


Command = CreateTimely | CreateInstance | InitializationComplete | UpdateConfiguration | AllowWrites | Computation
Lifecycle = CreateTimely | CreateInstance | InitializationComplete | UpdateConfiguration | AllowWrites


@dataclass(frozen=True, slots=True)
class Frontiers:
    """Progress of a collection. A frontier is the tuple of its ticks, ``()`` is closed, ``None`` is unchanged."""

    id: str
    write: tuple[int, ...] | None = None
    input: tuple[int, ...] | None = None
    output: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Blocker:
    """Why a pod does not get on, in words; ``info`` marks one that holds up nothing."""

    reason: str
    text: str = ""
    detail: Mapping[str, str] = field(default_factory=dict)
    info: bool = False


@dataclass(frozen=True, slots=True)
class StageReport:
    """Where a pod is (docs/specs/compute.md 6). ``unit`` names the unit of ``progress`` and ``target``.

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
class Result:
    """A response of the full protocol that no pod of the lifecycle subset sends; ``name`` is its field."""

    name: str


Response = Frontiers | StageReport | Result


def encode_command(command: Lifecycle, traceparent: str = "") -> bytes:
    """Return the bytes of one lifecycle command."""
    message = proto.Command(traceparent=traceparent)
    match command:
        case CreateTimely():
            message.create_timely.CopyFrom(
                proto.CreateTimely(
                    protocol_major=command.protocol_major,
                    protocol_minor=command.protocol_minor,
                    epoch=proto.Epoch(major=command.epoch.major, minor=command.epoch.minor),
                    nonce=command.nonce,
                    config=proto.RuntimeConfig(
                        workers=command.config.workers,
                        process=command.config.process,
                        addresses=command.config.addresses,
                        engine=dict(command.config.engine),
                    ),
                )
            )
        case CreateInstance():
            message.create_instance.CopyFrom(
                proto.CreateInstance(kind=command.kind, generation=command.generation, settings=dict(command.settings))
            )
        case InitializationComplete():
            message.initialization_complete.SetInParent()
        case UpdateConfiguration():
            message.update_configuration.CopyFrom(proto.UpdateConfiguration(settings=dict(command.settings)))
        case AllowWrites():
            token = proto.Token(generation=command.token.generation, epoch=command.token.epoch)
            message.allow_writes.CopyFrom(proto.AllowWrites(id=command.id, token=token))
    return message.SerializeToString()


def decode_command(data: bytes) -> tuple[Command, str]:
    """Return one command and its ``traceparent`` (empty when absent).

    Raises ``RemoteProtocolError`` for undecodable bytes, an unset kind or a missing required field.
    """
    message = proto.Command()
    _parse(message, data)
    kind = message.WhichOneof("kind")
    match kind:
        case None:
            raise RemoteProtocolError("kind", "the command has no kind")
        case "create_timely":
            return _create_timely(message.create_timely), message.traceparent
        case "create_instance":
            return _create_instance(message.create_instance), message.traceparent
        case "initialization_complete":
            return InitializationComplete(), message.traceparent
        case "update_configuration":
            return UpdateConfiguration(dict(message.update_configuration.settings)), message.traceparent
        case "allow_writes":
            return _allow_writes(message.allow_writes), message.traceparent
        case _:
            return Computation(kind), message.traceparent


def encode_response(response: Frontiers | StageReport) -> bytes:
    """Return the bytes of one response of the lifecycle subset."""
    message = proto.Response()
    match response:
        case Frontiers():
            message.frontiers.id = response.id
            for name in ("write", "input", "output"):
                ticks = getattr(response, name)
                if ticks is not None:
                    frontier = proto.Frontier(elements=[proto.Time(tick=tick) for tick in ticks])
                    getattr(message.frontiers, name).CopyFrom(frontier)
        case StageReport():
            message.status.stage.CopyFrom(_encode_report(response))
    return message.SerializeToString()


def decode_response(data: bytes) -> Response:
    """Return one response; raises ``RemoteProtocolError`` as ``decode_command`` does."""
    message = proto.Response()
    _parse(message, data)
    kind = message.WhichOneof("kind")
    if kind is None:
        raise RemoteProtocolError("kind", "the response has no kind")
    if kind == "frontiers":
        return _frontiers(message.frontiers)
    if kind != "status":
        return Result(kind)
    status = message.status.WhichOneof("kind")
    if status is None:
        raise RemoteProtocolError("kind", "the status has no kind")
    return _stage_report(message.status.stage) if status == "stage" else Result(f"status.{status}")


def _encode_report(report: StageReport) -> proto.StageReport:
    seen = report.fence_seen
    return proto.StageReport(
        stage=report.stage.name,
        generation=report.generation,
        fence_seen=None if seen is None else proto.Token(generation=seen.generation, epoch=seen.epoch),
        progress=report.progress,
        target=report.target,
        unit=report.unit,
        blockers=[
            proto.Blocker(reason=b.reason, text=b.text, detail=dict(b.detail), info=b.info) for b in report.blockers
        ],
        leads=report.leads,
        done=report.done,
        last_write_ms=report.last_write_ms,
        first_write_ms=report.first_write_ms,
        write_gap_ms=report.write_gap_ms,
    )


def _parse(message: Message, data: bytes) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise RemoteProtocolError("undecodable", str(error)) from error


def _require(message: Message, *names: str) -> None:
    for name in names:
        if not message.HasField(name):
            raise RemoteProtocolError("missing", f"{message.DESCRIPTOR.name}.{name}")


def _create_timely(message: proto.CreateTimely) -> CreateTimely:
    _require(message, "epoch", "config")
    if len(message.nonce) != NONCE_BYTES:
        raise RemoteProtocolError("nonce", f"{len(message.nonce)} bytes instead of {NONCE_BYTES}")
    config = message.config
    return CreateTimely(
        epoch=Epoch(message.epoch.major, message.epoch.minor),
        nonce=message.nonce,
        config=RuntimeConfig(config.workers, config.process, tuple(config.addresses), dict(config.engine)),
        protocol_major=message.protocol_major,
        protocol_minor=message.protocol_minor,
    )


def _create_instance(message: proto.CreateInstance) -> CreateInstance:
    if not message.kind or not message.generation:
        raise RemoteProtocolError("missing", "CreateInstance.kind and CreateInstance.generation are required")
    return CreateInstance(message.kind, message.generation, dict(message.settings))


def _allow_writes(message: proto.AllowWrites) -> AllowWrites:
    _require(message, "token")
    token = Token(message.token.generation, message.token.epoch)
    return AllowWrites(token, message.id if message.HasField("id") else None)


def _frontiers(message: proto.Frontiers) -> Frontiers:
    if not message.id:
        raise RemoteProtocolError("missing", "Frontiers.id")
    ticks = {
        name: tuple(time.tick for time in getattr(message, name).elements) if message.HasField(name) else None
        for name in ("write", "input", "output")
    }
    return Frontiers(message.id, ticks["write"], ticks["input"], ticks["output"])


def _stage_report(message: proto.StageReport) -> StageReport:
    try:
        stage = Stage(message.stage)
    except ValueError as error:
        raise RemoteProtocolError("stage", f"StageReport.stage is {message.stage}") from error
    seen = message.fence_seen
    return StageReport(
        stage=stage,
        generation=message.generation,
        fence_seen=Token(seen.generation, seen.epoch) if message.HasField("fence_seen") else None,
        progress=message.progress,
        target=message.target,
        unit=message.unit,
        blockers=tuple(Blocker(b.reason, b.text, dict(b.detail), b.info) for b in message.blockers),
        leads=message.leads,
        done=message.done,
        last_write_ms=message.last_write_ms,
        first_write_ms=message.first_write_ms,
        write_gap_ms=message.write_gap_ms,
    )
