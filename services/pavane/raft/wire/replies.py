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
    decode_string,
    decode_uint,
    encode_bool,
    encode_uint,
    malformed,
)
from pavane.raft.wire.msgpack import Value, decode, encode_js

LEADERS_MAX = 64  # frames that name a leader and are known; every answer to a batch of updates holds one of a few


@dataclass(frozen=True, slots=True)
class RequestVoteReply:
    """Answer to ``?``: the voter's term, and whether it grants the vote."""

    REQUIRED: ClassVar[int] = 2

    term: int
    granted: bool

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (encode_uint(self.term), encode_bool(self.granted))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        return cls(decode_uint(frames[0]), decode_bool(frames[1]))


@dataclass(frozen=True, slots=True)
class AppendEntriesReply:
    """Answer to ``+``; ``conflict_index`` is the follower's last index + 1 if its log is too short (1.2 D1)."""

    REQUIRED: ClassVar[int] = 2

    term: int
    success: bool
    conflict_index: int | None = None

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        frames = (encode_uint(self.term), encode_bool(self.success))
        return frames if self.conflict_index is None else (*frames, encode_uint(self.conflict_index))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id; frames behind the conflict index are ignored."""
        return cls(decode_uint(frames[0]), decode_bool(frames[1]), decode_uint(frames[2]) if len(frames) > 2 else None)


@dataclass(frozen=True, slots=True)
class InstallSnapshotReply:
    """Answer to ``$``; ``wanted_offset`` is where the receiver has a gap."""

    REQUIRED: ClassVar[int] = 1

    term: int
    wanted_offset: int | None = None

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        frames = (encode_uint(self.term),)
        return frames if self.wanted_offset is None else (*frames, encode_uint(self.wanted_offset))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        return cls(decode_uint(frames[0]), decode_uint(frames[1]) if len(frames) > 1 else None)


@dataclass(frozen=True, slots=True)
class RequestConfigReply:
    """Answer to ``^``; in a transition ``peers`` is the union, old members first."""

    REQUIRED: ClassVar[int] = 3

    is_leader: bool
    leader: str | None
    peers: PeerList

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (encode_bool(self.is_leader), encode_js(self.leader), encode_js(peers_value(self.peers)))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        return cls(decode_bool(frames[0]), decode_leader(frames[1]), parse_peers(decode(frames[2])))


@dataclass(frozen=True, slots=True)
class RequestLogInfoReply:
    """Answer to ``%``: an empty log has ``first_index`` 1 and ``last_index`` 0."""

    REQUIRED: ClassVar[int] = 9

    is_leader: bool
    leader: str | None
    term: int
    first_index: int
    applied_index: int
    commit_index: int
    last_index: int
    snapshot_bytes: int
    prune_index: int

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (
            encode_bool(self.is_leader),
            encode_js(self.leader),
            encode_uint(self.term),
            encode_uint(self.first_index),
            encode_uint(self.applied_index),
            encode_uint(self.commit_index),
            encode_uint(self.last_index),
            encode_uint(self.snapshot_bytes),
            encode_uint(self.prune_index),
        )

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        return cls(decode_bool(frames[0]), decode_leader(frames[1]), *map(decode_uint, frames[2:9]))


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
class RequestBroadcastUrlReply:
    """Answer to ``*``: ``None`` if the peer publishes nothing."""

    REQUIRED: ClassVar[int] = 0

    url: str | None = None

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return () if self.url is None else (self.url.encode(),)

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id."""
        return cls(decode_string(frames[0]) if frames else None)


@lru_cache(LEADERS_MAX)
def decode_leader(frame: Frame) -> str | None:
    """Decode a json leader id or nil; anything else: ``json``."""
    value = decode(frame)
    if value is not None and not isinstance(value, str):
        malformed(DropReason.JSON)
    return value


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
