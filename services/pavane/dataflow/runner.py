"""Keeps the views of a script up to date: reads ticks and rows, feeds chains (docs/specs/compute.md 16.3).

Nothing is kept between two starts. A view is built from the log at the last tick of its chain, so what it wants and
what the chain holds are equal there, and the chain goes on without a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.flow import Latest, Present
from pavane.dataflow.ports import TIME, Binding, Flow, Script, Sink, Source, Table, TickLog, View, ViewError
from pavane.dataflow.rows import table_of
from pavane.dataflow.tracing import Tracing
from pavane.dataflow.types import arrow_schema

TICKS_PER_STEP_MAX = 1000
"""A view that is far behind comes nearer in steps of so many ticks, which bounds what an engine holds."""
HYDRATION_TRANSACTIONS = 5000
"""Of a partition in one step while a view is built from the log, unless the source adds its rows up."""
TOGETHER_TICKS = 100
"""Views whose chains end so near to each other begin at one tick: then the log is read and decoded once for all."""

Token = tuple[int, int]
"""Generation and epoch of a writer, compared left to right."""


@dataclass(slots=True)
class Maintained:
    """A view, what it remembers of its inputs, and where it is written."""

    view: View
    sink: Sink
    tables: tuple[Table, ...]
    reads: tuple[Maintained, ...] = ()
    """The views that it reads."""
    readers: list[Maintained] = field(default_factory=list)
    """The views that read it."""
    waiting: dict[str, list[pa.Table]] = field(default_factory=dict)
    """Updates of each view that it reads, which it has not taken yet."""
    kept: dict[str, Latest | Present] = field(default_factory=dict)
    """Of its tables that have a key, or the column `__diff`: what their rows change."""
    as_of: int = 0
    flow: Flow | None = None  # None until it is hydrated
    seen: Binding | None = None  # the flow has all rows up to here
    upper: int = 0  # of the chain: the contents at every tick below are final
    failure: str = ""  # why it stays as it is


class Runner:
    """Keeps the views of some scripts up to date. After an `EngineError` it is to be built anew, with its sinks.

    `flow(view)` makes the state of a view; a flow blocks, so it works in a thread, one flow at a time.
    """

    def __init__(
        self,
        scripts: Sequence[Script],
        ticks: TickLog,
        source: Source,
        sinks: Mapping[str, Sink],
        flow: Callable[[View], Flow],
        tracing: Tracing | None = None,
    ) -> None:
        self.views = tuple(each for script in scripts for each in _maintained(script, sinks))
        self._ticks = ticks
        self._source = source
        self._flow = flow
        self._tracing = tracing
        self._bindings: list[Binding] = []
        self._stepped = False  # else that no tick was read says nothing

    @property
    def tick(self) -> int:
        """The last tick that was read; 0 before the first."""
        return self._bindings[-1].tick if self._bindings else 0

    @property
    def reached(self) -> int:
        """The tick up to which every view that has not failed has all rows."""
        seen = [each.seen.tick if each.seen is not None else 0 for each in self.views if not each.failure]
        return min(seen, default=self.tick)

    @property
    def built(self) -> bool:
        """Whether the ticks were read and every view that has not failed is built from the log."""
        return self._stepped and (not self.tick or all(each.flow is not None or each.failure for each in self.views))

    async def open(self) -> None:
        """Find where each chain ends, and the ticks from there on."""
        last = await self._ticks.last()
        for each in self.views:
            each.upper = await each.sink.open(max(1, last))
            each.as_of = max(1, each.upper - 1)
        for each in reversed(self.views):  # who is read is there at least as early as who reads it
            for read in each.reads:
                read.as_of = min(read.as_of, each.as_of)
        first = 0
        for each in sorted(self.views, key=lambda view: view.as_of):  # so readers still begin after whom they read
            first = first if first and each.as_of - first <= TOGETHER_TICKS else each.as_of
            each.as_of = first
        await self._ticks.start(min((each.as_of for each in self.views), default=1))

    async def allow(self, token: Token) -> None:
        """Write from now on. Raises `Fenced` if somebody with a greater token does."""
        for each in self.views:
            await each.sink.allow(token)

    async def step(self) -> bool:
        """Read the ticks that came, bring every view up to them, and write; return whether there were any.

        Raises `Fenced` when somebody with a greater token writes, `EngineError`.
        """
        self._bindings += await self._ticks.read_on()
        moved = False
        for each in self.views:
            try:
                while not each.failure and await self._bring(each):
                    moved = True
            except ViewError as error:
                _failed(each, error)
            each.upper = await each.sink.advance()
            if self._tracing is not None:
                self._tracing.written(each.view.name, each.upper)
        alive = [each.seen for each in self.views if not each.failure]
        least = min((seen.tick if seen is not None else 0 for seen in alive), default=self.tick)
        self._bindings = [binding for binding in self._bindings if binding.tick >= least]
        self._stepped = True
        self._source.forget()
        return moved

    async def _bring(self, each: Maintained) -> bool:
        """Bring a view some ticks further; return whether there were any."""
        _check_reads(each)
        if each.flow is None:
            return await self._hydrate(each)
        reached = each.seen.tick if each.seen is not None else 0
        due = [binding for binding in self._bindings if binding.tick > reached][:TICKS_PER_STEP_MAX]
        if due:
            await self._step(each, each.flow, due)
        return bool(due)

    async def _hydrate(self, first: Maintained) -> bool:
        """Build a view, and those behind it that begin at the same tick: take all rows up to there, in pieces that are
        all of this tick."""
        start = self._start(first)
        if start is None:
            return False
        group = self._beside(first, start)
        flows = [self._flow(each.view) for each in group]
        for each in group:
            each.kept = {
                table.name: Latest(table) if table.key else Present()
                for table in each.tables
                if table.key or table.diff
            }
        partitions = {p for each in group for table in each.tables if not table.diff for p in table.partitions}
        pieces = max((start.next.get(p, 0) for p in partitions), default=0) // HYDRATION_TRANSACTIONS + 1
        for piece in range(1, pieces + 1):
            following = {p: end * piece // pieces for p, end in start.next.items()}
            for each, flow in zip(group, flows, strict=True):
                try:
                    if not each.failure:
                        _check_reads(each)
                        due = [Binding(start.tick, following, start.wall_ms)]
                        await self._step(each, flow, due, whole=piece == pieces)
                except ViewError as error:
                    _failed(each, error)
        for each, flow in zip(group, flows, strict=True):
            each.flow = flow
        return True

    def _start(self, each: Maintained) -> Binding | None:
        return next((binding for binding in self._bindings if binding.tick >= each.as_of), None)

    def _beside(self, first: Maintained, start: Binding) -> list[Maintained]:
        """Return the views that can be built together with one; what each reads is among them, or built already."""
        group = [first]
        for each in self.views:
            if each is first or each.flow is not None or each.failure or self._start(each) != start:
                continue
            if all(
                any(read is one for one in group)
                or (read.flow is not None and read.seen is not None and read.seen.tick >= start.tick)
                for read in each.reads
            ):
                group.append(each)
        return group

    async def _step(self, each: Maintained, flow: Flow, due: list[Binding], *, whole: bool = True) -> None:
        if self._tracing is not None:
            self._tracing.began()
        inputs: dict[str, pa.Table] = {}
        for table in each.tables:
            inputs[table.name] = await self._source.read(table, each.seen, due[-1], due)
        upper = due[-1].tick + 1
        for read in each.reads:
            inputs[read.view.name] = _taken(each, read.view, due[0].tick if each.flow is None else 0, upper)
        updates = await asyncio.to_thread(_computed, each, flow, inputs, upper)
        for reader in each.readers:
            if not reader.failure:
                reader.waiting[each.view.name].append(updates)
        # A tick of which more pieces come is not complete: if one of them fails, nobody may ever read the others.
        each.sink.desire(updates, upper if whole else due[0].tick)
        each.seen = due[-1]
        if self._tracing is not None:
            self._tracing.brought(each.view.name, each.seen.tick, changed=updates.num_rows > 0)


def _check_reads(each: Maintained) -> None:
    for read in each.reads:
        if read.failure:
            raise ViewError(f"the view {read.view.name}, which it reads, failed: {read.failure}")


def _failed(each: Maintained, error: ViewError) -> None:
    each.failure = str(error)
    each.waiting.clear()


def _computed(each: Maintained, flow: Flow, inputs: dict[str, pa.Table], upper: int) -> pa.Table:
    for name, kept in each.kept.items():
        inputs[name] = kept.step(inputs[name])
    return flow.step(inputs, upper)


def _maintained(script: Script, sinks: Mapping[str, Sink]) -> list[Maintained]:
    views: dict[str, Maintained] = {}
    for view in script.views:
        tables = tuple(table for table in script.tables if table.name in view.tables)
        reads = tuple(views[name] for name in view.tables if name in views)
        made = views[view.name] = Maintained(view, sinks[view.name], tables, reads)
        for read in reads:
            read.readers.append(made)
            made.waiting[read.view.name] = []
    return list(views.values())


def _taken(each: Maintained, read: View, lower: int, upper: int) -> pa.Table:
    """Take the updates of a view that its reader is to have below `upper`; those before `lower` happened then."""
    whole = pa.concat_tables([table_of((), arrow_schema(read.columns)), *each.waiting[read.name]])
    due = pc.less(whole.column(TIME), upper)
    each.waiting[read.name] = [whole.filter(pc.invert(due))]
    taken = whole.filter(due)
    place = taken.schema.get_field_index(TIME)
    times = pc.max_element_wise(taken.column(TIME), pa.scalar(lower, pa.uint64()))
    return taken.set_column(place, taken.schema.field(place), times)
