"""The SQL of a script: for each node of the parser, the arguments that are read (docs/specs/compute.md 14.2).

The parser knows the SQL of many databases. What a node says in an argument that nobody reads would be left out without
a word, so one walk over the whole tree refuses whatever is set and not listed here. It comes before all other checks;
the nodes that are not listed at all are refused behind them, because they know better what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from pavane.dataflow.bound import Places, starts_of

_NODES = {
    "": "MaterializedProperty Star RowNumber Rank DenseRank Null CurrentTimestamp",
    "this": (
        "DataTypeParam FileFormatProperty Var TableAlias From Where Having Qualify Count Sum Avg Min Max Boolean Paren "
        "Neg BitwiseNot Abs Not Exists Upper Lower Trim Length Year Month Day TsOrDsToDate"
    ),
    "expressions": (
        "Properties OptionsProperty With Group GroupingSets Rollup Cube Tuple Grouping Distinct Order Concat"
    ),
    "expression": "Limit Offset",
    "this expression": (
        "Add Sub Mul Div Mod EQ NEQ GT GTE LT LTE NullSafeEQ And Or Is Nullif DPipe IntDiv BitwiseAnd BitwiseOr "
        "BitwiseXor Extract"
    ),
    "this expressions": "Schema Coalesce Anonymous",
    "this alias": "Subquery CTE Table Alias",
    # statements
    "this kind properties expression": "Create",
    "this kind": "ColumnDef",
    "this expressions nested": "DataType",
    "this value": "Property",
    # SELECT and its clauses
    "with_ expressions from_ joins where group having qualify distinct order limit offset": "Select",
    "this expression distinct with_": "Union Intersect Except",
    "this on side kind": "Join",
    "this desc nulls_first": "Ordered",
    "this table": "Column",
    "this quoted": "Identifier",  # quotes make no other name of it: names have no case
    # windows
    "this partition_by order spec": "Window",
    "kind start start_side end end_side": "WindowSpec",
    "this offset default": "Lag Lead",
    # expressions
    "this is_string": "Literal",
    "this expressions query": "In",
    "this low high": "Between",
    "this expression negate": "Like",
    "this ifs default": "Case",
    "this true false": "If",
    "this unit": "Interval",
    "this to": "Cast",
    "this to safe": "TryCast",
    "this start length": "Substring",
}
"""The arguments that are read, of which nodes."""
READ: Mapping[type[exp.Expr], frozenset[str]] = {
    getattr(exp, name): frozenset(read.split()) for read, names in _NODES.items() for name in names.split()
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
