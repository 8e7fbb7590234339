"""Messages between server and storage node, and those of the storage node's admin port (docs/specs/waltz.md 10, 11).

The CRC of a record's data travels as it was received: the storage node checks it and answers FAILURE.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Self
from uuid import UUID as Uuid

from pavane.waltz.wire.fields import (
    BOOLEAN,
    DATA,
    INT32,
    INT64,
    INTS,
    NULLABLE_TEXT,
    REQID,
    TEXT,
    UUID,
    Listed,
    Optional,
    ReqId,
    encoded_once,
    new,
    read_count,
)
from pavane.wire import LocalProtocolError, RemoteProtocolError
from pavane.wire.fields import Ids, Layout, Rows, Scalar, Table

RECORDS_MAX = 1000  # of one list
STACK_MAX = 1000  # lines of a stack trace
UINT32 = Scalar("I")


class Head(NamedTuple):
    """What every message starts with; OPEN and its answer have -1 everywhere.

    Those of the admin port carry the number, and where they are about one partition that: the rest is -1.
    """

    session: int
    seq: int
    partition: int


OPEN_HEAD = Head(-1, -1, -1)


@dataclass(frozen=True, slots=True)
class Message:
    """A message between server or tool and storage node; an answer has the head of its request."""

    head: Head


class RecordHeader(NamedTuple):
    """A record without its data."""

    txid: int
    reqid: ReqId
    header: int


class Record(NamedTuple):
    """A committed or pending transaction; ``crc`` is that of ``data``."""

    txid: int
    reqid: ReqId
    header: int
    data: bytes
    crc: int

    @classmethod
    def of(cls, txid: int, reqid: ReqId, header: int, data: bytes) -> Self:
        """Return a record with the CRC of its data."""
        return new(cls, (txid, reqid, header, data, zlib.crc32(data)))


class StackLine(NamedTuple):
    """One line of a Java stack trace."""

    cls: str | None
    method: str | None
    file: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Open(Message):
    """First message: whose storage and how many partitions it must have."""

    key: Uuid
    partitions: int


@dataclass(frozen=True, slots=True)
class LastSessionInfoRequest(Message):
    """Ask what the last SET_LOW_WATER_MARK wrote."""

    offline: bool


@dataclass(frozen=True, slots=True)
class LastSessionInfoResponse(Message):
    """Persisted session id and low-water marks."""

    session: int
    lwm: int
    local_lwm: int


@dataclass(frozen=True, slots=True)
class SetLowWaterMark(Message):
    """Write a session id and low-water mark."""

    lwm: int
    offline: bool


@dataclass(frozen=True, slots=True)
class Truncate(Message):
    """Cut everything behind ``txid``; the answer is MaxTransactionIdResponse."""

    txid: int
    offline: bool


@dataclass(frozen=True, slots=True)
class Append(Message):
    """Write records and sync them."""

    records: tuple[Record, ...]
    offline: bool


@dataclass(frozen=True, slots=True)
class Success(Message):
    """Done."""


@dataclass(frozen=True, slots=True)
class Failure(Message):
    """Not done, and why."""

    message: str | None
    stack: tuple[StackLine, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordHeaderRequest(Message):
    """Ask for one record's header."""

    txid: int


@dataclass(frozen=True, slots=True)
class RecordHeaderResponse(Message):
    """The header, if there is one."""

    record: RecordHeader | None


@dataclass(frozen=True, slots=True)
class RecordRequest(Message):
    """Ask for one record."""

    txid: int


@dataclass(frozen=True, slots=True)
class RecordResponse(Message):
    """The record, if there is one."""

    record: Record | None


@dataclass(frozen=True, slots=True)
class MaxTransactionIdRequest(Message):
    """Ask for the last txid."""

    offline: bool


@dataclass(frozen=True, slots=True)
class MaxTransactionIdResponse(Message):
    """The last txid; -1 if empty."""

    txid: int


@dataclass(frozen=True, slots=True)
class RecordHeaderListRequest(Message):
    """Ask for at most ``count`` headers from ``txid`` on."""

    txid: int
    count: int


@dataclass(frozen=True, slots=True)
class RecordHeaderListResponse(Message):
    """Headers up to the first that is absent."""

    records: tuple[RecordHeader, ...]


@dataclass(frozen=True, slots=True)
class RecordListRequest(Message):
    """Ask for at most ``count`` records from ``txid`` on."""

    txid: int
    count: int


@dataclass(frozen=True, slots=True)
class RecordListResponse(Message):
    """Records up to the first that is absent."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Retain(Message):
    """Ours: the log begins with ``start``, so drop what is below; and say what ``bytes_max`` and ``age_ms_max`` leave.

    -1: no such limit.
    """

    start: int
    bytes_max: int
    age_ms_max: int


@dataclass(frozen=True, slots=True)
class Retained(Message):
    """A node has ``first`` to ``last`` in ``size`` bytes. By its files and clock the log may begin with ``wanted``."""

    first: int
    last: int
    wanted: int
    size: int


class RepairStep(IntEnum):
    """What an owner wants of a copy that takes no part."""

    LOOK = 0
    BEGIN = 1
    """Give a damaged copy up, or go on with one that is being rebuilt, and obey this session."""
    ANEW = 2
    """The same from the beginning."""
    DONE = 3
    """All of it was read again and is that of a majority: it counts from now on."""


class CopyState(IntEnum):
    """What a storage node says of a copy."""

    SOUND = 0
    DAMAGED = 1
    REBUILDING = 2
    """Given up, and copied from others since; nobody has verified it."""


@dataclass(frozen=True, slots=True)
class Repair(Message):
    """Ours: tell how a copy is, after ``step``."""

    step: int


@dataclass(frozen=True, slots=True)
class Repaired(Message):
    """How a copy is, what the last SET_LOW_WATER_MARK wrote, and what is wrong, for people."""

    state: int
    session: int
    lwm: int
    local_lwm: int
    fault: str


_HEAD = Ids(">qqi", Head)
_RECORD_HEADER = Layout(RecordHeader, INT64, REQID, INT32)
_STACK_LINE = Layout(StackLine, NULLABLE_TEXT, NULLABLE_TEXT, NULLABLE_TEXT, INT32)
_STACK = Listed(_STACK_LINE, STACK_MAX)
_RECORD = Layout(Record, INT64, REQID, INT32, DATA, UINT32)
_RECORD_START = struct.Struct(">qiiiiii")  # up to the length of the data
_COUNT, _CRC = struct.Struct(">i"), struct.Struct(">I")


class _Records:
    """A list of records in loops of its own, for a storage node does nothing as often."""

    size_min = 4

    def put(self, out: bytearray, value: Sequence[Record]) -> None:
        """Append ``value``."""
        out += encoded_once(value, self._encoded)

    def _encoded(self, value: Sequence[Record]) -> bytes:
        if len(value) > RECORDS_MAX:
            raise LocalProtocolError(f"a list of {len(value)} is more than one message may hold ({RECORDS_MAX})")
        parts = [_COUNT.pack(len(value))]
        for txid, reqid, header, data, crc in value:
            parts += (_RECORD_START.pack(txid, *reqid, header, len(data)), data, _CRC.pack(crc))
        return b"".join(parts)

    def get(self, body: bytes, at: int) -> tuple[tuple[Record, ...], int]:
        """Read the list at ``at``."""
        count, at = read_count(body, at, _RECORD.size_min, RECORDS_MAX)
        start, most = _RECORD_START.size, len(body) - _CRC.size
        found = []
        for _ in range(count):
            txid, client, generation, partition, seq, header, size = _RECORD_START.unpack_from(body, at)
            at += start
            end = at + size
            if size < 0:
                raise RemoteProtocolError("null", "null where bytes belong")
            if end > most:
                raise RemoteProtocolError("short", f"data of {size} bytes")
            (crc,) = _CRC.unpack_from(body, end)
            reqid = new(ReqId, (client, generation, partition, seq))
            found.append(new(Record, (txid, reqid, header, body[at:end], crc)))
            at = end + _CRC.size
        return tuple(found), at


_HEADERS = Listed(_RECORD_HEADER, RECORDS_MAX)
_RECORDS = _Records()

_REQUESTS: Rows = {
    1: Layout(Open, _HEAD, UUID, INT32),
    2: Layout(LastSessionInfoRequest, _HEAD, BOOLEAN),
    4: Layout(SetLowWaterMark, _HEAD, INT64, BOOLEAN),
    5: Layout(Truncate, _HEAD, INT64, BOOLEAN),
    6: Layout(Append, _HEAD, _RECORDS, BOOLEAN),
    9: Layout(RecordHeaderRequest, _HEAD, INT64),
    11: Layout(RecordRequest, _HEAD, INT64),
    13: Layout(MaxTransactionIdRequest, _HEAD, BOOLEAN),
    15: Layout(RecordHeaderListRequest, _HEAD, INT64, INT32),
    17: Layout(RecordListRequest, _HEAD, INT64, INT32),
}
_RESPONSES: Rows = {
    3: Layout(LastSessionInfoResponse, _HEAD, INT64, INT64, INT64),
    7: Layout(Success, _HEAD),
    8: Layout(Failure, _HEAD, NULLABLE_TEXT, _STACK),
    10: Layout(RecordHeaderResponse, _HEAD, Optional(_RECORD_HEADER)),
    12: Layout(RecordResponse, _HEAD, Optional(_RECORD)),
    14: Layout(MaxTransactionIdResponse, _HEAD, INT64),
    16: Layout(RecordHeaderListResponse, _HEAD, _HEADERS),
    18: Layout(RecordListResponse, _HEAD, _RECORDS),
}
STORAGE_REQUESTS: Mapping[int, Table] = {
    0: Table(_REQUESTS),
    1: Table({**_REQUESTS, 19: Layout(Retain, _HEAD, INT64, INT64, INT64), 21: Layout(Repair, _HEAD, INT32)}),
}
STORAGE_RESPONSES: Mapping[int, Table] = {
    0: Table(_RESPONSES),
    1: Table(
        {
            **_RESPONSES,
            20: Layout(Retained, _HEAD, INT64, INT64, INT64, INT64),
            22: Layout(Repaired, _HEAD, INT32, INT64, INT64, INT64, TEXT),
        }
    ),
}


@dataclass(frozen=True, slots=True)
class SetAvailable(Message):
    """Make partitions available or not."""

    partitions: tuple[int, ...]
    available: bool


@dataclass(frozen=True, slots=True)
class SetAssigned(Message):
    """Assign partitions to the node or take them away, with their files."""

    partitions: tuple[int, ...]
    assign: bool
    delete_files: bool


@dataclass(frozen=True, slots=True)
class AdminSessionInfoRequest(Message):
    """Ask what the last SET_LOW_WATER_MARK wrote."""


@dataclass(frozen=True, slots=True)
class MetricsRequest(Message):
    """Ask for metrics."""


@dataclass(frozen=True, slots=True)
class MetricsResponse(Message):
    """Metrics as JSON."""

    json: str


@dataclass(frozen=True, slots=True)
class PartitionStatusRequest(Message):
    """Ask which partitions are assigned."""


class PartitionStatus(NamedTuple):
    """An assigned partition and whether it is available."""

    partition: int
    available: bool


@dataclass(frozen=True, slots=True)
class PartitionStatusResponse(Message):
    """Assigned partitions."""

    partitions: tuple[PartitionStatus, ...]


class _ToolHead:
    """The head of a message of the admin port: its number, and the partition if it is about ``one``."""

    def __init__(self, *, one: bool) -> None:
        self._struct = struct.Struct(">qi" if one else ">q")
        self._none = () if one else (-1,)
        self.size_min = self._struct.size

    def put(self, out: bytearray, value: Head) -> None:
        out += self._struct.pack(*value[1 : 3 - len(self._none)])

    def get(self, body: bytes, at: int) -> tuple[Head, int]:
        return Head(-1, *self._struct.unpack_from(body, at), *self._none), at + self.size_min


_NUMBER, _OF_ONE = _ToolHead(one=False), _ToolHead(one=True)
ADMIN_REQUESTS: Mapping[int, Table] = {
    0: Table(
        {
            3: Layout(Open, _NUMBER, UUID, INT32),
            4: Layout(SetAvailable, _NUMBER, INTS, BOOLEAN),
            6: Layout(SetAssigned, _NUMBER, INTS, BOOLEAN, BOOLEAN),
            7: Layout(RecordListRequest, _OF_ONE, INT64, INT32),
            9: Layout(AdminSessionInfoRequest, _OF_ONE),
            11: Layout(MetricsRequest, _NUMBER),
            13: Layout(PartitionStatusRequest, _NUMBER),
        }
    )
}
ADMIN_RESPONSES: Mapping[int, Table] = {
    0: Table(
        {
            1: Layout(Success, _NUMBER),
            2: Layout(Failure, _NUMBER, NULLABLE_TEXT, _STACK),
            8: Layout(RecordListResponse, _OF_ONE, _RECORDS),
            10: Layout(LastSessionInfoResponse, _OF_ONE, INT64, INT64, INT64),
            12: Layout(MetricsResponse, _NUMBER, TEXT),
            14: Layout(PartitionStatusResponse, _NUMBER, Listed(Layout(PartitionStatus, INT32, BOOLEAN))),
        }
    )
}
