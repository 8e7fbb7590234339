"""One process that keeps a script's views up to date, and takes over from another (docs/specs/compute.md 11.2)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pavane.dataflow.flow import ViewFlow
from pavane.dataflow.log import Log
from pavane.dataflow.ports import Engine, EngineError, Script, View
from pavane.dataflow.runner import Runner
from pavane.dataflow.sink import ChainSink
from pavane.dataflow.source import LogSource
from pavane.dataflow.ticks import Ticks
from pavane.waltz.errors import OutcomeUnknown, Unavailable

ENGINE_FAILURES_MAX = 3
ENGINE_FAILURES_S = 120.0
"""So many failures in so long are no accident."""
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
    """Keeps the views of a script up to date until it is cancelled or fenced by a later one.

    After a failure of the engine or the log all is made anew, and the views are built again; the chains do not notice.
    """

    def __init__(
        self, log: Log, script: Script, place: Place, engine: Callable[[], Engine], tick_s: float, clocks: Clocks
    ) -> None:
        self._log = log
        self._script = script
        self._place = place
        self._make_engine = engine
        self._tick_s = tick_s
        self._clocks = clocks
        self._failures: deque[float] = deque(maxlen=ENGINE_FAILURES_MAX)
        self.source = LogSource(log)
        self.runner: Runner | None = None
        self.token: tuple[int, int] | None = None

    async def run(self, moved: Callable[[Runner], None], trouble: Callable[[str], None]) -> None:
        """Keep the views, through outages of the log. `moved` is called after each step, `trouble` before each new try.

        Raises `Fenced`, `EngineError` where engines fail again and again, `EntryError`.
        """
        while True:
            engine = await asyncio.to_thread(self._make_engine)
            try:
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
                await asyncio.to_thread(engine.close)

    async def _keep(self, engine: Engine, moved: Callable[[Runner], None]) -> None:
        bound = sorted({partition for table in self._script.tables for partition in table.partitions})
        ticks = Ticks(self._log, self._place.ticks, bound, self._clocks.now_ms)
        if self.token is None:
            before = await ticks.rank()
            self.token = max(before.generation, 1), before.epoch + 1

        def sink(view: View) -> ChainSink:
            clocks = self._clocks
            return ChainSink(self._log, self._place.views, self._place.ticks, view, clocks.now_ms, clocks.make_id)

        sinks = {view.name: sink(view) for view in self._script.views}
        runner = Runner(self._script, ticks, self.source, sinks, lambda view: ViewFlow(view, engine))
        await runner.open()
        await ticks.fence(self.token)
        await runner.allow(self.token)
        self.runner = runner
        while True:
            begun = self._clocks.steady_s()
            await ticks.mint()
            if await runner.step():
                moved(runner)
            await asyncio.sleep(max(0.0, begun + self._tick_s - self._clocks.steady_s()))
