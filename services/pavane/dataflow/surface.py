"""The SQL of a script: for each node of the parser, the arguments that are read (docs/specs/compute.md 14.2).

The parser knows the SQL of many databases. What a node says in an argument that nobody reads would be left out without
a word, so one walk over the whole tree refuses whatever is set and not listed here. It comes before all other checks;
the nodes that are not listed at all are refused behind them, because they know better what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from pavane.dataflow.expressions import Places, starts_of

_NOTHING: frozenset[str] = frozenset()
_THIS = frozenset({"this"})
_PAIR = frozenset({"this", "expression"})
_LIST = frozenset({"expressions"})

READ: Mapping[type[exp.Expr], frozenset[str]] = {
    # statements
    exp.Create: frozenset({"this", "kind", "properties", "expression"}),
    exp.Schema: frozenset({"this", "expressions"}),
    exp.ColumnDef: frozenset({"this", "kind"}),
    exp.DataType: frozenset({"this", "expressions", "nested"}),
    exp.DataTypeParam: _THIS,
    exp.Properties: _LIST,
    exp.MaterializedProperty: _NOTHING,
    exp.FileFormatProperty: _THIS,
    exp.OptionsProperty: _LIST,
    exp.Property: frozenset({"this", "value"}),
    exp.Var: _THIS,
    # SELECT and its clauses
    exp.Select: frozenset(
        {
            "with_",
            "expressions",
            "from_",
            "joins",
            "where",
            "group",
            "having",
            "qualify",
            "distinct",
            "order",
            "limit",
            "offset",
        }
    ),
    **dict.fromkeys((exp.Union, exp.Intersect, exp.Except), frozenset({"this", "expression", "distinct", "with_"})),
    exp.Subquery: frozenset({"this", "alias"}),
    exp.With: _LIST,
    exp.CTE: frozenset({"this", "alias"}),
    exp.Table: frozenset({"this", "alias"}),
    exp.TableAlias: _THIS,
    exp.Alias: frozenset({"this", "alias"}),
    exp.From: _THIS,
    exp.Join: frozenset({"this", "on", "side", "kind"}),
    exp.Where: _THIS,
    **dict.fromkeys((exp.Group, exp.GroupingSets, exp.Rollup, exp.Cube, exp.Tuple, exp.Grouping), _LIST),
    exp.Having: _THIS,
    exp.Distinct: _LIST,
    exp.Order: _LIST,
    exp.Ordered: frozenset({"this", "desc", "nulls_first"}),
    exp.Limit: frozenset({"expression"}),
    exp.Offset: frozenset({"expression"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Identifier: frozenset({"this", "quoted"}),  # quotes make no other name of it: names have no case
    exp.Star: _NOTHING,
    # aggregates
    exp.Count: _THIS,
    exp.Sum: _THIS,
    exp.Avg: _THIS,
    exp.Min: _THIS,
    exp.Max: _THIS,
    # windows
    exp.Window: frozenset({"this", "partition_by", "order", "spec"}),
    exp.WindowSpec: frozenset({"kind", "start", "start_side", "end", "end_side"}),
    exp.Qualify: _THIS,
    exp.RowNumber: _NOTHING,
    exp.Rank: _NOTHING,
    exp.DenseRank: _NOTHING,
    exp.Lag: frozenset({"this", "offset", "default"}),
    exp.Lead: frozenset({"this", "offset", "default"}),
    # expressions
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Null: _NOTHING,
    exp.Boolean: _THIS,
    exp.Paren: _THIS,
    exp.Neg: _THIS,
    exp.Abs: _THIS,
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod), _PAIR),
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ), _PAIR),
    exp.And: _PAIR,
    exp.Or: _PAIR,
    exp.Not: _THIS,
    exp.Is: _PAIR,
    exp.Exists: _THIS,
    exp.In: frozenset({"this", "expressions", "query"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true", "false"}),
    exp.Coalesce: frozenset({"this", "expressions"}),
    exp.Nullif: _PAIR,
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to", "safe"}),
    exp.Upper: _THIS,
    exp.Lower: _THIS,
    exp.Trim: _THIS,
    exp.Length: _THIS,
    exp.Substring: frozenset({"this", "start", "length"}),
    exp.Concat: _LIST,
    exp.DPipe: _PAIR,
    exp.Year: _THIS,
    exp.Month: _THIS,
    exp.Day: _THIS,
    exp.TsOrDsToDate: _THIS,
}

ALWAYS: Mapping[tuple[type[exp.Expr], str], object] = {
    (exp.Count, "big_int"): True,
    (exp.Window, "over"): "OVER",
    (exp.Concat, "safe"): True,
    (exp.DPipe, "safe"): True,
    (exp.Div, "safe"): True,
}
"""What the parser says of every such node of Spark's, for the sake of other databases."""


def check_arguments(statement: exp.Expr, places: Places) -> None:
    """Refuse what a node says that nobody reads. Raises `SqlError`."""
    for node in statement.walk():
        read = READ.get(type(node))
        if read is None:
            continue
        for name, value in node.args.items():
            if not value or name in read or ALWAYS.get((type(node), name)) == value:
                continue
            part = value[0] if isinstance(value, list) else value
            word = name.strip("_").replace("_", " ").upper()
            if isinstance(part, exp.Expr):
                word = f"{word} {part.sql(dialect='spark')}"
            places.refuse(_with_place(part if isinstance(part, exp.Expr) else node), f"{word} is not supported here")


def check_nodes(statement: exp.Expr, places: Places) -> None:
    """Refuse nodes that are not known at all. Raises `SqlError`."""
    for node in statement.walk():
        if type(node) not in READ:
            places.refuse(_with_place(node), f"{node.sql(dialect='spark')} is not supported here")


def _with_place(node: exp.Expr) -> exp.Expr:
    """Return the smallest part of the statement around a node that knows where it stands."""
    while node.parent is not None and not starts_of(node):
        node = node.parent
    return node
