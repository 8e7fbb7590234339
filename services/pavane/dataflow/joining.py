"""Joins of arranged sides: statements over changes and state tables (docs/specs/compute.md 16.2)."""

from __future__ import annotations

from pavane.dataflow.deltas import DUCKDB, Counts
from pavane.dataflow.plan import Plan
from pavane.dataflow.ports import DIFF, TIME


class Join:
    """Inner or left join: ΔA ⋈ (B + ΔB) and A ⋈ ΔB, of all ticks at once.

    Of a left join each row of the first side is there with NULLs, too, and for each key of the second side a row of
    NULLs -1 times, which takes that back.
    """

    def __init__(self, prefix: str, plan: Plan) -> None:
        first, second = (side.select.columns for side in plan.sides)
        self.sides = (Counts(f"{prefix}_a", first, Counts.ALL), Counts(f"{prefix}_b", second, Counts.ALL))
        self.matched = Counts(f"{prefix}_keys", second[: plan.keys], Counts.ONCE) if plan.left else None
        self._left = plan.left
        self._names = [tuple(DUCKDB.quoted(each.name) for each in columns) for columns in (first, second)]
        self._keys = plan.keys
        self._second = [f"CAST(NULL AS {each.type}) AS c{i}" for i, each in enumerate(second) if i >= plan.keys]
        shown = [f"{{0}}.c{i} AS {name}" for i, name in enumerate(self._names[0]) if i >= plan.keys]
        others = [f"{{1}}c{i} AS {name}" for i, name in enumerate(self._names[1]) if i >= plan.keys]
        self._shown = ", ".join([*shown, *others])
        self._padded = ", ".join(
            [*(each.format("a") for each in shown),
             *(f"CAST(NULL AS {each.type}) AS {DUCKDB.quoted(each.name)}" for each in second[plan.keys :])]
        )  # fmt: skip
        self._known = tuple(
            "TRUE" if side == 0 and plan.left else " AND ".join(f"{name} IS NOT NULL" for name in names[: plan.keys])
            for side, names in enumerate(self._names)
        )
        self._on = " AND ".join(f"a.c{i} = b.c{i}" for i in range(plan.keys))

    def known(self, side: int, source: str) -> str:
        """SELECT the rows of a side that can count: NULL is equal to nothing."""
        return f"SELECT * FROM {source} WHERE {self._known[side]}"

    def unmatched(self, matched: str) -> str:
        """SELECT the second side's rows of NULLs, by the changes of its keys."""
        keys = [f"{name} AS c{i}" for i, name in enumerate(self._names[1][: self._keys])]
        return f"SELECT {', '.join([*keys, *self._second])}, {TIME} AS t, -{DIFF} AS n FROM {matched}"

    def out(self, first: str, second: str) -> str:
        """SELECT the updates that follow from the deltas of both sides, which are not in the state yet."""
        a, b = (side.table for side in self.sides)
        before = f"SELECT *, CAST(-1 AS BIGINT) AS t FROM {b} UNION ALL BY NAME SELECT * FROM {second}"
        return self._with_alone(
            f"{self._both('greatest(a.t, b.t)')} FROM {first} AS a JOIN ({before}) AS b ON {self._on} UNION ALL "
            f"{self._both('b.t')} FROM {a} AS a JOIN {second} AS b ON {self._on}", f"{first} AS a", "a.t"
        )  # fmt: skip

    def contents(self, tick: int) -> str:
        """SELECT what the state says, as updates of one tick."""
        a, b = (side.table for side in self.sides)
        joined = f"{self._both(str(tick))} FROM {a} AS a JOIN {b} AS b ON {self._on}"
        return self._with_alone(joined, f"{a} AS a", str(tick))

    def _both(self, time: str) -> str:
        separator = ", " if self._shown else ""
        return f"SELECT {self._shown.format('a', 'b.')}{separator}{time} AS {TIME}, a.n * b.n AS {DIFF}"

    def _with_alone(self, joined: str, rows: str, time: str) -> str:
        """Add the rows of NULLs, and up: what is never there must not be computed with, it may be out of range."""
        if self._left:
            separator = ", " if self._padded else ""
            joined += f" UNION ALL SELECT {self._padded}{separator}{time} AS {TIME}, a.n AS {DIFF} FROM {rows}"
        return (
            f"SELECT * EXCLUDE ({DIFF}), CAST(sum({DIFF}) AS BIGINT) AS {DIFF} FROM ({joined}) "
            f"GROUP BY ALL HAVING sum({DIFF}) <> 0"
        )
