"""What Spark's SQL says differently of the rules, and which views they cover (docs/specs/compute.md 16.3).

A state's rows begin with `h`, a hash of the key, by which they are found.
"""

from __future__ import annotations

from collections.abc import Sequence

from pavane.dataflow.bound import decimal_of
from pavane.dataflow.deltas import EXACT_DIGITS, Dialect, Sum, adds
from pavane.dataflow.plan import INPUT, Plan, Select
from pavane.dataflow.ports import DIFF, Script, SqlView

LEAVES_MAX = 256  # of one inner relation
LIMB_BITS = 22
"""Whole numbers are added up in three parts, the lower two of so many bits: as decimals 10 M rows took 3 s more.
2^41 rows fit."""


def covers(script: Script, view: SqlView) -> bool:
    """Whether Spark's executors can maintain a view; else the driver does."""
    if any(table.key for table in script.tables if table.name in view.tables):
        return False
    plan = Plan.decode(view.plan)
    # A view of Spark stands for its SQL: inner ones that read each other twice would double the plan at each level.
    leaves: dict[str, int] = {}
    for each in plan.inner:
        leaves[each.name] = sum(leaves.get(name, 1) for name in each.plan.reads)
    if max(leaves.values(), default=1) > LEAVES_MAX:
        return False
    return all(_covered(part) for each in (plan, *(i.plan for i in plan.inner)) for part in each.union or (each,))


def _covered(part: Plan) -> bool:
    if part.keys or part.top is not None:
        return False
    if part.group is None:
        return True
    columns = part.sides[0].select.columns
    return all(
        each.function == "count" or (adds(each) and decimal_of(columns[each.argument or 0].type)[0] <= EXACT_DIGITS)
        for each in part.group.aggregates
    )


def _parts(value: str, kind: str, single: bool) -> Sequence[Sum]:
    digits, scale = decimal_of(kind)
    if single and not kind.startswith("DECIMAL"):
        total = _limbs(f"CAST({value} AS BIGINT)")
    else:  # of factors with so many digits a product is exact
        total = f"sum(CAST({value} AS DECIMAL({digits},{scale})) * CAST({DIFF} AS DECIMAL(18,0)))"
    return [("s", f"DECIMAL(38,{scale})", total)]


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


SPARK = Dialect("`", "explode(array(1L, -1L))", "xxhash64({})", _parts, lambda number, _: f"s{number}")


def mean(total: object, count: int | None) -> float | None:
    """Return an average of whole numbers, rounded once."""
    return int(str(total)) / count if count else None


def over(select: Select, source: str) -> str:
    """A SELECT of a plan over a relation."""
    return f"(WITH {INPUT} AS (SELECT * FROM {source}) {select.sql})"
