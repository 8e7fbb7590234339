"""The engine without Spark: DuckDB in this process (docs/specs/compute.md 16.3).

It means what Spark means. Where DuckDB's own function differs, `translated` names another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from pavane.dataflow.casing import LOWER, UPPER, macros
from pavane.dataflow.expressions import cast
from pavane.dataflow.ports import EngineError, ViewError

MADE_BYTES_MAX = 1 << 30
"""Of the rows that one SELECT makes of a batch, where it joins texts: 30 views, each of which doubles what the one
before made, would else be a gigabyte for each byte."""
PIECE_BYTES = 16 << 20
"""What may come of the rows that are evaluated at once, so that a batch that makes too much is noticed early."""
TOO_LARGE = f"the texts that it joins are larger than {MADE_BYTES_MAX >> 20} MiB in one step"


class PlainEngine:
    """Evaluates a SELECT with DuckDB. Blocks; not thread-safe."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"threads": 1, "enable_external_access": False})
        for macro in macros():
            self._connection.execute(macro)
        self._translated: dict[str, tuple[str, _Growth]] = {}

    def evaluate(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of one SELECT in Spark's SQL over these tables.

        Raises `ViewError` for a value out of range and texts without measure, `EngineError` for anything else.
        """
        known = self._translated.get(sql)
        if known is None:
            known = self._translated[sql] = translated(sql), _growth(sql)
        text, growth = known
        ((name, table),) = tables.items()  # row by row, so pieces of it make pieces of the result
        made: list[pa.Table] = []
        size = 0
        try:
            for piece in growth.pieces(table):
                self._connection.register(name, _without_zones(piece))
                made.append(self._connection.sql(text).to_arrow_table())
                size += made[-1].nbytes
                if growth.texts and size > MADE_BYTES_MAX:
                    raise ViewError(TOO_LARGE)
            return pa.concat_tables(made)
        except (duckdb.OutOfRangeException, duckdb.ConversionException) as error:
            raise ViewError(f"a value is out of range: {error}") from error
        except duckdb.Error as error:
            raise EngineError(f"DuckDB: {error}") from error

    def close(self) -> None:
        """Let go of memory."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class _Growth:
    """How large a SELECT can make a row."""

    texts: int
    """Columns that it joins to texts; of other functions no result is larger than what it is made of."""
    literals_bytes: int

    def pieces(self, table: pa.Table) -> Iterator[pa.Table]:
        """Yield the rows in pieces of which not too much can come. Raises `ViewError` for a row that is too large."""
        most = self.texts * table.nbytes + self.literals_bytes * table.num_rows
        if most <= PIECE_BYTES or table.num_rows <= 1:
            if most > MADE_BYTES_MAX:
                raise ViewError(TOO_LARGE)
            yield table
            return
        middle = table.num_rows // 2
        yield from self.pieces(table.slice(0, middle))
        yield from self.pieces(table.slice(middle))


def _growth(sql: str) -> _Growth:
    tree = sqlglot.parse_one(sql, dialect="spark")
    joined = [column for column in tree.find_all(exp.Column) if column.find_ancestor(exp.DPipe, exp.Concat)]
    return _Growth(len(joined), sum(len(each.name.encode()) for each in tree.find_all(exp.Literal) if each.is_string))


def translated(sql: str) -> str:
    """Return a SELECT of a plan in DuckDB's SQL."""
    tree: exp.Expr = sqlglot.parse_one(sql, dialect="spark")
    for node in reversed(list(tree.walk())):  # parts come before what they are parts of
        made = _as_spark_does(node)
        if made is not node:
            node.replace(made)
    return tree.sql(dialect="duckdb")


def _as_spark_does(node: exp.Expr) -> exp.Expr:
    """Return what means in DuckDB what the node means in Spark."""
    match node:
        case exp.TryCast():  # the parser's word for a cast that fails, which it is in Spark with ANSI rules
            return _as_spark_does(exp.Cast(this=node.this, to=node.args["to"]))
        case exp.Cast() if node.is_type("double") and _is_decimal(node.this):
            # DuckDB divides two doubles, and so rounds twice; digits it reads as Java does.
            return cast(cast(node.this, "STRING"), "DOUBLE")
        case exp.Add() | exp.Sub() | exp.Mul() if _is_decimal(node.this) and _is_decimal(node.expression):
            # Of two narrow ones DuckDB's result is narrow, too, and overflows.
            return type(node)(this=_widest(node.this), expression=_widest(node.expression))
        case exp.Upper() | exp.Lower():
            return exp.Anonymous(this=UPPER if isinstance(node, exp.Upper) else LOWER, expressions=[node.this])
        case exp.Trim() if node.args.get("expression") is None:
            return exp.Trim(this=node.this, expression=exp.Literal.string(" "))
    return node


def _is_decimal(node: exp.Expr) -> bool:
    return isinstance(node, exp.Cast) and node.args["to"].this is exp.DType.DECIMAL


def _widest(node: exp.Expr) -> exp.Expr:
    scale = node.args["to"].expressions[1].name
    return cast(node, f"DECIMAL(38,{scale})")


def _without_zones(table: pa.Table) -> pa.Table:
    """All times are UTC; said so, DuckDB would want its zone tables."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            plain = pa.timestamp(field.type.unit)
            table = table.set_column(place, field.with_type(plain), table.column(place).cast(plain))
    return table
