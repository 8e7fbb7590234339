"""A replica process: the real core, and an engine whose contents at a tick are the log's running sum."""

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pavane.compute.core.ports import (
    AllowSink,
    Build,
    Compact,
    Configure,
    Drop,
    Effect,
    EndStream,
    ExitProcess,
    Read,
    Start,
    StopReading,
    Wake,
)
from pavane.compute.core.replica import ReplicaCore
from pavane.compute.wire.commands import Command, DataflowDescription, MaterializedView, Subscribe
from pavane.compute.wire.common import Rows, Token
from tests.sim.kit.seeds import holds

if TYPE_CHECKING:
    from tests.sim.compute.world import World

STEP_S = 0.05


@dataclass
class Flow:
    description: DataflowDescription
    started: bool = False
    upper: int = 0
    told: int = 0
    since: dict[str, int] = field(default_factory=dict)
    token: Token | None = None


class Replica:
    def __init__(self, world: "World", generation: int, name: str) -> None:
        self.world = world
        self.generation = generation
        self.name = name
        self.alive = True
        self.core = ReplicaCore(generation)
        self.flows: dict[int, Flow] = {}
        self.peers: dict[int, int] = {}  # stream → connection of the world
        self._step()

    def receive(self, stream: int, command: Command) -> None:
        if self.alive:
            self.carry_out(self.core.receive(stream, command))

    def carry_out(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            match effect:
                case EndStream(stream, code, text):
                    holds(code == "ABORTED" or "stale epoch" in text, "no violation", f"{self.name}: {text}")
                    self.world.end(self.peers[stream], 1)
                case ExitProcess(code, reason):
                    holds(code == 0, "preconditions hold", f"{self.name} exits with {code}: {reason}")
                    self.alive = False
                case Wake(stream):
                    while (response := self.core.outbox(stream).take()) is not None:
                        self.world.respond(self.peers[stream], response)
                case Build(flow, description):
                    self.flows[flow] = Flow(description, upper=description.as_of)
                case Start(flow):
                    self.flows[flow].started = True
                case Drop(flow):
                    del self.flows[flow]
                case Compact(flow, id_, since):
                    self.flows[flow].since[id_] = since
                case AllowSink(flow, _, token):
                    self.flows[flow].token = token
                case Read():
                    self.world.soon(partial(self._answer, effect))
                case Configure() | StopReading():
                    pass

    def _answer(self, read: Read) -> None:
        flow = self.flows.get(read.flow)
        if not self.alive or flow is None:
            return
        tick = read.peek.timestamp
        since = flow.since.get(read.id, flow.description.as_of)
        readable = since <= tick < flow.upper
        value = self.world.values[tick] if readable else -1
        self.carry_out(self.core.answer(read.peek.uuid, [Rows(str(value).encode())]))

    def _step(self) -> None:
        if not self.alive:
            return
        for number, flow in list(self.flows.items()):
            if flow.started and number in self.flows:
                self._advance(number, flow)
        self.world.scheduler.later(STEP_S * self.world.scheduler.rng.uniform(0.5, 2), self._step)

    def _advance(self, number: int, flow: Flow) -> None:
        world, description = self.world, flow.description
        most = len(world.values)
        flow.upper = max(flow.upper, world.scheduler.rng.randint(min(flow.upper, most), most))
        for export in description.index_exports:
            upper = flow.upper
            self.carry_out(self.core.progress(number, export.id, write=upper, input_=upper, computed=upper))
        for sink in description.sink_exports:
            match sink.connection:
                case Subscribe() if flow.upper > flow.told:
                    begin = max(flow.told, description.as_of)
                    first = [(begin, world.values[begin])] if flow.told < description.as_of or not flow.told else []
                    later = range(begin + (1 if first else 0), flow.upper)
                    rows = first + [(tick, world.values[tick] - world.values[tick - 1]) for tick in later]
                    flow.told = flow.upper
                    if flow.upper > description.as_of:
                        self.carry_out(self.core.batch(number, sink.id, flow.upper, Rows(json.dumps(rows).encode())))
                    else:
                        flow.told = 0
                case MaterializedView() as view:
                    self._write(number, flow, sink.id, view)

    def _write(self, number: int, flow: Flow, id_: str, view: MaterializedView) -> None:
        chain = self.world.chains.get(view.chain)
        begins = view.initial_as_of if chain is None else chain.upper
        if flow.description.as_of > begins:
            text = f"{view.chain} is at {begins}, the dataflow begins at {flow.description.as_of}"
            self.carry_out(self.core.broken(number, text))
            return
        if chain is not None and chain.rank is not None and chain.rank.generation > self.generation:
            self.carry_out(self.core.fenced(chain.rank))
            return
        position = 0 if chain is None else chain.position
        lower, upper, token = begins, flow.upper, flow.token
        if token is not None:
            values = self.world.values[lower:upper]
            self.world.soon(lambda: self.world.append(view, position, token, lower, values))
        self.carry_out(self.core.progress(number, id_, write=begins, input_=flow.upper, computed=flow.upper))
