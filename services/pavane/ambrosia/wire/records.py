"""Records: what flows to the application and what the log holds (docs/specs/ambrosia.md 3, 12.3)."""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import xxhash

from pavane.ambrosia.errors import Reason
from pavane.ambrosia.wire.limits import HEADER_BYTES, MESSAGE_BYTES_MAX, PEERS_MAX, RECORD_BYTES
from pavane.ambrosia.wire.messages import Type, frame
from pavane.ambrosia.wire.primitives import Buffer, Cursor, i64, string, zz32
from pavane.wire import LimitExceeded, RemoteProtocolError

CHECKPOINT_SEQ = -2  # the record of a checkpoint at recovery
CONTROL_SEQ = -1  # never logged, always one message
BODY_BYTES_MAX = RECORD_BYTES + MESSAGE_BYTES_MAX  # a record carries at most one oversize message
WATERMARK_BYTES_MIN = 17  # an empty name and two numbers
TRIM_BYTES_MIN = 9

_HEADER = struct.Struct("<iiQq")


def xxh64(body: Buffer) -> int:
    """Return the check of a record's body (version 2 on)."""
    return int(xxhash.xxh64_intdigest(body))


def xor64(body: Buffer) -> int:
    """Return the check of versions up to 1.x: XOR of little-endian words, the last one padded with zeros."""
    check = 0
    for at in range(0, len(body), 8):
        check ^= int.from_bytes(body[at : at + 8], "little")
    return check


class Header(NamedTuple):
    """The first 24 bytes of a record; ``size`` includes them, ``old`` means the XOR check."""

    committer: int
    size: int
    check: int
    seq: int
    old: bool = False

    def encode(self) -> bytes:
        """Encode as the application gets it: a positive size."""
        return _HEADER.pack(self.committer, self.size, self.check, self.seq)

    def encode_logged(self) -> bytes:
        """Encode as the log holds it: the bitwise NOT of the size says that the check is XXH64."""
        return _HEADER.pack(self.committer, self.size if self.old else ~self.size, self.check, self.seq)


def read_header(buffer: Buffer, position: int = 0) -> Header:
    """Decode 24 bytes of either form; sizes beyond every limit are ``RemoteProtocolError``."""
    if len(buffer) - position < HEADER_BYTES:
        raise RemoteProtocolError(Reason.SHORT, "a header is cut off")
    committer, size, check, seq = _HEADER.unpack_from(buffer, position)
    old = size >= 0
    size = size if old else ~size
    if size < HEADER_BYTES:
        raise RemoteProtocolError(Reason.SIZE, f"a record of {size} bytes")
    if size > HEADER_BYTES + BODY_BYTES_MAX:
        raise LimitExceeded("BODY_BYTES_MAX", size, HEADER_BYTES + BODY_BYTES_MAX)
    return Header(committer, size, check, seq, old)


def control_record(committer: int, type_: Type) -> bytes:
    """Encode a record of one message without data."""
    body = frame(type_)
    return Header(committer, HEADER_BYTES + len(body), xxh64(body), CONTROL_SEQ).encode() + body


def checkpoint_record(committer: int, message: bytes) -> bytes:
    """Encode the record in front of a checkpoint's raw bytes; its check is 0."""
    return Header(committer, HEADER_BYTES + len(message), 0, CHECKPOINT_SEQ).encode() + message


class WireRecord(NamedTuple):
    """A record as an application reads it."""

    header: Header
    body: bytes


class RecordBuffer:
    """Bytes of the stream to an application in, records out; ``take`` gives the raw bytes behind a checkpoint."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def __len__(self) -> int:
        return len(self._buffer)

    def feed(self, data: Buffer) -> None:
        """Append what came."""
        self._buffer += data

    def next(self) -> WireRecord | None:
        """Return the next whole record, ``None`` when there is none; raises ``RemoteProtocolError``."""
        if len(self._buffer) < HEADER_BYTES:
            return None
        header = read_header(self._buffer)
        if not header.old:
            raise RemoteProtocolError(Reason.SIZE, "a negative size outside a log")
        if len(self._buffer) < header.size:
            return None
        body = bytes(self._buffer[HEADER_BYTES : header.size])
        del self._buffer[: header.size]
        return WireRecord(header, body)

    def take(self, size: int) -> bytes:
        """Return up to ``size`` of the bytes that are there."""
        data = bytes(self._buffer[:size])
        del self._buffer[: len(data)]
        return data


Watermarks = dict[str, tuple[int, int]]
"""Source → number of its last message and of its last replayable one; ``""`` is oneself."""

Trims = dict[str, int]
"""Peer → replayable number up to which it acknowledged."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record with what the log adds: who the inputs came from, and what peers acknowledged since the last one."""

    committer: int
    seq: int
    body: bytes
    inputs: Watermarks = field(default_factory=dict)
    trims: Trims = field(default_factory=dict)

    def header(self) -> Header:
        """Return the header with its check."""
        return Header(self.committer, HEADER_BYTES + len(self.body), xxh64(self.body), self.seq)

    def delivered(self) -> bytes:
        """Encode for the application."""
        return self.header().encode() + self.body

    def encode(self) -> bytes:
        """Encode for the log."""
        return b"".join(self.parts())

    def parts(self) -> tuple[bytes, bytes, bytes]:
        """The same in pieces: a body may be large, and a file takes it without another copy."""
        return self.header().encode_logged(), self.body, watermarks(self.inputs, zz32) + trims(self.trims, zz32)

    @classmethod
    def decode(cls, cursor: Cursor) -> Self:
        """Read one record of a log; ``RemoteProtocolError`` when it is cut off or its check is wrong."""
        header = read_header(cursor.take(HEADER_BYTES))
        body = cursor.take(header.size - HEADER_BYTES)
        if header.check != (xor64(body) if header.old else xxh64(body)):
            raise RemoteProtocolError(Reason.CHECK, f"record {header.seq}")
        inputs = read_watermarks(cursor, cursor.zz32())
        return cls(header.committer, header.seq, bytes(body), inputs, read_trims(cursor, cursor.zz32()))


def peers(cursor: Cursor, count: int, each: int) -> int:
    """Return ``count``, of peers with ``each`` bytes at least; raises ``RemoteProtocolError`` where it cannot be."""
    cursor.count(count, each)
    if count > PEERS_MAX + 1:  # oneself too
        raise LimitExceeded("PEERS_MAX", count, PEERS_MAX + 1)
    return count


def watermarks(rows: Watermarks, count: Callable[[int], bytes]) -> bytes:
    """Encode watermarks behind their number, which ``count`` encodes."""
    return count(len(rows)) + b"".join(string(name) + i64(last) + i64(rep) for name, (last, rep) in rows.items())


def read_watermarks(cursor: Cursor, count: int) -> Watermarks:
    """Read so many watermarks; raises ``RemoteProtocolError``."""
    many = range(peers(cursor, count, WATERMARK_BYTES_MIN))
    return {cursor.string(): (cursor.i64(), cursor.i64()) for _ in many}


def trims(rows: Trims, count: Callable[[int], bytes]) -> bytes:
    """Encode trims behind their number, which ``count`` encodes."""
    return count(len(rows)) + b"".join(string(name) + i64(trim) for name, trim in rows.items())


def read_trims(cursor: Cursor, count: int) -> Trims:
    """Read so many trims; raises ``RemoteProtocolError``."""
    return {cursor.string(): cursor.i64() for _ in range(peers(cursor, count, TRIM_BYTES_MIN))}
