"""Calls of the table's functions: which row is meant, and what its arguments become (docs/specs/compute.md 14.2)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import sqlglot
from sqlglot import exp

from pavane.dataflow.bound import DECIMAL_DIGITS, NULL, Bound, Places, as_double, cast, decimal_of, is_number
from pavane.dataflow.functions import FUNCTIONS, LETTERS, RANGE, Function, ViewsSql, is_literal

Bind = Callable[[exp.Expr], Bound]
Alike = Callable[[Sequence[exp.Expr], str], tuple[list[exp.Expr], str]]
ALMOST = 0.8
"""How much of two names is equal where one may be meant for the other."""
KNOWN = (
    "+ - * / %, comparisons, AND OR NOT, IS NULL, IN (list), BETWEEN, LIKE, CASE, IF, COALESCE, NULLIF, CAST, ABS, "
    "UPPER, LOWER, TRIM, LENGTH, SUBSTRING, CONCAT, ||, YEAR, MONTH, DAY, DATE '…'; COUNT, SUM, AVG, MIN, MAX; the "
    "functions of docs/compute.md. MIN of a condition says whether it is true of every row, MAX whether of any"
)


def bound_call(node: exp.Anonymous, bind: Bind, alike: Alike, places: Places) -> Bound:
    """Return a call over the stage's columns. Raises `SqlError`."""
    rows = FUNCTIONS.get(node.name.lower())
    if rows is None:
        unknown(node, places)
    given: list[exp.Expr] = node.expressions
    fitting = [row for row in rows if row.least <= len(given) and (row.many or len(given) <= len(row.takes))]
    if not fitting:
        places.refuse(
            node, f"{node.name} does not take {len(given)} arguments", f"Write {' or '.join(map(form, rows))}."
        )
    for row in fitting:
        literals = [pair for pair in zip(given, row.takes, strict=False) if is_literal(pair[1])]
        if row.means and all(_literal(*pair) for pair in literals):
            return bind(_meant(row, given))
    wrong: dict[str, exp.Expr] = {}
    bound = [None if _literal_takes(fitting[0], place) else bind(each) for place, each in enumerate(given)]
    for row in fitting if not fitting[0].means else ():
        found = _arguments(row, given, bound, alike, wrong)
        if found is not None:
            arguments, common = found
            if row.nothing:
                return Bound(arguments[0], row.gives)
            call: exp.Expr = exp.Anonymous(this=row.name.upper(), expressions=arguments)
            gives = common if row.gives == "ALIKE" else row.gives
            if row.gives.startswith("DECIMAL"):
                gives = _rounded(gives, bound[0], arguments, node, places)
            return Bound(call if gives in (NULL, "STRING") else cast(call, gives), gives)
    if not wrong:
        known = ", ".join(row.takes[0] for row in rows)
        places.refuse(given[0], f"{given[0].sql(dialect=ViewsSql)} is no part of a date here", f"Known: {known}.")
    what, where = next(iter(wrong.items()))
    places.refuse(where, what, _forms(rows))


def _forms(rows: Iterable[Function]) -> str:
    return f"Write {' or '.join(map(form, rows))}."


def form(row: Function) -> str:
    """Return how a function is written."""
    if row.means:
        shown = (takes if is_literal(takes) else letter for letter, takes in zip(LETTERS, row.takes, strict=False))
        return f"{row.name}({', '.join(shown)})"
    return f"{row.name}({', '.join(row.takes)})"


def unknown(node: exp.Expr, places: Places) -> NoReturn:
    """Refuse what is in no list, and name the function that is spelled nearly so. Raises `SqlError`."""
    name = node.name if isinstance(node, exp.Anonymous) else node.key
    near = difflib.get_close_matches(name.lower(), FUNCTIONS, 1, ALMOST)
    instead = f"Is {near[0]} meant?" if near else f"Known: {KNOWN}."
    places.refuse(node, f"{node.sql(dialect=ViewsSql)} is not supported", instead)


def _rounded(gives: str, of: Bound | None, given: Sequence[exp.Expr], node: exp.Expr, places: Places) -> str:
    """Return the type of a decimal that is rounded."""
    precision, scale = decimal_of(of.type if of is not None else NULL)
    kept = min(scale, int(given[1].name) if gives.endswith("b") else 0)
    digits = precision - scale + 1 + kept
    if digits > DECIMAL_DIGITS:
        places.refuse(node, f"the result needs {digits} digits, DECIMAL has 38", "CAST the argument to DOUBLE.")
    return f"DECIMAL({digits},{kept})"


def _meant(row: Function, given: Sequence[exp.Expr]) -> exp.Expr:
    """Return what a call stands for, over what it was given."""
    tree = exp.paren(sqlglot.parse_one(row.body, dialect=ViewsSql))
    for part in tree.walk():
        part.meta.clear()  # places in the body, not in the script
    named = dict(zip(LETTERS, given, strict=False))
    return tree.transform(lambda part: named[part.name].copy() if isinstance(part, exp.Column) else part)


def _literal_takes(row: Function, place: int) -> bool:
    return is_literal(row.takes[min(place, len(row.takes) - 1)])


def _arguments(
    row: Function, given: Sequence[exp.Expr], bound: Sequence[Bound | None], alike: Alike, wrong: dict[str, exp.Expr]
) -> tuple[list[exp.Expr], str] | None:
    """Return the arguments as the row takes them, and the type that some have in common; None if they do not fit."""
    if row.takes[:1] == ("ALIKE",):
        return alike(given, row.name)
    made = []
    for place, node in enumerate(given):
        takes = row.takes[min(place, len(row.takes) - 1)].partition("=")[0].strip(" *")
        each = bound[place]
        argument = _literal(node, takes) if each is None else _typed(each, takes)
        if argument is None:
            is_what = "no such literal" if each is None else each.type
            wrong[f"{node.sql(dialect=ViewsSql)} is {is_what}, {row.name} takes {takes}"] = node
            return None
        made.append(argument)
    missing = row.takes[len(given) :] if not row.many else ()
    return [*made, *(sqlglot.parse_one(each.partition("=")[2].strip(), dialect=ViewsSql) for each in missing)], NULL


def _literal(node: exp.Expr, takes: str) -> exp.Expr | None:
    if takes in ("LITERAL", "DELIMITER"):
        fits = isinstance(node, exp.Literal) and node.is_string
        # Spark looks for the next one a letter behind the last one, DuckDB behind its end.
        overlaps = takes == "DELIMITER" and any(node.name.startswith(node.name[at:]) for at in range(1, len(node.name)))
        return node.copy() if fits and not overlaps else None
    if "'" in takes:
        fits = isinstance(node, exp.Literal) and node.is_string and node.name.upper() in re.findall(r"'([^']*)'", takes)
        return exp.Literal.string(node.name.upper()) if fits else None
    sign, number = (-1, node.this) if isinstance(node, exp.Neg) else (1, node)
    if not isinstance(number, exp.Literal) or not number.is_int or len(number.name) > len(str(2**31)):
        return None
    value = sign * int(number.name)
    fits = any(int(low) <= value <= int(high) for low, high in RANGE.findall(takes))
    return exp.Literal.number(value) if fits else None


def _typed(bound: Bound, takes: str) -> exp.Expr | None:
    """Return an argument in the type that is taken, None if it has none that becomes it."""
    kind, _, digits = takes.partition(" ")
    whole = kind in ("INT", "DIGITS")
    if kind == "NUMBER":
        return as_double(bound) if is_number(bound.type) else None
    if bound.type == "TIMESTAMP" and kind == "DATE/TIMESTAMP":
        return cast(bound.node, "DATE")
    if kind == "DECIMAL":
        return cast(bound.node, bound.type) if bound.type.startswith(kind) else None
    kinds = [NULL, "BIGINT"] if whole else [NULL, *kind.split("/")]
    if kind != "ANY" and bound.type not in kinds:
        return None
    node = cast(bound.node, kinds[1]) if bound.type == NULL and kind != "ANY" else bound.node
    if kind == "DIGITS":
        node = cast(node, f"DECIMAL({digits},0)")
    return cast(node, "BIGINT" if kind == "DIGITS" and int(digits) > 9 else "INT") if whole else node
