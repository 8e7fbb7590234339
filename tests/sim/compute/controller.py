"""A controller process: the real cores between the simulated catalog, tick log and replicas."""

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pavane.compute.core.controller import Answered, ControllerCore, Effect, Ended, Hang, Send, Updates
from pavane.compute.state.as_of import Stored, choose_as_of
from pavane.compute.wire.commands import DataflowDescription, SinkExport, SourceImport, Subscribe
from pavane.compute.wire.common import Failure
from tests.sim.compute.leading import (
    AllowSinks,
    CaughtUp,
    Exit,
    FenceTicks,
    Leadership,
    Outcome,
    PutToken,
    ReadDefinitions,
)
from tests.sim.compute.leading import Effect as Lead
from tests.sim.kit.seeds import holds

if TYPE_CHECKING:
    from tests.sim.compute.world import World

SYNC_S = 0.1
TICK_S = 0.05
REPLICAS = ("r0", "r1")


class Controller:
    def __init__(self, world: "World", generation: int) -> None:
        self.world = world
        self.generation = generation
        self.alive = True
        boot = world.boots[generation] = world.boots.get(generation, 0) + 1
        self.core = ControllerCore(generation, boot)
        self.lead = Leadership(generation, boot)
        self.caught_up = CaughtUp(allowed_lag=5, stability_s=0.5)
        self.revision = -1
        self.runs: dict[str, tuple[str, ...]] = {}
        self.asked: dict[bytes, tuple[str, int]] = {}  # peek → its collection, and what had been told before
        self.sums: dict[str, int] = {}  # of subscribers
        self._found = False
        for name in REPLICAS[: world.replicas]:
            world.dial(self, name)
        world.soon(self._sync)

    @property
    def leads(self) -> bool:
        return self.alive and self.lead.writes and self.world.token == self.lead.token

    def carry_out(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.world.command(self, effect)
                case Hang(replica, _, reason):
                    holds(False, "no replica is broken", f"{replica}: {reason}")
                case Answered():
                    self._answered(effect)
                case Updates(id_, at_least, upper, rows):
                    news = sum(diff for tick, diff in json.loads(rows.arrow_ipc) if tick >= at_least)
                    self.sums[id_] += news
                    truth = self.world.values[upper - 1]
                    holds(self.sums[id_] == truth, "told once", f"{id_} below {upper}: {self.sums[id_]}, not {truth}")
                case Ended(id_, failure):
                    holds(False, "a subscribe goes on", f"{id_}: {failure}")

    def decide(self, effects: tuple[Lead, ...]) -> None:
        for effect in effects:
            match effect:
                case PutToken():
                    self.world.define_meanwhile()
                    self.world.soon(partial(self._put, effect))
                case FenceTicks():
                    self.world.soon(partial(self._fence, effect))
                case AllowSinks(token, floor):
                    self.carry_out(self.core.tick(floor, floor))
                    self.carry_out(self.core.allow_writes(token))
                    for id_, collection in list(self.core.collections.items()):
                        if id_[-1] in "ab" and collection.wanted:  # users who waited for a leader ask at once
                            self.peek(id_)
                    self._mint()
                case ReadDefinitions():
                    self.revision = -1
                case Exit():
                    self.alive = False

    def permit(self) -> None:
        if self.alive:
            self.decide(self.lead.permitted())

    def _put(self, effect: PutToken) -> None:
        # What was sent takes effect, also when the sender has died meanwhile.
        outcome = self.world.put(effect.token, effect.definitions)
        if self.alive:
            lost = sorted(set(self.world.definitions) - set(self.runs)) if outcome is Outcome.PUT else []
            holds(not lost, "no definition is lost", f"{lost} do not run at {effect.token}")
            self.decide(self.lead.token_put(outcome))

    def _fence(self, effect: FenceTicks) -> None:
        last = self.world.fence(effect.token)
        if self.alive:
            self.decide(self.lead.ticks_fenced(last))

    def _sync(self) -> None:
        """What a watch of the catalog would show, and what follows from it."""
        if not self.alive:
            return
        world = self.world
        self.carry_out(self.core.advance({"log": len(world.values)}))
        if self.revision != world.revision:
            self._run(world.revision)
        if not self._found:
            self._found = True
            self.decide(self.lead.found(world.token, self.revision))
        elif world.token is not None:
            self.decide(self.lead.seen(world.token))
        if self.alive and not self.lead.writes:
            live = {id_: len(world.values) for id_ in self.core.collections}
            names = frozenset(REPLICAS[: world.replicas])
            blockers = self.caught_up.blockers(self.core, live, len(world.values), names, world.scheduler.time)
            self.decide(self.lead.definitions(self.revision, ready=not blockers))
        world.scheduler.later(SYNC_S, self._sync)

    def _run(self, revision: int) -> None:
        world = self.world
        for name in [name for name in self.runs if name not in world.definitions]:
            self.carry_out(self.core.drop(self.runs.pop(name)))
        for name, flows in world.definitions.items():
            if name not in self.runs:
                self._create(name, flows)
        self.revision = revision

    def _create(self, name: str, flows: tuple[DataflowDescription, ...]) -> None:
        world = self.world
        stored = {"log": Stored(0, len(world.values))}
        chains = {chain: each.upper for chain, each in world.chains.items()}
        choices = choose_as_of(flows, stored, chains, tick=len(world.values) - 1)
        for flow, choice in zip(flows, choices, strict=True):
            holds(choice.as_of is not None, "a dataflow starts", choice.reason)
            self.carry_out(self.core.create(replace(flow, as_of=choice.as_of or 0)))
        self.runs[name] = tuple(id_ for flow in flows for id_ in flow.exports)

    def _mint(self) -> None:
        if self.alive and self.world.mint(self.lead.token):
            self.carry_out(self.core.tick(len(self.world.values) - 1))
            self.world.scheduler.later(TICK_S, self._mint)
        elif self.alive and self.world.tick_rank is not None:
            self.decide(self.lead.seen(self.world.tick_rank))

    # ---- users

    def peek(self, id_: str) -> None:
        uuid = self.world.scheduler.rng.randbytes(16)
        self.asked[uuid] = (id_, self.world.told.get(id_, 0))
        self.carry_out(self.core.peek(uuid, id_))

    def subscribe(self) -> None:
        as_of = len(self.world.values) - 1
        self.world.subscribes += 1
        id_ = f"t{self.world.subscribes}"
        self.sums[id_] = 0
        sink = SinkExport(id_, "t", Subscribe())
        sources = (SourceImport("log"),)
        self.carry_out(self.core.create(DataflowDescription(as_of, sources=sources, sink_exports=(sink,))))

    def _answered(self, answer: Answered) -> None:
        id_, before = self.asked.pop(answer.uuid)
        if isinstance(answer.result, Failure):
            holds(answer.result.code == "Dropped", "a peek is answered", f"{id_}: {answer.result}")
            return
        found, truth = int(answer.result[0].arrow_ipc), self.world.values[answer.tick]
        holds(found == truth, "exact", f"{id_} at {answer.tick}: {found}, not {truth}")
        holds(answer.tick >= before, "now never falls", f"{id_} at {answer.tick} after {before}")
        self.world.told[id_] = max(answer.tick, self.world.told.get(id_, 0))
        self.world.answers += 1
