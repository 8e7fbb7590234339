"""What a SELECT reads: FROM, JOIN and WHERE x IN (SELECT …), two relations at a time (docs/specs/compute.md 14.4).

Of more than two a left-deep tree is made: what is joined so far is an inner relation of the view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError
from sqlglot.tokenizer_core import TokenType

from pavane.dataflow.expressions import NULL, Binder, Bound, Places, Scope, cast
from pavane.dataflow.plan import INPUT, Inner, Plan, Select, Side
from pavane.dataflow.ports import DIFF, TIME, Column, SqlView, Table

CLAUSES = ("GROUP", "ORDER", "HAVING", "WHERE", "LIMIT", "OFFSET", "LEFT", "RIGHT", "INNER", "ON")
"""Words that the parser takes for the alias of a table where the rest of the clause is missing."""
OPENING, CLOSING = (TokenType.L_PAREN, TokenType.CASE), (TokenType.R_PAREN, TokenType.END)
NESTED_MAX = 36
"""Brackets within each other. Each takes twenty calls of the parser, and Python allows a thousand."""

Relation = Table | SqlView | Inner


@dataclass(frozen=True, slots=True)
class Joined:
    """One relation, or two and how they are joined; `scope` knows the columns of the result."""

    sides: tuple[Side, ...]
    scope: Scope
    keys: int = 0
    left: bool = False


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    scope: Scope


class Sources:
    """FROM of one SELECT.

    `inner` plans an inner SELECT, `add` makes an inner relation of a plan.
    """

    def __init__(
        self,
        select: exp.Select,
        tables: Mapping[str, Relation],
        places: Places,
        inner: Callable[[exp.Expr], Relation],
        add: Callable[[Plan, tuple[Column, ...]], Relation],
    ) -> None:
        self._select = select
        self._tables = tables
        self._places = places
        self._inner = inner
        self._add = add
        self._aliases: set[str] = set()
        self._named = {(column.table.lower(), column.name.lower()) for column in select.find_all(exp.Column)}
        where = select.args.get("where")
        terms = _terms(where.this) if where is not None else []
        self._among = [term for term in terms if isinstance(term, exp.In) and term.args.get("query") is not None]
        self.conditions = [term for term in terms if all(term is not each for each in self._among)]
        """What is left of WHERE."""

    def read(self) -> Joined:
        """Return what is read. Raises `SqlError`."""
        source = self._source(self._select.args["from_"].this)
        joined: Joined | None = None
        for join in self._select.args.get("joins") or []:
            source = self._result(joined) if joined is not None else source
            joined = self._join(join, source)
        for term in self._among:
            source = self._result(joined) if joined is not None else source
            joined = self._semi(term, source)
        return joined or Joined((Side(source.name, Select("", ())),), source.scope)

    def _source(self, node: exp.Expr) -> _Source:
        if not isinstance(node, exp.Table | exp.Subquery):
            instead = "Known: names, and a SELECT in ( )."
            self._places.refuse(node, "FROM has tables, views and inner SELECTs", instead)
        if node.alias.upper() in CLAUSES:
            self._places.refuse(node.args["alias"], f"{node.alias.upper()} is not complete")
        if isinstance(node, exp.Subquery):
            alias, relation = node.alias, self._inner(node.this)
        else:
            alias, relation = node.alias or node.name, self._table(node)
        if alias.lower() in self._aliases:
            instead = "Give both an alias."
            self._places.refuse(node, f"{alias} is joined with itself" if alias else "two have no name", instead)
        self._aliases.add(alias.lower())
        scope = Scope(self._places)
        for column in relation.columns:
            scope.add(alias, column.name, quoted(column.name), column.type)
        return _Source(relation.name, scope)

    def _table(self, node: exp.Table) -> Relation:
        table = self._tables.get(node.name.lower())
        if table is None:
            known = ", ".join(sorted(self._tables)) or "none"
            text = f"there is no table {node.name}, and no view before this one"
            self._places.refuse(node, text, f"Known here: {known}.")
        return table

    # --- joins ----------------------------------------------------------------------------------------------------

    def _join(self, join: exp.Join, first: _Source) -> Joined:
        if join.side not in ("", "LEFT") or join.kind not in ("", "INNER", "OUTER"):
            self._places.refuse(join, f"{join.side or join.kind} JOIN is not supported", "Known: JOIN, LEFT JOIN.")
        second = self._source(join.this)
        pairs, filters = self._conditions(join, (first.scope, second.scope))
        left = join.side == "LEFT"
        if left and filters[0]:
            self._places.refuse(join, "LEFT JOIN takes equalities and conditions on the right table in ON",
                                "Move a condition on the left table to WHERE, or into CASE.")  # fmt: skip
        return self._joined((first, second), pairs, filters, left=left)

    def _semi(self, term: exp.In, first: _Source) -> Joined:
        """Return the rows whose value is among those of an inner SELECT: a join with each of these once."""
        query = term.args["query"]
        relation = self._inner(query)
        if len(relation.columns) != 1:
            self._places.refuse(query, f"IN (SELECT …) of {len(relation.columns)} columns", "Name one.")
        column, value = relation.columns[0], Binder(first.scope).bind(term.this)
        if value.type != column.type:
            self._places.refuse(term, f"{value.type} is looked up among {column.type}", "CAST one of them.")
        once = Side(relation.name, select_of([("", Bound(exp.column(quoted(column.name)), column.type))], None))
        values = self._add(Plan((once,), 1, distinct=True), (Column("c0", column.type),))
        second = _Source(values.name, Scope(self._places))
        return self._joined((first, second), [(value, Bound(exp.column("c0"), column.type))], ([], []))

    def _joined(
        self,
        sources: tuple[_Source, _Source],
        pairs: Sequence[tuple[Bound, Bound]],
        filters: tuple[list[Bound], list[Bound]],
        *,
        left: bool = False,
    ) -> Joined:
        """Join by pairs; only columns that the SELECT names are carried along, and remembered."""
        scope, sides = Scope(self._places), []
        for number, source in enumerate(sources):
            made, names = [("", pair[number]) for pair in pairs], [f"k{i}" for i in range(len(pairs))]
            scope.unread |= source.scope.unread
            for place, ((qualifier, name), (ref, kind)) in enumerate(source.scope.columns.items()):
                if not self._named & {(qualifier, name), ("", name)}:
                    scope.unread.add(name)
                    continue
                made.append(("", Bound(exp.column(ref), kind)))
                names.append(f"{'lr'[number]}{place}")
                scope.add(qualifier, name, names[-1], kind)
            sides.append(Side(source.name, select_of(made, all_of(filters[number]), names)))
        return Joined(tuple(sides), scope, len(pairs), left)

    def _result(self, joined: Joined) -> _Source:
        """Make an inner relation of a join, so that more can be joined with it."""
        known = joined.scope.columns
        rows = select_of([("", Bound(exp.column(ref), kind)) for ref, kind in known.values()], None)
        relation = self._add(Plan(joined.sides, len(known), joined.keys, joined.left, rows), rows.columns)
        scope = Scope(self._places, unread=joined.scope.unread)
        for column, (qualifier, name) in zip(rows.columns, known, strict=True):
            scope.add(qualifier, name, column.name, column.type)
        return _Source(relation.name, scope)

    def _conditions(
        self, join: exp.Join, scopes: Sequence[Scope]
    ) -> tuple[list[tuple[Bound, Bound]], tuple[list[Bound], list[Bound]]]:
        """Split ON: pairs of expressions that must be equal, and conditions on either side alone."""
        if join.args.get("on") is None:
            self._places.refuse(join, "a JOIN needs ON")
        pairs: list[tuple[Bound, Bound]] = []
        filters: tuple[list[Bound], list[Bound]] = ([], [])
        for term in _terms(join.args["on"]):
            self._places.no_select(term)
            sides = self._side(term, scopes)
            if sides is not None:
                filters[sides].append(Binder(scopes[sides]).condition(term))
                continue
            if isinstance(term, exp.EQ):
                places = self._side(term.this, scopes), self._side(term.expression, scopes)
                if set(places) == {0, 1}:
                    parts = (term.this, term.expression) if places == (0, 1) else (term.expression, term.this)
                    pairs.append(self._pair(term, parts, scopes))
                    continue
            self._places.refuse(term, f"{term.sql(dialect='spark')} is no equality between the two tables",
                                "Move it to WHERE, if the join is no LEFT JOIN.")  # fmt: skip
        if not pairs:
            self._places.refuse(join, "the JOIN has no equality between the two tables", "Write ON a.x = b.x.")
        return pairs, filters

    def _pair(self, node: exp.EQ, parts: tuple[exp.Expr, exp.Expr], scopes: Sequence[Scope]) -> tuple[Bound, Bound]:
        bound = [Binder(scope).bind(part) for scope, part in zip(scopes, parts, strict=True)]
        if bound[0].type != bound[1].type:
            self._places.refuse(node, f"{bound[0].type} is joined with {bound[1].type}", "CAST one of them.")
        return bound[0], bound[1]

    def _side(self, node: exp.Expr, scopes: Sequence[Scope]) -> int | None:
        """Return of which table alone an expression speaks; None: of both."""
        found = set()
        for column in node.find_all(exp.Column):
            of = [i for i, scope in enumerate(scopes) if scope.knows(column)]
            if len(of) != 1:
                unread = scopes[0].unread | scopes[1].unread
                both = Scope(self._places, {**scopes[0].columns, **scopes[1].columns}, unread)
                both.resolve(column)
                self._places.refuse(column, f"column {column.name} is ambiguous", "Write TABLE.COLUMN.")
            found.add(of[0])
        return found.pop() if len(found) == 1 else None


def all_of(conditions: Sequence[Bound]) -> Bound | None:
    """Return what is true where all of these are."""
    return Bound(exp.and_(*(each.node for each in conditions)), "BOOLEAN") if conditions else None


def quoted(name: str) -> exp.Identifier:
    """Return a user's name as it stands in SQL."""
    return exp.to_identifier(name, quoted=True)


def select_of(made: Sequence[tuple[str, Bound]], where: Bound | None, names: Sequence[str] | None = None) -> Select:
    """Return a SELECT that makes columns c0, c1, … and carries time and diff along. Raises ``ParseError``."""
    columns = tuple(
        Column(names[number] if names is not None else f"c{number}", bound.type if bound.type != NULL else "BIGINT")
        for number, (_, bound) in enumerate(made)
    )
    items = [
        exp.alias_(cast(bound.node, column.type), column.name) for column, (_, bound) in zip(columns, made, strict=True)
    ]
    text = exp.select(*items, exp.column(quoted(TIME)), exp.column(quoted(DIFF))).from_(INPUT)
    if where is not None:
        text = text.where(where.node)
    sql = text.sql(dialect="spark")
    signs = [token.token_type for token in sqlglot.tokenize(sql, read="spark")]
    depths = accumulate((sign in OPENING) - (sign in CLOSING) for sign in signs)
    if max(depths) > NESTED_MAX:  # more than what was written has
        raise ParseError(f"more than {NESTED_MAX} brackets within each other")
    return Select(sql, columns)


def _terms(node: exp.Expr) -> list[exp.Expr]:
    """Return the conditions that AND joins."""
    node = node.unnest()
    return [*_terms(node.this), *_terms(node.expression)] if isinstance(node, exp.And) else [node]
