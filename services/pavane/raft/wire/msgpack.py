"""MessagePack as docs/specs/raft.md 2.2 has it: two encoders and one decoder.

``encode_js`` writes the bytes that the original program writes, for every frame called *json*; ``encode_pv`` writes the
standard's shortest form, for our own messages. ``decode`` takes both and is total: a value or ``RemoteProtocolError``
with the reason ``json``.
"""

import struct
from collections.abc import Callable
from typing import TypeAlias

from pavane.raft.errors import DropReason
from pavane.raft.wire.frames import Frame, malformed
from pavane.wire import LocalProtocolError, RemoteProtocolError

Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | dict[str, Value] | None"

NESTING_MAX = 16  # arrays and maps inside each other; our deepest message needs five
ELEMENTS_MAX = 65_536  # array items and map pairs of one frame together
EXACT_INTEGER_MAX = 1 << 53  # up to here every integer is a float64 and back

_INT32_MIN = -(1 << 31)
_INT32_MAX = (1 << 31) - 1
_JS_BIN8_BYTES_MAX = 254  # the original writes 255 bytes with a 16-bit length
_PV_BIN8_BYTES_MAX = 255


def encode_js(value: Value) -> bytes:
    """Encode ``value`` as the original program does; integers beyond 32 bits become float64.

    Raises ``LocalProtocolError`` for an integer beyond ±2⁵³, which a float64 would change.
    """
    out = bytearray()
    _append(out, value, _append_js_number, _JS_BIN8_BYTES_MAX)
    return bytes(out)


def encode_pv(value: Value) -> bytes:
    """Encode ``value`` in the shortest standard form; integers -2⁶³ … 2⁶⁴ - 1, else ``LocalProtocolError``."""
    out = bytearray()
    _append(out, value, _append_pv_number, _PV_BIN8_BYTES_MAX)
    return bytes(out)


def decode(frame: Frame) -> Value:
    """Decode the first object of ``frame``; bytes behind it are ignored.

    Refused with the reason ``json``: an empty or cut frame, extension types, map keys that are no text, nesting beyond
    NESTING_MAX, more than ELEMENTS_MAX elements, invalid UTF-8. An integral float of at most 2⁵³ is an integer.
    """
    # Most frames are one number, such as the index in a reply: no cursor for these.
    form = _SCALARS.get(frame[0]) if len(frame) else None
    if form is not None and len(frame) > form.size:
        return _whole(form.unpack_from(frame, 1)[0])
    try:
        return _Decoder(frame).value(0)
    except RemoteProtocolError:
        malformed(DropReason.JSON)


def decode_first(data: Frame) -> tuple[Value, int]:
    """Decode the first object of a stream of them; return it and its length in bytes.

    Raises ``RemoteProtocolError`` with the reason ``short`` if ``data`` ends within it, ``json`` as ``decode``.
    """
    decoder = _Decoder(data)
    value = decoder.value(0)
    return value, decoder.position


_NumberAppender: TypeAlias = Callable[[bytearray, int | float], None]


def _append(out: bytearray, value: Value, number: _NumberAppender, bin8_max: int) -> None:
    match value:
        case None:
            out.append(0xC0)
        case bool():
            out.append(0xC3 if value else 0xC2)
        case int() | float():
            number(out, value)
        case str():
            data = value.encode()
            _append_length(out, len(data), (0xA0, 31), (0xD9, 255), 0xDA, 0xDB)
            out += data
        case bytes():
            _append_length(out, len(value), None, (0xC4, bin8_max), 0xC5, 0xC6)
            out += value
        case list():
            _append_length(out, len(value), (0x90, 15), None, 0xDC, 0xDD)
            for item in value:
                _append(out, item, number, bin8_max)
        case dict():
            _append_length(out, len(value), (0x80, 15), None, 0xDE, 0xDF)
            for key, item in value.items():
                _append(out, key, number, bin8_max)
                _append(out, item, number, bin8_max)


def _append_length(
    out: bytearray, length: int, fix: tuple[int, int] | None, one: tuple[int, int] | None, two: int, four: int
) -> None:
    if fix is not None and length <= fix[1]:
        out.append(fix[0] | length)
    elif one is not None and length <= one[1]:
        out += bytes((one[0], length))
    elif length <= 0xFFFF:
        out += struct.pack(">BH", two, length)
    else:
        out += struct.pack(">BI", four, length)


def _append_js_number(out: bytearray, value: int | float) -> None:
    value = _whole(value)
    if isinstance(value, int):
        if _INT32_MIN <= value <= _INT32_MAX:
            _append_integer(out, value)
            return
        if abs(value) > EXACT_INTEGER_MAX:
            raise LocalProtocolError(f"{value} cannot be sent as a number of 53 bits")
    out += struct.pack(">Bd", 0xCB, value)


def _whole(number: int | float) -> int | float:
    """Return an integral float that has not lost a digit as an integer."""
    if isinstance(number, float) and number.is_integer() and abs(number) <= EXACT_INTEGER_MAX:
        return int(number)
    return number


def _append_pv_number(out: bytearray, value: int | float) -> None:
    if isinstance(value, float):
        out += struct.pack(">Bd", 0xCB, value)
    else:
        _append_integer(out, value)


_INTEGER_FORMS = (  # least, greatest, format
    (0, 0xFF, ">BB", 0xCC),
    (0, 0xFFFF, ">BH", 0xCD),
    (0, 0xFFFF_FFFF, ">BI", 0xCE),
    (0, (1 << 64) - 1, ">BQ", 0xCF),
    (-0x80, -1, ">Bb", 0xD0),
    (-0x8000, -1, ">Bh", 0xD1),
    (_INT32_MIN, -1, ">Bi", 0xD2),
    (-(1 << 63), -1, ">Bq", 0xD3),
)


def _append_integer(out: bytearray, value: int) -> None:
    if -32 <= value < 128:
        out.append(value & 0xFF)
        return
    for least, greatest, form, code in _INTEGER_FORMS:
        if least <= value <= greatest:
            out += struct.pack(form, code, value)
            return
    raise LocalProtocolError(f"{value} does not fit 64 bits")


_SCALARS: dict[int, struct.Struct] = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
_CONSTANTS: dict[int, Value] = {0xC0: None, 0xC2: False, 0xC3: True}
_BIN8 = 0xC4
_BINARY_LENGTH_BYTES = {0xC5: 2, 0xC6: 4}
_TEXT_LENGTH_BYTES = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAY_LENGTH_BYTES = {0xDC: 2, 0xDD: 4}
_MAP_LENGTH_BYTES = {0xDE: 2, 0xDF: 4}


class _Decoder:
    """One pass over a frame; any refusal is a ``RemoteProtocolError``.

    It keeps its own position: every key, command and event passes here, and a cursor's calls would cost more than the
    decoding.
    """

    __slots__ = ("_data", "_elements", "position")

    def __init__(self, frame: Frame) -> None:
        self._data = memoryview(frame)
        self._elements = 0
        self.position = 0  # bytes consumed so far

    def value(self, depth: int) -> Value:
        code = self._byte()
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code < 0x90:
            return self._map(code & 0x0F, depth)
        if code < 0xA0:
            return self._array(code & 0x0F, depth)
        if code < 0xC0:
            return self._text(code & 0x1F)
        if code == _BIN8:
            return bytes(self._take(self._byte()))
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _SCALARS:
            return self._scalar(_SCALARS[code])
        return self._sized(code, depth)

    def _byte(self) -> int:
        position = self.position
        if position >= len(self._data):
            raise RemoteProtocolError("short", "one byte wanted, none left")
        self.position = position + 1
        return self._data[position]

    def _take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self._data):
            raise RemoteProtocolError("short", f"{size} bytes wanted, {len(self._data) - self.position} left")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def _length(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _sized(self, code: int, depth: int) -> Value:
        if code in _BINARY_LENGTH_BYTES:
            return bytes(self._take(self._length(_BINARY_LENGTH_BYTES[code])))
        if code in _TEXT_LENGTH_BYTES:
            return self._text(self._length(_TEXT_LENGTH_BYTES[code]))
        if code in _ARRAY_LENGTH_BYTES:
            return self._array(self._length(_ARRAY_LENGTH_BYTES[code]), depth)
        if code in _MAP_LENGTH_BYTES:
            return self._map(self._length(_MAP_LENGTH_BYTES[code]), depth)
        malformed(DropReason.JSON)

    def _scalar(self, form: struct.Struct) -> int | float:
        return _whole(form.unpack(self._take(form.size))[0])

    def _text(self, size: int) -> str:
        try:
            return str(self._take(size), "utf-8")
        except UnicodeDecodeError:
            malformed(DropReason.JSON)

    def _array(self, count: int, depth: int) -> Value:
        self._enter(count, count, depth)
        return [self.value(depth + 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> Value:
        self._enter(count, 2 * count, depth)
        result: dict[str, Value] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            if not isinstance(key, str):
                malformed(DropReason.JSON)
            result[key] = self.value(depth + 1)
        return result

    def _enter(self, count: int, bytes_min: int, depth: int) -> None:
        self._elements += count
        if depth >= NESTING_MAX or self._elements > ELEMENTS_MAX:
            malformed(DropReason.JSON)
        left = len(self._data) - self.position
        if bytes_min > left:
            raise RemoteProtocolError("short", f"{bytes_min} bytes wanted, {left} left")
