"""A checked SELECT to a plan (docs/specs/compute.md 14.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from pavane.dataflow.bound import NULL, Bound, Places, cast
from pavane.dataflow.expressions import AGGREGATES, Binder, Scope
from pavane.dataflow.plan import Aggregate, Group, Inner, OrderBy, Plan, Select, Side, Top
from pavane.dataflow.ports import DIFF, TIME, Column
from pavane.dataflow.sources import ONE_PAIR, Joined, Plain, Relation, Sources, all_of, quoted, select_of
from pavane.dataflow.subqueries import ONLY, adds, gives_one, order_by_places, query_of, within, write_out
from pavane.dataflow.temporal import says_now, span_of
from pavane.dataflow.windows import MADE, Beyond, rebased

LIMIT_MAX = 10_000
INNER_MAX = 64
"""Inner SELECTs of a view and joins beyond its first: each keeps rows."""
AGGREGATES_MAX = 100
"""Of one SELECT: each is some columns of a statement and, of min, max and doubles, a table of state."""
SETS = (exp.GroupingSets, exp.Rollup, exp.Cube)
SETS_MAX = 64
"""Grouping sets of a SELECT: each is a plan of its own, and keeps its groups."""
NAMES = {exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max"}


_Set = tuple[Sequence[exp.Expr], Sequence[exp.Expr]]


class Planner:
    """Makes the plan of one SELECT, or of a UNION, over tables of a script and the views before it."""

    def __init__(self, tables: Mapping[str, Relation], places: Places) -> None:
        self._tables = tables
        self._places = places
        self._inner: dict[str, Inner] = {}
        self._plain: dict[str, Inner] = {}

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
        if isinstance(select, exp.Select | exp.SetOperation) and select.args.get("with_") is not None:
            tables = self._with(select.args["with_"], tables)
        if isinstance(select, exp.SetOperation):
            return self._united(select, tables)
        if not isinstance(select, exp.Select):
            self._places.refuse(select, "a view is a SELECT, or several with UNION, INTERSECT or EXCEPT")
        return self._selected(select, tables)

    def _inner_of(self, inner: exp.Expr | Plain, tables: Mapping[str, Relation]) -> Inner:
        """Plan an inner SELECT; a view that is not kept once, however often it is named."""
        if not isinstance(inner, Plain):
            return self._add(*self._planned(inner, tables))
        if inner.name not in self._plain:
            self._plain[inner.name] = self._add(*self._planned(inner.select.copy(), inner.tables))
        return self._plain[inner.name]

    def _selected(self, select: exp.Select, tables: Mapping[str, Relation]) -> tuple[Plan, tuple[Column, ...]]:
        if select.args.get("from_") is None:
            self._places.refuse(select, "the SELECT has no FROM")
        sources = Sources(
            select, tables, self._places, lambda inner, more: self._inner_of(inner, {**tables, **more}), self._add
        )
        for item in select.expressions:
            if not isinstance(item, exp.Alias) and any(within(item)):
                self._places.refuse(item, "a SELECT as a column has no name", "Write AS NAME behind it.")
        joined = sources.read(() if is_grouped(select) else select.expressions)
        sets = grouping_sets(select, self._places)
        timed = [term for term in sources.conditions if says_now(term)]
        others = [term for term in sources.conditions if not says_now(term)]
        condition = None
        if timed:
            binder = Binder(joined.scope)
            test = all_of([binder.condition(term) for term in others])
            joined = sources.timed(joined, span_of(timed, binder, self._places), test)
        joined = sources.shared(joined) if sets else joined
        if not timed:
            condition = all_of([Binder(joined.scope).condition(term) for term in others])
        if select.args.get("distinct") is not None:
            for each in select.args["distinct"].expressions:
                self._places.refuse(each, "DISTINCT takes no list here", "Write SELECT DISTINCT a, b.")
        keys = list(dict.fromkeys(key for each in sets for key in each))
        wanted: list[_Set | None] = [(each, keys) for each in sets] or [None]
        scalar = self._scalar(tables)
        groupings = [_Grouping(select, joined.scope, self._places, scalar, each) for each in wanted]
        made = [self._over(select, joined, condition, each) for each in groupings]
        if not sets:
            return made[0]
        (first, columns), parts = made[0], tuple(replace(plan, distinct=False, top=None) for plan, _ in made)
        whole = Plan((), len(columns), union=parts)
        if not first.distinct and first.top is None:
            return whole, columns
        rows = (first.final or first.sides[0].select).columns  # the view's, and others for the order
        side = Side(self._add(replace(whole, width=len(rows)), rows).name, select_of(_passed(rows), None))
        return Plan((side,), len(columns), distinct=first.distinct, top=first.top), columns

    def _over(
        self, select: exp.Select, joined: Joined, condition: Bound | None, grouping: _Grouping
    ) -> tuple[Plan, tuple[Column, ...]]:
        """Plan what stands around FROM and WHERE."""
        shown = self._outputs(select, grouping)
        order = self._order(select, grouping, shown)
        qualify = grouping.qualify()
        distinct = select.args.get("distinct") is not None
        if distinct and order.hidden:
            self._places.refuse(select.args["order"], "with DISTINCT the order must be by columns of the SELECT")
        columns = tuple(Column(name, bound.type) for name, bound in shown)
        made, having, beyond = [*shown, *order.hidden], grouping.having, grouping.beyond
        if not beyond.used:
            plan = self._made(joined, grouping, condition, select_of(made, having if grouping.used else condition))
            return replace(plan, width=len(shown), distinct=distinct, top=order.top), columns
        tests = [each for each in (having, qualify) if each is not None]
        base = beyond.base(grouping.kinds(), [*(each for _, each in made), *tests])
        now = having if not beyond.scalars else None
        first = select_of([("", each) for each in base.values()], now if grouping.used else condition)
        plan = replace(self._made(joined, grouping, condition, first), width=len(base))
        later = having if beyond.scalars else None
        relation, known = beyond.staged(self._add(plan, first.columns), list(base), later, self._add)
        if beyond.windows:
            later = None
        test = all_of([rebased(each, known) for each in (later, qualify) if each is not None])
        last = select_of([(name, rebased(each, known)) for name, each in made], test)
        return Plan((Side(relation.name, last),), len(shown), distinct=distinct, top=order.top), columns

    @staticmethod
    def _made(joined: Joined, grouping: _Grouping, condition: Bound | None, last: Select) -> Plan:
        """Return what gives the rows of the `last` SELECT: over groups, or else over what is joined."""
        rows = select_of(grouping.inputs(), condition) if grouping.used else last
        sides = joined.sides if joined.keys else (Side(joined.sides[0].table, rows),)
        return Plan(
            sides, 0, joined.keys, joined.left, rows if joined.keys else None,
            grouping.group() if grouping.used else None, last if grouping.used else None,
        )  # fmt: skip

    def _scalar(self, tables: Mapping[str, Relation]) -> Callable[[exp.Expr], Inner]:
        """Return what plans a scalar SELECT beside groups."""

        def planned(node: exp.Expr) -> Inner:
            query = query_of(node)
            if not isinstance(query, exp.Select) or len(query.selects) != 1 or not gives_one(query):
                instead = "Take an aggregate without GROUP BY, or write LIMIT 1."
                self._places.refuse(query, "a SELECT in an expression gives one column of one row", instead)
            made = query.copy()
            order_by_places(made, self._places)
            made.set("expressions", [exp.alias_(made.selects[0].unalias(), ONLY)])
            return self._add(*self._planned(made, tables))

        return planned

    def _united(self, union: exp.SetOperation, tables: Mapping[str, Relation]) -> tuple[Plan, tuple[Column, ...]]:
        (first, columns), (second, others) = (self._planned(each, tables) for each in (union.this, union.expression))
        if len(others) != len(columns):
            text = f"{union.key.upper()} of {len(columns)} and {len(others)} columns"
            self._places.refuse(union.expression, text, "Give every SELECT the same number of columns.")
        for column, other in zip(columns, others, strict=True):
            if other.type != column.type:
                text = f"column {column.name} is {column.type} in the first SELECT, and {other.type} in another one"
                self._places.refuse(union.expression, text, "CAST one of them.")
        if not isinstance(union, exp.Union):
            return self._compared(union, [self._add(first, columns), self._add(second, others)], columns), columns
        plan = Plan((), len(columns), union=(*(first.union or (first,)), *(second.union or (second,))))
        if union.args.get("distinct"):
            rows = Side(self._add(plan, columns).name, select_of(_passed(columns), None))
            plan = Plan((rows,), len(columns), distinct=True)
        return plan, columns

    def _compared(self, union: exp.SetOperation, sides: Sequence[Inner], columns: tuple[Column, ...]) -> Plan:
        """Return INTERSECT or EXCEPT: the rows are grouped, and of each group is known of how many sides it is."""
        if not union.args.get("distinct"):
            self._places.refuse(union.expression, f"{union.key.upper()} ALL is not supported", "Leave out ALL.")
        marks = [Bound(cast(exp.Literal.number(number), "BIGINT"), "BIGINT") for number in (1, 0)]
        parts = tuple(
            Plan((Side(side.name, select_of([*_passed(side.columns), ("", marks[i]), ("", marks[1 - i])], None)),),
                 len(columns) + 2)
            for i, side in enumerate(sides)
        )  # fmt: skip
        both = self._add(Plan((), len(columns) + 2, union=parts), parts[0].sides[0].select.columns)
        group = Group(len(columns), tuple(Aggregate("sum", len(columns) + i, "BIGINT") for i in range(2)))
        test = "c{} > 0 AND c{} " + ("> 0" if isinstance(union, exp.Intersect) else "= 0")
        having = Bound(exp.condition(test.format(len(columns), len(columns) + 1), dialect="spark"), "BOOLEAN")
        kept = [("", Bound(exp.column(f"c{i}"), column.type)) for i, column in enumerate(columns)]
        rows = Side(both.name, select_of(_passed(both.columns), None))
        return Plan((rows,), len(columns), group=group, final=select_of(kept, having))

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
            if item.alias_or_name.lower() in (TIME, DIFF) or item.alias_or_name.lower().startswith(MADE):
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
        order_by_places(select, self._places)
        for term in order.expressions if order is not None else ():
            this = term.this
            if isinstance(this, exp.Literal) and this.is_int:
                column = self._places.number(this, len(shown)) - 1
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


def _passed(columns: Sequence[Column]) -> list[tuple[str, Bound]]:
    return [("", Bound(exp.column(quoted(column.name)), column.type)) for column in columns]


def windows(*parts: exp.Expr | None) -> list[exp.Window]:
    """Return the window functions of expressions, but not those of SELECTs within them."""
    walks = (part.walk(prune=lambda node: isinstance(node, exp.Query)) for part in parts if part is not None)
    return [node for walk in walks for node in walk if isinstance(node, exp.Window)]


def grouping_sets(select: exp.Select, places: Places) -> list[tuple[exp.Expr, ...]]:
    """Return the keys of each grouping set, if GROUP BY has such. Raises `SqlError`."""
    group = select.args.get("group")
    if group is None or not any(isinstance(each, SETS) for each in group.expressions):
        return []
    for window in windows(*select.expressions, *(select.args.get(name) for name in ("having", "order", "qualify"))):
        places.refuse(window, "a window function beside grouping sets", "Write it around: FROM (SELECT …) x.")
    found = [tuple[exp.Expr, ...]()]
    for each in group.expressions:
        found = [(*one, *(key for key in other if key not in one)) for one in found for other in _sets(each)]
        if len(found) > SETS_MAX:
            places.refuse(each, f"there are more than {SETS_MAX} grouping sets", "Make several views.")
    return found


def _sets(node: exp.Expr) -> list[tuple[exp.Expr, ...]]:
    """Return the grouping sets that an element of GROUP BY stands for."""
    if isinstance(node, exp.GroupingSets):
        return [each for part in node.expressions for each in _sets(part)]
    if isinstance(node, exp.Rollup | exp.Cube):
        parts = [_sets(part)[0] for part in node.expressions]
        if isinstance(node, exp.Rollup):
            chosen = [parts[:count] for count in range(len(parts), -1, -1)]
        else:
            every = range(min(2 ** len(parts), 2 * SETS_MAX))
            chosen = [[part for place, part in enumerate(parts) if not number >> place & 1] for number in every]
        return [tuple(key for part in some for key in part) for some in chosen]
    if isinstance(node, exp.Tuple):
        return [tuple(node.expressions)]
    return [(node.unnest(),)]


def is_grouped(select: exp.Select) -> bool:
    """Whether its rows are those of groups."""
    parts = [*select.expressions, select.args.get("order")]
    clauses = any(select.args.get(name) is not None for name in ("group", "having"))
    return clauses or any(adds(part) for part in parts if part is not None)


class _Order:
    def __init__(self, hidden: list[tuple[str, Bound]], top: Top | None) -> None:
        self.hidden = hidden
        self.top = top


class _Grouping:
    """Keys and aggregates of a SELECT. `bind` is for what stands in SELECT, HAVING and ORDER BY."""

    def __init__(
        self,
        select: exp.Select,
        scope: Scope,
        places: Places,
        scalar: Callable[[exp.Expr], Inner],
        sets: _Set | None = None,
    ) -> None:
        """`sets` are the keys of one grouping set, and of all."""
        self._places = places
        self._select = select
        self._scope = scope
        self._scalar = scalar
        self.beyond = Beyond(places)
        self._rows = Binder(scope)
        self._shown = Binder(scope, self._window)
        self._aggregates: dict[exp.Expr, tuple[int, Aggregate]] = {}
        self._arguments: list[Bound] = []
        group, having = select.args.get("group"), select.args.get("having")
        for window in windows(having):
            places.refuse(window, "a window function stands in SELECT and QUALIFY")
        self.used = is_grouped(select)
        found, others = sets or (group.expressions if group is not None else (), ())
        self._keys = [self._key(node, select, scope) for node in found]
        self._absent = [self._key(node, select, scope)[1] for node in others if node not in found]
        if sets is not None and not found:  # of no rows there is no group here, as in Spark
            self._keys = [(exp.null(), ONE_PAIR[0])]
        self._groups = Binder(Scope(places), self._special)
        self.having = self._groups.condition(having.this) if having is not None else None

    def bind(self, node: exp.Expr) -> Bound:
        """Bind over the rows of groups, or over rows where there are no groups."""
        return self._groups.bind(node) if self.used else self._shown.bind(node)

    def qualify(self) -> Bound | None:
        """Bind QUALIFY, in which also columns of the SELECT may be named."""
        node = self._select.args.get("qualify")
        if node is None:
            return None
        named = {each.alias_or_name.lower(): each.unalias() for each in self._select.expressions}
        test = exp.paren(node.this)
        there = [
            (each, named[each.name.lower()])
            for each in test.find_all(exp.Column)
            if each.name.lower() in named and not each.table and each.find_ancestor(exp.Query) is None
        ]
        write_out(((column, made) for column, made in there if not self._scope.knows(column)), self._places)
        bound = (self._groups if self.used else self._shown).condition(test.this)
        if not self.beyond.windows:
            self._places.refuse(node, "QUALIFY is about window functions, and there is none", "Write WHERE or HAVING.")
        return bound

    def kinds(self) -> dict[str, str]:
        """Return the columns, with their types, of the rows or groups that the SELECT is about."""
        if not self.used:
            named = {exp.column(ref).name: kind for ref, kind in self._scope.columns.values()}
            return named
        kinds = [bound.type for _, bound in self._keys] + [each.type for _, each in self._aggregates.values()]
        return {f"c{number}": kind for number, kind in enumerate(kinds)}

    def _window(self, node: exp.Expr) -> Bound | None:
        if not isinstance(node, exp.Window):
            return None
        return self.beyond.known(node) or self.beyond.window(node, self._groups.bind if self.used else self._rows.bind)

    def inputs(self) -> list[tuple[str, Bound]]:
        """What the operator of groups takes of each row: the keys, then the arguments."""
        return [("", bound) for _, bound in self._keys] + [("", bound) for bound in self._arguments]

    def group(self) -> Group:
        """Return the operator."""
        return Group(len(self._keys), tuple(aggregate for _, aggregate in self._aggregates.values()))

    def _key(self, node: exp.Expr, select: exp.Select, scope: Scope) -> tuple[exp.Expr, Bound]:
        if isinstance(node, exp.Literal) and node.is_int:
            node = select.expressions[self._places.number(node, len(select.expressions)) - 1].unalias()
        elif isinstance(node, exp.Column) and not node.table and not scope.knows(node):
            named = [each for each in select.expressions if each.alias.lower() == node.name.lower()]
            node = named[0].unalias() if named else node
        bound = self._rows.bind(node)
        if bound.type == NULL:
            self._places.refuse(node, "grouping by NULL")
        return node, bound

    def _special(self, node: exp.Expr) -> Bound | None:
        if isinstance(node, exp.Grouping):
            return self._is_absent(node)
        if isinstance(node, exp.Subquery):
            return self.beyond.known(node) or self.beyond.scalar(node, self._scalar(node))
        if isinstance(node, exp.Window):
            return self._window(node)
        bound = None if isinstance(node, exp.AggFunc | exp.Literal) else self._try(node)
        if bound is not None:
            for number, (_, key) in enumerate(self._keys):
                if key.node == bound.node:
                    return Bound(exp.column(f"c{number}"), key.type)
            if any(key.node == bound.node for key in self._absent):
                return Bound(cast(exp.null(), bound.type), bound.type)
        if isinstance(node, exp.Column):
            self._places.refuse(node, f"column {node.name} is neither grouped nor aggregated",
                                "Add it to GROUP BY, or take min or max of it.")  # fmt: skip
        if not isinstance(node, AGGREGATES):
            return None
        known = self._aggregates.get(node)
        if known is None:
            if len(self._aggregates) == AGGREGATES_MAX:
                self._places.refuse(node, f"a SELECT has more than {AGGREGATES_MAX} aggregates", "Make several views.")
            known = self._aggregates[node] = len(self._aggregates), self._aggregate(node)
        number, aggregate = known
        return Bound(exp.column(f"c{len(self._keys) + number}"), aggregate.type)

    def _is_absent(self, node: exp.Grouping) -> Bound:
        """Bind grouping(x): 1 where x is no key of the set."""
        found = [self._rows.bind(each).node for each in node.expressions]
        present, absent = [key.node for _, key in self._keys], [key.node for key in self._absent]
        if len(found) != 1 or found[0] not in [*present, *absent]:
            self._places.refuse(node, "GROUPING takes one expression of the grouping sets")
        return Bound(cast(exp.Literal.number(int(found[0] in absent)), "BIGINT"), "BIGINT")

    def _try(self, node: exp.Expr) -> Bound | None:
        """Bind an expression over rows, if it has no aggregate in it."""
        special = node.find(exp.AggFunc, exp.Window, exp.Query)
        return None if special is not None or not node.find(exp.Column) else self._rows.bind(node)

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
