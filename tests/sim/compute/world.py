"""Controllers and replicas of two generations, with their catalog, tick log, chains and network, from one seed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from pavane.compute import transport
from pavane.compute.core.controller import Send
from pavane.compute.wire.commands import (
    Command,
    CreateInstance,
    CreateTimely,
    DataflowDescription,
    IndexExport,
    IndexImport,
    MaterializedView,
    SinkExport,
    SourceImport,
)
from pavane.compute.wire.common import Epoch, Token
from pavane.compute.wire.responses import Response
from tests.sim.compute.controller import Controller
from tests.sim.compute.leading import Outcome
from tests.sim.compute.replica import Replica
from tests.sim.kit.scheduler import Scheduler
from tests.sim.kit.seeds import holds
from tests.sim.kit.silence import Line, noticing_grpc

TROUBLE_S = 4.0
SILENT_TROUBLE_S = 15.0  # so long that connections which went silent are given up meanwhile
CALM_S = 15.0
DEFINITIONS_MAX = 5
SILENCES = 0.2  # of the times at which trouble comes
DIRECTIONS = ((0, 1), (0, 1), (0,), (1,))  # in which a connection carries nothing any more
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
    line: Line
    stream: int = 0
    process: Replica | None = None
    to_replica: float = 0.0
    to_controller: float = 0.0


class World:
    """With ``silences`` connections also go silent: nobody is told but by the rules of the product's own channels."""

    def __init__(self, seed: int, *, silences: bool = False) -> None:
        self.scheduler = Scheduler(seed)
        self._silences = silences
        self._rules = (noticing_grpc(dict(transport.CLIENT_OPTIONS)), noticing_grpc(dict(transport.SERVER_OPTIONS)))
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
        line = Line(self.scheduler.schedule, lambda: self.scheduler.time, self._rules, partial(self.end, number))
        connection = self.connections[number] = Connection(controller, replica, epoch, line)
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
            current = mine and connection.epoch == send.connection and not connection.line.over[0]
            if current and connection.process is not None:
                connection.to_replica = max(connection.to_replica, self.scheduler.time + self.rng.random() * 0.02)
                connection.line.sent(0)
                self.scheduler.schedule(connection.to_replica, partial(self._arrive, connection, send.command))

    @staticmethod
    def _arrive(connection: Connection, command: Command) -> None:
        if connection.line.arrives(0) and connection.process is not None:
            connection.process.receive(connection.stream, command)

    def respond(self, number: int, response: Response) -> None:
        connection = self.connections[number]
        controller, line = connection.controller, connection.line
        line.sent(1)
        connection.to_controller = max(connection.to_controller, self.scheduler.time + self.rng.random() * 0.05)

        def deliver() -> None:
            if line.arrives(1) and controller.alive and not (line.half_open and line.over[0]):
                controller.carry_out(controller.core.receive(connection.replica, connection.epoch, response))

        self.scheduler.schedule(connection.to_controller, deliver)

    def cut(self, number: int) -> None:
        """Either end learns of it in its own time; what is on its way may still come."""
        self.end(number, 1)
        self.end(number, 0)

    def end(self, number: int, end: int) -> None:
        """Let an end of a connection end it; the other one hears of that unless it is lost on the way."""
        connection = self.connections[number]
        for told in (1, 0):
            hears = told == end or not connection.line.silent[end]
            if hears and not connection.line.over[told]:
                connection.line.over[told] = True
                self.soon(partial(self._ended, connection, told))

    def _ended(self, connection: Connection, end: int) -> None:
        process, controller = connection.process, connection.controller
        if end == 1 and process is not None:
            process.core.close(connection.stream)
        elif end == 0 and controller.alive:
            controller.carry_out(controller.core.closed(connection.replica, connection.epoch))
            self.dial(controller, connection.replica)

    def silence(self, share: float = 1.0) -> None:
        """Let connections that stand, or some of them, carry nothing any more, in one or both directions."""
        for number in self._open_ones():
            if self.rng.random() < share:
                self.connections[number].line.silence(*self.rng.choice(DIRECTIONS))

    def _open_ones(self) -> list[int]:
        return [n for n, each in self.connections.items() if not any(each.line.over) and each.process is not None]

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
        if self._silences and self.rng.random() < SILENCES:
            self.silence(self.rng.choice((0.5, 1.0)))
        kind = self.rng.random()
        open_ = self._open_ones()
        if kind < 0.4 and open_:
            self.cut(self.rng.choice(open_))
        elif kind < 0.65 and self.processes:
            process = self.processes[self.rng.choice(sorted(self.processes))]
            process.alive = False
            for number in list(process.peers.values()):
                self.end(number, 1)
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
        self.scheduler.run(SILENT_TROUBLE_S if self._silences else TROUBLE_S)
        self.calm = True
        if 2 not in self.controllers:
            self.restart(2)
        answers, tick = self.answers, len(self.values)
        waited = self.scheduler.until(lambda: self.well(answers, tick), CALM_S)
        holds(
            waited is not None, "all goes on", f"{self.answers} answers, {len(self.values)} ticks, token {self.token}"
        )
        self.check()

    def well(self, answers: int, tick: int, generation: int = 2) -> bool:
        """Whether a generation leads, has answered more, and its views have come further than a tick."""
        leader = self.leader
        if leader is None or leader.generation != generation or self.answers <= answers + 3:
            return False
        views = [each for id_, each in leader.core.collections.items() if id_[-1] == "c" and each.wanted]
        return all(each.write > tick + 2 for each in views)

    def check(self) -> None:
        for name, chain in self.chains.items():
            holds(chain.upper - chain.begins == len(chain.values), "contiguous", name)
            truth = self.values[chain.begins : chain.upper]
            holds(chain.values == truth, "the chain is the truth", name)


def play(seed: int, *, silences: bool = False) -> World:
    world = World(seed, silences=silences)
    world.play()
    return world
