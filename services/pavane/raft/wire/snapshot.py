"""The snapshot file, which is also what ``pv.snapshot`` and ``pv.follow`` carry (docs/specs/raft.md 9.2)."""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from pavane.raft.wire.entry import COMMAND_DIGEST_BYTES, decode_configuration
from pavane.raft.wire.frames import UINT_MAX, Frame
from pavane.raft.wire.msgpack import Value, decode, encode_pv
from pavane.wire import RemoteProtocolError

MAGIC = b"PVRS"
VERSION = 1
_HEAD = struct.Struct("<4sIQQQQ")
_CHECK = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CHECK.size
DIGEST_BYTES = 32
META_BYTES_MAX = 64 << 20  # held in memory: a full table of request ids has 16 MiB
SNAPSHOT_BYTES_MAX = 8 << 30  # SNAPSHOT_BYTES of 14.4: what is taken from a leader
SNAPSHOT_NAME = "{index:016x}-{term:016x}.pvs"


class BadSnapshotFile(Exception):
    """Bytes that are no whole, undamaged snapshot file of this version; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class SnapshotHead:
    """Up to which entry the snapshot goes, and the bytes of its two parts."""

    index: int
    term: int
    meta_bytes: int
    data_bytes: int

    @property
    def data_offset(self) -> int:
        """Where the machine's own data begin: what ``$`` and ``<`` carry."""
        return HEAD_BYTES + self.meta_bytes

    @property
    def total(self) -> int:
        """Bytes of the whole file."""
        return self.data_offset + self.data_bytes + DIGEST_BYTES

    def encode(self) -> bytes:
        """Return the first ``HEAD_BYTES`` of the file."""
        head = _HEAD.pack(MAGIC, VERSION, self.index, self.term, self.meta_bytes, self.data_bytes)
        return head + _CHECK.pack(zlib.crc32(head))

    @classmethod
    def decode(cls, data: Frame) -> "SnapshotHead":
        """Read them; raises ``BadSnapshotFile``."""
        if len(data) < HEAD_BYTES:
            raise BadSnapshotFile("it is cut off in its head")
        magic, version, index, term, meta_bytes, data_bytes = _HEAD.unpack_from(data)
        if _CHECK.unpack_from(data, _HEAD.size)[0] != zlib.crc32(data[: _HEAD.size]) or magic != MAGIC:
            raise BadSnapshotFile("its head is damaged, or it is no snapshot")
        if version != VERSION:
            raise BadSnapshotFile(f"it has format version {version}, this program reads {VERSION}")
        head = cls(index, term, meta_bytes, data_bytes)
        if not 0 < index <= UINT_MAX or term > UINT_MAX or meta_bytes > META_BYTES_MAX or head.total > UINT_MAX:
            raise BadSnapshotFile("its head states impossible numbers")
        return head


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """What a log that begins behind the snapshot no longer tells.

    ``configuration`` is the data of the CONFIG entry in force at the snapshot's index, which was at
    ``configuration_index`` (0: no entry stated it). ``ids`` are the request ids at or below the snapshot's index, in
    groups of u32 second · u32 n · n × (last 8 bytes of the id · u64 index), little-endian but for the id; ``digests``
    has a u64 for each of them in this order, what ``command_digest`` makes of its command, 0 where that is not known,
    or is empty; ``floor`` is the greatest second that is forgotten (10.3). ``bare`` says that no leader told the
    configuration: it is the one that was in force where the snapshot came as data alone (9.4, 5).
    """

    configuration: bytes
    configuration_index: int
    machine: str
    level: int
    floor: int
    ids: bytes
    bare: bool = False
    digests: bytes = b""

    def encode(self) -> bytes:
        """Return the meta part of the file."""
        meta: dict[str, Value] = {
            "config": self.configuration,
            "config_index": self.configuration_index,
            "machine": self.machine,
            "level": self.level,
            "floor": self.floor,
            "ids": self.ids,
        }
        if self.digests:
            meta["digests"] = self.digests
        if self.bare:
            meta["bare"] = True
        return encode_pv(meta)

    @classmethod
    def decode(cls, data: Frame) -> "SnapshotMeta":
        """Read it; raises ``BadSnapshotFile``."""
        try:
            match decode(data):
                case {
                    "config": bytes() as configuration,
                    "config_index": int() as index,
                    "machine": str() as machine,
                    "level": int() as level,
                    "floor": int() as floor,
                    "ids": bytes() as ids,
                    **others,
                }:
                    if configuration:
                        decode_configuration(configuration)
                    count, digests = _check_groups(ids), others.get("digests", b"")
                    if not isinstance(digests, bytes) or len(digests) not in (0, count * COMMAND_DIGEST_BYTES):
                        raise BadSnapshotFile("its digests are not those of its request ids")
                    bare = others.get("bare") is True
                    return cls(configuration, index, machine, level, floor, ids, bare, digests)
        except RemoteProtocolError as error:
            raise BadSnapshotFile("its meta part does not decode") from error
        raise BadSnapshotFile("its meta part is no map of the right fields")


_GROUP = struct.Struct("<II")
_ID = struct.Struct("<8sQ")
ID_BYTES = 16  # of one id in a group: its last 8 bytes and the index


class IdGroup(NamedTuple):
    """The ids of one second as ``encode_group`` makes them, and a digest for each of them."""

    ids: bytes
    digests: bytes


def join_groups(groups: Iterable[IdGroup]) -> tuple[bytes, bytes]:
    """Return ``ids`` and ``digests`` of a meta part."""
    taken = tuple(groups)
    return b"".join(group.ids for group in taken), b"".join(group.digests for group in taken)


def encode_group(second: int, ids: bytes) -> bytes:
    """Encode the ids of one second, ``ids`` being n × (8 bytes · u64 index)."""
    return _GROUP.pack(second, len(ids) // ID_BYTES) + ids


def decode_groups(ids: Frame) -> list[tuple[int, memoryview]]:
    """Split what ``SnapshotMeta.decode`` has checked into (second, n × 16 bytes)."""
    view = memoryview(ids)
    groups = []
    offset = 0
    while offset < len(view):
        second, count = _GROUP.unpack_from(view, offset)
        offset += _GROUP.size
        groups.append((second, view[offset : offset + count * ID_BYTES]))
        offset += count * ID_BYTES
    return groups


def later_groups(ids: Frame, by: int) -> bytes:
    """Return checked groups with every index later by so much."""
    return b"".join(
        encode_group(second, b"".join(_ID.pack(key, index + by) for key, index in _ID.iter_unpack(group)))
        for second, group in decode_groups(ids)
    )


def decode_digests(digests: Frame, first: int, count: int) -> Sequence[int]:
    """Return ``count`` of the digests from number ``first`` on; zeros where there are none."""
    if not digests:
        return [0] * count
    return struct.unpack_from(f"<{count}Q", digests, first * COMMAND_DIGEST_BYTES)


def _check_groups(ids: Frame) -> int:
    """Return the number of ids."""
    offset = total = 0
    while offset < len(ids):
        if offset + _GROUP.size > len(ids):
            raise BadSnapshotFile("its request ids are cut off")
        _, count = _GROUP.unpack_from(ids, offset)
        offset += _GROUP.size + count * ID_BYTES
        total += count
    if offset != len(ids):
        raise BadSnapshotFile("its request ids are cut off")
    return total


class SnapshotScan:
    """Takes a file in pieces of any size, from its first byte; keeps head and meta, and checks the digest."""

    def __init__(self) -> None:
        self.head: SnapshotHead | None = None
        self.taken = 0
        self._digest = blake2b(digest_size=DIGEST_BYTES)
        self._front = bytearray()  # head and meta
        self._tail = bytearray()

    def feed(self, piece: Frame) -> None:
        """Take the next bytes; raises ``BadSnapshotFile`` as soon as they cannot belong to a good file."""
        view = memoryview(piece)
        self.taken += len(view)
        if self.head is None:
            self._front += view
            if len(self._front) < HEAD_BYTES:
                return
            self.head = SnapshotHead.decode(bytes(self._front))
            view, self._front = memoryview(bytes(self._front)), bytearray()
            self.taken = len(view)
        head = self.head
        if self.taken > head.total:
            raise BadSnapshotFile("it is longer than its head says")
        start = self.taken - len(view)
        missing = head.data_offset - start
        if missing > 0:
            self._front += view[:missing]
        hashed = head.total - DIGEST_BYTES - start
        if hashed > 0:
            self._digest.update(view[:hashed])
        self._tail += view[max(0, hashed) :]

    @property
    def digest(self) -> bytes:
        """The digest of what was taken so far, which ends the file when all before it has been."""
        return self._digest.digest()

    def finish(self) -> tuple[SnapshotHead, SnapshotMeta]:
        """Return what the whole file states; raises ``BadSnapshotFile`` if it is cut off or damaged."""
        if self.head is None or self.taken < self.head.total:
            raise BadSnapshotFile("it is cut off")
        if self._digest.digest() != self._tail:
            raise BadSnapshotFile("it does not match its digest")
        return self.head, SnapshotMeta.decode(bytes(self._front[HEAD_BYTES:]))
