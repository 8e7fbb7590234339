"""Replies of the protocol's own messages (docs/specs/raft.md 3.1, 3.2, 10.2-10.6).

A reply says nothing about its kind, so it is decoded by the request that it answers:
``decode_reply(RequestVoteReply, frames)``. Frames are those behind the id, in both directions.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import ClassVar, Self, TypeGuard

from pavane.raft.errors import DropReason
from pavane.raft.wire.entry import PeerList, check_entry, parse_peers, peers_value
from pavane.raft.wire.frames import (
    UINT_MAX,
    Frame,
    Frames,
    decode_bool,
    decode_uint,
    encode_bool,
    encode_uint,
    malformed,
)
from pavane.raft.wire.msgpack import Value, decode, encode_js
from pavane.raft.wire.rows import BOOL, TEXT_OR_NONE, UINT, UINT_OR_NONE, Field, ReplyRow

LEADERS_MAX = 64  # frames that name a leader and are known; every answer to a batch of updates holds one of a few


@lru_cache(LEADERS_MAX)
def decode_leader(frame: Frame) -> str | None:
    """Decode a json leader id or nil; anything else: ``json``."""
    value = decode(frame)
    if value is not None and not isinstance(value, str):
        malformed(DropReason.JSON)
    return value


def _decode_peers(frame: Frame) -> PeerList:
    return parse_peers(decode(frame))


def _encode_peers(peers: PeerList) -> bytes:
    return encode_js(peers_value(peers))


LEADER = Field(encode_js, decode_leader)
PEERS = Field(_encode_peers, _decode_peers)


@dataclass(frozen=True, slots=True)
class RequestVoteReply(ReplyRow):
    """Answer to ``?``: the voter's term, and whether it grants the vote."""

    FIELDS = (UINT, BOOL)

    term: int
    granted: bool


@dataclass(frozen=True, slots=True)
class AppendEntriesReply(ReplyRow):
    """Answer to ``+``; ``conflict_index`` is the follower's last index + 1 if its log is too short (1.2 D1)."""

    FIELDS = (UINT, BOOL, UINT_OR_NONE)

    term: int
    success: bool
    conflict_index: int | None = None


@dataclass(frozen=True, slots=True)
class InstallSnapshotReply(ReplyRow):
    """Answer to ``$``; ``wanted_offset`` is where the receiver has a gap."""

    FIELDS = (UINT, UINT_OR_NONE)

    term: int
    wanted_offset: int | None = None


@dataclass(frozen=True, slots=True)
class RequestConfigReply(ReplyRow):
    """Answer to ``^``; in a transition ``peers`` is the union, old members first."""

    FIELDS = (BOOL, LEADER, PEERS)

    is_leader: bool
    leader: str | None
    peers: PeerList


@dataclass(frozen=True, slots=True)
class RequestLogInfoReply(ReplyRow):
    """Answer to ``%``: an empty log has ``first_index`` 1 and ``last_index`` 0."""

    FIELDS = (BOOL, LEADER, UINT, UINT, UINT, UINT, UINT, UINT, UINT)

    is_leader: bool
    leader: str | None
    term: int
    first_index: int
    applied_index: int
    commit_index: int
    last_index: int
    snapshot_bytes: int
    prune_index: int


class UpdateStatus(IntEnum):
    """How far a RequestUpdate has come."""

    ACCEPTED = 0
    DONE = 1
    NOT_LEADER = 2
    EXPIRED = 3


@dataclass(frozen=True, slots=True)
class RequestUpdateReply:
    """Answer to ``=``: ``index`` counts if DONE, ``leader`` if NOT_LEADER; ACCEPTED may come many times (10.2)."""

    REQUIRED: ClassVar[int] = 1

    status: UpdateStatus
    index: int = 0
    leader: str | None = None

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        match self.status:
            case UpdateStatus.ACCEPTED:
                return (encode_bool(True),)
            case UpdateStatus.DONE:
                return (encode_bool(True), encode_js(self.index))
            case UpdateStatus.NOT_LEADER:
                return (encode_bool(False), encode_js(self.leader))
            case UpdateStatus.EXPIRED:
                return (encode_bool(False),)

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        success, final = decode_bool(frames[0]), len(frames) > 1
        if success:
            return cls(UpdateStatus.DONE, decode_index(frames[1])) if final else cls(UpdateStatus.ACCEPTED)
        return cls(UpdateStatus.NOT_LEADER, leader=decode_leader(frames[1])) if final else cls(UpdateStatus.EXPIRED)


class ConfigStatus(IntEnum):
    """Status of a ConfigUpdate (10.6)."""

    NOT_LEADER = 0
    ACCEPTED = 1
    ARGUMENT = 2
    BUSY = 3
    EXPIRED = 4


@dataclass(frozen=True, slots=True)
class ConfigUpdateReply:
    """Answer to ``&``.

    ``argument`` is the leader's id or nil (NOT_LEADER), nil while pending and then the index of Cold,new (ACCEPTED), or
    ``{name, message}`` (ARGUMENT).
    """

    REQUIRED: ClassVar[int] = 1

    status: ConfigStatus
    argument: Value = None

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        frames = (encode_uint(self.status),)
        if self.argument is None and self.status != ConfigStatus.NOT_LEADER:
            return frames
        return (*frames, encode_js(self.argument))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        number = decode_uint(frames[0])
        if number > ConfigStatus.EXPIRED:
            malformed(DropReason.UINT)
        status = ConfigStatus(number)
        if len(frames) == 1:
            return cls(status)
        match status:
            case ConfigStatus.NOT_LEADER:
                return cls(status, decode_leader(frames[1]))
            case ConfigStatus.ACCEPTED:
                return cls(status, decode_index(frames[1]))
            case _:
                return cls(status, decode(frames[1]))


class EntriesStatus(IntEnum):
    """Status of a RequestEntries message (10.4)."""

    NOT_LEADER = 0
    LAST = 1
    MORE = 2
    SNAPSHOT = 3


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Where a chunk lies: ``offset`` of ``total`` bytes of the snapshot, whose last entry has ``term``."""

    offset: int
    total: int
    term: int


@dataclass(frozen=True, slots=True)
class RequestEntriesReply:
    """One message of the stream that answers ``<``.

    NOT_LEADER has ``leader``; LAST and MORE have ``entries``, of which the last has ``index``; SNAPSHOT has ``part``,
    the chunk as its only entry, and the ``index`` of the snapshot.
    """

    REQUIRED: ClassVar[int] = 2

    status: EntriesStatus
    index: int = 0
    entries: tuple[Frame, ...] = ()
    leader: str | None = None
    part: SnapshotPart | None = None

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        if self.status == EntriesStatus.NOT_LEADER:
            return (encode_uint(self.status), encode_js(self.leader))
        part: Value = None if self.part is None else [self.part.offset, self.part.total, self.part.term]
        return (encode_uint(self.status), encode_js(part), encode_uint(self.index), *self.entries)

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        number = decode_uint(frames[0])
        if number > EntriesStatus.SNAPSHOT:
            malformed(DropReason.UINT)
        status = EntriesStatus(number)
        if status == EntriesStatus.NOT_LEADER:
            return cls(status, leader=decode_leader(frames[1]))
        if len(frames) < 3 or (status == EntriesStatus.SNAPSHOT and len(frames) < 4):
            malformed(DropReason.FRAMES)
        index = decode_uint(frames[2])
        if status == EntriesStatus.SNAPSHOT:
            return cls(status, index, (frames[3],), part=_decode_part(frames[1], len(frames[3])))
        return cls(status, index, tuple(map(check_entry, frames[3:])))


@dataclass(frozen=True, slots=True)
class RequestBroadcastUrlReply(ReplyRow):
    """Answer to ``*``: ``None`` if the peer publishes nothing."""

    FIELDS = (TEXT_OR_NONE,)

    url: str | None = None


def decode_index(frame: Frame) -> int:
    """Decode a json log index; anything else: ``json``."""
    value = decode(frame)
    if not is_count(value):
        malformed(DropReason.JSON)
    return value


def is_count(value: Value) -> TypeGuard[int]:
    """Tell whether a decoded value is an integer that a uint could hold; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= UINT_MAX


def _decode_part(frame: Frame, size: int) -> SnapshotPart:
    match decode(frame):
        case [offset, total, term] if is_count(offset) and is_count(total) and is_count(term):
            if offset + size > total:
                malformed(DropReason.SIZE)
            return SnapshotPart(offset, total, term)
        case _:
            malformed(DropReason.JSON)
