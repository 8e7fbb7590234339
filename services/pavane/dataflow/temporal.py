"""Conditions on `now()`: between which moments a row counts (docs/specs/compute.md 14.2, 14.4).

A moment is a number of microseconds since 1970. What is compared with `now()` is an expression over the row, so each
condition is true from some moment on, or until one, and all that AND joins are true in one span.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from sqlglot import exp

from pavane.dataflow.bound import Bound, Places, cast
from pavane.dataflow.expressions import Binder, refuse_now

ALWAYS, EVER = -(2**62), 2**62
"""Moments before and after all others."""
INTERVAL_DAYS_MAX = 3_660_000
"""Ten thousand years, which is as long as a TIMESTAMP goes; of one interval, and of all in a comparison together."""
_HOUR = 3600 * 10**6
UNITS: Mapping[str, int] = {
    "WEEK": 168 * _HOUR, "DAY": 24 * _HOUR, "HOUR": _HOUR, "MINUTE": 60 * 10**6, "SECOND": 10**6,
    "MILLISECOND": 1000, "MICROSECOND": 1,
}  # fmt: skip
"""Microseconds."""
_TURNED: Mapping[type[exp.Expr], type[exp.Expr]] = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE}


@dataclass(frozen=True, slots=True)
class Span:
    """When a row counts: from the greatest of some moments on, until the least of others; where `known` is true."""

    begins: tuple[Bound, ...]
    ends: tuple[Bound, ...]
    known: tuple[Bound, ...]

    @property
    def columns(self) -> tuple[Bound, Bound]:
        """The two ends."""
        return _outermost(exp.Greatest, self.begins, ALWAYS), _outermost(exp.Least, self.ends, EVER)


def with_clock(statement: exp.Expr) -> exp.Expr:
    """Return a statement in which `now()` is the parser's word for it."""

    def known(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Anonymous) or node.name.lower() != "now" or node.expressions:
            return node
        made = exp.CurrentTimestamp()
        made.meta.update(node.meta)
        return made

    return statement.transform(known, copy=False)


def says_now(node: exp.Expr) -> bool:
    """Whether `now()` is in an expression."""
    return node.find(exp.CurrentTimestamp) is not None


def span_of(terms: Sequence[exp.Expr], binder: Binder, places: Places) -> Span:
    """Return when conditions with `now()` are true of a row. Raises `SqlError` where they are no span."""
    begins: list[Bound] = []
    ends: list[Bound] = []
    known: list[Bound] = []
    for term in terms:
        for kind, row, offset in _compared(term, places):
            bound = binder.bind(row)
            if bound.type not in ("TIMESTAMP", "DATE"):
                what = f"{row.sql(dialect='spark')} is {bound.type}, and is compared with now()"
                places.refuse(row, what, "Compare a TIMESTAMP or a DATE.")
            moment = cast(exp.UnixMicros(this=cast(bound.node, "TIMESTAMP")), "BIGINT")
            # row > now() + offset: until the moment; row >= now() + offset: also at it
            later = offset + (kind in (exp.GTE, exp.LT))
            moved = exp.Add(this=moment, expression=_number(later)) if later else moment
            (ends if kind in (exp.GT, exp.GTE) else begins).append(Bound(exp.paren(moved), "BIGINT"))
            known.append(Bound(exp.paren(exp.Not(this=exp.paren(bound.node.is_(exp.null())))), "BOOLEAN"))
    return Span(tuple(begins), tuple(ends), tuple(known))


def _compared(term: exp.Expr, places: Places) -> list[tuple[type[exp.Expr], exp.Expr, int]]:
    """Return comparisons of an expression with `now()`, and how much is to be added to the expression."""
    parts: list[exp.Expr] = [term]
    if isinstance(term, exp.Between):
        low, high = term.args["low"], term.args["high"]
        parts = [exp.GTE(this=term.this, expression=low), exp.LTE(this=term.this, expression=high)]
    found: list[tuple[type[exp.Expr], exp.Expr, int]] = []
    for part in parts:
        if type(part) not in _TURNED:
            refuse_now(_first_now(term), places)
        (left, one), (right, other) = _apart(part.this, places), _apart(part.expression, places)
        if _is_now(left):
            made = _TURNED[type(part)], right, other - one
        elif _is_now(right):
            made = type(part), left, one - other
        else:
            refuse_now(_first_now(term), places)
        if says_now(made[1]):
            refuse_now(_first_now(made[1]), places)
        if abs(made[2]) > INTERVAL_DAYS_MAX * UNITS["DAY"]:
            what = f"the intervals beside now() are longer than {INTERVAL_DAYS_MAX} days together"
            places.refuse(_first_now(term), what, "Write shorter ones.")
        found.append(made)
    return found


def _apart(node: exp.Expr, places: Places) -> tuple[exp.Expr, int]:
    """Split what is added to an expression from it."""
    node = node.unnest()
    if isinstance(node, exp.Add | exp.Sub):
        left, right = node.this.unnest(), node.expression.unnest()
        if isinstance(right, exp.Interval):
            inner, offset = _apart(left, places)
            return inner, offset + _micros(right, places) * (1 if isinstance(node, exp.Add) else -1)
        if isinstance(left, exp.Interval) and isinstance(node, exp.Add):
            inner, offset = _apart(right, places)
            return inner, offset + _micros(left, places)
    return node, 0


def _micros(node: exp.Interval, places: Places) -> int:
    unit, value = node.args.get("unit"), node.this
    name = unit.name.upper().removesuffix("S") if isinstance(unit, exp.Var) else ""
    try:
        number = Decimal(value.name) if isinstance(value, exp.Literal) else None
    except InvalidOperation:
        number = None
    if number is not None and name in ("MONTH", "QUARTER", "YEAR"):
        places.refuse(node, f"a {name} is not always as long", "Write INTERVAL '30' DAY.")
    if number is not None and number.is_finite() and abs(number) > INTERVAL_DAYS_MAX * UNITS["DAY"]:
        places.refuse(node, f"{node.sql(dialect='spark')} is too long")  # no arithmetic with it: that may fail
    if number is None or not number.is_finite() or name not in UNITS or (name != "SECOND" and number % 1):
        known = "Write INTERVAL '90' MINUTE; known are WEEK, DAY, HOUR, MINUTE and SECOND."
        places.refuse(node, f"{node.sql(dialect='spark')} is no interval here", known)
    found = number * UNITS[name]
    if found % 1 or abs(found) > INTERVAL_DAYS_MAX * UNITS["DAY"]:
        places.refuse(node, f"{node.sql(dialect='spark')} is too long, or has more than microseconds")
    return int(found)


def _is_now(node: exp.Expr) -> bool:
    return isinstance(node, exp.CurrentTimestamp) and node.args.get("this") is None


def _first_now(node: exp.Expr) -> exp.Expr:
    return node.find(exp.CurrentTimestamp) or node


def _outermost(function: type[exp.Func], moments: Sequence[Bound], none: int) -> Bound:
    if not moments:
        return Bound(_number(none), "BIGINT")
    first, *others = [each.node for each in moments]
    return Bound(function(this=first, expressions=others) if others else first, "BIGINT")


def _number(value: int) -> exp.Expr:
    number = exp.Literal.number(abs(value))
    return cast(exp.paren(exp.Neg(this=number)) if value < 0 else number, "BIGINT")
