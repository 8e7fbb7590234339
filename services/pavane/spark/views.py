"""The state of one view on Spark's executors, and its steps (docs/specs/compute.md 16.3)."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.deltas import Counts, Sums
from pavane.dataflow.plan import Plan
from pavane.dataflow.ports import CLOCK, DIFF, TIME, Binding, Column, Script, SqlView, Table
from pavane.dataflow.rows import table_of
from pavane.dataflow.temporal import EVER
from pavane.dataflow.timing import BEFORE, Moments, Timing, due_ms
from pavane.dataflow.types import arrow_schema
from pavane.spark import stages
from pavane.spark.faults import told_apart
from pavane.spark.runs import Runs, Store
from pavane.spark.stages import SPARK
from pavane.spark.tables import BAD, Counted, Place

Through = Callable[[Runs, str], str]
"""Brings rows through a stage; SELECTs what comes of it."""
NULL, NOTHING = "NULL", "0"
"""What a row of the state holds: every column takes the one, sums of no rows are the other."""
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Part:
    """One SELECT and what it remembers: groups, or distinct rows, or both; else the rows that it lets pass. Before them
    the rows whose time is to come."""

    plan: Plan
    columns: tuple[Column, ...]
    groups: Runs | None = None
    once: Runs | None = None
    rows: Runs | None = None
    timing: Runs | None = None

    @property
    def kept(self) -> list[Runs]:
        return [each for each in (self.groups, self.once, self.rows) if each is not None]

    @property
    def unique(self) -> bool:
        """Whether no two rows of its contents are equal."""
        return bool(self.kept) and (self.kept[-1] is not self.groups or self.plan.final is None)

    def final(self, source: str) -> str:
        """SELECT of rows of groups."""
        return source if self.plan.final is None else stages.over(self.plan.final, source)


@dataclass(slots=True)
class _Relation:
    name: str
    columns: tuple[Column, ...]
    parts: list[_Part] = field(default_factory=list)


class SparkFlow:
    """One view. Executors hold its state; the driver has changes, and what comes of the keys that they touch.

    With `place` executors also read the tables while the view is built. With `keeps` it can be kept.
    """

    def __init__(self, store: Store, script: Script, view: SqlView, place: Place | None, *, keeps: bool) -> None:
        self.at: Binding | None = None
        self.bad: dict[Table, list[tuple[int, int]]] = {}
        self._store = store
        self._name = view.name
        self._place = place
        self._schema = arrow_schema(view.columns)
        self._begun = False
        self._moments = Moments(BEFORE, ())
        self._due = dict[str, int]()  # of each timing, the first moment at which something begins or ends
        self._pieces: dict[str, list[str]] = {}
        self._added: list[tuple[Runs, pa.Table]] = []
        self._labels: dict[str, str] = {}
        self._tables = [table for table in script.tables if table.name in view.tables]
        self._present = {
            table.name: Runs(store, Counts("", table.columns, Counts.NEVER_LESS, SPARK))
            for table in self._tables
            if table.diff
        }
        self._columns = {table.name: table.columns for table in self._tables}
        plan = Plan.decode(view.plan)
        self._relations = [_Relation(each.name, each.columns) for each in plan.inner]
        self._relations.append(_Relation("", view.columns))
        for relation, whole in zip(self._relations, [*(each.plan for each in plan.inner), plan], strict=True):
            last = keeps and relation.name == ""
            relation.parts = [self._part(part, last=last) for part in whole.union or (whole,)]
        self.stages = [*self._present.values()]
        self.stages += [runs for each in self._relations for part in each.parts for runs in part.kept]
        self._timings = [part.timing for each in self._relations for part in each.parts if part.timing is not None]
        self.stages += self._timings

    def _part(self, plan: Plan, *, last: bool) -> _Part:
        first = plan.sides[0].select.columns
        made = _Part(plan, first if plan.final is None else plan.final.columns)
        if plan.group is not None:
            source, inner = plan.sides[0].table, {relation.name for relation in self._relations}
            single = source not in inner and any(each.name == source and not each.diff for each in self._tables)
            made.groups = Runs(self._store, Sums("", plan.group, first, SPARK, single=single))
        if plan.timed:
            made.timing = Runs(self._store, Timing("", first, SPARK))
        if plan.distinct:
            made.once = Runs(self._store, Counts("", made.columns, Counts.ONCE, SPARK))
        if last and not made.kept:
            made.rows = Runs(self._store, Counts("", made.columns, Counts.ALL, SPARK))
        return made

    @property
    def builds(self) -> bool:
        """See `Flow`."""
        return self.at is None and (self._place is not None or not self._tables)

    @property
    def due_ms(self) -> int | None:
        """See `Flow`."""
        return due_ms(self._first_due)

    @property
    def _first_due(self) -> int:
        return min(self._due.values(), default=EVER)

    def open(self, at: Binding, kept: Sequence[Sequence[tuple[str, int, int]]]) -> None:
        """Go on with these runs of its stages. Raises ValueError."""
        for runs, found in zip(self.stages, kept, strict=True):
            for name, rows, check in found:
                runs.open(name, (rows, check))
        self.at, self._begun = at, True
        self._moments = Moments(at.wall_ms * 1000, ())
        self._look_ahead(self._timings)

    def kept(self) -> list[list[tuple[str, int, int]]]:
        """Return the runs of its stages, all that it remembers."""
        for runs in self.stages:
            runs.flush()
        return [[(run.name, run.rows, run.check) for run in runs.runs] for runs in self.stages]

    def forget(self) -> None:
        """Begin with nothing, whatever was kept."""
        if self.at is not None:
            text = (
                "the state of view %s, of tick %d, is thrown away, and built from the log: it is of another log, or "
                "of a tick behind the end of the view's chain"
            )
            _logger.warning(text, self._name, self.at.tick)
        self.at, self._begun = None, False
        self._moments = Moments(BEFORE, ())
        self._due.clear()
        self.close()

    def close(self) -> None:
        """Let go of what executors hold."""
        self._forget_pieces()
        for runs in self.stages:
            runs.drop(runs.runs)
            runs.runs = []

    def _forget_pieces(self) -> None:
        for name in itertools.chain(*self._pieces.values()):
            self._store.forget(name)
        self._pieces.clear()

    def contents(self, tick: int) -> pa.Table:
        """See `Flow`."""
        with told_apart():
            last = self._relations[-1]
            return self._arrow(self._joined(last, [self._told(part, tick) for part in last.parts], contents=True))

    def build(self, start: Binding, inputs: Mapping[str, pa.Table]) -> pa.Table:
        """See `Flow`."""
        assert self._place is not None or not self._tables  # noqa: S101 - the runner asked
        with told_apart():
            inputs = self._timed(inputs)
            known = {name: self._store.put(f"{self._label(name)}_in", table) for name, table in inputs.items()}
            read = [
                Counted(self._store.session, self._place, t, start) for t in self._tables if self._place is not None
            ]
            for each in read:
                name = known[each.table.name] = f"{self._label(each.table.name)}_in"
                columns = [SPARK.quoted(column.name) for column in each.table.columns]
                diff = DIFF if each.table.diff else f"1L AS {DIFF}"
                rows = each.frame.where(f"{BAD} IS NULL").selectExpr(*columns, f"{start.tick}L AS {TIME}", diff)
                rows.createOrReplaceTempView(name)
            found = self._whole(known, start.tick)
            self.bad = {each.table: each.bad() for each in read}
            return found

    def step(self, inputs: Mapping[str, pa.Table], upper: int, *, more: bool = False) -> pa.Table:
        """See `Flow`."""
        with told_apart():
            inputs = self._timed(inputs)
            if not more and not self._pieces:
                return self._tick(inputs, upper)
            for name, table in inputs.items():
                self._pieces.setdefault(name, []).append(self._store.laid_by(table))
            if more:
                return table_of((), self._schema)
            known = {name: self._store.put_again(f"{self._label(name)}_in", self._pieces[name]) for name in inputs}
            found = self._whole(known, upper - 1)
            self._forget_pieces()
            return found

    def _timed(self, inputs: Mapping[str, pa.Table]) -> Mapping[str, pa.Table]:
        """Note the time of a step's ticks; return the other inputs."""
        if self._timings:
            self._moments = Moments.of(inputs, self._moments.last)
        return {name: table for name, table in inputs.items() if name != CLOCK}

    def _look_ahead(self, timings: Sequence[Runs]) -> None:
        """Note when something of the state changes next."""
        for runs in timings:
            assert isinstance(runs.stage, Timing)  # noqa: S101 - it was made so
            ((self._due[runs.label],),) = self._store.session.sql(
                runs.stage.due(runs.rows(), self._moments.last)
            ).collect()

    def _brought(
        self, known: dict[str, str], through: Through, keep: Callable[[str, str], str], *, whole: bool
    ) -> pa.Table:
        """Bring rows, all that there are or changes, through all that there is; `keep` lets SQL know what is made."""
        for name, runs in self._present.items():
            rows = through(runs, known[name])
            known[name] = keep(
                f"{self._label(name)}_there", rows if whole else SPARK.consolidated(rows, self._columns[name])
            )
        rows = ""
        for relation in self._relations:
            made = [self._made(part, known, through) for part in relation.parts]
            rows = self._joined(relation, made, contents=whole)
            if relation.name:
                known[relation.name] = keep(f"{self._label(relation.name)}_rel", rows)
        found = self._arrow(rows)
        self._begun = True
        return found

    @staticmethod
    def _made(part: _Part, known: Mapping[str, str], through: Through) -> str:
        """SELECT what a part makes of what it reads."""
        side = part.plan.sides[0]
        rows = stages.over(side.select, known[side.table])
        if part.timing is not None:
            rows = f"({through(part.timing, rows)})"
        if part.groups is not None:
            rows = part.final(f"({through(part.groups, rows)})")
        for kept in (part.once, part.rows):
            rows = f"({through(kept, rows)})" if kept is not None else rows
        return rows

    # --- built at once, on executors ----------------------------------------------------------------------------------
    def _whole(self, known: dict[str, str], tick: int) -> pa.Table:
        found = self._brought(known, partial(self._filled, tick), self._view, whole=True)
        for runs in self._timings:  # what has begun and never ends was for the contents alone
            runs.keep_needed()
        self._look_ahead(self._timings)
        return found

    def _filled(self, tick: int, runs: Runs, source: str) -> str:
        """Add all of a source to a stage that has nothing yet; SELECT its contents."""
        stage, last = runs.stage, self._moments.last
        if isinstance(stage, Timing):
            runs.needed = stage.pending(last)
            runs.write(stage.to_come(source, last))
            return stage.lasting(tick, runs.rows(), last)
        there = " WHERE n <> 0" if runs.stage.state.keys else ""
        runs.write(f"SELECT * FROM ({runs.stage.delta(source, times=False)}){there}")
        return runs.stage.contents(tick, runs.whole())

    def _told(self, part: _Part, tick: int) -> str:
        """SELECT what a part of the view says, out of its last stage."""
        last = part.kept[-1]
        rows = f"({last.stage.contents(tick, last.whole())})"
        return part.final(rows) if last is part.groups else rows

    # --- changes of some ticks ----------------------------------------------------------------------------------------
    def _tick(self, inputs: Mapping[str, pa.Table], upper: int) -> pa.Table:
        rests = self._begun and self._first_due > self._moments.last
        if rests and not any(table.num_rows for table in inputs.values()):
            return table_of((), self._schema)
        known = {name: self._store.put(f"{self._label(name)}_in", table) for name, table in inputs.items()}
        found = self._brought(known, partial(self._through, upper), self._put, whole=False)
        for runs, delta in self._added:
            runs.add(delta)
        self._added = []
        self._look_ahead([runs for runs in self._timings if self._due[runs.label] <= self._moments.last])
        return found

    def _through(self, upper: int, runs: Runs, source: str) -> str:
        """SELECT what changes in a stage; it is to be added when all was found."""
        if isinstance(runs.stage, Timing):
            return self._passing(runs, runs.stage, source)
        stage, state = runs.stage, runs.stage.state
        delta = self._store.session.sql(stage.delta(source)).toArrow()
        begins = not state.keys and not self._begun
        if not delta.num_rows and not begins:
            return f"SELECT * FROM ({stage.contents(0, f'({state.row(NULL)})')}) WHERE false"
        view = self._store.put(f"{runs.label}_delta", delta)
        if begins:  # the row of no rows is there from the first tick on
            runs.write(state.row(NOTHING))
        self._added.append((runs, delta))
        single = len(pc.unique(delta.column("t"))) <= 1
        found = stage.out(view, runs.touched(delta, view), single=single)
        if not begins:
            return found
        least = min(pc.min(delta.column("t")).as_py() if delta.num_rows else upper, upper - 1)
        return f"{stage.contents(least, f'({state.row(NOTHING)})')} UNION ALL SELECT * FROM ({found})"

    def _passing(self, runs: Runs, timing: Timing, source: str) -> str:
        """SELECT what comes and goes in time; what of the changes is to come is to be added when all was found."""
        last = self._moments.last
        rows = f"SELECT *, {timing.moment(last)} AS due FROM ({timing.delta(source)})"
        delta = self._store.session.sql(rows).toArrow()
        view = self._store.put(f"{runs.label}_delta", delta)
        due = self._due.setdefault(runs.label, EVER)
        state = f"({timing.state.joined(runs.rows())})" if due <= last else f"(SELECT * FROM {view} WHERE false)"
        to_come = delta.filter(pc.is_valid(delta.column("due")))
        runs.needed = timing.pending(last)
        if to_come.num_rows:
            self._added.append((runs, to_come))
            self._due[runs.label] = min(due, pc.min(to_come.column("due")).as_py())
        return timing.passing(view, self._moments, state)

    # --- SQL ----------------------------------------------------------------------------------------------------------
    def _joined(self, relation: _Relation, parts: Sequence[str], *, contents: bool = False) -> str:
        """SELECT the rows of all parts of a relation: all that there is, or changes."""
        rows = " UNION ALL ".join(SPARK.renamed(part, relation.columns) for part in parts)
        alone = contents and len(parts) == 1 and relation.parts[0].unique
        return rows if alone else SPARK.consolidated(rows, relation.columns)

    def _label(self, name: str) -> str:
        """A name of temporary relations: users call theirs anything."""
        return self._labels.setdefault(name, f"v{id(self)}_{len(self._labels)}")

    def _view(self, name: str, select: str) -> str:
        self._store.session.sql(select).createOrReplaceTempView(name)
        return name

    def _put(self, name: str, select: str) -> str:
        return self._store.put(name, self._store.session.sql(select).toArrow())

    def _arrow(self, select: str) -> pa.Table:
        found = self._store.session.sql(select).toArrow()
        schema = table_of((), self._schema).schema
        return found.rename_columns(schema.names).cast(schema)
