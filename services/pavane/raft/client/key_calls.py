"""The requests of a key-value machine and how each answer is to be taken (docs/specs/raft.md 4.4, 12.4–12.7)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pavane.raft.client.calls import Call, Done, Elsewhere, Failed, Pending, StreamCall, Verdict
from pavane.raft.errors import (
    Behind,
    Code,
    Compacted,
    Expired,
    RaftError,
    Refused,
    ReqidTaken,
    ResultLost,
    Unreachable,
    Unsupported,
)
from pavane.raft.machines.commands import ReadOp, op_fields
from pavane.raft.machines.history import Event, Watch
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import PvKv, PvLease, PvRead, PvReply, PvWatch, PvWatchAcknowledge, PvWatchReply

_CODE_NAMES = {code.value: code.name for code in Code}
_ADVICE: Mapping[int, str] = {
    Code.TOO_LARGE: "split what is larger than this limit",
    Code.NO_SPACE: "the store holds this many already; delete what nobody needs",
    Code.NO_LEASE: "this lease has ended; take a new one",
    Code.NO_NODE: "there is no such node; create it first",
    Code.NODE_EXISTS: "there is such a node already",
    Code.BAD_VERSION: "the node has another version by now; read it again",
    Code.NOT_EMPTY: "the node has children; remove them first",
    Code.EPHEMERAL_PARENT: "this node goes with its lease and can have no children",
}
"""What a refusal means to who asked; other codes say it by their argument."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An applied command or a read: at ``revision`` it came to ``value`` as 12.3 writes it."""

    revision: int
    value: Any


class KeyCall(Call[Outcome]):
    """One that is answered by ``PvReply``."""

    answer = PvReply

    def take(self, reply: PvReply) -> Verdict[Outcome]:
        """Take a reply: of an applied command the whole result, else a code and its argument."""
        match reply.code, reply.value:
            case Code.PENDING, _:
                return Pending()
            case Code.NOT_LEADER, leader:
                return Elsewhere(leader if isinstance(leader, str) else None)
            case Code.BUSY, int() as retry_after_ms:
                return Pending(repeat_after_s=retry_after_ms / 1000)
            case Code.EXPIRED, _:
                return Failed(Expired(self.id, sent_before=self.sent_before))
            case Code.ID_TAKEN, _:
                return Failed(ReqidTaken(self.id, sent_before=self.sent_before))
            case Code.OK, value:
                return self._done(value)
            case code, [_, _, argument]:
                return Failed(refusal(code, argument))
            case code, argument:
                return Failed(refusal(code, argument))

    def _done(self, value: Value) -> Verdict[Outcome]:
        match value:
            case [Code.OK, int(revision), found]:
                return Done(Outcome(revision, found))
        return None


class CommandCall(KeyCall):
    """``pv.kv``: the same bytes and id over all repetitions, so that it takes effect once and its result is told."""

    names_id = True

    def __init__(self, reqid: bytes, command: bytes, timeout_s: float) -> None:
        super().__init__(reqid, timeout_s)
        self.request = PvKv(command)


class ReadCall(KeyCall):
    """``pv.read``: of the leader it sees everything that was acknowledged before it was asked.

    Of the peer at ``url`` it sees what that one has applied, which must be ``revision`` or later: ``Behind`` if not.
    """

    def __init__(
        self, call_id: bytes, ops: Sequence[ReadOp], timeout_s: float, url: str | None = None, revision: int = 0
    ) -> None:
        super().__init__(call_id, timeout_s, url)
        self._revision = revision
        fields: list[Value] = [op_fields(op) for op in ops]
        self.request = PvRead([0, fields] if url is None else [1, fields, revision])

    def take(self, reply: PvReply) -> Verdict[Outcome]:
        """Take a reply; a peer that was removed names the leader, which is not the one that was to be asked."""
        verdict = super().take(reply)
        if self.url is not None and isinstance(verdict, Elsewhere):
            return Failed(Unreachable((self.url,), 0.0))
        if self._revision and isinstance(verdict, Pending):
            return Failed(Behind(self._revision))
        return verdict


class KeepAliveCall(KeyCall):
    """``pv.lease``; the value is an array of [lease, milliseconds granted; 0 if it has ended]."""

    def __init__(self, call_id: bytes, leases: Sequence[int], timeout_s: float) -> None:
        super().__init__(call_id, timeout_s)
        self.request = PvLease(list(leases))

    def _done(self, value: Value) -> Verdict[Outcome]:
        match value:
            case [[int(), int()], *_]:
                return Done(Outcome(0, value))
        return None


@dataclass(frozen=True, slots=True)
class Changes:
    """What one command did to what is watched. Without ``events``: nothing happened up to ``revision``."""

    revision: int
    events: tuple[Event, ...] = ()


class WatchCall(StreamCall[Changes]):
    """``pv.watch``, begun anew behind what was read whenever the server is lost or a message was.

    The server is asked for signs of life, so its silence tells that it, or the stream, is gone.
    """

    silence_s: ClassVar[float] = 2.5  # signs of life come every second at the latest
    answer = PvWatchReply

    def __init__(self, call_id: bytes, watch: Watch, timeout_s: float) -> None:
        super().__init__(call_id, timeout_s)
        self._watch = replace(watch, progress=True)
        self._next = watch.first
        self._expected = 0  # what the next message says of the one before it, if none is lost
        self._begun = False  # the first message of the stream that was asked for last has come
        self._parts: list[Event] = []
        self._unacknowledged = 0

    @property
    def waiting(self) -> bool:
        """Nothing is owed while the reader holds messages back."""
        return self._unacknowledged == 0

    def frames(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the request for what is missing."""
        self._unacknowledged = 0
        self._begun = False
        return PvWatch(replace(self._watch, first=self._next).encode()).encode(ident)

    def acknowledgement(self, batch: Changes, ident: bytes) -> tuple[Frame, ...] | None:
        """Return the frames that acknowledge ``batch``."""
        self._unacknowledged = max(0, self._unacknowledged - 1)
        return PvWatchAcknowledge(batch.revision, proceed=True).encode(ident)

    def stop(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames that end the stream at the server."""
        return PvWatchAcknowledge(max(0, self._next - 1), proceed=False).encode(ident)

    def take(self, reply: PvWatchReply) -> Verdict[None]:
        """Take one message; one behind a message that we miss begins a new stream, what we have is skipped."""
        match reply.code, reply.events:
            case ((Code.OK | Code.PENDING), _):
                return self._take(reply)
            case Code.BUSY, [int() as retry_after_ms]:
                return Pending(repeat_after_s=retry_after_ms / 1000)
            case Code.NOT_LEADER, [leader]:
                return Elsewhere(leader if isinstance(leader, str) else None)
            case Code.COMPACTED, _:
                return Failed(Compacted(reply.revision))
            case code, [argument]:
                return Failed(refusal(code, argument))
        return None

    def _take(self, reply: PvWatchReply) -> Verdict[None]:
        if reply.previous == 0:
            self._begun = True
            self._parts.clear()
        elif not self._begun:
            return None  # of the stream before
        elif reply.previous != self._expected:
            self._begun = False
            return Pending(repeat_after_s=0.0)
        try:
            self._parts += [Event(*event) for event in reply.events]  # type: ignore[misc]
        except TypeError:
            return None
        self._expected = reply.revision + len(self._parts)
        if reply.code == Code.OK:
            self._expected = reply.revision
            known = reply.revision < self._next
            events, self._parts = () if known else tuple(self._parts), []
            # Without events only what lies behind the revision is still to come; with them that is so as well.
            self._next = max(self._next, reply.revision + 1)
            self._unacknowledged += 1
            self.batches.append(Changes(reply.revision, events))
        return Pending()


def refusal(code: int, argument: Value) -> RaftError:
    """Return the error for a code of 4.4 that ends a call."""
    match code, argument:
        case Code.UNSUPPORTED, _:
            return Unsupported("the state machine of this cluster, or its level, does not have this command")
        case Code.RESULT_LOST, int() as index:
            return ResultLost(index)
    shown = argument.decode(errors="backslashreplace") if isinstance(argument, bytes) else argument
    advice = f": {_ADVICE[code]}" if code in _ADVICE else ""
    return Refused(code, f"{_CODE_NAMES.get(code, 'unknown code')} {shown}{advice}")
