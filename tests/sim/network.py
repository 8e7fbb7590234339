"""The network of a Raft cluster, whose peers of the original kind suffer from messages of another age."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pavane.raft.silence import UNACKNOWLEDGED_MS
from tests.sim.kit.network import Connection, Network

DRAIN_S = 0.1  # 2 x rpc_timeout: how old a message of a broken connection may be where old ones do harm (1.4)


@dataclass
class RaftNetwork(Network):
    """``end`` ends a connection of which the system that opened it had no acknowledgement.

    Only on the way to originals, which alone need that: else nobody but the code of a peer finds out that a connection
    carries nothing, as behind a proxy, which acknowledges everything.
    """

    originals: frozenset[str] = frozenset()  # peers of the original kind, which a message of another age may damage
    end: Callable[[Connection], None] = lambda connection: None
    _unacknowledged: set[bytes] = field(default_factory=set)  # routes

    def vanished(self, connection: Connection) -> None:
        """Something was sent along a silent connection."""
        ours_to_original = connection.target in self.originals and connection.source not in self.originals
        if ours_to_original and connection.route not in self._unacknowledged:
            self._unacknowledged.add(connection.route)
            self.scheduler.later(UNACKNOWLEDGED_MS / 1000, lambda: self.end(connection))

    def may_repeat(self, target: str) -> bool:
        return target not in self.originals

    def drained(self, connection: Connection) -> bool:
        """Whether nothing of a broken connection arrives any more; those among originals leave nothing behind."""
        if connection.target not in self.originals:
            return False
        if connection.life != self.lives[connection.target]:
            return True
        drain_s = 0.0 if connection.source in self.originals else DRAIN_S
        return self.scheduler.time > connection.closed_at + drain_s
