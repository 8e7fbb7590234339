"""Rows that count for a span of time: what comes and goes as the ticks' wall time passes (docs/specs/compute.md 16.2).

The state has the rows whose span is still to begin or to end. Wall time never goes back, so what is over stays over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pavane.dataflow.deltas import DUCKDB, Counts, Dialect, listed
from pavane.dataflow.ports import CLOCK, DIFF, TIME, WALL, Column
from pavane.dataflow.temporal import ALWAYS, EVER

NEVER = 2**63 - 1
"""A tick that does not come."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Ticks of a step and the moment of each, in order; `before` is how far time had come before the step."""

    before: int
    ticks: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, inputs: Mapping[str, pa.Table], before: int) -> Moments:
        """Return what a step's `CLOCK` tells. A clock that went back, as in old logs, stands still here."""
        clock, found, last = inputs[CLOCK], list[tuple[int, int]](), before
        for tick, wall_ms in sorted(zip(*(clock.column(name).to_pylist() for name in (TIME, WALL)), strict=True)):
            if wall_ms * 1000 > last:
                last = wall_ms * 1000
                found.append((tick, last))
        return cls(before, tuple(found))

    @property
    def last(self) -> int:
        """How far time is behind the step."""
        return self.ticks[-1][1] if self.ticks else self.before

    def tick(self, moment: str) -> str:
        """The first tick that has come to a moment: -1 before the step, `NEVER` where none of it has."""
        cases = [f"WHEN {moment} <= {wall} THEN CAST({tick} AS BIGINT)" for tick, wall in self.ticks]
        return f"CASE {' '.join([f'WHEN {moment} <= {self.before} THEN -1', *cases])} ELSE {NEVER} END"


class Timing(Counts):
    """Lets each row pass while its span lasts: the last two of its columns, from when on and until when."""

    def __init__(self, table: str, columns: Sequence[Column], dialect: Dialect = DUCKDB) -> None:
        super().__init__(table, columns, Counts.ALL, dialect)
        names = [f"c{place}" for place in range(len(columns))]
        self._begins, self._ends = names[-2:]
        rows = zip(names[:-2], columns[:-2], strict=True)
        self._kept = [f"{name} AS {dialect.quoted(each.name)}" for name, each in rows]

    def delta(self, source: str, *, times: bool = True) -> str:
        """SELECT how often each row comes, by tick; not those whose span is none."""
        return f"SELECT * FROM ({super().delta(source, times=times)}) WHERE {self._begins} < {self._ends}"

    def passing(self, delta: str, moments: Moments, state: str = "") -> str:
        """SELECT what comes and goes in a step, of a delta that is not in the state yet. `state` has the rows of the
        state that are due in the step, at least."""
        begins, ends, names = self._begins, self._ends, listed(self.state.key_names, "n")
        begun = f"{begins} > {moments.before} AND {begins} <= {moments.last}"
        due = f"{state or self.state.table} WHERE {ends} <= {moments.last} OR ({begun})"
        rows = f"SELECT {names}, t FROM {delta} UNION ALL SELECT {names}, CAST(-1 AS BIGINT) AS t FROM {due}"
        spans = listed(names, f"greatest(t, {moments.tick(begins)}) AS s", f"greatest(t, {moments.tick(ends)}) AS e")
        there = f"SELECT * FROM (SELECT {spans} FROM ({rows})) WHERE s < e"
        come = f"SELECT {listed(self._kept, f's AS {TIME}', f'n AS {DIFF}')} FROM there WHERE s >= 0"
        gone = f"SELECT {listed(self._kept, f'e AS {TIME}', f'-n AS {DIFF}')} FROM there WHERE e < {NEVER}"
        return f"WITH there AS ({there}) {come} UNION ALL {gone}"

    def moment(self, last: int) -> str:
        """The first moment after another one at which the span of a row begins or ends; NULL where there is none."""
        begins, ends = self._begins, self._ends
        return f"CASE WHEN {begins} > {last} THEN {begins} WHEN {ends} > {last} AND {ends} < {EVER} THEN {ends} END"

    def pending(self, last: int) -> str:
        """The condition that there is such a moment."""
        return f"{self.moment(last)} IS NOT NULL"

    def over(self, last: int) -> str:
        """DELETE the rows without one from the state."""
        return f"DELETE FROM {self.state.table} WHERE NOT ({self.pending(last)})"

    def due(self, source: str, last: int) -> str:
        """SELECT the first moment after another one at which something of a relation changes."""
        return f"SELECT coalesce(min({self.moment(last)}), {EVER}) FROM {source}"

    def to_come(self, source: str, last: int) -> str:
        """SELECT how often each row comes that counts at a moment, or later."""
        return f"SELECT * FROM ({self.delta(source, times=False)}) WHERE {self._ends} > {last}"

    def lasting(self, tick: int, source: str, last: int) -> str:
        """SELECT what of a relation counts at a moment, as updates of a tick."""
        rows = f"SELECT * FROM {source} WHERE {self._begins} <= {last} AND {self._ends} > {last}"
        return f"SELECT {listed(self._kept, f'CAST({tick} AS BIGINT) AS {TIME}', f'n AS {DIFF}')} FROM ({rows})"


def due_ms(moment: int) -> int | None:
    """Return the wall time at which a moment has come."""
    return None if moment >= EVER else -(-moment // 1000)


BEFORE = ALWAYS - 1
"""Before the first tick that a view sees."""
