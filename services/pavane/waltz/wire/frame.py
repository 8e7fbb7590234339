"""Frames, Hello and the choice of a version, the same on all four links (docs/specs/waltz.md 2.1, 2.3).

``Channel`` is one end of a connection without its socket: bytes in, messages out. It is the only codec that client,
server, storage node and admin port need.
"""

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from pavane.waltz.wire.fields import NULLABLE_TEXT, Listed
from pavane.waltz.wire.storage import ADMIN_REQUESTS, ADMIN_RESPONSES, STORAGE_REQUESTS, STORAGE_RESPONSES, Record
from pavane.waltz.wire.tables import REQUESTS, RESPONSES
from pavane.wire import LimitExceeded, LocalProtocolError, RemoteProtocolError
from pavane.wire.fields import Layout, Scalar, Table

FRAME_BYTES_MAX = 64 * 1024 * 1024  # of one body; the original has no bound
DATA_BYTES_MAX = FRAME_BYTES_MAX - 4096  # of one transaction, so that it fits every message that carries it
HELLO_BYTES_MAX = 4 + 2 * 64 + 4 + 1024  # 64 versions and a text of 1 KiB
VERSIONS_MAX = 64
_HEADER = struct.Struct(">bhi")
_FEED_DATA = struct.Struct(">bhibiiiiqi")  # frame, type, request id, transaction, header
_FEED_DATA_BYTES, _FEED_DATA_TYPE = _FEED_DATA.size - _HEADER.size, 4
_COMPACT_BYTES_MIN = 64 * 1024  # consumed bytes are dropped from the buffer in steps of this size


class Magic(IntEnum):
    """First byte of a frame: what the link is."""

    HELLO = ord("H")
    LOG = ord("L")
    STORAGE = ord("S")
    ADMIN = ord("A")


class Hello(NamedTuple):
    """Versions that the sender speaks, ascending, and who it is."""

    versions: tuple[int, ...]
    text: str


class Side(NamedTuple):
    """One end of a link: what it says and what it hears in each version."""

    magic: Magic
    text: str
    sends: Mapping[int, Table]
    hears: Mapping[int, Table]


LOG_CLIENT = Side(Magic.LOG, "Waltz Client", REQUESTS, RESPONSES)
LOG_PEER = Side(Magic.LOG, "Waltz Server", REQUESTS, RESPONSES)  # a server that asks another one
LOG_SERVER = Side(Magic.LOG, "Waltz Server", RESPONSES, REQUESTS)
STORAGE_CLIENT = Side(Magic.STORAGE, "Waltz Storage Client", STORAGE_REQUESTS, STORAGE_RESPONSES)
STORAGE_SERVER = Side(Magic.STORAGE, "Waltz Storage Server", STORAGE_RESPONSES, STORAGE_REQUESTS)
ADMIN_CLIENT = Side(Magic.ADMIN, "Waltz Storage Admin Client", ADMIN_REQUESTS, ADMIN_RESPONSES)
ADMIN_SERVER = Side(Magic.ADMIN, "Waltz Storage Admin Server", ADMIN_RESPONSES, ADMIN_REQUESTS)


class FeedBurst(tuple[Record, ...]):
    """Transactions on their way to readers below V5: a FEED_DATA each, encoded once for all readers of a version."""

    _encoded: tuple[int, bytes] = -1, b""

    def encode(self, version: int) -> bytes:
        """Return the frames."""
        if self._encoded[0] != version:
            pack = _FEED_DATA.pack
            start = Magic.LOG, version, _FEED_DATA_BYTES, _FEED_DATA_TYPE
            frames = [pack(*start, *reqid, txid, header) for txid, reqid, header, _, _ in self]
            self._encoded = version, b"".join(frames)
        return self._encoded[1]


HELLO = Layout(Hello, Listed(Scalar("h"), VERSIONS_MAX), NULLABLE_TEXT)


class Channel:
    """One end of a connection. Send ``hello()`` first; feed received bytes to ``receive`` and take ``message()``s.

    ``version`` is ``None`` until the peer's Hello was taken; only then may messages be sent. Every error of the peer is
    a ``RemoteProtocolError`` and ends the connection, except ``ChecksumError`` on V5 and the reason ``NULL_LOCKS``,
    after which ``message()`` may be called again.
    """

    def __init__(self, side: Side, versions: Sequence[int] | None = None) -> None:
        self._side = side
        self._offered = tuple(sorted(side.sends if versions is None else versions))
        self._buffer = bytearray()
        self._at = 0
        self._sends: Table | None = None
        self._hears: Table | None = None
        self._magic, self._body_bytes_max = Magic.HELLO, HELLO_BYTES_MAX
        self.version: int | None = None
        self.peer: Hello | None = None

    @property
    def buffered(self) -> int:
        """Bytes received and not yet decoded."""
        return len(self._buffer) - self._at

    def hello(self) -> bytes:
        """Return the frame to send as soon as the connection is up."""
        body = HELLO.encode(Hello(self._offered, self._side.text))
        return _HEADER.pack(Magic.HELLO, 0, len(body)) + body

    def keep_alive(self) -> bytes:
        """Return an empty frame, which the peer ignores."""
        if self.version is None:
            return _HEADER.pack(Magic.HELLO, 0, 0)
        return _HEADER.pack(self._side.magic, self.version, 0)

    def encode(self, message: object) -> bytes:
        """Return the frame of ``message``; raises ``LocalProtocolError`` if it cannot be said in this version."""
        if self._sends is None or self.version is None:
            raise LocalProtocolError("nothing may be sent before the peer's Hello came")
        if type(message) is FeedBurst:
            return message.encode(self.version)
        body = self._sends.encode(message)
        if len(body) > FRAME_BYTES_MAX:
            raise LocalProtocolError(f"a message of {len(body)} bytes is more than a frame holds ({FRAME_BYTES_MAX})")
        return _HEADER.pack(self._side.magic, self.version, len(body)) + body

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes from the peer."""
        self._buffer += data

    def message(self) -> Any:
        """Return the next whole message, or ``None`` if more bytes are needed; takes Hello and keep-alives itself."""
        buffer = self._buffer
        while len(buffer) >= (start := self._at + _HEADER.size):
            magic, version, size = _HEADER.unpack_from(buffer, self._at)
            if magic != self._magic or version != (self.version or 0):
                raise RemoteProtocolError(
                    "frame", f"magic {magic} version {version} where {(self._magic, self.version or 0)} belongs"
                )
            if not 0 <= size <= self._body_bytes_max:
                raise LimitExceeded(
                    "HELLO_BYTES_MAX" if self.version is None else "FRAME_BYTES_MAX", size, self._body_bytes_max
                )
            end = start + size
            if len(buffer) < end:
                break
            self._at = end
            if not size:
                continue
            if self._hears is not None:
                return self._hears.decode(bytes(buffer[start:end]))
            self._take_hello(HELLO.decode(bytes(buffer[start:end])))
        self._drop_consumed()
        return None

    def _drop_consumed(self) -> None:
        """Drop what was consumed: at once if that is all, else in steps, for it moves what is left."""
        if self._at == len(self._buffer) or self._at >= _COMPACT_BYTES_MIN:
            del self._buffer[: self._at]
            self._at = 0

    def _take_hello(self, hello: Hello) -> None:
        common = set(self._offered) & set(hello.versions)
        if not common:
            raise RemoteProtocolError("version", f"the peer speaks {hello.versions}, we speak {self._offered}")
        self.peer = hello
        self.version = max(common)
        self._magic, self._body_bytes_max = self._side.magic, FRAME_BYTES_MAX
        self._sends = self._side.sends[self.version]
        self._hears = self._side.hears[self.version]
