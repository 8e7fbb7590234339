"""Who is registered at a partition: random connections of few clients and a small model (docs/specs/waltz.md 4.1)."""

import random
from dataclasses import dataclass, field

from pavane.waltz.core.cluster import ClusterView
from pavane.waltz.core.outputs import Reply
from pavane.waltz.core.server import ServerCore
from pavane.waltz.errors import RejectCode
from pavane.waltz.wire import messages as m
from pavane.waltz.wire.blobs import AssignedPartition, PartitionAssignment, ServerDescriptor, ServerPartitions
from pavane.waltz.wire.fields import ReqId
from tests.sim.kit.seeds import holds, played, replayable

SERVER, GENERATION = 1, 1
HERE, ABSENT = (0, 1), 2
CLIENTS, NET_SEQS, GENERATIONS = (0, 7, 8), (1, 2, 3), (1, 2)
STEPS = 60
OPEN_MAX = 5


@dataclass
class Peer:
    """A connection as the specification sees it."""

    number: int
    version: int
    client: int | None = None  # of its first message
    net_seq: int | None = None  # of its first mount of a partition that is here


@dataclass
class Model:
    """Per partition and client the connection that counts, and the generation of its mount."""

    entries: dict[int, dict[int, tuple[Peer, int]]] = field(default_factory=lambda: {number: {} for number in HERE})

    def counts(self, partition: int, peer: Peer) -> bool:
        """Whether what a connection says of a partition is heard."""
        if peer.client is None or peer.client not in self.entries[partition]:
            return False
        return self.entries[partition][peer.client][0].net_seq == peer.net_seq

    def mount(self, partition: int, peer: Peer, net_seq: int, generation: int) -> None:
        """Replace the entry by a higher generation, or within it by a higher number."""
        assert peer.client is not None
        peer.net_seq = net_seq if peer.net_seq is None else peer.net_seq
        present = self.entries[partition].get(peer.client)
        if present is None or (generation, peer.net_seq) > (present[1], present[0].net_seq or 0):
            self.entries[partition][peer.client] = peer, generation

    def close(self, peer: Peer) -> None:
        """An entry goes with its connection and with no other."""
        for entries in self.entries.values():
            for client in [client for client, entry in entries.items() if entry[0] is peer]:
                del entries[client]

    def table(self) -> dict[int, dict[int, int]]:
        """Who is registered where."""
        return {
            number: {client: entry[0].number for client, entry in entries.items()}
            for number, entries in self.entries.items()
        }


class Story:
    """One server that owns two of three partitions, whose storage is away: so what it takes waits there."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.model = Model()
        self.server = ServerCore(SERVER, "ledger", len(HERE) + 1)
        owned = tuple(AssignedPartition(number, GENERATION) for number in HERE)
        assignment = PartitionAssignment(0, len(HERE) + 1, (ServerPartitions(SERVER, owned),))
        descriptor = ServerDescriptor(SERVER, "h", 1)
        storage = dict.fromkeys((*HERE, ABSENT), ("n0", "n1", "n2"))
        self.server.set_view(0.0, ClusterView(assignment, 1, 0, {SERVER: descriptor}, storage=storage))
        self.server.set_writable(0.0, writable=True)
        self.peers: list[Peer] = []
        self.opened = self.seq = 0

    def play(self) -> None:
        """Do STEPS things."""
        for _ in range(STEPS):
            self.step()

    def step(self) -> None:
        """Do one thing, and hold what the server makes of it against the model."""
        kinds = ["ask", "view", "mount", "mount", "mount absent", "append", "append", "close"]
        if len(self.peers) < OPEN_MAX and (not self.peers or self.rng.random() < 0.3):
            self.opened += 1
            peer = Peer(self.opened, self.rng.choice((4, 4, 5)))
            self.peers.append(peer)
            self.server.connected(peer.number, peer.version)
            return
        peer, kind = self.rng.choice(self.peers), self.rng.choice(kinds)
        if kind == "close":
            self.peers.remove(peer)
            self.model.close(peer)
            self.server.disconnected(0.0, peer.number)
        else:
            self.say(peer, kind)
        found = {
            number: {client: entry.connection.id for client, entry in self.server.owned[number].clients.items()}
            for number in HERE
        }
        holds(found == self.model.table(), "4.1", f"after {kind} of {peer}: {found}, not {self.model.table()}")

    def say(self, peer: Peer, kind: str) -> None:
        """Send one message."""
        self.seq += 1
        partition = ABSENT if kind == "mount absent" else self.rng.choice(HERE)
        client, generation = self.rng.choice(CLIENTS), self.rng.choice(GENERATIONS)
        if kind == "append":
            generation = GENERATION
        reqid = ReqId(client, generation, partition, self.seq)
        if kind == "view":  # says nothing of who asks
            self.server.message(0.0, peer.number, m.ViewRequest(reqid, 0))
            return
        if peer.client is None:
            peer.client = client
        heard = peer.version < 5 or peer.client == client
        net_seq = self.rng.choice(NET_SEQS)
        message = {
            "ask": m.HighWaterMarkRequest(reqid),
            "append": m.AppendRequest(reqid, -1, (), (), (), 0, b"x"),
        }.get(kind, m.MountRequest(reqid, -1, net_seq))
        queued = {number: self.server.owned[number].queued for number in HERE}
        self.server.outputs()
        self.server.message(0.0, peer.number, message)
        if kind == "mount" and heard:
            self.model.mount(partition, peer, net_seq, generation)
        answers = [output.message for output in self.server.outputs() if isinstance(output, Reply)]
        refused = {answer.code for answer in answers if isinstance(answer, m.Reject)}
        takes = heard and (kind not in ("mount", "append") or self.model.counts(partition, peer))
        taken = partition in HERE and self.server.owned[partition].queued > queued[partition]
        holds(taken == (takes and kind == "append"), "4.2", f"{kind} of {peer} as {client}: taken is {taken}")
        wanted: set[RejectCode] = set()
        if not heard:
            wanted = {RejectCode.BAD_REQUEST}
        elif peer.version >= 5 and not takes:
            wanted = {RejectCode.NOT_MOUNTED if kind == "append" else RejectCode.STALE_CONNECTION}
        holds(refused == wanted, "4.1", f"{kind} of {peer} as {client}: refused with {refused}, not {wanted}")


@played(per_test=100)
def test_a_connection_counts_under_the_client_of_its_first_message(seeds: range) -> None:
    for seed in seeds:
        with replayable(seed, lambda: 0.0):
            Story(seed).play()
