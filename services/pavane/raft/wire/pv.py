"""Messages among our own programs, type ``pv.…`` (docs/specs/raft.md 4).

Same conventions as ``requests`` and ``replies``: ``encode(ident)`` gives the frames behind the id; requests decode from
all frames, replies from those behind the id.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

from pavane.raft.errors import DropReason
from pavane.raft.wire.entry import check_configuration, decode_blob, encode_blob
from pavane.raft.wire.frames import (
    NONCE_BYTES,
    Frame,
    Frames,
    check_data,
    decode_bool,
    decode_string,
    decode_uint,
    encode_bool,
    encode_uint,
    malformed,
)
from pavane.raft.wire.msgpack import Value, decode, encode_pv
from pavane.raft.wire.replies import decode_leader
from pavane.raft.wire.requests import SnapshotChunk
from pavane.raft.wire.rows import (
    BOOL,
    BYTES,
    CHANGE,
    RPC,
    TEXT,
    UINT,
    UINT_OR_NONE,
    Field,
    ReplyRow,
    RequestRow,
    as_it_is,
)

PREFIX = b"pv."
HELLO_MAGIC = b"pavane-raft"

FEATURE_APPEND = 1
FEATURE_VOTE = 2
FEATURE_SNAPSHOT = 4
FEATURE_FOLLOW = 8
FEATURE_KV = 16
FEATURE_HOST_NAMES = 32
FEATURE_UPDATE = 64


def _decode_nonce(frame: Frame) -> bytes:
    if len(frame) != NONCE_BYTES:
        malformed(DropReason.SIZE)
    return bytes(frame)


def _decode_map(frame: Frame) -> dict[str, Value]:
    value = decode(frame)
    if not isinstance(value, dict):
        malformed(DropReason.JSON)
    return value


def _decode_list(frame: Frame) -> list[Value]:
    value = decode(frame)
    if not isinstance(value, list):
        malformed(DropReason.JSON)
    return value


NONCE = Field(as_it_is, _decode_nonce)
MAP = Field(encode_pv, _decode_map)
LIST = Field(encode_pv, _decode_list)


@dataclass(frozen=True, slots=True)
class PvHello(RequestRow):
    """``pv.hello``: what are you? Clients leave ``peer`` empty and ``term`` 0; ``info`` is ``{v, feat}``."""

    TYPE = b"pv.hello"
    FIELDS = (TEXT, UINT, NONCE, MAP)

    peer: str
    term: int
    nonce: bytes
    info: dict[str, Value]


@dataclass(frozen=True, slots=True)
class PvHelloReply:
    """Answer to ``pv.hello``: ``info`` is ``{v, peer, inst, feat, stage, gen, term, machine, level, now}``.

    A reply with another magic decodes as ``stale``; comparing the nonce is the asker's work.
    """

    REQUIRED: ClassVar[int] = 3

    nonce: bytes
    info: dict[str, Value]

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (HELLO_MAGIC, self.nonce, encode_pv(self.info))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        if frames[0] != HELLO_MAGIC:
            malformed(DropReason.STALE)
        return cls(_decode_nonce(frames[1]), _decode_map(frames[2]))


@dataclass(frozen=True, slots=True)
class PvVote(RequestRow):
    """``pv.vote``: asks for a vote in ``term``; ``phase`` 0 pre-vote, 1 vote, 2 vote by transfer."""

    TYPE = b"pv.vote"
    ID = RPC
    FIELDS = (TEXT, UINT, UINT, UINT, UINT)

    candidate: str
    term: int
    last_index: int
    last_term: int
    phase: int


@dataclass(frozen=True, slots=True)
class PvVoteReply(ReplyRow):
    """Answer to ``pv.vote``.

    ``reason``: 0 granted, 1 stale term, 2 log behind, 3 voted for another, 4 sticky, 5 not a voter, 6 recovering.
    """

    FIELDS = (UINT, BOOL, UINT)

    term: int
    granted: bool
    reason: int


@dataclass(frozen=True, slots=True)
class PvAppend(RequestRow):
    """``pv.append``: as AppendEntries, with the entries as one blob (2.5); none is a heartbeat."""

    TYPE = b"pv.append"
    ID = RPC
    REQUIRED = 6

    leader: str
    term: int
    previous_index: int
    previous_term: int
    commit_index: int
    entries: tuple[Frame, ...] = ()

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (
            self.TYPE,
            ident,
            self.leader.encode(),
            encode_uint(self.term),
            encode_uint(self.previous_index),
            encode_uint(self.previous_term),
            encode_uint(self.commit_index),
            encode_blob(self.entries),
        )

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read fields from frame 4 on; ``config`` for a CONFIG entry whose data is no configuration."""
        return cls(
            decode_string(frames[3]),
            decode_uint(frames[4]),
            decode_uint(frames[5]),
            decode_uint(frames[6]),
            decode_uint(frames[7]),
            tuple(check_configuration(entry) for entry in decode_blob(frames[8])),
        )


@dataclass(frozen=True, slots=True)
class PvAppendReply:
    """Answer to ``pv.append``; a failure may name the first index of the conflicting term and that term."""

    REQUIRED: ClassVar[int] = 3

    term: int
    success: bool
    match_index: int
    conflict: tuple[int, int] | None = None

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        frames = (encode_uint(self.term), encode_bool(self.success), encode_uint(self.match_index))
        return frames if self.conflict is None else (*frames, *map(encode_uint, self.conflict))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        conflict = (decode_uint(frames[3]), decode_uint(frames[4])) if len(frames) > 4 else None
        return cls(decode_uint(frames[0]), decode_bool(frames[1]), decode_uint(frames[2]), conflict)


@dataclass(frozen=True, slots=True)
class PvSnapshot(SnapshotChunk):
    """``pv.snapshot``: one chunk of the leader's snapshot file."""

    TYPE = b"pv.snapshot"
    ID = RPC


@dataclass(frozen=True, slots=True)
class PvNow(RequestRow):
    """``pv.now``: the leader tells the receiver to stand for election at once (6.7)."""

    TYPE = b"pv.now"
    ID = RPC
    FIELDS = (TEXT, UINT, UINT, UINT)

    leader: str
    term: int
    last_index: int
    commit_index: int


@dataclass(frozen=True, slots=True)
class PvNowReply(ReplyRow):
    """Answer to ``pv.now``."""

    FIELDS = (UINT, BOOL)

    term: int
    accepted: bool


@dataclass(frozen=True, slots=True)
class PvFollow(RequestRow):
    """``pv.follow``: a learner asks for the committed log behind ``previous_index``, or acknowledges it (8.3)."""

    TYPE = b"pv.follow"
    FIELDS = (TEXT, UINT, UINT, UINT, UINT_OR_NONE)

    peer: str
    term: int
    previous_index: int
    previous_term: int
    snapshot_offset: int | None = None


FOLLOW_NOT_LEADER, FOLLOW_ENTRIES, FOLLOW_CHUNK = 0, 2, 3


@dataclass(frozen=True, slots=True)
class PvFollowReply(ReplyRow):
    """One message of a learner's stream.

    ``kind`` 0 not the leader, 2 entries, 3 chunk of the snapshot file, 20 FORK; ``items`` is
    ``[commit, term, first index]``, for kind 0 with the leader's id first, for kind 3 with ``offset, total`` appended.
    """

    FIELDS = (UINT, LIST, UINT, BYTES)

    kind: int
    items: list[Value]
    index: int
    data: Frame


@dataclass(frozen=True, slots=True)
class PvKv(RequestRow):
    """``pv.kv``: a command for the replicated machine, still encoded."""

    TYPE = b"pv.kv"
    ID = CHANGE
    REQUIRED = 1

    command: Frame

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (self.TYPE, ident, self.command)

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Take the command as it is; ``size`` if it could not be an entry's data."""
        return cls(check_data(frames[3]))


@dataclass(frozen=True, slots=True)
class PvRead(RequestRow):
    """``pv.read``: ``query`` is ``[flags, ops]``."""

    TYPE = b"pv.read"
    FIELDS = (LIST,)

    query: list[Value]


@dataclass(frozen=True, slots=True)
class PvWatch(RequestRow):
    """``pv.watch`` with one frame begins a watch; ``query`` is ``{start, end, tree, from, progress}``."""

    TYPE = b"pv.watch"
    FIELDS = (MAP,)

    query: dict[str, Value]


@dataclass(frozen=True, slots=True)
class PvWatchAcknowledge(RequestRow):
    """``pv.watch`` with two frames: everything up to ``revision`` has arrived; ``proceed`` false cancels (12.6)."""

    TYPE = b"pv.watch"
    FIELDS = (UINT, BOOL)

    revision: int
    proceed: bool


@dataclass(frozen=True, slots=True)
class PvWatchReply(ReplyRow):
    """One message of a watch: the events of ``revision``, behind the message of ``previous`` (0: it is the first).

    Behind a part of the same revision ``previous`` is that revision and the number of its events before.
    """

    FIELDS = (UINT, UINT, LIST, UINT)

    code: int
    revision: int
    events: list[Value]
    previous: int = 0


@dataclass(frozen=True, slots=True)
class PvLease(RequestRow):
    """``pv.lease``: keep these leases alive."""

    TYPE = b"pv.lease"
    FIELDS = (LIST,)

    leases: list[Value]


@dataclass(frozen=True, slots=True)
class PvStatus(RequestRow):
    """``pv.status``: everything that a peer knows about itself."""

    TYPE = b"pv.status"


@dataclass(frozen=True, slots=True)
class PvTransfer(RequestRow):
    """``pv.transfer``: hand leadership to ``target``, ``None`` for the best (6.7)."""

    TYPE = b"pv.transfer"
    FIELDS = (Field(encode_pv, decode_leader),)

    target: str | None = None


@dataclass(frozen=True, slots=True)
class PvReply:
    """Answer to ``pv.kv``, ``pv.read``, ``pv.lease``, ``pv.status``, ``pv.transfer``: a code of 4.4 and a value."""

    REQUIRED: ClassVar[int] = 1

    code: int
    value: Value = None

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (encode_uint(self.code), encode_pv(self.value))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id; a missing value is nil."""
        return cls(decode_uint(frames[0]), decode(frames[1]) if len(frames) > 1 else None)
