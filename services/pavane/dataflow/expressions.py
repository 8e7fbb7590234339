"""Scalar expressions of a view: a closed list that means the same to every engine (docs/specs/compute.md 14.2).

An expression is bound to columns of a stage, typed, and written again as Spark's SQL. Where engines differ the text
says what is meant: a division by zero is NULL, a division is one of DOUBLE, a cast never rounds.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NoReturn

from sqlglot import exp

from pavane.dataflow.bound import (
    DECIMAL_DIGITS,
    NULL,
    Bound,
    Places,
    as_double,
    cast,
    decimal_of,
    decimal_with,
    is_number,
    starts_of,
)
from pavane.dataflow.calls import bound_call, unknown

SUBSTRING_MAX = 2**31 - 1  # what both engines take as a place or length
MOVES: Mapping[str, Sequence[str]] = {
    "DATE": ("DAY", "MONTH", "YEAR"),
    "TIMESTAMP": ("SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR"),
}
"""Units of what is added to a day, and to a time."""
MOVES_DIGITS = 4
"""Of how many: with more, months would leave the calendars of both engines at different days."""
NARROW = ("TINYINT", "SMALLINT", "INT")
"""Integers that widen to BIGINT."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def refuse_now(node: exp.Expr, places: Places) -> NoReturn:
    """Refuse `now()` where no span of time follows from it. Raises `SqlError`."""
    while not starts_of(node) and node.parent is not None:
        node = node.parent
    instead = "Write WHERE at > now() - INTERVAL '1' HOUR, beside other conditions with AND."
    places.refuse(node, "now() stands in WHERE alone, in a comparison that must be true", instead)


@dataclass(slots=True)
class Scope:
    """Columns that an expression may name: by qualifier and name in lower case → column of the stage, type."""

    places: Places
    columns: dict[tuple[str, str], tuple[str | exp.Identifier, str]] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    """Names that the SELECT does not use, of columns that were left out for it."""

    def add(self, qualifier: str, name: str, ref: str | exp.Identifier, kind: str) -> None:
        """Let `qualifier.name` mean the stage's column `ref`."""
        self.columns[qualifier.lower(), name.lower()] = ref, kind

    def knows(self, node: exp.Column) -> bool:
        """Whether there is a column that a name may mean."""
        return any(n == node.name.lower() and node.table.lower() in ("", q) for q, n in self.columns)

    def resolve(self, node: exp.Column) -> Bound:
        """Return the column that a name means."""
        qualifier, name = node.table.lower(), node.name.lower()
        found = [of for (q, n), of in self.columns.items() if n == name and qualifier in ("", q)]
        if len(found) > 1:
            self.places.refuse(node, f"column {node.name} is ambiguous", "Write TABLE.COLUMN.")
        if not found:
            near = difflib.get_close_matches(name, {n for _, n in self.columns} | self.unread, 1)
            instead = f"Is {near[0]} meant?" if near else ""
            if qualifier not in {"", *(q for q, _ in self.columns)}:
                instead = f"FROM of this SELECT has no {node.table}."
            self.places.refuse(node, f"there is no column {node.sql()}", instead)
        return Bound(exp.column(found[0][0]), found[0][1])


class Binder:
    """Binds expressions of one stage. `special` is asked first: it knows keys and aggregates of a grouped stage."""

    def __init__(self, scope: Scope, special: Callable[[exp.Expr], Bound | None] = lambda _: None) -> None:
        self._scope = scope
        self._places = scope.places
        self._special = special

    def bind(self, node: exp.Expr | None) -> Bound:
        """Return the expression over the stage's columns. Raises `SqlError`."""
        if node is None:  # what the parser made of a call without its argument
            self._places.refuse(None, "an argument is missing")
        special = self._special(node)
        if special is not None:
            return special
        if isinstance(node, exp.Column):
            return self._scope.resolve(node)
        for kind, handler in _HANDLERS.items():
            if type(node) is kind:
                bound: Bound = getattr(self, handler)(node)
                return bound
        if isinstance(node, exp.Anonymous):
            return bound_call(node, self.bind, self._alike, self._places)
        if isinstance(node, exp.Exists | exp.Subquery):
            self._places.no_select(node)
        if isinstance(node, exp.CurrentTimestamp):
            refuse_now(node, self._places)
        if isinstance(node, (*AGGREGATES, exp.Grouping)):
            self._places.refuse(
                node, f"{node.sql(dialect='spark')} does not belong here", "Aggregates stand in SELECT and HAVING."
            )
        unknown(node, self._places)

    def condition(self, node: exp.Expr) -> Bound:
        """Bind what must be true or false."""
        bound = self.bind(node)
        if bound.type not in ("BOOLEAN", NULL):
            self._places.refuse(node, f"{node.sql(dialect='spark')} is {bound.type}, not a condition")
        return bound

    # --- literals -------------------------------------------------------------------------------------------------

    def _literal(self, node: exp.Literal) -> Bound:
        if node.is_string:
            return Bound(node.copy(), "STRING")
        whole, _, fraction = node.name.partition(".")
        if "e" in node.name.lower():
            if not math.isfinite(float(node.name)):
                self._places.refuse(node, f"{node.name} is no DOUBLE: it is too large")
            return Bound(cast(node.copy(), "DOUBLE"), "DOUBLE")
        digits = len(whole.lstrip("0")) + len(fraction)
        if fraction:
            if digits > DECIMAL_DIGITS:
                self._places.refuse(node, f"{node.name} has {digits} digits, DECIMAL has 38", "Write it with E0.")
            return Bound(node.copy(), f"DECIMAL({max(digits, 1)},{len(fraction)})")
        if int(whole) >= 2**63:
            self._places.refuse(node, f"{node.name} is no BIGINT")
        return Bound(cast(node.copy(), "BIGINT"), "BIGINT")

    def _null(self, node: exp.Null) -> Bound:
        return Bound(node.copy(), NULL)

    def _boolean(self, node: exp.Boolean) -> Bound:
        return Bound(node.copy(), "BOOLEAN")

    def _paren(self, node: exp.Paren) -> Bound:
        inner = self.bind(node.this)
        return Bound(exp.paren(inner.node), inner.type)

    # --- numbers --------------------------------------------------------------------------------------------------

    def _numbers(self, node: exp.Expr, *parts: exp.Expr) -> list[Bound]:
        bound = [self.bind(part) for part in parts]
        for part, each in zip(parts, bound, strict=True):
            if not is_number(each.type):
                self._places.refuse(part, f"{part.sql(dialect='spark')} is {each.type}, not a number")
        return bound

    def _negation(self, node: exp.Neg) -> Bound:
        (inner,) = self._numbers(node, node.this)
        negated = exp.Neg(this=exp.paren(inner.node))
        return Bound(negated if inner.type == NULL else cast(negated, inner.type), inner.type)

    def _absolute(self, node: exp.Abs) -> Bound:
        (inner,) = self._numbers(node, node.this)
        return Bound(exp.Abs(this=inner.node), inner.type)

    def _arithmetic(self, node: exp.Binary) -> Bound:
        if isinstance(node.expression, exp.Interval):
            return self._moved(node, node.expression)
        left, right = self._numbers(node, node.this, node.expression)
        kinds = {left.type, right.type} - {NULL}
        if not kinds:
            return Bound(exp.null(), NULL)
        if "DOUBLE" in kinds:
            return Bound(exp.paren(type(node)(this=as_double(left), expression=as_double(right))), "DOUBLE")
        if kinds == {"BIGINT"}:
            return Bound(exp.paren(type(node)(this=left.node, expression=right.node)), "BIGINT")
        (p, s), (q, t) = decimal_of(left.type), decimal_of(right.type)
        if isinstance(node, exp.Mul):
            kind, digits = decimal_with(p - s + q - t + 1, s + t, kinds)
        else:
            kind, digits = decimal_with(max(p - s, q - t) + 1, max(s, t), kinds)
        if digits > DECIMAL_DIGITS:
            self._places.refuse(node, f"the result needs {digits} digits, DECIMAL has 38", "CAST one side to DOUBLE.")
        sides = (cast(side.node, f"DECIMAL({each[0]},{each[1]})") for side, each in ((left, (p, s)), (right, (q, t))))
        return Bound(cast(type(node)(this=next(sides), expression=next(sides)), kind), kind)

    def _division(self, node: exp.Div) -> Bound:
        left, right = self._numbers(node, node.this, node.expression)
        divisor = exp.Nullif(this=as_double(right), expression=cast(exp.Literal.number(0), "DOUBLE"))
        return Bound(exp.paren(exp.Div(this=as_double(left), expression=divisor)), "DOUBLE")

    def _remainder(self, node: exp.Mod | exp.IntDiv) -> Bound:
        parts = self._numbers(node, node.this, node.expression)
        if any(part.type != "BIGINT" for part in parts):
            self._places.refuse(node, f"{'%' if isinstance(node, exp.Mod) else 'DIV'} takes whole numbers")
        divisor = exp.Nullif(this=parts[1].node, expression=cast(exp.Literal.number(0), "BIGINT"))
        return Bound(exp.paren(type(node)(this=parts[0].node, expression=divisor)), "BIGINT")

    def _bits(self, node: exp.Binary) -> Bound:
        for side in (node.this, node.expression):  # the parser reads all of them from left to right
            if isinstance(side, exp.BitwiseAnd | exp.BitwiseOr | exp.BitwiseXor) and type(side) is not type(node):
                self._places.refuse(node, "& and | and ^ beside each other bind differently", "Write brackets.")
        sides = [self._whole(node.this), self._whole(node.expression)]
        return Bound(exp.paren(type(node)(this=sides[0], expression=sides[1])), "BIGINT")

    def _bits_turned(self, node: exp.BitwiseNot) -> Bound:
        return Bound(exp.paren(exp.BitwiseNot(this=exp.paren(self._whole(node.this)))), "BIGINT")

    def _whole(self, node: exp.Expr) -> exp.Expr:
        bound = self.bind(node)
        if bound.type not in ("BIGINT", NULL):
            self._places.refuse(node, f"{node.sql(dialect='spark')} is {bound.type}, not a whole number")
        return cast(bound.node, "BIGINT") if bound.type == NULL else bound.node

    # --- conditions -----------------------------------------------------------------------------------------------

    def _alike(self, nodes: Sequence[exp.Expr], what: str) -> tuple[list[exp.Expr], str]:
        """Bind expressions that become one type, and return them cast to it."""
        bound = [self.bind(node) for node in nodes]
        kinds = {each.type for each in bound} - {NULL}
        if not kinds:
            return [each.node for each in bound], NULL
        if len(kinds) == 1:
            kind = kinds.pop()
            return [cast(each.node, kind) if each.type == NULL else each.node for each in bound], kind
        if not all(is_number(kind) for kind in kinds):
            self._places.refuse(
                nodes[0], f"{what} of {' and '.join(sorted(kinds))}", "CAST one to the type of the other."
            )
        if "DOUBLE" in kinds:
            return [as_double(each) for each in bound], "DOUBLE"
        scales = [decimal_of(kind) for kind in kinds]
        common, digits = decimal_with(max(p - s for p, s in scales), max(s for _, s in scales), kinds)
        if digits > DECIMAL_DIGITS:
            text = f"{what} of {' and '.join(sorted(kinds))} needs {digits} digits, DECIMAL has 38"
            self._places.refuse(nodes[0], text, "CAST one of them to DOUBLE.")
        return [cast(each.node, common) for each in bound], common

    def _comparison(self, node: exp.Binary) -> Bound:
        sides, _ = self._alike([node.this, node.expression], "a comparison")
        return Bound(exp.paren(type(node)(this=sides[0], expression=sides[1])), "BOOLEAN")

    def _logic(self, node: exp.Connector) -> Bound:
        left, right = self.condition(node.this), self.condition(node.expression)
        return Bound(exp.paren(type(node)(this=left.node, expression=right.node)), "BOOLEAN")

    def _not(self, node: exp.Not) -> Bound:
        return Bound(exp.paren(exp.Not(this=exp.paren(self.condition(node.this).node))), "BOOLEAN")

    def _is(self, node: exp.Is) -> Bound:
        if not isinstance(node.expression, exp.Null):
            self._places.refuse(node, f"{node.sql(dialect='spark')} is not supported", "Known: IS NULL, IS NOT NULL.")
        return Bound(exp.paren(exp.Is(this=self.bind(node.this).node, expression=exp.null())), "BOOLEAN")

    def _in(self, node: exp.In) -> Bound:
        if node.args.get("query") is not None:
            self._places.no_select(node)
        if not node.expressions:
            self._places.refuse(node, "IN () has no values", "Write IN (x, …), or FALSE.")
        sides, _ = self._alike([node.this, *node.expressions], "IN")
        return Bound(exp.paren(exp.In(this=sides[0], expressions=sides[1:])), "BOOLEAN")

    def _between(self, node: exp.Between) -> Bound:
        """Two comparisons, each in its own type."""
        low, high = (self._alike([node.this, node.args[side]], "BETWEEN")[0] for side in ("low", "high"))
        above, below = exp.GTE(this=low[0], expression=low[1]), exp.LTE(this=high[0], expression=high[1])
        return Bound(exp.paren(exp.And(this=exp.paren(above), expression=exp.paren(below))), "BOOLEAN")

    def _like(self, node: exp.Like) -> Bound:
        pattern = node.expression
        if not isinstance(pattern, exp.Literal) or not pattern.is_string or "\\" in pattern.name:
            self._places.refuse(pattern, "LIKE takes a literal pattern without a backslash")
        this = self._strings(node.this)[0]
        like = exp.paren(exp.Like(this=this, expression=pattern.copy()))
        return Bound(exp.paren(exp.Not(this=like)) if node.args.get("negate") else like, "BOOLEAN")

    # --- choices --------------------------------------------------------------------------------------------------

    def _case(self, node: exp.Case) -> Bound:
        tests, results = [], []
        for branch in node.args["ifs"]:
            test = branch.this if node.this is None else exp.EQ(this=node.this.copy(), expression=branch.this.copy())
            tests.append(self.condition(test).node)
            results.append(branch.args["true"])
        default = node.args.get("default") or exp.null()
        values, kind = self._alike([*results, default], "CASE")
        made = exp.Case(
            ifs=[exp.If(this=test, true=value) for test, value in zip(tests, values, strict=False)], default=values[-1]
        )
        return Bound(made, kind)

    def _if(self, node: exp.If) -> Bound:
        test = self.condition(node.this)
        values, kind = self._alike([node.args["true"], node.args.get("false") or exp.null()], "IF")
        return Bound(exp.Case(ifs=[exp.If(this=test.node, true=values[0])], default=values[1]), kind)

    def _coalesce(self, node: exp.Coalesce) -> Bound:
        values, kind = self._alike([node.this, *node.expressions], "COALESCE")
        return Bound(exp.Coalesce(this=values[0], expressions=values[1:]), kind)

    def _nullif(self, node: exp.Nullif) -> Bound:
        values, kind = self._alike([node.this, node.expression], "NULLIF")
        return Bound(exp.Nullif(this=values[0], expression=values[1]), kind)

    def _cast(self, node: exp.Cast) -> Bound:
        if node.args.get("safe"):
            self._places.refuse(node, "TRY_CAST is not supported", "Write CAST, and CASE for values that do not fit.")
        named, wanted = node.args["to"].this.value, column_type(node.args["to"], self._places)
        if named == "FLOAT":
            self._places.refuse(node, "a cast to FLOAT is not supported", "Write DOUBLE, which does not round.")
        if wanted == "DATE" and isinstance(node.this, exp.Literal) and node.this.is_string:
            return self._date(node, node.this)
        inner = self.bind(node.this)
        if inner.type not in (wanted, NULL) and not _castable(inner.type, wanted):
            self._places.refuse(
                node, f"a cast from {inner.type} to {wanted} is not supported",
                "Known: BIGINT to DECIMAL, DOUBLE or STRING; DECIMAL to DOUBLE or more digits; DATE to STRING; "
                "TIMESTAMP to DATE.",
            )  # fmt: skip
        if wanted == "DOUBLE":
            return Bound(as_double(inner), wanted)
        # A narrow integer is a BIGINT of that range: what does not fit is out of range, as in Spark.
        made = cast(inner.node, named) if named in NARROW else inner.node
        return Bound(cast(made, wanted), wanted)

    def _date(self, node: exp.Expr, text: exp.Literal) -> Bound:
        try:
            found = date.fromisoformat(text.name) if _DATE.fullmatch(text.name) else None
        except ValueError:
            found = None
        if found is None:
            self._places.refuse(node, f"'{text.name}' is no DATE", "Write DATE '2026-12-31'.")
        return Bound(cast(text.copy(), "DATE"), "DATE")

    # --- strings and times ----------------------------------------------------------------------------------------

    def _strings(self, *nodes: exp.Expr) -> list[exp.Expr]:
        bound = [self.bind(node) for node in nodes]
        for node, each in zip(nodes, bound, strict=True):
            if each.type not in ("STRING", NULL):
                self._places.refuse(node, f"{node.sql(dialect='spark')} is {each.type}, not a STRING")
        return [each.node for each in bound]

    def _text(self, node: exp.Func) -> Bound:
        return Bound(type(node)(this=self._strings(node.this)[0]), "STRING")

    def _length(self, node: exp.Length) -> Bound:
        return Bound(cast(exp.Length(this=self._strings(node.this)[0]), "BIGINT"), "BIGINT")

    def _substring(self, node: exp.Substring) -> Bound:
        numbers = [node.args.get("start"), node.args.get("length")]
        if not all(
            (each is None and place > 0)
            or (isinstance(each, exp.Literal) and each.is_int and 0 < int(each.name) <= SUBSTRING_MAX)
            for place, each in enumerate(numbers)
        ):
            self._places.refuse(node, "SUBSTRING takes a literal start and length, both from 1")
        made: dict[str, Any] = {"this": self._strings(node.this)[0]}
        made |= {name: part.copy() for name, part in zip(("start", "length"), numbers, strict=True) if part is not None}
        return Bound(exp.Substring(**made), "STRING")

    def _concatenation(self, node: exp.Expr) -> Bound:
        parts = node.expressions if isinstance(node, exp.Concat) else [node.this, node.expression]
        first, *rest = self._strings(*parts)
        for part in rest:
            first = exp.DPipe(this=first, expression=part)
        return Bound(exp.paren(first), "STRING")

    def _moved(self, node: exp.Binary, span: exp.Interval) -> Bound:
        """A day or a time, some days or months later or earlier."""
        bound, given, unit = self.bind(node.this), span.this, span.args.get("unit")
        units = MOVES.get(bound.type)
        if units is None or isinstance(node, exp.Mul):
            self._places.refuse(node, f"{node.this.sql(dialect='spark')} is {bound.type}, neither DATE nor TIMESTAMP")
        name = unit.name.upper() if isinstance(unit, exp.Var) else ""
        number = given.name if isinstance(given, exp.Literal) and given.name.isdecimal() else ""
        if name not in units or not 0 < len(number) <= MOVES_DIGITS:
            known = f"Write INTERVAL '1' {units[0]}, {MOVES_DIGITS} digits at most; known are {', '.join(units)}."
            self._places.refuse(node, f"{span.sql(dialect='spark')} is no interval here", known)
        if bound.type == "TIMESTAMP":
            moved = exp.Interval(this=exp.Literal.string(number), unit=exp.var(name))
            return Bound(exp.paren(type(node)(this=bound.node, expression=moved)), bound.type)
        times = (-1 if isinstance(node, exp.Sub) else 1) * (12 if name == "YEAR" else 1)
        function = "DATE_ADD" if name == "DAY" else "ADD_MONTHS"
        moves = [bound.node, exp.Literal.number(times * int(number))]
        return Bound(cast(exp.Anonymous(this=function, expressions=moves), "DATE"), "DATE")

    def _extract(self, node: exp.Extract) -> Bound:
        part = exp.Literal.string(node.this.name)
        part.meta.update(node.this.meta)
        return self.bind(exp.Anonymous(this="date_part", expressions=[part, node.expression.copy()]))

    def _part_of_date(self, node: exp.Func) -> Bound:
        inner = node.this
        while isinstance(inner, exp.TsOrDsToDate):
            inner = inner.this
        bound = self.bind(inner)
        if bound.type not in ("DATE", "TIMESTAMP"):
            self._places.refuse(node, f"{inner.sql(dialect='spark')} is {bound.type}, neither DATE nor TIMESTAMP")
        return Bound(cast(type(node)(this=cast(bound.node, "DATE")), "BIGINT"), "BIGINT")


def _castable(have: str, wanted: str) -> bool:
    """Whether every engine casts alike, without rounding."""
    if have == "BIGINT":
        if wanted.startswith("DECIMAL"):
            precision, scale = decimal_of(wanted)
            return precision - scale >= len(str(2**63))
        return wanted in ("DOUBLE", "STRING")
    if have.startswith("DECIMAL"):
        (p, s), (q, t) = decimal_of(have), decimal_of(wanted)
        return wanted == "DOUBLE" or (wanted.startswith("DECIMAL") and t >= s and q - t >= p - s)
    return (have, wanted) in (("DATE", "STRING"), ("TIMESTAMP", "DATE"))


_NAMES: Mapping[str, str] = {
    "BOOLEAN": "BOOLEAN", "TINYINT": "BIGINT", "SMALLINT": "BIGINT", "INT": "BIGINT", "BIGINT": "BIGINT",
    "FLOAT": "DOUBLE", "DOUBLE": "DOUBLE", "TEXT": "STRING", "VARCHAR": "STRING", "BINARY": "BINARY",
    "VARBINARY": "BINARY", "DATE": "DATE", "TIMESTAMP": "TIMESTAMP", "TIMESTAMPTZ": "TIMESTAMP",
    "TIMESTAMPLTZ": "TIMESTAMP",
}  # fmt: skip


def column_type(node: exp.DataType, places: Places) -> str:
    """Return Spark's name of a type; narrow integers widen. Raises `SqlError` for one that no column has."""
    if node.this is exp.DType.DECIMAL:
        if not all(each.name.isdecimal() for each in node.expressions):
            places.refuse(node, f"{node.sql(dialect='spark')} is no type", "Write DECIMAL(p,s).")
        numbers = [int(each.name) for each in node.expressions] or [10]
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if not 0 <= scale <= precision <= DECIMAL_DIGITS or not precision:
            places.refuse(node, f"DECIMAL({precision},{scale}) is no type: 38 digits at most")
        return f"DECIMAL({precision},{scale})"
    name = _NAMES.get(node.this.value)
    if name is None or node.expressions or node.args.get("nested"):
        places.refuse(
            node, f"no column has the type {node.sql(dialect='spark')}",
            "Known: BOOLEAN, BIGINT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, TIMESTAMP.",
        )  # fmt: skip
    return name


_HANDLERS: Mapping[type[exp.Expr], str] = {
    exp.Literal: "_literal", exp.Null: "_null", exp.Boolean: "_boolean", exp.Paren: "_paren",
    exp.Neg: "_negation", exp.Abs: "_absolute", exp.Add: "_arithmetic", exp.Sub: "_arithmetic", exp.Mul: "_arithmetic",
    exp.Div: "_division", exp.Mod: "_remainder", exp.IntDiv: "_remainder",
    exp.BitwiseAnd: "_bits", exp.BitwiseOr: "_bits", exp.BitwiseXor: "_bits", exp.BitwiseNot: "_bits_turned",
    exp.EQ: "_comparison", exp.NEQ: "_comparison", exp.GT: "_comparison", exp.GTE: "_comparison", exp.LT: "_comparison",
    exp.LTE: "_comparison", exp.NullSafeEQ: "_comparison", exp.And: "_logic", exp.Or: "_logic", exp.Not: "_not",
    exp.Is: "_is", exp.In: "_in", exp.Between: "_between", exp.Like: "_like",
    exp.Case: "_case", exp.If: "_if", exp.Coalesce: "_coalesce", exp.Nullif: "_nullif", exp.Cast: "_cast",
    exp.TryCast: "_cast",
    exp.Upper: "_text", exp.Lower: "_text", exp.Trim: "_text", exp.Length: "_length", exp.Substring: "_substring",
    exp.Concat: "_concatenation", exp.DPipe: "_concatenation",
    exp.Year: "_part_of_date", exp.Month: "_part_of_date", exp.Day: "_part_of_date",
    exp.Extract: "_extract",
}  # fmt: skip

AGGREGATES = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
