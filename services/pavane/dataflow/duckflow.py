"""The state of one view in tables of DuckDB, and its steps (docs/specs/compute.md 16.3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow import casing, functions
from pavane.dataflow.deltas import DUCKDB, MACROS, Counts, State, Sums, listed
from pavane.dataflow.duckdialect import translated, with_zones, without_zones
from pavane.dataflow.growth import Growth, growth_of
from pavane.dataflow.joining import Join
from pavane.dataflow.plan import INPUT, Group, Plan, Select
from pavane.dataflow.ports import CLOCK, DIFF, TIME, Binding, Column, EngineError, Script, SqlView, ViewError
from pavane.dataflow.rows import table_of
from pavane.dataflow.temporal import EVER
from pavane.dataflow.timing import BEFORE, Moments, Timing, due_ms
from pavane.dataflow.touched import MACROS as DOUBLES
from pavane.dataflow.touched import PLACE, Again, Extreme, First, Front, Latest, beside
from pavane.dataflow.types import arrow_schema

PARTITION_ROWS_MAX = 10_000_000
"""Of a window function at one tick: it looks at all of them, before and after."""
PIECE_ROWS = 1_000_000
"""Window functions are evaluated over about so many at once, of some partitions at some ticks: each is held with all
its columns."""
JOINED_ROWS = 10_000
"""So many rows of a state table, or twice as many as it had keys, are added up by key."""
FAULTS = (duckdb.OutOfRangeException, duckdb.ConversionException, duckdb.InvalidInputException)
"""A value that does not fit, or that a function does not take: no fault of the engine."""


Evaluate = Callable[[str, Mapping[str, pa.Table]], pa.Table]
"""The rows of a SELECT in Spark's SQL over tables. Raises `ViewError`, `EngineError`."""


@contextmanager
def told_apart() -> Iterator[None]:
    """Raise `ViewError` for what is wrong with a view alone, `EngineError` for what else DuckDB raises."""
    try:
        yield
    except FAULTS as error:
        raise ViewError(f"a value is out of range: {error}") from error
    except duckdb.OutOfMemoryException as error:
        what = "it needs more memory than there is, and more disk beside it; give the pod more, or take fewer rows"
        raise ViewError(f"{what}: {str(error).splitlines()[0]}") from error
    except (duckdb.ParserException, duckdb.BinderException) as error:
        raise ViewError(f"DuckDB does not take a part of it: {error}") from error
    except duckdb.Error as error:
        raise EngineError(f"DuckDB: {error}") from error


class DuckFlow:
    """One view on a connection of its own, whose transaction is open from one checkpoint to the next.

    `prefix` begins the names of its tables. `at` is where they were opened; without it they are made. With `keeps` also
    a view that needs no state keeps its rows, to tell them after a restart. With `evaluate` something else evaluates
    the SELECTs of its plan over rows.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        script: Script,
        view: SqlView,
        prefix: str,
        *,
        keeps: bool,
        evaluate: Evaluate | None = None,
    ) -> None:
        self._run = connection
        self._lock = RLock()
        self.at: Binding | None = None
        self.closed = False
        self.steps = 0
        """Since the transaction began."""
        self._prefix = prefix
        self._schema = arrow_schema(view.columns)
        self._evaluate = evaluate
        self._evaluated: list[str] = []  # relations of this step
        self._more = False  # changes of the tick of this step follow in the next one
        self._whole = False  # the step has only changes of one tick, at which the view begins
        self._upper = 0
        self._single = False  # the step has one tick
        self._moments = Moments(BEFORE, ())
        self._due = dict[str, int]()  # of each timing, the first moment at which something begins or ends
        self._begun = False
        self._claims = False  # the file says where the view is
        self._tables = [table for table in script.tables if table.name in view.tables]
        plan = Plan.decode(view.plan)
        self._taken: dict[str, Counts] = {
            table.name: Latest(f"{prefix}_in{i}", table)
            if table.key
            else Counts(f"{prefix}_in{i}", table.columns, Counts.NEVER_LESS)
            for i, table in enumerate(self._tables)
            if table.key or table.diff
        }
        relations = [*((each.name, each.columns, each.plan) for each in plan.inner), ("", view.columns, plan)]
        self._relations = [
            (name, columns, [_Part(part, f"{prefix}_{i}_{j}") for j, part in enumerate(whole.union or (whole,))])
            for i, (name, columns, whole) in enumerate(relations)
        ]
        self._result = Counts(f"{prefix}_rows", view.columns, Counts.ALL) if keeps else None
        self.states = [stage.state for stage in self._taken.values()]
        self.states += [state for _, _, parts in self._relations for part in parts for state in part.states]
        self.states += [self._result.state] if self._result is not None else []
        self._timings = [part.timing for _, _, parts in self._relations for part in parts if part.timing is not None]
        self._rows: dict[str, int] = {}  # of each state table, and at which number they are added up
        self._limits: dict[str, int] = {}
        with told_apart():
            for macro in (*casing.macros(), *functions.macros(view.plan.decode()), *MACROS, *DOUBLES):
                self._rows_of(macro.replace("CREATE MACRO", "CREATE TEMP MACRO"))
            self._rows_of("BEGIN")

    def make(self) -> None:
        """Begin with nothing."""
        self._claims = False
        with told_apart():
            self._rows_of(f"DROP TABLE IF EXISTS {self._prefix}_at")
            for state in self.states:
                self._rows_of(f"DROP TABLE IF EXISTS {state.table}")
                self._rows_of(f"CREATE TABLE {state.table} ({state.ddl})")

    def open(self, at: Binding) -> None:
        """Go on with what the tables hold. Raises `EngineError` where they cannot be read."""
        self.at = at
        self._begun = self._claims = True
        self._moments = Moments(at.wall_ms * 1000, ())
        with told_apart():
            for state in self.states:
                self._join(state)
            for timing in self._timings:
                self._due[timing.state.table] = self._number(timing.due(timing.state.table, self._moments.last))

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
        self._moments = Moments(BEFORE, ())
        self._due.clear()
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

    @property
    def due_ms(self) -> int | None:
        """See `Flow`."""
        return due_ms(min(self._due.values(), default=EVER))

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
                    for name in [*(f"{self._prefix}_arrow{i}" for i in range(len(inputs))), *self._evaluated]:
                        self._run.unregister(name)
                    self._evaluated.clear()
                    if not self._claims:  # until then DuckDB keeps every table that this transaction dropped
                        self._rows_of("COMMIT")
                        self.begin()
                    return found
            except (ViewError, EngineError):
                self.close()  # the transaction is lost
                raise

    def _step(self, inputs: Mapping[str, pa.Table], upper: int, more: bool) -> pa.Table:
        self._upper, self._whole, self._more = upper, more or self._more, more
        if self._timings:
            self._moments = Moments.of(inputs, self._moments.last)
            inputs = {name: table for name, table in inputs.items() if name != CLOCK}
        rests = self._begun and not self._is_due
        if not self._whole and rests and not any(table.num_rows for table in inputs.values()):
            return table_of((), self._schema)
        self.steps += 1
        ends = [pc.min_max(table.column(TIME)).as_py() for table in inputs.values() if table.num_rows]
        ticks = {tick for each in ends for tick in each.values()} | {tick for tick, _ in self._moments.ticks}
        self._single = len(ticks) <= 1
        known: dict[str, str] = {}
        for i, (name, table) in enumerate(inputs.items()):
            known[name] = f"{self._prefix}_arrow{i}"
            taken, rows = self._taken.get(name), without_zones(table)
            if isinstance(taken, Latest):
                rows = rows.append_column(PLACE, pa.array(range(table.num_rows), pa.int64()))
            self._run.register(known[name], rows)
            if taken is not None:
                known[name] = self._through(taken, known[name])
        for i, (name, columns, parts) in enumerate(self._relations):
            made = [DUCKDB.renamed(self._part(part, known), columns) for part in parts]
            found = DUCKDB.consolidated(" UNION ALL ".join(made), columns)
            known[name] = self._temporary(f"{self._prefix}_rel{i}", found)
        self._begun = True
        if self._result is not None:
            self._add(self._result.state, f"({self._result.delta(known[''])})")
        return self._arrow(f"SELECT * FROM {known['']}")

    @property
    def _is_due(self) -> bool:
        return min(self._due.values(), default=EVER) <= self._moments.last

    def _part(self, part: _Part, known: Mapping[str, str]) -> str:
        rows = [self._selected(side, known[name]) for name, side in part.sides]
        found = rows[0]
        if part.again is not None and part.joined is not None:
            found = self._again(part.again, part.joined, found)
        elif part.join is not None and part.joined is not None:
            found = self._selected(part.joined, self._join_sides(part.join, rows))
        if part.timing is not None:
            found = self._timed(part.timing, found)
        if part.groups is not None and part.final is not None:
            found = self._selected(part.final, self._grouped(part.groups, found))
        if part.once is not None:
            found = self._through(part.once, found)
        if part.first is not None:
            found = self._first(part.first, found)
        return found

    def _selected(self, select: _Select, source: str) -> str:
        self._check(select.growth, source)
        if self._evaluate is None:
            return f"({select.sql.format(source)})"
        with self._lock:
            rows = self._run.sql(f"SELECT * FROM {source}").to_arrow_table()
        made = self._evaluate(select.plain, {INPUT: with_zones(rows)}) if rows.num_rows else None
        name = f"{self._prefix}_select{len(self._evaluated)}"
        schema = arrow_schema(select.columns)
        self._evaluated.append(name)
        self._run.register(name, without_zones(made if made is not None else table_of((), schema)))
        return name

    def _again(self, again: Again, select: _Select, rows: str) -> str:
        """Evaluate a SELECT over all rows of touched keys, before and after."""
        table, at = again.table, self._upper - 1 if self._whole else None
        delta = self._temporary(f"{table}_delta", again.delta(rows))
        if self._whole:
            self._add(again.state, delta)
        moments = self._temporary(f"{table}_moments", self._told(again.moments(again.rows(delta, delta, at))))
        pieces = self._rows_of(again.pieces(moments, PIECE_ROWS)) or [(0, 0, 0)]
        if max(size for _, _, size in pieces) > PARTITION_ROWS_MAX:
            raise ViewError(f"a partition of a window function has more than {PARTITION_ROWS_MAX} rows")
        made, registered = f"{table}_out", len(self._evaluated)
        for number, (first, last, _) in enumerate(pieces):
            piece = again.piece(moments, first, last)
            # In one statement: a table of all rows of a piece would be held until the transaction ends.
            counted = again.counted(piece, again.rows(piece, delta, at))
            found = again.changes(self._selected(select, f"({again.copies(counted)})"), piece)
            changes = DUCKDB.consolidated(found, select.columns)
            if number:
                self._rows_of(f"INSERT INTO {made} {changes}")
            else:
                self._temporary(made, changes)
            while len(self._evaluated) > registered:
                self._run.unregister(self._evaluated.pop())
        if not self._whole:
            self._add(again.state, delta)
        return made

    def _timed(self, timing: Timing, rows: str) -> str:
        """Let rows pass while their time lasts."""
        table, moments = timing.state.table, self._moments
        delta = self._temporary(f"{table}_delta", timing.delta(rows))
        made = self._temporary(f"{table}_out", timing.passing(delta, moments))
        self._add(timing.state, f"(SELECT * FROM {delta} WHERE {timing.pending(moments.last)})")
        due, source = self._due.get(table, EVER), delta
        if due <= moments.last:
            self._rows_of(timing.over(moments.last))
            due, source = EVER, table
        self._due[table] = min(due, self._number(timing.due(source, moments.last)))
        return made

    def _join_sides(self, join: Join, rows: Sequence[str]) -> str:
        deltas = []
        for number, (side, source) in enumerate(zip(join.sides, rows, strict=True)):
            known = f"({join.known(number, source)})"
            deltas.append(self._temporary(f"{side.table}_delta", side.delta(known)))
            if number == 1 and join.matched is not None:
                keys = self._through(join.matched, known)
                both = f"SELECT * FROM {deltas[1]} UNION ALL BY NAME {join.unmatched(keys)}"
                deltas[1] = self._temporary(f"{side.table}_both", both)
        adding = list(zip((side.state for side in join.sides), deltas, strict=True))
        return self._moved(join.sides[0].table, adding, lambda: join.out(*deltas), join.contents)

    def _grouped(self, groups: _Groups, rows: str) -> str:
        """Bring changes through groups, and through what is kept beside their sums."""
        sums, values = groups.sums, dict[int, str]()
        if groups.once or groups.beside:
            rows = self._temporary(f"{sums.table}_rows", f"SELECT * FROM {rows}")
        delta = self._temporary(f"{sums.table}_delta", sums.delta(rows))
        if groups.once:
            once = {
                number: self._through(stage, f"(SELECT * FROM {rows} WHERE {groups.there(number)})")
                for number, stage in groups.once.items()
            }
            delta = self._temporary(f"{sums.table}_with", groups.with_once(delta, once))
        none = ""
        if not sums.state.keys and not self._begun:
            self._rows_of(f"INSERT INTO {sums.table} {sums.state.row('0')}")
            if not self._whole:  # the row of no rows is there from the first tick on
                least = self._number(f"SELECT least(min(t), {self._upper - 1}) FROM {delta}")
                told = sums.contents(least, beside=dict.fromkeys(groups.beside, "SELECT NULL AS v"))
                none = f"SELECT * FROM {self._temporary(f'{sums.table}_none', told)} UNION ALL "
        adding: list[tuple[State, str]] = [(sums.state, delta)]
        fronts = [each for each in groups.beside.values() if isinstance(each, Extreme)]
        for number, each in groups.beside.items():
            own = self._temporary(f"{each.state.table}_delta", each.delta(rows))
            adding.append((each.state, own))
            if self._whole:
                continue
            now = self._now(each, own, delta) if isinstance(each, Extreme) else own
            values[number] = each.values(now, delta)
            if isinstance(each, Extreme):
                adding.append((each.front, f"({each.kept(now)})"))
        return self._moved(
            sums.table, adding,
            lambda: f"{none}SELECT * FROM ({sums.out(delta, beside=values, single=self._single)})",
            lambda tick: sums.contents(tick, beside={n: each.contents() for n, each in groups.beside.items()}),
            fronts,
        )  # fmt: skip

    def _first(self, first: First, rows: str) -> str:
        delta = self._temporary(f"{first.state.table}_delta", first.delta(rows))
        adding = [(first.state, delta)]
        now = "" if self._whole else self._now(first, delta, delta)
        if now:
            adding.insert(0, (first.front, f"({first.kept(now)})"))
        return self._moved(first.state.table, adding, lambda: first.out(now, delta), first.contents, [first])

    def _now(self, front: Front, delta: str, touched: str) -> str:
        """Return the fronts of touched keys with a delta, each long enough."""
        name = f"{front.state.table}_now"
        self._temporary(name, front.now(delta, touched))
        lacking = f"{front.state.table}_lacking"
        gone = self._number(f"SELECT count(*) FROM {delta} WHERE n < 0")  # else no front becomes shorter
        if gone and self._temporary_rows(lacking, front.lacking(name)):
            self._add(front.front, f"({front.refilled(lacking, delta)})", joins=False)
            self._temporary(name, front.now(delta, touched))
        return name

    def _through(self, stage: Counts, source: str) -> str:
        """Bring changes through a stage."""
        delta = self._temporary(f"{stage.table}_delta", stage.delta(source))
        return self._moved(
            stage.table, [(stage.state, delta)], lambda: stage.out(delta, single=self._single), stage.contents
        )

    def _moved(
        self,
        table: str,
        adding: Sequence[tuple[State, str]],
        changes: Callable[[], str],
        contents: Callable[[int], str],
        fronts: Sequence[Front] = (),
    ) -> str:
        """Add deltas to states and return what follows: the changes, or, of a tick of which no more comes, all.

        While `more` of one tick comes deltas are only added.
        """
        made = f"{table}_out"
        if not self._whole:
            self._temporary(made, changes())
        for state, source in adding:
            self._add(state, source)
        if self._whole:
            for each in () if self._more else fronts:
                self._add(each.front, f"({each.built()})")
            self._temporary(made, self._told(contents(self._upper - 1)))
        return made

    def _told(self, contents: str) -> str:
        return f"SELECT * FROM ({contents}) LIMIT 0" if self._more else contents

    def _check(self, growth: Growth, source: str) -> None:
        """DuckDB's own limit does not count texts that it is making."""
        if growth.grows:
            text = "{} * coalesce(sum(strlen(CAST({} AS VARCHAR))), 0)"
            sizes = [text.format(times, DUCKDB.quoted(name)) for name, times in growth.texts.items()]
            made = ", ".join([*sizes, f"{growth.literals_bytes} * count(*)"])
            growth.check(self._number(f"SELECT CAST(list_sum([{made}]) AS HUGEINT) FROM {source}"))

    def _add(self, state: State, source: str, *, joins: bool = True) -> None:
        table = state.table
        added = self._number(f"INSERT INTO {table} SELECT {state.names} FROM {source}")
        rows = self._rows[table] = self._rows.get(table, 0) + added
        if joins and rows > self._limits.get(table, JOINED_ROWS):
            self._join(state)

    def _join(self, state: State) -> None:
        """Make one row of all rows of a key."""
        table = state.table
        rows = self._rows[table] = self._number(f"CREATE TABLE {table}_joined AS {state.joined()}")
        self._rows_of(f"DROP TABLE {table}")
        self._rows_of(f"ALTER TABLE {table}_joined RENAME TO {table}")
        self._limits[table] = max(JOINED_ROWS, 2 * rows)

    def _temporary(self, name: str, select: str) -> str:
        self._temporary_rows(name, select)
        return name

    def _temporary_rows(self, name: str, select: str) -> int:
        return self._number(f"CREATE OR REPLACE TEMP TABLE {name} AS {select}")

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


class _Select:
    """A SELECT of a plan over a relation, whose name is to be put in."""

    def __init__(self, select: Select) -> None:
        text = translated(select.sql).replace("{", "{{").replace("}", "}}")
        self.sql = f"WITH {INPUT} AS (SELECT * FROM {{}}) {text}"
        self.growth = growth_of(select.sql)
        self.plain, self.columns = select.sql, select.columns


class _Groups:
    """Sums of groups, and what their other aggregates need."""

    def __init__(self, table: str, group: Group, columns: Sequence[Column]) -> None:
        self.sums = Sums(table, group, columns)
        self.once, self.beside = beside(table, group, columns)
        self._arguments = [columns[a.argument].name if a.argument is not None else "" for a in group.aggregates]

    def there(self, number: int) -> str:
        """The condition that an aggregate has a value."""
        return f"{DUCKDB.quoted(self._arguments[number])} IS NOT NULL"

    def with_once(self, delta: str, once: Mapping[int, str]) -> str:
        """SELECT a delta and how many values of aggregates, by their numbers, are there that were not."""
        state = self.sums.state
        by = listed(state.key_names, "t")
        keys = listed(state.key_names, f"{TIME} AS t")
        parts = [f"SELECT {keys}, {DIFF} AS a{number} FROM {changes}" for number, changes in once.items()]
        sums = [f"CAST(coalesce(sum({name}), 0) AS {kind}) AS {name}" for name, kind in state.sums]
        every = " UNION ALL BY NAME ".join([f"SELECT * FROM {delta}", *parts])
        return f"SELECT {by}, {listed(sums)} FROM ({every}) GROUP BY {by}"

    @property
    def states(self) -> list[State]:
        """All of them."""
        fronts = [each.front for each in self.beside.values() if isinstance(each, Extreme)]
        return [self.sums.state, *(each.state for each in (*self.once.values(), *self.beside.values())), *fronts]


class _Part:
    """One SELECT: what it makes of rows, and its stages."""

    def __init__(self, plan: Plan, prefix: str) -> None:
        self.sides = [(side.table, _Select(side.select)) for side in plan.sides]
        first, *others = [side.select.columns for side in plan.sides]
        self.join = Join(prefix, plan) if others else None
        self.again = Again(f"{prefix}_again", first, plan.keys) if plan.keys and not others else None
        self.joined = _Select(plan.rows) if plan.rows is not None else None
        self.final = _Select(plan.final) if plan.final is not None else None
        source = plan.rows if plan.rows is not None else plan.sides[0].select
        last = plan.final if plan.final is not None else source
        self.groups = _Groups(f"{prefix}_groups", plan.group, source.columns) if plan.group is not None else None
        self.once = Counts(f"{prefix}_once", last.columns, Counts.ONCE) if plan.distinct else None
        self.first = First(f"{prefix}_first", last.columns, plan.top) if plan.top is not None else None
        stages = [
            *(self.join.sides if self.join is not None else ()),
            self.join and self.join.matched,
            self.once,
            self.again,
        ]
        self.timing = Timing(f"{prefix}_timed", source.columns) if plan.timed else None
        stages.append(self.timing)
        self.states = [each.state for each in stages if each is not None]
        self.states += self.groups.states if self.groups is not None else []
        self.states += [self.first.state, self.first.front] if self.first is not None else []
