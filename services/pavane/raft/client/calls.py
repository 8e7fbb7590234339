"""What a client can ask, and how each answer is to be taken: one class per request (docs/specs/raft.md 3.2, 4.4, 10).

A call is pure data and judgement. It never sends: ``frames`` says what to send (again), ``judge`` what a reply means.
"""

import itertools
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from pavane.raft.errors import (
    Code,
    Compacted,
    Expired,
    Overloaded,
    RaftError,
    Refused,
    ReqidTaken,
    Unreachable,
    Unsupported,
)
from pavane.raft.wire.decoder import Drop, Reply, Request, decode_reply
from pavane.raft.wire.entry import PeerList, entry_data, entry_reqid, entry_term, entry_type
from pavane.raft.wire.frames import Frame, Frames
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import PvHello, PvHelloReply, PvReply, PvStatus, PvTransfer
from pavane.raft.wire.pv_update import UpdateItem
from pavane.raft.wire.replies import (
    ConfigStatus,
    ConfigUpdateReply,
    EntriesStatus,
    RequestBroadcastUrlReply,
    RequestConfigReply,
    RequestEntriesReply,
    RequestLogInfoReply,
    RequestUpdateReply,
    UpdateStatus,
)
from pavane.raft.wire.requests import (
    ClientDispatch,
    ConfigUpdate,
    RequestBroadcastUrl,
    RequestConfig,
    RequestEntries,
    RequestLogInfo,
    RequestUpdate,
)

CONFIG_BUSY_S = 1.0  # before a configuration change is asked for again while another one is under way
BEHIND_REPEATS = 1  # a leader behind our last entry is asked once more, in case it is catching up (1.2 D17)
BEHIND_REPEAT_S = 0.5
HELLO_VERSION = 1

_OK = int(Code.OK)  # of every update; a member of an enumeration costs ten times a global with Python 3.11
_CODE_NAMES = {code.value: code.name for code in Code}

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Pending:
    """The server has the request; wait on. With ``repeat_after_s`` send it again to the same peer after that time."""

    repeat_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The server does not lead; ``leader`` is the peer id that it names, if it knows one."""

    leader: str | None


class Done(NamedTuple, Generic[Result]):
    """The call has its result."""

    value: Result


@dataclass(frozen=True, slots=True)
class Failed:
    """The call has ended with an error."""

    error: RaftError


Verdict: TypeAlias = Pending | Elsewhere | Done[Result] | Failed | None
"""What a reply means; ``None``: it is no answer to this call, ignore it."""


class Call(ABC, Generic[Result]):
    """One logical request with one id over all its repetitions.

    ``url`` names the only peer to ask; ``None`` means the leader. ``timeout_s`` is for all of the call, or, for one
    that is ``streaming``, for the silence between two messages. ``silence_s`` is the silence after which its server
    counts as gone, if that is not the client's usual one. The fields after these belong to the procedure.
    """

    streaming: ClassVar[bool] = False
    silence_s: ClassVar[float] = 0.0
    request: Request  # what it sends, the same each time, unless it makes its own ``frames``
    answer: ClassVar[type[Reply]]  # what answers it, unless it judges frames itself
    names_id = False  # whether the caller needs the id to repeat it, if nobody has answered
    once = False  # whether it may be sent one time only
    repeats = False  # whether the caller gave the id, which an earlier call may have sent
    item: UpdateItem | None = None  # what it is in a pv.update, if it can be in one

    def __init__(self, call_id: bytes, timeout_s: float, url: str | None = None) -> None:
        self.id = call_id
        self.url = url
        self.timeout_s = timeout_s
        self.started_s = 0.0
        self.deadline_s = 0.0
        self.heard_s = 0.0
        self.repeat_at_s: float | None = None
        self.endpoint: str | None = None
        self.attempts = 0

    @property
    def waiting(self) -> bool:
        """Whether the server owes us something: only then silence counts."""
        return True

    @property
    def sent_before(self) -> bool:
        """Whether the request may have reached a server before it was sent last."""
        return self.repeats or self.attempts > 1

    def frames(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames to send behind the id; called once per repetition."""
        return self.request.encode(ident)

    def judge(self, frames: Frames) -> Verdict[Result]:
        """Take the frames behind the id of a reply; what does not decode is none to this call."""
        reply = decode_reply(self.answer, frames)
        return None if isinstance(reply, Drop) else self.take(reply)

    def take(self, reply: Any) -> Verdict[Result]:
        """Take an ``answer``."""
        raise NotImplementedError

    def timed_out(self, tried: tuple[str, ...], elapsed_s: float) -> RaftError:
        """Return the error of a call that found no end in its time."""
        return Unreachable(tried, elapsed_s, self.id if self.names_id else None)


class UpdateCall(Call[int]):
    """``=``; the result is the index of the entry."""

    names_id = True
    answer = RequestUpdateReply

    def __init__(self, reqid: bytes, data: Frame, timeout_s: float) -> None:
        super().__init__(reqid, timeout_s)
        self.item: UpdateItem = UpdateItem(reqid, data)

    def frames(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the same bytes every time."""
        return RequestUpdate(self.item.data).encode(ident)

    def judge_result(self, code: int, value: int, leader: str | None) -> Verdict[int]:
        """Take one result of a ``pv.update`` (4.4)."""
        if code == _OK:
            return Done(value)
        match code:
            case Code.PENDING:
                return Pending()
            case Code.NOT_LEADER:
                return Elsewhere(leader)
            case Code.BUSY:
                return Pending(repeat_after_s=value / 1000)
            case Code.EXPIRED:
                return Failed(Expired(self.id, sent_before=self.sent_before))
            case Code.ID_TAKEN:
                return Failed(ReqidTaken(self.id, sent_before=self.sent_before))
            case _:
                return Failed(_code_error(PvReply(code)))

    def take(self, reply: RequestUpdateReply) -> Verdict[int]:
        """Take a reply of 10.2."""
        match reply.status:
            case UpdateStatus.ACCEPTED:
                return Pending()
            case UpdateStatus.DONE:
                return Done(reply.index)
            case UpdateStatus.NOT_LEADER:
                return Elsewhere(reply.leader)
            case UpdateStatus.EXPIRED:
                return Failed(Expired(self.id, sent_before=self.sent_before))


class ChangeMembersCall(Call[int]):
    """``&``; the result is the index of Cold,new."""

    names_id = True
    answer = ConfigUpdateReply

    def __init__(self, reqid: bytes, peers: PeerList, timeout_s: float) -> None:
        super().__init__(reqid, timeout_s)
        self.request = ConfigUpdate.of(peers)

    def take(self, reply: ConfigUpdateReply) -> Verdict[int]:
        """Take a reply of 10.6."""
        match reply.status, reply.argument:
            case ConfigStatus.ACCEPTED, int() as index:
                return Done(index)
            case ConfigStatus.ACCEPTED, _:
                return Pending()
            case ConfigStatus.NOT_LEADER, str() as leader:
                return Elsewhere(leader)
            case ConfigStatus.NOT_LEADER, _:
                return Elsewhere(None)
            case ConfigStatus.ARGUMENT, {"name": str() as name, "message": str() as message}:
                return Failed(Refused(reply.status, f"{name}: {message}"))
            case ConfigStatus.ARGUMENT, _:
                return Failed(Refused(reply.status, "the configuration is not acceptable"))
            case ConfigStatus.BUSY, _:
                return Pending(repeat_after_s=CONFIG_BUSY_S)
            case _:
                return Failed(Expired(self.id, sent_before=self.sent_before))


class ConfigurationCall(Call[RequestConfigReply]):
    """``^``, asked of the leader."""

    request = RequestConfig()
    answer = RequestConfigReply

    def take(self, reply: RequestConfigReply) -> Verdict[RequestConfigReply]:
        """Take any well-formed answer: a peer gives it in every role."""
        return Done(reply)


class BroadcastUrlCall(Call[str | None]):
    """``*``, asked of the leader."""

    request = RequestBroadcastUrl()
    answer = RequestBroadcastUrlReply

    def take(self, reply: RequestBroadcastUrlReply) -> Verdict[str | None]:
        """Take the url: a peer tells it in every role."""
        return Done(reply.url)


class LogInfoCall(Call[RequestLogInfoReply]):
    """``%``."""

    request = RequestLogInfo()
    answer = RequestLogInfoReply

    def take(self, reply: RequestLogInfoReply) -> Verdict[RequestLogInfoReply]:
        """Take any well-formed answer from a peer that was named, else only the leader's."""
        return Done(reply) if self.url is not None or reply.is_leader else Elsewhere(reply.leader)


class StatusCall(Call[dict[str, Value]]):
    """``pv.status`` of one peer."""

    request = PvStatus()
    answer = PvReply

    def take(self, reply: PvReply) -> Verdict[dict[str, Value]]:
        """Take the map."""
        if reply.code == Code.OK and isinstance(reply.value, dict):
            return Done(reply.value)
        return Failed(_code_error(reply))


class ClockCall(Call[int]):
    """``pv.hello``, asked of the leader for its clock: Unix milliseconds. Only servers of ours answer."""

    answer = PvHelloReply

    def frames(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the request; its id is unique, so it is the nonce as well."""
        return PvHello("", 0, self.id, {"v": HELLO_VERSION, "feat": 0}).encode(ident)

    def take(self, reply: PvHelloReply) -> Verdict[int]:
        """Take the time of a server."""
        if reply.nonce != self.id:
            return None
        now_ms = reply.info.get("now")
        return Done(now_ms) if isinstance(now_ms, int) else None


class DispatchCall(Call[tuple[Frame, ...]]):
    """A request that only the application's state machine understands (10.7); the result are the frames it answers."""

    def __init__(
        self, call_id: bytes, kind: bytes, arguments: tuple[Frame, ...], timeout_s: float, *, idempotent: bool
    ) -> None:
        super().__init__(call_id, timeout_s)
        self.request = ClientDispatch(kind, arguments)
        self.once = not idempotent

    def judge(self, frames: Frames) -> Verdict[tuple[Frame, ...]]:
        """Take any reply as the result."""
        return Done(tuple(frames))


class TransferCall(Call[str]):
    """``pv.transfer``; the result is the id of the new leader."""

    answer = PvReply

    def __init__(self, call_id: bytes, target: str | None, timeout_s: float) -> None:
        super().__init__(call_id, timeout_s)
        self._target = target
        self.request = PvTransfer(target)

    def take(self, reply: PvReply) -> Verdict[str]:
        """Take a reply; a peer that already follows the target says that an earlier attempt has succeeded."""
        match reply.code, reply.value:
            case Code.OK, str() as leader:
                return Done(leader)
            case Code.PENDING, _:
                return Pending()
            case Code.NOT_LEADER, str() as leader:
                moved = leader == self._target or (self._target is None and self.attempts > 1)
                return Done(leader) if moved else Elsewhere(leader)
            case Code.NOT_LEADER, _:
                return Elsewhere(None)
            case _:
                return Failed(_code_error(reply))


BatchT = TypeVar("BatchT")


class StreamCall(Call[None], Generic[BatchT]):
    """A request that is answered by many messages: they wait in ``batches`` for the reader, who acknowledges each."""

    streaming: ClassVar[bool] = True

    def __init__(self, call_id: bytes, timeout_s: float) -> None:
        super().__init__(call_id, timeout_s)
        self.batches: deque[BatchT] = deque()

    @abstractmethod
    def acknowledgement(self, batch: BatchT, ident: bytes) -> tuple[Frame, ...] | None:
        """Return the frames that acknowledge ``batch``, or ``None`` if its stream has ended."""

    @abstractmethod
    def stop(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames that end the stream at the server."""


@dataclass(slots=True)  # a frozen one takes three times as long to make, and a log has millions
class Entry:
    """One entry of the log as a reader sees it; its fields are read out of the received ``frame`` when asked for."""

    index: int
    frame: Frame

    @property
    def reqid(self) -> bytes:
        """The 12-byte request id; zeros if no client asked for the entry."""
        return entry_reqid(self.frame)

    @property
    def type(self) -> int:
        """The type byte; ``EntryType`` names those that mean something."""
        return entry_type(self.frame)

    @property
    def term(self) -> int:
        """The term of the leader that appended the entry."""
        return entry_term(self.frame)

    @property
    def data(self) -> memoryview:
        """The data as a view of the frame."""
        return entry_data(self.frame)


@dataclass(frozen=True, slots=True)
class Batch:
    """One message of a stream: its new entries, and what acknowledges it."""

    entries: tuple[Entry, ...]
    index: int
    stream: int


class EntriesCall(StreamCall[Batch]):
    """``<``: what the reader acknowledges opens the server's window (10.4)."""

    answer = RequestEntriesReply

    def __init__(self, call_id: bytes, after: int, count: int | None, timeout_s: float) -> None:
        super().__init__(call_id, timeout_s)
        self._last = after
        self._end = None if count is None else after + count
        self._stream = 0
        self._unacknowledged = 0
        self._behind = 0

    @property
    def waiting(self) -> bool:
        """Nothing is owed while the reader holds messages back."""
        return self._unacknowledged == 0

    def frames(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the request for what is missing; it begins a new stream."""
        self._stream += 1
        self._unacknowledged = 0
        count = None if self._end is None else self._end - self._last
        return RequestEntries(self._last, count).encode(ident)

    def acknowledgement(self, batch: Batch, ident: bytes) -> tuple[Frame, ...] | None:
        """Return the frames that acknowledge ``batch``, or ``None`` if its stream has ended."""
        if batch.stream != self._stream:
            return None
        self._unacknowledged -= 1
        return RequestEntries(batch.index).encode(ident)

    def stop(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames that end the stream at the server."""
        return RequestEntries(self._last, 0).encode(ident)

    def take(self, reply: RequestEntriesReply) -> Verdict[None]:
        """Take one message of the stream; entries that we have are skipped, a gap begins a new stream."""
        if reply.status == EntriesStatus.NOT_LEADER:
            return Elsewhere(reply.leader)
        if reply.status == EntriesStatus.SNAPSHOT:
            return Failed(Compacted(reply.index + 1))
        if reply.status == EntriesStatus.LAST and reply.index < self._last and self._behind < BEHIND_REPEATS:
            self._behind += 1
            return Pending(repeat_after_s=BEHIND_REPEAT_S)
        first = reply.index - len(reply.entries) + 1
        if reply.entries and first > self._last + 1:
            return Pending(repeat_after_s=0.0)
        return self._take(reply, first)

    def _take(self, reply: RequestEntriesReply, first: int) -> Verdict[None]:
        known = max(0, self._last + 1 - first)
        frames = reply.entries[known : None if self._end is None else self._end + 1 - first]
        entries = tuple(map(Entry, itertools.count(first + known), frames))
        self._last += len(entries)
        self._unacknowledged += 1
        self.batches.append(Batch(entries, reply.index, self._stream))
        if reply.status == EntriesStatus.LAST or self._last == self._end:
            return Done(None)
        return Pending()


def _code_error(reply: PvReply) -> RaftError:
    match reply.code, reply.value:
        case Code.BUSY, int() as retry_after_ms:
            return Overloaded(retry_after_ms)
        case Code.UNSUPPORTED, _:
            return Unsupported("the server does not support this request")
        case code, str() as text:
            return Refused(code, text)
        case code, _:
            return Refused(code, _CODE_NAMES.get(code, "a code that this client does not know"))
