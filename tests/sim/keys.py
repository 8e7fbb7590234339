"""Model clients of the key-value machine, and what must be true of all that they are told (docs/specs/raft.md 18.2)."""

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from pavane.raft.client.calls import Elsewhere, Failed, Pending
from pavane.raft.client.key_calls import Changes, WatchCall
from pavane.raft.client.keys import guard
from pavane.raft.errors import Code
from pavane.raft.machines.commands import (
    Compare,
    Delete,
    LeaseExpire,
    LeaseGrant,
    Put,
    Range,
    Relation,
    Target,
    Txn,
    encode_command,
    op_fields,
)
from pavane.raft.machines.decoding import decode_command
from pavane.raft.machines.history import Event, Happened, Scope, Watch
from pavane.raft.machines.keyvalue import Tree
from pavane.raft.machines.state import Result
from pavane.raft.wire.decoder import Drop, decode_reply
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import PvKv, PvLease, PvRead, PvReply
from tests.sim.clients import IDENT, Client
from tests.sim.kit.network import Frames
from tests.sim.kit.seeds import holds

if TYPE_CHECKING:
    from tests.sim.world import World

KEYS = (b"k1", b"k2", b"k3")
ALL = (b"k", b"l")
LOCK = b"lock"
GUARDED = b"guarded"  # what only the holder of the lock may write
TTL_MS = 800
WATCHER_PATIENCE_S = 1.5  # signs of life come every second
DIGEST_EVERY = 64


class KeyChecks:
    """One more machine, which applies every entry when the first replica does; all others are compared with it."""

    def __init__(self) -> None:
        self.reference = Tree()
        self.results: dict[int, bytes] = {}
        self.states: dict[int, bytes] = {}
        self.events: list[tuple[int, tuple[Event, ...]]] = []
        self.versions: dict[bytes, list[tuple[int, bytes | None]]] = {}
        self.promised: dict[int, float] = {}
        self.greatest_acknowledged = 0
        self.holder = 0  # the token under which the lock is held, as its key's events tell
        self.greatest_token = 0  # told to a holder
        self.guarded_writes = 0

    def applied(self, node: str, machine: Tree, index: int, reqid: bytes, data: memoryview, time: float) -> None:
        """S4: whoever applies an entry comes to the same result, and now and then its whole state is looked at."""
        result: Result = machine.apply(index, reqid, data)
        if index > self.reference.state.revision:
            self._first(index, reqid, data, time)
        holds(self.results[index] == result.data, "S4", f"{node} comes to another result at {index}")
        if index % DIGEST_EVERY == 0 and index == self.reference.state.revision:
            self.compare(node, machine)

    def compare(self, node: str, machine: Tree) -> None:
        same = machine.digest() == self.reference.digest()
        holds(same, "S4", f"{node} has another state at {machine.state.revision}")

    def saved(self, node: str, machine: Tree) -> None:
        """S4: the state that a snapshot holds, here and wherever it is restored, is the one that all came to."""
        known = self.states.setdefault(machine.state.revision, machine.digest())
        holds(known == machine.digest(), "S4", f"{node} has another state at {machine.state.revision}")

    def _first(self, index: int, reqid: bytes, data: memoryview, time: float) -> None:
        command = decode_command(data, 1, tree=True)
        if isinstance(command, LeaseExpire):
            for lease in command.leases:
                until = self.promised.get(lease, 0.0)
                holds(time >= until, "S10", f"lease {lease} ends at {time:.3f}, it was promised until {until:.3f}")
        self.results[index] = self.reference.apply(index, reqid, data).data
        for revision, events in self.reference.state.history.since(index):
            self.events.append((revision, events))
            for event in events:
                self.versions.setdefault(event.key, []).append((revision, event.data))
                self._judge_lock(revision, event)

    def _judge_lock(self, revision: int, event: Event) -> None:
        """S11: nobody takes the lock from its holder, and nobody else writes what it guards."""
        if event.key == LOCK:
            taken = event.kind == Happened.PUT
            holds(not (taken and self.holder), "S11", f"{revision} takes the lock that {self.holder} holds")
            self.holder = revision if taken else 0
        elif event.key == GUARDED:
            token = int(event.data or b"0")
            holds(token == self.holder, "S11", f"{revision} writes under token {token}, {self.holder} holds the lock")
            self.guarded_writes += 1

    def acquired(self, token: int, before: int) -> None:
        """S11: who asks for the lock when a token has been told gets a greater one."""
        holds(token > before, "S11", f"token {token} is given after {before} was told")
        self.greatest_token = max(token, self.greatest_token)

    def promise(self, lease: int, until: float) -> None:
        self.promised[lease] = max(until, self.promised.get(lease, 0.0))

    def told(self, index: int | None, revision: int, data: bytes, floor: int) -> None:
        """S6: a result told is that of the command, as every replica came to it. S10: real time orders revisions."""
        holds(index == revision, "S6", f"the result of {revision} is told for the command at {index}")
        holds(self.results.get(revision) == data, "S6", f"another result of {revision} is told than was come to")
        holds(revision > floor, "S10", f"command {revision} was sent after {floor} was told")
        self.greatest_acknowledged = max(self.greatest_acknowledged, revision)

    def read(self, revision: int, found: list[Any], floor: int) -> None:
        """S10: a read shows the state at its revision, which is not older than what was told before it was asked."""
        holds(revision >= floor, "S10", f"a read is of {revision}, {floor} was told before it began")
        expected = []
        for key in KEYS:
            versions = self.versions.get(key, [])
            at = bisect_right(versions, revision, key=lambda version: version[0]) - 1
            if at >= 0 and versions[at][1] is not None:
                expected.append((key, versions[at][1]))
        holds([(item[0], item[1]) for item in found] == expected, "S10", f"a read at {revision} shows another state")


class KeyClient(Client):
    """Repeats one request under one id until it is answered, then pauses and makes the next."""

    pause_s = 0.03

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.keys = world.keys
        self.count = 0
        self.done = 0
        self.id = b""
        self.floor = 0
        self.sent_s = 0.0
        self.frames: tuple[bytes | memoryview, ...] = ()

    def begin(self) -> None:
        world = self.world
        self.count += 1
        second = int(world.wall_s + world.time)
        self.id = second.to_bytes(4, "big") + self.name.encode()[:3].ljust(3) + self.count.to_bytes(5, "big")
        self.floor = self.keys.greatest_acknowledged
        self.sent_s = world.time
        self.frames = self.request()
        self.again()

    def request(self) -> tuple[bytes | memoryview, ...]:
        raise NotImplementedError

    def answered(self, value: Any, frames: Frames) -> None:
        raise NotImplementedError

    def told(self, revision: int, frames: Frames) -> None:
        index = self.world.checks.committed_reqids.get(self.id)
        self.keys.told(index, revision, bytes(frames[2]), self.floor)

    def again(self) -> None:
        self.arm()
        self.send((self.id, *self.frames))

    def take(self, peer: str, frames: Frames) -> None:
        del peer
        if frames[0] != self.id:
            return
        reply = decode_reply(PvReply, frames[1:])
        assert not isinstance(reply, Drop)
        match reply.code, reply.value:
            case Code.PENDING, _:
                self.arm()
            case Code.NOT_LEADER, leader:
                self.redirect(leader if isinstance(leader, str) else None)
            case Code.BUSY, _:
                self.redirect(None)
            case ((Code.EXPIRED | Code.RESULT_LOST), _):
                self._next()  # a peer's clock jumped: the outcome of this id is unknown
            case _, value:
                self.done += 1
                self.answered(value, frames)
                self._next()

    def _next(self) -> None:
        self.id = b""
        self.attempt += 1
        self.world.schedule(self.world.time + self.world.rng.uniform(0.0, self.pause_s), self.begin)


class KeyWriter(KeyClient):
    """Puts keys, some only if they are as this client believes."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.known: dict[bytes, int] = {}
        self.key = b""

    def request(self) -> tuple[bytes | memoryview, ...]:
        self.key = self.world.rng.choice(KEYS)
        put = Put(self.key, b"%s %d" % (self.name.encode(), self.count))
        as_known = Compare(Target.MOD_REVISION, Relation.EQUAL, self.key, self.known.get(self.key, 0))
        compares = (as_known,) if self.world.rng.random() < 0.7 else ()
        return PvKv(encode_command(Txn(compares, (put,), (Range(self.key),)))).encode(IDENT)

    def answered(self, value: Any, frames: Frames) -> None:
        self.told(value[1], frames)
        _, revision, (succeeded, results) = value
        self.known[self.key] = revision if succeeded else results[0][1][0][3]


class KeyReader(KeyClient):
    """Reads all keys, from the leader or, at least as new as what was told, from anybody."""

    def request(self) -> tuple[bytes | memoryview, ...]:
        ops: list[Value] = [op_fields(Range(*ALL))]
        if self.world.rng.random() < 0.5:
            return PvRead([0, ops]).encode(IDENT)
        self.target = None
        return PvRead([1, ops, self.floor]).encode(IDENT)

    def answered(self, value: Any, frames: Frames) -> None:
        del frames
        _, revision, [[_, found, _]] = value
        self.keys.read(revision, found, self.floor)


class Holder(KeyClient):
    """Takes a lease, keeps it for a while, forgets it, and takes the next."""

    pause_s = 0.3

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.lease = 0

    def request(self) -> tuple[bytes | memoryview, ...]:
        if self.lease and self.world.rng.random() < 0.1:
            self.lease = 0
        if not self.lease:
            return PvKv(encode_command(LeaseGrant(TTL_MS, self.name.encode()))).encode(IDENT)
        return PvLease([self.lease]).encode(IDENT)

    def answered(self, value: Any, frames: Frames) -> None:
        if not self.lease:
            self.told(value[1], frames)
            self.lease = value[1]
            self.keys.promise(self.lease, self.sent_s + TTL_MS / 1000)
            return
        [[_, granted_ms]] = value
        if granted_ms:
            self.keys.promise(self.lease, self.sent_s + granted_ms / 1000)
        else:
            self.lease = 0


class Locker(KeyClient):
    """Takes the lock, writes under its token, also after a sleep beyond its lease, and gives it back or forgets it."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.lease = 0
        self.token = 0
        self.before = 0
        self.step = ""

    def request(self) -> tuple[bytes | memoryview, ...]:
        rng = self.world.rng
        self.before = self.keys.greatest_token
        self.pause_s = rng.choice([0.03, 0.03, 0.03, 2 * TTL_MS / 1000])
        if not self.lease:
            self.step = "grant"
            return PvKv(encode_command(LeaseGrant(TTL_MS, self.name.encode()))).encode(IDENT)
        if not self.token:
            self.step = "take"
            free = Compare(Target.CREATE_REVISION, Relation.EQUAL, LOCK, 0)
            alive = Compare(Target.LEASE_ALIVE, Relation.EQUAL, b"", self.lease)
            put = Put(LOCK, self.name.encode(), self.lease)
            return PvKv(encode_command(Txn((free, alive), (put,), (Range(LOCK),)))).encode(IDENT)
        self.step = rng.choice(["write", "write", "write", "give back"])
        op = Put(GUARDED, b"%d" % self.token) if self.step == "write" else Delete(LOCK)
        return PvKv(encode_command(Txn((guard(LOCK, self.token),), (op,)))).encode(IDENT)

    def answered(self, value: Any, frames: Frames) -> None:
        self.told(value[1], frames)
        _, revision, outcome = value
        if self.step == "grant":
            self.lease = revision
            return
        succeeded, results = outcome
        if self.step != "take":
            if self.step == "give back" or not succeeded:
                self.token = 0
        elif succeeded:
            self.token = revision
            self.keys.acquired(self.token, self.before)
        elif not results[0][1]:
            self.lease = 0  # nobody holds the lock, so it is the lease that has ended


class Watcher(Client):
    """Follows all keys with the client's own judgement, from one peer after the other."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, name)
        self.call = WatchCall(name.encode(), Watch(Scope.KEYS, *ALL, 1), 10.0)
        self.done = 0
        self._at = 0

    def begin(self) -> None:
        self.target = None
        self.again()

    def again(self) -> None:
        self.arm()
        self.send((self.call.id, *self.call.frames(IDENT)))

    def arm(self) -> None:
        self.attempt += 1
        attempt = self.attempt
        self.world.schedule(
            self.world.time + WATCHER_PATIENCE_S, lambda: self.begin() if self.attempt == attempt else None
        )

    def take(self, peer: str, frames: Frames) -> None:
        verdict = self.call.judge(frames[1:])
        assert not isinstance(verdict, Failed)
        if isinstance(verdict, Elsewhere) and peer == self.target:
            self.redirect(verdict.leader)
            return
        if isinstance(verdict, Pending) and verdict.repeat_after_s is not None:
            if peer == self.target:
                self.again()
            return
        while self.call.batches:
            changes = self.call.batches.popleft()
            acknowledgement = self.call.acknowledgement(changes, IDENT)
            assert acknowledgement is not None
            if peer == self.target:
                self.arm()
                self.send((self.call.id, *acknowledgement))
            self._check(changes)

    def _check(self, changes: Changes) -> None:
        """S12: nothing of the range before this message is missing, and this is what happened."""
        wanted = Watch(Scope.KEYS, *ALL)
        events = self.world.keys.events
        while self._at < len(events) and events[self._at][0] <= changes.revision:
            revision, happened = events[self._at]
            self._at += 1
            seen = tuple(event for event in happened if wanted.wants(event))
            if not seen:
                continue
            holds(revision == changes.revision, "S12", f"{self.name} was not told of {revision}")
            holds(changes.events == seen, "S12", f"{self.name} was told another {revision}")
            self.done += 1
            return
        holds(not changes.events, "S12", f"{self.name} was told {changes.revision} twice, or it never was")
