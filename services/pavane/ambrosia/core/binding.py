"""The library's side of the two streams between an application and its coordinator, without I/O.

Bytes of the coordinator go in, events come out one at a time; what the application sends is collected until ``take``.
docs/specs/ambrosia.md 18.2, 18.3.
"""

import enum
from collections import deque
from dataclasses import dataclass

import xxhash

from pavane.ambrosia.wire.batches import read_calls
from pavane.ambrosia.wire.messages import (
    CALL_TYPES,
    OUR_INITIAL_MESSAGE,
    PROGRESS,
    Call,
    Frame,
    Return,
    RpcKind,
    RpcType,
    Type,
    attach_to,
    batch,
    checkpoint,
    frame,
    outgoing,
    read_checkpoint,
    read_frames,
)
from pavane.ambrosia.wire.primitives import Buffer, i64
from pavane.ambrosia.wire.records import RecordBuffer
from pavane.wire import LocalProtocolError, RemoteProtocolError

BATCH_MESSAGES_MAX = 1000
"""Messages in one batch to the coordinator: enough to make the batch's own bytes nothing."""
FIRST_SEQ = -1
"""Of the last record handled, before there was one."""


class Life(enum.Enum):
    """Where the binding is in its life."""

    FRESH = "fresh"
    REPLAYING = "replaying"
    PRIMARY = "primary"


@dataclass(slots=True)  # frozen, each message would pay for it
class Received:
    """A call, or an answer: ``index`` counts the messages within record ``seq``."""

    seq: int
    index: int
    rpc: Call | Return


@dataclass(frozen=True, slots=True)
class FirstStart:
    """The instance begins its first life: its hook runs."""

    seq: int


@dataclass(frozen=True, slots=True)
class Restore:
    """The state of a checkpoint."""

    blob: bytes


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """No event follows until ``checkpoint`` has been called."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """State and code of the next version take over; with ``testing`` the instance goes on replaying."""

    testing: bool


@dataclass(frozen=True, slots=True)
class BecamePrimary:
    """From now on new messages arrive, and Impulses may be sent."""


Event = Received | FirstStart | Restore | CheckpointDue | Upgrade | BecamePrimary


class Binding:
    """One life of one application beside its coordinator.

    ``feed`` takes bytes, ``next`` gives the next event or None when it needs more bytes (or the answer to
    ``CheckpointDue``). What the application sends meanwhile leaves with ``take``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.life = Life.FRESH
        self.committer: int | None = None
        self.seq = FIRST_SEQ
        """Of the last data record whose messages were begun."""
        self.digest = 0
        """XXH64 over all that was sent except Impulses, in order (18.7)."""
        self._received = RecordBuffer()
        self._events: deque[Event] = deque()
        self._frames: deque[Frame] = deque()
        self._calls: deque[Call | Return] = deque()  # of the frame that was opened last
        self._record_seq = FIRST_SEQ
        self._index = 0
        self._blob_bytes = -1  # of the checkpoint that is being received
        self._owes_checkpoint = False
        self._then_primary = False
        self._primary_with_first = False
        self._queued: list[bytes] = []
        self._out: list[bytes] = []
        self.waiting_bytes = 0
        """Of messages since the last ``take``."""
        self._attached = {"", name}

    # In

    def feed(self, data: Buffer) -> None:
        """Take what the coordinator sent."""
        self._received.feed(data)

    def next(self) -> Event | None:
        """Return the next event; raises ``RemoteProtocolError`` that names type, seq and state."""
        while not self._owes_checkpoint or self._events:
            if self._calls:
                received = Received(self.seq, self._index, self._calls.popleft())
                self._index += 1
                return received
            if self._events:
                return self._events.popleft()
            if self._blob_bytes >= 0:
                if len(self._received) < self._blob_bytes:
                    return None
                blob = self._received.take(self._blob_bytes)
                self._blob_bytes = -1
                return Restore(blob)
            if self._frames:
                self._message(self._frames.popleft())
            elif not self._record():
                return None
        return None

    def _record(self) -> bool:
        """Begin the next record, if it is here as a whole."""
        record = self._received.next()
        if record is None:
            return False
        committer, seq = record.header.committer, record.header.seq
        if self.committer is None:
            self.committer = committer
        elif committer != self.committer:
            raise RemoteProtocolError("committer", f"{committer} instead of {self.committer} after record {self.seq}")
        if seq >= 0:
            if self.seq >= 0 and seq != self.seq + 1:
                raise RemoteProtocolError("sequence", f"record {seq} follows record {self.seq}")
            self.seq = seq
        self._record_seq, self._index = seq, 0
        self._frames.extend(read_frames(record.body))
        return True

    def _message(self, message: Frame) -> None:
        if message.type not in CALL_TYPES:
            self._control(message)
        elif self.life is Life.FRESH:
            raise self._unexpected(message.type)
        else:
            self._calls.extend(read_calls(message))

    def _control(self, message: Frame) -> None:
        match message.type, self.life:
            case Type.CHECKPOINT, Life.FRESH:
                self._blob_bytes = read_checkpoint(message.data)
                self.life = Life.REPLAYING
            case ((Type.TAKE_BECOMING_PRIMARY_CHECKPOINT | Type.TAKE_CHECKPOINT), Life.FRESH):
                self._out.append(OUR_INITIAL_MESSAGE)
                self._primary_with_first = message.type == Type.TAKE_CHECKPOINT  # very old coordinators
                self.life = Life.REPLAYING
                self._due(then_primary=not self._primary_with_first)
            case Type.INITIAL_MESSAGE, (Life.REPLAYING | Life.PRIMARY) if self._record_seq == 0 and self._index == 0:
                self._index += 1
                self._events.append(FirstStart(self.seq))
                if self._primary_with_first:
                    self._become_primary()
            case Type.TAKE_CHECKPOINT, (Life.REPLAYING | Life.PRIMARY):
                self._due(then_primary=False)
            case Type.TAKE_BECOMING_PRIMARY_CHECKPOINT, Life.REPLAYING:
                self._due(then_primary=True)
            case Type.BECOMING_PRIMARY, Life.REPLAYING:
                self._become_primary()
            case Type.UPGRADE_TAKE_CHECKPOINT, Life.REPLAYING:
                self._events.append(Upgrade(testing=False))
                self._due(then_primary=True)
            case Type.UPGRADE_SERVICE, Life.REPLAYING if self.seq < 0:
                self._events.append(Upgrade(testing=True))
            case _:
                raise self._unexpected(message.type)

    def _due(self, *, then_primary: bool) -> None:
        self._events.append(CheckpointDue())
        self._owes_checkpoint, self._then_primary = True, then_primary

    def _become_primary(self) -> None:
        self.life = Life.PRIMARY
        self._then_primary = self._primary_with_first = False
        self._events.append(BecamePrimary())

    def _unexpected(self, type_: int) -> RemoteProtocolError:
        return RemoteProtocolError("type", f"message type {type_} after record {self.seq} in state {self.life.value}")

    # Out

    def call(self, to: str, method: int, number: int, arguments: bytes) -> None:
        """Send an Async call; its answer comes to this instance with the same number."""
        self._send(to, Call(method, RpcType.ASYNC, arguments, self.name, number))

    def fork(self, to: str, method: int, arguments: bytes) -> None:
        """Send a Fork."""
        self._send(to, Call(method, RpcType.FORK, arguments))

    def answer(self, to: str, number: int, kind: RpcKind, value: bytes) -> None:
        """Answer the Async call ``number`` of ``to``."""
        self._send(to, Return(kind, self.name, number, value))

    def impulse(self, to: str, method: int, arguments: bytes) -> None:
        """Send an Impulse, usually to oneself; raises ``LocalProtocolError`` unless primary."""
        if self.life is not Life.PRIMARY:
            raise LocalProtocolError(f"an Impulse in state {self.life.value}")
        self._attach(to)
        self._queue(self._outgoing(to, Call(method, RpcType.IMPULSE, arguments)))

    def progress(self) -> None:
        """Say how far the replay is; a coordinator that does not know this drops it, as it does every Impulse then."""
        handled = self.seq - 1 if self._calls or self._frames or self._events else self.seq
        self._queue(self._outgoing("", Call(PROGRESS, RpcType.IMPULSE, i64(handled))))

    def _send(self, to: str, rpc: Call | Return) -> None:
        self._attach(to)
        message = self._outgoing(to, rpc)
        self.digest = xxhash.xxh64_intdigest(self.digest.to_bytes(8, "little") + message)
        self._queue(message)

    def _attach(self, to: str) -> None:
        if to not in self._attached:
            self._attached.add(to)
            self._flush()
            self._out.append(attach_to(to))

    def _outgoing(self, to: str, rpc: Call | Return) -> bytes:
        return outgoing("" if to == self.name else to, rpc)

    def _queue(self, message: bytes) -> None:
        self._queued.append(message)
        self.waiting_bytes += len(message)
        if len(self._queued) >= BATCH_MESSAGES_MAX:
            self._flush()

    def _flush(self) -> None:
        if self._queued:
            self._out.append(batch(self._queued, count_replayable=False))
            self._queued.clear()

    def checkpoint(self, blob: bytes) -> None:
        """Answer ``CheckpointDue``: everything sent so far leaves before it."""
        if not self._owes_checkpoint:
            raise LocalProtocolError("nobody asked for a checkpoint")
        self._flush()
        self._out += (checkpoint(len(blob)), blob)
        self._owes_checkpoint = False
        if self._then_primary:
            self._become_primary()

    def ask_checkpoint(self) -> None:
        """Ask the coordinator for a checkpoint now."""
        self._flush()
        self._out.append(frame(Type.TAKE_CHECKPOINT))

    def take(self) -> bytes:
        """Return what is to be written to the coordinator, in order."""
        self._flush()
        self.waiting_bytes = 0
        out = b"".join(self._out)
        self._out.clear()
        return out
