"""The messages of version 1: bytes ↔ frozen values (docs/specs/swim.md 3.2, 3.3)."""

import struct
from dataclasses import dataclass, field
from typing import ClassVar, Self

from pavane.swim.errors import DropReason
from pavane.swim.wire.payload import Payload, decode_payload
from pavane.swim.wire.values import (
    Address,
    NodeId,
    NodeInfo,
    read_address,
    read_blob,
    read_info,
    write_address,
    write_blob,
    write_info,
    write_node,
)
from pavane.wire import Reader, RemoteProtocolError, Writer

ERROR_DOMAIN = 7115  # of this protocol (3.5)
TTL_AT = 17  # offset of the ttl in a ping: a forwarder changes this byte and no other
DATAGRAM_BYTES_MAX = 65_507  # the most that UDP over IPv4 carries: must be accepted
_PING = struct.Struct("<IIIIB")


@dataclass(frozen=True, slots=True)
class JoinReq:
    """``src`` asks to be tracked."""

    CODE: ClassVar[int] = 0x3F
    src: NodeInfo
    token: bytes = b""
    auth: bytes = b""

    def encode(self) -> bytes:
        """Return the datagram."""
        writer = Writer().uint_le(self.CODE, 1)
        write_info(writer, self.src)
        write_blob(writer, self.token)
        write_blob(writer, self.auth)
        return writer.getvalue()

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Read what follows the code."""
        return cls(read_info(reader), bytes(read_blob(reader)), bytes(read_blob(reader)))


@dataclass(frozen=True, slots=True)
class JoinAck:
    """``desc`` tracks the joiner from now on."""

    CODE: ClassVar[int] = 0x40
    desc: NodeInfo
    payload: Payload = field(default_factory=Payload)

    def encode(self) -> bytes:
        """Return the datagram; an empty payload is left out."""
        writer = Writer().uint_le(self.CODE, 1)
        write_info(writer, self.desc)
        records = self.payload.encode()
        if records:
            write_blob(writer, records)
        return writer.getvalue()

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Read what follows the code."""
        return cls(read_info(reader), _payload(reader) if reader.remaining else Payload())


@dataclass(frozen=True, slots=True)
class JoinRedirect:
    """Ask at ``address`` instead."""

    CODE: ClassVar[int] = 0x41
    address: Address
    domain: int
    code: int
    etag: str = ""

    def encode(self) -> bytes:
        """Return the datagram."""
        writer = Writer().uint_le(self.CODE, 1)
        write_address(writer, self.address)
        return _write_refusal(writer, self.domain, self.code, self.etag)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Read what follows the code."""
        address = read_address(reader)
        if not address.ip:
            raise RemoteProtocolError(DropReason.FAMILY, "a redirect to nowhere")
        return cls(address, *_read_refusal(reader))


@dataclass(frozen=True, slots=True)
class JoinNak:
    """The request is refused; the meaning of ``code`` and ``etag`` is the ``domain``'s (3.5)."""

    CODE: ClassVar[int] = 0x42
    domain: int
    code: int
    etag: str = ""

    def encode(self) -> bytes:
        """Return the datagram."""
        return _write_refusal(Writer().uint_le(self.CODE, 1), self.domain, self.code, self.etag)

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Read what follows the code."""
        return cls(*_read_refusal(reader))


@dataclass(frozen=True, slots=True)
class _Ping:
    CODE: ClassVar[int]
    src: NodeId
    target: NodeId
    ttl: int
    payload: Payload = field(default_factory=Payload)

    def encode(self) -> bytes:
        """Return the datagram."""
        writer = Writer().uint_le(self.CODE, 1)
        write_node(writer, self.src)
        write_node(writer, self.target)
        writer.uint_le(self.ttl, 1)
        write_blob(writer, self.payload.encode())
        return writer.getvalue()

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Read what follows the code."""
        src_id, src_gen, target_id, target_gen, ttl = _PING.unpack(reader.take(_PING.size))
        return cls(NodeId(src_id, src_gen), NodeId(target_id, target_gen), ttl, _payload(reader))


class PingRequest(_Ping):
    """``src`` asks ``target`` for a sign of life, over at most ``ttl`` others."""

    __slots__ = ()
    CODE: ClassVar[int] = 0x43


class PingResponse(_Ping):
    """``target`` (or a helper, 8.3) answers ``src``."""

    __slots__ = ()
    CODE: ClassVar[int] = 0x44


@dataclass(frozen=True, slots=True)
class Leave:
    """``src`` leaves the group."""

    CODE: ClassVar[int] = 0x45
    src: NodeInfo

    def encode(self) -> bytes:
        """Return the datagram."""
        writer = Writer().uint_le(self.CODE, 1)
        write_info(writer, self.src)
        return writer.getvalue()

    @classmethod
    def decode(cls, reader: Reader) -> Self:
        """Read what follows the code."""
        return cls(read_info(reader))


class Broadcast(Leave):
    """``src`` is there and may be dialled (13)."""

    __slots__ = ()
    CODE: ClassVar[int] = 0xFA


Message = JoinReq | JoinAck | JoinRedirect | JoinNak | PingRequest | PingResponse | Leave
_TYPES: dict[int, type[Message]] = {
    kind.CODE: kind for kind in (JoinReq, JoinAck, JoinRedirect, JoinNak, PingRequest, PingResponse, Leave, Broadcast)
}
NAMES: dict[int, str] = {code: kind.__name__ for code, kind in _TYPES.items()}
"""Names of the messages by their first byte, for counters."""


def encode(message: Message) -> bytes:
    """Return the datagram."""
    return message.encode()


def decode(datagram: bytes | memoryview) -> Message:
    """Read one datagram; raises ``RemoteProtocolError`` with a reason of 3.3 and nothing else."""
    reader = Reader(datagram)
    code = reader.uint_le(1)
    kind = _TYPES.get(code)
    if kind is None:
        raise RemoteProtocolError(DropReason.BYTECODE, f"{code:#04x}")
    message = kind.decode(reader)
    if reader.remaining:
        raise RemoteProtocolError(DropReason.TRAILING, f"{reader.remaining} bytes")
    return message


def _payload(reader: Reader) -> Payload:
    """Read the payload blob, the last field: trailing bytes are a fault of the message, told before its records'."""
    records = read_blob(reader)
    if reader.remaining:
        raise RemoteProtocolError(DropReason.TRAILING, f"{reader.remaining} bytes")
    return decode_payload(records)


def _write_refusal(writer: Writer, domain: int, code: int, etag: str) -> bytes:
    writer.uint_le(domain, 8).uint_le(code, 8)
    write_blob(writer, etag.encode())
    return writer.getvalue()


def _read_refusal(reader: Reader) -> tuple[int, int, str]:
    domain, code, etag = reader.uint_le(8), reader.uint_le(8), read_blob(reader)
    try:
        return domain, code, str(etag, "utf-8")
    except UnicodeDecodeError:
        raise RemoteProtocolError(DropReason.UTF8, "etag") from None
