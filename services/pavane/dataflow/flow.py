"""What a view remembers: joins, groups, distinct rows, the first k (docs/specs/compute.md 14.4).

They are exact at every tick, and all work alike: ticks in their order, at each tick only the keys that changed, and for
them what was there before is taken back and what is there after is put out.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from functools import cmp_to_key
from hashlib import blake2b
from itertools import chain, repeat
from typing import Any, Protocol

import pyarrow as pa

from pavane.dataflow.plan import INPUT, Aggregate, Group, Plan, Select, Top
from pavane.dataflow.ports import TIME, Binding, Column, Engine, Table, View, ViewError
from pavane.dataflow.rows import Multiset, Row, table_of, updates_of
from pavane.dataflow.types import arrow_schema

EXACT = Context(prec=100)
"""Of sums: 38 digits, as many rows as there can be."""

DIGEST_BYTES = 16
"""Of a row: that two of a table have the same one is out of the question."""

Update = tuple[Row, int, int]
"""Row, time, diff."""


class Operator(Protocol):
    """A step from updates to updates that remembers."""

    def step(self, updates: Iterable[Update]) -> list[Update]:
        """Return the changes that follow from these."""


class Built:
    """The state of views in memory, built from the log at each start."""

    due = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def flow(self, view: View) -> ViewFlow:
        """See `State`."""
        return ViewFlow(view, self._engine)

    def checkpoint(self, at: Mapping[str, Binding]) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """See `State`."""


class ViewFlow:
    """The state of one view, built from its plan."""

    raw = False
    at: Binding | None = None

    def __init__(self, view: View, engine: Engine) -> None:
        plan = Plan.decode(view.plan)
        self._inner = [(each.name, _Relation(each.plan, each.columns, engine)) for each in plan.inner]
        self._view = _Relation(plan, view.columns, engine)

    def contents(self, tick: int) -> pa.Table:
        """It was never opened."""
        raise AssertionError(f"nothing was kept of tick {tick}")

    def forget(self) -> None:
        """See `Flow`."""

    def step(self, inputs: Mapping[str, pa.Table], upper: int, *, more: bool = False) -> pa.Table:
        """Return the updates of the view that follow from those of its inputs with times below `upper`.

        Raises `EngineError`, and `ViewError` where a result does not fit its column.
        """
        del more
        try:
            known = dict(inputs)
            for name, relation in self._inner:
                known[name] = relation.step(known, upper)
            return self._view.step(known, upper)
        except (pa.ArrowInvalid, OverflowError) as error:
            raise ViewError(f"a value does not fit its column: {error}") from error


class Latest:
    """The last row of each key of a table; a row in which all but the key is NULL deletes it."""

    def __init__(self, table: Table) -> None:
        names = [column.name for column in table.columns]
        self._schema = arrow_schema(table.columns)
        self._key = [names.index(name) for name in table.key]
        self._rest = [place for place in range(len(names)) if place not in self._key]
        self._rows: dict[Row, Row] = {}

    def step(self, rows: pa.Table) -> pa.Table:
        """Return what these rows change; those of one tick take effect in their order."""
        out: list[Update] = []
        for row, time, _ in sorted(updates_of(rows), key=lambda update: update[1]):
            key = tuple(row[place] for place in self._key)
            before = self._rows.pop(key, None)
            if before is not None:
                out.append((before, time, -1))
            if any(row[place] is not None for place in self._rest):
                self._rows[key] = row
                out.append((row, time, 1))
        return table_of(consolidated(out), self._schema)


class Present:
    """How often each row of a table with `diff` is there. Who takes a row back that is not there takes the next one.

    Rows of several partitions have no order, so a retraction may come before its row. Kept are digests of rows.
    """

    def __init__(self) -> None:
        self._counts: dict[bytes, int] = {}

    def step(self, rows: pa.Table) -> pa.Table:
        """Return what these rows change of what is there."""
        schema = rows.schema.remove(rows.schema.get_field_index(TIME)).remove(len(rows.schema) - 2)
        out: list[Update] = []
        for row, time, diff in sorted(consolidated(updates_of(rows)), key=lambda update: update[1]):
            key = blake2b(repr(row).encode(), digest_size=DIGEST_BYTES).digest()
            before = self._counts.get(key, 0)
            after = before + diff
            if after:
                self._counts[key] = after
            else:
                self._counts.pop(key, None)
            change = max(after, 0) - max(before, 0)
            if change:
                out.append((row, time, change))
        return table_of(out, schema)


class _Relation:
    """The state of one SELECT, or of several with UNION ALL, and its columns."""

    def __init__(self, plan: Plan, columns: tuple[Column, ...], engine: Engine) -> None:
        self._schema = arrow_schema(columns)
        self._parts = [_Query(part, engine) for part in plan.union or (plan,)]

    def step(self, inputs: Mapping[str, pa.Table], upper: int) -> pa.Table:
        updates = chain.from_iterable(part.step(inputs, upper) for part in self._parts)
        return table_of(consolidated(updates), self._schema)


class _Query:
    """The state of one SELECT."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        self._plan = plan
        self._engine = engine
        self._join = Join(plan.keys, plan.left, len(plan.sides[1].select.columns) - plan.keys) if plan.keys else None
        self._groups = Groups(plan.group) if plan.group is not None else None
        self._distinct = Distinct() if plan.distinct else None
        self._top = First(plan.top) if plan.top is not None else None

    def step(self, inputs: Mapping[str, pa.Table], upper: int) -> Iterator[Update]:
        plan = self._plan
        sides = [list(updates_of(self._evaluate(side.select, inputs[side.table]))) for side in plan.sides]
        updates = sides[0]
        if self._join is not None and plan.rows is not None:
            columns = [column for side in plan.sides for column in side.select.columns[plan.keys :]]
            joined = self._join.step(sides[0], sides[1])
            updates = list(updates_of(self._evaluate(plan.rows, table_of(joined, arrow_schema(tuple(columns))))))
        if self._groups is not None and plan.group is not None and plan.final is not None:
            first = min((time for _, time, _ in updates), default=upper - 1)
            rows = self._groups.step(updates, min(first, upper - 1))
            updates = list(updates_of(self._evaluate(plan.final, table_of(rows, self._group_schema(plan.group)))))
        for operator in (self._distinct, self._top):
            if operator is not None:
                updates = operator.step(updates)
        return ((row[: plan.width], time, diff) for row, time, diff in updates)

    def _evaluate(self, select: Select, table: pa.Table) -> pa.Table:
        if not table.num_rows:
            return table_of((), arrow_schema(select.columns))
        return self._engine.evaluate(select.sql, {INPUT: table})

    def _group_schema(self, group: Group) -> pa.Schema:
        plan = self._plan
        source = plan.rows if plan.rows is not None else plan.sides[0].select
        kinds = [column.type for column in source.columns[: group.keys]]
        kinds += [aggregate.type for aggregate in group.aggregates]
        return arrow_schema(tuple(Column(f"c{number}", kind) for number, kind in enumerate(kinds)))


def consolidated(updates: Iterable[Update]) -> list[Update]:
    """Add up the diffs of equal row and time, and leave out what is nothing."""
    sums: dict[tuple[Row, int], int] = defaultdict(int)
    for row, time, diff in updates:
        sums[row, time] += diff
    return [(row, time, diff) for (row, time), diff in sums.items() if diff]


def by_tick(updates: Iterable[Update], keys: int) -> dict[int, dict[Row, list[tuple[Row, int]]]]:
    """Return updates by tick, ascending, and by the first `keys` columns."""
    ticks: dict[int, dict[Row, list[tuple[Row, int]]]] = {}
    for row, time, diff in sorted(updates, key=lambda update: update[1]):
        ticks.setdefault(time, {}).setdefault(row[:keys], []).append((row[keys:], diff))
    return ticks


class Join:
    """Inner or left join by key: rows of both sides by key."""

    def __init__(self, keys: int, left: bool, width: int) -> None:
        self._keys = keys
        self._left = left
        self._padding: Row = (None,) * width
        self._sides: tuple[dict[Row, Multiset], dict[Row, Multiset]] = ({}, {})

    def step(self, first: Iterable[Update], second: Iterable[Update]) -> list[Update]:
        """Return the changes of the joined rows."""
        changes = by_tick(first, self._keys), by_tick(second, self._keys)
        out: list[Update] = []
        for time in sorted(changes[0].keys() | changes[1].keys()):
            touched = changes[0].get(time, {}), changes[1].get(time, {})
            for key in touched[0].keys() | touched[1].keys():
                deltas = _added(touched[0].get(key, ())), _added(touched[1].get(key, ()))
                out += ((row, time, diff) for row, diff in self._changed(key, deltas))
        return consolidated(out)

    def _changed(self, key: Row, deltas: tuple[Multiset, Multiset]) -> Iterator[tuple[Row, int]]:
        """Yield ΔA ⋈ B and A ⋈ ΔB, B the new and A the old one, and of a left join what has no match any more."""
        if any(part is None for part in key):  # NULL matches nothing
            if self._left:
                for row, diff in deltas[0].counts.items():
                    yield row + self._padding, diff
            return
        first, second = (side.setdefault(key, Multiset()) for side in self._sides)
        alone = self._left and not second.counts
        if self._left and alone:
            for row, count in first.counts.items():
                yield row + self._padding, -count
        for row, diff in deltas[1].counts.items():
            second.add(row, diff)
            for other, count in first.counts.items():
                yield other + row, diff * count
        for row, diff in deltas[0].counts.items():
            first.add(row, diff)
            for other, count in second.counts.items():
                yield row + other, diff * count
        if self._left and not second.counts:
            for row, count in first.counts.items():
                yield row + self._padding, count
        for side, rows in zip(self._sides, (first, second), strict=True):
            if not rows.counts:
                del side[key]


def _added(changes: Iterable[tuple[Row, int]]) -> Multiset:
    rows = Multiset()
    for row, diff in changes:
        rows.add(row, diff)
    return rows


class Kept(Protocol):
    """What is kept of one aggregate of one group."""

    def add(self, value: Any, diff: int) -> None:
        """Take a value that is not NULL, or give it back."""

    def result(self) -> Any:
        """Return the aggregate, None for NULL."""


class Count:
    """count(x)."""

    def __init__(self) -> None:
        self._count = 0

    def add(self, value: Any, diff: int) -> None:
        """See `Kept`."""
        del value
        self._count += diff

    def result(self) -> int:
        """See `Kept`."""
        return self._count


class Sum:
    """sum and avg of whole numbers and decimals, which are exact."""

    def __init__(self, average: bool) -> None:
        self._average = average
        self._count = 0
        self._sum: Any = 0

    def add(self, value: Any, diff: int) -> None:
        """See `Kept`."""
        self._count += diff
        if isinstance(value, Decimal):
            self._sum = EXACT.add(self._sum, EXACT.multiply(value, diff))
        else:
            self._sum += value * diff

    def result(self) -> Any:
        """See `Kept`."""
        if not self._count:
            return None
        return self._sum / self._count if self._average else self._sum


class Values:
    """min, max, count(DISTINCT x), sum and avg of doubles: all values of the group."""

    def __init__(self, function: Callable[[dict[Any, int]], Any]) -> None:
        self._function = function
        self._values = Multiset()

    def add(self, value: Any, diff: int) -> None:
        """See `Kept`."""
        self._values.add((value,), diff)

    def result(self) -> Any:
        """See `Kept`."""
        return self._function({row[0]: count for row, count in self._values.counts.items()})


def _least(values: dict[Any, int]) -> Any:
    return min(values, key=_number, default=None)


def _greatest(values: dict[Any, int]) -> Any:
    return max(values, key=_number, default=None)


def _number(value: Any) -> Any:
    """NaN is the greatest number, as in Spark."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


def _sum_of_doubles(values: dict[float, int]) -> float | None:
    """Rounded once, so it does not depend on the order of rows."""
    if not values:
        return None
    special = [value for value in values if not math.isfinite(value)]
    if special:
        return sum(special)
    try:
        return math.fsum(chain.from_iterable(repeat(value, count) for value, count in values.items()))
    except OverflowError:  # on the way, or at the end
        exact = sum(Fraction(value) * count for value, count in values.items())
        try:
            return float(exact)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf


def _average_of_doubles(values: dict[float, int]) -> float | None:
    total = _sum_of_doubles(values)
    return None if total is None else total / sum(values.values())


def kept(aggregate: Aggregate) -> Kept:
    """Return the empty state of an aggregate."""
    match aggregate.function:
        case "count":
            return Count()
        case "count_distinct":
            return Values(len)
        case "min":
            return Values(_least)
        case "max":
            return Values(_greatest)
        case "sum":
            return Values(_sum_of_doubles) if aggregate.doubles else Sum(average=False)
        case "avg":
            return Values(_average_of_doubles) if aggregate.doubles else Sum(average=True)
        case unknown:
            raise ValueError(f"there is no aggregate {unknown}")


class Groups:
    """Groups and their aggregates. A group is there while it has rows; without keys there is always one."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._groups: dict[Row, tuple[list[int], list[Kept]]] = {}
        self._begun = False

    def step(self, updates: Iterable[Update], start: int) -> list[Update]:
        """Return the changes of the groups' rows; the row of an aggregate over everything is there from `start` on."""
        out: list[Update] = []
        if not self._begun and not self._group.keys:
            self._groups[()] = self._empty()
            out.append((self._row((), self._groups[()]), start, 1))
        self._begun = True
        for time, groups in by_tick(updates, self._group.keys).items():
            for key, changes in groups.items():
                state = self._groups.get(key)
                if state is not None:
                    out.append((self._row(key, state), time, -1))
                else:
                    state = self._groups[key] = self._empty()
                self._change(state, changes)
                if state[0][0] or not self._group.keys:
                    out.append((self._row(key, state), time, 1))
                else:
                    del self._groups[key]
        return consolidated(out)

    def _empty(self) -> tuple[list[int], list[Kept]]:
        return [0], [kept(aggregate) for aggregate in self._group.aggregates]

    def _change(self, state: tuple[list[int], list[Kept]], changes: list[tuple[Row, int]]) -> None:
        rows, aggregates = state
        places = [None if a.argument is None else a.argument - self._group.keys for a in self._group.aggregates]
        for row, diff in changes:
            rows[0] += diff
            for place, aggregate in zip(places, aggregates, strict=True):
                value = True if place is None else row[place]
                if value is not None:
                    aggregate.add(value, diff)

    def _row(self, key: Row, state: tuple[list[int], list[Kept]]) -> Row:
        return (*key, *(aggregate.result() for aggregate in state[1]))


class Distinct:
    """Each row once, however often it is there."""

    def __init__(self) -> None:
        self._rows = Multiset()

    def step(self, updates: Iterable[Update]) -> list[Update]:
        """See `Operator`."""
        out: list[Update] = []
        for time, groups in by_tick(updates, 0).items():
            for row, diff in _added(groups[()]).counts.items():
                before = self._rows.counts.get(row, 0)
                self._rows.add(row, diff)
                out.append((row, time, (before + diff > 0) - (before > 0)))
        return consolidated(out)


class First:
    """The first rows in an order."""

    def __init__(self, top: Top) -> None:
        self._top = top
        self._key = cmp_to_key(self._compare)
        self._sorted: list[Any] = []  # keys of the distinct rows
        self._rows = Multiset()

    def step(self, updates: Iterable[Update]) -> list[Update]:
        """See `Operator`."""
        out: list[Update] = []
        for time, groups in by_tick(updates, 0).items():
            before = self._first()
            for row, diff in _added(groups[()]).counts.items():
                was = row in self._rows.counts
                self._rows.add(row, diff)
                if (row in self._rows.counts) == was:
                    continue
                key = self._key(row)
                if was:
                    del self._sorted[bisect_left(self._sorted, key)]
                else:
                    insort(self._sorted, key)
            out += ((row, time, -count) for row, count in before.counts.items())
            out += ((row, time, count) for row, count in self._first().counts.items())
        return consolidated(out)

    def _first(self) -> Multiset:
        found, skip, left = Multiset(), self._top.offset, self._top.limit
        for key in self._sorted:
            row = key.obj
            count = self._rows.counts[row]
            taken = min(max(0, count - skip), left)
            skip = max(0, skip - count)
            left -= taken
            if taken:
                found.add(row, taken)
            if not left:
                break
        return found

    def _compare(self, one: Row, other: Row) -> int:
        for term in self._top.order:
            if order := _order(one[term.column], other[term.column], term.descending, term.nulls_first):
                return order
        return next((order for a, b in zip(one, other, strict=True) if (order := _order(a, b))), 0)


def _order(a: Any, b: Any, descending: bool = False, nulls_first: bool = True) -> int:
    if a is b:
        return 0
    if a is None or b is None:
        return -1 if (a is None) == nulls_first else 1
    a, b = _number(a), _number(b)
    order = int(a > b) - int(a < b)
    return -order if descending else order
