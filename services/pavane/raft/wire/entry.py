"""Log entries, the configuration inside them, and blobs of them (docs/specs/raft.md 2.3, 2.5, 8.1, 8.4).

The log keeps entries in their encoded form; the ``entry_…`` functions read one field without building an object.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias, overload
from zlib import crc32

from pavane.raft.errors import DropReason
from pavane.raft.wire.frames import ENTRY_DATA_BYTES, REQID_BYTES, UINT_MAX, Frame, malformed
from pavane.raft.wire.msgpack import Value, decode, encode_js
from pavane.wire import LocalProtocolError, RemoteProtocolError

PeerList: TypeAlias = tuple[tuple[str, str], ...]
"""Members as (peer id, url) in the order given."""

ENTRY_HEADER_BYTES = 20
ENTRY_BYTES_MIN = ENTRY_HEADER_BYTES + 1  # the original ends on an entry without data
ENTRY_BYTES_MAX = ENTRY_HEADER_BYTES + ENTRY_DATA_BYTES
ZERO_REQID = bytes(REQID_BYTES)
CHECKPOINT_DATA = b"\xc0"
BLOB_LENGTH_BYTES = 4
COMMAND_DIGEST_BYTES = 8

_TYPE_OFFSET = REQID_BYTES
_TERM_OFFSET = REQID_BYTES + 1
_TERM_TOP_BYTE_MAX = UINT_MAX >> 48
_U64 = (1 << 8 * COMMAND_DIGEST_BYTES) - 1


class EntryType(IntEnum):
    """What an entry holds; other numbers are stored and replicated and do nothing."""

    STATE = 0
    CONFIG = 1
    CHECKPOINT = 2


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the log: 12-byte request id, type byte, term, data of at least one byte."""

    reqid: bytes
    type: int
    term: int
    data: Frame

    def encode(self) -> bytes:
        """Encode as 2.3; raises ``LocalProtocolError`` for a field out of range."""
        return encode_entry(self.reqid, self.type, self.term, self.data)

    @classmethod
    def decode(cls, entry: Frame) -> "LogEntry":
        """Decode one entry; ``data`` is a view of the input. Raises ``RemoteProtocolError`` (``entry``, ``size``)."""
        check_entry(entry)
        return cls(entry_reqid(entry), entry_type(entry), entry_term(entry), entry_data(entry))


def encode_entry(reqid: Frame, entry_type: int, term: int, data: Frame) -> bytes:
    """Encode an entry (docs/specs/raft.md 2.3); raises ``LocalProtocolError`` for a field out of range."""
    if len(reqid) != REQID_BYTES or not 1 <= len(data) <= ENTRY_DATA_BYTES or not 0 <= term <= UINT_MAX:
        raise LocalProtocolError(f"no entry: request id of {len(reqid)}, data of {len(data)} bytes, term {term}")
    return b"".join((reqid, bytes([entry_type]), term.to_bytes(7, "little"), data))


# What every entry is asked for at each peer; with Python 3.11 a member of an enumeration costs ten times a global.
_CONFIG = int(EntryType.CONFIG)


def check_entry(entry: Frame) -> Frame:
    """Return ``entry`` if it is one; else raise ``entry`` (too short, term beyond 2⁵³) or ``size`` (data too long)."""
    # The highest of the term's seven bytes alone tells whether the term is below 2⁵³.
    if len(entry) < ENTRY_BYTES_MIN or entry[ENTRY_HEADER_BYTES - 1] > _TERM_TOP_BYTE_MAX:
        malformed(DropReason.ENTRY)
    if len(entry) > ENTRY_BYTES_MAX:
        malformed(DropReason.SIZE)
    return entry


def check_configuration(entry: Frame) -> Frame:
    """Return ``entry``, an encoded entry; raises ``config`` if it is a CONFIG entry whose data is no configuration."""
    if is_configuration(entry):
        decode_configuration(entry_data(entry))
    return entry


def is_configuration(entry: Frame) -> bool:
    """Whether it is a CONFIG entry."""
    return entry[_TYPE_OFFSET] == _CONFIG


def entry_reqid(entry: Frame) -> bytes:
    """Return the 12-byte request id."""
    return bytes(entry[:REQID_BYTES])


def entry_type(entry: Frame) -> int:
    """Return the type byte; ``EntryType`` names those that mean something."""
    return entry[_TYPE_OFFSET]


def entry_term(entry: Frame) -> int:
    """Return the term."""
    return int.from_bytes(entry[_TERM_OFFSET:ENTRY_HEADER_BYTES], "little")


def entry_data(entry: Frame) -> memoryview:
    """Return the data as a view of ``entry``."""
    return memoryview(entry)[ENTRY_HEADER_BYTES:]


def command_digest(entry_type: int, data: Frame) -> int:
    """Return a number by which commands are told apart that came with one request id (10.3), never 0.

    Commands of one type and length agree by chance once in 4·10⁹. Each peer computes it for each entry, so it is cheap.
    """
    return (len(data) << 40 & _U64 | entry_type << 32 | crc32(data)) or 1


def entry_digest(entry: Frame) -> int:
    """Return the digest of the command in an entry, as ``command_digest`` does, without calls on the way."""
    data = entry[ENTRY_HEADER_BYTES:]
    return (len(data) << 40 & _U64 | entry[_TYPE_OFFSET] << 32 | crc32(data)) or 1


def encode_blob(entries: Iterable[Frame]) -> bytes:
    """Join encoded entries, each behind its length (docs/specs/raft.md 2.5)."""
    parts: list[Frame] = []
    for entry in entries:
        parts += (len(entry).to_bytes(BLOB_LENGTH_BYTES, "little"), entry)
    return b"".join(parts)


@overload
def decode_blob(blob: memoryview) -> tuple[memoryview, ...]: ...


@overload
def decode_blob(blob: Frame) -> tuple[Frame, ...]: ...


def decode_blob(blob: Frame) -> tuple[Frame, ...]:
    """Split a blob into its entries: bytes of bytes, views of a view.

    Raises ``size`` for a record past the end, ``entry`` for one that is none.
    """
    entries: list[Frame] = []
    start, end = 0, len(blob)
    while start < end:  # once for each entry and follower: without calls on the way
        entry_at = start + BLOB_LENGTH_BYTES
        start = entry_at + int.from_bytes(blob[start:entry_at], "little")
        if start > end or entry_at > end:
            malformed(DropReason.SIZE)
        entries.append(check_entry(blob[entry_at:start]))
    return tuple(entries)


def encode_configuration(new: Sequence[tuple[str, str]], old: Sequence[tuple[str, str]] | None = None) -> bytes:
    """Encode the data of a CONFIG entry: ``[[id, url], …]``, or ``{old, new}`` while the change is joint (8.1)."""
    if old is None:
        return encode_js(peers_value(new))
    return encode_js({"old": peers_value(old), "new": peers_value(new)})


def decode_configuration(data: Frame) -> tuple[PeerList, PeerList | None]:
    """Decode the data of a CONFIG entry into (new, old); old is ``None`` for a final configuration.

    Checks the shape only. Raises ``RemoteProtocolError("config")`` for data that is no configuration.
    """
    try:
        value = decode(data)
        if isinstance(value, dict):
            return parse_peers(value.get("new")), parse_peers(value.get("old"))
        return parse_peers(value), None
    except RemoteProtocolError:
        malformed(DropReason.CONFIG)


def peers_value(peers: Sequence[tuple[str, str]]) -> Value:
    """Return ``peers`` as the arrays that MessagePack carries."""
    return [[peer, url] for peer, url in peers]


def parse_peers(value: Value) -> PeerList:
    """Return the members in a decoded ``[[id, url], …]``; ``json`` for any other shape."""
    if not isinstance(value, list):
        malformed(DropReason.JSON)
    peers: list[tuple[str, str]] = []
    for pair in value:
        match pair:
            case [str() as peer, str() as url]:
                peers.append((peer, url))
            case _:
                malformed(DropReason.JSON)
    return tuple(peers)


def bootstrap_entry(initial: Sequence[tuple[str, str]]) -> bytes:
    """Return entry 1 of a new cluster, the same bytes on every peer (docs/specs/raft.md 8.4)."""
    return encode_entry(ZERO_REQID, EntryType.CONFIG, 0, encode_configuration(initial))
