"""The plan of a view: SQL for what is row by row, operators for what must remember (docs/specs/compute.md 14.4, 14.6).

    rows of each table ─SELECT→ [join by key] ─SELECT→ [groups] ─SELECT→ [distinct] → [the first k]

With keys and one table, the second SELECT is one over all rows of a key at one time, such as a window function.

Each SELECT reads the relation `input`, knows nothing of other rows, and carries time and diff along. As canonical JSON
equal bytes are equal plans.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from typing import Any, Self, get_args, get_origin, get_type_hints

from pavane.dataflow.ports import CLOCK, Column, Script

INPUT = "input"
VERSION = 3
WITH_WINDOWS = 4
"""The version of plans that have SELECTs over all rows of a key; others are what they were."""
WITH_NOW = 5
"""The version of plans that read the clock."""


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
    timed: bool = False
    """The last two columns of its last SELECT are moments, between which a row counts (`temporal`)."""

    @property
    def reads(self) -> tuple[str, ...]:
        """Tables, views and inner relations that its sides name, and the clock."""
        parts = self.union or (self,)
        clock = (CLOCK,) if any(part.timed for part in parts) else ()
        return (*(side.table for part in parts for side in part.sides), *clock)

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables and views that a whole plan reads."""
        inner = {each.name for each in self.inner}
        read = (name for plan in (self, *(each.plan for each in self.inner)) for name in plan.reads)
        return tuple(dict.fromkeys(name for name in read if name not in inner))

    def encode(self) -> bytes:
        """Return canonical JSON."""
        plans = (self, *(each.plan for each in self.inner))
        parts = [part for plan in plans for part in plan.union or (plan,)]
        version = WITH_WINDOWS if any(part.keys and len(part.sides) == 1 for part in parts) else VERSION
        version = WITH_NOW if any(part.timed for part in parts) else version
        made = asdict(self, dict_factory=_as_before)
        return json.dumps({"version": version, **made}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read what `encode` wrote. Raises `PlanError`."""
        held = json.loads(data)
        if held.pop("version", None) not in (VERSION, WITH_WINDOWS, WITH_NOW):
            raise PlanError(
                f"the plan is not of version {VERSION} to {WITH_NOW}: use the version of Pavane that made it"
            )
        found: Self = read(cls, held)
        return found


def _as_before(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Leave out what plans did not always have and do not need, so that they stay what they were."""
    return {name: value for name, value in items if (name, value) != ("timed", False)}


def read(kind: Any, held: Any) -> Any:
    """Return the value of a type that `asdict` and JSON made this of. Raises TypeError, ValueError."""
    inner = get_args(kind)
    if get_origin(kind) is tuple:
        return tuple(read(inner[0], each) for each in held)
    if inner:  # or None
        return None if held is None else read(inner[0], held)
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**{name: read(_hints(kind)[name], each) for name, each in held.items()})
    return kind(held)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def digests(script: Script, *versions: object) -> dict[str, str]:
    """Return for each view a digest of all that its state depends on, what it reads and `versions` among it."""
    found: dict[str, str] = {}
    for view in script.views:
        tables = [repr(table) for table in script.tables if table.name in view.tables]
        reads = [found[name] for name in view.tables if name in found]
        columns = [(column.name, column.type) for column in view.columns]
        told = [*versions, view.name, view.plan.decode(), columns, tables, reads]
        found[view.name] = hashlib.sha256(json.dumps(told).encode()).hexdigest()
    return found
