"""What a coordinator counts, and which message is legal where (docs/specs/ambrosia.md 6.9, 9, 11.6, 13).

Two numberings run side by side. *All* counts every message of a pair from 1; *replayable* leaves Impulses out, because
a sender that restarts cannot produce them again. ``Output`` keeps both and repairs the first from the second.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

from pavane.ambrosia.errors import Reason
from pavane.ambrosia.wire.batches import count_calls
from pavane.ambrosia.wire.files import PAGE_BYTES, CheckpointHead, Page, SavedOutput
from pavane.ambrosia.wire.messages import (
    CALL_TYPES,
    RPC_TYPES,
    Commit,
    ReplayFrom,
    Type,
    is_impulse,
    read_frames,
)
from pavane.ambrosia.wire.records import LogRecord, Watermarks
from pavane.wire import ProtocolError, RemoteProtocolError

OURSELVES = ""  # the name of one's own inputs and outputs, in files and on the wire


class Phase(StrEnum):
    """How far a coordinator is with its application."""

    INIT = "Init"  # the first 11 was sent
    FIRST = "First"  # InitialMessage taken, Checkpoint awaited
    REPLAY = "Replay"
    CHECKPOINT = "Ckpt"  # 2, 10 or 11 was sent
    LIVE = "Live"
    DEBUG = "Debug"


class Sent(StrEnum):
    """What an application may send, as table 6.9 sorts it."""

    INITIAL = "InitialMessage"
    CHECKPOINT = "Checkpoint"
    REPLAYABLE = "call"
    IMPULSE = "Impulse"
    ATTACH = "AttachTo"
    TAKE_CHECKPOINT = "TakeCheckpoint"
    OTHER = "other"
    CLOSED = "end of stream"


class Action(Enum):
    """What a coordinator does with it."""

    KEEP = "keep verbatim"
    STORE = "store the checkpoint"
    NUMBER = "number and send"
    ATTACH = "attach"
    ROTATE = "begin a new log and checkpoint"
    DROP = "drop and count"
    IGNORE = "ignore"
    UNEXPECTED = "fatal 0"
    LOST = "fatal 4"
    LEAVE = "exit 0"


_PHASES = (Phase.INIT, Phase.FIRST, Phase.REPLAY, Phase.CHECKPOINT, Phase.LIVE, Phase.DEBUG)
_F, _D, _N, _I = Action.UNEXPECTED, Action.DROP, Action.NUMBER, Action.IGNORE
_ROWS: dict[Sent, tuple[Action, ...]] = {
    #                        Init         First         Replay         Ckpt          Live           Debug
    Sent.INITIAL: (Action.KEEP, _F, _F, _F, _F, _F),
    Sent.CHECKPOINT: (_F, Action.STORE, _F, Action.STORE, _F, _F),
    Sent.REPLAYABLE: (_F, _F, _N, _N, _N, _D),
    Sent.IMPULSE: (_F, _F, _D, _N, _N, _D),
    Sent.ATTACH: (_F, _F, Action.ATTACH, Action.ATTACH, Action.ATTACH, _I),
    Sent.TAKE_CHECKPOINT: (_F, _F, _D, _D, Action.ROTATE, _I),
    Sent.OTHER: (_F, _F, _F, _F, _F, _F),
    Sent.CLOSED: (Action.LOST,) * 5 + (Action.LEAVE,),
}
LB_TABLE: dict[tuple[Sent, Phase], Action] = {
    (sent, phase): action for sent, row in _ROWS.items() for phase, action in zip(_PHASES, row, strict=True)
}
"""Table 6.9. A follower that takes a checkpoint is in Ckpt too; it drops Impulses (``Coordinator``)."""


def sort_sent(type_: int) -> Sent:
    """Sort a message of an application; calls count as replayable until they are opened."""
    if type_ in RPC_TYPES:
        return Sent.REPLAYABLE
    return _SORTS.get(type_, Sent.OTHER)


_SORTS: dict[int, Sent] = {
    Type.RPC_BATCH: Sent.REPLAYABLE,
    Type.ATTACH_TO: Sent.ATTACH,
    Type.TAKE_CHECKPOINT: Sent.TAKE_CHECKPOINT,
    Type.CHECKPOINT: Sent.CHECKPOINT,
    Type.INITIAL_MESSAGE: Sent.INITIAL,
}


class End(Enum):
    """Which end of which stream a coordinator holds."""

    DATA_SENDER = "data, sender"
    DATA_RECEIVER = "data, receiver"
    COMMIT_SENDER = "control, sender of Commits"
    COMMIT_RECEIVER = "control, receiver of Commits"


NOTHING: frozenset[int] = frozenset()
STREAM_TABLE: dict[tuple[End, bool], frozenset[int]] = {
    (End.DATA_SENDER, False): frozenset({Type.REPLAY_FROM}),
    (End.DATA_SENDER, True): NOTHING,
    (End.DATA_RECEIVER, False): NOTHING,
    (End.DATA_RECEIVER, True): frozenset(CALL_TYPES),
    (End.COMMIT_SENDER, False): frozenset({Type.TRIM_TO}),
    (End.COMMIT_SENDER, True): NOTHING,
    (End.COMMIT_RECEIVER, False): NOTHING,
    (End.COMMIT_RECEIVER, True): frozenset({Type.COMMIT}),
}
"""Table 11.6: what may come, before and after the greeting of the stream; anything else closes it."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What must survive outside the logs (17.1)."""

    current_version: int = 0
    last_checkpoint: int = 0  # 0: none yet
    last_log: int = 0
    connections: tuple[str, ...] = ()
    restored: int = 0  # when it was made from a backup, in seconds since 1970; 0: it was not (12.5)
    made: Mapping[str, int] | None = None  # calls to each peer that the backup leads to; None: not counted yet
    met: tuple[str, ...] = ()  # peers that hold no other calls


class Diverged(ProtocolError):
    """Two partners contradict each other about what was acknowledged (N9); nothing may be skipped."""


class Message(NamedTuple):
    """A buffered message in incoming form."""

    number: int  # among all
    replayable: int  # among replayables; of an Impulse: that of the one before
    impulse: bool
    raw: bytes


class Output:
    """Messages to one peer that it has not acknowledged, with their numbers (9, N1-N5)."""

    def __init__(self) -> None:
        self.last = 0
        self.last_replayable = 0
        self.trim = -1
        self.replayable_trim = -1
        self.base = 0
        self.joined: int | None = None  # first ReplayFrom of this life; None: numbers of all are guesses
        self.bytes = 0
        self._sent: deque[Message] = deque()  # on the way, perhaps for the second time
        self._waiting: deque[Message] = deque()
        self._next = 0  # the peer has everything below in memory; 0: no stream
        self._early: Commit | None = None  # N4: came before ReplayFrom

    @classmethod
    def restored(cls, saved: SavedOutput) -> "Output":
        """Begin a life: leave Impulses out and number the rest behind what was acknowledged."""
        output = cls()
        output.replayable_trim = saved.replayable_trim
        output.trim = saved.replayable_trim
        output.last = output.last_replayable = max(saved.replayable_trim, 0)
        for page in saved.pages:
            for message in read_frames(page.data):
                if message.type not in RPC_TYPES:
                    raise RemoteProtocolError(Reason.TYPE, f"type {message.type} in a page")
                if not is_impulse(message.data):
                    output.add(message.raw, impulse=False)
        return output

    def __len__(self) -> int:
        return len(self._sent) + len(self._waiting)

    def add(self, raw: bytes, *, impulse: bool) -> None:
        """Number a message; it is kept unless the peer has it for good (N3)."""
        self.last += 1
        if not impulse:
            self.last_replayable += 1
            if self.last_replayable <= self.replayable_trim:
                return
        message = Message(self.last, self.last_replayable, impulse, raw)
        self.bytes += len(raw)
        (self._sent if self.last < self._next else self._waiting).append(message)

    def replay_from(self, wanted: ReplayFrom, *, complete: bool) -> None:
        """Begin a stream at what the peer wants (N2).

        ``complete``: the application has produced again all that it will. Raises ``Diverged`` (N9) and
        ``RemoteProtocolError`` for numbers that no receiver has.
        """
        if not 1 <= wanted.next_replayable <= wanted.next:
            raise RemoteProtocolError(Reason.LENGTH, f"ReplayFrom({wanted.next}, {wanted.next_replayable})")
        if wanted.next_replayable <= self.replayable_trim:
            text = f"it wants call {wanted.next_replayable} again and had acknowledged {self.replayable_trim}"
            raise Diverged(text)
        if complete and self.last_replayable < wanted.next_replayable - 1:
            text = f"it has {wanted.next_replayable - 1} calls, only {self.last_replayable} were made here"
            raise Diverged(text)
        if self.joined is None or wanted.next < self.joined:
            base = wanted.next - wanted.next_replayable
            self._shift(base - self.base)
            self.base, self.joined = base, wanted.next
        self._next = wanted.next
        messages = (*self._sent, *self._waiting)
        self._sent = deque(message for message in messages if message.number < wanted.next)
        self._waiting = deque(message for message in messages if message.number >= wanted.next)
        if self._early is not None:
            early, self._early = self._early, None
            self.commit(early, complete=complete)

    def stop(self) -> None:
        """The stream is gone; what was on the way goes again with the next one."""
        self._next = 0

    @property
    def waits(self) -> bool:
        """Whether anything may go on a stream now."""
        return self._next > 0 and bool(self._waiting)

    def commit(self, commit: Commit, *, complete: bool) -> bool:
        """Free what the peer holds durably (N1); return whether its replayable number grew.

        ``complete`` is that of ``replay_from``: before, a peer may acknowledge what the life before has sent and this
        one has not made again. Raises ``Diverged``.
        """
        if self.joined is None:
            known = self._early or Commit(0, 0)
            self._early = Commit(max(known.id, commit.id), max(known.replayable_id, commit.replayable_id))
            return False
        if complete and (commit.id > self.last or commit.replayable_id > self.last_replayable):
            raise Diverged(f"it acknowledged {commit.id} messages, only {self.last} were sent")
        self.trim = max(self.trim, commit.id)
        return self.trim_replayable(commit.replayable_id)

    def trim_replayable(self, number: int) -> bool:
        """Raise the replayable trim, as a record of the log or a Commit says; return whether it grew."""
        grown = number > self.replayable_trim
        self.replayable_trim = max(self.replayable_trim, number)
        for queue in (self._sent, self._waiting):
            while queue and self._freed(queue[0]):
                self.bytes -= len(queue.popleft().raw)
        return grown

    def take(self, bytes_max: int) -> list[Message]:
        """Return what goes next on the stream, in order, at least one message if any waits, and note it as sent."""
        waiting = self._waiting
        taken: list[Message] = []
        size = 0
        while waiting and self._next:
            size += len(waiting[0].raw)
            if taken and size > bytes_max:
                break
            taken.append(waiting.popleft())
        self._sent.extend(taken)
        return taken

    def put_back(self, messages: list[Message]) -> None:
        """Undo the end of a ``take``."""
        for message in reversed(messages):
            self._sent.pop()
            self._waiting.appendleft(message)

    def saved(self) -> SavedOutput:
        """Return what a checkpoint holds of it (N5)."""
        messages = (*self._sent, *self._waiting)
        trim = messages[0].number - 1 if messages else self.last
        return SavedOutput(self.last, trim, self.replayable_trim, tuple(_pages(messages)))

    def _freed(self, message: Message) -> bool:
        if message.impulse:
            return message.number <= self.trim
        return message.replayable <= self.replayable_trim

    def _shift(self, difference: int) -> None:
        if difference:
            self.last += difference
            for queue in (self._sent, self._waiting):
                moved = [message._replace(number=message.number + difference) for message in queue]
                queue.clear()
                queue.extend(moved)


def _pages(messages: Iterable[Message]) -> Iterable[Page]:
    group: list[Message] = []
    size = 0
    for message in messages:
        if group and size + len(message.raw) > PAGE_BYTES:
            yield _page(group)
            group, size = [], 0
        group.append(message)
        size += len(message.raw)
    if group:
        yield _page(group)


def _page(group: list[Message]) -> Page:
    replayable = sum(not message.impulse for message in group)
    data = b"".join(message.raw for message in group)
    return Page(data, group[-1].number, group[0].number, replayable, replayable)


@dataclass(slots=True)
class Progress:
    """Where a log stands: which record comes next, and how far the inputs are (13)."""

    committer: int
    next_seq: int = 0
    inputs: Watermarks = field(default_factory=dict)
    _held: tuple[int, int] = (0, 0)  # of the inputs: in the checkpoint's pending record, so in the next one again

    @classmethod
    def restored(cls, head: CheckpointHead) -> "Progress":
        """Begin behind a checkpoint; raises ``RemoteProtocolError`` for a pending record that cannot be read."""
        return cls(head.committer, head.next_seq, dict(head.inputs), count_body(head.pending))

    def refuses(self, record: LogRecord) -> Reason | None:
        """Say why ``record`` is not the next one, ``None`` if it is.

        The check of a record does not cover its watermarks, so they must fit the calls in its body.
        """
        if record.committer != self.committer:
            return Reason.COMMITTER
        if record.seq != self.next_seq:
            return Reason.SEQUENCE
        grown = [0, 0]
        for source, (last, replayable) in record.inputs.items():
            before = self.inputs.get(source, (0, 0))
            if last < before[0] or replayable < before[1]:
                return Reason.COUNT
            grown[0] += last - before[0]
            grown[1] += replayable - before[1]
        try:
            calls = count_body(record.body)
        except RemoteProtocolError:
            return Reason.COUNT
        held = self._held
        return None if (calls[0] - held[0], calls[1] - held[1]) == (grown[0], grown[1]) else Reason.COUNT

    def advance(self, record: LogRecord) -> None:
        """Take ``record`` as the next one."""
        self.inputs.update(record.inputs)
        self.next_seq += 1
        self._held = (0, 0)


def count_body(body: bytes) -> tuple[int, int]:
    """Return how many messages, and how many replayable ones, a record holds; its InitialMessage counts 0."""
    every = replayable = 0
    for message in read_frames(body):
        if message.type == Type.INITIAL_MESSAGE:
            continue
        if message.type not in CALL_TYPES:
            raise RemoteProtocolError(Reason.TYPE, f"type {message.type} in a record")
        counted = count_calls(message)
        every += counted[0]
        replayable += counted[1]
    return every, replayable
