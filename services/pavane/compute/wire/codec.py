"""Bytes of the messages. Total decoders: a message, or ``RemoteProtocolError``, whatever the bytes are.

The frozen classes have the names and fields of the ``.proto``, so that one walk over its descriptors serves them all. A
class's field without default, or with one that is not ``None``, must be present where protobuf knows presence: an
absent frontier never reads as a closed one.
"""

import dataclasses
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from pavane.compute.proto import compute_pb2 as proto
from pavane.compute.wire import commands, common, responses
from pavane.compute.wire.common import CLOSED, NONCE_BYTES, UUID_BYTES, Value
from pavane.wire import RemoteProtocolError, Stage

SERVICE = proto.DESCRIPTOR.services_by_name["ProtoCompute"].full_name
METHOD = proto.DESCRIPTOR.services_by_name["ProtoCompute"].methods[0].name
_CLASSES: Mapping[str, type[Any]] = {
    name: value
    for module in (common, commands, responses)
    for name, value in vars(module).items()
    if dataclasses.is_dataclass(value) and isinstance(value, type)
}
_COMMANDS: Mapping[type[Any], str] = {
    commands.CreateTimely: "create_timely",
    commands.CreateInstance: "create_instance",
    commands.InitializationComplete: "initialization_complete",
    commands.UpdateConfiguration: "update_configuration",
    commands.CreateDataflow: "create_dataflow",
    commands.Schedule: "schedule",
    commands.AllowWrites: "allow_writes",
    commands.AllowCompaction: "allow_compaction",
    commands.Peek: "peek",
    commands.CancelPeek: "cancel_peek",
}
_RESPONSES: Mapping[type[Any], str] = {
    responses.Frontiers: "frontiers",
    responses.PeekResponse: "peek",
    responses.SubscribeResponse: "subscribe",
    responses.CopyToResponse: "copy_to",
}
_STATUS: Mapping[type[Any], str] = {
    responses.StageReport: "stage",
    responses.HydrationReport: "hydration",
    responses.EngineReport: "engine",
}
# Message and oneof → which class stands for which alternative.
_ALTERNATIVES: Mapping[tuple[str, str], Mapping[type[Any], str]] = {
    ("SinkExport", "connection"): {
        commands.MaterializedView: "materialized_view",
        commands.Subscribe: "subscribe",
        commands.CopyTo: "copy_to",
    },
    ("PeekResponse", "result"): {
        common.Rows: "rows",
        responses.RowsPart: "part",
        responses.Stashed: "stashed",
        common.Failure: "error",
        responses.Canceled: "canceled",
    },
    ("SubscribeResponse", "kind"): {responses.Batch: "batch", int: "dropped_at"},
    ("Batch", "content"): {common.Rows: "updates", common.Failure: "error"},
    ("CopyToResponse", "result"): {int: "row_count", common.Failure: "error", responses.Dropped: "dropped"},
}
_VALUES: Mapping[type[Any], str] = {
    bool: "boolean",
    int: "int",
    float: "float",
    str: "text",
    bytes: "binary",
    Decimal: "decimal",
    type(None): "null",
}


def encode_command(command: commands.Command, traceparent: str = "") -> bytes:
    """Return the bytes of one command."""
    message = proto.Command(traceparent=traceparent)
    _write(getattr(message, _COMMANDS[type(command)]), command)
    data: bytes = message.SerializeToString()
    return data


def decode_command(data: bytes) -> tuple[commands.Command, str]:
    """Return one command and its ``traceparent`` (empty when absent).

    Raises ``RemoteProtocolError`` for undecodable bytes, an unset kind or a missing required field.
    """
    message = proto.Command()
    _parse(message, data)
    command: commands.Command = _read(_alternative(message, "kind"))
    return command, message.traceparent


def encode_response(response: responses.Response, traceparent: str = "") -> bytes:
    """Return the bytes of one response."""
    message = proto.Response(traceparent=traceparent)
    name = _RESPONSES.get(type(response))
    target = getattr(message.status, _STATUS[type(response)]) if name is None else getattr(message, name)
    _write(target, response)
    data: bytes = message.SerializeToString()
    return data


def decode_response(data: bytes) -> responses.Response:
    """Return one response; raises ``RemoteProtocolError`` as ``decode_command`` does."""
    message = proto.Response()
    _parse(message, data)
    kind = _alternative(message, "kind")
    response: responses.Response = _read(_alternative(kind, "kind") if isinstance(kind, proto.Status) else kind)
    return response


def _parse(message: Message, data: bytes) -> None:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise RemoteProtocolError("undecodable", str(error)) from error


def _alternative(message: Message, oneof: str) -> Any:
    name = message.WhichOneof(oneof)
    if name is None:
        raise RemoteProtocolError("kind", f"{message.DESCRIPTOR.name}.{oneof} is not set")
    return getattr(message, name)


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    """One field of a class: its name there, how it is written, how it is read."""

    name: str
    write: Callable[[Message, Any], None]
    read: Callable[[Message], Any]


@cache
def _fields(descriptor: Descriptor) -> tuple[_Field, ...]:
    return tuple(_field(descriptor, each) for each in dataclasses.fields(_CLASSES[descriptor.name]))


def _field(descriptor: Descriptor, field: "dataclasses.Field[Any]") -> _Field:
    name = field.name.rstrip("_")  # `from` is a word of Python
    names = _ALTERNATIVES.get((descriptor.name, name))
    if names is None:
        known = descriptor.fields_by_name[name]
        return _Field(field.name, _writer(known), _reader(known, required=field.default is not None))
    writers = {kind: _writer(descriptor.fields_by_name[each]) for kind, each in names.items()}
    readers = {each: _reader(descriptor.fields_by_name[each], required=True) for each in names.values()}

    def write(message: Message, value: Any) -> None:
        writers[type(value)](message, value)

    def read(message: Message) -> Any:
        chosen = message.WhichOneof(name)
        if chosen is None:
            raise RemoteProtocolError("kind", f"{descriptor.name}.{name} is not set")
        return readers[chosen](message)

    return _Field(field.name, write, read)


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _writer(field: FieldDescriptor) -> Callable[[Message, Any], None]:
    name = field.name

    def write(message: Message, value: Any) -> None:
        if _is_map(field):
            getattr(message, name).update(value)
        elif field.is_repeated and field.message_type is not None:
            for each in value:
                _write(getattr(message, name).add(), each)
        elif field.is_repeated:
            getattr(message, name).extend(value)
        elif value is not None and field.message_type is not None:
            _write(getattr(message, name), value)
        elif value is not None:
            setattr(message, name, value)

    return write


def _reader(field: FieldDescriptor, *, required: bool) -> Callable[[Message], Any]:
    name = field.name

    def read(message: Message) -> Any:
        if field.has_presence and not message.HasField(name):
            if required:
                raise RemoteProtocolError("missing", f"{message.DESCRIPTOR.name}.{name}")
            return None
        value = getattr(message, name)
        if _is_map(field):
            return dict(value)
        if field.is_repeated:
            return tuple(value if field.message_type is None else map(_read, value))
        return value if field.message_type is None else _read(value)

    return read


def _write(message: Message, value: Any) -> None:
    message.SetInParent()
    if isinstance(message, proto.Frontier):
        if value != CLOSED:
            message.elements.add().tick = value
    elif isinstance(message, proto.Value):
        setattr(
            message, _VALUES[type(value)], True if value is None else str(value) if type(value) is Decimal else value
        )
    else:
        for field in _fields(message.DESCRIPTOR):
            field.write(message, getattr(value, field.name))


def _read(message: Message) -> Any:
    if isinstance(message, proto.Frontier):
        return min((time.tick for time in message.elements), default=CLOSED)
    if isinstance(message, proto.Value):
        return _value(message)
    values = {field.name: field.read(message) for field in _fields(message.DESCRIPTOR)}
    check = _CHECKS.get(message.DESCRIPTOR.name)
    if check is not None:
        check(values)
    return _CLASSES[message.DESCRIPTOR.name](**values)


def _value(message: proto.Value) -> Value:
    value: Value = _alternative(message, "kind")
    kind = message.WhichOneof("kind")
    if kind == "decimal":
        try:
            return Decimal(message.decimal)
        except InvalidOperation as error:
            raise RemoteProtocolError("value", f"{message.decimal!r} is no decimal number") from error
    return None if kind == "null" else value


def _named(*names: str) -> Callable[[dict[str, Any]], None]:
    def check(values: dict[str, Any]) -> None:
        for name in names:
            if not values[name]:
                raise RemoteProtocolError("missing", name)

    return check


def _sized(name: str, size: int) -> Callable[[dict[str, Any]], None]:
    def check(values: dict[str, Any]) -> None:
        if len(values[name]) != size:
            raise RemoteProtocolError(name, f"{len(values[name])} bytes instead of {size}")

    return check


def _peek(values: dict[str, Any]) -> None:
    _sized("uuid", UUID_BYTES)(values)
    if values["index"] is None and values["chain"] is None:
        raise RemoteProtocolError("kind", "Peek.target is not set")


def _report(values: dict[str, Any]) -> None:
    try:
        values["stage"] = Stage(values["stage"])
    except ValueError as error:
        raise RemoteProtocolError("stage", f"StageReport.stage is {values['stage']}") from error


_CHECKS: Mapping[str, Callable[[dict[str, Any]], None]] = {
    "CreateTimely": _sized("nonce", NONCE_BYTES),
    "CreateInstance": _named("kind", "generation"),
    "Schedule": _named("id"),
    "AllowCompaction": _named("id"),
    "SourceImport": _named("id"),
    "IndexImport": _named("id"),
    "IndexExport": _named("id"),
    "SinkExport": _named("id"),
    "Peek": _peek,
    "CancelPeek": _sized("uuid", UUID_BYTES),
    "PeekResponse": _sized("uuid", UUID_BYTES),
    "Frontiers": _named("id"),
    "SubscribeResponse": _named("id"),
    "CopyToResponse": _named("id"),
    "StageReport": _report,
}
