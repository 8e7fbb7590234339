"""The checkpoint file up to the application's bytes (docs/specs/ambrosia.md 12.4); counts are ``i32`` here."""

from dataclasses import dataclass, field
from typing import Self

from pavane.ambrosia.errors import Reason
from pavane.ambrosia.wire.limits import HEADER_BYTES, MIB, RECORD_BYTES
from pavane.ambrosia.wire.messages import Type, checkpoint, read_checkpoint, read_frame
from pavane.ambrosia.wire.primitives import Buffer, Cursor, i32, i64, string
from pavane.ambrosia.wire.records import Trims, Watermarks, peers, read_trims, read_watermarks, trims, watermarks
from pavane.wire import RemoteProtocolError

PAGE_BYTES = MIB  # capacity of a page that holds less
PAGE_HEAD_BYTES = 40
OUTPUT_BYTES_MIN = 29


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of one output, back to back in incoming form; the numbers are those of all messages."""

    data: bytes
    highest: int
    lowest: int
    unsent_replayable: int
    replayable: int


@dataclass(frozen=True, slots=True)
class SavedOutput:
    """What one peer has not acknowledged."""

    last_out: int
    trim: int
    replayable_trim: int
    pages: tuple[Page, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointHead:
    """The coordinator's part of a checkpoint, and ``size``: how many bytes of the application follow."""

    committer: int
    next_seq: int
    pending: bytes
    pending_inputs: Watermarks
    pending_trims: Trims
    inputs: Watermarks
    outputs: dict[str, SavedOutput] = field(default_factory=dict)
    size: int = 0

    def encode(self) -> bytes:
        """Encode all that precedes the application's bytes."""
        area = HEADER_BYTES + len(self.pending)
        out = bytearray(i32(self.committer) + i64(self.next_seq) + i32(RECORD_BYTES) + i32(area))
        out += i32(self.committer) + bytes(HEADER_BYTES - 4) + self.pending
        out += watermarks(self.pending_inputs, i32) + trims(self.pending_trims, i32) + watermarks(self.inputs, i32)
        out += i32(len(self.outputs))
        for name, saved in self.outputs.items():
            out += string(name) + i64(saved.last_out) + i64(saved.trim) + i64(saved.replayable_trim)
            out += i32(len(saved.pages))
            for page in saved.pages:
                out += i32(max(PAGE_BYTES, len(page.data))) + i32(len(page.data)) + page.data
                out += i64(page.highest) + i64(page.lowest) + i64(page.unsent_replayable) + i64(page.replayable)
        return bytes(out + checkpoint(self.size))

    @classmethod
    def decode(cls, data: Buffer) -> tuple[Self, int]:
        """Return the head and where the application's bytes begin; raises ``RemoteProtocolError``.

        ``data`` may end anywhere behind the Checkpoint message.
        """
        cursor = Cursor(data)
        committer, next_seq, _ = cursor.i32(), cursor.i64(), cursor.i32()
        area = cursor.i32()
        if area < HEADER_BYTES:
            raise RemoteProtocolError(Reason.LENGTH, f"a pending record of {area} bytes")
        pending = bytes(cursor.take(area)[HEADER_BYTES:])
        pending_inputs = read_watermarks(cursor, cursor.i32())
        pending_trims = read_trims(cursor, cursor.i32())
        inputs = read_watermarks(cursor, cursor.i32())
        many = range(peers(cursor, cursor.i32(), OUTPUT_BYTES_MIN))
        outputs = {cursor.string(): _read_output(cursor) for _ in many}
        position = cursor.position
        found = read_frame(data, position)
        if found is None or found[0].type != Type.CHECKPOINT:
            raise RemoteProtocolError(Reason.TYPE, "no Checkpoint message behind the outputs")
        message, end = found
        size = read_checkpoint(message.data)
        return cls(committer, next_seq, pending, pending_inputs, pending_trims, inputs, outputs, size), end


def _read_output(cursor: Cursor) -> SavedOutput:
    last_out, trim, replayable_trim = cursor.i64(), cursor.i64(), cursor.i64()
    pages = []
    for _ in range(cursor.count(cursor.i32(), PAGE_HEAD_BYTES)):
        capacity, used = cursor.i32(), cursor.i32()
        if used > capacity:
            raise RemoteProtocolError(Reason.LENGTH, f"{used} bytes used of a page of {capacity}")
        pages.append(Page(bytes(cursor.take(used)), cursor.i64(), cursor.i64(), cursor.i64(), cursor.i64()))
    return SavedOutput(last_out, trim, replayable_trim, tuple(pages))
