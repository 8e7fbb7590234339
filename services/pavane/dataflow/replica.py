"""The engine behind a replica of the compute protocol: dataflows of a controller over a log (docs/specs/compute.md 16).

Requests are noted as they come; one loop reads the ticks that are due, brings every dataflow up to them, writes where
that is allowed, and answers peeks. Everything can be built again from the log, so a failure of the engine or the log
costs time only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from pavane.compute.core.ports import AllowSink, Build, Compact, Drop, Effect, Read, Request, Start, StopReading
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.server import ReplicaServer
from pavane.compute.wire.commands import DataflowDescription, IndexExport, MaterializedView, Peek, SinkExport, Subscribe
from pavane.compute.wire.common import Failure, Rows, Token
from pavane.compute.wire.responses import Blocker
from pavane.dataflow.arrangement import Arrangement
from pavane.dataflow.badrows import BadRows
from pavane.dataflow.description import DescriptionError, script_of
from pavane.dataflow.entries import EntryError
from pavane.dataflow.evaluating import Evaluator
from pavane.dataflow.keeping import ENGINE_FAILURES_MAX, ENGINE_FAILURES_S, RETRY_S, Clocks, Place
from pavane.dataflow.log import Log
from pavane.dataflow.outlets import ChainBehind, Outlet, Subscription, answer
from pavane.dataflow.ports import Engine, EngineError, Fenced, Script
from pavane.dataflow.runner import Maintained, ViewRunner
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.source import LogSource
from pavane.dataflow.ticks import Ticks
from pavane.dataflow.tracing import Tracing
from pavane.dataflow.types import arrow_schema
from pavane.runtime.certificates import Certificates
from pavane.waltz.errors import OutcomeUnknown, Unavailable

KEPT_ROWS = 2048
"""Of a view: fewer updates are not worth adding up."""


@dataclass(slots=True)
class _Dataflow:
    number: int
    description: DataflowDescription
    started: bool = False
    tokens: dict[str, Token] = field(default_factory=dict)
    """To write by, by export."""
    allowed: dict[str, Token] = field(default_factory=dict)
    """Those that the sinks have taken."""
    told: dict[str, int] = field(default_factory=dict)
    """Of each subscribe, across restarts of the engine."""
    runner: ViewRunner | None = None
    outlets: dict[str, Outlet] = field(default_factory=dict)
    failed: bool = False

    @property
    def exports(self) -> dict[str, tuple[str, IndexExport | SinkExport]]:
        """View and export by id."""
        found: dict[str, tuple[str, IndexExport | SinkExport]] = {
            e.id: (e.on, e) for e in self.description.index_exports
        }
        return found | {e.id: (e.from_, e) for e in self.description.sink_exports}

    def of(self, id_: str) -> Maintained | None:
        """The view of an export, once it has all rows up to some tick."""
        if self.runner is None:
            return None
        name = self.exports[id_][0]
        found = next(each for each in self.runner.views if each.view.name == name)
        return found if found.flow is not None and found.seen is not None and not found.failure else None

    def reset(self) -> None:
        """Forget what was built."""
        self.runner = None
        self.outlets.clear()
        self.allowed.clear()


class ReplicaEngine:
    """Maintains the dataflows of one replica, whose protocol is `core`; `serve` puts it behind a port."""

    def __init__(
        self,
        core: ReplicaCore,
        log: Log,
        place: Place,
        engine: Callable[[], Engine],
        interval_s: float,
        clocks: Clocks,
        tracing: Tracing | None = None,
    ) -> None:
        self.core = core
        self._tell: Callable[[Iterable[Effect]], None] = _unserved
        self._log = log
        self._place = place
        self._make_engine = engine
        self._interval_s = interval_s
        self._clocks = clocks
        self._tracing = tracing if tracing is not None and tracing.on else None
        self._source = LogSource(log, self._tracing)
        self._flows: dict[int, _Dataflow] = {}
        self._dropped: list[_Dataflow] = []
        self._reads: dict[bytes, tuple[int, str, Peek]] = {}
        self._asked = asyncio.Event()
        self._failures: deque[float] = deque(maxlen=ENGINE_FAILURES_MAX)

    def carry_out(self, request: Request) -> None:
        """Note what the protocol asks for; the loop does it."""
        match request:
            case Build(flow, description):
                self._flows[flow] = _Dataflow(flow, description)
            case Start(flow):
                self._flows[flow].started = True
            case Drop(flow):
                self._dropped += [self._flows.pop(flow)] if flow in self._flows else []
            case Compact():
                pass  # the core knows how far
            case AllowSink(flow, id_, token):
                self._flows[flow].tokens[id_] = token
            case Read(flow, id_, peek):
                self._reads[peek.uuid] = flow, id_, peek
            case StopReading(uuid):
                self._reads.pop(uuid, None)
            case _:
                return
        self._asked.set()

    async def serve(
        self,
        exit_process: Callable[[int, str], None],
        *,
        host: str,
        port: int,
        listening: Callable[[int], None],
        certificates: Certificates | None = None,
    ) -> None:
        """Listen and work until cancelled; `listening` is told the port. Raises `OSError` for an address in use.

        `exit_process(code, reason)` is called when the protocol demands the end of the process. With `certificates` it
        speaks mutual TLS.
        """
        server = ReplicaServer(self.core, self, exit_process, host=host, port=port, certificates=certificates)
        self._tell = server.carry_out
        await server.start()
        listening(server.port)
        try:
            await self._run()
        finally:
            await server.stop()

    @property
    def built(self) -> bool:
        """Whether each dataflow that has not failed is built from the log."""
        runners = [flow.runner for flow in self._flows.values() if not flow.failed]
        return all(runner is not None and runner.built for runner in runners)

    def _bad_rows(self) -> tuple[Blocker, ...]:
        noted = BadRows.of_source(self._source)
        return (noted.blocker(),) if noted.count else ()

    async def _run(self) -> None:
        evaluator = Evaluator()
        try:
            while True:
                engine: Engine | None = None
                try:
                    engine = await asyncio.to_thread(self._make_engine)
                    await self._work(engine, evaluator)
                except (Unavailable, OutcomeUnknown) as error:
                    self._tell(self.core.blocked((Blocker("LogUnavailable", str(error)), *self._bad_rows())))
                    await asyncio.sleep(RETRY_S)
                except EngineError as error:
                    self._engine_failed(str(error))
                finally:
                    for each in self._flows.values():
                        each.reset()
                    self._dropped.clear()
                    if engine is not None:
                        await asyncio.to_thread(engine.close)
        finally:
            evaluator.close()

    async def _work(self, engine: Engine, evaluator: Evaluator) -> None:
        while True:
            self._asked.clear()
            begun = self._clocks.steady_s()
            while self._dropped:
                if (runner := self._dropped.pop().runner) is not None:
                    await runner.close()
            for each in list(self._flows.values()):
                if each.started and self._flows.get(each.number) is each:
                    await self._bring(each, engine, evaluator)
            if self.core.blockers != (told := self._bad_rows()):
                self._tell(self.core.blocked(told))
            await self._answer(evaluator)
            left = max(0.0, begun + self._interval_s - self._clocks.steady_s())
            try:
                async with asyncio.timeout(left):
                    await self._asked.wait()
            except TimeoutError:
                pass

    async def _bring(self, flow: _Dataflow, engine: Engine, evaluator: Evaluator) -> None:
        """Bring one dataflow up to the last tick, and tell how far it is."""
        try:
            if flow.runner is None:
                flow.runner = await self._opened(flow, engine)
            await self._allow(flow)
            await flow.runner.step()
        except Fenced:
            self._fenced(flow)
            return
        except (DescriptionError, ChainBehind, EntryError) as error:
            self._tell(self.core.broken(flow.number, str(error)))
            flow.started = False
            return
        self._report(flow)
        for name, outlet in list(flow.outlets.items()):
            since = self.core.readable_from(flow.number, [id_ for id_, (on, _) in flow.exports.items() if on == name])
            if outlet.arrangement is not None and since is not None:
                await outlet.arrangement.fold(evaluator, since)

    async def _opened(self, flow: _Dataflow, engine: Engine) -> ViewRunner:
        script = script_of(flow.description)
        bound = sorted({partition for table in script.tables for partition in table.partitions})
        if {self._place.ticks, self._place.views} & set(bound):
            raise DescriptionError(
                f"a table reads partition {self._place.ticks} or {self._place.views}, which is in use"
            )
        ticks = Ticks(self._log, self._place.ticks, bound, self._clocks.now_ms)
        flow.outlets = self._outlets(flow, script)
        runner = ViewRunner([script], ticks, self._source, flow.outlets, engine.open, self._tracing)
        await runner.open()
        return runner

    def _outlets(self, flow: _Dataflow, script: Script) -> dict[str, Outlet]:
        as_of, found = max(1, flow.description.as_of), {}
        place, clocks, home = self._place, self._clocks, Home(self._log, self._place.views)
        for view in script.views:
            exports = [export for name, export in flow.exports.values() if name == view.name]
            chain, initial, reads, subscriptions = None, 0, False, []
            for export in exports:
                connection = None if isinstance(export, IndexExport) else export.connection
                reads = reads or not isinstance(connection, Subscribe)
                if isinstance(connection, MaterializedView):
                    if connection.chain != view.name:
                        raise DescriptionError(f"the chain {connection.chain} must be named as its step, {view.name}")
                    chain = ChainSink(home, place.ticks, view, clocks.now_ms, clocks.make_id)
                    initial = connection.initial_as_of
                elif isinstance(export, SinkExport):
                    subscriptions.append(Subscription(export, as_of, flow.told.get(export.id, 0)))
            arrangement = Arrangement(arrow_schema(view.columns), KEPT_ROWS) if reads else None
            found[view.name] = Outlet(as_of, arrangement, subscriptions, chain, initial)
        return found

    async def _allow(self, flow: _Dataflow) -> None:
        for id_, token in list(flow.tokens.items()):
            if flow.allowed.get(id_) != token:
                back = token.generation - self.core.generation
                await flow.outlets[flow.exports[id_][0]].allow((token.generation, token.epoch, back))
                flow.allowed[id_] = token

    def _fenced(self, flow: _Dataflow) -> None:
        """Another generation ends the process; a later controller of this one will say its token soon."""
        rank = max(outlet.chain.rank for outlet in flow.outlets.values() if outlet.chain is not None)
        self._tell(self.core.fenced(Token(rank.writer, rank.epoch)))

    def _report(self, flow: _Dataflow) -> None:
        assert flow.runner is not None  # noqa: S101 - it has just made a step
        failures = [each for each in flow.runner.views if each.failure]
        if failures and not flow.failed:
            flow.failed = True
            text = "; ".join(f"{each.view.name}: {each.failure}" for each in failures)
            self._tell(self.core.failed(flow.number, Failure("ViewFailed", text)))
        for id_, (name, _) in flow.exports.items():
            view = flow.of(id_)
            if view is None or view.seen is None:
                continue
            seen = view.seen.tick + 1
            outlet = flow.outlets[name]
            self._tell(self.core.progress(flow.number, id_, write=view.upper, input_=seen, computed=seen))
            for each in outlet.subscriptions:
                if each.id == id_ and (batch := each.batch(seen)) is not None:
                    flow.told[id_] = each.told
                    self._tell(self.core.batch(flow.number, id_, *batch))

    async def _answer(self, evaluator: Evaluator) -> None:
        """Answer the peeks whose tick is computed here; others, after a restart of the engine, wait."""
        for uuid, (number, id_, peek) in list(self._reads.items()):
            flow = self._flows.get(number)
            view = flow.of(id_) if flow is not None else None
            if flow is None or view is None or view.seen is None or view.seen.tick < peek.timestamp:
                continue
            arrangement = flow.outlets[flow.exports[id_][0]].arrangement
            if peek.literals or peek.map_filter_project or peek.finishing is not None or arrangement is None:
                text = "this replica answers peeks with all rows: leave out literals, map_filter_project and finishing"
                result: tuple[Rows, ...] | Failure = Failure("Unsupported", text)
            else:
                result = await asyncio.to_thread(answer, arrangement.contents(peek.timestamp), evaluator)
            if self._reads.pop(uuid, None) is not None:
                self._tell(self.core.answer(uuid, result))

    def _engine_failed(self, reason: str) -> None:
        now = self._clocks.steady_s()
        self._failures.append(now)
        if len(self._failures) == ENGINE_FAILURES_MAX and now - self._failures[0] < ENGINE_FAILURES_S:
            self._tell(self.core.engine_failed(reason))


def _unserved(_: Iterable[Effect]) -> None:
    raise RuntimeError("serve the engine before it works")
