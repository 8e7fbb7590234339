"""Serving a key-value machine: commands, reads and leases (docs/specs/raft.md 4.4, 12.4, 12.5, 12.7)."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from pavane.raft.core.barrier import Barriers
from pavane.raft.core.budget import Budget
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import LeasesEnded, Route
from pavane.raft.core.serving import Serving
from pavane.raft.core.transfer import Transfer
from pavane.raft.core.watching import Watching
from pavane.raft.errors import Code, DropReason
from pavane.raft.machines.commands import Failed, LeaseExpire, encode_command
from pavane.raft.machines.keeper import LeaseKeeper
from pavane.raft.machines.keyvalue import KeyValue, decode_lease_ids, decode_query
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import CHECKPOINT_DATA, EntryType
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import PvKv, PvLease, PvRead, PvReply
from pavane.raft.wire.pv_update import PvUpdate
from pavane.raft.wire.requests import RequestUpdate

READ_WAIT_S = 1.0  # for a revision that is not applied yet (12.5)
WAITING_MAX = 10_000  # reads, and keep-alives: as many as wait for barriers
BUSY_MS = 1000  # told to those who are to come again
TICK_S = 0.05  # a leader with leases looks this often whether it was stopped (12.7 L6)


@dataclass(frozen=True, slots=True)
class _Read:
    """A read of any peer that waits for ``revision``."""

    deadline: float
    route: Route
    id: bytes
    ops: Value
    revision: int


@dataclass(frozen=True, slots=True)
class _KeepAlive:
    """A keep-alive that came at ``received`` and has passed its barrier."""

    route: Route
    id: bytes
    leases: tuple[int, ...]
    received: float


@dataclass(frozen=True, slots=True)
class _Ending:
    """An entry of ours that ends ``count`` leases, on its way."""

    index: int
    reqid: bytes
    count: int
    since: float


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """How much there is of what has limits (14.4); ``history_floor`` is the first revision that can be watched.

    ``commands`` are those applied since the start by name and code, ``expired`` the leases that were ended by time.
    """

    keys: int
    size: int
    leases: int
    watches: int
    history_floor: int
    commands: Mapping[tuple[str, str], int]
    expired: int


class Keyspace:
    """What clients of the machine ask and what its leases need; ``watching`` serves the watchers of its history."""

    def __init__(self, node: Node, barriers: Barriers, serving: Serving, transfer: Transfer, machine: KeyValue) -> None:
        self._node = node
        self._barriers = barriers
        self._serving = serving
        self._transfer = transfer
        self._machine = machine
        self._reads: deque[_Read] = deque()
        self._budget = Budget()
        self._unproven: list[_KeepAlive] = []
        self._keeper: LeaseKeeper | None = None
        self._ending: deque[_Ending] = deque()
        self._tick_at = 0.0
        self.watching = Watching(node, machine)

    # --- requests ----------------------------------------------------------------------------------------------------

    def update(self, route: Route, request_id: Frame, message: RequestUpdate) -> None:
        """Handle ``=``: a command whose outcome does not matter. It has no word for a refusal, so that is a drop."""
        try:
            self._machine.check(message.data)
        except Failed:
            self._node.drop(DropReason.TYPE)
            return
        self._serving.update(route, bytes(request_id), message.data)

    def updates(self, route: Route, request_id: Frame, message: PvUpdate) -> None:
        """Handle ``pv.update``: as ``=``, for many commands."""
        self._serving.updates(route, bytes(request_id), message, self._refusal)

    def command(self, route: Route, request_id: Frame, message: PvKv) -> None:
        """Handle ``pv.kv``: as ``=``, and the result is told."""
        if self._node.role == Role.LEADER:
            try:
                self._machine.check(message.command)
            except Failed as failed:
                self._reply(route, request_id, failed.code, failed.argument)
                return
        self._serving.command(route, bytes(request_id), message.command)

    def read(self, route: Route, request_id: Frame, message: PvRead) -> None:
        """Handle ``pv.read``: here and now, or at the leader behind a barrier."""
        request_id = bytes(request_id)
        try:
            ops, revision = decode_query(message.query)
        except Failed as failed:
            self._reply(route, request_id, failed.code, failed.argument)
            return
        if self._node.role == Role.REMOVED:
            self._moved(route, request_id)
        elif revision is not None:
            self._read_at(_Read(self._node.now.mono + READ_WAIT_S, route, request_id, ops, revision))
        elif self._leads(route, request_id):
            self._barriers.wait(lambda ok: self._read(route, request_id, ops) if ok else self._moved(route, request_id))

    def keep_alive(self, route: Route, request_id: Frame, message: PvLease) -> None:
        """Handle ``pv.lease``: an answer promises time, so it waits until nobody else can have led meanwhile (L4)."""
        node, request_id = self._node, bytes(request_id)
        try:
            leases = decode_lease_ids(message.leases)
        except Failed as failed:
            self._reply(route, request_id, failed.code, failed.argument)
            return
        if not self._leads(route, request_id):
            return
        self._notice_stop()  # before the time of this one is counted
        if node.log.last_term != node.term:
            node.append_own(EntryType.CHECKPOINT, CHECKPOINT_DATA)
        asked = _KeepAlive(route, request_id, leases, node.now.mono)
        self._barriers.wait(lambda ok: self._keep(asked) if ok else self._moved(route, request_id))

    def counts(self) -> KeyCounts:
        """Return how much there is."""
        state = self._machine.state
        entries = len(state.keys) + len(state.nodes)
        machine = self._machine
        return KeyCounts(
            keys=entries,
            size=state.bytes,
            leases=len(state.leases),
            watches=len(self.watching),
            history_floor=state.history.floor,
            commands=machine.applied,
            expired=machine.expired,
        )

    # --- course ------------------------------------------------------------------------------------------------------

    def lead(self) -> None:
        """We lead: every lease has its full time from now on (L3)."""
        self._keeper = LeaseKeeper(self._machine.state.leases, self._node.now.mono)
        self._tick_at = self._node.now.mono + TICK_S

    def deposed(self) -> None:
        """We no longer lead: clients whose keep-alive waits ask the next leader."""
        self._keeper = None
        self._ending.clear()
        for asked in self._unproven:
            self._moved(asked.route, asked.id)
        self._unproven.clear()

    def applied(self) -> None:
        """Go on with what waits for entries to be applied."""
        keeper = self._keeper
        if keeper is not None:
            if keeper.next_timer() is None:
                self._tick_at = self._node.now.mono + TICK_S  # without leases nobody looked
            keeper.applied(self._node.now.mono)
        while self._ending and self._ending[0].index <= self._node.applied:
            ended = self._ending.popleft()
            seconds = self._node.now.mono - ended.since
            self._node.event(LeasesEnded(ended.reqid, ended.index, ended.count, seconds))
        waiting, self._unproven = self._unproven, []
        for asked in waiting:
            self._keep(asked)
        ready = [read for read in self._reads if read.revision <= self._node.applied]
        if ready:
            self._reads = deque(read for read in self._reads if read.revision > self._node.applied)
            for read in ready:
                self._read(read.route, read.id, read.ops)
        self.watching.applied()

    def restored(self) -> None:
        """The machine began from a snapshot: a leader that was elected meanwhile gives its leases their full time."""
        if self._keeper is not None:
            self.lead()
        self.applied()

    def next_timer(self) -> float | None:
        """Return when a lease may have ended, a read has waited long enough, or watchers must be looked after."""
        times = [self.watching.next_timer()]
        if self._reads:
            times.append(self._reads[0].deadline)
        if self._keeper is not None and self._keeper.next_timer() is not None:
            times.append(self._tick_at)
        return min((time for time in times if time is not None), default=None)

    def timer(self) -> None:
        """Do what is due."""
        now = self._node.now.mono
        while self._reads and self._reads[0].deadline <= now:
            read = self._reads.popleft()
            self._reply(read.route, read.id, Code.BUSY, BUSY_MS)
        if self._keeper is not None and self._tick_at <= now:
            self._notice_stop()
            self._tick_at = now + TICK_S
            self._end_leases(self._keeper)
        self.watching.timer()

    def _notice_stop(self) -> None:
        """Time in which this process was stopped does not count for any lease: nobody could renew (L6)."""
        now = self._node.now.mono
        if self._keeper is not None and self._keeper.next_timer() is not None and self._tick_at < now:
            self._keeper.late(now - self._tick_at)
            self._tick_at = now

    def _end_leases(self, keeper: LeaseKeeper) -> None:
        """Propose the end of leases whose time is over."""
        node = self._node
        if self._transfer.target is not None:
            return
        leases = keeper.due(node.now.mono)
        if leases:
            reqid = node.now.wall_s.to_bytes(4, "big") + node.rng.randbytes(8)
            index = node.append_own(EntryType.STATE, encode_command(LeaseExpire(leases)), reqid)
            self._ending.append(_Ending(index, reqid, len(leases), node.now.mono))

    # --- answers -----------------------------------------------------------------------------------------------------

    def _read_at(self, read: _Read) -> None:
        if read.revision <= self._node.applied:
            self._read(read.route, read.id, read.ops)
        elif len(self._reads) >= WAITING_MAX:
            self._reply(read.route, read.id, Code.BUSY, BUSY_MS)
        else:
            self._reads.append(read)

    def _read(self, route: Route, request_id: bytes, ops: Value) -> None:
        try:
            found: Value = [int(Code.OK), self._node.applied, self._machine.read(ops)]
        except Failed as failed:
            self._reply(route, request_id, failed.code, failed.argument)
        else:
            answer = PvReply(Code.OK, found).encode()
            wait_s = self._budget.wait_s(route, sum(map(len, answer)), self._node.now.mono)
            if wait_s:
                self._reply(route, request_id, Code.BUSY, math.ceil(wait_s * 1000))
            else:
                self._node.send(route, (request_id, *answer))

    def _keep(self, asked: _KeepAlive) -> None:
        node, keeper = self._node, self._keeper
        if keeper is None or node.log.term_at(node.commit) != node.term:
            if len(self._unproven) < WAITING_MAX:
                self._unproven.append(asked)
            else:
                self._reply(asked.route, asked.id, Code.BUSY, BUSY_MS)
            return
        kept: list[Value] = [[lease, ttl_ms] for lease, ttl_ms in keeper.renew(asked.leases, asked.received)]
        self._reply(asked.route, asked.id, Code.OK, kept)

    def _leads(self, route: Route, request_id: bytes) -> bool:
        """Whether a barrier can be asked for; if not, it is said why."""
        if self._node.role != Role.LEADER:
            self._moved(route, request_id)
        elif self._barriers.full:
            self._reply(route, request_id, Code.BUSY, BUSY_MS)
        else:
            return True
        return False

    def _moved(self, route: Route, request_id: bytes) -> None:
        self._reply(route, request_id, Code.NOT_LEADER, self._node.leader)

    def _refusal(self, data: Frame) -> int:
        try:
            self._machine.check(data)
        except Failed as failed:
            return failed.code
        return Code.OK

    def _reply(self, route: Route, request_id: Frame, code: Code, value: Value) -> None:
        self._node.answer(route, request_id, PvReply(code, value))
