"""Calls in batches, each read where it stands: of small calls it is the time that counts (docs/specs/ambrosia.md 4).

All functions raise ``RemoteProtocolError`` for what is malformed, and for anything but calls in a batch.
"""

from collections.abc import Iterator

from pavane.ambrosia.errors import Reason
from pavane.ambrosia.wire.limits import BATCH_COUNT_MAX, NAME_BYTES_MAX
from pavane.ambrosia.wire.messages import (
    BATCH_TYPES,
    KEPT_BYTES_MAX,
    RPC_TYPES,
    TYPE_BYTES,
    Call,
    Frame,
    Return,
    RpcKind,
    RpcType,
    Type,
    is_impulse,
    known_name,
    read_batch,
    read_frames,
    read_rpc,
    split_outgoing,
)
from pavane.ambrosia.wire.primitives import read_zz32, zz32
from pavane.wire import LimitExceeded, RemoteProtocolError

_SHORT_BYTES = 4  # of a number, which needs no look at how many bits it has


def split_calls(message: Frame) -> list[tuple[str, bytes, bool]]:
    """Open what an application sent: destination, incoming form and whether it is an Impulse, of each call."""
    if message.type not in BATCH_TYPES:
        return [split_outgoing(message)]
    data = message.data
    found = []
    for start, end in _places(message)[0]:
        name = start + 2
        length = data[start + 1]
        if length & 0x81:  # more than one byte, or negative
            length, name = read_zz32(data, start + 1)
        else:
            length >>= 1
        body = name + length
        if length < 0 or body > end:
            raise RemoteProtocolError(Reason.LENGTH, f"a destination of {length} bytes")
        if length > NAME_BYTES_MAX:
            raise LimitExceeded("NAME_BYTES_MAX", length, NAME_BYTES_MAX)
        # Of a large call each copy counts.
        rest = data[body:end] if end - body < KEPT_BYTES_MAX else memoryview(data)[body:end]
        raw = b"".join((zz32(end - body + 1), TYPE_BYTES[data[start]], rest))
        found.append((known_name(data[name:body]), raw, _impulse(data, body, end)))
    return found


def calls_of(data: bytes) -> Iterator[Frame]:
    """Return each call of a record's body or of what went over a stream; other messages are left out."""
    for message in read_frames(data):
        if message.type in BATCH_TYPES:
            yield from read_batch(message)
        elif message.type in RPC_TYPES:
            yield message


def count_calls(message: Frame) -> tuple[int, int]:
    """Return how many calls, and how many replayable ones, a message in incoming form holds."""
    if message.type not in BATCH_TYPES:
        return 1, int(not is_impulse(message.data))
    places, replayable = _places(message)
    data = message.data
    found = len(places) - sum([_impulse(data, start + 1, end) for start, end in places])
    _announced(replayable, found)
    return len(places), found


def read_calls(message: Frame) -> list[Call | Return]:
    """Decode what a message in incoming form holds."""
    if message.type not in BATCH_TYPES:
        return [read_rpc(message.data)]
    places, replayable = _places(message)
    data = message.data
    found = [read_rpc(data[start + 1 : end]) for start, end in places]
    if replayable is not None:
        impulses = sum([isinstance(rpc, Call) and rpc.rpc is RpcType.IMPULSE for rpc in found])
        _announced(replayable, len(found) - impulses)
    return found


def _announced(replayable: int | None, found: int) -> None:
    if replayable not in (None, found):
        raise RemoteProtocolError(Reason.COUNT, f"{replayable} replayable messages announced, {found} found")


def _places(message: Frame) -> tuple[list[tuple[int, int]], int | None]:
    """Return where the type of each call in a batch stands and where the call ends; how many are said replayable."""
    data = message.data
    count, position = read_zz32(data, 0)
    replayable: int | None = None
    if message.type == Type.COUNT_REPLAYABLE_RPC_BATCH:
        replayable, position = read_zz32(data, position)
    if count < 0 or count > BATCH_COUNT_MAX:
        raise LimitExceeded("BATCH_COUNT_MAX", count, BATCH_COUNT_MAX)
    found = []
    last = len(data)
    while position < last:
        size = data[position]
        if size < 0x80 and not size & 1:
            size, start = size >> 1, position + 1
        else:
            size, start = read_zz32(data, position)
        position = start + size
        if size < 1:
            raise RemoteProtocolError(Reason.SIZE, f"a message of {size} bytes")
        if position > last:
            raise RemoteProtocolError(Reason.SHORT, "the last message is cut off")
        if data[start] not in RPC_TYPES:
            raise RemoteProtocolError(Reason.TYPE, f"type {data[start]} in a batch")
        found.append((start, position))
    if len(found) != count:
        raise RemoteProtocolError(Reason.COUNT, f"{count} messages announced, {len(found)} found")
    return found, replayable


def _impulse(data: bytes, start: int, end: int) -> bool:
    """As ``is_impulse``, of the call whose kind stands at ``start``."""
    if start < end and RpcKind.CALL < data[start] <= RpcKind.EXCEPTION:
        return False
    at = start + 1
    while at < end and data[at] >= 0x80:
        at += 1
    at += 1
    if at >= end or data[start] or data[at] > RpcType.IMPULSE or at - start > _SHORT_BYTES:
        return is_impulse(data[start:end])  # it says what is wrong, if anything is
    return data[at] == RpcType.IMPULSE
