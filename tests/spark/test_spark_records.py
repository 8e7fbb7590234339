"""Records to rows and back, without Spark: what each format and mode makes of good and of bad data."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pavane.dataflow import jsonrows
from pavane.dataflow.ports import Format, Mode
from pavane.spark import encode
from pavane.spark.decode import Decoder
from pavane.spark.errors import MalformedRecordError, OptionError
from pavane.spark.options import read_options
from pavane.spark.schema import Columns, check_written, columns

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int8()),
        ("x", pa.float64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("d", pa.decimal128(6, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("l", pa.list_(pa.int64())),
        ("o", pa.struct([("k", pa.string())])),
    ]
)


@dataclass
class Transaction:
    id: int
    header: int
    data: bytes


def rows(items: Sequence[bytes], schema: pa.Schema, kind: Format = Format.JSON, mode: str = "PERMISSIVE") -> Any:
    options = read_options({"servers": "a:1", "format": kind, "mode": mode}, streaming=False)
    decoder = Decoder(columns(schema, options), Mode(mode), 7)
    transactions = [Transaction(100 + i, i, item) for i, item in enumerate(items)]
    return [row for batch in decoder.batches(transactions, kind) for row in batch.to_pylist()]


def test_json_is_an_object_an_array_or_objects_one_a_line() -> None:
    schema = pa.schema([("n", pa.int64()), ("txid", pa.int64()), ("seq", pa.int32()), ("partition", pa.int32())])
    items = [b'{"n":1}', b"", b'{"n":2}\n{"n":3}\n', b'[{"n":4},{"n":5}]', b'{\n "n": 6\n}', b"[]", b'{"n":null}']
    found = [(r["n"], r["txid"], r["seq"], r["partition"]) for r in rows(items, schema)]
    assert found == [
        (1, 100, 0, 7), (2, 102, 0, 7), (3, 102, 1, 7), (4, 103, 0, 7), (5, 103, 1, 7), (6, 104, 0, 7),
        (None, 106, 0, 7),
    ]  # fmt: skip


BAD = [
    b"null", b"nope", b'{"n":"one"}', b'{"n":1}{"n":2}', b"\xff", b'{"n":9223372036854775808}', b'{"n":1.5}',
    b"[1]", b"7", b'{"n":', b'{"n":NaN}', b"[" * 100_000, b'"text"',
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_record_is_null_dropped_or_an_error_and_reaches_no_other(bad: bytes) -> None:
    schema = pa.schema([("n", pa.int64()), ("_corrupt_record", pa.string())])
    items = [b'{"n":1}', bad, b'{"n":3}']
    found = rows(items, schema)
    assert (found[0], found[2]) == ({"n": 1, "_corrupt_record": None}, {"n": 3, "_corrupt_record": None})
    assert found[1]["n"] is None
    assert found[1]["_corrupt_record"] is not None
    assert [row["n"] for row in rows(items, schema, mode="DROPMALFORMED")] == [1, 3]
    with pytest.raises(MalformedRecordError, match="partition 7, transaction 101 does not fit"):
        rows(items, schema, mode="FAILFAST")


def test_a_bad_value_leaves_the_others_of_its_row() -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    assert rows([b'{"n":"one","s":"kept"}'], schema) == [{"n": None, "s": "kept"}]


def test_a_column_that_may_not_be_null_needs_a_value() -> None:
    with pytest.raises(MalformedRecordError, match="column 'n' is NOT NULL"):
        rows([b"{}"], pa.schema([pa.field("n", pa.int64(), nullable=False)]))


DATETIMES = st.datetimes(datetime.fromisoformat("1900-01-01"), datetime.fromisoformat("2200-01-01"))
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none()
        | st.integers(-(2**64), 2**64)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=3),
        "small": st.integers(-200, 200),
        "x": st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.sampled_from(["NaN", "1", True]),
        "b": st.booleans() | st.sampled_from([0, "true", None]),
        "s": st.text(max_size=6) | st.integers() | st.booleans() | st.lists(st.integers(), max_size=2),
        "d": st.integers(-10_000, 10_000) | st.sampled_from([1.5, 0.005, 9999.999, 12345.6, "1.5"]),
        "day": st.dates().map(date.isoformat) | st.sampled_from(["20260131", "2026-02-30", 5, "2026-01-31T00:00:00"]),
        "at": DATETIMES.map(lambda t: t.isoformat() + "Z")
        | st.sampled_from(
            ["2026-01-31", "2026-01-31T10:00:00", "2026-01-31 10:00:00+02:00", 0, "2026-01-31T25:00:00Z"]
        ),
        "l": st.lists(st.integers() | st.none(), max_size=3) | st.sampled_from([1, ["a"], {}]),
        "o": st.fixed_dictionaries({}, optional={"k": st.text(max_size=3), "z": st.integers()}) | st.just([]),
        "more": st.integers(),
    },
)


@settings(derandomize=True)
@given(st.lists(VALUES, min_size=1, max_size=4), st.booleans())
def test_whole_blocks_mean_what_single_documents_mean(documents: list[dict[str, Any]], ascii_only: bool) -> None:
    items = [json.dumps(document, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") for document in documents]
    quick = jsonrows.fast(items, SCHEMA)
    if quick is None:
        return
    table, counts = quick
    slow = [jsonrows.fitted(document, SCHEMA) for item in items for document in jsonrows.documents(item)]
    assert counts == [1] * len(items)
    assert [problem for _, problem in slow] == [""] * len(items)
    expected = pa.table(jsonrows.arrays([values for values, _ in slow], SCHEMA), schema=SCHEMA)
    assert table.to_pylist() == expected.to_pylist()


@settings(derandomize=True)
@given(
    st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=4),
    st.sampled_from([(",", ":"), (" , ", " : "), (",\n", ":")]),
    st.sampled_from([None, 1]),
)
def test_arrays_mean_what_their_elements_mean(
    arrays: list[list[dict[str, Any]]], separators: tuple[str, str], indent: int | None
) -> None:
    items = [
        json.dumps(array, indent=indent, separators=separators).encode("utf-8", "surrogatepass") for array in arrays
    ]
    quick = jsonrows.fast(items, SCHEMA)
    if quick is None:
        return
    table, counts = quick
    slow = [[jsonrows.fitted(document, SCHEMA) for document in jsonrows.documents(item)] for item in items]
    assert counts == [len(each) for each in slow]
    assert [problem for each in slow for _, problem in each] == [""] * sum(counts)
    expected = jsonrows.arrays([values for each in slow for values, _ in each], SCHEMA)
    assert table.to_pylist() == pa.table(expected, schema=SCHEMA).to_pylist()


@pytest.mark.parametrize(
    "array",
    [
        b'[{"n":1},]', b'[{"n":1}', b"[,]", b'[{"n":1} {"n":2}]', b'[{"n":1}]]', b'[{"n":1}],"x":[{"n":2}]', b"[null]",
        b'[{"n":1},2]', b'[[{"n":1}]]', b'[{"n":1}\xff]', b'[{"n":NaN}]', b"[" * 100_000,
        b'[{"n":' + b"1" * 5000 + b"}]", b"[", b'[{"n":1}]\x00',
    ],
)  # fmt: skip
def test_what_is_no_array_of_objects_takes_the_slow_way(array: bytes) -> None:
    assert jsonrows.fast([b'{"n":7}', array], SCHEMA) is None


def test_good_blocks_take_the_fast_way() -> None:
    arrays = [b'[{"n":1,"s":"}, {\\"]"},{"n":2}]', b"[]", b' [ {"n":3} ] ', b'{"n":4}']
    quick = jsonrows.fast(arrays, SCHEMA)
    assert quick is not None
    assert (quick[0].column("n").to_pylist(), quick[1]) == ([1, 2, 3, 4], [2, 0, 1, 1])
    assert jsonrows.fast([b'{"n":1,"s":"\xc3\xa4"}', b'{"n":2}\n{"n":3}'], SCHEMA) is not None


FULL = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "small": st.none() | st.integers(-128, 127),
        "x": st.none() | st.floats(allow_nan=False),
        "b": st.none() | st.booleans(),
        "s": st.none() | st.text(max_size=8),
        "d": st.none() | st.decimals(-9999, 9999, places=2),
        "day": st.none() | st.dates(),
        "at": st.none() | DATETIMES.map(lambda t: t.replace(tzinfo=UTC)),
        "l": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3),
        "o": st.none() | st.fixed_dictionaries({"k": st.none() | st.text(max_size=3)}),
    }
)


@settings(derandomize=True)
@given(st.lists(FULL, max_size=5), st.sampled_from([Format.JSON, Format.ARROW]))
def test_what_is_written_is_read_back(values: list[dict[str, Any]], kind: Format) -> None:
    batch = pa.RecordBatch.from_pylist(values, schema=SCHEMA)
    packer = encode.Packer(kind, (0,), (), rows_apart=True)
    records = [*packer.add(batch), *packer.rest()]
    assert rows([record.data for record in records], SCHEMA, kind) == values


def test_numbers_that_json_lacks_are_written_as_spark_writes_them() -> None:
    batch = pa.RecordBatch.from_pydict({"x": [float("nan"), float("inf"), float("-inf")]})
    text = b"".join(encode.json_lines(batch))
    assert text == b'{"x":"NaN"}\n{"x":"Infinity"}\n{"x":"-Infinity"}\n'
    assert [str(row["x"]) for row in rows([text], batch.schema)] == ["nan", "inf", "-inf"]


@pytest.mark.parametrize("kind", [Format.JSON, Format.ARROW])
def test_rows_are_packed_into_records_of_a_bounded_size(kind: Format) -> None:
    batch = pa.RecordBatch.from_pydict({"n": list(range(30_000)), "s": ["x" * 100] * 30_000})
    packer = encode.Packer(kind, (3,), (), rows_apart=True)
    records = [*packer.add(batch), *packer.add(batch), *packer.rest()]
    assert len(records) > 8
    assert all(r.partition == 3 and len(r.data) <= 1.1 * encode.RECORD_BYTES for r in records)
    assert [row["n"] for row in rows([r.data for r in records], batch.schema, kind)] == 2 * list(range(30_000))


def test_a_row_that_no_record_holds_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({"s": ["x" * (encode.RECORD_BYTES_MAX + 1)]})
    packer = encode.Packer(Format.JSON, (0,), (), rows_apart=True)
    with pytest.raises(MalformedRecordError, match="a record has"):
        list([*packer.add(batch), *packer.rest()])


def test_rows_go_where_a_column_or_a_hash_says() -> None:
    batch = pa.RecordBatch.from_pydict({"c": ["a", "b", "c", "a"]})
    packer = encode.Packer(Format.JSON, (4, 5), ("c",), rows_apart=True)
    records = [*packer.add(batch), *packer.rest()]
    where = {json.loads(line)["c"]: r.partition for r in records for line in r.data.splitlines()}
    assert set(where.values()) <= {4, 5}
    assert sum(len(r.data.splitlines()) for r in records) == 4
    named = pa.RecordBatch.from_arrays([pa.array([5, 9], pa.int32()), pa.array(["a", "b"])], ["partition", "c"])
    with pytest.raises(MalformedRecordError, match="names partition 9"):
        list(encode.Packer(Format.JSON, (5,), (), rows_apart=True).add(named))


def test_a_value_that_does_not_fit_costs_its_row_of_an_arrow_record() -> None:
    ids = [str(number) for number in range(1000)]
    ids[17] = "seventeen"
    written = encode.arrow_stream([pa.RecordBatch.from_pydict({"n": ids, "s": ["x"] * 1000})])
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("seq", pa.int32()), ("_corrupt_record", pa.string())])
    found = rows([written], schema, Format.ARROW)
    assert [row["n"] for row in found] == [None if number == 17 else number for number in range(1000)]
    assert [row["seq"] for row in found] == list(range(1000))
    assert {row["s"] for row in found} == {"x"}
    (corrupt,) = (row["_corrupt_record"] for row in found if row["_corrupt_record"] is not None)
    with pa.ipc.open_stream(base64.b64decode(corrupt)) as stream:
        assert stream.read_all().to_pylist() == [{"n": "seventeen", "s": "x"}]
    assert len(rows([written], schema, Format.ARROW, "DROPMALFORMED")) == 999
    with pytest.raises(MalformedRecordError, match="column 'n'"):
        rows([written], schema, Format.ARROW, "FAILFAST")


def test_a_string_column_keeps_what_a_record_says() -> None:
    schema = pa.schema([("s", pa.string()), ("l", pa.list_(pa.string())), ("o", pa.struct([("k", pa.string())]))])
    items = [b'{"s": {"a" : 1.50}, "l": [1e2, {"z":[ ]}, "t", null], "o": {"k": -0}}', b'[{"s": 1e2},{"s" : [1,\t2]}]']
    assert rows(items, schema) == [
        {"s": '{"a" : 1.50}', "l": ["1e2", '{"z":[ ]}', "t", None], "o": {"k": "-0"}},
        {"s": "1e2", "l": None, "o": None},
        {"s": "[1,\t2]", "l": None, "o": None},
    ]


def test_arrow_is_read_by_name_and_what_is_none_is_bad() -> None:
    written = encode.arrow_stream([pa.RecordBatch.from_pydict({"other": [1], "n": pa.array([5], pa.int32())})])
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("_corrupt_record", pa.string())])
    found = rows([written, b"no arrow", b"", written[:-40]], schema, Format.ARROW)
    assert found[0] == {"n": 5, "s": None, "_corrupt_record": None}
    assert found[1] == {"n": None, "s": None, "_corrupt_record": "bm8gYXJyb3c="}
    assert [row["n"] for row in rows([b"no arrow", written], schema, Format.ARROW, "DROPMALFORMED")] == [5]


@pytest.mark.parametrize(
    ("schema", "kind", "words"),
    [
        (pa.schema([("data", pa.binary())]), Format.JSON, "format 'json' does not have"),
        (pa.schema([("n", pa.int64())]), Format.RAW, "format 'raw' has the columns"),
        (pa.schema([("txid", pa.string()), ("n", pa.int64())]), Format.JSON, "place in the log"),
        (pa.schema([("_corrupt_record", pa.int64()), ("n", pa.int64())]), Format.JSON, "must be a STRING"),
        (pa.schema([("txid", pa.int64())]), Format.JSON, "no column of data"),
        (pa.schema([("l", pa.list_(pa.binary()))]), Format.JSON, "column 'l'"),
    ],
)
def test_a_schema_that_the_format_cannot_fill_is_refused(schema: pa.Schema, kind: Format, words: str) -> None:
    with pytest.raises(OptionError) as refused:
        columns(schema, read_options({"servers": "a:1", "format": kind}, streaming=False))
    assert words in str(refused.value)


def test_a_schema_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(OptionError, match=r"df\.drop"):
        check_written(pa.schema([("txid", pa.int64()), ("n", pa.int64())]), Format.JSON)
    with pytest.raises(OptionError, match="written by format 'raw' only"):
        check_written(pa.schema([("header", pa.int32()), ("n", pa.int64())]), Format.JSON)


def test_decimals_keep_their_digits() -> None:
    columns_ = Columns(pa.schema([("d", pa.decimal128(38, 10))]), pa.schema([("d", pa.decimal128(38, 10))]), None)
    text = b'{"d":1234567890123456789012345678.0123456789}'
    decoder = Decoder(columns_, Mode.PERMISSIVE, 0)
    found = [r for batch in decoder.batches([Transaction(0, 0, text)], Format.JSON) for r in batch.to_pylist()]
    assert found == [{"d": Decimal("1234567890123456789012345678.0123456789")}]
