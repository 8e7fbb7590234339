"""What a SELECT computes once its rows or groups are made: window functions, SELECTs beside groups (14.4).

A window function is rule 3 in its plainest form: a plan of one side with keys, whose SELECT is looked at again over all
rows of each partition that a change touched (docs/specs/compute.md 16.2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp

from pavane.dataflow.bound import Bound, Places, as_double, cast
from pavane.dataflow.expressions import AGGREGATES
from pavane.dataflow.plan import Inner, Plan, Select, Side
from pavane.dataflow.ports import TIME, Column
from pavane.dataflow.sources import ONE_PAIR, quoted, select_of

Add = Callable[[Plan, tuple[Column, ...]], Inner]
Bind = Callable[[exp.Expr], Bound]
RANKS = (exp.RowNumber, exp.Rank, exp.DenseRank)
SHIFTS = (exp.Lag, exp.Lead)
MADE = "made "
"""How names of columns begin that no SELECT may give."""
FUNCTIONS = "ROW_NUMBER, RANK, DENSE_RANK, LAG, LEAD, COUNT, SUM, AVG, MIN, MAX"
ROWS_MAX = 2**31 - 1
"""Of LAG, LEAD and the edges of frames: Spark counts them with 32 bits."""
EDGES = {"UNBOUNDED": ROWS_MAX + 1, "CURRENT ROW": 0}


class Beyond:
    """The window functions of one SELECT, and the scalar SELECTs beside its groups: columns that are made last."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._known: dict[exp.Expr, Bound] = {}
        self.windows: dict[tuple[exp.Expr, ...], list[tuple[str, str, exp.Window]]] = {}
        self._partitions: dict[tuple[exp.Expr, ...], list[Bound]] = {}
        self.scalars: list[tuple[str, Inner]] = []

    @property
    def used(self) -> bool:
        """Whether there are any."""
        return bool(self._known)

    def scalar(self, node: exp.Expr, relation: Inner) -> Bound:
        """Return the column that the one row of a relation becomes."""
        made = self._named(node, relation.columns[0].type)
        self.scalars.append((made.node.name, relation))
        return made

    def _named(self, node: exp.Expr, kind: str) -> Bound:
        made = Bound(exp.column(quoted(f"{MADE}{len(self._known)}")), kind)
        self._known[node] = made
        return made

    def known(self, node: exp.Expr) -> Bound | None:
        """Return the column of an expression that was there before."""
        return self._known.get(node)

    def window(self, node: exp.Window, bind: Bind) -> Bound:
        """Return the column of a window function over rows that `bind` knows."""
        for each in node.find_all(exp.Window):
            if each is not node:
                self._places.refuse(each, "a window function stands within another one", "Make an inner SELECT of it.")
        partition = [bind(each) for each in node.args.get("partition_by") or ()]
        order = node.args.get("order")
        terms = [
            exp.Ordered(
                this=bind(each.this).node, desc=bool(each.args.get("desc")), nulls_first=bool(each.args["nulls_first"])
            )
            for each in (order.expressions if order is not None else ())
        ]
        spec = node.args.get("spec")
        rows = self._frame(spec) if spec is not None else None
        if isinstance(node.this, RANKS + SHIFTS) and (not terms or rows is not None):
            self._places.refuse(node, f"{node.this.sql_name()} takes ORDER BY, and no frame")
        if rows is not None and not terms:
            self._places.refuse(node, "a frame needs ORDER BY")
        function, kind = self._function(node.this, bind)
        # Where equal rows are told apart, all their columns do it: which these are is known last.
        ordered = exp.Order(expressions=terms) if terms else None
        made = exp.Window(this=function, partition_by=[], order=ordered, spec=rows, over="OVER")
        column = self._named(node, kind)
        key = tuple(each.node for each in partition)
        self._partitions[key] = partition
        self.windows.setdefault(key, []).append((column.node.name, kind, made))
        return column

    def _frame(self, spec: exp.WindowSpec) -> exp.WindowSpec:
        if spec.args.get("kind") != "ROWS":
            self._places.refuse(spec.parent, "a frame is one of ROWS", "Without a frame it is RANGE up to this row.")
        places = []
        for side, usual in (("start", "UNBOUNDED"), ("end", "CURRENT ROW")):
            edge = spec.args.get(side) or usual
            if isinstance(edge, exp.Literal) and edge.is_int and int(edge.name) <= ROWS_MAX:
                rows = int(edge.name)
            elif isinstance(edge, str):
                rows = EDGES[edge]
            else:
                self._places.refuse(spec.parent, "a frame goes from a number of rows to another one")
            places.append(-rows if spec.args.get(f"{side}_side") == "PRECEDING" else rows)
        if places[0] > min(places[1], ROWS_MAX) or places[1] < -ROWS_MAX:
            self._places.refuse(spec.parent, "a frame ends before it begins")
        return spec.copy()

    def _function(self, node: exp.Expr, bind: Bind) -> tuple[exp.Expr, str]:
        if isinstance(node, RANKS):
            return type(node)(), "BIGINT"
        if isinstance(node, SHIFTS):
            offset = node.args.get("offset") or exp.Literal.number(1)
            if not isinstance(offset, exp.Literal) or not offset.is_int or int(offset.name) > ROWS_MAX:
                self._places.refuse(node, f"{node.sql_name()} goes a literal number of rows")
            value, default = bind(node.this), node.args.get("default")
            other = bind(default) if default is not None else Bound(exp.null(), "NULL")
            if other.type not in (value.type, "NULL"):
                self._places.refuse(node, f"{node.sql_name()} of {value.type} and {other.type}", "CAST one of them.")
            return type(node)(this=value.node, offset=offset.copy(), default=cast(other.node, value.type)), value.type
        if not isinstance(node, AGGREGATES) or isinstance(node.this, exp.Distinct):
            self._places.refuse(node, f"{node.sql(dialect='spark')} is no window function here", f"Known: {FUNCTIONS}.")
        if isinstance(node.this, exp.Star):
            return exp.Count(this=exp.Star()), "BIGINT"
        value = bind(node.this)
        if isinstance(node, exp.Count):
            return exp.Count(this=value.node), "BIGINT"
        if isinstance(node, exp.Min | exp.Max):
            return type(node)(this=value.node), value.type
        if not value.type.startswith(("BIGINT", "DECIMAL")) or (isinstance(node, exp.Avg) and value.type != "BIGINT"):
            text = f"over a window {node.sql_name()} does not take {value.type}"
            self._places.refuse(node, text, "Sums take BIGINT and DECIMAL, averages BIGINT.")
        if isinstance(node, exp.Avg):
            return exp.Avg(this=value.node), "DOUBLE"
        if value.type == "BIGINT":
            return _whole_sum(value.node), "BIGINT"
        return exp.Sum(this=value.node), f"DECIMAL(38,{value.type.rpartition(',')[2]}"

    # --- plans --------------------------------------------------------------------------------------------------------

    def base(self, kinds: Mapping[str, str], bound: Sequence[Bound]) -> dict[str, Bound]:
        """Return the columns, by name, that expressions and windows need of rows or groups."""
        nodes = [each.node for each in bound]
        nodes += [each.node for partition in self._partitions.values() for each in partition]
        nodes += [node for windows in self.windows.values() for _, _, node in windows]
        named = {column.name: column for node in nodes for column in node.find_all(exp.Column)}
        found = {name: Bound(named[name], kinds[name]) for name in sorted(named) if name in kinds}
        return found or {"one": ONE_PAIR[0]}

    def staged(
        self, first: Inner, names: Sequence[str], having: Bound | None, add: Add
    ) -> tuple[Inner, dict[str, str]]:
        """Return the relation that has all columns, by their names, of one that has those of `base`."""
        relation, known = first, {name: column.name for name, column in zip(names, first.columns, strict=True)}
        for name, scalar in self.scalars:
            kept = [("", Bound(exp.column(each.name), each.type)) for each in relation.columns]
            sides = (
                Side(relation.name, select_of([("", ONE_PAIR[0]), *kept], None, _names("l", 1 + len(kept)))),
                Side(scalar.name, select_of([("", ONE_PAIR[0]), ("", _column(scalar.columns[0]))], None, ["r0", "r1"])),
            )
            both = [*(f"l{i + 1}" for i in range(len(kept))), "r1"]
            kinds = [*(each.type for each in relation.columns), scalar.columns[0].type]
            rows = select_of([("", Bound(exp.column(n), k)) for n, k in zip(both, kinds, strict=True)], None)
            relation = add(Plan(sides, len(both), 1, left=True, rows=rows), rows.columns)
            known[name] = rows.columns[-1].name
        for key, windows in self.windows.items():
            partition = [rebased(each, known) for each in self._partitions[key]] or [ONE_PAIR[0]]
            kept = [("", _column(each)) for each in relation.columns]
            where = rebased(having, known) if having is not None else None
            side = select_of([*(("", each) for each in partition), *kept], where)
            having = None
            moved = {of: f"c{len(partition) + number}" for number, of in enumerate(known.values())}
            known = {name: moved[of] for name, of in known.items()}
            rows = self._rows(side, len(partition), windows, known)
            relation = add(
                Plan((Side(relation.name, side),), len(rows.columns), len(partition), rows=rows), rows.columns
            )
            made = [*known, *(name for name, _, _ in windows)]
            known = {name: column.name for name, column in zip(made, rows.columns, strict=True)}
        return relation, known

    @staticmethod
    def _rows(
        side: Select, keys: int, windows: Sequence[tuple[str, str, exp.Window]], known: Mapping[str, str]
    ) -> Select:
        """SELECT the rows of partitions, each with its window functions."""
        kept = [("", _column(each)) for each in side.columns[keys:]]
        by = [exp.column(quoted(TIME)), *(exp.column(each.name) for each in side.columns[:keys])]
        apart = [exp.Ordered(this=_column(each).node, desc=False, nulls_first=True) for each in side.columns[keys:]]
        made = []
        for _, kind, window in windows:
            node = rebased(Bound(window, kind), known).node
            node.set("partition_by", [each.copy() for each in by])
            tells = isinstance(node.this, (exp.RowNumber, *SHIFTS)) or node.args.get("spec") is not None
            if tells:
                node.args["order"].set("expressions", [*node.args["order"].expressions, *(a.copy() for a in apart)])
            if isinstance(node.this, exp.Avg):
                parts = [node.copy(), node.copy()]
                parts[0].set("this", _whole_sum(node.this.this))
                parts[1].set("this", exp.Count(this=node.this.this.copy()))
                total = as_double(Bound(parts[0], "DECIMAL(38,0)"))
                count = as_double(Bound(parts[1], "BIGINT"))
                node = exp.Div(
                    this=total, expression=exp.Nullif(this=count, expression=cast(exp.Literal.number(0), "DOUBLE"))
                )
            made.append(("", Bound(node, kind)))
        return select_of([*kept, *made], None)


def _whole_sum(value: exp.Expr) -> exp.Expr:
    """Return the sum of whole numbers. In between it may be out of range, which engines notice of a BIGINT or not."""
    return exp.Sum(this=cast(value.copy(), "DECIMAL(19,0)"))


def rebased(bound: Bound, known: Mapping[str, str]) -> Bound:
    """Return an expression over columns that are called differently now."""

    def moved(node: exp.Expr) -> exp.Expr:
        return exp.column(known[node.name]) if isinstance(node, exp.Column) else node

    return Bound(bound.node.copy().transform(moved), bound.type)


def _column(column: Column) -> Bound:
    return Bound(exp.column(column.name), column.type)


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(count)]
