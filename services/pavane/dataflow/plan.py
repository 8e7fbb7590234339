"""The plan of a view: SQL for what is row by row, operators for what must remember (docs/specs/compute.md 14.4, 14.6).

    rows of each table ─SELECT→ [join by key] ─SELECT→ [groups] ─SELECT→ [distinct] → [the first k]

With keys and one table, the second SELECT is one over all rows of a key at one time, such as a window function.

Each SELECT reads the relation `input`, knows nothing of other rows, and carries time and diff along. As canonical JSON
equal bytes are equal plans.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from pavane.dataflow.ports import Column

INPUT = "input"
VERSION = 3
WITH_WINDOWS = 4
"""The version of plans that have SELECTs over all rows of a key; others are what they were."""


class PlanError(Exception):
    """A plan of a format that this version does not know."""


@dataclass(frozen=True, slots=True)
class Select:
    """A SELECT over `input` and the columns that it makes."""

    sql: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One table of a view: of a join the first `keys` columns of its SELECT are the key."""

    table: str
    select: Select


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What is kept of a group: `function` over column `argument` of the SELECT before, None: of whole rows."""

    function: str
    """count, sum, avg, min, max or count_distinct."""
    argument: int | None
    type: str
    doubles: bool = False
    """The argument is a DOUBLE, whose sums depend on their order unless they are rounded once."""


@dataclass(frozen=True, slots=True)
class Group:
    """Groups by the first `keys` columns. Their rows: the keys, then the aggregates."""

    keys: int
    aggregates: tuple[Aggregate, ...]


@dataclass(frozen=True, slots=True)
class OrderBy:
    """One term of an order, by a column of the last SELECT."""

    column: int
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True)
class Top:
    """The rows `offset` to `offset + limit` in an order; equal ones are ordered by all their columns."""

    order: tuple[OrderBy, ...]
    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class Inner:
    """What an inner SELECT or a join of more than two gives: a relation that only this view reads, at the same tick."""

    name: str
    columns: tuple[Column, ...]
    plan: Plan


@dataclass(frozen=True, slots=True)
class Plan:
    """What a view does. The first `width` columns of the last SELECT are the view's, others are there for the order.

    With `union` it does what all of these plans do together, and has no sides of its own.
    """

    sides: tuple[Side, ...]
    width: int
    keys: int = 0
    left: bool = False
    """The join keeps rows of the first side that match none."""
    rows: Select | None = None
    """Over the joined rows, or all rows of a key of one side."""
    group: Group | None = None
    final: Select | None = None
    """Over the rows of groups."""
    distinct: bool = False
    top: Top | None = None
    union: tuple[Plan, ...] = ()
    inner: tuple[Inner, ...] = ()
    """Of a view: relations that its sides read; each may read the ones before it."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Tables, views and inner relations that its sides name."""
        return tuple(side.table for part in self.union or (self,) for side in part.sides)

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables and views that a whole plan reads."""
        inner = {each.name for each in self.inner}
        read = (name for plan in (self, *(each.plan for each in self.inner)) for name in plan.reads)
        return tuple(dict.fromkeys(name for name in read if name not in inner))

    def encode(self) -> bytes:
        """Return canonical JSON."""
        parts = (part for plan in (self, *(each.plan for each in self.inner)) for part in plan.union or (plan,))
        version = WITH_WINDOWS if any(part.keys and len(part.sides) == 1 for part in parts) else VERSION
        return json.dumps({"version": version, **asdict(self)}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote. Raises `PlanError`."""
        held = json.loads(data)
        if held.pop("version", None) not in (VERSION, WITH_WINDOWS):
            raise PlanError(
                f"the plan is not of version {VERSION} or {WITH_WINDOWS}: use the version of Pavane that made it"
            )
        return cls._decoded(held)

    @classmethod
    def _decoded(cls, held: dict[str, Any]) -> Self:
        group, top = held["group"], held["top"]
        return cls(
            sides=tuple(Side(each["table"], _select(each["select"])) for each in held["sides"]),
            width=held["width"],
            keys=held["keys"],
            left=held["left"],
            rows=_select(held["rows"]) if held["rows"] else None,
            group=Group(group["keys"], tuple(Aggregate(**each) for each in group["aggregates"])) if group else None,
            final=_select(held["final"]) if held["final"] else None,
            distinct=held["distinct"],
            top=Top(tuple(OrderBy(**each) for each in top["order"]), top["limit"], top["offset"]) if top else None,
            union=tuple(cls._decoded(each) for each in held["union"]),
            inner=tuple(
                Inner(each["name"], _columns(each["columns"]), cls._decoded(each["plan"])) for each in held["inner"]
            ),
        )


def _select(held: dict[str, Any]) -> Select:
    return Select(held["sql"], _columns(held["columns"]))


def _columns(held: list[dict[str, str]]) -> tuple[Column, ...]:
    return tuple(Column(**each) for each in held)
