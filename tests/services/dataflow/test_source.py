"""Rows of the log as a table declares them, and what happens to those that do not fit."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pavane.dataflow import source as source_module
from pavane.dataflow.entries import CHAIN_HEADER
from pavane.dataflow.ports import DIFF, TIME, BadRowError, Binding, Table, ViewError
from pavane.dataflow.source import LogSource
from pavane.dataflow.sql import parse

COLUMNS = "id BIGINT, price DECIMAL(8,2), at TIMESTAMP"


@dataclass(frozen=True, slots=True)
class Record:
    id: int
    data: bytes
    header: int = 0


class Records:
    """One partition; of which a reader sees a part at first, as at a server that lags."""

    def __init__(self, *data: bytes | Record) -> None:
        self.records = [each if isinstance(each, Record) else Record(i, each) for i, each in enumerate(data)]
        self.visible = 1

    async def read(self, partition: int, start: int, stop: int) -> AsyncIterator[Any]:
        assert partition == 0
        for record in self.records[start : min(stop, self.visible)]:
            yield record
        self.visible += 1

    async def append(self, *_: Any, **__: Any) -> int:
        raise NotImplementedError

    async def get(self, partition: int, txid: int) -> Any:
        return self.records[txid]

    async def hwm(self, partition: int) -> int:
        return len(self.records) - 1


def table(options: str = "", columns: str = COLUMNS) -> Table:
    text = f"CREATE TABLE t ({columns}) USING waltz OPTIONS (partitions '0'{options});"
    return parse(f"{text} CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t").tables[0]


async def read(source: LogSource, of: Table, *ends: int) -> list[dict[str, Any]]:
    ticks = [Binding(tick, {0: end}, 0) for tick, end in enumerate(ends, 1)]
    rows: list[dict[str, Any]] = (await source.read(of, None, ticks[-1], ticks)).to_pylist()
    return rows


async def test_a_row_has_the_first_tick_that_includes_it() -> None:
    log = Records(
        b'{"id": 1, "price": "1.5", "at": "2026-01-02T03:04:05Z"}', b'[{"id": 2}, {"id": 3, "more": 1}]', b'{"id": 4}'
    )
    rows = await read(LogSource(log), table(), 1, 1, 3)
    assert [(row["id"], row[TIME], row[DIFF]) for row in rows] == [(1, 1, 1), (2, 3, 1), (3, 3, 1), (4, 3, 1)]
    assert (rows[0]["price"], rows[0]["at"]) == (Decimal("1.50"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


async def test_rows_after_a_binding_come_once() -> None:
    log = Records(*(b'{"id": %d}' % i for i in range(6)))
    ticks = [Binding(2, {0: 3}, 0), Binding(3, {0: 5}, 0)]
    found = await LogSource(log).read(table(), Binding(1, {0: 2}, 0), ticks[-1], ticks)
    assert [(row["id"], row[TIME]) for row in found.to_pylist()] == [(2, 2), (3, 3), (4, 3)]


BAD = (b'{"id": 1}', b"no JSON", b'{"id": "x", "price": 2}', b'{"id": 9223372036854775808}', b'{"id": 5}')


@pytest.mark.parametrize(
    ("mode", "ids"), [("PERMISSIVE", [1, None, None, None, 5]), ("DROPMALFORMED", [1, 5])]
)  # fmt: skip
async def test_rows_that_do_not_fit_are_counted_with_their_place(mode: str, ids: list[int | None]) -> None:
    source = LogSource(Records(*BAD))
    rows = await read(source, table(f", mode '{mode}'"), 2, 5)
    assert [row["id"] for row in rows] == ids
    assert source.bad_count == 3
    assert [(bad.tick, bad.partition, bad.txid) for bad in source.bad] == [(1, 0, 1), (2, 0, 2), (2, 0, 3)]
    assert "column 'id': a string is no whole number" in source.bad[1].reason


async def test_failfast_names_the_row() -> None:
    with pytest.raises(BadRowError, match="table t: partition 0, transaction 1 cannot be decoded"):
        await read(LogSource(Records(*BAD)), table(", mode 'FAILFAST'"), 5)


NUMBERS = 1000


def stream(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    whole = pa.table(columns)
    with pa.ipc.new_stream(sink, whole.schema) as writer:
        writer.write_table(whole)
    written: bytes = sink.getvalue().to_pybytes()
    return written


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (", mode 'PERMISSIVE'", NUMBERS),
        (", mode 'DROPMALFORMED'", NUMBERS - 2),
        (", diff 'true'", NUMBERS - 2),
        (", key 'id'", NUMBERS - 2),
    ],
)
async def test_a_value_that_does_not_fit_costs_its_row_of_an_arrow_record(options: str, left: int) -> None:
    ids = [str(number) for number in range(NUMBERS)]
    ids[17], ids[500] = "seventeen", ""
    data = stream(id=ids, price=["1.5"] * NUMBERS, __diff=[1] * NUMBERS)
    source = LogSource(Records(data, stream(id=["1000"], price=["2"], __diff=[1])))
    rows = await read(source, table(f", format 'arrow'{options}", "id BIGINT, price DECIMAL(8,2)"), 2)
    assert len(rows) == left + 1
    known = [row["id"] for row in rows if row["id"] is not None]
    assert sorted(known) == [number for number in range(NUMBERS + 1) if number not in (17, 500)]
    assert {row["price"] for row in rows} == {Decimal("1.50"), Decimal(2)}
    assert source.bad_count == 2
    assert "column 'id'" in source.bad[0].reason
    assert "seventeen" in source.bad[0].reason


async def test_times_that_python_does_not_have_cost_their_row() -> None:
    """One of them ended the process that keeps the views, whenever it read the log."""
    written = ("0000-01-01", "2026-01-01"), ("2026-01-02", "9999-12-31T23:59:59-01:00"), ("2026-01-03", "2026-01-03")
    source = LogSource(Records(b"".join(b'{"d": "%b", "at": "%b"}\n' % (d.encode(), at.encode()) for d, at in written)))
    rows = await read(source, table(", mode 'DROPMALFORMED'", "d DATE, at TIMESTAMP"), 1)
    assert [row["d"] for row in rows] == [date(2026, 1, 3)]
    assert source.bad_count == 2
    days, times = (pa.array([2**31 - 1, 0, -(2**31), 3], pa.int32()), pa.array([0, 2**63 - 1, 0, 0]))
    data = stream(d=days.cast(pa.date32()), at=times.cast(pa.timestamp("us")))
    source = LogSource(Records(data))
    rows = await read(source, table(", format 'arrow'", "d DATE, at TIMESTAMP"), 1)
    assert [(row["d"], row["at"] is None) for row in rows] == [
        (None, False), (date(1970, 1, 1), True), (None, False), (date(1970, 1, 4), False)
    ]  # fmt: skip
    assert source.bad_count == 3
    assert "column 'd'" in source.bad[0].reason


async def test_a_string_column_keeps_what_a_record_says() -> None:
    log = Records(
        b'{"s": 1.50}', b'{"s": {"a" : 1.5, "b": [1e2]}}', b'[{"s": 1e2}, {"s": true}, {"s": "x"}, {"s": null}]'
    )
    rows = await read(LogSource(log), table(columns="s STRING"), 3)
    assert [row["s"] for row in rows] == ["1.50", '{"a" : 1.5, "b": [1e2]}', "1e2", "true", "x", None]


WRONG = b'{"id": 2, "price": "x", "__diff": 1}'


async def test_a_table_may_bring_its_own_diff() -> None:
    log = Records(
        b'{"id": 1, "__diff": 2}', b'{"id": 1, "__diff": -1}', b'{"id": 1}', b'{"id": 2, "price": "x", "__diff": 1}'
    )
    source = LogSource(log)
    rows = await read(source, table(", diff 'true'"), 1, 4)
    assert [(row["id"], row[DIFF]) for row in rows] == [(1, 2), (1, -1)]
    assert source.bad_count == 2  # one without a diff, and one that would count a row of which nobody knows what it was


@pytest.mark.parametrize("piece", [source_module.STEP_BYTES_MAX, 1])
async def test_of_one_tick_only_what_is_left_is_read(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "STEP_BYTES_MAX", piece)
    columns = "flag BOOLEAN, n BIGINT, x DOUBLE, s STRING, b BINARY, d DECIMAL(8,2), day DATE, at TIMESTAMP"
    whole = (
        '{"flag": true, "n": %d, "x": 0.5, "s": "s", "b": "Yg==", "d": "1.50", "day": "2026-01-02", '
        '"at": "2026-01-02T03:04:05Z", "__diff": %d}'
    )
    empty = '{"__diff": %d}'
    lines = [whole % (1, 1), whole % (2, 1), empty % 1, whole % (1, -1), empty % -1, whole % (2, 2), empty % 1]
    source = LogSource(Records(*(line.encode() for line in lines)))
    rows = await read(source, table(", diff 'true'", columns), len(lines))
    assert sorted((row["n"] or 0, row["d"], row[TIME], row[DIFF]) for row in rows) == [
        (0, None, 1, 1),
        (2, Decimal("1.50"), 1, 3),
    ]
    assert source.bad_count == 0


async def test_sums_of_diffs_may_be_beyond_64_bits_in_between_but_not_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_module, "STEP_BYTES_MAX", 2 * 1100)
    diffs = [(1, 2**62), (1, 2**62), (2, 1), (2, -1), (1, -5), (3, 1)]
    lines = [b'{"id": %d, "__diff": %d}' % each for each in diffs]
    rows = await read(LogSource(Records(*lines)), table(", diff 'true'"), len(lines))
    assert sorted((row["id"], row[DIFF]) for row in rows) == [(1, 2**63 - 5), (3, 1)]
    with pytest.raises(ViewError, match="more often than 64 bits can count"):
        await read(LogSource(Records(*lines[:2])), table(", diff 'true'"), 2)


async def test_a_table_with_a_key_takes_no_row_without_it_and_none_that_does_not_fit() -> None:
    log = Records(b'{"id": 1, "price": "1"}', b'{"price": "2"}', b'{"id": 2, "price": "x"}', b'{"id": 3}')
    source = LogSource(log)
    rows = await read(source, table(", key 'id'"), 4)
    assert [(row["id"], row[DIFF]) for row in rows] == [(1, 1), (3, 1)]
    assert [(bad.txid, bad.reason) for bad in source.bad] == [
        (1, "column 'id': it has no value"),
        (2, source.bad[1].reason),
    ]


async def test_arrow_and_raw() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("id", pa.int32())])) as writer:
        writer.write_table(pa.table({"id": pa.array([7, None], pa.int32())}))
    source = LogSource(Records(bytes(sink.getvalue()), b"no stream"))
    rows = await read(source, table(", format 'arrow', mode 'DROPMALFORMED'"), 2)
    assert ([row["id"] for row in rows], source.bad_count) == ([7, None], 1)
    raw = table(", format 'raw'", "header BIGINT, data BINARY")
    assert await read(LogSource(Records(Record(0, b"a", 5))), raw, 1) == [{"header": 5, "data": b"a", TIME: 1, DIFF: 1}]


async def test_entries_of_chains_are_no_rows() -> None:
    log = Records(b'{"id": 1}', Record(1, b"{}", CHAIN_HEADER), b'{"id": 2}')
    assert [row["id"] for row in await read(LogSource(log), table(), 3)] == [1, 2]
