"""How a view is kept up to date, in words: of each part the rule and what it remembers (docs/specs/compute.md 16.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pavane.dataflow.plan import Plan
from pavane.dataflow.ports import SqlView


def explained(view: SqlView) -> list[str]:
    """Return a line for each step of a view, those that it reads first; inner ones are indented."""
    plan = Plan.decode(view.plan)
    names = {each.name: f"#{number}" for number, each in enumerate(plan.inner, start=1)}
    lines = [f"  {names[each.name]}: {line}" for each in plan.inner for line in _relation(each.plan, names)]
    return [*lines, *(f"{view.name}: {line}" for line in _relation(plan, names))]


def _relation(plan: Plan, names: Mapping[str, str]) -> Iterator[str]:
    for part in plan.union or (plan,):
        yield "; ".join(_part(part, [names.get(side.table, side.table) for side in part.sides]))


def _part(plan: Plan, read: list[str]) -> Iterator[str]:
    if len(read) > 1:
        kind = "left join" if plan.left else "join"
        yield f"{kind} of {read[0]} and {read[1]} by {_count(plan.keys, 'key')}: keeps the rows of both (rule 3)"
    elif plan.keys:
        by = _count(plan.keys, "key")
        yield f"windows over {read[0]} by {by}: keeps its rows, looks at whole partitions (rule 3)"
    else:
        yield f"rows of {read[0]}, one by one: keeps nothing (rule 1)"
    if plan.timed:
        yield "rows while their time lasts: keeps those whose time is still to begin or to end (rule 4)"
    if plan.group is not None:
        adds = ("count", "sum", "avg")
        others = [each for each in plan.group.aggregates if each.function not in adds or each.doubles]
        kept = "keeps a row of sums for each group (rule 2)"
        fronts = ", ".join(dict.fromkeys(each.function for each in others))
        yield f"groups by {_count(plan.group.keys, 'key')}: {kept}" + (
            f", and values for {fronts} (rule 3)" if fronts else ""
        )
    if plan.distinct:
        yield "different rows: keeps how often each is there (rule 2)"
    if plan.top is not None:
        yield f"the first {plan.top.offset + plan.top.limit} in an order: keeps all rows, looks at the first (rule 3)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
