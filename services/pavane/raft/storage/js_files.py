"""The files of an original zmq-raft peer: bytes in, values out, and back (docs/specs/raft.md 13.6).

Decoding is total: any bytes are a value, or ``JsFileError`` that names the file and the offset. Nothing is allocated by
a length that the bytes do not hold.
"""

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from pavane.raft.wire.entry import check_entry
from pavane.raft.wire.frames import UINT_MAX, Frame
from pavane.raft.wire.msgpack import Value, decode_first, encode_js
from pavane.wire import RemoteProtocolError

LOG_SUFFIX = ".rlog"
LOG_ENTRIES = 16_384  # indices per file: each but the first begins at a multiple of it
LOG_ENTRIES_MAX = 0x00FF_FFFF  # what the original takes as a file's capacity
LOG_DATA_BYTES_MAX = 0x3FFF_FFFF  # entries of one file together: the original's reader holds no more

_VERSION = 1
_TOKEN = struct.Struct("<4sI")
_RLOG = struct.Struct("<4sIIIQ")
_END = struct.Struct("<I")  # where an entry ends, in the data
_RLOG_TOKEN_BYTES = _RLOG.size - _TOKEN.size  # of the header's own size, beside the table of offsets
_SNAP = struct.Struct("<4sIIQQQ")
_LOG_NAME = re.compile(r"[0-9a-f]{14}\.rlog")
_INDEX_DIGITS = 14
_FOLDER_CUTS = (5, 7, 9)  # a file lies in folders of the first 5, the next 2 and the next 2 digits of its name


class JsFileError(Exception):
    """A file of the original program that does not hold what it should; says which, where and what is wrong."""

    def __init__(self, file: str, offset: int, problem: str) -> None:
        super().__init__(f"{file}: {problem}, at offset {offset}")
        self.file = file
        self.offset = offset


@dataclass(frozen=True, slots=True)
class JsLogFile:
    """One ``.rlog`` file: the index that it begins with, and its entries as views of the file's bytes."""

    first: int
    capacity: int
    entries: Sequence[memoryview]


@dataclass(frozen=True, slots=True)
class JsSnapshot:
    """The file ``snap``: last included index, its term, and the machine's data. Index 0 is no snapshot."""

    index: int
    term: int
    data: Frame


@dataclass(frozen=True, slots=True)
class JsProperties:
    """The last values in a ``.pers`` file, and how many bytes of an unfinished write follow them."""

    values: Mapping[str, Value] = field(default_factory=dict)
    torn_bytes: int = 0


def log_path(first: int) -> str:
    """Return the path below ``log`` of the file that begins with index ``first``."""
    name = f"{first:0{_INDEX_DIGITS}x}"
    folders = "/".join(name[a:b] for a, b in zip((0, *_FOLDER_CUTS), _FOLDER_CUTS, strict=False))
    return f"{folders}/{name}{LOG_SUFFIX}"


def first_of_name(name: str) -> int | None:
    """Return the index that a log file's name states; None if it is no log file's name."""
    return int(name.removesuffix(LOG_SUFFIX), 16) if _LOG_NAME.fullmatch(name) else None


def log_capacity(first: int) -> int:
    """Return how many entries the original puts into the file that begins with index ``first``."""
    return LOG_ENTRIES - first % LOG_ENTRIES


def decode_log(name: str, data: Frame, first: int) -> JsLogFile:
    """Decode a ``.rlog`` file whose name states index ``first``.

    Entries are those that the table of offsets names; bytes behind them are of a write that was never finished.
    """
    view = memoryview(data)
    if len(view) < _RLOG.size:
        raise JsFileError(name, len(view), "the file ends within its header")
    magic, size, version, capacity, found = _RLOG.unpack_from(view)
    if magic != b"RLOG" or version != _VERSION:
        raise JsFileError(name, 0, f"not a log file of version {_VERSION}")
    if not 1 <= capacity <= LOG_ENTRIES_MAX or size != _RLOG_TOKEN_BYTES + _END.size * capacity:
        raise JsFileError(name, 12, f"a capacity of {capacity} entries does not agree with the header")
    if found != first:
        raise JsFileError(name, 16, f"the file says that it begins with index {found}, its name says {first}")
    start = _find(name, view, _TOKEN.size + size, b"ITMZ")
    ends = (end for (end,) in _END.iter_unpack(view[_RLOG.size : _RLOG.size + _END.size * capacity]))
    return JsLogFile(first, capacity, _entries(name, view, start, ends))


def encode_log(first: int, capacity: int, entries: Sequence[Frame], created: str, host: str) -> list[Frame]:
    """Return the parts of a ``.rlog`` file that holds ``entries``, at most ``capacity``, from ``first`` on."""
    ends = b"".join(map(_END.pack, accumulate(map(len, entries)))).ljust(_END.size * capacity, b"\0")
    header = _RLOG.pack(b"RLOG", _RLOG_TOKEN_BYTES + len(ends), _VERSION, capacity, first)
    return [header, ends, *_meta(created, host), _TOKEN.pack(b"ITMZ", 0), *entries]


def decode_snapshot(name: str, data: Frame) -> JsSnapshot:
    """Decode the file ``snap``."""
    view = memoryview(data)
    if len(view) < _SNAP.size:
        raise JsFileError(name, len(view), "the file ends within its header")
    magic, size, version, index, term, data_bytes = _SNAP.unpack_from(view)
    if magic != b"SNAP" or size != _SNAP.size - _TOKEN.size or version != _VERSION:
        raise JsFileError(name, 0, f"not a snapshot of version {_VERSION}")
    if index > UINT_MAX or term > UINT_MAX or (index == 0 and term != 0):
        raise JsFileError(name, 12, f"index {index} of term {term} cannot be")
    start = _find(name, view, _SNAP.size, b"DATA")
    if len(view) - start != data_bytes:
        raise JsFileError(name, start, f"{len(view) - start} bytes of data, the header says {data_bytes}")
    return JsSnapshot(index, term, view[start:])


def encode_snapshot(snapshot: JsSnapshot, created: str, host: str) -> list[Frame]:
    """Return the parts of the file ``snap``."""
    size = _SNAP.size - _TOKEN.size
    header = _SNAP.pack(b"SNAP", size, _VERSION, snapshot.index, snapshot.term, len(snapshot.data))
    return [header, *_meta(created, host), _TOKEN.pack(b"DATA", 0), snapshot.data]


def decode_properties(name: str, data: Frame) -> JsProperties:
    """Decode a ``.pers`` file: maps one behind the other, of which the last value of a key counts."""
    view = memoryview(data)
    values: dict[str, Value] = {}
    offset = 0
    while offset < len(view):
        try:
            value, length = decode_first(view[offset:])
        except RemoteProtocolError as error:
            if error.reason == "short":
                break
            raise JsFileError(name, offset, "neither a MessagePack value nor the beginning of one") from error
        if not isinstance(value, dict):
            raise JsFileError(name, offset, "not a map of changed properties")
        values |= value
        offset += length
    return JsProperties(values, len(view) - offset)


def encode_properties(values: Mapping[str, Value]) -> bytes:
    """Return a ``.pers`` file with ``values``."""
    return encode_js(dict(values))


def _entries(name: str, view: memoryview, start: int, ends: Iterable[int]) -> list[memoryview]:
    entries: list[memoryview] = []
    begin = 0
    for end in ends:
        if end == 0:
            break
        offset = start + begin
        if end <= begin:
            raise JsFileError(name, offset, f"the table lets entry {len(entries) + 1} end before it begins")
        if start + end > len(view):
            raise JsFileError(name, offset, f"entry {len(entries) + 1} goes on behind the end of the file")
        try:
            entries.append(memoryview(check_entry(view[offset : start + end])))
        except RemoteProtocolError as error:
            raise JsFileError(name, offset, f"{end - begin} bytes are no entry") from error
        begin = end
    return entries


def _find(name: str, view: memoryview, offset: int, wanted: bytes) -> int:
    """Return where the data of the token ``wanted`` begins."""
    while offset + _TOKEN.size <= len(view):
        token, size = _TOKEN.unpack_from(view, offset)
        offset += _TOKEN.size
        if token == wanted:
            return offset
        offset += size + (-size & 3)
    raise JsFileError(name, len(view), f"the file ends before its part {wanted.decode()}")


def _meta(created: str, host: str) -> list[Frame]:
    meta = encode_js({"created": created, "hostname": host})
    return [_TOKEN.pack(b"META", len(meta)), meta + bytes(-len(meta) & 3)]
