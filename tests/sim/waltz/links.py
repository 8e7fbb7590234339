"""Connections of a simulated log, which may go silent: they stand and carry nothing until somebody gives them up.

Who dialled has the system notice that, by the product's own options; at a storage node and a server it takes longer. A
client's core finds out by itself, before that (``appending``).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pavane.runtime import keepalive
from pavane.waltz.aio import stream
from pavane.waltz.aio.links import CONNECT_S
from tests.sim.kit.silence import Line, Noticing, noticing

if TYPE_CHECKING:
    from tests.sim.waltz.world import SimNode, SimServer, World

DIRECTIONS = ((0, 1), (0, 1), (0,), (1,))  # in which a connection carries nothing any more


def rules() -> tuple[Noticing, Noticing]:
    """Return what the system does at the end that dialled, and at the one that accepted."""
    return noticing(stream._notice_the_end, keepalive.notice_silence), noticing(stream._notice_the_end)


class Link:
    """One connection between a server and a storage node: in order, until it ends."""

    def __init__(self, world: "World", server: "SimServer", node: "SimNode") -> None:
        self.world, self.server, self.node = world, server, node
        self.open = True
        self.opened = False
        self.line = Line(world.schedule, lambda: world.now, world.rules, self._give_up)
        self._forward = self._backward = 0.0

    def greet(self) -> None:
        """The node has greeted, if it could."""
        if self.line.half_open:
            self.world.scheduler.later(CONNECT_S, self.close)
        elif self.open and not self.opened:
            self.opened = True
            self.server.call(lambda now, core: core.storage_up(now, self.node.name))

    def ask(self, message: Any) -> None:
        self._forward = self.world.arrival(self._forward)
        self.line.sent(0)
        self.world.schedule(self._forward, lambda: self._asked(message))

    def answer(self, message: Any) -> None:
        self._backward = self.world.arrival(self._backward)
        self.line.sent(1)
        self.world.schedule(self._backward, lambda: self._answered(message))

    def close(self) -> None:
        """The server ends it, or both ends are told that it is gone."""
        if self.open:
            self.open = False
            self.line.over = [True, True]
            self.server.links.pop(self.node.name, None)
            self.node.links.discard(self)
            if self.server.core is not None and self.opened:
                self.server.call(lambda now, core: core.storage_down(now, self.node.name))

    def node_ended(self) -> None:
        """The node ends it; the server hears of that unless it is lost on the way."""
        self.line.over[1] = True
        self.node.links.discard(self)
        if not self.line.silent[1]:
            self.close()

    def _asked(self, message: Any) -> None:
        if self.open and self.line.arrives(0) and self in self.node.links:
            self.node.take(self, message)

    def _answered(self, message: Any) -> None:
        if self.open and self.line.arrives(1):
            self.server.hear(self.node.name, message)

    def _give_up(self, end: int) -> None:
        if end == 0:
            self.close()
        else:
            self.node_ended()


class ClientSession:
    """A client's connection to a server, under a number."""

    def __init__(self, world: "World", server: "SimServer", number: int, lost: Callable[[], None]) -> None:
        self.line = Line(world.schedule, lambda: world.now, world.rules, self._give_up)
        self._server, self._number, self._lost = server, number, lost

    def close(self) -> None:
        """The client ends it; the server hears of that unless it is lost on the way."""
        self.line.over[0] = True
        if not self.line.silent[0]:
            self._end_at_server()

    def server_ended(self) -> None:
        """The server has ended it; the client hears of that unless it is lost on the way."""
        self.line.over[1] = True
        if not self.line.silent[1] and not self.line.over[0]:
            self._lost()

    def _end_at_server(self) -> None:
        self.line.over[1] = True
        self._server.clients.pop(self._number, None)
        self._server.call(lambda now, core: core.disconnected(now, self._number))

    def _give_up(self, end: int) -> None:
        if end == 0:
            self._lost()
        else:
            self._end_at_server()
            self.server_ended()
