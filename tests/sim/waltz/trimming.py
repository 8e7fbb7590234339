"""Somebody who trims a simulated log all the time, and the rules that hold for what is left of it."""

from typing import Any

from pavane.waltz.wire import messages as m
from pavane.waltz.wire.fields import ReqId
from tests.sim.kit.seeds import holds
from tests.sim.waltz.world import PARTITION, World

PAUSE_S = (0.1, 0.8)
KEPT_MAX = 60  # transactions; more often it asks for all that there is to be trimmed


class Trimmer:
    """Asks whoever is the owner to trim. What is answered is durable, and no node has dropped more than is agreed."""

    hears_at = 0.0

    def __init__(self, world: World) -> None:
        self._world = world
        self._connection = -1
        self.agreed = 0
        """With what the log begins at least, as servers have said."""
        self.asked = 0
        self.dropped = 0
        """The most that a node has dropped."""
        self.done = False
        self._begin()

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
        before = max(0, max(world.log, default=-1) + 1 - world.rng.choice((0, 0, world.rng.randint(0, KEPT_MAX))))
        self.asked = max(self.asked, before)
        request = m.TrimRequest(ReqId(400, 0, PARTITION, connection), before, 0)

        def ask(now: float, core: Any) -> None:
            core.disconnected(now, gone)
            core.connected(connection, 5)
            core.message(now, connection, request)

        owner.call(ask)

    def hear(self, connection: int, message: Any) -> None:
        if isinstance(message, m.TrimResponse):
            self.agreed = max(self.agreed, message.start)
            self.check()

    def lost(self) -> None:
        """It begins anew in any case."""

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
