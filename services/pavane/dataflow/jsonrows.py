"""JSON documents to columns: whole blocks by Arrow's parser, a block that it refuses document by document.

What the slow way says is the meaning; the fast way must never say anything else. A data item is an object, an array of
objects, or objects one a line.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from decimal import Context as DecimalContext
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.json as pa_json

from pavane.dataflow.rows import check_times

DATE = re.compile(r"\d{4}-\d\d-\d\d")
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d{1,6})?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?")
DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?")
DECIMAL_DIGITS = DecimalContext(prec=80)  # Twice what a DECIMAL can hold: rounding to its scale loses nothing more.
FLOAT_WORDS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}  # As Spark writes them.
GAP = re.compile(r"[ \t\r\n]*")
SEPARATOR, COLON = (re.compile(rf"[ \t\r\n]*{sign}[ \t\r\n]*") for sign in ",:")
SCAN = json.JSONDecoder().raw_decode
"""Finds where a JSON value ends."""
SCAN_ALL = json.JSONDecoder(strict=False).raw_decode
"""The same for what the slow way takes: letters of control in strings."""
Written = Callable[[], str]
"""The text of a value, found only for whoever asks for it."""
INTEGER_RANGES = {pa.int8(): 2**7, pa.int16(): 2**15, pa.int32(): 2**31, pa.int64(): 2**63}


@dataclass(frozen=True, slots=True)
class Document:
    """One row to be: its object or why it is none, and where it is written: all of a text, or a place of an array."""

    written: str
    value: dict[str, Any] | None
    problem: str = ""
    place: int | None = None

    @property
    def text(self) -> str:
        """The text, found only for whoever asks for it."""
        return self.written if self.place is None else elements(self.written)[self.place]


class Unfit(Exception):
    """A value that a column cannot take."""


def fast(items: list[bytes], schema: pa.Schema) -> tuple[pa.Table, list[int]] | None:
    """Return the rows of all items and how many each has, or None if they need the slow way.

    Only blocks in which each line is one object come here: each line begins with `{` and ends with `}`, so none runs on
    into the next, and the number of rows then says that none holds two. (Arrow's parser ends the process at `null`.) An
    array of objects is first made such lines.
    """
    filled = [item.strip(b" \t\r\n") for item in items]
    filled = [_lines(item) if item.startswith(b"[") else item for item in filled]
    text = b"\n".join([item for item in filled if item])
    if not text:
        return None
    text += b"\n"
    lines = text.count(b"\n")
    parsed = _parsed(schema)
    if (
        parsed is None
        or (text[:1] == b"{") + text.count(b"\n{") != lines
        or text.count(b"}\n") != lines
        or not len(schema)
    ):
        return None
    try:
        if not text.isascii():
            text.decode()
        table = pa_json.read_json(
            pa.BufferReader(text),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pa_json.ParseOptions(explicit_schema=parsed, unexpected_field_behavior="ignore"),
        )
        if table.num_rows != lines or table.schema.types != parsed.types:
            return None
        table = table.cast(schema)
        if any(pa.types.is_decimal(kind) for kind in schema.types):
            table.validate(full=True)  # The parser takes more digits than the type has.
        for column in table.columns:
            check_times(column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError, OverflowError):
        return None
    return table, [item.count(b"\n") + 1 if item else 0 for item in filled]


def _lines(array: bytes) -> bytes:
    """Return the objects of an array one a line, as they stand there; whatever else it is, the array itself."""
    found: list[str] = []
    try:
        text = array.decode()
        start, more = _behind(GAP, text, 1), False
        while text[start] == "{":
            _, end = SCAN(text, start)
            found.append(text[start:end])
            start = _behind(SEPARATOR, text, end)
            more = start > end
            if not more:
                break
    except (ValueError, IndexError, RecursionError):
        return array
    return array if more or text[_behind(GAP, text, start) :] != "]" else "\n".join(found).encode()


def _behind(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return found.end() if found is not None else start


def _parsed(schema: pa.Schema) -> pa.Schema | None:
    """Return what the parser is told, None if it would take too much: it takes numbers as times."""
    fields = []
    for part in schema:
        kind = part.type
        if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            fields.append(part.with_type(pa.string()))
        elif pa.types.is_nested(kind) and re.search("decimal|date|timestamp", str(kind)):
            return None
        else:
            fields.append(part)
    return pa.schema(fields)


def documents(item: bytes) -> Iterator[Document]:
    """Yield the documents of an item; what is none comes with the reason."""
    text = item.decode("utf-8", errors="replace")
    if not text.strip():
        return
    try:
        whole = _parse(item)
    except ValueError as error:
        lines = [line for line in item.split(b"\n") if line.strip()]
        if len(lines) == 1:
            yield Document(text, None, str(error))
            return
        for line in lines:
            yield _document(line)
        return
    if isinstance(whole, list):
        for place, value in enumerate(whole):
            yield _row(text, value, place)
    else:
        yield _row(text, whole)


def _document(line: bytes) -> Document:
    text = line.decode("utf-8", errors="replace").strip()
    try:
        return _row(text, _parse(line))
    except ValueError as error:
        return Document(text, None, str(error))


def _row(text: str, value: object, place: int | None = None) -> Document:
    if isinstance(value, dict):
        return Document(text, value, place=place)
    return Document(text, None, f"it is {_named(value)}, not an object", place)


@lru_cache(maxsize=2)  # a row's neighbours ask for the same array
def elements(array: str) -> list[str]:
    """Return the values of an array, which was parsed before, as they are written."""
    found = []
    start = _behind(GAP, array, array.index("[") + 1)
    while array[start] != "]":
        _, end = SCAN_ALL(array, start)
        found.append(array[start:end])
        start = _behind(GAP, array, _behind(SEPARATOR, array, end))
    return found


@lru_cache(maxsize=2)  # a row's columns ask for the same object
def members(written: str) -> dict[str, str]:
    """Return the values of an object, which was parsed before, as they are written."""
    found = {}
    start = _behind(GAP, written, written.index("{") + 1)
    while written[start] != "}":
        name, end = SCAN_ALL(written, start)
        start = _behind(COLON, written, end)
        _, end = SCAN_ALL(written, start)
        found[name] = written[start:end]
        start = _behind(GAP, written, _behind(SEPARATOR, written, end))
    return found


def _parse(item: bytes) -> object:
    try:
        return json.loads(item.decode(), parse_float=Decimal, parse_constant=_no_constant, strict=False)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except InvalidOperation:
        raise ValueError("it holds a number that is out of all bounds") from None


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _named(value: object) -> str:
    names = {
        str: "a string",
        bool: "a boolean",
        int: "a number",
        Decimal: "a number",
        list: "an array",
        dict: "an object",
    }
    return "null" if value is None else names.get(type(value), "a number")


def converted(value: object, kind: pa.DataType, written: Written) -> object:
    """Return a JSON value as the Python value of a column. Raise Unfit if the column cannot take it."""
    if value is None:
        return None
    convert = _conversion(kind)
    if convert is None:
        raise Unfit(f"no column of type {kind} comes from JSON")
    return convert(value, kind, written)


@cache
def _conversion(kind: pa.DataType) -> Callable[[Any, pa.DataType, Written], object] | None:
    return next((convert for test, convert in CONVERSIONS if test(kind)), None)


def _boolean(value: Any, _kind: pa.DataType, _written: Written) -> object:
    if isinstance(value, bool):
        return value
    raise Unfit(f"{_named(value)} is no BOOLEAN")


def _integer(value: Any, kind: pa.DataType, _written: Written) -> object:
    if type(value) is not int:
        raise Unfit(f"{_named(value)} is no whole number")
    if not -INTEGER_RANGES[kind] <= value < INTEGER_RANGES[kind]:
        raise Unfit(f"the number does not fit into {kind}")
    return value


def _floating(value: Any, _kind: pa.DataType, _written: Written) -> object:
    if isinstance(value, str) and value in FLOAT_WORDS:
        return FLOAT_WORDS[value]
    if type(value) is int or isinstance(value, Decimal):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    raise Unfit(f"{_named(value)} is no number")


def _decimal(value: Any, kind: pa.DataType, _written: Written) -> object:
    if isinstance(value, str) and DECIMAL.fullmatch(value):
        value = Decimal(value)
    if type(value) is not int and not isinstance(value, Decimal):
        raise Unfit(f"{_named(value)} is no number")
    number = Decimal(value)
    if number.is_zero():
        return Decimal(0)
    if number.adjusted() + 1 > kind.precision - kind.scale:
        raise Unfit(f"the number does not fit into {kind}")
    rounded = number.quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, DECIMAL_DIGITS)
    if rounded.adjusted() + 1 > kind.precision - kind.scale and not rounded.is_zero():
        raise Unfit(f"the number does not fit into {kind}")
    return rounded


def _string(value: Any, _kind: pa.DataType, written: Written) -> object:
    if not isinstance(value, str):
        return written()  # as Spark does
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Unfit("the string holds half a surrogate pair")
    return value


def _date(value: Any, _kind: pa.DataType, _written: Written) -> object:
    if isinstance(value, str) and DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise Unfit(f"{_named(value)} is no DATE such as 2026-01-31")


def _timestamp(value: Any, kind: pa.DataType, _written: Written) -> object:
    if isinstance(value, str) and TIMESTAMP.fullmatch(value):
        try:
            moment = datetime.fromisoformat(value)
            if kind.tz is not None:
                # A time without a zone is UTC: the records do not know the session's time zone.
                return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
            if moment.tzinfo is None:
                return moment
        except (ValueError, OverflowError):
            pass
    raise Unfit(f"{_named(value)} is no TIMESTAMP such as 2026-01-31T12:00:00Z")


def _list(value: Any, kind: pa.DataType, written: Written) -> object:
    if not isinstance(value, list):
        raise Unfit(f"{_named(value)} is no array")
    return [_element(element, kind.value_type, written, place) for place, element in enumerate(value)]


def _element(value: object, kind: pa.DataType, written: Written, place: int) -> object:
    return converted(value, kind, lambda: elements(written())[place])


def _struct(value: Any, kind: pa.DataType, written: Written) -> object:
    if not isinstance(value, dict):
        raise Unfit(f"{_named(value)} is no object")
    return {field.name: _member(value, field, written) for field in kind}


def _member(value: dict[str, Any], field: pa.Field, written: Written) -> object:
    return converted(value.get(field.name), field.type, lambda: members(written())[field.name])


CONVERSIONS = (
    (pa.types.is_boolean, _boolean),
    (pa.types.is_integer, _integer),
    (pa.types.is_floating, _floating),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_string, _string),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_list, _list),
    (pa.types.is_struct, _struct),
)


def fitted(document: Document, schema: pa.Schema) -> tuple[list[object], str]:
    """Return a document's values, NULL for those that do not fit, and the first reason why one does not."""
    if document.value is None:
        return [None] * len(schema), document.problem
    values: list[object] = []
    problem = ""
    for field in schema:
        try:
            values.append(_member(document.value, field, lambda: document.text))
        except (Unfit, RecursionError) as unfit:
            values.append(None)
            problem = problem or f"column {field.name!r}: {unfit}"
    return values, problem


def arrays(rows: Iterable[list[object]], schema: pa.Schema) -> list[pa.Array]:
    """Return rows as one array for each column."""
    listed = list(rows)
    return [pa.array([row[i] for row in listed], type=field.type) for i, field in enumerate(schema)]
