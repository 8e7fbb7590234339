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

from pavane.dataflow.bound import NULL, Bound, Places, cast
from pavane.dataflow.expressions import Binder, Scope
from pavane.dataflow.plan import INPUT, Inner, Plan, Select, Side
from pavane.dataflow.ports import DIFF, TIME, Column, SqlView, Table
from pavane.dataflow.subqueries import Taken, gives_one, is_aggregate, of_nothing, query_of, taken, terms, within
from pavane.dataflow.temporal import Span, says_now

CLAUSES = ("GROUP", "ORDER", "HAVING", "WHERE", "LIMIT", "OFFSET", "LEFT", "RIGHT", "INNER", "ON")
"""Words that the parser takes for the alias of a table where the rest of the clause is missing."""
OPENING, CLOSING = (TokenType.L_PAREN, TokenType.CASE), (TokenType.R_PAREN, TokenType.END)
NESTED_MAX = 36
"""Brackets within each other. Each takes twenty calls of the parser, and Python allows a thousand."""

NO_VALUE = {"STRING": "", "DATE": "1970-01-01", "TIMESTAMP": "1970-01-01"}
"""Some value of a type, else 0: beside it is said whether it stands for NULL."""
ONE = exp.Literal.number(1)


@dataclass(frozen=True, slots=True)
class Plain:
    """A view that is not kept: a SELECT that stands wherever it is named."""

    name: str
    columns: tuple[Column, ...]
    select: exp.Expr
    tables: Mapping[str, Relation]


Relation = Table | SqlView | Inner | Plain
Pair = tuple[Bound, Bound]
"""Of both sides of a join, what must be equal."""
ONE_PAIR: Pair = (Bound(cast(ONE, "BIGINT"), "BIGINT"), Bound(cast(ONE, "BIGINT"), "BIGINT"))
"""Each row of one side meets each row of the other one."""
Filters = tuple[list[Bound], list[Bound]]
"""Conditions on either side of a join."""


@dataclass(frozen=True, slots=True)
class Joined:
    """One relation, or two and how they are joined; `scope` knows the columns of the result."""

    sides: tuple[Side, ...]
    scope: Scope
    keys: int = 0
    left: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A relation, and how its columns are called."""

    name: str
    scope: Scope


class Sources:
    """FROM and WHERE of one SELECT.

    `inner` plans an inner SELECT that may name further relations, `add` makes an inner relation of a plan.
    """

    def __init__(
        self,
        select: exp.Select,
        tables: Mapping[str, Relation],
        places: Places,
        inner: Callable[[exp.Expr | Plain, Mapping[str, Relation]], Inner],
        add: Callable[[Plan, tuple[Column, ...]], Inner],
    ) -> None:
        self._select = select
        self._tables = tables
        self._places = places
        self._inner = inner
        self._add = add
        self._aliases: set[str] = set()
        self._named = {(column.table.lower(), column.name.lower()) for column in select.find_all(exp.Column)}
        self._terms: list[exp.Expr] = []
        self._sources: dict[int, Source] = {}
        self.conditions: list[exp.Expr] = []
        """What is left of WHERE."""

    def read(self, shown: Sequence[exp.Expr] = ()) -> Joined:
        """Return what is read. SELECTs within WHERE and what is `shown` become columns there. Raises `SqlError`."""
        where = self._select.args.get("where")
        self._terms = terms(where.this) if where is not None else []
        source, joined = self._source(self._select.args["from_"].this), None
        joins = list(self._select.args.get("joins") or ())
        crossed = [join for join in joins if join.kind == "CROSS"]
        for join in joins[joins.index(crossed[0]) :] if crossed else ():
            if join.side in ("RIGHT", "FULL"):
                instead = "Write it as an inner SELECT: FROM a, (SELECT …) b."
                self._places.refuse(join, f"{join.side} JOIN behind a comma or CROSS JOIN", instead)
        every = self._terms
        while joins:
            source = self._result(joined) if joined is not None else source
            joined = self._join(*self._next(joins, source))
        self._not_ambiguous([term for term in every if all(term is not each for each in self._terms)])
        musts = [term for term in self._terms if isinstance(term, exp.Exists | exp.In) and term in within(term)]
        self._terms = [term for term in self._terms if all(term is not each for each in musts)]
        holders = [exp.Paren(this=term) for term in self._terms]
        others = [(node, False) for each in (*holders, *shown) for node in within(each)]
        for node, must in [*((node, True) for node in musts), *others]:
            source = self._result(joined) if joined is not None else source
            joined = self._looked_up(node, source, must=must)
        self.conditions += [each.this for each in holders]
        return joined or _alone(source)

    def shared(self, joined: Joined) -> Joined:
        """Return what is read as one relation, so that several can read it."""
        return _alone(self._result(joined))

    def timed(self, joined: Joined, span: Span, condition: Bound | None) -> Joined:
        """Return what of the rows counts at each moment, as one relation of the columns that are named behind WHERE."""
        scope, kept = Scope(self._places, unread=set(joined.scope.unread)), list[tuple[str, Bound]]()
        behind = [part for key, part in self._select.args.items() if key not in ("with_", "from_", "joins", "where")]
        parts = [each for part in behind for each in (part if isinstance(part, list) else [part]) if each is not None]
        columns = [column for part in parts if isinstance(part, exp.Expr) for column in part.find_all(exp.Column)]
        named = {(column.table.lower(), column.name.lower()) for column in columns}
        for (qualifier, name), (ref, kind) in joined.scope.columns.items():
            if not named & {(qualifier, name), ("", name)}:
                scope.unread.add(name)
                continue
            scope.add(qualifier, name, f"c{len(kept)}", kind)
            kept.append(("", Bound(exp.column(ref), kind)))
        test = all_of([*([condition] if condition is not None else []), *span.known])
        rows = select_of([*kept, *(("", each) for each in span.columns)], test)
        sides = joined.sides if joined.keys else (Side(joined.sides[0].table, rows),)
        over = rows if joined.keys else None
        plan = Plan(sides, len(rows.columns), joined.keys, joined.left, over, timed=True)
        return _alone(Source(self._add(plan, rows.columns[:-2]).name, scope))

    def _next(self, joins: list[exp.Join], first: Source) -> tuple[exp.Join, Source, Source]:
        """Take the next join: of those that only commas join, the first of which WHERE says an equality."""
        number, second = 0, self._source(joins[0].this)
        for other in range(len(joins) if joins[0].kind == "CROSS" and not self._pairs(first, second) else 0):
            if joins[other].kind != "CROSS":
                break
            found = self._source(joins[other].this)
            if self._pairs(first, found):
                number, second = other, found
                break
        return joins.pop(number), first, second

    def _pairs(self, first: Source, second: Source) -> list[exp.Expr]:
        """Return the conditions of WHERE that are equalities between two relations."""
        return [term for term in self._terms if self._is_pair(term, (first.scope, second.scope))]

    def _is_pair(self, term: exp.Expr, scopes: Sequence[Scope]) -> bool:
        if not isinstance(term, exp.EQ) or term.find(exp.Query):
            return False
        of = [
            {tuple(i for i, scope in enumerate(scopes) if scope.knows(each)) for each in side.find_all(exp.Column)}
            for side in (term.this, term.expression)
        ]
        return of in ([{(0,)}, {(1,)}], [{(1,)}, {(0,)}])

    def _not_ambiguous(self, found: Sequence[exp.Expr]) -> None:
        """Refuse a condition of WHERE by which tables were joined, and whose name one that was joined later has, too.

        Only now: inner SELECTs are planned in the order of the joins, on which the digest of a plan depends.
        """
        for column in (column for term in found for column in term.find_all(exp.Column)):
            if sum(source.scope.knows(column) for source in self._sources.values()) > 1:
                self._places.refuse(column, f"column {column.name} is ambiguous", "Write TABLE.COLUMN.")

    def _source(self, node: exp.Expr) -> Source:
        if id(node) in self._sources:
            return self._sources[id(node)]
        if not isinstance(node, exp.Table | exp.Subquery):
            instead = "Known: names, and a SELECT in ( )."
            self._places.refuse(node, "FROM has tables, views and inner SELECTs", instead)
        if node.alias.upper() in CLAUSES:
            self._places.refuse(node.args["alias"], f"{node.alias.upper()} is not complete")
        alias = node.alias if isinstance(node, exp.Subquery) else node.alias_or_name
        relation = self._inner(node.this, {}) if isinstance(node, exp.Subquery) else self._table(node)
        if alias.lower() in self._aliases:
            instead = "Give both an alias."
            self._places.refuse(node, f"{alias} is joined with itself" if alias else "two have no name", instead)
        self._aliases.add(alias.lower())
        scope = Scope(self._places)
        for column in relation.columns:
            scope.add(alias, column.name, quoted(column.name), column.type)
        return self._sources.setdefault(id(node), Source(relation.name, scope))

    def _table(self, node: exp.Table) -> Relation:
        table = self._tables.get(node.name.lower())
        if table is None:
            known = ", ".join(sorted(self._tables)) or "none"
            text = f"there is no table {node.name}, and no view before this one"
            self._places.refuse(node, text, f"Known here: {known}.")
        return self._inner(table, {}) if isinstance(table, Plain) else table

    # --- joins ----------------------------------------------------------------------------------------------------

    def _join(self, join: exp.Join, first: Source, second: Source) -> Joined:
        if join.side not in ("", "LEFT", "RIGHT", "FULL") or join.kind not in ("", "INNER", "OUTER", "CROSS"):
            known = "Known: JOIN, LEFT, RIGHT, FULL and CROSS JOIN; for SEMI and ANTI write [NOT] EXISTS."
            self._places.refuse(join, f"{join.side or join.kind} JOIN is not supported", known)
        if join.side == "RIGHT":
            first, second = second, first
        pairs, filters, others = self._conditions(join, (first, second))
        if not join.side:
            self.conditions += others
            return self._joined((first, second), pairs or [ONE_PAIR], filters)
        if others or not pairs:
            text = f"{others[0].sql(dialect='spark')} is" if others else f"the {join.side} JOIN has"
            self._places.refuse(join, f"{text} no equality between the two tables",
                                "Write ON a.x = b.x; with JOIN other conditions may stand in WHERE.")  # fmt: skip
        if join.side == "FULL":
            return self._full((first, second), pairs, filters)
        if filters[0]:
            pairs = [(_where(pairs[0][0], filters[0]), pairs[0][1]), *pairs[1:]]
        return self._joined((first, second), pairs, ([], filters[1]), left=True)

    def _full(self, sources: tuple[Source, Source], pairs: list[Pair], filters: Filters) -> Joined:
        """Join each row of the first side, and add the rows of the second one whose key no row of it has."""
        first, second = sources
        pairs = [(_where(pairs[0][0], filters[0]), _where(pairs[0][1], filters[1])), *pairs[1:]]
        left = self._joined(sources, pairs, ([], []), left=True)
        keys = select_of([("", key) for key, _ in pairs], None)
        once = self._add(Plan((Side(first.name, keys),), len(pairs), distinct=True), keys.columns)
        back = [
            (key, Bound(exp.column(column.name), column.type))
            for (_, key), column in zip(pairs, once.columns, strict=True)
        ]
        alone, (mark,) = self._with(second, once, back, ["c0"])
        known = left.scope.columns
        there = [Bound(exp.column(ref), kind) for ref, kind in known.values()]
        padded = [
            Bound(exp.column(alone.scope.columns[name][0]) if name in alone.scope.columns else exp.null(), kind)
            for name, (_, kind) in known.items()
        ]
        unmatched = Bound(alone.scope.resolve(mark).node.is_(exp.null()), "BOOLEAN")
        rows = [select_of([("", each) for each in made], on) for made, on in ((there, None), (padded, unmatched))]
        both = zip((left, alone), rows, strict=True)
        plans = tuple(Plan(each.sides, len(known), each.keys, left=True, rows=made) for each, made in both)
        return _alone(self._named_again(self._add(Plan((), len(known), union=plans), rows[0].columns), left.scope))

    # --- SELECTs within expressions -------------------------------------------------------------------------------

    def _looked_up(self, node: exp.Expr, first: Source, *, must: bool) -> Joined:
        """Join with what an EXISTS, IN or scalar SELECT says of each row, and put a column in its place.

        If it `must` be true the rows of which it is stay alone, and nothing is put in its place.
        """
        query, bind = query_of(node), Binder(first.scope).bind
        if not isinstance(query, exp.Query):
            self._places.refuse(query, "EXISTS and IN take a SELECT")
        if not isinstance(node, exp.Exists) and len(query.selects) != 1:
            what = "IN (SELECT …)" if isinstance(node, exp.In) else "a SELECT in an expression"
            self._places.refuse(query, f"{what} of {len(query.selects)} columns", "Name one.")
        value = None if isinstance(node, exp.Exists) else query.selects[0].unalias()
        if isinstance(node, exp.Subquery) and not gives_one(query):
            instead = "Take an aggregate without GROUP BY, or write LIMIT 1."
            self._places.refuse(query, "a SELECT in an expression may give more than one row", instead)
        parts = taken(query, value, {name: each.columns for name, each in self._tables.items()}, self._places)
        if isinstance(node, exp.In) and is_aggregate(query) and parts.outer:  # of no rows it is one value
            instead = "Write = or <> in place of [NOT] IN: it gives one value."
            self._places.refuse(query, "an aggregate with columns of the outer SELECT behind IN", instead)
        outer, rows = [bind(each) for each in parts.outer], self._inner(parts.rows, {})
        if parts.others:
            rows = self._matching(parts, rows, first, outer)
        columns = {each.name: Bound(exp.column(each.name), each.type) for each in rows.columns}
        pairs = [self._equal(node, each, columns[f"k{i}"]) for i, each in enumerate(outer)]
        for i, each in enumerate(parts.named):
            pairs += _null_safe(bind(each), columns[f"r{i}"])
        if isinstance(node, exp.Subquery) and value is not None:
            found, (mark, one) = self._with(first, rows, pairs, ["one", "v"])
            none = of_nothing(value) if parts.outer else None
            made = exp.case().when(mark.is_(exp.null()), none).else_(one) if none is not None else one
            self._places.stands_for(made, node)
            return found
        by = [name for name in columns if name not in ("v", "one")]
        among = [self._equal(node, bind(node.this), columns["v"])] if isinstance(node, exp.In) else []
        once = self._inner(_over_rows([*by, *(["v"] if among else []), "1 AS one"]).distinct(), {"rows": rows})
        if must:
            return self._with(first, once, [*pairs, *among], [], left=False)[0]
        found, (mark,) = self._with(first, once, [*pairs, *among], ["one"])
        there: exp.Expr = mark.is_(exp.null()).not_()
        if among:  # it may be neither true nor false
            grouped = self._inner(_over_rows([*by, "count(*) AS n", "count(v) AS c"], by), {"rows": rows})
            source = self._result(found)
            bind = Binder(source.scope).bind
            pairs = [(bind(each), columns[f"k{i}"]) for i, each in enumerate(parts.outer)]
            for i, each in enumerate(parts.named):
                pairs += _null_safe(bind(each), columns[f"r{i}"])
            found, (all_, known) = self._with(source, grouped, pairs, ["n", "c"])
            of_none = exp.or_(all_.is_(exp.null()), all_.eq(exp.Literal.number(0)))
            unknown = exp.or_(node.this.copy().is_(exp.null()), exp.LT(this=known, expression=all_.copy()))
            cases = exp.case().when(there, exp.true()).when(of_none, exp.false()).when(unknown, exp.null())
            there = cases.else_(exp.false())
        self._places.stands_for(exp.paren(there), node)
        return found

    def _matching(self, parts: Taken, rows: Inner, first: Source, outer: Sequence[Bound]) -> Inner:
        """Return the rows of an inner SELECT with the values of the outer one of which all conditions are true."""
        named = [*outer, *(Binder(first.scope).bind(each) for each in parts.named)]
        names = [*parts.keys, *(f"r{i}" for i in range(len(parts.named)))]
        values = Side(first.name, select_of([("", each) for each in named], None))
        columns = tuple(Column(name, each.type) for name, each in zip(names, named, strict=True))
        once = self._add(Plan((values,), len(named), distinct=True), columns)
        made = [exp.alias_(exp.column(name, table="o"), name) for name in names]
        made += [exp.alias_(exp.column(each.name, table="r"), each.name) for each in rows.columns if each.name == "v"]
        on = [exp.column(name, table="o").eq(exp.column(name, table="r")) for name in parts.keys]
        select = exp.select(*made).from_("o").join("r", on=exp.and_(*on) if on else exp.true()).where(*parts.others)
        return self._inner(select, {"o": once, "r": rows})

    def _with(
        self, first: Source, relation: Relation, pairs: list[Pair], names: list[str], *, left: bool = True
    ) -> tuple[Joined, list[exp.Column]]:
        """Join with a relation, and return how these columns of it are called in the result."""
        scope, kinds, made = Scope(self._places), {each.name: each.type for each in relation.columns}, []
        for name in names:
            called = f"select {len(self._named)}"  # no user's name has a blank
            self._named.add(("", called))
            scope.add("", called, name, kinds[name])
            made.append(exp.column(quoted(called)))
        sources = (first, Source(relation.name, scope))
        return self._joined(sources, pairs or [ONE_PAIR], ([], []), left=left), made

    def _joined(
        self, sources: tuple[Source, Source], pairs: Sequence[Pair], filters: Filters, *, left: bool = False
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

    def _result(self, joined: Joined) -> Source:
        """Make an inner relation of a join, so that more can be joined with it."""
        if not joined.keys:
            return Source(joined.sides[0].table, joined.scope)
        known = joined.scope.columns
        rows = select_of([("", Bound(exp.column(ref), kind)) for ref, kind in known.values()], None)
        relation = self._add(Plan(joined.sides, len(known), joined.keys, joined.left, rows), rows.columns)
        return self._named_again(relation, joined.scope)

    def _named_again(self, relation: Relation, of: Scope) -> Source:
        """Return a relation of columns that are called as others were."""
        scope = Scope(self._places, unread=of.unread)
        for column, (qualifier, name) in zip(relation.columns, of.columns, strict=True):
            scope.add(qualifier, name, column.name, column.type)
        return Source(relation.name, scope)

    def _conditions(self, join: exp.Join, sources: tuple[Source, Source]) -> tuple[list[Pair], Filters, list[exp.Expr]]:
        """Split ON: pairs of expressions that must be equal, conditions on either side alone, and others."""
        scopes = [source.scope for source in sources]
        pairs, filters, others = list[Pair](), (list[Bound](), list[Bound]()), list[exp.Expr]()
        on = join.args.get("on")
        found = [*(terms(on) if on is not None else ()), *(self._pairs(*sources) if join.kind == "CROSS" else ())]
        self._terms = [term for term in self._terms if all(term is not each for each in found)]
        for term in found:
            self._places.no_select(term)
            if says_now(term) and not join.side:  # as good as in WHERE
                others.append(term)
                continue
            side = self._side(term, scopes)
            if side is not None:
                filters[side].append(Binder(scopes[side]).condition(term))
                continue
            places = (
                [self._side(each, scopes) for each in (term.this, term.expression)] if isinstance(term, exp.EQ) else []
            )
            if set(places) == {0, 1}:
                parts = (term.this, term.expression)[:: 1 if places[0] == 0 else -1]
                pairs.append(self._equal(term, *(Binder(s).bind(p) for s, p in zip(scopes, parts, strict=True))))
            else:
                others.append(term)
        return pairs, filters, others

    def _equal(self, node: exp.Expr, one: Bound, other: Bound) -> Pair:
        if one.type != other.type:
            self._places.refuse(node, f"{one.type} is compared with {other.type}", "CAST one of them.")
        return one, other

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


def _alone(source: Source) -> Joined:
    return Joined((Side(source.name, Select("", ())),), source.scope)


def _where(key: Bound, conditions: Sequence[Bound]) -> Bound:
    """Return a key that is NULL, which nothing equals, where conditions are not true."""
    test = all_of(conditions)
    return key if test is None else Bound(exp.case().when(test.node, key.node).else_(exp.null()), key.type)


def _null_safe(one: Bound, other: Bound) -> list[Pair]:
    """Return what is equal in pairs where both are equal, or both NULL."""
    value = cast(exp.Literal.string(NO_VALUE.get(one.type, "0")), one.type)
    if one.type == "BOOLEAN":
        value = exp.false()
    pairs = [tuple(Bound(exp.Coalesce(this=each.node, expressions=[value]), each.type) for each in (one, other))]
    pairs.append(tuple(Bound(exp.paren(each.node.is_(exp.null())), "BOOLEAN") for each in (one, other)))
    return [(first, second) for first, second in pairs]


def _over_rows(shown: list[str], by: Sequence[str] = ()) -> exp.Select:
    """Return a SELECT over the relation `rows`, or over groups of them."""
    made = exp.select(*shown).from_("rows")
    return made.group_by(*by) if by else made
