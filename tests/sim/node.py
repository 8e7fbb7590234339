"""One simulated peer: the real core, a disk that forgets, and an adapter that keeps the duties of 5.3."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pavane.raft.config import Config
from pavane.raft.core.core import Core
from pavane.raft.core.outputs import (
    Applied,
    Apply,
    Channel,
    Corrupt,
    Disconnect,
    Event,
    Fork,
    Freeze,
    Now,
    PeerChannel,
    Restore,
    RoleChanged,
    Send,
    SnapshotChanged,
    StageReached,
    VoteGranted,
)
from pavane.raft.core.prevote import PHASE_PREVOTE
from pavane.raft.machines.keyvalue import Tree
from pavane.raft.state.commands import Stored
from pavane.raft.state.configuration import Members
from pavane.raft.state.roles import Role
from pavane.raft.wire.decoder import Drop, decode_reply, decode_request
from pavane.raft.wire.entry import EntryType, entry_data, entry_reqid, entry_type
from pavane.raft.wire.pv import PvAppend, PvAppendReply, PvVote, PvVoteReply
from pavane.raft.wire.replies import AppendEntriesReply, RequestVoteReply
from pavane.raft.wire.requests import AppendEntries, RequestVote
from pavane.raft.wire.snapshot import SnapshotMeta, join_groups
from pavane.wire import Stage
from tests.sim.checks import Mirror
from tests.sim.disk import Disk, scanned
from tests.sim.kit.inputs import Inputs
from tests.sim.kit.network import Connection, Frames
from tests.sim.kit.seeds import holds

if TYPE_CHECKING:
    from tests.sim.world import World

USUAL_FSYNC_S = (0.0002, 0.004)
SLOW_FSYNC_S = (0.02, 0.25)
SYNCS_HERE = 0.5  # share of peers whose disk is so quick that they wait for it
RECONNECT_S = 0.05
QUESTIONS_MAX = 200  # remembered to check answers; an answer that late is not checked
TURNS_MAX = 1000  # rounds of outputs after one input: more is an endless loop

REPLIES: dict[type, type[AppendEntriesReply | PvAppendReply | RequestVoteReply | PvVoteReply]] = {
    AppendEntries: AppendEntriesReply,
    PvAppend: PvAppendReply,
    RequestVote: RequestVoteReply,
    PvVote: PvVoteReply,
}


class EndedError(Exception):
    """The process ended in the middle of a turn."""


@dataclass
class Question:
    """A request whose answer is checked when it leaves."""

    message: AppendEntries | PvAppend | RequestVote | PvVote


class Node:
    """A peer that can crash, stop, lose its disk, and start again."""

    def __init__(self, world: "World", config: Config, stage: Stage) -> None:
        self.world = world
        self.config = config
        self.id = config.id
        self.stage = stage  # what a pod's token would remember
        self.disk = Disk()
        self.up = False
        self.damaged = False
        self.inputs = Inputs(world.schedule, lambda: world.time)
        self.wall_offset_s = 0
        self.slow_disk = False
        self.syncs_here = random.Random(f"{world.seed} {config.id}").random() < SYNCS_HERE
        self.disk_fails_until = 0.0
        self.sends_left: int | None = None  # it ends before the next message but so many
        self.rate = 1.0  # of its monotonic clock
        self.incarnation = 0
        self._mono = 0.0
        self.core: Core
        self.machine: Tree | None = None
        self.mirror = Mirror()
        self.sockets: dict[PeerChannel, Connection] = {}
        self.reconnecting: set[PeerChannel] = set()  # those that broke
        self.held: list[Send] = []
        self.questions: dict[tuple[bytes, bytes], Question] = {}
        self.timer_at: float | None = None
        self.syncing = False
        self.stored_ticket = 0

    @property
    def url(self) -> str:
        return self.config.url

    @property
    def role(self) -> Role:
        return self.core._node.role

    @property
    def term(self) -> int:
        return self.core._node.term

    @property
    def commit(self) -> int:
        return self.core._node.commit

    def describe(self) -> str:
        return str(self.core.status())

    def final_members(self) -> Members | None:
        """The members in force, if the change to them is over."""
        status = self.core.status()
        over = not status.effective.transitional and status.effective_index <= status.commit
        return status.effective.new if over else None

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        world = self.world
        self.up = True
        self.incarnation += 1
        self.sockets, self.held, self.questions = {}, [], {}
        self.reconnecting = set()
        self.timer_at, self.syncing, self.stored_ticket = None, False, 0
        recovered = self.disk.recovered(corrupt=self.damaged)
        self.damaged = False
        gone = self.world.checks.committed[: self.disk.first - 1]
        self.mirror = Mirror([*gone, *self.disk.entries], [], 0, 0, recovered.term)
        for index, entry in enumerate(self.mirror.entries, 1):
            if entry_type(entry) == EntryType.CONFIG:
                self.mirror.configurations.append(index)
        rng = random.Random(world.rng.getrandbits(32))
        self.machine = Tree() if self.config.serves_keys else None
        self.core = Core(self.config, recovered, self.disk, rng, self.now(), self.stage, self.machine)
        self.settle()
        self.world.js.restarted(self.id)
        self.world.restarted(self)

    def crash(self) -> None:
        self.up = False
        self.sends_left = None
        self.inputs.clear()
        self.disk.crash(self.world.rng)
        for connection in self.sockets.values():
            self.world.network.close(connection)
        self.world.node_gone(self.id)

    def now(self) -> Now:
        self._mono = max(self._mono, self.world.time * self.rate)
        return Now(self._mono, int(self.world.wall_s + self.world.time) + self.wall_offset_s)

    def act(self, what: Callable[[], None]) -> None:
        """Feed the core, later if the process is stopped at the moment, never if it has gone."""
        if self.up:
            self.inputs.give(lambda: self._act(what))

    def _act(self, what: Callable[[], None]) -> None:
        try:
            what()
            self.settle()
        except EndedError:
            self.world.ended(self)

    # --- inputs --------------------------------------------------------------------------------------------------

    def receive(self, route: bytes, frames: Frames) -> None:
        self.act(lambda: self._receive(route, frames))

    def _receive(self, route: bytes, frames: Frames) -> None:
        message = decode_request(frames, self.config.ident)
        if isinstance(message, AppendEntries | PvAppend | RequestVote | PvVote):
            self.questions[route, bytes(frames[0])] = Question(message)
            if len(self.questions) > QUESTIONS_MAX:
                del self.questions[next(iter(self.questions))]
        self.core.receive(route, frames, self.now())

    def _reply(self, to: PeerChannel, source: str, frames: Frames) -> None:
        if to.channel == Channel.RPC:
            self.world.js.answered(self.id, source, frames)
        self.core.reply(to.peer, to.channel, frames, self.now())

    def connection(self, to: PeerChannel, *, up: bool) -> None:
        self.act(lambda: self.core.connection(to.peer, to.channel, up, self.now()))

    def disconnected(self, to: PeerChannel) -> None:
        """A connection broke: it is made again as soon as somebody listens, unless the core closes it."""
        self.connection(to, up=False)
        self.reconnecting.add(to)
        self._reconnect_soon(to, self.incarnation)

    def _reconnect_soon(self, to: PeerChannel, incarnation: int) -> None:
        self.world.later(RECONNECT_S, lambda: self._reconnect(to, incarnation))

    def _reconnect(self, to: PeerChannel, incarnation: int) -> None:
        wanted = self.up and self.incarnation == incarnation and to in self.reconnecting and to not in self.sockets
        if wanted and self.connect(to) is None:
            self._reconnect_soon(to, incarnation)

    def _timer(self, due: float, incarnation: int) -> None:
        if self.up and self.incarnation == incarnation and self.timer_at == due:
            self.timer_at = None
            self._mono = max(self._mono, due)  # the clock of the world, times the rate, may round to less
            self.act(lambda: self.core.handle_timer(self.now()))

    # --- outputs -------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Carry out what the core wants until it wants nothing more, then check and arm the timer."""
        for _ in range(TURNS_MAX):
            outputs = self.core.outputs()
            if not (outputs.store or outputs.send or outputs.apply or outputs.events):
                break
            for command in outputs.store:
                self.world.checks.stored(self.id, self.mirror, command)
            self.disk.submit(outputs.store)
            for event in outputs.events:
                self._event(event)
            for send in outputs.send:
                self.held.append(send)
            self._release()
            self._sync_here()
            for work in outputs.apply:
                match work:
                    case Apply():
                        self._feed(work)
                        self.core.applied([Applied(work.first + len(work.entries) - 1)], self.now())
                    case Freeze():
                        self._save(work)
                    case Restore(index):
                        self._restore(index)
        else:
            raise AssertionError(f"{self.id} never comes to rest")
        self._check()
        self._sync()
        due = self.core.next_timer()
        if due is not None and (self.timer_at is None or due < self.timer_at):
            incarnation = self.incarnation
            self.timer_at = due
            self.world.schedule(max(due / self.rate, self.world.time), lambda: self._timer(due, incarnation))

    def _feed(self, batch: Apply) -> None:
        for index, entry in enumerate(batch.entries, batch.first):
            if self.machine is not None and entry_type(entry) == EntryType.STATE:
                reqid, data = entry_reqid(entry), entry_data(entry)
                self.world.keys.applied(self.id, self.machine, index, reqid, memoryview(data), self.world.time)

    def _save(self, freeze: Freeze) -> None:
        """Fix the state, write its file a little later; a crash in between leaves none."""
        assert self.machine is not None
        self.world.keys.saved(self.id, self.machine)
        data, level, incarnation = b"".join(self.machine.freeze()), self.machine.level, self.incarnation

        def saved() -> None:
            table = freeze.table
            ids, digests = join_groups(table.freeze(freeze.index))
            meta = SnapshotMeta(
                freeze.configuration,
                freeze.configuration_index,
                self.config.machine,
                level,
                table.floor,
                ids,
                freeze.bare,
                digests,
            )
            self.disk.save(freeze.index, freeze.term, meta, data)
            self.world.snapshots["taken"] += 1
            self.core.snapshot_saved(freeze.index, len(data), self.now())

        delay = self.world.rng.uniform(0.0, 0.3)
        self.world.schedule(
            self.world.time + delay, lambda: self.act(saved) if self.incarnation == incarnation and self.up else None
        )

    def _restore(self, index: int) -> None:
        incarnation, before = self.incarnation, self.machine
        if before is None:
            self.core.restored(index, self.now())
            return

        def restored() -> None:
            file = self.disk.snapshots[index]
            head, _ = scanned(file)
            before.restore([file[head.data_offset : head.data_offset + head.data_bytes]], index)
            self.world.snapshots["restored"] += 1
            self.world.keys.saved(self.id, before)
            self.core.restored(index, self.now())

        delay = self.world.rng.uniform(0.0, 0.1)
        self.world.schedule(
            self.world.time + delay, lambda: self.act(restored) if self.incarnation == incarnation and self.up else None
        )

    def _event(self, event: Event) -> None:
        checks = self.world.checks
        match event:
            case RoleChanged(_, Role.LEADER, term, _):
                checks.led(self.id, self.mirror, term)
            case VoteGranted():
                status = self.core.status()
                checks.voted(self.id, status.role, status.stage)
            case StageReached(stage):
                self.stage = max(self.stage, stage)
            case Disconnect(to):
                self.reconnecting.discard(to)
                connection = self.sockets.pop(to, None)
                if connection is not None:
                    self.world.network.close(connection)
            case SnapshotChanged(what, _, _):
                self.world.snapshots[what] += 1
                assert what != "bad", "a snapshot that nobody damaged is bad"
            case Corrupt(index) | Fork(index):
                raise AssertionError(f"{self.id} finds entry {index} damaged, which nobody damaged")
            case _:
                pass

    def _check(self) -> None:
        state = self.core._node  # status() after every event would be a quarter of the run
        checks = self.world.checks
        leads = state.role == Role.LEADER
        checks.advanced(self.id, self.mirror, state.commit, state.applied, state.term, leads=leads)
        checks.configured(self.id, self.mirror, state.configurations.index)
        holds(state.log.last == len(self.mirror.entries), "S13", f"{self.id} tells another last index than it stored")

    def _release(self) -> None:
        """Send what need not wait any longer, each group in order."""
        waiting: list[Send] = []
        for send in self.held:
            if send.after is not None and send.after > self.stored_ticket:
                waiting.append(send)
                continue
            if self.sends_left is not None:
                self.sends_left -= 1
                if self.sends_left < 0:
                    raise EndedError
            if isinstance(send.to, bytes):
                self._check_answer(send.to, send.frames)
                self.world.network.answer(send.to, send.frames)
            else:
                self._ask(send.to, send.frames)
        self.held = waiting

    def _ask(self, to: PeerChannel, frames: Frames) -> None:
        if to.channel == Channel.PUBLISH:
            return
        if frames[1] in {b"?", b"pv.vote"}:
            message = decode_request(frames, self.config.ident)
            assert isinstance(message, RequestVote | PvVote)
            if isinstance(message, RequestVote) or message.phase != PHASE_PREVOTE:
                self.world.checks.asked(self.id, self.disk, message.term)
        connection = self.sockets.get(to)
        if connection is None:
            connection = self.connect(to)
            if connection is None:
                return
        if frames[1] in {b"+", b"$"} and connection.target in self.world.js.names:
            self.world.js.sent(self.id, connection.target, self.term, frames)
        self.world.network.ask(connection, frames)

    def connect(self, to: PeerChannel) -> Connection | None:
        """Open a socket; nobody listening means that nothing is sent."""
        target = self.world.listening(to.url)
        if target is None:
            return None
        incarnation = self.incarnation

        def deliver(frames: Frames) -> None:
            if self.incarnation == incarnation:
                self.act(lambda: self._reply(to, target, frames))

        connection = self.world.network.open(self.id, target, deliver)
        self.sockets[to] = connection
        self.reconnecting.discard(to)
        self.world.later(0.0, lambda: self._connected(to, connection))
        return connection

    def _connected(self, to: PeerChannel, connection: Connection) -> None:
        if self.sockets.get(to) is connection:
            self.connection(to, up=True)

    def _check_answer(self, route: bytes, frames: Frames) -> None:
        question = self.questions.pop((route, bytes(frames[0])), None)
        if question is None:
            return
        message = question.message
        reply = decode_reply(REPLIES[type(message)], frames[1:])
        assert not isinstance(reply, Drop)
        success = reply.granted if isinstance(reply, RequestVoteReply | PvVoteReply) else reply.success
        self.world.checks.answered(self.id, self.disk, message, reply, success)

    def _sync_here(self) -> None:
        """What the adapter does where its disk is quick: make it durable at once, in the same turn."""
        fails = self.world.time < self.disk_fails_until
        if self.disk.queue and self.syncs_here and not (self.syncing or self.slow_disk or fails):
            self._stored(self.disk.sync(len(self.disk.queue)))

    def _sync(self) -> None:
        if self.syncing or not self.disk.queue:
            return
        self.syncing = True
        count, incarnation = len(self.disk.queue), self.incarnation
        latency = self.world.rng.uniform(*(SLOW_FSYNC_S if self.slow_disk else USUAL_FSYNC_S))
        self.world.schedule(self.world.time + latency, lambda: self._synced(count, incarnation))

    def _synced(self, count: int, incarnation: int) -> None:
        if self.incarnation != incarnation or not self.up:
            return
        if self.world.time < self.disk_fails_until:
            self.world.ended(self)  # 5.3: no second try, no more answers
            return
        ticket = self.disk.sync(count)
        self.act(lambda: self._stored(ticket))

    def _stored(self, ticket: int) -> None:
        self.syncing = False
        self.stored_ticket = ticket
        self.core.stored(Stored(ticket), self.now())
        self._release()
