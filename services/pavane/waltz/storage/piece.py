"""A piece of an archive: the bytes of a segment of these transactions, without a time (docs/specs/waltz.md 13.9)."""

import hashlib
import zlib
from collections.abc import Sequence
from uuid import UUID

from pavane.waltz.state.archived import Piece
from pavane.waltz.state.store import Damaged
from pavane.waltz.storage.segment import CRC, HEADER_BYTES, RECORD_LAYOUT, SEGMENT_HEAD, VERSION, parse_record
from pavane.waltz.wire.storage import Record


def cut(key: UUID, partition: int, records: Sequence[Record]) -> tuple[Piece, bytes]:
    """Return records as a piece, and its bytes: the same for the same records, whoever cuts it."""
    head = SEGMENT_HEAD.pack(VERSION, 0, key.bytes, partition, records[0].txid)
    parts = [head.ljust(HEADER_BYTES, b"\0")]
    for txid, reqid, header, data, crc in records:
        head = RECORD_LAYOUT.pack(txid, *reqid, header, len(data), crc)
        parts += (head, data, CRC.pack(zlib.crc32(data, zlib.crc32(head))))
    whole = b"".join(parts)
    return Piece(records[0].txid, records[-1].txid, hashlib.sha256(whole).hexdigest()), whole


def records_of(piece: Piece, data: bytes, partition: int) -> tuple[UUID, list[Record]]:
    """Return the log's key and the records of a piece. Raises ``Damaged`` unless every byte is as it was written."""
    if hashlib.sha256(data).hexdigest() != piece.digest:
        raise Damaged("it does not match its SHA-256")
    version, _, key, number, first = SEGMENT_HEAD.unpack_from(data)
    records, at = [], HEADER_BYTES
    while at < len(data):
        record, size = parse_record(data, at)
        records.append(record)
        at += size
    if (version, number, first, len(records)) != (VERSION, partition, piece.first, piece.last - piece.first + 1):
        raise Damaged("it is of another partition, or has other transactions than its name says")
    return UUID(bytes=key), records
