"""A checked SELECT to a plan (docs/specs/compute.md 14.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from pavane.dataflow.expressions import NULL, Binder, Bound, Places, Scope
from pavane.dataflow.plan import Aggregate, Group, Inner, OrderBy, Plan, Select, Side, Top
from pavane.dataflow.ports import DIFF, TIME, Column, SqlView, Table
from pavane.dataflow.sources import Relation, Sources, all_of, quoted, select_of

LIMIT_MAX = 10_000
INNER_MAX = 64
"""Inner SELECTs of a view and joins beyond its first: each keeps rows."""
NAMES = {exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max"}


class Planner:
    """Makes the plan of one SELECT, or of a UNION, over tables of a script and the views before it."""

    def __init__(self, tables: Mapping[str, Table | SqlView], places: Places) -> None:
        self._tables = tables
        self._places = places
        self._inner: dict[str, Inner] = {}

    def plan(self, select: exp.Expr | None) -> tuple[Plan, tuple[Column, ...], tuple[str, ...]]:
        """Return plan, columns of the view, and the tables and views that it reads. Raises `SqlError`."""
        plan, columns = self._planned(select, self._tables)
        reads, needed = set(plan.reads), []
        for inner in reversed(self._inner.values()):
            if inner.name in reads:  # else it is of a WITH that nothing reads
                needed.append(inner)
                reads.update(inner.plan.reads)
        whole = replace(plan, inner=tuple(reversed(needed)))
        return whole, columns, whole.tables

    def _planned(self, select: exp.Expr | None, tables: Mapping[str, Relation]) -> tuple[Plan, tuple[Column, ...]]:
        if isinstance(select, exp.Subquery) and not select.alias:
            return self._planned(select.this, tables)
        if isinstance(select, exp.Select | exp.Union) and select.args.get("with_") is not None:
            tables = self._with(select.args["with_"], tables)
        if isinstance(select, exp.Union):
            return self._union(select, tables)
        if not isinstance(select, exp.Select):
            self._places.refuse(select, "a view is a SELECT, or several with UNION or UNION ALL")
        return self._selected(select, tables)

    def _selected(self, select: exp.Select, tables: Mapping[str, Relation]) -> tuple[Plan, tuple[Column, ...]]:
        if select.args.get("from_") is None:
            self._places.refuse(select, "the SELECT has no FROM")
        sources = Sources(
            select, tables, self._places, lambda inner: self._add(*self._planned(inner, tables)), self._add
        )
        joined = sources.read()
        condition = all_of([Binder(joined.scope).condition(term) for term in sources.conditions])
        if select.args.get("distinct") is not None:
            for each in select.args["distinct"].expressions:
                self._places.refuse(each, "DISTINCT takes no list here", "Write SELECT DISTINCT a, b.")
        grouping = _Grouping(select, joined.scope, self._places)
        shown = self._outputs(select, grouping)
        order = self._order(select, grouping, shown)
        if grouping.used:
            rows = select_of(grouping.inputs(), condition)
            final: Select | None = select_of([*shown, *order.hidden], grouping.having)
            group: Group | None = grouping.group()
        else:
            rows, final, group = select_of([*shown, *order.hidden], condition), None, None
        after = rows if joined.keys else None
        sides = joined.sides if joined.keys else (Side(joined.sides[0].table, rows),)
        distinct = select.args.get("distinct") is not None
        if distinct and order.hidden:
            self._places.refuse(select.args["order"], "with DISTINCT the order must be by columns of the SELECT")
        plan = Plan(sides, len(shown), joined.keys, joined.left, after, group, final, distinct, order.top)
        return plan, tuple(Column(name, bound.type) for name, bound in shown)

    def _union(self, union: exp.Union, tables: Mapping[str, Relation]) -> tuple[Plan, tuple[Column, ...]]:
        (first, columns), (second, others) = (self._planned(each, tables) for each in (union.this, union.expression))
        if len(others) != len(columns):
            text = f"a UNION of {len(columns)} and {len(others)} columns"
            self._places.refuse(union.expression, text, "Give every SELECT the same number of columns.")
        for column, other in zip(columns, others, strict=True):
            if other.type != column.type:
                text = f"column {column.name} is {column.type} in the first SELECT, and {other.type} in another one"
                self._places.refuse(union.expression, text, "CAST one of them.")
        plan = Plan((), len(columns), union=(*(first.union or (first,)), *(second.union or (second,))))
        if union.args.get("distinct"):
            made = [("", Bound(exp.column(quoted(column.name)), column.type)) for column in columns]
            rows = Side(self._add(plan, columns).name, select_of(made, None))
            plan = Plan((rows,), len(columns), distinct=True)
        return plan, columns

    def _with(self, node: exp.With, tables: Mapping[str, Relation]) -> Mapping[str, Relation]:
        """Return the tables and what WITH names, each of which may read the ones before it."""
        named: dict[str, Relation] = {}
        for each in node.expressions:
            if each.alias.lower() in named:
                self._places.refuse(each.args["alias"], f"WITH names {each.alias} twice")
            named[each.alias.lower()] = self._add(*self._planned(each.this, {**tables, **named}))
        return {**tables, **named}

    def _add(self, plan: Plan, columns: tuple[Column, ...]) -> Inner:
        if len(self._inner) == INNER_MAX:
            text = f"a view has more than {INNER_MAX} inner SELECTs and joins"
            self._places.refuse(None, text, "Make several views of it.")
        inner = Inner(f"inner {len(self._inner)}", columns, plan)  # no user's name has a blank
        self._inner[inner.name] = inner
        return inner

    # --- SELECT, ORDER BY -----------------------------------------------------------------------------------------

    def _outputs(self, select: exp.Select, grouping: _Grouping) -> list[tuple[str, Bound]]:
        shown: list[tuple[str, Bound]] = []
        for item in select.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                self._places.refuse(item, "* is not supported", "Name the columns: the log's may become more.")
            bound = grouping.bind(item.unalias())
            if bound.type == NULL:
                self._places.refuse(item, "a column that is always NULL has no type", "CAST it.")
            if not isinstance(item, exp.Alias | exp.Column) or not item.alias_or_name:
                self._places.refuse(item, f"{item.sql(dialect='spark')} has no name", "Write AS NAME behind it.")
            if item.alias_or_name.lower() in (TIME, DIFF):
                self._places.refuse(item, f"{item.alias_or_name} is no name of a column", "Write AS NAME behind it.")
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
        self._aggregates: dict[exp.Expr, tuple[int, Aggregate]] = {}
        self._arguments: list[Bound] = []
        group, having = select.args.get("group"), select.args.get("having")
        parts = [*select.expressions, *(each for each in (having, select.args.get("order")) if each is not None)]
        for part in parts:
            places.no_select(part)
        self.used = group is not None or having is not None or any(part.find(exp.AggFunc) for part in parts)
        self._keys = [self._key(node, select, scope) for node in (group.expressions if group is not None else ())]
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
        return Group(len(self._keys), tuple(aggregate for _, aggregate in self._aggregates.values()))

    def _key(self, node: exp.Expr, select: exp.Select, scope: Scope) -> tuple[exp.Expr, Bound]:
        if isinstance(node, exp.Literal) and node.is_int and 0 < int(node.name) <= len(select.expressions):
            node = select.expressions[int(node.name) - 1].unalias()
        elif isinstance(node, exp.Column) and not node.table and not scope.knows(node):
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
        known = self._aggregates.get(node)
        if known is None:
            known = self._aggregates[node] = len(self._aggregates), self._aggregate(node)
        number, aggregate = known
        return Bound(exp.column(f"c{len(self._keys) + number}"), aggregate.type)

    def _try(self, node: exp.Expr) -> Bound | None:
        """Bind an expression over rows, if it has no aggregate in it."""
        return None if node.find(exp.AggFunc) or not node.find(exp.Column) else self._rows.bind(node)

    def _aggregate(self, node: exp.AggFunc) -> Aggregate:
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
