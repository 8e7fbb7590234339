"""Transactions to rows of a schema: who reads decides about those that do not fit (docs/specs/compute.md 15.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow import arrowrows, jsonrows
from pavane.dataflow.log import Transaction
from pavane.dataflow.ports import Format

Keep = Callable[[Transaction, str], bool]
"""Whether a row that does not fit stays, NULL where it does not; it is told what is wrong."""


@dataclass(slots=True)
class Rows:
    """Rows of some transactions, how many each has, and of each row what did not fit of it."""

    table: pa.Table
    counts: list[int]
    corrupt: list[str | None] = field(default_factory=list)
    """Empty if all fit."""


def decoded(
    kind: Format, schema: pa.Schema, transactions: Sequence[Transaction], keep: Keep, needed: Sequence[str] = ()
) -> Rows:
    """Return the rows of transactions in their order. One without a value in a `needed` column does not fit."""
    match kind:
        case Format.RAW:
            held = {"header": [each.header for each in transactions], "data": [each.data for each in transactions]}
            arrays = [pa.array(held[part.name], part.type) for part in schema]
            return Rows(pa.table(arrays, schema=schema), [1] * len(transactions))
        case Format.JSON:
            return _json(schema, transactions, keep, needed)
        case Format.ARROW:
            return _arrow(schema, transactions, keep, needed)


def _json(schema: pa.Schema, transactions: Sequence[Transaction], keep: Keep, needed: Sequence[str]) -> Rows:
    quick = jsonrows.fast([each.data for each in transactions], schema)
    if quick is not None and not any(quick[0].column(name).null_count for name in needed):
        return Rows(*quick)
    places = [schema.get_field_index(name) for name in needed]
    rows, counts, corrupt = list[list[object]](), list[int](), list[str | None]()
    for transaction in transactions:
        before = len(rows)
        for document in jsonrows.documents(transaction.data):
            values, problem = jsonrows.fitted(document, schema)
            missing = (_missing(schema[place].name) for place in places if values[place] is None)
            problem = problem or next(missing, "")
            if not problem or keep(transaction, problem):
                rows.append(values)
                corrupt.append(document.text if problem else None)
        counts.append(len(rows) - before)
    return Rows(pa.table(jsonrows.arrays(rows, schema), schema=schema), counts, corrupt)


def _arrow(schema: pa.Schema, transactions: Sequence[Transaction], keep: Keep, needed: Sequence[str]) -> Rows:
    parts, counts, corrupt = [schema.empty_table()], [], list[str | None]()
    for transaction in transactions:
        record = arrowrows.read(transaction.data, schema)
        for name in needed:
            for row in pc.indices_nonzero(record.table.column(name).is_null()).to_pylist():
                record.problems.setdefault(row, _missing(name))
        table, texts = record.table, list[str | None]([None] * record.table.num_rows)
        if record.problems:
            left_out = {row for row, problem in sorted(record.problems.items()) if not keep(transaction, problem)}
            rows = [row for row in range(table.num_rows) if row not in left_out]
            texts = [record.text(row, transaction.data) if row in record.problems else None for row in rows]
            table = table.take(pa.array(rows, pa.int64()))
        parts.append(table)
        counts.append(table.num_rows)
        corrupt += texts
    return Rows(pa.concat_tables(parts), counts, corrupt)


def _missing(name: str) -> str:
    return f"column {name!r}: it has no value"
