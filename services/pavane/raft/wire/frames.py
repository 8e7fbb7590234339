"""Frame types of docs/specs/raft.md 2.1, both directions.

A decoder takes one received frame and either returns its value or raises ``RemoteProtocolError`` with a reason of 3.4.
An encoder raises ``LocalProtocolError`` for a value that the type cannot hold: our own mistake.
"""

from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from pavane.raft.errors import DropReason
from pavane.wire import LocalProtocolError, RemoteProtocolError

Frame: TypeAlias = bytes | memoryview
Frames: TypeAlias = Sequence[Frame]

UINT_MAX = (1 << 53) - 1  # the greatest integer that the original program can hold (1.2 D5)
UINT_FRAME_BYTES = 16  # longest frame taken as a number; trailing zero bytes are allowed
FRAMES_MAX = 65_544  # frames of one message (14.4)
FRAME_BYTES = 11 << 20  # greatest that a socket takes: an entry of 10 MiB, its header and room to spare (14.4)
MESSAGE_ID_MAX = (1 << 24) - 1  # ids of peer RPCs have 1-3 bytes (2.1)
MESSAGE_ID_BYTES = 3
CLIENT_ID_BYTES = 64  # longest client id that is echoed
REQID_BYTES = 12
NONCE_BYTES = 8
ENTRY_DATA_BYTES = 10 * 1024 * 1024  # data of one entry (14.4)

TRUE = b"\x01"
FALSE = b""
NIL_UINT = b""

_SMALL_UINTS = tuple(bytes([value]) for value in range(256))


def malformed(reason: DropReason) -> NoReturn:
    """Raise the error of a frame that does not decode; it carries no contents, because they may be secret."""
    raise RemoteProtocolError(reason.value)


def encode_uint(value: int) -> bytes:
    """Encode 0 … 2⁵³ - 1 little-endian in as few bytes as possible, 0 as one byte."""
    if 0 <= value < 256:
        return _SMALL_UINTS[value]
    if not 0 <= value <= UINT_MAX:
        raise LocalProtocolError(f"{value} is not an unsigned number below 2^53")
    return value.to_bytes((value.bit_length() + 7) // 8, "little")


def decode_uint(frame: Frame) -> int:
    """Decode 1-16 bytes little-endian; empty, longer, or above 2⁵³ - 1: ``uint``."""
    if not 1 <= len(frame) <= UINT_FRAME_BYTES:
        malformed(DropReason.UINT)
    value = int.from_bytes(frame, "little")
    if value > UINT_MAX:
        malformed(DropReason.UINT)
    return value


def encode_optional_uint(value: int | None) -> bytes:
    """Encode a nuint: ``None`` is an empty frame."""
    return NIL_UINT if value is None else encode_uint(value)


def decode_optional_uint(frame: Frame) -> int | None:
    """Decode a nuint: an empty frame is ``None``."""
    return decode_uint(frame) if len(frame) else None


def encode_bool(value: bool) -> bytes:
    """Encode a bool: ``01`` or an empty frame."""
    return TRUE if value else FALSE


def decode_bool(frame: Frame) -> bool:
    """Decode a bool: true iff there is a first byte and it is not 0."""
    return len(frame) > 0 and frame[0] != 0


def decode_string(frame: Frame) -> str:
    """Decode UTF-8; invalid: ``utf8``."""
    try:
        return str(frame, "utf-8")
    except UnicodeDecodeError:
        malformed(DropReason.UTF8)


def check_data(frame: Frame) -> Frame:
    """Return ``frame`` if its size is that of an entry's data (1 byte … ENTRY_DATA_BYTES); else ``size``."""
    if not 1 <= len(frame) <= ENTRY_DATA_BYTES:
        malformed(DropReason.SIZE)
    return frame


def next_message_id(last: int) -> int:
    """Return the number of the peer RPC after ``last``; after 16777215 comes 0 (docs/specs/raft.md 2.1)."""
    return 0 if last >= MESSAGE_ID_MAX else last + 1
