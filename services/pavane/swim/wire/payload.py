"""Payload records: what travels inside pings, responses and JoinAcks (docs/specs/swim.md 3.4)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeVar

from pavane.swim.errors import DropReason
from pavane.swim.wire.values import (
    Address,
    NodeId,
    NodeInfo,
    NodeStage,
    State,
    read_address,
    read_all,
    read_blob,
    read_info,
    read_node,
    write_blob,
    write_info,
    write_node,
)
from pavane.wire import Reader, RemoteProtocolError, Writer

_Item = TypeVar("_Item")
_Gathered = dict[str, list[object]]  # items by the field of the payload
_Add = Callable[["Payload", _Gathered, Reader], None]

META_BYTES_MAX = 512  # beside it a datagram still has room for news
HEADER_BYTES = 3  # type and length of a record
PAGE_HEADER_BYTES = 8  # lo and hi of a SYNC record


class Record(IntEnum):
    """Type codes. Unknown ones are skipped."""

    SEQ = 0x01
    DEAD = 0x02
    LEFT = 0x03
    SUSPECT = 0x04
    ALIVE = 0x05
    CAPACITY = 0x06
    PEERS = 0x07
    SAMPLE = 0x08
    REPLY_TO = 0x09
    META = 0x0A
    USER = 0x0B
    DIGEST = 0x0C
    SYNC = 0x0D
    HEALTH = 0x0E
    PROOF = 0x0F
    KEYRING = 0x10
    STAGE = 0x11
    TRACE = 0x12
    UNLINK = 0x80


class Suspicion(NamedTuple):
    """``node`` is suspected by ``reporter``, which makes confirmations countable."""

    node: NodeId
    reporter: int


class Meta(NamedTuple):
    """Application data of ``node``; its gen is the version."""

    node: NodeId
    blob: bytes


class User(NamedTuple):
    """An application message of ``origin``, deduplicated by (id, useq)."""

    origin: NodeId
    useq: int
    blob: bytes


class Trace(NamedTuple):
    """The trace context of the USER message (``origin``, ``useq``)."""

    origin: int
    useq: int
    trace_id: bytes
    span_id: bytes
    flags: int


class Digest(NamedTuple):
    """Summary of a table: number of ALIVE and SUSPECT entries, and the XOR of their hashes (11.1)."""

    entries: int
    xor: bytes


class Listed(NamedTuple):
    """One entry of a page."""

    info: NodeInfo
    state: State


class Page(NamedTuple):
    """Every entry whose id lies in ``low`` … ``high``, in ascending order as sent; the receiver checks that (11.2)."""

    low: int
    high: int
    entries: tuple[Listed, ...]


class KeyOp(IntEnum):
    """What a KEYRING record asks for."""

    INSTALL = 1
    USE = 2
    REMOVE = 3


class KeyStep(NamedTuple):
    """A step of a key rotation; ``key`` has 32 bytes for INSTALL and none otherwise."""

    op: KeyOp
    key_id: bytes
    key: bytes


class StageShown(NamedTuple):
    """The sender's stage and rollout (16.1)."""

    stage: NodeStage
    rollout: int


class Unlink(NamedTuple):
    """The sender does not track ``receiver``; ``replacement`` may be linked to instead."""

    receiver: NodeId
    replacement: NodeInfo | None


@dataclass(slots=True)
class Payload:
    """The records of one datagram. ``None`` and empty tuples are records that are not there."""

    seq: int | None = None
    reply_to: Address | None = None
    health: int | None = None
    stage: StageShown | None = None
    unlinks: tuple[Unlink, ...] = ()
    dead: tuple[NodeId, ...] = ()
    left: tuple[NodeId, ...] = ()
    suspects: tuple[Suspicion, ...] = ()
    alive: tuple[NodeInfo, ...] = ()
    users: tuple[User, ...] = ()
    traces: tuple[Trace, ...] = ()
    metas: tuple[Meta, ...] = ()
    keyrings: tuple[KeyStep, ...] = ()
    digest: Digest | None = None
    pages: tuple[Page, ...] = ()
    proof: bytes | None = None
    capacity: int | None = None
    peers: int | None = None
    sample: tuple[NodeInfo, ...] = ()

    def encode(self) -> bytes:
        """Return the records in the order of 3.4; raises ``LocalProtocolError`` for what does not fit its field."""
        writer = Writer()
        _number(writer, Record.SEQ, self.seq, 4)
        if self.reply_to is not None:
            _record(writer, Record.REPLY_TO, self.reply_to.encode())
        _number(writer, Record.HEALTH, self.health, 1)
        if self.stage is not None:
            value = Writer().uint_le(self.stage.stage, 1).uint_le(self.stage.rollout, 4)
            _record(writer, Record.STAGE, value.getvalue())
        _each(writer, Record.UNLINK, self.unlinks, _write_unlink)
        _list(writer, Record.DEAD, self.dead, write_node)
        _list(writer, Record.LEFT, self.left, write_node)
        _list(writer, Record.SUSPECT, self.suspects, _write_suspicion)
        _list(writer, Record.ALIVE, self.alive, write_info)
        _each(writer, Record.USER, self.users, _write_user)
        _each(writer, Record.TRACE, self.traces, _write_trace)
        _each(writer, Record.META, self.metas, _write_meta)
        _each(writer, Record.KEYRING, self.keyrings, _write_keyring)
        if self.digest is not None:
            _record(writer, Record.DIGEST, Writer().uint_le(self.digest.entries, 4).raw(self.digest.xor).getvalue())
        _each(writer, Record.SYNC, self.pages, _write_page)
        if self.proof is not None:
            _record(writer, Record.PROOF, self.proof)
        _number(writer, Record.CAPACITY, self.capacity, 4)
        _number(writer, Record.PEERS, self.peers, 4)
        _list(writer, Record.SAMPLE, self.sample, write_info)
        return writer.getvalue()


def decode_payload(data: memoryview | bytes) -> Payload:
    """Read the records of ``data``; raises ``RemoteProtocolError`` (``tlv``, ``record``)."""
    payload = Payload()
    # Lists, for a datagram may hold thousands of records of one item, and anybody can send it.
    gathered: _Gathered = {}
    reader = Reader(data)
    while reader.remaining:
        try:
            kind = reader.uint_le(1)
            value = read_blob(reader)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(DropReason.TLV, error.detail) from None
        add = _DECODERS.get(kind)
        if add is None:
            continue
        inner = Reader(value)
        try:
            add(payload, gathered, inner)
        except (RemoteProtocolError, ValueError) as error:  # ValueError: no member of an enumeration
            raise RemoteProtocolError(DropReason.RECORD, f"{kind:#04x}: {error}") from None
        if inner.remaining:
            raise RemoteProtocolError(DropReason.RECORD, f"{kind:#04x}: {inner.remaining} bytes too many")
    for name, items in gathered.items():
        setattr(payload, name, tuple(items))
    return payload


# --- writing -----------------------------------------------------------------------------------------------------


def _record(writer: Writer, kind: Record, value: bytes) -> None:
    writer.uint_le(kind, 1)
    write_blob(writer, value)


def _number(writer: Writer, kind: Record, value: int | None, size: int) -> None:
    if value is not None:
        writer.uint_le(kind, 1).uint_le(size, 2).uint_le(value, size)


def _list(writer: Writer, kind: Record, items: tuple[_Item, ...], write: Callable[[Writer, _Item], None]) -> None:
    if items:
        value = Writer()
        for item in items:
            write(value, item)
        _record(writer, kind, value.getvalue())


def _each(writer: Writer, kind: Record, items: tuple[_Item, ...], write: Callable[[Writer, _Item], None]) -> None:
    for item in items:
        _list(writer, kind, (item,), write)


def _write_suspicion(writer: Writer, suspicion: Suspicion) -> None:
    write_node(writer, suspicion.node)
    writer.uint_le(suspicion.reporter, 4)


def _write_unlink(writer: Writer, unlink: Unlink) -> None:
    write_node(writer, unlink.receiver)
    if unlink.replacement is not None:
        write_info(writer, unlink.replacement)


def _write_user(writer: Writer, user: User) -> None:
    write_node(writer, user.origin)
    writer.uint_le(user.useq, 4)
    write_blob(writer, user.blob)


def _write_trace(writer: Writer, trace: Trace) -> None:
    writer.uint_le(trace.origin, 4).uint_le(trace.useq, 4)
    writer.raw(trace.trace_id).raw(trace.span_id).uint_le(trace.flags, 1)


def _write_meta(writer: Writer, meta: Meta) -> None:
    write_node(writer, meta.node)
    write_blob(writer, meta.blob)


def _write_keyring(writer: Writer, keyring: KeyStep) -> None:
    writer.uint_le(keyring.op, 1).raw(keyring.key_id).raw(keyring.key)


def _write_page(writer: Writer, page: Page) -> None:
    writer.uint_le(page.low, 4).uint_le(page.high, 4)
    for entry in page.entries:
        write_info(writer, entry.info)
        writer.uint_le(entry.state, 1)


# --- reading -----------------------------------------------------------------------------------------------------


def _read_suspicion(reader: Reader) -> Suspicion:
    return Suspicion(read_node(reader), reader.uint_le(4))


def _read_listed(reader: Reader) -> Listed:
    return Listed(read_info(reader), State(reader.uint_le(1)))


def _read_page(reader: Reader) -> Page:
    return Page(reader.uint_le(4), reader.uint_le(4), read_all(reader, _read_listed))


def _read_user(reader: Reader) -> User:
    return User(read_node(reader), reader.uint_le(4), bytes(read_blob(reader)))


def _read_trace(reader: Reader) -> Trace:
    origin, useq = reader.uint_le(4), reader.uint_le(4)
    return Trace(origin, useq, bytes(reader.take(16)), bytes(reader.take(8)), reader.uint_le(1))


def _read_meta(reader: Reader) -> Meta:
    meta = Meta(read_node(reader), bytes(read_blob(reader)))
    if len(meta.blob) > META_BYTES_MAX:
        raise ValueError(f"{len(meta.blob)} bytes are more than {META_BYTES_MAX}")
    return meta


def _read_keyring(reader: Reader) -> KeyStep:
    op = KeyOp(reader.uint_le(1))
    return KeyStep(op, bytes(reader.take(4)), bytes(reader.take(32 if op is KeyOp.INSTALL else 0)))


def _read_stage(reader: Reader) -> StageShown:
    return StageShown(NodeStage(reader.uint_le(1)), reader.uint_le(4))


def _read_unlink(reader: Reader) -> Unlink:
    receiver = read_node(reader)
    return Unlink(receiver, read_info(reader) if reader.remaining else None)


def _once(name: str, read: Callable[[Reader], object]) -> _Add:
    """Set a field to the first record of its kind; others are validated and forgotten."""

    def add(payload: Payload, _: _Gathered, reader: Reader) -> None:
        value = read(reader)
        if getattr(payload, name) is None:
            setattr(payload, name, value)

    return add


def _many(name: str, read: Callable[[Reader], object]) -> _Add:
    """Append all items of a list record."""

    def add(_: Payload, gathered: _Gathered, reader: Reader) -> None:
        gathered.setdefault(name, []).extend(read_all(reader, read))

    return add


def _single(name: str, read: Callable[[Reader], object]) -> _Add:
    """Append the one item of a record that may repeat."""

    def add(_: Payload, gathered: _Gathered, reader: Reader) -> None:
        gathered.setdefault(name, []).append(read(reader))

    return add


_DECODERS: dict[int, _Add] = {
    Record.SEQ: _once("seq", lambda reader: reader.uint_le(4)),
    Record.DEAD: _many("dead", read_node),
    Record.LEFT: _many("left", read_node),
    Record.SUSPECT: _many("suspects", _read_suspicion),
    Record.ALIVE: _many("alive", read_info),
    Record.CAPACITY: _once("capacity", lambda reader: reader.uint_le(4)),
    Record.PEERS: _once("peers", lambda reader: reader.uint_le(4)),
    Record.SAMPLE: _many("sample", read_info),
    Record.REPLY_TO: _once("reply_to", read_address),
    Record.META: _single("metas", _read_meta),
    Record.USER: _single("users", _read_user),
    Record.DIGEST: _once("digest", lambda reader: Digest(reader.uint_le(4), bytes(reader.take(8)))),
    Record.SYNC: _single("pages", _read_page),
    Record.HEALTH: _once("health", lambda reader: reader.uint_le(1)),
    Record.PROOF: _once("proof", lambda reader: bytes(reader.take(16))),
    Record.KEYRING: _single("keyrings", _read_keyring),
    Record.STAGE: _once("stage", _read_stage),
    Record.TRACE: _single("traces", _read_trace),
    Record.UNLINK: _single("unlinks", _read_unlink),
}
