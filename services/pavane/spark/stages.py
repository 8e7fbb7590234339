"""Rules 1 and 2 of maintenance in Spark's SQL (docs/specs/compute.md 16.2).

A stage remembers rows of partial sums by key, several of a key among them: what a key was is the sum of its rows. They
are the columns `h` (a hash of the key, by which they are found), the keys `c0`, `c1`, …, then what is summed up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pavane.dataflow.plan import INPUT, Aggregate, Group, Plan, Select
from pavane.dataflow.ports import DIFF, TIME, Column, Script, SqlView
from pavane.spark.tables import quoted

EXACT_DIGITS = 19
"""Of what is summed up: 10^18 of these fit in 38 digits."""
COUNT = "CAST({} AS DECIMAL(18,0))"
"""A diff as a factor of which a product with so many digits is exact."""
LIMB_BITS = 22
"""Whole numbers are added up in three parts, the lower two of so many bits: as decimals 10 M rows took 3 s more.
2^41 rows fit."""


def covers(script: Script, view: SqlView) -> bool:
    """Whether Spark's executors can maintain a view; else the driver does."""
    if any(table.key for table in script.tables if table.name in view.tables):
        return False
    plan = Plan.decode(view.plan)
    return all(_covered(part) for each in (plan, *(i.plan for i in plan.inner)) for part in each.union or (each,))


def _covered(part: Plan) -> bool:
    if part.keys or part.top is not None:
        return False
    if part.group is None:
        return True
    columns = part.sides[0].select.columns
    return all(
        each.function == "count"
        or (each.function in ("sum", "avg") and not each.doubles and _digits(columns[each.argument or 0].type)[0] <= 19)
        for each in part.group.aggregates
    )


@dataclass(frozen=True, slots=True)
class Stage:
    """A step that remembers."""

    keys: tuple[str, ...]
    """Types of the key columns."""
    made: tuple[str, ...]
    """The key columns as SQL over its input."""
    sums: tuple[tuple[str, str, str], ...]
    """Name, type, and the aggregate over its input as SQL."""
    shown: tuple[str, ...]
    """The columns of a result, over keys and sums."""
    weight: str
    """How often the result of a key is there."""
    forgets: bool = True
    """A key of which there is nothing has no result."""

    @property
    def key_names(self) -> list[str]:
        """Of the key columns."""
        return [f"c{number}" for number in range(len(self.keys))]

    @property
    def names(self) -> list[str]:
        """Of all columns."""
        return ["h", *self.key_names, *(name for name, _, _ in self.sums)]

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Names and types of all columns."""
        return list(zip(self.names, ["BIGINT", *self.keys, *(kind for _, kind, _ in self.sums)], strict=True))

    def none(self, value: str) -> str:
        """SELECT one row with this value in each column."""
        return f"(SELECT {', '.join(f'CAST({value} AS {kind}) AS {name}' for name, kind in self.columns)})"

    def delta(self, source: str, *, times: bool) -> str:
        """SELECT the partial sums of updates by key; with `times` also by `t`."""
        by = [f"{made} AS {name}" for made, name in zip(self.made, self.key_names, strict=True)]
        by += [f"{TIME} AS t"] if times else []
        sums = [f"CAST({made} AS {kind}) AS {name}" for name, kind, made in self.sums]
        grouped = f" GROUP BY {', '.join(map(str, range(1, len(by) + 1)))}" if by else ""
        hashed = f"xxhash64({', '.join(self.key_names)})" if self.keys else "0L"
        return f"SELECT {hashed} AS h, * FROM (SELECT {', '.join([*by, *sums])} FROM {source}{grouped})"

    def summed(self, source: str, *, whole: bool) -> str:
        """SELECT one row for each key; of a `whole` state those that are there."""
        sums = [f"CAST(sum({name}) AS {kind}) AS {name}" for name, kind, _ in self.sums]
        by = ", ".join(["h", *self.key_names])
        found = f"SELECT {by}, {', '.join(sums)} FROM {source} GROUP BY {by}"
        return f"SELECT * FROM ({found}) WHERE n <> 0" if whole and self.forgets else found

    def out(self, prior: str, delta: str) -> str:
        """SELECT the updates that follow from a delta, which is not in the state yet."""
        keys, sums = self.key_names, [name for name, _, _ in self.sums]
        window = f"{'PARTITION BY ' + ', '.join(keys) if keys else ''} ORDER BY t ROWS BETWEEN UNBOUNDED PRECEDING AND"
        until = {"": "CURRENT ROW", "p_": "1 PRECEDING"}  # a difference of two sums would have a digit too many
        run = [
            f"coalesce(CAST(sum({name}) OVER ({window} {end}) AS {kind}), 0) AS {also}{name}"
            for name, kind, _ in self.sums
            for also, end in until.items()
        ]
        by = ", ".join([*keys, "t"])
        one = ", ".join(f"CAST(sum({name}) AS {kind}) AS {name}" for name, kind, _ in self.sums)
        rows = ", ".join([*keys, "t", *sums])
        added = (
            f"SELECT {by}, {one} FROM (SELECT /*+ REPARTITION(1) */ * FROM (SELECT {rows} FROM {prior} UNION ALL "
            f"SELECT {rows} FROM {delta})) GROUP BY {by}"
        )
        stepped = f"SELECT * FROM (SELECT {', '.join([*keys, 't', *run])} FROM ({added})) WHERE t >= 0"
        both = [f"IF(d = 1, {name}, p_{name}) AS {name}" for name in sums]
        before = (
            f"SELECT {', '.join([*keys, 't', 'd', *both])} FROM ({stepped}) LATERAL VIEW explode(array(1L, -1L)) x AS d"
        )
        return self._results(f"({before})", "t", "d")

    def passed(self, delta: str) -> str:
        """SELECT the updates that a delta is, where all pass."""
        return self._results(delta, "t", "1L")

    def contents(self, source: str, tick: int) -> str:
        """SELECT what a state with one row for each key says, as updates of one tick."""
        return self._results(source, f"{tick}L", "1L")

    def _results(self, source: str, time: str, diff: str) -> str:
        shown = ", ".join(f"{each} AS c{number}" for number, each in enumerate(self.shown))
        found = f"SELECT *, {self.weight} AS w FROM {source}"
        return f"SELECT {shown}, {time} AS {TIME}, {diff} * w AS {DIFF} FROM ({found}) WHERE w <> 0"


ALL = "n"
ONCE = "CAST(n > 0 AS BIGINT)"
"""DISTINCT."""
NEVER_LESS = "greatest(n, 0L)"
"""A table with `diff`: who takes a row back that is not there takes the next one."""


def counts(columns: Sequence[Column], weight: str) -> Stage:
    """Return what counts rows and lets `weight` of each pass."""
    names = tuple(f"c{number}" for number in range(len(columns)))
    made = tuple(canonical(each) for each in columns)
    return Stage(tuple(each.type for each in columns), made, (("n", "BIGINT", f"sum({DIFF})"),), names, weight)


def sums(group: Group, columns: Sequence[Column], *, single: bool) -> Stage:
    """Return what keeps rows, values and sums of each group. `single`: diffs count rows, and are not given by users."""
    keys = columns[: group.keys]
    kept = [("n", "BIGINT", f"coalesce(sum({DIFF}), 0)")]
    shown = [f"c{number}" for number in range(group.keys)]
    for number, each in enumerate(group.aggregates):
        if each.argument is None:
            shown.append("n")
            continue
        value, kind = quoted(columns[each.argument].name), columns[each.argument].type
        kept.append((f"a{number}", "BIGINT", f"coalesce(sum({DIFF}) FILTER (WHERE {value} IS NOT NULL), 0)"))
        if each.function != "count":
            digits, scale = _digits(kind)
            product = f"CAST({value} AS DECIMAL({digits},{scale})) * {COUNT.format(DIFF)}"
            whole = single and not kind.startswith("DECIMAL")
            total = _limbs(f"CAST({value} AS BIGINT)") if whole else f"sum({product})"
            kept.append((f"s{number}", f"DECIMAL(38,{scale})", f"coalesce({total}, 0)"))
        shown.append(_result(number, each))
    made = tuple(canonical(each) for each in keys)
    weight = "CAST(n <> 0 AS BIGINT)" if keys else "1L"
    return Stage(tuple(each.type for each in keys), made, tuple(kept), tuple(shown), weight, forgets=bool(keys))


def _limbs(value: str) -> str:
    """The sum of whole numbers, each as often as its diff says."""
    mask = (1 << LIMB_BITS) - 1
    parts = (
        f"{value} & {mask}L",
        f"shiftright({value}, {LIMB_BITS}) & {mask}L",
        f"shiftright({value}, {2 * LIMB_BITS})",
    )
    return " + ".join(
        f"CAST(sum(({part}) * {DIFF}) AS DECIMAL(19,0)) * {1 << LIMB_BITS * n}BD" for n, part in enumerate(parts)
    )


def _result(number: int, each: Aggregate) -> str:
    if each.function == "count":
        return f"a{number}"
    total = f"exact_mean(s{number}, a{number})" if each.function == "avg" else f"CAST(s{number} AS {each.type})"
    return f"CASE WHEN a{number} <> 0 THEN {total} END"


def mean(total: object, count: int | None) -> float | None:
    """Return an average of whole numbers, rounded once."""
    return int(str(total)) / count if count else None


def canonical(column: Column) -> str:
    """A key as SQL: there is one zero and one NaN."""
    name = quoted(column.name)
    if column.type == "DOUBLE":
        return f"CASE WHEN {name} = 0 THEN 0D WHEN isnan({name}) THEN DOUBLE('NaN') ELSE {name} END"
    return name


def over(select: Select, source: str) -> str:
    """A SELECT of a plan over a relation."""
    return f"(WITH {INPUT} AS (SELECT * FROM {source}) {select.sql})"


def named(source: str, columns: Sequence[Column]) -> str:
    """SELECT the columns of a relation, by their places: there may be more, for an order."""
    names = ", ".join(f"c{number} AS {quoted(each.name)}" for number, each in enumerate(columns))
    return f"SELECT {names}, {TIME}, {DIFF} FROM {source}"


def consolidated(source: str, columns: Sequence[Column]) -> str:
    """SELECT rows with the sums of their diffs."""
    names = ", ".join([*(quoted(each.name) for each in columns), TIME])
    return f"SELECT {names}, sum({DIFF}) AS {DIFF} FROM ({source}) GROUP BY {names} HAVING sum({DIFF}) <> 0"


def _digits(kind: str) -> tuple[int, int]:
    """Digits and scale of a number."""
    name, _, rest = kind.partition("(")
    digits, scale = (int(part) for part in rest.rstrip(")").split(",")) if name == "DECIMAL" else (19, 0)
    return digits, scale
