"""``pv.update``: many updates in one message, and what became of each (docs/specs/raft.md 4.4).

Same conventions as ``requests`` and ``replies``.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Self

from pavane.raft.errors import DropReason
from pavane.raft.wire.frames import ENTRY_DATA_BYTES, REQID_BYTES, Frame, Frames, malformed
from pavane.raft.wire.msgpack import encode_js
from pavane.raft.wire.replies import decode_leader
from pavane.wire import Reader, RemoteProtocolError

UPDATE = b"pv.update"
UPDATE_ITEMS = 4096  # items of one message (4.4)
UPDATE_BYTES = 4 * 1024 * 1024  # their blob, but a single item may be larger
INDEX_BYTES = 7
LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True)
class UpdateItem:
    """One update of a ``pv.update``."""

    reqid: bytes
    data: Frame


@dataclass(frozen=True, slots=True)
class PvUpdate:
    """``pv.update``: appends in this order, each under its own request id."""

    items: tuple[UpdateItem, ...]

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        return (UPDATE, ident, _join((item.reqid, _length(item.data), item.data) for item in self.items))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the blob; ``size`` beyond its limits, for an item without data, or for a record past the end."""
        reader = Reader(frames[3])
        items: list[UpdateItem] = []
        while reader.remaining:
            try:
                reqid = bytes(reader.take(REQID_BYTES))
                data = reader.take(reader.uint_le(LENGTH_BYTES))
            except RemoteProtocolError:
                malformed(DropReason.SIZE)
            if not 1 <= len(data) <= ENTRY_DATA_BYTES or len(items) == UPDATE_ITEMS:
                malformed(DropReason.SIZE)
            items.append(UpdateItem(reqid, data))
        if not items or (len(frames[3]) > UPDATE_BYTES and len(items) > 1):
            malformed(DropReason.SIZE)
        return cls(tuple(items))


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What became of one update: a code of 4.4 and, if it is OK, the index."""

    reqid: bytes
    code: int
    index: int


@dataclass(frozen=True, slots=True)
class PvUpdateReply:
    """Answer to ``pv.update``; several may come, each with the items that changed."""

    REQUIRED: ClassVar[int] = 2

    leader: str | None
    results: tuple[UpdateResult, ...]

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        results = (
            (item.reqid, bytes([item.code]), item.index.to_bytes(INDEX_BYTES, "little")) for item in self.results
        )
        return (encode_js(self.leader), _join(results))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id; ``size`` for a cut item."""
        leader, reader = decode_leader(frames[0]), Reader(frames[1])
        results: list[UpdateResult] = []
        while reader.remaining:
            try:
                reqid = bytes(reader.take(REQID_BYTES))
                results.append(UpdateResult(reqid, reader.uint_le(1), reader.uint_le(INDEX_BYTES)))
            except RemoteProtocolError:
                malformed(DropReason.SIZE)
        return cls(leader, tuple(results))


def _length(data: Frame) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES, "little")


def _join(parts: Iterable[tuple[Frame, ...]]) -> bytes:
    return b"".join(piece for part in parts for piece in part)
