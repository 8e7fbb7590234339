"""Plans in DuckDB's SQL (docs/specs/compute.md 14.2).

It means what Spark means. Where DuckDB's own function differs, `translated` names another one.
"""

from __future__ import annotations

import pyarrow as pa
import sqlglot
from sqlglot import exp

from pavane.dataflow.bound import cast
from pavane.dataflow.casing import LOWER, ONCE, UPPER
from pavane.dataflow.functions import FUNCTIONS, MACROS, ViewsSql

_HUGE = exp.DataType.build("HUGEINT", dialect="duckdb")


def translated(sql: str) -> str:
    """Return a SELECT of a plan in DuckDB's SQL."""
    tree: exp.Expr = sqlglot.parse_one(sql, dialect=ViewsSql)
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
        case exp.Mod() | exp.IntDiv():  # of the least BIGINT by -1 the rest is 0, which DuckDB finds too large
            return cast(
                type(node)(this=exp.Cast(this=node.this, to=_HUGE.copy()), expression=node.expression), "BIGINT"
            )
        case exp.Upper() | exp.Lower():
            name = UPPER if isinstance(node, exp.Upper) else LOWER
            once = "" if isinstance(node.this, exp.Column) else ONCE
            return exp.Anonymous(this=name + once, expressions=[node.this])
        case exp.Trim() if node.args.get("expression") is None:
            return exp.Trim(this=node.this, expression=exp.Literal.string(" "))
        case exp.Anonymous() if node.name.lower() in FUNCTIONS:
            return _call(node)
    return node


def _call(node: exp.Anonymous) -> exp.Expr:
    """Return the call of a function of the table: of its macro, or where it takes any number of arguments DuckDB's."""
    name = node.name.lower()
    row = MACROS.get(name)
    if row is None:
        return exp.Anonymous(this=FUNCTIONS[name][0].body, expressions=node.expressions)
    costs = row.twice and not all(map(_at_hand, node.expressions))
    return exp.Anonymous(this=row.macro + (ONCE if costs else ""), expressions=node.expressions)


def _at_hand(node: exp.Expr) -> bool:
    """Whether a value costs nothing to evaluate again."""
    while isinstance(node, exp.Cast | exp.Neg):
        node = node.this
    return isinstance(node, exp.Column | exp.Literal | exp.Null)


def _is_decimal(node: exp.Expr) -> bool:
    return isinstance(node, exp.Cast) and node.args["to"].this is exp.DType.DECIMAL


def _widest(node: exp.Expr) -> exp.Expr:
    scale = node.args["to"].expressions[1].name
    return cast(node, f"DECIMAL(38,{scale})")


def with_zones(table: pa.Table) -> pa.Table:
    """Return a table of DuckDB's, all times of which are UTC, for others, who want to be told."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            zoned = pa.timestamp(field.type.unit, tz="UTC")
            table = table.set_column(place, field.with_type(zoned), table.column(place).cast(zoned))
    return table


def without_zones(table: pa.Table) -> pa.Table:
    """Return a table for DuckDB. All times are UTC; said so, DuckDB would want its zone tables."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            plain = pa.timestamp(field.type.unit)
            table = table.set_column(place, field.with_type(plain), table.column(place).cast(plain))
    return table
