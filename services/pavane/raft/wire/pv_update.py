"""``pv.update``: many updates in one message, and what became of each (docs/specs/raft.md 4.4).

Same conventions as ``requests`` and ``replies``.
"""

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, NamedTuple, Self

from pavane.raft.errors import DropReason
from pavane.raft.wire.frames import ENTRY_DATA_BYTES, REQID_BYTES, Frame, Frames, malformed
from pavane.raft.wire.msgpack import encode_js
from pavane.raft.wire.replies import decode_leader
from pavane.raft.wire.rows import RequestRow

# Items and results are named tuples: there is one of each for every update, and a frozen dataclass costs three times as
# much to make.
UPDATE_ITEMS = 4096  # items of one message (4.4)
UPDATE_BYTES = 4 * 1024 * 1024  # their blob, but a single item may be larger
INDEX_BYTES = 7
LENGTH_BYTES = 4
ITEM_HEADER_BYTES = REQID_BYTES + LENGTH_BYTES
_RESULT = Struct("<12sB7s")


class UpdateItem(NamedTuple):
    """One update of a ``pv.update``."""

    reqid: bytes
    data: Frame


@dataclass(frozen=True, slots=True)
class PvUpdate(RequestRow):
    """``pv.update``: appends in this order, each under its own request id."""

    TYPE = b"pv.update"
    REQUIRED = 1

    items: tuple[UpdateItem, ...]

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        parts: list[Frame] = []
        for reqid, data in self.items:
            parts += (reqid, len(data).to_bytes(LENGTH_BYTES, "little"), data)
        return (self.TYPE, ident, b"".join(parts))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the blob; ``size`` beyond its limits, for an item without data, or for a record past the end."""
        blob = memoryview(frames[3])
        items: list[UpdateItem] = []
        start, end = 0, len(blob)
        while start < end:
            data_at = start + ITEM_HEADER_BYTES
            length = int.from_bytes(blob[start + REQID_BYTES : data_at], "little")
            after = data_at + length
            if not 1 <= length <= ENTRY_DATA_BYTES or after > end or len(items) == UPDATE_ITEMS:
                malformed(DropReason.SIZE)
            items.append(UpdateItem(bytes(blob[start : start + REQID_BYTES]), blob[data_at:after]))
            start = after
        if not items or (end > UPDATE_BYTES and len(items) > 1):
            malformed(DropReason.SIZE)
        return cls(tuple(items))


class UpdateResult(NamedTuple):
    """What became of one update: a code of 4.4; ``value`` is the index for OK, milliseconds to wait for BUSY."""

    reqid: bytes
    code: int
    value: int


@dataclass(frozen=True, slots=True)
class PvUpdateReply:
    """Answer to ``pv.update``; several may come, each with the items that changed."""

    REQUIRED: ClassVar[int] = 2

    leader: str | None
    results: tuple[UpdateResult, ...]

    def encode(self) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        pack = _RESULT.pack
        results = (pack(reqid, code, value.to_bytes(INDEX_BYTES, "little")) for reqid, code, value in self.results)
        return (encode_js(self.leader), b"".join(results))

    @classmethod
    def decode(cls, frames: Frames) -> Self:
        """Read the frames behind the id; ``size`` for a cut item."""
        leader, blob = decode_leader(frames[0]), frames[1]
        if len(blob) % _RESULT.size:
            malformed(DropReason.SIZE)
        results = (
            UpdateResult(reqid, code, int.from_bytes(index, "little"))
            for reqid, code, index in _RESULT.iter_unpack(blob)
        )
        return cls(leader, tuple(results))
