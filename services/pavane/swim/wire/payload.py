"""Payload records: what travels inside pings, responses and JoinAcks (docs/specs/swim.md 3.4)."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

from pavane.swim.errors import DropReason
from pavane.swim.wire.values import ADDRESS, BLOB, INFO, NODE, U8, U32, Address, NodeId, NodeInfo, NodeStage, State
from pavane.wire import LocalProtocolError, RemoteProtocolError
from pavane.wire.fields import Data, Enumerated, Field, Layout, Raw, taken

T = TypeVar("T")

KEY_BYTES = 32  # of a key that is installed
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
        out = bytearray()
        try:
            for kind, (name, field, repeats) in _RECORDS.items():
                found = getattr(self, name)
                for value in found if repeats else () if found in (None, ()) else (found,):
                    body = bytearray()
                    field.put(body, value)
                    out.append(kind)
                    BLOB.put(out, body)
        except struct.error as error:
            raise LocalProtocolError(f"{name}: {error}") from None
        return bytes(out)


class _Row(NamedTuple):
    """A kind of record: the field of the payload, and what the record holds of it.

    All of it, and of several records the first counts; or one item of it, where the kind ``repeats``.
    """

    name: str
    field: Any
    repeats: bool = False


class _All(Generic[T]):
    """Values until nothing is left."""

    size_min = 0

    def __init__(self, element: Field[T]) -> None:
        self._element = element

    def put(self, out: bytearray, value: tuple[T, ...]) -> None:
        for each in value:
            self._element.put(out, each)

    def get(self, body: bytes, at: int) -> tuple[tuple[T, ...], int]:
        values = []
        while at < len(body):
            value, at = self._element.get(body, at)
            values.append(value)
        return tuple(values), at


class _Replacement:
    """A NodeInfo, unless the record ends before it."""

    size_min = 0

    def put(self, out: bytearray, value: NodeInfo | None) -> None:
        if value is not None:
            INFO.put(out, value)

    def get(self, body: bytes, at: int) -> tuple[NodeInfo | None, int]:
        return (None, at) if at == len(body) else INFO.get(body, at)


class _Key:
    """What a step of a rotation has behind the id of its key: 32 bytes, or nothing."""

    size_min = 0

    def put(self, out: bytearray, value: bytes) -> None:
        out += value

    def get(self, body: bytes, at: int) -> tuple[bytes, int]:
        size = KEY_BYTES if body[0] == KeyOp.INSTALL else 0
        return taken(body, at, size), at + size


_META = Data("<H", ("META_BYTES_MAX", META_BYTES_MAX))
_LISTED = Layout(Listed, INFO, Enumerated(U8, State))
_RECORDS: dict[int, _Row] = {
    Record.SEQ: _Row("seq", U32),
    Record.REPLY_TO: _Row("reply_to", ADDRESS),
    Record.HEALTH: _Row("health", U8),
    Record.STAGE: _Row("stage", Layout(StageShown, Enumerated(U8, NodeStage), U32)),
    Record.UNLINK: _Row("unlinks", Layout(Unlink, NODE, _Replacement()), repeats=True),
    Record.DEAD: _Row("dead", _All(NODE)),
    Record.LEFT: _Row("left", _All(NODE)),
    Record.SUSPECT: _Row("suspects", _All(Layout(Suspicion, NODE, U32))),
    Record.ALIVE: _Row("alive", _All(INFO)),
    Record.USER: _Row("users", Layout(User, NODE, U32, BLOB), repeats=True),
    Record.TRACE: _Row("traces", Layout(Trace, U32, U32, Raw(16), Raw(8), U8), repeats=True),
    Record.META: _Row("metas", Layout(Meta, NODE, _META), repeats=True),
    Record.KEYRING: _Row("keyrings", Layout(KeyStep, Enumerated(U8, KeyOp), Raw(4), _Key()), repeats=True),
    Record.DIGEST: _Row("digest", Layout(Digest, U32, Raw(8))),
    Record.SYNC: _Row("pages", Layout(Page, U32, U32, _All(_LISTED)), repeats=True),
    Record.PROOF: _Row("proof", Raw(16)),
    Record.CAPACITY: _Row("capacity", U32),
    Record.PEERS: _Row("peers", U32),
    Record.SAMPLE: _Row("sample", _All(INFO)),
}
"""In the order of 3.4."""


def decode_payload(data: bytes) -> Payload:
    """Read the records of ``data``; raises ``RemoteProtocolError`` (``tlv``, ``record``)."""
    payload = Payload()
    # Lists, for a datagram may hold thousands of records of one item, and anybody can send it.
    gathered: dict[str, list[object]] = {}
    at = 0
    while at < len(data):
        kind = data[at]
        try:
            body, at = BLOB.get(data, at + 1)
        except (RemoteProtocolError, struct.error) as error:
            raise RemoteProtocolError(DropReason.TLV, str(error)) from None
        if (row := _RECORDS.get(kind)) is None:
            continue
        try:
            value, end = row.field.get(body, 0)
        except (RemoteProtocolError, struct.error) as error:
            raise RemoteProtocolError(DropReason.RECORD, f"{kind:#04x}: {error}") from None
        if end != len(body):
            raise RemoteProtocolError(DropReason.RECORD, f"{kind:#04x}: {len(body) - end} bytes too many")
        if row.repeats:
            gathered.setdefault(row.name, []).append(value)
        elif isinstance(row.field, _All):
            gathered.setdefault(row.name, []).extend(value)
        elif getattr(payload, row.name) is None:
            setattr(payload, row.name, value)
    for name, items in gathered.items():
        setattr(payload, name, tuple(items))
    return payload
