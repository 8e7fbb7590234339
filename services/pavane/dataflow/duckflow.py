"""The state of one view in tables of DuckDB, and its steps (docs/specs/compute.md 16.3)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import duckdb
import pyarrow as pa

from pavane.dataflow.casing import macros
from pavane.dataflow.deltas import MACROS, Counts, Stage, Sums, quoted
from pavane.dataflow.duckdialect import translated, without_zones
from pavane.dataflow.growth import Growth, growth_of
from pavane.dataflow.plan import INPUT, Plan, Select
from pavane.dataflow.ports import DIFF, TIME, Binding, Column, EngineError, Script, View, ViewError
from pavane.dataflow.rows import table_of
from pavane.dataflow.types import arrow_schema

JOINED_ROWS = 10_000
"""So many rows of a state table, or twice as many as it had keys, are added up by key."""
FAULTS = (duckdb.OutOfRangeException, duckdb.ConversionException)
"""A value that does not fit: no fault of the engine."""


@contextmanager
def told_apart() -> Iterator[None]:
    """Raise `ViewError` for what is wrong with a view alone, `EngineError` for what else DuckDB raises."""
    try:
        yield
    except FAULTS as error:
        raise ViewError(f"a value is out of range: {error}") from error
    except duckdb.OutOfMemoryException as error:
        raise ViewError(f"it needs more memory than there is: {error}") from error
    except duckdb.Error as error:
        raise EngineError(f"DuckDB: {error}") from error


class DuckFlow:
    """One view on a connection of its own, whose transaction is open from one checkpoint to the next.

    `prefix` begins the names of its tables. `at` is where they were opened; without it they are made. With `keeps` also
    a view that needs no state keeps its rows, to tell them after a restart.
    """

    raw = True

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, script: Script, view: View, prefix: str, *, keeps: bool
    ) -> None:
        self._run = connection
        self._lock = RLock()
        self.at: Binding | None = None
        self.closed = False
        self.steps = 0
        """Since the transaction began."""
        self._prefix = prefix
        self._schema = arrow_schema(view.columns)
        self._owed = False
        self._begun = False
        self._claims = False  # the file says where the view is
        self._tables = [table for table in script.tables if table.name in view.tables]
        plan = Plan.decode(view.plan)
        self._present = {
            table.name: Counts(f"{prefix}_in{i}", table.columns, Counts.NEVER_LESS)
            for i, table in enumerate(self._tables)
            if table.diff
        }
        relations = [*((each.name, each.columns, each.plan) for each in plan.inner), ("", view.columns, plan)]
        self._relations = [
            (name, columns, [_Part(part, f"{prefix}_{i}_{j}") for j, part in enumerate(whole.union or (whole,))])
            for i, (name, columns, whole) in enumerate(relations)
        ]
        self._result = Counts(f"{prefix}_rows", view.columns, Counts.ALL) if keeps else None
        stages: list[Stage] = [*self._present.values()]
        stages += [stage for _, _, parts in self._relations for part in parts for stage in part.stages]
        self.stages = [*stages, *([self._result] if self._result is not None else [])]
        self._rows: dict[str, int] = {}  # of each state table, and at which number they are added up
        self._limits: dict[str, int] = {}
        with told_apart():
            for macro in (*macros(), *MACROS):
                self._rows_of(macro.replace("CREATE MACRO", "CREATE TEMP MACRO"))
            self._rows_of("BEGIN")

    def make(self) -> None:
        """Begin with nothing."""
        self._claims = False
        with told_apart():
            self._rows_of(f"DROP TABLE IF EXISTS {self._prefix}_at")
            for stage in self.stages:
                self._rows_of(f"DROP TABLE IF EXISTS {stage.table}")
                self._rows_of(stage.state.ddl)

    def open(self, at: Binding) -> None:
        """Go on with what the tables hold. Raises `EngineError` where they cannot be read."""
        self.at = at
        self._begun = self._claims = True
        with told_apart():
            for stage in self.stages:
                self._join(stage)

    def commit(self, digest: str, at: Binding) -> None:
        """Make durable what the view is at a binding. Raises DuckDB's errors."""
        self._rows_of(f"CREATE OR REPLACE TABLE {self._prefix}_at AS SELECT ? AS digest, ? AS binding",
                          [digest, json.dumps([at.tick, sorted(at.next.items()), at.wall_ms])])  # fmt: skip
        self._claims = True
        self._rows_of("COMMIT")

    def begin(self) -> None:
        """Begin the next transaction."""
        self.steps = 0
        self._rows_of("BEGIN")

    def kept(self) -> tuple[str, Binding] | None:
        """Return digest and binding of what the file holds of this view. Raises DuckDB's errors, and ValueError."""
        there = "SELECT count(*) FROM duckdb_tables() WHERE table_name = ?"
        if self._rows_of(there, [f"{self._prefix}_at"]) == [(0,)]:
            return None
        rows = self._rows_of(f"SELECT digest, binding FROM {self._prefix}_at")
        if not rows:
            raise ValueError("it does not say at which tick it is")
        tick, following, wall_ms = json.loads(rows[0][1])
        return str(rows[0][0]), Binding(tick, dict(following), wall_ms)

    def forget(self) -> None:
        """Begin with nothing, whatever the file held."""
        self.at, self._begun = None, False
        self._rows.clear()
        self._limits.clear()
        self.make()

    def close(self) -> None:
        """Let go of what is not committed."""
        if self.closed:
            return
        self._run.interrupt()  # a step may be under way in a thread that nobody waits for any more
        with self._lock:
            if not self.closed:
                self.closed = True
                self._run.close()

    def contents(self, tick: int) -> pa.Table:
        """Return the whole view as updates of a tick."""
        assert self._result is not None  # noqa: S101 - who opens state keeps it
        with told_apart():
            return self._arrow(self._result.contents(tick))

    def step(self, inputs: Mapping[str, pa.Table], upper: int, *, more: bool = False) -> pa.Table:
        """See `Flow`."""
        with self._lock:
            if self.closed:
                raise EngineError("the state is closed")
            try:
                with told_apart():
                    found = self._step(inputs, upper, more)
                    for i in range(len(inputs)):
                        self._run.unregister(f"{self._prefix}_arrow{i}")
                    if not self._claims:  # until then DuckDB keeps every table that this transaction dropped
                        self._rows_of("COMMIT")
                        self.begin()
                    return found
            except (ViewError, EngineError):
                self.close()  # the transaction is lost
                raise

    def _step(self, inputs: Mapping[str, pa.Table], upper: int, more: bool) -> pa.Table:
        owed, self._owed = self._owed, more
        whole = more or owed
        if not whole and self._begun and not any(table.num_rows for table in inputs.values()):
            return table_of((), self._schema)
        self.steps += 1
        known: dict[str, str] = {}
        for i, (name, table) in enumerate(inputs.items()):
            known[name] = f"{self._prefix}_arrow{i}"
            self._run.register(known[name], without_zones(table))
            if name in self._present:
                known[name] = self._through(self._present[name], known[name], upper, whole, more)
        for i, (name, columns, parts) in enumerate(self._relations):
            made = [self._part(part, known, upper, whole, more) for part in parts]
            found = " UNION ALL ".join(_renamed(each, columns) for each in made)
            known[name] = self._temporary(f"{self._prefix}_rel{i}", _consolidated(found, columns))
        self._begun = True
        if self._result is not None:
            self._add(self._result, self._temporary(f"{self._prefix}_d", self._result.delta(known[""])))
        return self._arrow(f"SELECT * FROM {known['']}")

    def _part(self, part: _Part, known: Mapping[str, str], upper: int, whole: bool, more: bool) -> str:
        self._check(part.growth, known[part.side])
        rows = f"({part.select.format(known[part.side])})"
        if part.groups is not None:
            groups = self._through(part.groups, rows, upper, whole, more)
            self._check(part.final_growth, groups)
            rows = f"({part.final.format(groups)})"
        if part.once is not None:
            rows = self._through(part.once, rows, upper, whole, more)
        return rows

    def _check(self, growth: Growth, source: str) -> None:
        """DuckDB's own limit does not count texts that it is making."""
        if growth.texts:
            text = "{} * coalesce(sum(strlen(CAST({} AS VARCHAR))), 0)"
            sizes = [text.format(times, quoted(name)) for name, times in growth.texts.items()]
            made = ", ".join([*sizes, f"{growth.literals_bytes} * count(*)"])
            growth.check(self._number(f"SELECT CAST(list_sum([{made}]) AS HUGEINT) FROM {source}"))

    def _through(self, stage: Stage, source: str, upper: int, whole: bool, more: bool) -> str:
        """Bring changes through a stage; while `more` of one tick come it only adds them up."""
        delta = self._temporary(f"{stage.table}_delta", stage.delta(source))
        if isinstance(stage, Sums) and not stage.state.keys and not self._begun:
            self._rows_of(stage.first)
            if not whole:  # the row of no rows is there from the first tick on
                least = self._number(f"SELECT least(min(t), {upper - 1}) FROM {delta}")
                out = self._temporary(f"{stage.table}_out", f"{stage.contents(least)} UNION ALL ({stage.out(delta)})")
                self._add(stage, delta)
                return out
        if whole:
            self._add(stage, delta)
            found = stage.contents(upper - 1)
            return self._temporary(f"{stage.table}_out", f"SELECT * FROM ({found}) LIMIT 0" if more else found)
        out = self._temporary(f"{stage.table}_out", stage.out(delta))
        self._add(stage, delta)
        return out

    def _add(self, stage: Stage, delta: str) -> None:
        self._rows_of(f"INSERT INTO {stage.table} SELECT {stage.state.names} FROM {delta}")
        rows = self._rows[stage.table] = self._rows.get(stage.table, 0) + self._number(f"SELECT count(*) FROM {delta}")
        if rows > self._limits.get(stage.table, JOINED_ROWS):
            self._join(stage)

    def _join(self, stage: Stage) -> None:
        """Make one row of all rows of a key."""
        table = stage.table
        self._rows_of(f"CREATE TABLE {table}_joined AS {stage.state.joined()}")
        self._rows_of(f"DROP TABLE {table}")
        self._rows_of(f"ALTER TABLE {table}_joined RENAME TO {table}")
        rows = self._rows[table] = self._number(f"SELECT count(*) FROM {table}")
        self._limits[table] = max(JOINED_ROWS, 2 * rows)

    def _temporary(self, name: str, select: str) -> str:
        self._rows_of(f"CREATE OR REPLACE TEMP TABLE {name} AS {select}")
        return name

    def _number(self, sql: str) -> int:
        return int(self._rows_of(sql)[0][0])

    def _rows_of(self, sql: str, values: Sequence[str] = ()) -> list[Any]:
        """All rows: a connection with an unfinished result takes no other statement."""
        with self._lock:
            return self._run.execute(sql, values).fetchall()

    def _arrow(self, select: str) -> pa.Table:
        with self._lock:
            found = self._run.sql(select).to_arrow_table()
        schema = table_of((), self._schema).schema
        return found.rename_columns(schema.names).cast(schema)


class _Part:
    """One SELECT: what it makes of rows, and its stages."""

    def __init__(self, plan: Plan, prefix: str) -> None:
        self.prefix = prefix
        self.side = plan.sides[0].table
        first = plan.sides[0].select
        self.select = _over(first)
        last = first if plan.final is None else plan.final
        self.final = _over(last)
        self.growth, self.final_growth = growth_of(first.sql), growth_of(last.sql)
        self.groups = Sums(f"{prefix}_groups", plan.group, first.columns) if plan.group is not None else None
        self.once = Counts(f"{prefix}_once", last.columns, Counts.ONCE) if plan.distinct else None
        self.stages: Sequence[Stage] = [each for each in (self.groups, self.once) if each is not None]


def _over(select: Select) -> str:
    """A SELECT of a plan over a relation, whose name is to be put in."""
    text = translated(select.sql).replace("{", "{{").replace("}", "}}")
    return f"WITH {INPUT} AS (SELECT * FROM {{}}) {text}"


def _renamed(source: str, columns: Sequence[Column]) -> str:
    """SELECT the columns of a relation, by their places, from what a SELECT made: it may have more, for an order."""
    names = ", ".join(f"c{i} AS {quoted(each.name)}" for i, each in enumerate(columns))
    return f"SELECT {names}, {TIME}, {DIFF} FROM {source}"


def _consolidated(source: str, columns: Sequence[Column]) -> str:
    made = ", ".join([*(quoted(each.name) for each in columns), f"CAST({TIME} AS UBIGINT) AS {TIME}"])
    sums = f"CAST(sum({DIFF}) AS BIGINT) AS {DIFF}"
    return f"SELECT {made}, {sums} FROM ({source}) GROUP BY ALL HAVING sum({DIFF}) <> 0"
