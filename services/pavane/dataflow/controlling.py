"""A controller of replicas: owns the definitions, mints ticks, gives the right to write (docs/specs/compute.md 10, 11).

All replicas compute all views, and all may write; the log takes the first of equal batches. So a replica that is gone
is missed by nobody, and comes back by building its views from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pavane.compute.core.collections import Collection
from pavane.compute.core.controller import Answered, ControllerCore, Effect, Quarantined
from pavane.compute.core.replica import KIND
from pavane.compute.link import ReplicaLinks
from pavane.compute.state.as_of import choose_as_of
from pavane.compute.wire.commands import CreateInstance
from pavane.compute.wire.common import Failure, Rows, Token
from pavane.dataflow import badrows
from pavane.dataflow.badrows import BadRows
from pavane.dataflow.description import described
from pavane.dataflow.entries import Data, Rank, decode
from pavane.dataflow.evaluating import QueryError
from pavane.dataflow.keeping import RETRY_S, Clocks, Place
from pavane.dataflow.log import Log
from pavane.dataflow.ports import CLOCK, EngineError, Fenced, Script, SqlView
from pavane.dataflow.sink import ChainSink, Home
from pavane.dataflow.ticks import Ticks
from pavane.runtime.certificates import Certificates
from pavane.waltz.errors import OutcomeUnknown, Unavailable

NEAR_TICKS = 5
"""A generation that is so near to the present may take over."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far a view is: its contents are written at every tick below `upper`; 0 = not yet."""

    view: SqlView
    upper: int
    failure: str


@dataclass(frozen=True, slots=True)
class _Taking:
    """A take-over that has begun: at which tick, and when, if there was somebody to take over from."""

    tick: int
    begun_s: float | None


class Controller:
    """Keeps the views of some scripts up to date on replicas, `host:port` by name, until it is cancelled or fenced.

    `generation` is that of the replicas. It has no files: its boot number is the wall clock in ms, or more where a
    replica has accepted more, so of two controllers the one that came last leads the replicas. With `credentials` it
    speaks mutual TLS to them.
    """

    def __init__(
        self,
        log: Log,
        scripts: Sequence[Script],
        place: Place,
        replicas: Mapping[str, str],
        interval_s: float,
        clocks: Clocks,
        generation: int,
        certificates: Certificates | None = None,
    ) -> None:
        self._log = log
        self._scripts = scripts
        self._place = place
        self._replicas = replicas
        self._interval_s = interval_s
        self._clocks = clocks
        self._generation = generation
        self._ids = {view: f"u{number}" for number, view in enumerate(self._all_views(), 1)}
        self._core = ControllerCore(generation, clocks.now_ms())
        self._links = ReplicaLinks(
            self._core,
            CreateInstance(KIND, generation),
            self._carry_out,
            self._superseded,
            certificates=certificates,
            outbids=True,
        )
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._peeks: dict[bytes, asyncio.Future[tuple[int, tuple[Rows, ...]]]] = {}
        self._timed = any(CLOCK in view.tables for view in self._all_views())
        self._tick = 0
        self._looked = False  # else no tick says nothing
        self._taking: _Taking | None = None
        self._own = Rank()  # by which it writes
        self._fencing = False  # until all chains have it
        self._unfenced: set[str] = set()
        self._position = 0  # of the chains' partition, read up to here for their fences
        self.took_over_s: float | None = None
        """How long nobody could write when it took over from another generation or controller."""
        self.allowed = asyncio.Event()
        """It may write, as soon as its views are near to the present."""
        self.leaves = 0
        """The later generation from which it may take the right to write back."""
        self.leads = False

    @property
    def tick(self) -> int:
        """The last tick that was read; 0 before the first."""
        return self._tick

    @property
    def reached(self) -> int:
        """The tick up to which some replica has computed each view that has not failed."""
        return max(0, min((each.output for each in self._alive()), default=self._tick + 1) - 1)

    @property
    def writes(self) -> bool:
        """Whether it leads, and the views stand in the log at the tick with which it began."""
        return self.leads and self._taking is None

    @property
    def missing(self) -> dict[str, str]:
        """Replicas that do not compute every view now, and why; where there is no tick yet, there is nothing to do."""
        hydrated, idle = self.hydrated, self._looked and not self._tick
        found = {}
        for name in self._replicas:
            if name not in self._core.connected:
                found[name] = "is not connected"
            elif not idle and name not in hydrated:
                found[name] = "builds its views"
        return found

    @property
    def bad_rows(self) -> BadRows:
        """Rows that could not be decoded, by the replica that has met most: all read the same ones."""
        told = [
            BadRows.told(blocker)
            for report in self._core.connected.values()
            for blocker in (report.blockers if report is not None else ())
            if blocker.reason == badrows.REASON
        ]
        return max(told, key=lambda each: each.count, default=BadRows())

    @property
    def connected(self) -> frozenset[str]:
        """Replicas that are connected now."""
        return frozenset(self._core.connected)

    @property
    def hydrated(self) -> frozenset[str]:
        """Replicas that have computed every view that has not failed beyond the tick at which it begins."""
        collections = self._alive()
        return frozenset(
            name
            for name in self._core.connected
            if all(name in c.seen and c.seen[name].output > c.description.as_of for c in collections)
        )

    @property
    def views(self) -> tuple[Position, ...]:
        """Where the views are."""
        failures = self._failures()
        found = []
        for view, id_ in self._ids.items():
            collection = self._core.collections.get(id_)
            written = collection is not None and self.leads and collection.write > collection.description.as_of
            upper = collection.write if collection is not None and written else 0
            found.append(Position(view, upper, failures.get(id_, "")))
        return tuple(found)

    def _failures(self) -> dict[str, str]:
        """Why views stay as they are, by id."""
        return {
            blocker.detail["id"]: blocker.text
            for report in self._core.connected.values()
            for blocker in (report.blockers if report is not None else ())
            if "id" in blocker.detail
        }

    def _alive(self) -> list[Collection]:
        """The views that have not failed."""
        failures = self._failures()
        return [each for id_, each in self._core.collections.items() if id_ not in failures]

    async def rank(self) -> Rank:
        """Return who has the right to write."""
        return await self._ticks().rank()

    async def run(self, moved: Callable[[Controller], None], trouble: Callable[[str], None]) -> None:
        """Keep the views, through outages of log and replicas. `moved` is called after each turn, `trouble` with what
        does not answer. Raises `Fenced`, `EntryError`, and `EngineError` where no replica can compute a dataflow.
        """
        ticks = self._ticks()
        while True:
            try:
                await self._define(ticks)
                break
            except (Unavailable, OutcomeUnknown) as error:
                trouble(str(error))
                await asyncio.sleep(RETRY_S)
        work = [self._links.run(name, address) for name, address in self._replicas.items()]
        tasks: set[asyncio.Future[None]] = {asyncio.ensure_future(each) for each in work}
        tasks |= {asyncio.ensure_future(self._lead(ticks, moved, trouble)), self._ended}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            self.leads = False
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for waiting in self._peeks.values():
                waiting.cancel()

    async def peek(self, view: str, at: int | None = None) -> tuple[int, pa.Table]:
        """Return the rows of a view at a tick, `None` = the last one that is complete, and `__diff`, how often each is
        there; the first replica that answers counts. Waits for a replica. Raises `QueryError`, `SinceAdvanced`.
        """
        uuid = bytes.fromhex(self._clocks.make_id())
        ids = {known.name: id_ for known, id_ in self._ids.items()}
        if view not in ids:
            raise QueryError(f"there is no view {view}; views here: {', '.join(sorted(ids)) or 'none'}")
        answer = self._peeks[uuid] = asyncio.get_running_loop().create_future()
        try:
            self._links.carry_out(self._core.peek(uuid, ids[view], at=at))
            tick, parts = await answer
        finally:
            del self._peeks[uuid]
            self._links.carry_out(self._core.cancel(uuid))
        tables = []
        for part in parts:
            with pa.ipc.open_stream(part.arrow_ipc) as stream:
                tables.append(stream.read_all())
        return tick, pa.concat_tables(tables)

    # ---- turns

    async def _lead(self, ticks: Ticks, moved: Callable[[Controller], None], trouble: Callable[[str], None]) -> None:
        alone = False
        while True:
            begun = self._clocks.steady_s()
            try:
                await self._turn(ticks)
            except (Unavailable, OutcomeUnknown) as error:
                trouble(str(error))
            if not self.connected and not alone:
                trouble(f"no replica answers: {', '.join(self._replicas.values())}")
            alone = not self.connected
            moved(self)
            await asyncio.sleep(max(0.0, begun + self._interval_s - self._clocks.steady_s()))

    async def _turn(self, ticks: Ticks) -> None:
        if self.leads:
            await self._mint(ticks)
        elif self.allowed.is_set():
            await self._take_over(ticks)
        await self._read_on(ticks)
        self._note_written()

    async def _read_on(self, ticks: Ticks) -> None:
        """Tell the core how far the inputs are. Raises `Fenced` when a greater token stands in the tick log."""
        came = await ticks.read_on()
        self._looked = True
        if self.leads:
            ticks.check()
        if came:
            self._tick = came[-1].tick
            inputs = {table.name: self._tick + 1 for script in self._scripts for table in script.tables}
            self._links.carry_out(self._core.advance(inputs))
            if self.leads:
                self._links.carry_out(self._core.tick(self._tick))

    async def _take_over(self, ticks: Ticks) -> None:
        """Fence the tick log and let the replicas write, once nobody has to wait for them."""
        begun = self._clocks.steady_s()
        former = await ticks.rank()
        rank = former.successor(self._generation, self.leaves)
        if rank is None:
            raise Fenced(f"generation {former.writer} mints ticks")
        if former.writer not in (0, self._generation) and not self._near():
            return
        self._own = rank
        await ticks.fence(rank.token)
        await ticks.mint()
        await self._read_on(ticks)
        # A tick before the one that the former leader minted last is never taken for the present.
        self._links.carry_out(self._core.tick(self._tick, self._tick))
        self._position = await self._log.hwm(self._place.views) + 1
        self._unfenced, self._fencing = {view.name for view in self._ids}, former.generation > 0
        self._links.carry_out(self._core.allow_writes(Token(rank.generation, rank.epoch)))
        self._taking = _Taking(self._tick, begun if former.generation else None)
        self.leads = True

    async def _mint(self, ticks: Ticks) -> None:
        """Mint; also at rest once nobody else can write that tick: a script that has changed shows from there. Views
        with `now()` may change at each tick: when, the replicas alone know."""
        fenced = self._fencing and await self._chains_fenced()
        await ticks.mint(at_rest=fenced or self._timed)
        self._fencing = self._fencing and not fenced

    async def _chains_fenced(self) -> bool:
        """Whether the replicas have put our rank into the chain of each view that has not failed."""
        end = await self._log.hwm(self._place.views) + 1
        async for transaction in self._log.read(self._place.views, self._position, end):
            self._position = transaction.id + 1
            entry = decode(transaction.header, transaction.data)
            if entry is None or isinstance(entry, Data):
                continue
            if entry.rank == self._own:
                self._unfenced.discard(entry.chain)
        failures = self._failures()
        return not self._unfenced - {view.name for view, id_ in self._ids.items() if id_ in failures}

    def _note_written(self) -> None:
        """Once the views stand in the log at the tick of the take-over, it is over."""
        taking = self._taking
        if taking is None or any(each.write <= taking.tick for each in self._alive()):
            return
        self._taking = None
        if taking.begun_s is not None:
            self.took_over_s = self._clocks.steady_s() - taking.begun_s

    def _near(self) -> bool:
        return bool(self.hydrated) and all(each.output + NEAR_TICKS > self._tick for each in self._alive())

    async def _define(self, ticks: Ticks) -> None:
        """Begin each script where the chains of its views end."""
        last = max(1, await ticks.last())
        clocks, place, home = self._clocks, self._place, Home(self._log, self._place.views)
        chains = {view.name: ChainSink(home, place.ticks, view, clocks.now_ms, clocks.make_id) for view in self._ids}
        uppers = {name: await chain.open(last) for name, chain in chains.items()}
        begins = {name: chain.begins for name, chain in chains.items()}
        await ticks.start(last)
        ids = {view.name: id_ for view, id_ in self._ids.items()}
        flows = [described(script, ids, last, begins) for script in self._scripts]
        for flow, choice in zip(flows, choose_as_of(flows, {}, uppers, tick=last), strict=True):
            as_of = choice.as_of if choice.as_of is not None else last
            self._links.carry_out(self._core.create(replace(flow, as_of=as_of)))

    def _all_views(self) -> list[SqlView]:
        return [view for script in self._scripts for view in script.views]

    def _ticks(self) -> Ticks:
        tables = (table for script in self._scripts for table in script.tables)
        bound = sorted({partition for table in tables for partition in table.partitions})
        return Ticks(self._log, self._place.ticks, bound, self._clocks.now_ms)

    # ---- what replicas lead to

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Answered(uuid, tick, result):
                waiting = self._peeks.get(uuid)
                if waiting is None or waiting.done():
                    return
                if isinstance(result, Failure):
                    waiting.set_exception(QueryError(result.text or result.code))
                else:
                    waiting.set_result((tick, result))
            case Quarantined(_, reason):
                self._end(EngineError(f"the replicas cannot compute it: {reason}"))
            case _:
                pass  # no subscribe is made here

    def _superseded(self, replica: str) -> None:
        self._end(Fenced(f"another controller of generation {self._generation} leads replica {replica}"))

    def _end(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)
