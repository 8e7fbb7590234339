"""Requests of the protocol's own messages, and its broadcast (docs/specs/raft.md 3.1-3.3).

``encode(ident)`` gives the frames behind the id frame: type, ident, fields. ``decode(frames)`` takes all frames as a
ROUTER's application sees them (id, type, ident, fields) once the count, the ident and the id have been checked; call it
through ``decode_request``. It raises ``RemoteProtocolError`` with a reason of 3.4. Long fields stay views of the input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pavane.raft.errors import DropReason
from pavane.raft.wire.entry import check_configuration, check_entry, peers_value
from pavane.raft.wire.frames import (
    Frame,
    Frames,
    check_data,
    decode_optional_uint,
    decode_string,
    decode_uint,
    encode_optional_uint,
    encode_uint,
    malformed,
)
from pavane.raft.wire.msgpack import Value, decode, encode_js
from pavane.raft.wire.rows import BYTES, CHANGE, HEAD_FRAMES, RPC, TEXT, UINT, RequestRow
from pavane.wire import LocalProtocolError, RemoteProtocolError


@dataclass(frozen=True, slots=True)
class RequestVote(RequestRow):
    """``?``: a candidate asks for a vote in ``term``; its log ends with ``last_index`` of ``last_term``."""

    TYPE = b"?"
    ID = RPC
    FIELDS = (TEXT, UINT, UINT, UINT)

    candidate: str
    term: int
    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True)
class AppendEntries(RequestRow):
    """``+``: the leader of ``term`` sends the entries behind ``previous_index``; none is a heartbeat."""

    TYPE = b"+"
    ID = RPC
    REQUIRED = 5

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
            *self.entries,
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
            tuple(check_configuration(check_entry(entry)) for entry in frames[8:]),
        )


@dataclass(frozen=True, slots=True)
class SnapshotChunk(RequestRow):
    """One chunk, at ``offset`` of ``total`` bytes, of the leader's snapshot up to ``last_index``."""

    FIELDS = (TEXT, UINT, UINT, UINT, UINT, UINT, BYTES)

    leader: str
    term: int
    last_index: int
    last_term: int
    offset: int
    total: int
    chunk: Frame

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read fields from frame 4 on; ``size`` for a chunk that ends beyond ``total``."""
        message = cls._decoded(frames[HEAD_FRAMES:])
        if message.offset + len(message.chunk) > message.total:
            malformed(DropReason.SIZE)
        return message


@dataclass(frozen=True, slots=True)
class InstallSnapshot(SnapshotChunk):
    """``$``: one chunk of the leader's snapshot, as the original sends it."""

    TYPE = b"$"
    ID = RPC


@dataclass(frozen=True, slots=True)
class PeerPoll:
    """Who polls, when a peer borrows ``^`` or ``%``: its id and term, in frames that the original ignores (4.1)."""

    peer: str
    term: int


@dataclass(frozen=True, slots=True)
class _Question(RequestRow):
    poll: PeerPoll | None = None

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        poll = () if self.poll is None else (self.poll.peer.encode(), encode_uint(self.poll.term))
        return (self.TYPE, ident, *poll)

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the poller, if there is one."""
        # Surplus frames of a client are ignored (3.2), so two that are no peer and term mean that no peer asks.
        if len(frames) < 5:
            return cls(None)
        try:
            return cls(PeerPoll(decode_string(frames[3]), decode_uint(frames[4])))
        except RemoteProtocolError:
            return cls(None)


@dataclass(frozen=True, slots=True)
class RequestConfig(_Question):
    """``^``: who leads, and who are the members? ``poll`` is set if a peer asks."""

    TYPE = b"^"


@dataclass(frozen=True, slots=True)
class RequestLogInfo(_Question):
    """``%``: the indices of the peer's log. ``poll`` is set if a peer asks."""

    TYPE = b"%"


@dataclass(frozen=True, slots=True)
class RequestUpdate(RequestRow):
    """``=``: append ``data`` (1 byte … 10 MiB) under the request id in the id frame."""

    TYPE = b"="
    ID = CHANGE
    REQUIRED = 1

    data: Frame

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (self.TYPE, ident, self.data)

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the data; ``size`` if it is empty or too long."""
        return cls(check_data(frames[3]))


@dataclass(frozen=True, slots=True)
class ConfigUpdate(RequestRow):
    """``&``: the members shall be ``peers``, a decoded ``[[id, url], …]`` of any shape: a wrong one is answered.

    ``readable`` is false, and ``peers`` nil, if the frame was no MessagePack at all (status 2, ``SyntaxError``, 10.6).
    """

    TYPE = b"&"
    ID = CHANGE
    REQUIRED = 1

    peers: Value
    readable: bool = True

    @classmethod
    def of(cls, peers: Sequence[tuple[str, str]]) -> Self:
        """Make the request for these members."""
        return cls(peers_value(peers))

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        if not self.readable:
            raise LocalProtocolError("an unreadable configuration cannot be sent")
        return (self.TYPE, ident, encode_js(self.peers))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the members; an unreadable frame is a message too."""
        try:
            return cls(decode(frames[3]))
        except RemoteProtocolError:
            return cls(None, readable=False)


@dataclass(frozen=True, slots=True)
class RequestEntries(RequestRow):
    """``<``: the entries behind ``previous_index``, ``count`` of them or all; 0 ends a stream (10.4)."""

    TYPE = b"<"
    REQUIRED = 1

    previous_index: int
    count: int | None = None
    snapshot_offset: int | None = None

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        frames: tuple[Frame, ...] = (self.TYPE, ident, encode_uint(self.previous_index))
        if self.snapshot_offset is not None:
            return (*frames, encode_optional_uint(self.count), encode_uint(self.snapshot_offset))
        return frames if self.count is None else (*frames, encode_uint(self.count))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read fields from frame 4 on."""
        return cls(
            decode_uint(frames[3]),
            decode_optional_uint(frames[4]) if len(frames) > 4 else None,
            decode_uint(frames[5]) if len(frames) > 5 else None,
        )


@dataclass(frozen=True, slots=True)
class RequestBroadcastUrl(RequestRow):
    """``*``: where does the cluster publish applied entries?"""

    TYPE = b"*"


@dataclass(frozen=True, slots=True)
class ClientDispatch:
    """A type of two bytes or more that the state machine may know."""

    type: bytes
    arguments: tuple[Frame, ...]

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (self.type, ident, *self.arguments)

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Take everything behind the ident as arguments."""
        return cls(bytes(frames[1]), tuple(frames[3:]))


@dataclass(frozen=True, slots=True)
class StateBroadcast:
    """Published by the leader of ``term``: the ``entries`` that end at ``applied_index`` (3.3)."""

    term: int
    applied_index: int
    entries: tuple[Frame, ...] = ()

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return all frames; the ident is the topic."""
        return (ident, encode_uint(self.term), encode_uint(self.applied_index), *self.entries)

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read fields from frame 2 on; call through ``decode_broadcast``."""
        return cls(decode_uint(frames[1]), decode_uint(frames[2]), tuple(check_entry(entry) for entry in frames[3:]))
