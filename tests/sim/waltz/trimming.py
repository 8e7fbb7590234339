"""Somebody who trims a simulated log all the time, and the rules that hold for what is left of it."""

from abc import ABC, abstractmethod
from typing import Any

from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from tests.sim.kit.seeds import holds
from tests.sim.waltz.world import PARTITION, World

PAUSE_S = (0.1, 0.8)
KEPT_MAX = 60  # transactions; more often it asks for all that there is to be trimmed


class Asker(ABC):
    """Asks whoever is the owner for something, again and again, each time over another connection."""

    hears_at = 0.0

    def __init__(self, world: World) -> None:
        self._world = world
        self._connection = -1
        self.dropped = 0
        """The most that a node has dropped."""
        self.done = False
        self._begin()

    @abstractmethod
    def request(self, reqid: ReqId) -> Any:
        """Return what is asked next."""

    @abstractmethod
    def hear(self, connection: int, message: Any) -> None:
        """Take an answer."""

    @abstractmethod
    def check(self) -> None:
        """Look whether all is as it has to be."""

    def _begin(self) -> None:
        world = self._world
        self.check()
        world.scheduler.later(world.rng.uniform(*PAUSE_S), self._begin)
        owner = None if self.done else world.owner()
        if owner is None or owner.core is None:
            return
        gone, self._connection = self._connection, world.next_connection()
        connection = self._connection
        for server in world.servers.values():
            server.clients.pop(gone, None)
        owner.clients[connection] = self  # type: ignore[assignment]
        request = self.request(ReqId(400, 0, PARTITION, connection))

        def ask(now: float, core: Any) -> None:
            core.disconnected(now, gone)
            core.connected(connection, 5)
            core.message(now, connection, request)

        owner.call(ask)

    def lost(self) -> None:
        """It begins anew in any case."""
        self._connection = -1

    @property
    def _ends(self) -> int:
        return max(self._world.log, default=-1) + 1


class Trimmer(Asker):
    """What is answered is durable, and no node has dropped more than is agreed."""

    def __init__(self, world: World) -> None:
        self.agreed = 0
        """With what the log begins at least, as servers have said."""
        self.asked = 0
        super().__init__(world)

    def request(self, reqid: ReqId) -> m.TrimRequest:
        """Ask to trim."""
        world = self._world
        before = max(0, self._ends - world.rng.choice((0, 0, world.rng.randint(0, KEPT_MAX))))
        self.asked = max(self.asked, before)
        return m.TrimRequest(reqid, before, 0)

    def hear(self, connection: int, message: Any) -> None:
        """Note what is agreed."""
        if isinstance(message, m.TrimResponse):
            self.agreed = max(self.agreed, message.start)
            self.check()

    def check(self) -> None:
        """Look into metadata and files; what a node holds begins where the log does, or before."""
        world = self._world
        start = world.meta.start if world.meta is not None else 0
        holds(self.agreed <= start <= self.asked, "agreed", f"{self.agreed} was agreed, the metadata say {start}")
        for name, node in world.nodes.items():
            files = node.directory.partition(PARTITION) if node.directory is not None else None
            if files is not None and files.available:
                holds(files.first <= start, "durable", f"{name} begins with {files.first}, the metadata say {start}")
                self.dropped = max(self.dropped, files.first)


class Consumers(Asker):
    """Three consumers of a log that is trimmed by hand and by its size: what they are told is durable.

    Nobody is ahead of what it has said that it applied, and no trim passes anybody.
    """

    NAMES = ("a", "b", "c")

    def __init__(self, world: World) -> None:
        self.commits = 0
        self._known: dict[str, m.ConsumerState] = {}
        """What servers have said of those that nobody wanted to be removed since."""
        self._applied: dict[str, int] = {}
        """The greatest position that was ever asked for."""
        self._asked: dict[int, m.ConsumerRequest] = {}
        super().__init__(world)

    def request(self, reqid: ReqId) -> m.ConsumerRequest | m.TrimRequest:
        """Begin or go on somewhere, sometimes anew; or ask to trim."""
        rng, start = self._world.rng, self._start
        if rng.random() < 0.3:
            return m.TrimRequest(reqid, rng.randint(start, max(start, self._ends)), 0)
        name = rng.choice(self.NAMES)
        known = self._known.get(name)
        action, least, since = m.ConsumerAction.START, start, 0
        if known is not None:
            drawn = rng.random()
            action, least, since = m.ConsumerAction.COMMIT, known.position, known.since
            if drawn < 0.15:
                action, least = m.ConsumerAction.REMOVE if drawn < 0.1 else m.ConsumerAction.SET, start
                del self._known[name]
        position = rng.randint(least, max(least, self._ends))
        if action is not m.ConsumerAction.REMOVE:
            self._applied[name] = max(position, self._applied.get(name, 0))
        self._asked[reqid.seq] = m.ConsumerRequest(reqid, action, name, position, since, "sim")
        return self._asked[reqid.seq]

    def hear(self, connection: int, message: Any) -> None:
        """Note what is durable."""
        asked = self._asked.get(connection)
        if asked is None or connection != self._connection:
            return
        if isinstance(message, m.ConsumerResponse):
            for state in message.consumers:
                holds(asked.action is not m.ConsumerAction.REMOVE, "removed", f"{state} is still there")
                self._known[state.name] = state
                self.commits += asked.action is m.ConsumerAction.COMMIT
            self.check()
        elif isinstance(message, m.Reject) and message.code is RejectCode.NO_CONSUMER:
            holds(asked.name not in self._known, "kept", f"{asked.name} is not known any more: {message.message}")

    @property
    def _start(self) -> int:
        return self._world.meta.start if self._world.meta is not None else 0

    def check(self) -> None:
        """Look into the metadata."""
        self.dropped = max(self.dropped, self._start)
        meta = self._world.meta
        found = {one.name: one for one in meta.consumers} if meta is not None else {}
        for name, one in found.items():
            applied = self._applied[name]
            holds(one.position <= applied, "ahead", f"{name} is at {one.position} and has applied {applied}")
            holds(
                self._start <= one.position, "passed", f"the log begins with {self._start}, {name} needs {one.position}"
            )
        for name, state in self._known.items():
            held = name in found and found[name].position >= state.position
            holds(held, "durable", f"{state} was answered, the metadata have {found.get(name)}")
