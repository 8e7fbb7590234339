"""A whole log in virtual time, from one seed: servers, storage nodes on disks that forget, metadata, clients, faults.

The cores are those of the product, and so are the files of the storage nodes. What is simulated is what lies between
them. A client appends what it would write if its lock held: the number of the next transaction (waltz.md 16).
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pavane.waltz.core import outputs as o
from pavane.waltz.core.cluster import ClusterView
from pavane.waltz.core.node import Node
from pavane.waltz.core.server import ServerCore
from pavane.waltz.errors import RejectCode
from pavane.waltz.storage import Directory
from pavane.waltz.wire import blobs
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from tests.services.memory_disk import MemoryDisk
from tests.sim.kit.disk import DiskThread
from tests.sim.kit.scheduler import Alarm, Scheduler
from tests.sim.kit.seeds import holds
from tests.sim.waltz.links import DIRECTIONS, ClientSession, Link, rules
from tests.sim.waltz.product import Product

KEY = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
PARTITION, LOCK = 0, (42,)
NODES, SERVERS = ("n0", "n1", "n2"), (1, 2)
TTL_S = 1.0
DELAY_S, LATE_S, LATE_SHARE = (0.0002, 0.003), (0.02, 0.4), 0.02
THINK_S, ANSWER_S = (0.005, 0.05), 1.5


class SimNode:
    """A storage node: its disk outlives its process."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.disk = MemoryDisk()
        self.thread = DiskThread(world.scheduler, self.disk)
        self.links: set[Link] = set()
        self.directory: Directory | None = None
        self.node: Node | None = None
        self._waiting: list[tuple[Link, Any]] = []
        self._busy = False
        self._life = 0
        self._found_damaged = 0

    @property
    def up(self) -> bool:
        return self.node is not None

    @property
    def max_txid(self) -> int:
        files = self.directory.partition(PARTITION) if self.directory is not None else None
        return files.max_txid if files is not None and files.available else -1

    @property
    def mark_is_exact(self) -> bool:
        """Whether it runs, and its mark covers all that it holds."""
        files = self.directory.partition(PARTITION) if self.directory is not None else None
        return files is not None and files.mark >= files.max_txid

    def start(self) -> None:
        if self.node is None:
            product = self.world.product
            size = product.segment_bytes
            self.directory = product.directory(self.disk.folder(), KEY, 1, segment_bytes=size)
            self.directory.assign([PARTITION])
            self.node = Node(self.directory, disk_reserve_bytes=0)
            self._life += 1
            self._found_damaged = self.directory.found_damaged
            self._sync_marks(self._life)

    def stop(self, *, power: bool) -> None:
        """End the process; with ``power`` the machine too, which forgets what was not synced."""
        self.node = self.directory = None
        self._waiting.clear()
        self._busy = False
        self._life += 1
        for link in list(self.links):
            link.node_ended()
        if power:
            self.thread.power_cut()
        else:
            self.thread = DiskThread(self.world.scheduler, self.disk)

    def wipe(self) -> None:
        """Give it an empty disk."""
        self.disk = MemoryDisk()
        self.thread = DiskThread(self.world.scheduler, self.disk)

    def take(self, link: Link, message: Any) -> None:
        if self.node is not None:
            self.node.arrive(message.head)
            self._waiting.append((link, message))
            self._work()

    def _work(self) -> None:
        if self._busy or not self._waiting or self.node is None:
            return
        self._busy = True
        batch, self._waiting = self._waiting, []
        node, life, answers = self.node, self._life, list[Any]()

        def job() -> None:
            answers.extend(node.execute([message for _, message in batch]))

        def done() -> None:
            if life == self._life:
                self._busy = False
                for (link, _), answer in zip(batch, answers, strict=True):
                    link.answer(answer)
                self._work()

        def failed(error: OSError) -> None:
            raise AssertionError(f"{self.name}: {error}")

        self.thread.run(job, done, failed)

    def _sync_marks(self, life: int) -> None:
        if life == self._life and self.directory is not None:
            directory = self.directory
            if not self._busy:
                directory.sync_marks()
            self.tell_of_damage()
            self.world.scheduler.later(0.1, lambda: self._sync_marks(life))

    def tell_of_damage(self) -> bool:
        """Let owners ask again when a read or the scrub has found a copy damaged; whether one has."""
        if self.directory is None or self.directory.found_damaged == self._found_damaged:
            return False
        self._found_damaged = self.directory.found_damaged
        for link in list(self.links):
            link.node_ended()
        return True


class SimServer:
    """A server process and its lease."""

    def __init__(self, world: "World", number: int) -> None:
        self.world, self.number = world, number
        self.core: ServerCore | None = None
        self.links: dict[str, Link] = {}
        self.clients: dict[int, Client] = {}
        self.leased = False
        self.cut_off = False
        """From the metadata store."""
        self._alarm = Alarm(world.scheduler, self._fired)
        self._life = 0

    def start(self) -> None:
        if self.core is None:
            self._life += 1
            product = self.world.product
            self.core = ServerCore(self.number, "sim", 1, policy=product.policy)
            self._dial(self._life)
            self._renew(self._life)

    def stop(self) -> None:
        self.core = None
        self.leased = False
        self._life += 1
        self._alarm.cancel()
        for link in list(self.links.values()):
            link.close()
        clients, self.clients = self.clients, {}
        for connection, client in clients.items():
            if (session := self.world.sessions.get(connection)) is not None:
                session.server_ended()
            else:
                client.lost()

    def call(self, what: Callable[[float, ServerCore], Any]) -> None:
        if self.core is not None:
            what(self.world.now, self.core)
            while self.core is not None and (found := self.core.outputs()):
                for output in found:
                    self._execute(output)
            if self.core is not None:
                self._alarm.arm(self.core.next_timer())

    def hear(self, node: str, message: Any) -> None:
        self.call(lambda now, core: core.storage_response(now, node, message))

    def _fired(self) -> None:
        self.call(lambda now, core: core.handle_timer(now))

    def _dial(self, life: int) -> None:
        if life != self._life:
            return
        for node in self.world.nodes.values():
            blocked = (f"s{self.number}", node.name) in self.world.cuts
            if node.up and node.name not in self.links and not blocked:
                link = Link(self.world, self, node)
                self.links[node.name] = link
                node.links.add(link)
                self.world.scheduler.later(self.world.delay(), link.greet)
        self.world.scheduler.later(self.world.rng.uniform(0.05, 0.3), lambda: self._dial(life))

    def _renew(self, life: int) -> None:
        """Renew the lease, by the server's own clock until 0.9 of it."""
        if life != self._life:
            return
        world = self.world
        if not self.cut_off:
            world.lease(self.number, self._life)
            if not self.leased:
                self.leased = True
                self.call(lambda now, core: core.set_writable(now, writable=True))
            world.tell(self)
            until = world.now + 0.9 * TTL_S
            self._lease_until = until
            world.schedule(until, lambda: self._expire(life, until))
        world.scheduler.later(TTL_S / 3, lambda: self._renew(life))

    def _expire(self, life: int, until: float) -> None:
        if life == self._life and self._lease_until == until and self.leased:
            self.leased = False
            self.call(lambda now, core: core.set_writable(now, writable=False))

    def _execute(self, output: o.Output) -> None:
        world = self.world

        def soon(what: Callable[[], None]) -> None:
            self._later(world.delay(), what)

        match output:
            case o.Send():
                if output.node in self.links:
                    self.links[output.node].ask(output.message)
            case o.Reply():
                if (client := self.clients.get(output.connection)) is not None:
                    client.hears_at = world.arrival(client.hears_at)
                    if (session := world.sessions.get(output.connection)) is not None:
                        session.line.sent(1)
                    world.schedule(client.hears_at, lambda: self._reply(client, output))
            case o.Drain():
                soon(lambda: self._drained(output.connection))
            case o.Hangup():
                if (gone := self.clients.pop(output.connection, None)) is not None:
                    if self.core is not None:
                        self.core.disconnected(world.now, output.connection)
                    if (session := world.sessions.get(output.connection)) is not None:
                        session.server_ended()
                    else:
                        gone.lost()
            case o.ReadMeta():
                soon(lambda: self._read_meta(output))
            case o.WriteMeta():
                soon(lambda: self._write_meta(output))
            case o.WriteAssignment():
                soon(lambda: None if self.cut_off else world.assign(output.version, output.assignment))

    def _reply(self, client: "Client", reply: o.Reply) -> None:
        session = self.world.sessions.get(reply.connection)
        if session is None or session.line.arrives(1):
            client.hear(reply.connection, reply.message)

    def _drained(self, connection: int) -> None:
        self.call(lambda now, core: core.set_connection_writable(now, connection, writable=True))

    def _read_meta(self, asked: o.ReadMeta) -> None:
        world = self.world
        if self.cut_off:
            self._later(0.2, lambda: self._read_meta(asked))
            return
        meta, version = world.meta, world.meta_version

        def answer() -> None:
            self.call(lambda now, core: core.metadata(now, PARTITION, asked.attempt, meta, version))

        self._later(world.delay(), answer)

    def _write_meta(self, asked: o.WriteMeta) -> None:
        world, done = self.world, False
        if not self.cut_off and asked.version == world.meta_version:
            world.meta, world.meta_version = asked.meta, world.meta_version + 1
            done = world.rng.random() > 0.03  # else the answer is lost, and the outcome unknown
        version = world.meta_version

        def answer() -> None:
            self.call(lambda now, core: core.written(now, PARTITION, asked.attempt, done=done, version=version))

        self._later(world.delay() if done else 0.2, answer)

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        """Call unless the process has ended by then."""
        life = self._life
        self.world.scheduler.later(seconds, lambda: what() if life == self._life else None)


@dataclass
class Client:
    """Appends the number of the next transaction under one lock, again and again, wherever the owner is."""

    world: "World"
    id: int
    server: SimServer | None = None
    connection: int = -1
    generation: int = 0
    hwm: int = -1
    first: int = 0
    seq: int = 0
    net_seq: int = 0
    pending: tuple[ReqId, bytes] | None = None
    mounted: bool = False
    turn: int = 0
    says_at: float = 0.0
    hears_at: float = 0.0
    done: bool = False
    sent: dict[ReqId, bytes] = field(default_factory=dict)

    def go(self, turn: int = 0) -> None:
        """Do the next thing, unless something has happened since it was planned."""
        if turn != self.turn or self.done:
            return
        if self.server is None:
            self._connect()
        elif self.mounted:
            self._append()
        self._again(ANSWER_S, self.lost)

    def hear(self, connection: int, message: Any) -> None:
        if connection != self.connection or self.server is None:
            return
        match message:
            case m.FeedBatch():
                holds(message.first_txid == self.hwm + 1, "gap", f"{message.first_txid} follows {self.hwm}")
                for index, item in enumerate(message.items):
                    assert item.data is not None
                    self.world.saw(message.first_txid + index, item.reqid, item.data)
                self.hwm = message.first_txid + len(message.items) - 1
                self._again(ANSWER_S, self.lost)
            case m.MountResponse(state=m.MountState.READY):
                self.mounted = True
                self._think()
            case m.MountResponse(state=m.MountState.CLIENT_AHEAD):
                holds(False, "lost", f"client {self.id} has seen {self.hwm}, the log is shorter")
            case m.MountResponse():
                self.lost()
            case m.AppendAck() if self.pending is not None and message.reqid == self.pending[0]:
                data = self.pending[1]
                holds(int(data) == message.txid, "lock", f"{data!r} became transaction {message.txid}")
                self.world.acknowledged(message.txid, message.reqid, data)
                self.hwm, self.pending = message.txid, None
                self._think()
            case m.LockFailure() if self.pending is not None:
                self.world.refused.add(self.pending[0])
                self.pending = None
                self._mount()
            case m.Reject() if self.pending is not None and message.reqid == self.pending[0]:
                self.world.refused.add(self.pending[0])
                self.lost()
            case m.Reject(code=RejectCode.TRIMMED):
                holds(message.detail > self.hwm + 1, "trimmed", f"{message.detail} would follow {self.hwm}")
                self.first, self.hwm = message.detail, message.detail - 1
                self._mount()
            case m.Reject():
                self.lost()

    def lost(self) -> None:
        """The connection is of no use any more: try again, with whoever is the owner then."""
        if self.server is not None:
            self.world.sessions[self.connection].close()
        self.server, self.mounted, self.pending = None, False, None
        self._again(self.world.rng.uniform(0.02, 0.2), None)

    def _again(self, seconds: float, what: Callable[[], None] | None) -> None:
        self.turn += 1
        turn = self.turn

        def fire() -> None:
            if turn == self.turn:
                if what is None:
                    self.go(turn)
                else:
                    what()

        self.world.scheduler.later(seconds, fire)

    def _think(self) -> None:
        self._again(self.world.rng.uniform(*THINK_S), None)

    def _connect(self) -> None:
        owner = self.world.owner()
        if owner is None or owner.core is None:
            return
        self.server, self.generation = owner, self.world.generation()
        self.net_seq += 1
        self.connection = self.world.connect(owner, self)
        self._mount()

    def _reqid(self) -> ReqId:
        self.seq += 1
        return ReqId(self.id, self.generation, PARTITION, self.seq)

    def _mount(self) -> None:
        self.mounted = False
        self._say(m.MountRequest(self._reqid(), self.hwm, self.net_seq))
        self._again(ANSWER_S, self.lost)

    def _append(self) -> None:
        reqid, data = self._reqid(), b"%d" % (self.hwm + 1)
        self.pending = (reqid, data)
        self.sent[reqid] = data
        self._say(m.AppendIdempotent(reqid, self.hwm, LOCK, (), (), 0, 0, -1, m.FLAG_ACK, data))

    def _say(self, message: Any) -> None:
        server, connection = self.server, self.connection
        assert server is not None

        self.says_at = self.world.say(server, connection, message, self.says_at)


class World:
    """Everything, and the rules that must hold."""

    def __init__(self, seed: int, product: Product | None = None, nodes: tuple[str, ...] = NODES) -> None:
        self.scheduler = Scheduler(seed)
        self.rng = self.scheduler.rng
        self.schedule = self.scheduler.schedule
        self.product = product or Product()
        self.meta: blobs.PartitionMetadata | None = None
        self.meta_version = -1
        self.cuts: set[tuple[str, str]] = set()
        self.log: dict[int, tuple[ReqId, bytes]] = {}
        """What anybody has seen as committed."""
        self.refused: set[ReqId] = set()
        self.faults: deque[str] = deque(maxlen=60)
        self._leases: dict[int, tuple[int, float]] = {}
        self._assignment, self._version, self._cversion = blobs.EMPTY_ASSIGNMENT, 0, 0
        self.sessions: dict[int, ClientSession] = {}
        """Connections of clients."""
        self.rules = rules()
        self.committed_by: Counter[int] = Counter()
        """Appends that each client knows to be committed."""
        self._connections = 0
        self.wanted: tuple[str, ...] = NODES
        """Which nodes are to hold the partition."""
        self.nodes = {name: SimNode(self, name) for name in nodes}
        self.servers = {number: SimServer(self, number) for number in SERVERS}
        self.clients = [Client(self, number) for number in (101, 102)]
        for node in self.nodes.values():
            node.start()
        for server in self.servers.values():
            server.start()
        for client in self.clients:
            client.go()

    @property
    def now(self) -> float:
        return self.scheduler.time

    def delay(self) -> float:
        return self.rng.uniform(*(LATE_S if self.rng.random() < LATE_SHARE else DELAY_S))

    def arrival(self, last: float) -> float:
        return max(last, self.now + self.delay())

    def next_connection(self) -> int:
        self._connections += 1
        return self._connections

    def connect(self, server: SimServer, client: Any) -> int:
        """Connect a client to a server, and return the number of the connection."""
        number = self.next_connection()
        self.sessions[number] = ClientSession(self, server, number, client.lost)
        server.clients[number] = client
        server.call(lambda now, core: core.connected(number, 5))
        return number

    def say(self, server: SimServer, number: int, message: Any, last: float) -> float:
        """Carry a message of a client behind its last one; return when it arrives."""
        line = self.sessions[number].line

        def arrive() -> None:
            if line.arrives(0) and number in server.clients:
                server.call(lambda now, core: core.message(now, number, message))

        line.sent(0)
        at = self.arrival(last)
        self.schedule(at, arrive)
        return at

    def silence(self, share: float = 1.0, *, storage: bool = True) -> None:
        """Let connections that stand, or some of them, carry nothing any more, in one or both directions."""
        lines = [link.line for server in self.servers.values() for link in server.links.values() if storage]
        lines += [session.line for session in self.sessions.values() if not any(session.line.over)]
        for line in lines:
            if self.rng.random() < share:
                line.silence(*self.rng.choice(DIRECTIONS))

    # -- metadata -----------------------------------------------------------------------------------------------

    def lease(self, server: int, life: int) -> None:
        known = self._leases.get(server)
        until = self.now + TTL_S
        self._leases[server] = (life, until)
        if known is None or known[0] != life:
            self._cversion += 1
            self._changed()
        self.schedule(until, lambda: self._end_lease(server))

    def tell(self, server: SimServer) -> None:
        if not server.cut_off:
            view = self.view()
            self.scheduler.later(self.delay(), lambda: server.call(lambda now, core: core.set_view(now, view)))

    def view(self) -> ClusterView:
        servers = {number: blobs.ServerDescriptor(number, "h", number) for number in self._leases}
        return ClusterView(self._assignment, self._version, self._cversion, servers, storage={PARTITION: self.wanted})

    def want(self, nodes: tuple[str, ...]) -> None:
        """Let other nodes hold the partition."""
        self.wanted = nodes
        self._changed()

    def assign(self, version: int, assignment: blobs.PartitionAssignment) -> None:
        if version == self._version:
            self._assignment, self._version = assignment, version + 1
            self._changed()

    def owner(self) -> SimServer | None:
        for server, owned in self.view().owned().items():
            if owned:
                return self.servers[server]
        return None

    def generation(self) -> int:
        return max((owned[0][1] for owned in self.view().owned().values() if owned), default=0)

    def _end_lease(self, server: int) -> None:
        if server in self._leases and self._leases[server][1] <= self.now:
            self.unregister(server)

    def unregister(self, server: int) -> None:
        """Another server has found that nobody listens there: that one does not wait for the end of the lease."""
        if self._leases.pop(server, None) is not None:
            self._cversion += 1
            self._changed()

    def _changed(self) -> None:
        for server in self.servers.values():
            self.tell(server)

    # -- rules --------------------------------------------------------------------------------------------------

    def saw(self, txid: int, reqid: ReqId, data: bytes) -> None:
        """Everybody sees the same transactions at the same places, and none that was refused."""
        known = self.log.setdefault(txid, (reqid, data))
        holds(known == (reqid, data), "order", f"transaction {txid} is {reqid}, and was {known[0]}")
        holds(int(data) == txid, "lock", f"{data!r} is transaction {txid}")
        holds(reqid not in self.refused, "refused", f"{reqid} was refused and is transaction {txid}")

    def acknowledged(self, txid: int, reqid: ReqId, data: bytes) -> None:
        self.committed_by[reqid.client] += 1
        self.saw(txid, reqid, data)

    def check(self) -> None:
        """Heal everything, then read the whole log: nothing is lost, nothing is there twice."""
        self.cuts.clear()
        for server in self.servers.values():
            server.cut_off = False
            server.start()
        for node in self.nodes.values():
            node.start()
        for client in self.clients:
            client.done = True
        end = max(self.log, default=-1)
        reader = Reader(self)
        took = self.scheduler.until(lambda: reader.ready, 60.0)
        holds(took is not None, "open", f"the log cannot be read: {self.blockers()}")
        holds(reader.hwm >= end, "lost", f"transaction {end} was committed, the log ends at {reader.hwm}")
        start = self.meta.start if self.meta is not None else 0
        holds(reader.first <= start, "lost", f"the log begins with {reader.first}, not with {start}")
        ids = [reqid for reqid, _ in self.log.values()]
        holds(len(ids) == len(set(ids)), "doubled", "an append is in the log twice")

    def blockers(self) -> str:
        owned = [(n, p) for n, server in self.servers.items() if server.core for p in server.core.owned.values()]
        faults = {name: node.directory.partition(0).fault for name, node in self.nodes.items() if node.directory}  # type: ignore[union-attr]
        return f"{[(n, p.stage, p.blocker) for n, p in owned]} {faults} {self.meta}"


class Reader(Client):
    """Reads the log from its beginning."""

    def __init__(self, world: World) -> None:
        super().__init__(world, 200)
        self.ready = False
        self.go()

    def _append(self) -> None:
        self.ready = True
        self.done = True
