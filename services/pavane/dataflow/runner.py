"""Keeps the views of a script up to date: reads ticks and rows, feeds chains (docs/specs/compute.md 16.3).

Nothing is kept between two starts. A view is built from the log at the last tick of its chain, so what it wants and
what the chain holds are equal there, and the chain goes on without a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from pavane.dataflow.entries import Token
from pavane.dataflow.ports import (
    CLOCK,
    TIME,
    WALL,
    Binding,
    Builder,
    Flow,
    Script,
    Sink,
    Source,
    SqlView,
    State,
    Table,
    TickLog,
    ViewError,
)
from pavane.dataflow.rows import check_times, table_of
from pavane.dataflow.tracing import Tracing
from pavane.dataflow.types import arrow_schema

TICKS_PER_STEP_MAX = 100
"""A view that is far behind comes nearer in steps of so many ticks, or fewer if the source says so: what has an
order (`min`, LIMIT) looks at the rows of a step once for each of its ticks."""
TOGETHER_TICKS = 100
"""Views whose chains end so near to each other begin at one tick: then the log is read and decoded once for all."""


@dataclass(slots=True)
class Maintained:
    """A view, what it remembers of its inputs, and where it is written."""

    view: SqlView
    sink: Sink
    tables: tuple[Table, ...]
    reads: tuple[Maintained, ...] = ()
    """The views that it reads."""
    readers: list[Maintained] = field(default_factory=list)
    """The views that read it."""
    waiting: dict[str, list[pa.Table]] = field(default_factory=dict)
    """Updates of each view that it reads, which it has not taken yet."""
    state: State | None = None  # None until it is opened
    kept_at: int = 0  # the tick of the state that it began with, 0: none
    as_of: int = 0
    flow: Flow | None = None  # None until it is hydrated
    seen: Binding | None = None  # the flow has all rows up to here
    upper: int = 0  # of the chain: the contents at every tick below are final
    failure: str = ""  # why it stays as it is


class ViewRunner:
    """Keeps the views of some scripts up to date. After an `EngineError` it is to be built anew, with its sinks.

    `opened(script)` makes the state of a script's views; it blocks, so it works in a thread, one flow at a time.
    """

    def __init__(
        self,
        scripts: Sequence[Script],
        ticks: TickLog,
        source: Source,
        sinks: Mapping[str, Sink],
        opened: Callable[[Script], State],
        tracing: Tracing | None = None,
    ) -> None:
        self._scripts = [(script, _maintained(script, sinks)) for script in scripts]
        self.views = tuple(each for _, views in self._scripts for each in views)
        self._ticks = ticks
        self._source = source
        self._opened = opened
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

    @property
    def due_ms(self) -> int | None:
        """The wall time from which on a tick changes some view though nothing came; None: nothing waits for time."""
        flows = [each.flow.due_ms for each in self.views if each.flow is not None and not each.failure]
        return min((due for due in flows if due is not None), default=None)

    async def open(self) -> None:
        """Open the states; find where each chain ends, and the ticks from there on. Raises `EngineError`."""
        for script, views in self._scripts:
            state = await asyncio.to_thread(self._opened, script)
            for each in views:
                each.state = state
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

    async def close(self) -> None:
        """Let go of what its views remember."""
        for _, views in self._scripts:
            if (state := views[0].state) is not None:
                await asyncio.to_thread(state.close)

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
        for _, views in self._scripts:
            await self._keep(views)
        alive = [each.seen for each in self.views if not each.failure]
        least = min((seen.tick if seen is not None else 0 for seen in alive), default=self.tick)
        self._bindings = [binding for binding in self._bindings if binding.tick >= least]
        self._stepped = True
        self._source.forget()
        return moved

    async def _keep(self, views: Sequence[Maintained]) -> None:
        """Make a checkpoint when it is time, and all that the views were up to there is in their chains: no view will
        ever be asked for a tick before it."""
        state = views[0].state
        alive = [each for each in views if not each.failure]
        if state is None or not state.due or any(each.flow is None for each in alive):
            return
        for each in alive:
            if each.seen is not None and each.upper <= each.seen.tick:
                each.upper = await each.sink.advance(at_once=True)
        at = {each.view.name: each.seen for each in alive if each.seen is not None}
        least = min((each.upper for each in alive), default=0)
        if at and all(binding.tick < least for binding in at.values()):
            await asyncio.to_thread(state.checkpoint, at)

    async def _bring(self, each: Maintained) -> bool:
        """Bring a view some ticks further; return whether there were any."""
        _check_reads(each)
        if each.flow is None:
            return await self._hydrate(each)
        reached = each.seen.tick if each.seen is not None else 0
        due = [binding for binding in self._bindings if binding.tick > reached][:TICKS_PER_STEP_MAX]
        if not due:
            return False
        partitions = _partitions([each])
        seen = each.seen.next if each.seen is not None else {}
        ends = await self._source.reach(seen, _of(partitions, due[-1].next))
        fitting = [binding for binding in due if all(binding.next.get(p, 0) <= end for p, end in ends.items())]
        if fitting:
            await self._step(each, each.flow, fitting)
            return True
        async for piece, whole in self._pieces(partitions, seen, due[0]):
            await self._step(each, each.flow, [piece], whole=whole)
        return True

    async def _pieces(
        self, partitions: Iterable[int], known: Mapping[int, int], upto: Binding
    ) -> AsyncIterator[tuple[Binding, bool]]:
        """Yield up to where a step takes the rows of a tick, until it has them all, and whether it has."""
        wanted = _of(partitions, upto.next)
        while (known := await self._source.reach(known, wanted)) != wanted:
            yield Binding(upto.tick, known, upto.wall_ms), False
        yield upto, True

    async def _hydrate(self, first: Maintained) -> bool:
        """Build a view, and those behind it that begin at the same tick: take all rows up to there, in pieces that are
        all of this tick."""
        start = self._start(first)
        if start is None:
            return False
        group = self._beside(first, start)
        flows = [await self._begun(each, start) for each in group]
        fed = [each for each, flow in zip(group, flows, strict=True) if not _builds(flow)]
        partitions = _partitions(fed)
        before = [each.seen for each in fed]
        known = {p: min(b.next.get(p, 0) if b is not None else 0 for b in before) for p in partitions}
        async for piece, whole in self._pieces(partitions, known, start):
            for each, flow in zip(group, flows, strict=True):
                try:
                    if not each.failure and (whole or not _builds(flow)):
                        _check_reads(each)
                        seen = each.seen.next if each.seen is not None else {}
                        ends = {p: max(end, seen.get(p, 0)) for p, end in piece.next.items()}
                        due = [Binding(start.tick, ends, start.wall_ms)]
                        await self._step(each, flow, due, whole=whole)
                except ViewError as error:
                    _failed(each, error)
        for each, flow in zip(group, flows, strict=True):
            each.flow = flow
        return True

    async def _begun(self, each: Maintained, start: Binding) -> Flow:
        """Return the state of a view: what was kept of it, if that is of this log, or nothing yet."""
        assert each.state is not None  # noqa: S101 - `open` came before
        flow = each.state.flow(each.view)
        if flow.at is not None and not await self._usable(each, flow.at, start):
            await asyncio.to_thread(flow.forget)
        if flow.at is not None:
            each.seen, each.kept_at = flow.at, flow.at.tick
            for read in each.reads:  # what it was then is in the state already
                del each.waiting[read.view.name][0]
            contents = await asyncio.to_thread(flow.contents, start.tick)
            for reader in each.readers:
                reader.waiting[each.view.name].append(contents)
            each.sink.desire(contents, 0)
        return flow

    async def _usable(self, each: Maintained, at: Binding, start: Binding) -> bool:
        """Whether the ticks are those of the state, none is asked for before it, and whom the view reads tells what
        came since."""
        there = at.tick <= start.tick and all(read.kept_at == at.tick for read in each.reads)
        return there and await self._ticks.at(at.tick) == at

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
        builds = each.flow is None and _builds(flow)
        for table in () if builds else each.tables:
            inputs[table.name] = await self._source.read(table, each.seen, due[-1], due)
        upper = due[-1].tick + 1
        if CLOCK in each.view.tables:
            inputs[CLOCK] = _clock(due)
        for read in each.reads:
            inputs[read.view.name] = _taken(each, read.view, due[0].tick if each.flow is None else 0, upper)
        if builds and isinstance(flow, Builder):
            updates = await asyncio.to_thread(flow.build, due[-1], inputs)
            for table in each.tables:
                await self._source.note(table, flow.bad[table], due[-1])
        else:
            updates = await asyncio.to_thread(
                flow.step, inputs, upper, more=not whole and each.flow is None and not each.kept_at
            )
        try:
            for column in updates.columns:
                check_times(column)
        except OverflowError as error:
            raise ViewError("a value is out of range: a date or time outside of the years 1 to 9999") from error
        for reader in each.readers:
            if not reader.failure:
                reader.waiting[each.view.name].append(updates)
        # A tick of which more pieces come is not complete: if one of them fails, nobody may ever read the others.
        each.sink.desire(updates, upper if whole else due[0].tick)
        each.seen = due[-1]
        if self._tracing is not None:
            self._tracing.brought(each.view.name, each.seen.tick, changed=updates.num_rows > 0)


def _partitions(views: Sequence[Maintained]) -> set[int]:
    return {p for each in views for table in each.tables for p in table.partitions}


def _of(partitions: Iterable[int], following: Mapping[int, int]) -> dict[int, int]:
    return {p: following.get(p, 0) for p in partitions}


def _clock(due: Sequence[Binding]) -> pa.Table:
    ticks = pa.array([binding.tick for binding in due], pa.uint64())
    return pa.table({TIME: ticks, WALL: pa.array([binding.wall_ms for binding in due], pa.int64())})


def _builds(flow: Flow) -> bool:
    return isinstance(flow, Builder) and flow.builds


def _check_reads(each: Maintained) -> None:
    for read in each.reads:
        if read.failure:
            raise ViewError(f"the view {read.view.name}, which it reads, failed: {read.failure}")


def _failed(each: Maintained, error: ViewError) -> None:
    each.failure = str(error)
    each.waiting.clear()


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


def _taken(each: Maintained, read: SqlView, lower: int, upper: int) -> pa.Table:
    """Take the updates of a view that its reader is to have below `upper`; those before `lower` happened then."""
    whole = pa.concat_tables([table_of((), arrow_schema(read.columns)), *each.waiting[read.name]])
    due = pc.less(whole.column(TIME), upper)
    each.waiting[read.name] = [whole.filter(pc.invert(due))]
    taken = whole.filter(due)
    place = taken.schema.get_field_index(TIME)
    times = pc.max_element_wise(taken.column(TIME), pa.scalar(lower, pa.uint64()))
    return taken.set_column(place, taken.schema.field(place), times)
