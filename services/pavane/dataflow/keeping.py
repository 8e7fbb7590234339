"""Keeps views up to date, and takes over from who did before (docs/specs/compute.md 11.2-11.4).

Until it is allowed to write, a keeper reads the ticks that another one mints, and builds the same views beside it. Its
fence in the tick log and in each chain is the moment from which on it writes, and nobody before it does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pavane.dataflow.entries import Rank
from pavane.dataflow.log import Log
from pavane.dataflow.ports import Engine, EngineError, Fenced, Script, SqlView
from pavane.dataflow.runner import ViewRunner
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.source import LogSource
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.tracing import Tracing
from pavane.waltz.errors import OutcomeUnknown, Unavailable

ENGINE_FAILURES_MAX = 3
ENGINE_FAILURES_S = 120.0
"""So many failures in so long are no accident."""
STEPS_BEFORE = 20
"""Up to so many steps bring the views near to the present before the fence, so that nobody waits for them behind it."""
RETRY_S = 1.0
"""After the log did not answer for as long as its client waits."""


@dataclass(frozen=True, slots=True)
class Place:
    """Partitions of the pipeline's own: one for ticks, one for the views' chains."""

    ticks: int
    views: int


@dataclass(frozen=True, slots=True)
class Clocks:
    """What the pipeline asks of the machine: wall clock in ms, a steady clock in s, names that nobody else makes."""

    now_ms: Callable[[], int]
    steady_s: Callable[[], float]
    make_id: Callable[[], str]


class Keeper:
    """Keeps the views of some scripts up to date until it is cancelled or fenced by a later one.

    `generation` is the one it writes for; 0 = that of the one before it. After a failure of the engine or the log
    all is made anew, and the views are built again; the chains do not notice.
    """

    def __init__(
        self,
        log: Log,
        scripts: Sequence[Script],
        place: Place,
        engine: Callable[[], Engine],
        interval_s: float,
        clocks: Clocks,
        generation: int = 0,
        tracing: Tracing | None = None,
    ) -> None:
        self._log = log
        self._scripts = scripts
        self._place = place
        self._make_engine = engine
        self._interval_s = interval_s
        self._clocks = clocks
        self._generation = generation
        self._failures: deque[float] = deque(maxlen=ENGINE_FAILURES_MAX)
        self._rank: Rank | None = None
        self.allowed = asyncio.Event()
        """It may write."""
        self.leaves = 0
        """The later generation from which it may take the right to write back."""
        self.leads = False
        self.took_over_s: float | None = None
        """How long nobody could write when it took over from another one."""
        self._tracing = tracing if tracing is not None and tracing.on else None
        self.source = LogSource(log, self._tracing)
        self.runner: ViewRunner | None = None
        """None until the chains were read."""

    async def rank(self) -> Rank:
        """Return who has the right to write."""
        return await self._ticks().rank()

    async def run(self, moved: Callable[[ViewRunner], None], trouble: Callable[[str], None]) -> None:
        """Keep the views, through outages of the log. `moved` is called after each step, `trouble` before each new try.

        Raises `Fenced`, `EngineError` where engines fail again and again, `EntryError`.
        """
        while True:
            engine: Engine | None = None
            try:
                engine = await asyncio.to_thread(self._make_engine)
                await self._keep(engine, moved)
            except (Unavailable, OutcomeUnknown) as error:
                trouble(str(error))
                await asyncio.sleep(RETRY_S)
            except EngineError as error:
                now = self._clocks.steady_s()
                self._failures.append(now)
                if len(self._failures) == ENGINE_FAILURES_MAX and now - self._failures[0] < ENGINE_FAILURES_S:
                    raise
                trouble(str(error))
            finally:
                self.leads, self.runner = False, None
                if engine is not None:
                    await asyncio.to_thread(engine.close)

    def _ticks(self) -> Ticks:
        tables = (table for script in self._scripts for table in script.tables)
        bound = sorted({partition for table in tables for partition in table.partitions})
        return Ticks(self._log, self._place.ticks, bound, self._clocks.now_ms)

    async def _keep(self, engine: Engine, moved: Callable[[ViewRunner], None]) -> None:
        ticks, clocks, home = self._ticks(), self._clocks, Home(self._log, self._place.views)

        def sink(view: SqlView) -> ChainSink:
            return ChainSink(home, self._place.ticks, view, clocks.now_ms, clocks.make_id)

        sinks = {view.name: sink(view) for script in self._scripts for view in script.views}
        runner = ViewRunner(self._scripts, ticks, self.source, sinks, engine.open, self._tracing)
        await runner.open()
        self.runner = runner
        while True:
            begun = clocks.steady_s()
            if self.allowed.is_set() and not self.leads:
                for _ in range(STEPS_BEFORE):
                    if not await runner.step():
                        break
                await self._take_over(ticks, runner)
                await ticks.mint(at_rest=self.took_over_s is not None)
                moved(runner)
            if self.leads:
                due_ms = runner.due_ms
                await ticks.mint(at_rest=due_ms is not None and due_ms <= clocks.now_ms())
            if await runner.step():
                moved(runner)
            left = max(0.0, begun + self._interval_s - clocks.steady_s())
            await self._pause(left)

    async def _pause(self, left_s: float) -> None:
        """Sleep; the permission to write ends the sleep of who does not lead yet."""
        if self.leads:
            await asyncio.sleep(left_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self.allowed.wait()

    async def _take_over(self, ticks: Ticks, runner: ViewRunner) -> None:
        """Stop every smaller token for good, in the tick log and the chains. Raises `Fenced` if there is a greater."""
        begun = self._clocks.steady_s()
        former = await ticks.rank()
        if self._rank is None:
            self._rank = former.successor(self._generation or max(former.writer, 1), self.leaves)
            if self._rank is None:
                raise Fenced(f"generation {former.writer} mints ticks")
        await ticks.fence(self._rank.token)
        await runner.allow(self._rank.token)
        self.leads = True
        if former.generation:
            self.took_over_s = self._clocks.steady_s() - begun
