"""The network of a Raft cluster, whose peers of the original kind suffer from messages of another age."""

from dataclasses import dataclass

from tests.sim.kit.network import Connection, Network

DRAIN_S = 0.1  # 2 x rpc_timeout: how old a message of a broken connection may be where old ones do harm (1.4)


@dataclass
class RaftNetwork(Network):
    originals: frozenset[str] = frozenset()  # peers of the original kind, which a message of another age may damage

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
