"""Controllers and replicas of two generations, with their catalog, tick log, chains and network, from one seed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pavane.compute.core.controller import Send
from pavane.compute.core.leading import Outcome
from pavane.compute.wire import (
    CreateInstance,
    CreateTimely,
    DataflowDescription,
    Epoch,
    IndexExport,
    IndexImport,
    MaterializedView,
    Response,
    SinkExport,
    SourceImport,
    Token,
)
from tests.sim.compute.controller import Controller
from tests.sim.compute.replica import Replica
from tests.sim.kit.scheduler import Scheduler
from tests.sim.kit.seeds import holds

TROUBLE_S = 4.0
CALM_S = 15.0
DEFINITIONS_MAX = 5
LOG = (SourceImport("log"),)


@dataclass
class Chain:
    upper: int
    begins: int
    position: int = 0
    rank: Token | None = None
    values: list[int] = field(default_factory=list)


@dataclass
class Connection:
    controller: Controller
    replica: str
    epoch: Epoch
    stream: int = 0
    process: Replica | None = None
    down: bool = False
    to_replica: float = 0.0
    to_controller: float = 0.0


class World:
    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        self.rng = self.scheduler.rng
        self.calm = False
        self.values = [0]
        self.tick_rank: Token | None = None
        self.token: Token | None = None
        self.revision = 0
        self.definitions: dict[str, tuple[DataflowDescription, ...]] = {}
        self.boots: dict[int, int] = {}
        self.chains: dict[str, Chain] = {}
        self.told: dict[str, int] = {}
        self.answers = 0
        self.subscribes = 0
        self.replicas = self.rng.choice((1, 1, 2))
        self.connections: dict[int, Connection] = {}
        self.processes: dict[tuple[int, str], Replica] = {}
        self.controllers = {1: Controller(self, 1)}
        self._defined = 0

    # ---- network

    def soon(self, call: Callable[[], None]) -> None:
        self.scheduler.later(self.rng.choice((0.001, 0.005, 0.02, 0.1)) * self.rng.random(), call)

    def dial(self, controller: Controller, replica: str) -> None:
        if not controller.alive:
            return
        epoch = controller.core.connect(replica)
        number = len(self.connections)
        connection = self.connections[number] = Connection(controller, replica, epoch)
        self.soon(lambda: self._open(number, connection))

    def _open(self, number: int, connection: Connection) -> None:
        key = (connection.controller.generation, connection.replica)
        process = self.processes.get(key)
        if process is None or not process.alive:
            process = self.processes[key] = Replica(self, *key)
        connection.process, connection.stream = process, process.core.open()
        process.peers[connection.stream] = number
        process.receive(connection.stream, CreateTimely(connection.epoch, bytes(16)))
        if not process.core.greeted(connection.stream):
            return
        process.receive(connection.stream, CreateInstance("compute", connection.controller.generation))
        controller = connection.controller
        if controller.alive:
            controller.carry_out(controller.core.opened(connection.replica, connection.epoch))

    def command(self, controller: Controller, send: Send) -> None:
        for connection in self.connections.values():
            mine = connection.controller is controller and connection.replica == send.replica
            if mine and connection.epoch == send.connection and not connection.down and connection.process is not None:
                process, stream = connection.process, connection.stream
                connection.to_replica = max(connection.to_replica, self.scheduler.time + self.rng.random() * 0.02)
                receive = partial(process.receive, stream, send.command)
                self.scheduler.schedule(connection.to_replica, receive)

    def respond(self, number: int, response: Response) -> None:
        connection = self.connections[number]
        controller = connection.controller
        connection.to_controller = max(connection.to_controller, self.scheduler.time + self.rng.random() * 0.05)

        def deliver() -> None:
            if controller.alive:
                controller.carry_out(controller.core.receive(connection.replica, connection.epoch, response))

        self.scheduler.schedule(connection.to_controller, deliver)

    def cut(self, number: int) -> None:
        """Either end learns of it in its own time; what is on its way may still come."""
        connection = self.connections[number]
        if connection.down:
            return
        connection.down = True
        process, controller = connection.process, connection.controller
        if process is not None:
            self.soon(lambda: process.core.close(connection.stream))

        def noticed() -> None:
            if controller.alive:
                controller.carry_out(controller.core.closed(connection.replica, connection.epoch))
                self.dial(controller, connection.replica)

        self.soon(noticed)

    # ---- catalog, tick log, chains

    def put(self, token: Token, revision: int) -> Outcome:
        if self.token is not None and self.token > token:
            return Outcome.FENCED
        if revision != self.revision:
            return Outcome.DEFINITIONS_MOVED
        self.token = token
        return Outcome.PUT

    def fence(self, token: Token) -> int:
        self.tick_rank = token if self.tick_rank is None else max(self.tick_rank, token)
        return len(self.values) - 1

    def mint(self, token: Token) -> bool:
        if token != self.tick_rank:
            return False
        self.values.append(self.values[-1] + self.rng.randrange(10))
        return True

    def append(self, view: MaterializedView, position: int, token: Token, lower: int, values: list[int]) -> None:
        chain = self.chains.get(view.chain)
        if chain is None:
            chain = self.chains[view.chain] = Chain(view.initial_as_of, view.initial_as_of)
        if position != chain.position or lower != chain.upper or (chain.rank is not None and chain.rank > token):
            return
        chain.rank = token
        chain.position += 1
        chain.upper += len(values)
        chain.values += values

    # ---- what happens

    @property
    def leader(self) -> Controller | None:
        return next((each for each in self.controllers.values() if each.leads), None)

    def define(self, leader: Controller) -> None:
        self._defined += 1
        name, n = f"d{self._defined}", self._defined
        view = MaterializedView(f"chain-{n}", initial_as_of=len(self.values) - 1)
        self.definitions[name] = (
            DataflowDescription(0, sources=LOG, index_exports=(IndexExport(f"u{n}a", "t"),)),
            DataflowDescription(
                0, sources=LOG, indexes=(IndexImport(f"u{n}a"),), index_exports=(IndexExport(f"u{n}b", "t"),)
            ),
            DataflowDescription(0, sources=LOG, sink_exports=(SinkExport(f"u{n}c", "t", view),)),
        )
        self.revision += 1
        assert leader.leads

    def define_meanwhile(self) -> None:
        """A user defines something at the worst moment: while the next generation asks for the token."""

        def define() -> None:
            if self.leader is not None:
                self.define(self.leader)

        if self.rng.random() < 0.3:
            self.soon(define)

    def user(self) -> None:
        leader, kind = self.leader, self.rng.random()
        if leader is not None:
            indexes = [id_ for id_, each in leader.core.collections.items() if id_[-1] in "ab" and each.wanted]
            live = [id_ for id_, each in leader.core.collections.items() if id_[0] == "t" and each.wanted]
            if not self.definitions or (kind < 0.06 and self._defined < DEFINITIONS_MAX):
                self.define(leader)
            elif kind < 0.09 and len(self.definitions) > 1:
                del self.definitions[self.rng.choice(sorted(self.definitions))]
                self.revision += 1
            elif kind < 0.2 and len(live) < 3:
                leader.subscribe()
            elif kind < 0.25 and live:
                leader.carry_out(leader.core.drop([self.rng.choice(live)]))
            elif indexes:
                leader.peek(self.rng.choice(indexes))
        self.scheduler.later(self.rng.uniform(0.02, 0.1), self.user)

    def trouble(self) -> None:
        if self.calm:
            return
        kind = self.rng.random()
        open_ = [number for number, each in self.connections.items() if not each.down and each.process is not None]
        if kind < 0.4 and open_:
            self.cut(self.rng.choice(open_))
        elif kind < 0.65 and self.processes:
            process = self.processes[self.rng.choice(sorted(self.processes))]
            process.alive = False
            for number in list(process.peers.values()):
                self.cut(number)
        elif kind < 0.8:
            generation = self.rng.choice(sorted(self.controllers))
            former = self.controllers[generation]
            if former.alive:
                former.alive = False
                self.soon(lambda: self.restart(generation))
        elif 2 not in self.controllers and self.scheduler.time > 1:
            self.restart(2)
        self.scheduler.later(self.rng.expovariate(4), self.trouble)

    def restart(self, generation: int) -> None:
        """Start a controller; the operator permits the second generation to write, again after each start."""
        controller = self.controllers[generation] = Controller(self, generation)
        if generation == 2:
            self.scheduler.later(self.rng.random(), controller.permit)

    def play(self) -> None:
        self.scheduler.later(0.1, self.user)
        self.scheduler.later(0.3, self.trouble)
        self.scheduler.run(TROUBLE_S)
        self.calm = True
        if 2 not in self.controllers:
            self.restart(2)
        answers, tick = self.answers, len(self.values)
        waited = self.scheduler.until(lambda: self._well(answers, tick), CALM_S)
        holds(
            waited is not None, "all goes on", f"{self.answers} answers, {len(self.values)} ticks, token {self.token}"
        )
        self.check()

    def _well(self, answers: int, tick: int) -> bool:
        leader = self.leader
        if leader is None or leader.generation != 2 or self.answers <= answers + 3:
            return False
        views = [each for id_, each in leader.core.collections.items() if id_[-1] == "c" and each.wanted]
        return all(each.write > tick + 2 for each in views)

    def check(self) -> None:
        for name, chain in self.chains.items():
            holds(chain.upper - chain.begins == len(chain.values), "contiguous", name)
            truth = self.values[chain.begins : chain.upper]
            holds(chain.values == truth, "the chain is the truth", name)


def play(seed: int) -> World:
    world = World(seed)
    world.play()
    return world
