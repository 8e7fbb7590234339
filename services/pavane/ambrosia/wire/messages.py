"""Messages (docs/specs/ambrosia.md 4): size, type, data.

Calls stay opaque to a coordinator: it reads only what it must know, whether a message is an Impulse and where it goes.
"""

import functools
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Self

from pavane.ambrosia.errors import Reason
from pavane.ambrosia.wire.limits import BATCH_COUNT_MAX, CHECKPOINT_BYTES_MAX, MESSAGE_BYTES_MAX, MIB, NAME_BYTES_MAX
from pavane.ambrosia.wire.primitives import (
    ZZ32_BYTES_MAX,
    Buffer,
    read_zz32,
    read_zz64,
    string,
    text,
    utf8,
    zz32,
    zz64,
)
from pavane.wire import LimitExceeded, LocalProtocolError, RemoteProtocolError

FIXED_CHECKPOINT_BYTES = 8  # the C binding writes the size of a checkpoint as a fixed 64-bit number


class Type(IntEnum):
    """The byte that says what a message is."""

    RPC = 0
    ATTACH_TO = 1
    TAKE_CHECKPOINT = 2
    COMMIT = 3
    REPLAY_FROM = 4
    RPC_BATCH = 5
    PING = 6
    PING_RETURN = 7
    CHECKPOINT = 8
    INITIAL_MESSAGE = 9
    UPGRADE_TAKE_CHECKPOINT = 10
    TAKE_BECOMING_PRIMARY_CHECKPOINT = 11
    UPGRADE_SERVICE = 12
    COUNT_REPLAYABLE_RPC_BATCH = 13
    TRIM_TO = 14
    BECOMING_PRIMARY = 15


RPC_TYPES = frozenset({Type.RPC, Type.PING, Type.PING_RETURN})  # a ping is a call in all but name
BATCH_TYPES = frozenset({Type.RPC_BATCH, Type.COUNT_REPLAYABLE_RPC_BATCH})
CALL_TYPES = RPC_TYPES | BATCH_TYPES


class RpcType(IntEnum):
    """What a caller expects."""

    ASYNC = 0
    FORK = 1
    IMPULSE = 2


_RPC_TYPES = tuple(RpcType)


class RpcKind(IntEnum):
    """What an RPC is: a call, or one of three answers."""

    CALL = 0
    VALUE = 1
    VOID = 2
    EXCEPTION = 3


_KINDS = tuple(RpcKind)
_EXCEPTION, _IMPULSE = int(RpcKind.EXCEPTION), int(RpcType.IMPULSE)  # a name of an enumeration costs its time


PROGRESS = -20
"""Method of an Impulse to oneself that no coordinator logs: ``i64``, the last record that a replay has handled."""


class Frame(NamedTuple):
    """One message: ``data`` without size and type, ``raw`` the whole of it as it came."""

    type: int
    data: bytes
    raw: bytes


TYPE_BYTES = tuple(bytes((each,)) for each in range(256))


def frame(type_: int, data: Buffer = b"") -> bytes:
    """Encode one message."""
    return b"".join((zz32(len(data) + 1), TYPE_BYTES[type_], data))  # unlike %, it makes one copy of the data


def read_frame(buffer: Buffer, position: int, bytes_max: int = MESSAGE_BYTES_MAX) -> tuple[Frame, int] | None:
    """Return the message at ``position`` and the position behind it, ``None`` while it is not all there.

    Raises ``RemoteProtocolError`` for a size below 1, ``LimitExceeded`` above ``bytes_max``.
    """
    try:
        size, start = read_zz32(buffer, position)
    except RemoteProtocolError as error:
        if error.reason == Reason.SHORT and len(buffer) - position < ZZ32_BYTES_MAX:
            return None
        raise
    if size < 1:
        raise RemoteProtocolError(Reason.SIZE, f"a message of {size} bytes")
    if size > bytes_max:
        raise LimitExceeded("MESSAGE_BYTES_MAX", size, bytes_max)
    end = start + size
    if end > len(buffer):
        return None
    # Of a large message each copy counts, of a small one the time.
    large = size > KEPT_BYTES_MAX and not isinstance(buffer, bytes)
    raw = bytes(memoryview(buffer)[position:end] if large else buffer[position:end])
    head = start - position
    return Frame(raw[head], raw[head + 1 :], raw), end


def read_frames(data: Buffer) -> list[Frame]:
    """Return all messages of a record's body, batches unopened; cut off or malformed: ``RemoteProtocolError``."""
    frames = []
    position = 0
    while position < len(data):
        found = read_frame(data, position, bytes_max=len(data))
        if found is None:
            raise RemoteProtocolError(Reason.SHORT, "the last message is cut off")
        message, position = found
        frames.append(message)
    return frames


KEPT_BYTES_MAX = MIB  # of a buffer, behind which nobody reads any more


class MessageBuffer:
    """Bytes of a stream in, messages out; ``take`` gives the raw bytes that follow a Checkpoint message."""

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._buffer = bytearray()
        self._position = 0
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self._buffer) - self._position

    def feed(self, data: Buffer) -> None:
        """Append what came."""
        if self._position:
            del self._buffer[: self._position]
            self._position = 0
        self._buffer += data

    def next(self) -> Frame | None:
        """Return the next whole message, ``None`` when there is none; raises ``RemoteProtocolError``."""
        if self._position == len(self._buffer):
            return None
        found = read_frame(self._buffer, self._position, self._bytes_max)
        if found is None:
            return None
        message, self._position = found
        if self._position > KEPT_BYTES_MAX:  # a large message would be held twice for as long as somebody handles it
            del self._buffer[: self._position]
            self._position = 0
        return message

    def put_back(self, message: Frame) -> None:
        """Undo the last ``next``."""
        if self._position < len(message.raw):
            self._buffer[:0] = message.raw
        else:
            self._position -= len(message.raw)

    def take(self, size: int) -> bytes:
        """Return up to ``size`` of the bytes that are there."""
        data = bytes(self._buffer[self._position : self._position + size])
        self._position += len(data)
        return data


class Call(NamedTuple):
    """A call in incoming form; ``sender`` and ``number`` exist for Async calls only."""

    method: int
    rpc: RpcType
    arguments: bytes = b""
    sender: str = ""
    number: int = 0

    def body(self) -> bytes:
        """Encode from the kind byte on."""
        if self.rpc is RpcType.ASYNC:
            whom = string(self.sender) + zz64(self.number)
            return b"\0%b\0%b%b" % (zz32(self.method), whom, self.arguments)
        return b"\0%b%c%b" % (zz32(self.method), self.rpc, self.arguments)


class Return(NamedTuple):
    """An answer to the Async call ``number``; ``sender`` is who answers."""

    kind: RpcKind
    sender: str
    number: int
    value: bytes = b""

    def body(self) -> bytes:
        """Encode from the kind byte on; ``LocalProtocolError`` for an empty sender, which others read as an Impulse."""
        if not self.sender:
            raise LocalProtocolError("a return value needs the name of its sender")
        return b"%c%b%b%b" % (self.kind, string(self.sender), zz64(self.number), self.value)


def read_rpc(data: Buffer) -> Call | Return:
    """Decode the data of an incoming RPC; raises ``RemoteProtocolError``."""
    kind = _byte(data, 0, "kind", _EXCEPTION)
    if kind:
        sender, number, position = _numbered(data, 1)
        if kind == RpcKind.VOID and position != len(data):
            raise RemoteProtocolError(Reason.TRAILING, f"{len(data) - position} bytes behind a void answer")
        return Return(_KINDS[kind], sender, number, bytes(data[position:]))
    method, position = read_zz32(data, 1)
    rpc = _byte(data, position, "type of call", _IMPULSE)
    if not rpc:
        sender, number, position = _numbered(data, position + 1)
        return Call(method, _RPC_TYPES[rpc], bytes(data[position:]), sender, number)
    return Call(method, _RPC_TYPES[rpc], bytes(data[position + 1 :]))


def call_of(data: Buffer) -> tuple[RpcKind, str, int] | None:
    """Return kind, sender and number of an Async call or an answer, ``None`` for calls that have no number.

    Raises ``RemoteProtocolError``.
    """
    kind, position = _byte(data, 0, "kind", RpcKind.EXCEPTION), 1
    if kind == RpcKind.CALL:
        _, position = read_zz32(data, 1)
        if _byte(data, position, "type of call", RpcType.IMPULSE) != RpcType.ASYNC:
            return None
        position += 1
    sender, number, _ = _numbered(data, position)
    return _KINDS[kind], sender, number


known_name = functools.lru_cache(maxsize=1024)(text)  # of peers, again and again


def _byte(data: Buffer, position: int, what: str, greatest: int) -> int:
    if position >= len(data):
        raise RemoteProtocolError(Reason.SHORT, f"a call without {what}")
    value = data[position]
    if value > greatest:
        raise RemoteProtocolError(Reason.KIND, f"{what} {value}")
    return value


def _numbered(data: Buffer, position: int) -> tuple[str, int, int]:
    """Read a sender and the number of its call."""
    length, start = read_zz32(data, position)
    if not 0 <= length <= NAME_BYTES_MAX:
        raise RemoteProtocolError(Reason.NAME, f"{length} bytes")
    number, position = read_zz64(data, start + length)  # it says if the name is cut off
    return known_name(bytes(data[start : start + length])), number, position


def incoming(rpc: Call | Return) -> bytes:
    """Encode an RPC as the receiver gets it."""
    return frame(Type.RPC, rpc.body())


def outgoing(destination: str, rpc: Call | Return) -> bytes:
    """Encode an RPC as the application sends it; an empty ``destination`` is oneself."""
    name, body = string(destination), rpc.body()
    return b"".join((zz32(len(name) + len(body) + 1), b"\0", name, body))


def split_outgoing(message: Frame) -> tuple[str, bytes, bool]:
    """Return destination, incoming form and whether it is an Impulse; raises ``RemoteProtocolError``."""
    length, start = read_zz32(message.data, 0)
    end = start + length
    if length < 0 or end > len(message.data):
        raise RemoteProtocolError(Reason.LENGTH, f"a destination of {length} bytes")
    if length > NAME_BYTES_MAX:
        raise LimitExceeded("NAME_BYTES_MAX", length, NAME_BYTES_MAX)
    body: Buffer = message.data[end:] if len(message.data) < KEPT_BYTES_MAX else memoryview(message.data)[end:]
    return text(message.data[start:end]), frame(message.type, body), is_impulse(body)


def is_impulse(body: Buffer) -> bool:
    """Tell from the kind byte on whether a message is an Impulse: a call (kind 0) of type 2."""
    if _byte(body, 0, "kind", RpcKind.EXCEPTION) != RpcKind.CALL:
        return False
    _, position = read_zz32(body, 1)
    return _byte(body, position, "type", RpcType.IMPULSE) == RpcType.IMPULSE


def batch(messages: list[bytes], *, impulses: int = 0, count_replayable: bool = True) -> bytes:
    """Pack whole messages as links and records carry them: one bare, more as type 5, with Impulses as type 13.

    A peer that does not know type 13 gets type 5 (``count_replayable=False``).
    """
    if len(messages) == 1:
        return messages[0]
    type_, head = Type.RPC_BATCH, zz32(len(messages))
    if impulses and count_replayable:
        type_, head = Type.COUNT_REPLAYABLE_RPC_BATCH, head + zz32(len(messages) - impulses)
    size = len(head) + sum(map(len, messages)) + 1
    return b"".join((zz32(size), bytes((type_,)), head, *messages))  # each is copied once


def read_batch(message: Frame) -> list[Frame]:
    """Open a batch; anything but calls inside, or other counts than it says: ``RemoteProtocolError``."""
    count, position = read_zz32(message.data, 0)
    replayable: int | None = None
    if message.type == Type.COUNT_REPLAYABLE_RPC_BATCH:
        replayable, position = read_zz32(message.data, position)
    if count < 0 or count > BATCH_COUNT_MAX:
        raise LimitExceeded("BATCH_COUNT_MAX", count, BATCH_COUNT_MAX)
    frames = read_frames(memoryview(message.data)[position:])
    if len(frames) != count:
        raise RemoteProtocolError(Reason.COUNT, f"{count} messages announced, {len(frames)} found")
    for inner in frames:
        if inner.type not in RPC_TYPES:
            raise RemoteProtocolError(Reason.TYPE, f"type {inner.type} in a batch")
    if replayable is not None and replayable != sum(not is_impulse(inner.data) for inner in frames):
        raise RemoteProtocolError(Reason.COUNT, f"{replayable} replayable messages announced, others found")
    return frames


@dataclass(frozen=True, slots=True)
class ReplayFrom:
    """What the receiver of a data link wants next."""

    next: int
    next_replayable: int

    def encode(self) -> bytes:
        """Encode the message."""
        return frame(Type.REPLAY_FROM, zz64(self.next) + zz64(self.next_replayable))

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Decode the data; raises ``RemoteProtocolError``."""
        return cls(*_pair(data))


@dataclass(frozen=True, slots=True)
class Commit:
    """The sender holds what it received up to ``id`` durably."""

    id: int
    replayable_id: int

    def encode(self) -> bytes:
        """Encode the message."""
        return frame(Type.COMMIT, zz64(self.id) + zz64(self.replayable_id))

    @classmethod
    def decode(cls, data: Buffer) -> Self:
        """Decode the data; raises ``RemoteProtocolError``."""
        return cls(*_pair(data))


def _pair(data: Buffer) -> tuple[int, int]:
    first, position = read_zz64(data, 0)
    second, position = read_zz64(data, position)
    _ended(data, position)
    return first, second


def _ended(data: Buffer, position: int) -> None:
    if position != len(data):
        raise RemoteProtocolError(Reason.TRAILING, f"{len(data) - position} bytes")


def trim_to(trim: int) -> bytes:
    """Encode the first message of a control link."""
    return frame(Type.TRIM_TO, zz64(trim))


def read_trim_to(data: Buffer) -> int:
    """Decode it; raises ``RemoteProtocolError``."""
    trim, position = read_zz64(data, 0)
    _ended(data, position)
    return trim


def attach_to(name: str) -> bytes:
    """Encode the wish to talk to ``name``."""
    return frame(Type.ATTACH_TO, utf8(name))


def read_attach_to(data: Buffer) -> str:
    """Decode it; raises ``RemoteProtocolError``."""
    if not 0 < len(data) <= NAME_BYTES_MAX:
        raise RemoteProtocolError(Reason.NAME, f"{len(data)} bytes")
    return text(data)


def checkpoint(size: int) -> bytes:
    """Encode the message that ``size`` raw bytes follow."""
    return frame(Type.CHECKPOINT, zz64(size))


def read_checkpoint(data: Buffer) -> int:
    """Return how many raw bytes follow; a size of exactly eight bytes is the fixed one of the C binding."""
    if len(data) == FIXED_CHECKPOINT_BYTES:
        size = int.from_bytes(data, "little", signed=True)
    else:
        size, position = read_zz64(data, 0)
        _ended(data, position)
    if size < 0:
        raise RemoteProtocolError(Reason.LENGTH, f"a checkpoint of {size} bytes")
    if size > CHECKPOINT_BYTES_MAX:
        raise LimitExceeded("CHECKPOINT_BYTES_MAX", size, CHECKPOINT_BYTES_MAX)
    return size


# The first message of our own binding: a complete Fork of method -3, as the protocol note asks.
OUR_INITIAL_MESSAGE = frame(Type.INITIAL_MESSAGE, incoming(Call(-3, RpcType.FORK)))
