"""A checked SELECT to a plan (docs/specs/compute.md 14.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from pavane.dataflow.expressions import NULL, Binder, Bound, Places, Scope, cast
from pavane.dataflow.plan import INPUT, Aggregate, Group, OrderBy, Plan, Select, Side, Top
from pavane.dataflow.ports import DIFF, TIME, Column, Table, View

LIMIT_MAX = 10_000
CLAUSES = ("GROUP", "ORDER", "HAVING", "WHERE", "LIMIT", "OFFSET", "LEFT", "RIGHT", "INNER", "ON")
"""Words that the parser takes for the alias of a table where the rest of the clause is missing."""
NAMES = {exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max"}


class Planner:
    """Makes the plan of one SELECT, or of a UNION ALL, over tables of a script and the views before it."""

    def __init__(self, tables: Mapping[str, Table | View], places: Places) -> None:
        self._tables = tables
        self._places = places

    def plan(self, select: exp.Expr | None) -> tuple[Plan, tuple[Column, ...], tuple[str, ...]]:
        """Return plan, columns of the view, and the tables and views that it reads. Raises `SqlError`."""
        if isinstance(select, exp.Union):
            return self._union(select)
        if not isinstance(select, exp.Select):
            self._places.refuse(select, "a view is a SELECT, or several with UNION ALL")
        known = ("expressions", "from_", "joins", "where", "group", "having", "distinct", "order", "limit", "offset")
        self._places.only(select, *known)
        if select.args.get("from_") is None:
            self._places.refuse(select, "the SELECT has no FROM")
        sides, scope, keys, left = self._sources(select)
        where = select.args.get("where")
        condition = Binder(scope).condition(where.this) if where is not None else None
        if select.args.get("distinct") is not None:
            self._places.only(select.args["distinct"])
        grouping = _Grouping(select, scope, self._places)
        shown = self._outputs(select, grouping)
        order = self._order(select, grouping, shown)
        if grouping.used:
            rows = _select(grouping.inputs(), condition)
            final: Select | None = _select([*shown, *order.hidden], grouping.having)
            group: Group | None = grouping.group()
        else:
            rows, final, group = _select([*shown, *order.hidden], condition), None, None
        if keys:
            plan_sides, joined = sides, rows
        else:
            plan_sides, joined = (Side(sides[0].table, rows),), None
        distinct = select.args.get("distinct") is not None
        if distinct and order.hidden:
            self._places.refuse(select.args["order"], "with DISTINCT the order must be by columns of the SELECT")
        plan = Plan(plan_sides, len(shown), keys, left, joined, group, final, distinct, order.top)
        columns = tuple(Column(name, bound.type) for name, bound in shown)
        return plan, columns, tuple(side.table for side in sides)

    def _union(self, union: exp.Union) -> tuple[Plan, tuple[Column, ...], tuple[str, ...]]:
        if union.args.get("distinct"):
            instead = "Write UNION ALL; for each row once, SELECT DISTINCT from it in a view of its own."
            self._places.refuse(union, "UNION without ALL is not supported", instead)
        self._places.only(union, "this", "expression", "distinct")
        (first, columns, tables), (second, others, more) = self.plan(union.this), self.plan(union.expression)
        if len(others) != len(columns):
            text = f"a UNION ALL of {len(columns)} and {len(others)} columns"
            self._places.refuse(union.expression, text, "Give every SELECT the same number of columns.")
        for column, other in zip(columns, others, strict=True):
            if other.type != column.type:
                text = f"column {column.name} is {column.type} in the first SELECT, and {other.type} in another one"
                self._places.refuse(union.expression, text, "CAST one of them.")
        parts = (*(first.union or (first,)), *(second.union or (second,)))
        return Plan((), len(columns), union=parts), columns, tuple(dict.fromkeys((*tables, *more)))

    # --- FROM -----------------------------------------------------------------------------------------------------

    def _sources(self, select: exp.Select) -> tuple[tuple[Side, ...], Scope, int, bool]:
        first = self._table(select.args["from_"].this)
        joins = select.args.get("joins") or []
        if not joins:
            scope = Scope(self._places)
            for column in first[1].columns:
                scope.add(first[0], column.name, _quoted(column.name), column.type)
            return (Side(first[1].name, Select("", ())),), scope, 0, False
        if len(joins) > 1:
            self._places.refuse(joins[1], "a view joins two tables", "Join two in a view, and that one with the third.")
        join = joins[0]
        self._places.only(join, "this", "side", "kind", "on")
        if join.side not in ("", "LEFT") or join.kind not in ("", "INNER", "OUTER"):
            self._places.refuse(join, f"{join.side or join.kind} JOIN is not supported", "Known: JOIN, LEFT JOIN.")
        second = self._table(join.this)
        if second[0].lower() == first[0].lower():
            self._places.refuse(join, f"{second[0]} is joined with itself", "Give both an alias.")
        return self._joined(join, first, second)

    def _table(self, node: exp.Expr) -> tuple[str, Table | View]:
        if not isinstance(node, exp.Table):
            instead = "Make a view of the inner SELECT, before this one, and read it."
            self._places.refuse(node, "a view reads tables and views", instead)
        self._places.only(node, "this", "alias")
        if node.alias.upper() in CLAUSES:
            self._places.refuse(node.args["alias"], f"{node.alias.upper()} is not complete")
        table = self._tables.get(node.name.lower())
        if table is None:
            known = ", ".join(sorted(table.name for table in self._tables.values())) or "none"
            text = f"there is no table {node.name}, and no view before this one"
            self._places.refuse(node, text, f"Known here: {known}.")
        return node.alias or node.name, table

    def _joined(
        self, join: exp.Join, first: tuple[str, Table | View], second: tuple[str, Table | View]
    ) -> tuple[tuple[Side, ...], Scope, int, bool]:
        scopes = []
        for alias, table in (first, second):
            scope = Scope(self._places)
            for column in table.columns:
                scope.add(alias, column.name, _quoted(column.name), column.type)
            scopes.append(scope)
        pairs, filters = self._conditions(join, scopes)
        left = join.side == "LEFT"
        if left and filters[0]:
            self._places.refuse(join, "LEFT JOIN takes equalities and conditions on the right table in ON",
                                "Move a condition on the left table to WHERE, or into CASE.")  # fmt: skip
        scope, sides = Scope(self._places), []
        for number, (alias, table) in enumerate((first, second)):
            made = [("", pair[number]) for pair in pairs]
            for place, column in enumerate(table.columns):
                made.append(("", Bound(exp.column(_quoted(column.name)), column.type)))
                scope.add(alias, column.name, f"{'lr'[number]}{place}", column.type)
            condition = _all(filters[number])
            names = [f"k{i}" for i in range(len(pairs))] + [f"{'lr'[number]}{i}" for i in range(len(table.columns))]
            sides.append(Side(table.name, _select(made, condition, names)))
        return tuple(sides), scope, len(pairs), left

    def _conditions(
        self, join: exp.Join, scopes: Sequence[Scope]
    ) -> tuple[list[tuple[Bound, Bound]], tuple[list[Bound], list[Bound]]]:
        """Split ON: pairs of expressions that must be equal, and conditions on either side alone."""
        if join.args.get("on") is None:
            self._places.refuse(join, "a JOIN needs ON")
        pairs: list[tuple[Bound, Bound]] = []
        filters: tuple[list[Bound], list[Bound]] = ([], [])
        terms = list(join.args["on"].flatten()) if isinstance(join.args["on"], exp.And) else [join.args["on"]]
        for term in terms:
            inner = term.unnest()
            sides = self._side(inner, scopes)
            if sides is not None:
                filters[sides].append(Binder(scopes[sides]).condition(inner))
                continue
            if isinstance(inner, exp.EQ):
                places = self._side(inner.this, scopes), self._side(inner.expression, scopes)
                if set(places) == {0, 1}:
                    parts = (inner.this, inner.expression) if places == (0, 1) else (inner.expression, inner.this)
                    pairs.append(self._pair(inner, parts, scopes))
                    continue
            self._places.refuse(inner, f"{inner.sql(dialect='spark')} is no equality between the two tables",
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
            of = [i for i, scope in enumerate(scopes) if _knows(scope, column)]
            if len(of) != 1:
                both = Scope(self._places, {**scopes[0].columns, **scopes[1].columns})
                both.resolve(column)
                self._places.refuse(column, f"column {column.name} is ambiguous", "Write TABLE.COLUMN.")
            found.add(of[0])
        return found.pop() if len(found) == 1 else None

    # --- SELECT, ORDER BY -----------------------------------------------------------------------------------------

    def _outputs(self, select: exp.Select, grouping: _Grouping) -> list[tuple[str, Bound]]:
        shown: list[tuple[str, Bound]] = []
        for item in select.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                self._places.refuse(item, "* is not supported", "Name the columns: the log's may become more.")
            bound = grouping.bind(item.unalias())
            if bound.type == NULL:
                self._places.refuse(item, "a column that is always NULL has no type", "CAST it.")
            if not isinstance(item, exp.Alias | exp.Column):
                self._places.refuse(item, f"{item.sql(dialect='spark')} has no name", "Write AS NAME behind it.")
            if item.alias_or_name.lower() in {name.lower() for name, _ in shown}:
                self._places.refuse(item, f"two columns are called {item.alias_or_name}", "Write AS NAME behind one.")
            shown.append((item.alias_or_name, bound))
        return shown

    def _order(self, select: exp.Select, grouping: _Grouping, shown: list[tuple[str, Bound]]) -> _Order:
        order, limit, offset = (select.args.get(name) for name in ("order", "limit", "offset"))
        if limit is None:
            if order is not None:
                self._places.refuse(order, "a view has no order", "Order where it is read, or add LIMIT.")
            if offset is not None:
                self._places.refuse(offset, "OFFSET needs LIMIT")
            return _Order([], None)
        terms: list[OrderBy] = []
        hidden: list[tuple[str, Bound]] = []
        names = [name.lower() for name, _ in shown]
        for term in order.expressions if order is not None else ():
            this = term.this
            if isinstance(this, exp.Literal) and this.is_int and 0 < int(this.name) <= len(shown):
                column = int(this.name) - 1
            elif isinstance(this, exp.Column) and not this.table and this.name.lower() in names:
                column = names.index(this.name.lower())
            else:
                column = len(shown) + len(hidden)
                hidden.append(("", grouping.bind(this)))
            descending = bool(term.args.get("desc"))
            terms.append(OrderBy(column, descending, bool(term.args.get("nulls_first"))))
        counts = [self._count(limit), self._count(offset) if offset is not None else 0]
        return _Order(hidden, Top(tuple(terms), *counts))

    def _count(self, node: exp.Expr) -> int:
        number = node.expression
        if not isinstance(number, exp.Literal) or not number.is_int or int(number.name) > LIMIT_MAX:
            self._places.refuse(node, f"LIMIT and OFFSET take a number up to {LIMIT_MAX}")
        return int(number.name)


class _Order:
    def __init__(self, hidden: list[tuple[str, Bound]], top: Top | None) -> None:
        self.hidden = hidden
        self.top = top


class _Grouping:
    """Keys and aggregates of a SELECT. `bind` is for what stands in SELECT, HAVING and ORDER BY."""

    def __init__(self, select: exp.Select, scope: Scope, places: Places) -> None:
        self._places = places
        self._rows = Binder(scope)
        self._aggregates: list[tuple[exp.Expr, Aggregate]] = []
        self._arguments: list[Bound] = []
        group, having = select.args.get("group"), select.args.get("having")
        parts = [*select.expressions, *(each for each in (having, select.args.get("order")) if each is not None)]
        self.used = group is not None or having is not None or any(part.find(exp.AggFunc) for part in parts)
        self._keys = [self._key(node, select, scope) for node in (group.expressions if group is not None else ())]
        if group is not None:
            places.only(group, "expressions")
        self._groups = Binder(Scope(places), self._special)
        self.having = self._groups.condition(having.this) if having is not None else None

    def bind(self, node: exp.Expr) -> Bound:
        """Bind over the rows of groups, or over rows where there are no groups."""
        return self._groups.bind(node) if self.used else self._rows.bind(node)

    def inputs(self) -> list[tuple[str, Bound]]:
        """What the operator of groups takes of each row: the keys, then the arguments."""
        return [("", bound) for _, bound in self._keys] + [("", bound) for bound in self._arguments]

    def group(self) -> Group:
        """Return the operator."""
        return Group(len(self._keys), tuple(aggregate for _, aggregate in self._aggregates))

    def _key(self, node: exp.Expr, select: exp.Select, scope: Scope) -> tuple[exp.Expr, Bound]:
        if isinstance(node, exp.Literal) and node.is_int and 0 < int(node.name) <= len(select.expressions):
            node = select.expressions[int(node.name) - 1].unalias()
        elif isinstance(node, exp.Column) and not node.table and not _knows(scope, node):
            named = [each for each in select.expressions if each.alias.lower() == node.name.lower()]
            node = named[0].unalias() if named else node
        bound = self._rows.bind(node)
        if bound.type == NULL:
            self._places.refuse(node, "grouping by NULL")
        return node, bound

    def _special(self, node: exp.Expr) -> Bound | None:
        bound = None if isinstance(node, exp.AggFunc | exp.Literal) else self._try(node)
        if bound is not None:
            for number, (_, key) in enumerate(self._keys):
                if key.node == bound.node:
                    return Bound(exp.column(f"c{number}"), key.type)
        if isinstance(node, exp.Column):
            self._places.refuse(node, f"column {node.name} is neither grouped nor aggregated",
                                "Add it to GROUP BY, or take min or max of it.")  # fmt: skip
        if not isinstance(node, exp.Count | exp.Sum | exp.Avg | exp.Min | exp.Max):
            return None
        for number, (known, aggregate) in enumerate(self._aggregates):
            if known == node:
                return Bound(exp.column(f"c{len(self._keys) + number}"), aggregate.type)
        self._aggregates.append((node, self._aggregate(node)))
        return self._special(node)

    def _try(self, node: exp.Expr) -> Bound | None:
        """Bind an expression over rows, if it has no aggregate in it."""
        return None if node.find(exp.AggFunc) or not node.find(exp.Column) else self._rows.bind(node)

    def _aggregate(self, node: exp.AggFunc) -> Aggregate:
        self._places.only(node, "this", "big_int")
        argument, function = node.this, NAMES.get(type(node), "count")
        if isinstance(argument, exp.Star):
            return Aggregate("count", None, "BIGINT")
        if isinstance(argument, exp.Distinct):
            if not isinstance(node, exp.Count) or len(argument.expressions) != 1:
                self._places.refuse(node, "DISTINCT is known of count(DISTINCT x) alone")
            argument, function = argument.expressions[0], "count_distinct"
        bound = self._rows.bind(argument)
        self._arguments.append(bound)
        kind = self._type(node, function, bound.type)
        return Aggregate(function, len(self._keys) + len(self._arguments) - 1, kind, bound.type == "DOUBLE")

    def _type(self, node: exp.Expr, function: str, argument: str) -> str:
        if function.startswith("count"):
            return "BIGINT"
        if argument == NULL:
            self._places.refuse(node, f"{function} of NULL has no type")
        if function in ("min", "max"):
            return argument
        if not argument.startswith(("BIGINT", "DOUBLE", "DECIMAL")):
            self._places.refuse(node, f"{function} takes numbers, not {argument}")
        if function == "sum":
            return f"DECIMAL(38,{argument.rpartition(',')[2]}" if argument.startswith("DECIMAL") else argument
        if argument.startswith("DECIMAL"):
            self._places.refuse(node, "avg of DECIMAL is not supported", "CAST to DOUBLE, or divide sum by count.")
        return "DOUBLE"


def _knows(scope: Scope, column: exp.Column) -> bool:
    return any(n == column.name.lower() and column.table.lower() in ("", q) for q, n in scope.columns)


def _all(conditions: Sequence[Bound]) -> Bound | None:
    return Bound(exp.and_(*(each.node for each in conditions)), "BOOLEAN") if conditions else None


def _quoted(name: str) -> exp.Identifier:
    return exp.to_identifier(name, quoted=True)


def _select(made: Sequence[tuple[str, Bound]], where: Bound | None, names: Sequence[str] | None = None) -> Select:
    """Return a SELECT that makes columns c0, c1, … and carries time and diff along."""
    columns = tuple(
        Column(names[number] if names is not None else f"c{number}", bound.type if bound.type != NULL else "BIGINT")
        for number, (_, bound) in enumerate(made)
    )
    items = [
        exp.alias_(cast(bound.node, column.type), column.name) for column, (_, bound) in zip(columns, made, strict=True)
    ]
    text = exp.select(*items, exp.column(_quoted(TIME)), exp.column(_quoted(DIFF))).from_(INPUT)
    if where is not None:
        text = text.where(where.node)
    return Select(text.sql(dialect="spark"), columns)
