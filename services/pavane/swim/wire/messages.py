"""The messages of version 1: bytes ↔ frozen values (docs/specs/swim.md 3.2, 3.3)."""

from dataclasses import dataclass, field
from typing import ClassVar

from pavane.swim.errors import DropReason
from pavane.swim.wire.payload import Payload, decode_payload
from pavane.swim.wire.values import BLOB, INFO, NODE, U8, U64, Address, AddressField, NodeId, NodeInfo
from pavane.wire import RemoteProtocolError
from pavane.wire.fields import Layout, Table, Text

ERROR_DOMAIN = 7115  # of this protocol (3.5)
TTL_AT = 17  # offset of the ttl in a ping: a forwarder changes this byte and no other
DATAGRAM_BYTES_MAX = 65_507  # the most that UDP over IPv4 carries: must be accepted


class _Message:
    """What all have; ``CODE`` is the first byte."""

    __slots__ = ()
    CODE: ClassVar[int]

    def encode(self) -> bytes:
        """Return the datagram; raises ``LocalProtocolError`` for what does not fit its field."""
        return bytes(_TABLE.encode(self))


@dataclass(frozen=True, slots=True)
class JoinReq(_Message):
    """``src`` asks to be tracked."""

    CODE: ClassVar[int] = 0x3F
    src: NodeInfo
    token: bytes = b""
    auth: bytes = b""


@dataclass(frozen=True, slots=True)
class JoinAck(_Message):
    """``desc`` tracks the joiner from now on."""

    CODE: ClassVar[int] = 0x40
    desc: NodeInfo
    payload: Payload = field(default_factory=Payload)


@dataclass(frozen=True, slots=True)
class JoinRedirect(_Message):
    """Ask at ``address`` instead."""

    CODE: ClassVar[int] = 0x41
    address: Address
    domain: int
    code: int
    etag: str = ""


@dataclass(frozen=True, slots=True)
class JoinNak(_Message):
    """The request is refused; the meaning of ``code`` and ``etag`` is the ``domain``'s (3.5)."""

    CODE: ClassVar[int] = 0x42
    domain: int
    code: int
    etag: str = ""


@dataclass(frozen=True, slots=True)
class _Ping(_Message):
    src: NodeId
    target: NodeId
    ttl: int
    payload: Payload = field(default_factory=Payload)


class PingRequest(_Ping):
    """``src`` asks ``target`` for a sign of life, over at most ``ttl`` others."""

    __slots__ = ()
    CODE: ClassVar[int] = 0x43


class PingResponse(_Ping):
    """``target`` (or a helper, 8.3) answers ``src``."""

    __slots__ = ()
    CODE: ClassVar[int] = 0x44


@dataclass(frozen=True, slots=True)
class Leave(_Message):
    """``src`` leaves the group."""

    CODE: ClassVar[int] = 0x45
    src: NodeInfo


class Broadcast(Leave):
    """``src`` is there and may be dialled (13)."""

    __slots__ = ()
    CODE: ClassVar[int] = 0xFA


class PayloadField:
    """The payload, a message's last field: bytes behind it are told before the faults of its records.

    ``optional``: an empty one is left out.
    """

    size_min = 0

    def __init__(self, *, optional: bool = False) -> None:
        self._optional = optional

    def put(self, out: bytearray, value: Payload) -> None:
        """Append ``value``."""
        records = value.encode()
        if records or not self._optional:
            BLOB.put(out, records)

    def get(self, body: bytes, at: int) -> tuple[Payload, int]:
        """Read the payload at ``at``."""
        if self._optional and at == len(body):
            return Payload(), at
        records, at = BLOB.get(body, at)
        if at != len(body):
            raise RemoteProtocolError(DropReason.TRAILING, f"{len(body) - at} bytes")
        return decode_payload(records), at


class _Elsewhere(AddressField):
    """Where to ask instead."""

    def get(self, body: bytes, at: int) -> tuple[Address, int]:
        address, at = super().get(body, at)
        if not address.ip:
            raise RemoteProtocolError(DropReason.FAMILY, "a redirect to nowhere")
        return address, at


Message = JoinReq | JoinAck | JoinRedirect | JoinNak | PingRequest | PingResponse | Leave
_ETAG = Text(BLOB)
_PAYLOAD = PayloadField()
_TABLE = Table(
    {
        layout.cls.CODE: layout
        for layout in (
            Layout(JoinReq, INFO, BLOB, BLOB),
            Layout(JoinAck, INFO, PayloadField(optional=True)),
            Layout(JoinRedirect, _Elsewhere(), U64, U64, _ETAG),
            Layout(JoinNak, U64, U64, _ETAG),
            Layout(PingRequest, NODE, NODE, U8, _PAYLOAD),
            Layout(PingResponse, NODE, NODE, U8, _PAYLOAD),
            Layout(Leave, INFO),
            Layout(Broadcast, INFO),
        )
    },
    DropReason.BYTECODE,
)
NAMES: dict[int, str] = {code: layout.cls.__name__ for code, layout in _TABLE.rows.items()}
"""Names of the messages by their first byte, for counters."""


def encode(message: Message) -> bytes:
    """Return the datagram."""
    return message.encode()


def decode(datagram: bytes | memoryview) -> Message:
    """Read one datagram; raises ``RemoteProtocolError`` with a reason of 3.3 and nothing else."""
    message: Message = _TABLE.decode(bytes(datagram))
    return message
