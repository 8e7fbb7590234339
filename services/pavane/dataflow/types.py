"""Types of columns: Spark's names, and Arrow's (docs/specs/compute.md 14.2)."""

import re

import pyarrow as pa

from pavane.dataflow.ports import Column

_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_PLAIN = {
    "BOOLEAN": pa.bool_(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
}


def arrow_type(name: str) -> pa.DataType:
    """Return Arrow's type for one of Spark's names. Raises ValueError for a type that no column has."""
    decimal = _DECIMAL.fullmatch(name)
    if decimal is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if name not in _PLAIN:
        raise ValueError(f"no column has the type {name}")
    return _PLAIN[name]


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Return the columns of a relation as Arrow."""
    return pa.schema([(column.name, arrow_type(column.type)) for column in columns])
