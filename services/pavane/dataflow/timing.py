"""Rows that count for a span of time: what comes and goes as the ticks' wall time passes (docs/specs/compute.md 16.2).

The state has the rows whose span is still to begin or to end. Wall time never goes back, so what is over stays over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pavane.dataflow.deltas import DUCKDB, Dialect, State, listed
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


class Timing:
    """Lets each row pass while its span lasts: the last two of its columns, from when on and until when."""

    def __init__(self, table: str, columns: Sequence[Column], dialect: Dialect = DUCKDB) -> None:
        rows = columns[:-2]
        keys = [Column(f"c{place}", each.type) for place, each in enumerate(rows)]
        ends = (Column("begins", "BIGINT"), Column("ends", "BIGINT"))
        self.state = State(table, (*keys, *ends), (("n", "BIGINT"),))
        self._names = [each.name for each in keys]
        self._made = [f"{dialect.canonical(each)} AS c{place}" for place, each in enumerate(rows)]
        spans = zip(columns[-2:], ends, strict=True)
        self._made += [f"{dialect.quoted(each.name)} AS {end.name}" for each, end in spans]
        self._shown = [f"c{place} AS {dialect.quoted(each.name)}" for place, each in enumerate(rows)]

    def delta(self, source: str) -> str:
        """SELECT how often each row comes, by tick; not those whose span is none."""
        made = listed(self._made, f"CAST({TIME} AS BIGINT) AS t", f"CAST(sum({DIFF}) AS BIGINT) AS n")
        rows = f"SELECT {made} FROM {source} GROUP BY ALL HAVING sum({DIFF}) <> 0"
        return f"SELECT * FROM ({rows}) WHERE begins < ends"

    def out(self, delta: str, moments: Moments) -> str:
        """SELECT what comes and goes in a step, of a delta that is not in the state yet."""
        names = listed(self._names, "begins", "ends", "n")
        begun = f"begins > {moments.before} AND begins <= {moments.last}"
        due = f"{self.state.table} WHERE ends <= {moments.last} OR ({begun})"
        rows = f"SELECT {names}, t FROM {delta} UNION ALL SELECT {names}, CAST(-1 AS BIGINT) AS t FROM {due}"
        spans = listed(
            self._names, "n", f"greatest(t, {moments.tick('begins')}) AS s", f"greatest(t, {moments.tick('ends')}) AS e"
        )
        there = f"SELECT * FROM (SELECT {spans} FROM ({rows})) WHERE s < e"
        come = f"SELECT {listed(self._shown, f's AS {TIME}', f'n AS {DIFF}')} FROM there WHERE s >= 0"
        gone = f"SELECT {listed(self._shown, f'e AS {TIME}', f'-n AS {DIFF}')} FROM there WHERE e < {NEVER}"
        return f"WITH there AS ({there}) {come} UNION ALL {gone}"

    def pending(self, source: str, last: int) -> str:
        """SELECT the rows whose span begins or ends after a moment."""
        return f"SELECT * FROM {source} WHERE {self._pending(last)}"

    def over(self, last: int) -> str:
        """DELETE the others from the state."""
        return f"DELETE FROM {self.state.table} WHERE NOT ({self._pending(last)})"

    @staticmethod
    def due(source: str, last: int) -> str:
        """SELECT the first moment after another one at which something of a relation changes."""
        return f"SELECT coalesce(min(CASE WHEN begins > {last} THEN begins ELSE ends END), {EVER}) FROM {source}"

    @staticmethod
    def _pending(last: int) -> str:
        return f"ends > {last} AND (begins > {last} OR ends < {EVER})"


def due_ms(moment: int) -> int | None:
    """Return the wall time at which a moment has come."""
    return None if moment >= EVER else -(-moment // 1000)


BEFORE = ALWAYS - 1
"""Before the first tick that a view sees."""
