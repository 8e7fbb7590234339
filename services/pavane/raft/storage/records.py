"""Payloads of the records of a Raft store (docs/specs/raft.md 13.2); all numbers are little-endian.

Decoding raises ``StoreError``: a record whose checksum was good but whose payload makes no sense was not written by us.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum

from pavane.raft.state.commands import Token
from pavane.raft.wire.entry import decode_blob, encode_blob
from pavane.raft.wire.msgpack import decode, encode_pv
from pavane.raft.wire.snapshot import SNAPSHOT_NAME
from pavane.wire import RemoteProtocolError

_ENTRIES = struct.Struct("<QI")
_HARD = struct.Struct("<QQH")
_TRUNCATE = struct.Struct("<Q")
_TOKEN = struct.Struct("<QQ")
_SNAPSHOT = struct.Struct("<QQH")
ENTRIES_HEADER_BYTES = _ENTRIES.size

NoteValue = int | str | bytes


class RecordType(IntEnum):
    """Record types. 5 is the MARK of ``pavane.wal``."""

    ENTRIES = 1
    HARD = 2
    TRUNCATE = 3
    SNAPSHOT = 4
    NOTE = 6
    TOKEN = 7


class StoreError(Exception):
    """A store that cannot be opened; the message says which, why and what to do."""


class ForeignStore(StoreError):
    """The store belongs to another peer, cluster or machine (exit code 5)."""


def encode_entries(first: int, entries: Sequence[bytes]) -> bytes:
    """Encode ``entries`` (2.3) with indices from ``first`` on."""
    return _ENTRIES.pack(first, len(entries)) + encode_blob(entries)


def decode_entries(payload: memoryview) -> tuple[int, tuple[memoryview, ...]]:
    """Return the first index and views of the entries."""
    try:
        first, count = _ENTRIES.unpack_from(payload)
        entries = decode_blob(payload[_ENTRIES.size :])
    except (struct.error, RemoteProtocolError) as error:
        raise StoreError("an ENTRIES record of the log has no valid payload") from error
    if count != len(entries) or first < 1:
        raise StoreError(f"an ENTRIES record of the log announces {count} entries from {first}, has {len(entries)}")
    return first, entries


def encode_hard(term: int, vote: str, vote_floor: int) -> bytes:
    """Encode the current term, the peer voted for in it ("" = nobody) and the vote floor."""
    name = vote.encode()
    return _HARD.pack(term, vote_floor, len(name)) + name


def decode_hard(payload: memoryview) -> tuple[int, str, int]:
    """Return term, vote and vote floor."""
    try:
        term, vote_floor, length = _HARD.unpack_from(payload)
        name = bytes(payload[_HARD.size :])
        if len(name) != length:
            raise StoreError("a HARD record of the log has no valid payload")
        return term, name.decode(), vote_floor
    except (struct.error, UnicodeDecodeError) as error:
        raise StoreError("a HARD record of the log has no valid payload") from error


def encode_truncate(after: int) -> bytes:
    """Encode the greatest index that stays."""
    return _TRUNCATE.pack(after)


def decode_truncate(payload: memoryview) -> int:
    """Return the greatest index that stays."""
    try:
        return int(_TRUNCATE.unpack(payload)[0])
    except struct.error as error:
        raise StoreError("a TRUNCATE record of the log has no valid payload") from error


def encode_snapshot(index: int, term: int) -> bytes:
    """Encode the last entry that a snapshot covers, and the name of its file."""
    name = SNAPSHOT_NAME.format(index=index, term=term).encode()
    return _SNAPSHOT.pack(index, term, len(name)) + name


def decode_snapshot(payload: memoryview) -> tuple[int, int]:
    """Return index and term of the last entry that a snapshot covers."""
    try:
        index, term, length = _SNAPSHOT.unpack_from(payload)
        name = bytes(payload[_SNAPSHOT.size :])
        if len(name) != length or name.decode() != SNAPSHOT_NAME.format(index=index, term=term):
            raise StoreError("a SNAPSHOT record of the log has no valid payload")
        return index, term
    except (struct.error, UnicodeDecodeError) as error:
        raise StoreError("a SNAPSHOT record of the log has no valid payload") from error


def encode_token(token: Token) -> bytes:
    """Encode generation and epoch of AllowWrites."""
    return _TOKEN.pack(token.generation, token.epoch)


def decode_token(payload: memoryview) -> Token:
    """Return generation and epoch of AllowWrites."""
    try:
        return Token(*_TOKEN.unpack(payload))
    except struct.error as error:
        raise StoreError("a TOKEN record of the log has no valid payload") from error


def encode_note(key: str, value: NoteValue) -> bytes:
    """Encode a hint."""
    return encode_pv([key, value])


def decode_note(payload: memoryview) -> tuple[str, NoteValue]:
    """Return key and value of a hint."""
    try:
        match decode(payload):
            case [str() as key, int() | str() | bytes() as value]:
                return key, value
    except RemoteProtocolError as error:
        raise StoreError("a NOTE record of the log has no valid payload") from error
    raise StoreError("a NOTE record of the log has no valid payload")
