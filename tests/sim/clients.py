"""Model clients: one that writes, one that reads, one that changes members. Each obeys 11.2 as far as it matters."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pavane.raft.machines.commands import Put, Txn, encode_command
from pavane.raft.wire.decoder import Drop, decode_reply
from pavane.raft.wire.pv import PvTransfer
from pavane.raft.wire.replies import (
    ConfigStatus,
    ConfigUpdateReply,
    EntriesStatus,
    RequestEntriesReply,
    RequestUpdateReply,
    UpdateStatus,
)
from pavane.raft.wire.requests import ConfigUpdate, RequestEntries, RequestUpdate
from tests.sim.kit.network import Connection, Frames
from tests.sim.kit.seeds import holds

if TYPE_CHECKING:
    from tests.sim.world import World

IDENT = b"s3cr3t"
REPEATS = 0.1  # of updates are old ones once more, also such as were answered long ago
PATIENCE_S = 0.35  # silence after which another peer is asked


class Client:
    """Finds a leader by trying, and keeps one connection per peer."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.target: str | None = None
        self.connections: dict[str, Connection] = {}
        self.attempt = 0

    def send(self, frames: Sequence[bytes | memoryview]) -> None:
        world = self.world
        if self.target is None or not world.nodes[self.target].up:
            self.target = world.rng.choice(list(world.nodes))
        if not world.nodes[self.target].up:
            return
        connection = self.connections.get(self.target)
        if connection is None or not connection.alive:
            target = self.target
            connection = world.network.open(self.name, target, lambda reply: self.take(target, reply))
            self.connections[target] = connection
        world.network.ask(connection, frames)

    def arm(self) -> None:
        """Ask again, elsewhere, if nothing comes of this attempt."""
        self.attempt += 1
        attempt = self.attempt
        self.world.schedule(self.world.time + PATIENCE_S, lambda: self._late(attempt))

    def _late(self, attempt: int) -> None:
        if self.attempt == attempt:
            self.target = None
            self.again()

    def redirect(self, leader: str | None) -> None:
        self.target = leader if leader in self.world.nodes else None
        self.attempt += 1
        attempt = self.attempt
        self.world.schedule(self.world.time + 0.02, lambda: self.again() if self.attempt == attempt else None)

    def again(self) -> None:
        raise NotImplementedError

    def take(self, peer: str, frames: Frames) -> None:
        raise NotImplementedError


class Writer(Client):
    """Appends one update after the other, each under one id until it is done."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.count = 0
        self.acknowledged = 0
        self.reqid = b""
        self.data = b""
        self.floor = 0
        self.past: list[tuple[bytes, bytes]] = []
        self.expired = 0

    def begin(self) -> None:
        world = self.world
        if world.scenario.repeats and self.past and world.rng.random() < REPEATS:
            self.reqid, self.data = world.rng.choice(self.past)
            self.floor = 0
            self.again()
            return
        self.count += 1
        second = int(world.wall_s + world.time)
        self.reqid = second.to_bytes(4, "big") + self.name.encode()[:3].ljust(3) + self.count.to_bytes(5, "big")
        self.floor = world.greatest_acknowledged
        self.data = b"%s %d" % (self.name.encode(), self.count)
        if world.scenario.keys:
            self.data = encode_command(Txn(then=(Put(b"text", self.data),)))
        self.past.append((self.reqid, self.data))
        self.again()

    def again(self) -> None:
        self.arm()
        self.send((self.reqid, *RequestUpdate(self.data).encode(IDENT)))

    def take(self, peer: str, frames: Frames) -> None:
        world = self.world
        if frames[0] != self.reqid:
            return
        reply = decode_reply(RequestUpdateReply, frames[1:])
        assert not isinstance(reply, Drop)
        match reply.status:
            case UpdateStatus.ACCEPTED:
                self.arm()
            case UpdateStatus.NOT_LEADER:
                self.redirect(reply.leader)
            case UpdateStatus.EXPIRED:
                self.expired += 1
                self._next()  # a peer's clock jumped: the outcome of this id is unknown
            case UpdateStatus.DONE:
                world.checks.done(peer, world.nodes[peer].mirror, self.reqid, reply.index)
                holds(reply.index > self.floor, "S10", f"update {reply.index} was sent after {self.floor} was told")
                world.greatest_acknowledged = max(world.greatest_acknowledged, reply.index)
                self.acknowledged += 1
                self._next()

    def _next(self) -> None:
        self.reqid = b""
        self.attempt += 1
        self.world.schedule(self.world.time + self.world.rng.uniform(0.0, 0.03), self.begin)


class Reader(Client):
    """Reads the end of the log again and again; sees at least what was acknowledged before it asked."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.count = 0
        self.reads = 0
        self.floor = 0
        self.previous = 0
        self.id = b""

    def begin(self) -> None:
        self.again()

    def again(self) -> None:
        self.count += 1
        self.id = self.count.to_bytes(4, "big")
        self.floor = self.world.greatest_acknowledged
        self.previous = max(0, self.floor - 5)
        self.arm()
        self.send((self.id, *RequestEntries(self.previous).encode(IDENT)))

    def take(self, peer: str, frames: Frames) -> None:
        if frames[0] != self.id:
            return
        reply = decode_reply(RequestEntriesReply, frames[1:])
        assert not isinstance(reply, Drop)
        if reply.status == EntriesStatus.NOT_LEADER:
            self.redirect(reply.leader)
            return
        if reply.status == EntriesStatus.SNAPSHOT:  # what it stands for is of no use here: go on behind it
            self.send((self.id, *RequestEntries(reply.index).encode(IDENT)))
            return
        committed = self.world.checks.committed
        first = reply.index - len(reply.entries)
        holds(list(reply.entries) == committed[first : reply.index], "S10", "a read shows what is not committed")
        if reply.status == EntriesStatus.MORE:
            self.send((self.id, *RequestEntries(reply.index).encode(IDENT)))
            return
        fresh = reply.index >= self.floor or peer in self.world.js.names  # the original reads without barrier (D14)
        holds(fresh, "S10", f"a read ends at {reply.index}, {self.floor} was told before it began")
        self.reads += 1
        self.id = b""
        self.attempt += 1
        self.world.schedule(self.world.time + self.world.rng.uniform(0.0, 0.05), self.begin)


class Administrator(Client):
    """Asks for one configuration until it stands, or hands leadership about."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.count = 0
        self.wanted: tuple[tuple[str, str], ...] | None = None
        self.reqid = b""
        self.done = 0

    def change(self, members: tuple[tuple[str, str], ...]) -> None:
        """Ask for these members; a change that was not finished is given up."""
        self.wanted = members
        self._new_id()
        self.again()

    def restart(self) -> None:
        """End and begin again: whoever comes next asks for the same under the same id, which it derives anew (8.6)."""
        self.connections.clear()
        self.target = None
        self.attempt += 1
        attempt = self.attempt
        again_s = self.world.rng.uniform(0.05, 1.0)
        self.world.schedule(self.world.time + again_s, lambda: self.again() if self.attempt == attempt else None)

    def transfer(self) -> None:
        self.count += 1
        self.send((b"t%d" % self.count, *PvTransfer(None).encode(IDENT)))

    def again(self) -> None:
        if self.wanted is not None:
            self.arm()
            self.send((self.reqid, *ConfigUpdate.of(self.wanted).encode(IDENT)))

    def take(self, peer: str, frames: Frames) -> None:
        del peer
        if frames[0] != self.reqid:
            return
        reply = decode_reply(ConfigUpdateReply, frames[1:])
        assert not isinstance(reply, Drop)
        match reply.status:
            case ConfigStatus.NOT_LEADER:
                self.redirect(reply.argument if isinstance(reply.argument, str) else None)
            case ConfigStatus.ACCEPTED if isinstance(reply.argument, int):
                self.wanted = None
                self.done += 1
            case ConfigStatus.ACCEPTED:
                self.arm()
            case ConfigStatus.ARGUMENT:
                message = str(reply.argument.get("message") if isinstance(reply.argument, dict) else None)
                if message == "no change in cluster membership":
                    self.wanted = None
                    self.done += 1
                elif "empty its folder first" in message and not self.world.scenario.promotion:  # it was away too long
                    self.wanted = None
            case ConfigStatus.EXPIRED:
                self._new_id()
            case ConfigStatus.BUSY:
                pass

    def _new_id(self) -> None:
        self.count += 1
        second = int(self.world.wall_s + self.world.time)
        self.reqid = second.to_bytes(4, "big") + b"adm" + self.count.to_bytes(5, "big")
