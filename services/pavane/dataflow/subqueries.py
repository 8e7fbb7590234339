"""A SELECT within an expression as joins (docs/specs/compute.md 14.4).

What it says of a row of the outer SELECT becomes a column: a LEFT JOIN by the equalities between both SELECTs, or by a
constant where there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from pavane.dataflow.bound import Places
from pavane.dataflow.ports import Column

Columns = Mapping[str, Sequence[Column]]
"""Of relations, by name in lower case."""
WHOLE = ("group", "having", "limit", "offset", "with_", "qualify")
"""Clauses of a SELECT whose rows are not those of its FROM and WHERE."""
WRITTEN_MAX = 20_000
"""Nodes of the parser that names in one ORDER BY or QUALIFY stand for, each time anew."""
VALUE, ONE = "v", "one"
ONLY = "select value"
"""What the column of an inner SELECT is called: no clause of it names it."""


@dataclass(slots=True)
class Taken:
    """An inner SELECT without what it says of the outer one."""

    rows: exp.Expr
    """Makes k0, k1, …, then v, then i0, i1, …"""
    outer: list[exp.Expr] = field(default_factory=list)
    """Of the outer SELECT: each equals a k."""
    others: list[exp.Expr] = field(default_factory=list)
    """Further conditions between both, over columns `r.i…` of it and `o.r…` of the outer one."""
    named: list[exp.Column] = field(default_factory=list)
    """Columns r0, r1, … of the outer SELECT."""

    @property
    def keys(self) -> list[str]:
        """Of the rows."""
        return [f"k{i}" for i in range(len(self.outer))]


def within(node: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the EXISTS, IN and scalar SELECTs of an expression, and none that are inside of another one."""
    if isinstance(node, exp.Exists | exp.Subquery) or (isinstance(node, exp.In) and node.args.get("query") is not None):
        yield node
    elif not isinstance(node, exp.Query):
        for part in node.iter_expressions():
            yield from within(part)


def query_of(node: exp.Expr) -> exp.Expr:
    """Return the inner SELECT of one."""
    query: exp.Expr = node.args["query"] if isinstance(node, exp.In) else node.this
    return query.unnest()


def is_aggregate(query: exp.Expr) -> bool:
    """Whether it is a SELECT of one row, whatever there is."""
    return isinstance(query, exp.Select) and query.args.get("group") is None and any(map(adds, query.expressions))


def gives_one(query: exp.Expr) -> bool:
    """Whether it never gives more than one row."""
    limit = query.args.get("limit")
    return is_aggregate(query) or (isinstance(limit, exp.Limit) and limit.expression.name in ("0", "1"))


def adds(node: exp.Expr) -> bool:
    """Whether an expression has an aggregate of its own."""
    if isinstance(node, exp.Query | exp.Window):
        return False
    return isinstance(node, exp.AggFunc) or any(map(adds, node.iter_expressions()))


def taken(query: exp.Expr, value: exp.Expr | None, columns: Columns, places: Places) -> Taken:
    """Return an inner SELECT, of whose rows `value` is wanted, without its conditions on the outer SELECT."""
    aggregates = is_aggregate(query)
    if not isinstance(query, exp.Select) or any(query.args.get(name) for name in WHOLE) or (aggregates and not value):
        return _wrapped(query, value)
    made, known = query.copy(), _known(query, columns)
    found = Taken(made)
    rest: list[exp.Expr] = []
    shown: list[exp.Expr] = []
    where = made.args.get("where")
    mixed = []
    for term in terms(where.this) if where is not None else ():
        free = list(_free(term, known, columns))
        if not free:
            rest.append(term)
            continue
        sides = [term.this, term.expression] if isinstance(term, exp.EQ) else []
        of = [len(list(_free(side, known, columns))) for side in sides]
        own = [len(list(side.find_all(exp.Column))) for side in sides]
        if 0 in of and len(sides) == 2 and own[1 - of.index(0)] == of[1 - of.index(0)] > 0 and own[of.index(0)]:
            inner = of.index(0)
            found.outer.append(sides[1 - inner].copy())
            shown.append(exp.alias_(sides[inner].copy(), f"k{len(shown)}"))
        elif aggregates:
            places.refuse(term, "it is no equality between both SELECTs", "Join in FROM, and group there.")
        else:
            mixed.append((term, free))
    if value is not None:
        shown.append(exp.alias_(value.copy(), VALUE))
    number = 0
    for term, free in mixed:
        places.no_select(term)
        foreign, held = {id(each) for each in free}, exp.Paren(this=term)
        for column in list(term.find_all(exp.Column)):
            if id(column) in foreign:
                column.replace(exp.column(f"r{len(found.named)}", table="o"))
                found.named.append(column)
            else:
                shown.append(exp.alias_(column.copy(), f"i{number}"))
                column.replace(exp.column(f"i{number}", table="r"))
                number += 1
        found.others.append(held)
    if value is not None and (found.outer or found.others) and value.find(exp.Window) is not None:
        instead = "Put it into an inner SELECT in FROM."
        places.refuse(value, "a window function beside columns of the outer SELECT", instead)
    made.set("where", exp.Where(this=exp.and_(*rest, copy=False)) if rest else None)
    made.set("distinct", None)
    made.set("expressions", [*shown, exp.alias_(exp.Literal.number(1), ONE)])
    if aggregates and found.outer:
        made.set("group", exp.Group(expressions=[exp.Literal.number(i + 1) for i in range(len(found.outer))]))
    return found


def _wrapped(query: exp.Expr, value: exp.Expr | None) -> Taken:
    made = query.copy()
    selects = _selects(made)
    for select in selects:
        shown = dict[str, exp.Expr]()  # clauses mean columns by their names, so what has one of its own keeps it
        for each in select.expressions:
            name = each.alias_or_name.lower() if isinstance(each, exp.Alias | exp.Column) else ""
            if name and name not in shown:
                shown[name] = each
            else:
                other = f"{ONLY} {len(shown)}"
                shown[other] = exp.alias_(each.unalias(), other)
        select.set("expressions", list(shown.values()))
    first = exp.to_identifier(selects[0].expressions[0].alias_or_name, quoted=True) if value is not None else None
    ones = [exp.alias_(exp.column(first), VALUE)] if first is not None else []
    rows = exp.select(*ones, exp.alias_(exp.Literal.number(1), ONE)).from_(exp.Subquery(this=made, alias=_alias("q")))
    return Taken(rows)


def _selects(query: exp.Expr) -> list[exp.Select]:
    """Return the SELECTs that a query gives the rows of."""
    query = query.unnest()
    if isinstance(query, exp.SetOperation):
        return [*_selects(query.this), *_selects(query.expression)]
    return [query] if isinstance(query, exp.Select) else []


def order_by_places(select: exp.Select, places: Places) -> None:
    """Write out what names mean in ORDER BY, as in Spark: first of all the columns that the SELECT makes."""
    order = select.args.get("order")
    names = [each.alias_or_name.lower() for each in select.expressions]
    found: list[tuple[exp.Column, exp.Expr]] = []
    for column in list(order.find_all(exp.Column)) if order is not None else ():
        inside = column.find_ancestor(exp.AggFunc, exp.Query, exp.Order)
        if column.table or column.name.lower() not in names or not isinstance(inside, exp.Order):
            continue
        place = names.index(column.name.lower())
        alone = isinstance(column.parent, exp.Ordered) and inside is order
        found.append((column, exp.Literal.number(place + 1) if alone else select.expressions[place].unalias()))
    write_out(found, places)


def write_out(names: Iterable[tuple[exp.Column, exp.Expr]], places: Places) -> None:
    """Put in the place of each name what it stands for."""
    written = 0
    for column, made in names:
        written += sum(1 for _ in made.walk())
        if written > WRITTEN_MAX:
            places.refuse(column, "names here stand for expressions that are too long", "Make an inner SELECT of them.")
        column.replace(made.copy() if isinstance(made, exp.Column | exp.Literal) else exp.paren(made))


def _alias(name: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(name))


def of_nothing(value: exp.Expr) -> exp.Expr | None:
    """Return what an expression of aggregates is over no rows; None: NULL."""
    only = isinstance(value, exp.AggFunc) and not isinstance(value, exp.Count)
    return None if only else value.copy().transform(_none)


def _none(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Count):
        return exp.Literal.number(0)
    return exp.null() if isinstance(node, exp.AggFunc) else node


def terms(node: exp.Expr) -> list[exp.Expr]:
    """Return the conditions that AND joins; what all sides of an OR have in common is one, too."""
    node = node.unnest()
    if isinstance(node, exp.And):
        return [*terms(node.this), *terms(node.expression)]
    if isinstance(node, exp.Or):
        sides = [terms(node.this), terms(node.expression)]
        return [node, *(each.copy() for each in sides[0] if each in sides[1] and isinstance(each, exp.EQ))]
    return [node]


def _known(query: exp.Expr, columns: Columns) -> set[tuple[str, str]] | None:
    """Return qualifiers and names that a SELECT knows itself; None: it is not known which."""
    found = set[tuple[str, str]]()
    from_ = query.args.get("from_")
    for node in [from_.this if from_ is not None else None, *(join.this for join in query.args.get("joins") or ())]:
        if isinstance(node, exp.Subquery):
            found |= {(node.alias.lower(), name.lower()) for name in node.this.unnest().named_selects}
        elif isinstance(node, exp.Table) and node.name.lower() in columns:
            found |= {(node.alias_or_name.lower(), each.name.lower()) for each in columns[node.name.lower()]}
        else:
            return None
    return found


def _free(node: exp.Expr, known: set[tuple[str, str]] | None, columns: Columns) -> Iterator[exp.Column]:
    """Yield the columns that are not known."""
    if known is None:
        return
    if isinstance(node, exp.Column):
        if not any(name == node.name.lower() and node.table.lower() in ("", of) for of, name in known):
            yield node
        return
    if isinstance(node, exp.Select):
        own = _known(node, columns)
        known = None if own is None else known | own | {("", name.lower()) for name in node.named_selects}
    for part in node.iter_expressions():
        yield from _free(part, known, columns)
