"""A server of the next generation in a simulated log: it may not write, and a client reads from it all the time."""

from typing import Any

from pavane.waltz.core import outputs as o
from pavane.waltz.core.admin import Admin
from pavane.waltz.storage import Directory
from pavane.waltz.wire import messages as m
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from tests.sim.kit.seeds import holds
from tests.sim.waltz.world import PARTITION, SimServer, World

OWNER_S = 0.5  # for an answer of the owner
PERUSE_S = (0.1, 0.8)  # for which the reader stays before it begins anew
WAITS = (o.Reply, o.Hangup, o.ReadMeta, o.AskOwner, o.ReadStorage)


def read_beside(directory: Directory, asked: o.ReadStorage) -> tuple[int, tuple[s.Record, ...] | None]:
    """Return what the admin port of a storage node answers: who has stamped the partition, and records."""
    admin = Admin(directory)
    info = admin.execute(s.AdminSessionInfoRequest(s.Head(-1, 1, PARTITION)))
    records = admin.execute(s.RecordListRequest(s.Head(-1, 2, PARTITION), asked.txid, asked.limit))
    if isinstance(info, s.LastSessionInfoResponse) and isinstance(records, s.RecordListResponse):
        return info.session, records.records
    return -1, None


class Beside(SimServer):
    """Reads from storage nodes that never hear of it."""

    def _renew(self, life: int) -> None:
        """It takes no lease, and only hears who is there."""
        if life == self._life:
            self.world.tell(self)
            self.world.scheduler.later(0.3, lambda: self._renew(life))

    def _execute(self, output: o.Output) -> None:
        holds(isinstance(output, WAITS), "read-only", f"a server that may not write does {output}")
        match output:
            case o.AskOwner():
                _Question(self, output)
            case o.ReadStorage():
                self._later(self.world.delay(), lambda: self._read(output))
            case _:
                super()._execute(output)

    def _read(self, asked: o.ReadStorage) -> None:
        node = self.world.nodes[asked.node]
        session, found = -1, None
        if node.directory is not None and (f"s{self.number}", asked.node) not in self.world.cuts:
            session, found = read_beside(node.directory, asked)

        def answer() -> None:
            self.call(lambda now, _: asked.answer(now, session, found))

        self._later(self.world.delay(), answer)


class _Question:
    """A connection to the owner, for one question about its HWM."""

    hears_at = 0.0

    def __init__(self, server: Beside, asked: o.AskOwner) -> None:
        self._server, self._asked = server, asked
        self._done = False
        world = server.world
        server._later(world.delay(), self._arrive)
        server._later(OWNER_S, lambda: self._answer(None))

    def _arrive(self) -> None:
        world = self._server.world
        owner = world.servers[int(self._asked.address.rpartition(":")[2])]
        connection = world.next_connection()
        owner.clients[connection] = self  # type: ignore[assignment]
        request = m.HighWaterMarkRequest(ReqId(0, 0, PARTITION, connection))

        def ask(now: float, core: Any) -> None:
            core.connected(connection, 5)
            core.message(now, connection, request)

        owner.call(ask)

    def hear(self, connection: int, message: Any) -> None:
        self._answer(message.txid if isinstance(message, m.HighWaterMarkResponse) else None)

    def lost(self) -> None:
        self._answer(None)

    def _answer(self, hwm: int | None) -> None:
        if not self._done:
            self._done = True
            asked = self._asked
            self._server._later(0.0, lambda: self._server.call(self._told(asked, hwm)))

    @staticmethod
    def _told(asked: o.AskOwner, hwm: int | None) -> Any:
        return lambda now, _: asked.answer(now, hwm)


class Peruser:
    """Reads from the server beside, from somewhere on; what it gets must be the log, as everybody else sees it."""

    hears_at = 0.0

    def __init__(self, world: World, server: Beside) -> None:
        self._world, self._server = world, server
        self._connection = -1
        self._next = 0
        self.read = 0
        self._begin()

    def _begin(self) -> None:
        world, server = self._world, self._server
        server.clients.pop(self._connection, None)
        gone, self._connection = self._connection, world.next_connection()
        connection = self._connection
        server.clients[connection] = self  # type: ignore[assignment]
        known = max(world.log, default=-1)
        self._next = world.rng.randint(max(0, known - 20), known + 1)
        request = m.FeedBatchRequest(ReqId(300, 0, PARTITION, connection), self._next - 1, 1000, 1 << 20, 0, -1, 0)

        def ask(now: float, core: Any) -> None:
            core.disconnected(now, gone)
            core.connected(connection, 5)
            core.message(now, connection, request)

        server.call(ask)
        world.scheduler.later(world.rng.uniform(*PERUSE_S), self._begin)

    def hear(self, connection: int, message: Any) -> None:
        if connection == self._connection and isinstance(message, m.FeedBatch):
            holds(message.first_txid == self._next, "gap", f"{message.first_txid} follows {self._next - 1}")
            for txid, item in enumerate(message.items, message.first_txid):
                assert item.data is not None
                self._world.saw(txid, item.reqid, item.data)
            self._next += len(message.items)
            self.read += len(message.items)

    def lost(self) -> None:
        """It begins anew in any case."""
