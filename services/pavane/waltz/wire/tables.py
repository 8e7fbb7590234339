"""Which type a message has and how it is laid out in each version and direction (docs/specs/waltz.md 3, 6.2).

A type that a version or a direction does not have is unknown to it: encoding it raises ``LocalProtocolError``, decoding
it ``RemoteProtocolError``.
"""

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.blobs import ASSIGNED
from pavane.waltz.wire.fields import (
    BOOLEAN,
    BYTE,
    CHECKED_DATA,
    INT32,
    INT64,
    INTS,
    LOCKS,
    REQID,
    SHORT_TEXT,
    SOME_INTS,
    TEXT,
    ChecksumError,
    Listed,
    ReqId,
    encoded_once,
    new,
    read_count,
)
from pavane.wire import LocalProtocolError, RemoteProtocolError, Stage
from pavane.wire.fields import Enumerated, Layout, Rows, Table

_ITEM = struct.Struct(">iiiiiIi")
_BARE_COUNTS = slice(5, 8)  # of an append without locks: those of its three empty arrays
_ACK = struct.Struct(">iiiiqi")
_UINT32 = struct.Struct(">I")
_INT32 = struct.Struct(">i")
_NO_LOCKS = (0, 0, 0)


class _DataOrText:
    """The ending of TRANSACTION_DATA_RESPONSE: a boolean, then checked data or a text."""

    size_min = 5

    def put(self, out: bytearray, value: bytes | str) -> None:
        """Append ``value``."""
        BOOLEAN.put(out, isinstance(value, bytes))
        if isinstance(value, bytes):
            CHECKED_DATA.put(out, value)
        else:
            TEXT.put(out, value)

    def get(self, body: bytes, at: int) -> tuple[bytes | str, int]:
        """Read the ending at ``at``."""
        found, at = BOOLEAN.get(body, at)
        if found:
            return CHECKED_DATA.get(body, at)
        text, at = TEXT.get(body, at)
        return text or "", at


class _BatchItems:
    """Items of a FEED_BATCH and the CRC of its whole body; a loop of its own, for it is the busiest of all."""

    size_min = 8

    def put(self, out: bytearray, value: Sequence[m.FeedItem]) -> None:
        """Append the items and the CRC of ``out``, which starts with the type byte."""
        out += encoded_once(value, self._encoded)
        out += _UINT32.pack(zlib.crc32(out))

    def _encoded(self, value: Sequence[m.FeedItem]) -> bytes:
        if not 1 <= len(value) <= m.BATCH_ITEMS_MAX:
            raise LocalProtocolError(f"a batch of {len(value)} items (1 to {m.BATCH_ITEMS_MAX})")
        parts = [_INT32.pack(len(value))]
        for reqid, header, data in value:
            if data is None:
                parts.append(_ITEM.pack(*reqid, header, 0, -1))
            else:
                parts += (_ITEM.pack(*reqid, header, zlib.crc32(data), len(data)), data)
        return b"".join(parts)

    def get(self, body: bytes, at: int) -> tuple[tuple[m.FeedItem, ...], int]:
        """Read the items at ``at``; raises ``ChecksumError``."""
        count, at = read_count(body, at, _ITEM.size, m.BATCH_ITEMS_MAX)
        if count == 0:
            raise RemoteProtocolError("empty", "a batch without items")
        items = []
        for _ in range(count):
            client, generation, partition, seq, header, crc, size = _ITEM.unpack_from(body, at)
            at += _ITEM.size
            data = None
            if size != -1:
                if size < 0 or at + size > len(body):
                    raise RemoteProtocolError("short", f"data of {size} bytes")
                data = body[at : at + size]
                at += size
            if zlib.crc32(data or b"") != crc:
                raise ChecksumError
            items.append(new(m.FeedItem, (new(ReqId, (client, generation, partition, seq)), header, data)))
        if _UINT32.unpack_from(body, at)[0] != zlib.crc32(memoryview(body)[:at]):
            raise ChecksumError
        return tuple(items), at + 4


class _Appends(Layout[Any]):
    """An append without locks is one ``struct`` and its data: half the time of a busy server goes into these.

    ``codes`` are those of what is between locks and data.
    """

    def __init__(self, cls: type[Any], codes: str, *fields: Any) -> None:
        super().__init__(cls, REQID, INT64, LOCKS, LOCKS, LOCKS, *fields, CHECKED_DATA)
        self._bare = struct.Struct(f">iiiiqiii{codes}i")

    def put(self, out: bytearray, value: m.AppendRequest | m.AppendIdempotent) -> None:
        """Append ``value``."""
        reqid, hwm, write, read, append, *rest, data = value
        if write or read or append:
            super().put(out, value)
            return
        try:
            out += self._bare.pack(*reqid, hwm, 0, 0, 0, *rest, len(data))
        except (struct.error, TypeError) as error:
            raise LocalProtocolError(f"{self.cls.__name__}: {error}") from None
        out += data
        out += _UINT32.pack(zlib.crc32(data))

    def decode(self, body: bytes, at: int = 0) -> Any:
        """Read the append, which ends where ``body`` ends; raises ``RemoteProtocolError``, with the ReqId if it can."""
        try:
            return self._decoded(body, at)
        except ChecksumError:
            raise ChecksumError(REQID.get(body, at)[0], body[at - 1]) from None

    def _decoded(self, body: bytes, at: int) -> Any:
        start, end = at + self._bare.size, len(body) - _UINT32.size
        if start <= end:
            values = self._bare.unpack_from(body, at)
            if values[_BARE_COUNTS] == _NO_LOCKS and start + values[-1] == end:
                data = body[start:end]
                if zlib.crc32(data) != _UINT32.unpack_from(body, end)[0]:
                    raise ChecksumError
                reqid = new(ReqId, values[:4])
                return new(self.cls, (reqid, values[4], (), (), (), *values[8:-1], data))
        return super().decode(body, at)


class _Acks(Layout[m.AppendAck]):
    """The answer to an append is one ``struct``: it is the busiest message of a client."""

    def put(self, out: bytearray, value: m.AppendAck) -> None:
        """Append ``value``."""
        try:
            out += _ACK.pack(*value[0], value[1], value[2])
        except (struct.error, TypeError) as error:
            raise LocalProtocolError(f"AppendAck: {error}") from None

    def decode(self, body: bytes, at: int = 0) -> m.AppendAck:
        """Read the answer, which ends where ``body`` ends; raises ``RemoteProtocolError``."""
        if len(body) != at + _ACK.size:
            return super().decode(body, at)
        values = _ACK.unpack_from(body, at)
        return new(m.AppendAck, (new(ReqId, values[:4]), values[4], values[5]))


class _Ready:
    """State of a mount below V3: a boolean, which does not tell why not."""

    size_min = 1

    def put(self, out: bytearray, value: m.MountState) -> None:
        """Append ``value``."""
        BOOLEAN.put(out, value == m.MountState.READY)

    def get(self, body: bytes, at: int) -> tuple[m.MountState, int]:
        """Read the state at ``at``."""
        ready, at = BOOLEAN.get(body, at)
        return m.MountState.READY if ready else m.MountState.NOT_READY, at


def _state_until_v4(number: int) -> m.MountState:
    """Return the state of a mount in V3 and V4."""
    if number == m.MountState.READY_READ_ONLY:
        raise ValueError("READY_READ_ONLY exists from V5 on")
    return m.MountState(number)


_VIEW_SERVER = Layout(m.ViewServer, INT32, TEXT, INT32, Enumerated(BYTE, Stage), Listed(ASSIGNED))
_REACHABLE = Layout(m.StorageReachable, TEXT, BOOLEAN)
_HEALTH = Layout(m.PartitionHealth, INT32, BOOLEAN)
_CONSUMER = Layout(m.ConsumerState, TEXT, INT64, INT64, TEXT, INT64, INT64, INT64)

_C0: Rows = {
    0: Layout(m.MountRequest, REQID, INT64, INT64),
    2: Layout(m.AppendRequest, REQID, INT64, LOCKS, INT32, CHECKED_DATA, absent=("read", "append")),
    3: Layout(m.FeedRequest, REQID, INT64),
    6: Layout(m.TransactionDataRequest, REQID, INT64),
    8: Layout(m.FlushRequest, REQID),
    11: Layout(m.HighWaterMarkRequest, REQID),
}
_C1: Rows = {
    **_C0,
    2: Layout(m.AppendRequest, REQID, INT64, LOCKS, LOCKS, INT32, CHECKED_DATA, absent=("append",)),
    13: Layout(m.CheckStorageRequest, REQID),
}
_C2: Rows = {
    **_C1,
    2: _Appends(m.AppendRequest, "i", INT32),
    15: Layout(m.AssignmentRequest, REQID),
    17: Layout(m.AddPreferredRequest, REQID, SOME_INTS),
    19: Layout(m.RemovePreferredRequest, REQID, SOME_INTS),
}
_C4: Rows = {**_C2, 21: Layout(m.HealthRequest, REQID)}
_C5: Rows = {
    **_C4,
    32: Layout(m.FeedBatchRequest, REQID, INT64, INT32, INT32, INT32, INT32, INT32),
    34: Layout(m.FeedCredit, REQID, INT32, INT32),
    37: _Appends(m.AppendIdempotent, "iiqi", INT32, INT32, INT64, INT32),
    45: Layout(m.ViewRequest, REQID, INT32),
    47: Layout(m.TrimRequest, REQID, INT64, INT32),
    49: Layout(m.ConsumerRequest, REQID, Enumerated(BYTE, m.ConsumerAction), SHORT_TEXT, INT64, INT64, SHORT_TEXT),
}

_S0: Rows = {
    1: Layout(m.MountResponse, REQID, _Ready()),
    4: Layout(m.FeedData, REQID, INT64, INT32),
    5: Layout(m.FeedSuspended, REQID),
    7: Layout(m.TransactionDataResponse, REQID, INT64, _DataOrText()),
    9: Layout(m.FlushResponse, REQID, INT64),
    10: Layout(m.LockFailure, REQID, INT64),
    12: Layout(m.HighWaterMarkResponse, REQID, INT64),
}
_S1: Rows = {**_S0, 14: Layout(m.CheckStorageResponse, REQID, Listed(_REACHABLE))}
_S2: Rows = {
    **_S1,
    16: Layout(m.AssignmentResponse, REQID, INTS),
    18: Layout(m.AddPreferredResponse, REQID, BOOLEAN),
    20: Layout(m.RemovePreferredResponse, REQID, BOOLEAN),
}
_S3: Rows = {**_S2, 1: Layout(m.MountResponse, REQID, Enumerated(INT32, _state_until_v4))}
_S4: Rows = {**_S3, 22: Layout(m.HealthResponse, REQID, Listed(_HEALTH))}
_S5: Rows = {
    **_S4,
    1: Layout(m.MountResponse, REQID, Enumerated(INT32, m.MountState)),
    33: Layout(m.FeedBatch, REQID, INT64, INT64, INT32, INT32, BYTE, _BatchItems()),
    35: Layout(m.Reject, REQID, BYTE, Enumerated(INT32, RejectCode), INT64, INT32, TEXT),
    36: _Acks(m.AppendAck, REQID, INT64, INT32),
    46: Layout(m.View, REQID, TEXT, INT32, INT32, INT32, Listed(_VIEW_SERVER)),
    48: Layout(m.TrimResponse, REQID, INT64, INT64, INT64),
    50: Layout(m.ConsumerResponse, REQID, INT64, INT64, Listed(_CONSUMER)),
}


REQUESTS: Mapping[int, Table] = {n: Table(rows) for n, rows in enumerate((_C0, _C1, _C2, _C2, _C4, _C5))}
RESPONSES: Mapping[int, Table] = {n: Table(rows) for n, rows in enumerate((_S0, _S1, _S2, _S3, _S4, _S5))}
