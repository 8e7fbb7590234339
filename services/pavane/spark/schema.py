"""Columns of the format `waltz`: what a schema may hold, and where each column comes from.

A column named `partition` (INT), `txid` (BIGINT), `seq` (INT) or `header` (INT) is a row's place in the log: partition,
transaction, number of the row within it, header of the transaction. The others are the data.
"""

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from pavane.dataflow.ports import Format
from pavane.spark.errors import OptionError
from pavane.spark.options import ReadOptions

RAW_SCHEMA = "partition INT, txid BIGINT, header INT, data BINARY"
PLACES: dict[str, pa.DataType] = {"partition": pa.int32(), "txid": pa.int64(), "seq": pa.int32(), "header": pa.int32()}


@dataclass(frozen=True, slots=True)
class Columns:
    """What a read yields: `output` as Spark wants it, `data` what comes out of the records."""

    output: pa.Schema
    data: pa.Schema
    corrupt: str | None


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return a Spark schema as Arrow, as Spark itself sees it."""
    return to_arrow_schema(schema, timezone="UTC")


def columns(output: pa.Schema, options: ReadOptions) -> Columns:
    """Return the columns of a read. Raise OptionError for a schema that its format cannot fill."""
    corrupt = None
    data = []
    for field in output:
        if field.name in PLACES:
            if field.type != PLACES[field.name]:
                raise OptionError(
                    f"column {field.name!r} is the row's place in the log, of type {PLACES[field.name]}; the schema "
                    f"says {field.type}."
                )
        elif field.name == options.corrupt_column:
            if field.type != pa.string():
                raise OptionError(f"column {field.name!r} takes the records that do not fit: it must be a STRING.")
            corrupt = field.name
        else:
            data.append(field)
    _check(data, None if options.chain is not None else options.format)
    # Types are kept, but what a record leaves out is NULL whatever the schema says; `finish` checks it at the end.
    return Columns(output, pa.schema([field.with_nullable(True) for field in data]), corrupt)


def check_written(schema: pa.Schema, kind: Format) -> None:
    """Raise OptionError for a schema that cannot be written in this format."""
    for name in ("txid", "seq"):
        if name in schema.names:
            raise OptionError(f"column {name!r} is given by the log: leave it out, df.drop({name!r}).")
    for name in ("partition", "header"):
        if name in schema.names and schema.field(name).type != PLACES[name]:
            raise OptionError(f"column {name!r} must be an INT: it says where a row goes.")
    if "header" in schema.names and kind is not Format.RAW:
        raise OptionError("column 'header' is written by format 'raw' only: many rows share one transaction.")
    _check([field for field in schema if field.name not in PLACES], kind)


def _check(fields: list[pa.Field], kind: Format | None) -> None:
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        raise OptionError(f"the schema names a column twice: {', '.join(names)}.")
    if kind is Format.RAW:
        if any(field.name != "data" or field.type != pa.binary() for field in fields):
            raise OptionError(
                f"format 'raw' has the columns {RAW_SCHEMA}, not {', '.join(names)}. For rows inside of "
                "transactions give option 'format' = 'json' or 'arrow'."
            )
    elif not fields:
        raise OptionError("the schema has no column of data.")
    elif kind is Format.JSON:
        for field in fields:
            _check_json(field.name, field.type)


def _check_json(name: str, kind: pa.DataType) -> None:
    if pa.types.is_list(kind):
        _check_json(name, kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            _check_json(f"{name}.{field.name}", field.type)
    elif not (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    ):
        raise OptionError(f"column {name!r} has type {kind}, which format 'json' does not have; 'arrow' does.")
