"""Bytes of a write-ahead log: the segment header and the record frame (docs/specs/raft.md 13.1).

All numbers are little-endian. Checksums start from the checksum of the store id, so that records of another store, or
bytes inside a payload that look like a record, are never taken for records of this log.
"""

import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from pavane.wal.files import Buffer

MAGIC = b"PVWL"
VERSION = 1
STORE_ID_BYTES = 16
MARK = 5  # record type: payload is u64, the greatest sequence that the previous sync covered
SUFFIX = ".seg"

_HEADER = struct.Struct("<4sIQ16s")
_HEADER_CHECK = struct.Struct("<I")
HEADER_BYTES = _HEADER.size + _HEADER_CHECK.size
_FRAME = struct.Struct("<IIQB")
_CHECKED = struct.Struct("<QB")
FRAME_BYTES = _FRAME.size
_MARK_PAYLOAD = struct.Struct("<Q")
_MARK_BYTES = FRAME_BYTES + _MARK_PAYLOAD.size
# A mark that follows damaged bytes is found by what never varies in it: its length and its type.
_MARK_PATTERN = re.compile(rb"(?=\x08\x00\x00\x00.{12}\x05)", re.DOTALL)


class ForeignLog(Exception):
    """A segment belongs to another store or to another version of the format."""

    def __init__(self, first_sequence: int, version: int, store_id: bytes) -> None:
        super().__init__(
            f"segment {segment_name(first_sequence)} belongs to store {store_id.hex()} in format version {version}, "
            f"which is not the one wanted (format version {VERSION})"
        )


@dataclass(frozen=True, slots=True)
class Record:
    """One record as read back. ``position`` is opaque and is what ``Log.read`` takes."""

    sequence: int
    kind: int
    payload: memoryview
    position: int


def segment_name(first_sequence: int) -> str:
    """Return the file name of the segment whose first record has ``first_sequence``."""
    return f"{first_sequence:016x}{SUFFIX}"


def first_sequence_of(name: str) -> int | None:
    """Return the sequence that a segment's name states; None if it is no segment's name."""
    digits = name.removesuffix(SUFFIX)
    if not name.endswith(SUFFIX) or not re.fullmatch(r"[0-9a-f]{16}", digits):
        return None
    return int(digits, 16)


def check_seed(store_id: bytes) -> int:
    """Return what every checksum of this store starts from."""
    return zlib.crc32(store_id)


def encode_header(first_sequence: int, store_id: bytes) -> bytes:
    """Encode the header of a segment."""
    return _checked(_HEADER.pack(MAGIC, VERSION, first_sequence, store_id))


def _checked(header: bytes) -> bytes:
    return header + _HEADER_CHECK.pack(zlib.crc32(header))


def header_is_good(data: Buffer, first_sequence: int, store_id: bytes) -> bool:
    """Say whether a segment begins with exactly the header that its name and store call for.

    Raises ``ForeignLog`` for the undamaged header of another store: that log must not be judged, let alone mended.
    """
    header = bytes(data[:HEADER_BYTES])
    if header == encode_header(first_sequence, store_id):
        return True
    if len(header) == HEADER_BYTES:
        magic, version, sequence, found_id = _HEADER.unpack_from(header)
        if magic == MAGIC and header == _checked(header[: _HEADER.size]) and (version, found_id) != (VERSION, store_id):
            raise ForeignLog(sequence, version, found_id)
    return False


def encode_record(seed: int, sequence: int, kind: int, parts: Sequence[Buffer]) -> list[Buffer]:
    """Encode one record whose payload is the concatenation of ``parts``; the parts are not copied."""
    length = 0
    check = zlib.crc32(_CHECKED.pack(sequence, kind), seed)
    for part in parts:
        length += len(part)
        check = zlib.crc32(part, check)
    return [_FRAME.pack(length, check, sequence, kind), *parts]


def encode_mark(seed: int, sequence: int, synced: int) -> list[Buffer]:
    """Encode the record that says: every sequence up to ``synced`` was synced before this was written."""
    return encode_record(seed, sequence, MARK, (_MARK_PAYLOAD.pack(synced),))


def decode_mark(payload: Buffer) -> int:
    """Return the sequence that a MARK states."""
    return int(_MARK_PAYLOAD.unpack(payload)[0])


def payload_length(frame: Buffer) -> int:
    """Return the length that a record's first ``FRAME_BYTES`` bytes state, unchecked."""
    return int(_FRAME.unpack_from(frame)[0])


def decode_record(data: memoryview, offset: int, seed: int) -> tuple[int, int, memoryview] | None:
    """Return (sequence, type, payload) of the record at ``offset``; None if it is cut off or its check fails."""
    start = offset + FRAME_BYTES
    if start > len(data):
        return None
    length, check, sequence, kind = _FRAME.unpack_from(data, offset)
    payload = data[start : start + length]
    if len(payload) != length or zlib.crc32(payload, zlib.crc32(data[offset + 8 : start], seed)) != check:
        return None
    return sequence, kind, payload


def greatest_mark(data: memoryview, offset: int, seed: int) -> int:
    """Return the greatest synced sequence that any good MARK at or behind ``offset`` states; 0 if there is none."""
    greatest = 0
    for match in _MARK_PATTERN.finditer(data, offset):
        record = decode_record(data[match.start() : match.start() + _MARK_BYTES], 0, seed)
        if record is not None:
            greatest = max(greatest, decode_mark(record[2]))
    return greatest
