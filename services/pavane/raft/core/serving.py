"""Updates of clients, exactly once (docs/specs/raft.md 10.2, 10.3), and the broadcast of what was applied (10.7)."""

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import ClassVar, Protocol

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import PUBLISH, Apply, Route, UpdateDone
from pavane.raft.core.transfer import Transfer
from pavane.raft.errors import Code, DropReason
from pavane.raft.machines.keyvalue import KeyValue
from pavane.raft.state.dedup import Freshness, Known
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import EntryType, command_digest, encode_entry
from pavane.raft.wire.frames import Frame, encode_uint
from pavane.raft.wire.msgpack import encode_pv
from pavane.raft.wire.pv import PvReply
from pavane.raft.wire.pv_update import PvUpdate, PvUpdateReply, UpdateResult
from pavane.raft.wire.replies import RequestUpdateReply, UpdateStatus
from pavane.raft.wire.requests import StateBroadcast

ACCEPT_S = 0.2  # an original client goes elsewhere after 500 ms of silence (1.2 D9)
ROUTES_PER_REQID = 4  # connections told of the end; the newest are kept
UNCOMMITTED_ENTRIES_MAX = 100_000  # of a leader's log; what a follower would have to take before anything commits
UNCOMMITTED_BYTES_MAX = 64 * 1024 * 1024
PENDING_UPDATES_MAX = 65_536  # waiting outside the log
PENDING_BYTES_MAX = 64 * 1024 * 1024
RETRY_MS = 100  # after which somebody whose update found no room may try again
FORGET_S = 10.0  # pause between two looks for request ids past their time to live
PUBLISH_BYTES = 64 * 1024  # entries in one message of the PUB socket


_REFUSALS = {Code.NOT_LEADER: "not_leader", Code.EXPIRED: "expired", Code.ID_TAKEN: "taken", Code.BUSY: "overload"}
# The document knows no other refusal for an id that cannot be used, and none where there is no room.
_STATUSES = {
    Code.PENDING: UpdateStatus.ACCEPTED,
    Code.OK: UpdateStatus.DONE,
    Code.NOT_LEADER: UpdateStatus.NOT_LEADER,
    Code.EXPIRED: UpdateStatus.EXPIRED,
    Code.ID_TAKEN: UpdateStatus.EXPIRED,
}


# What every update is asked for; with Python 3.11 a member of an enumeration costs ten times a global.
_OK, _PENDING, _BUSY, _LEADER = Code.OK, Code.PENDING, Code.BUSY, Role.LEADER


class Requester(Protocol):
    """Who asked for an update."""

    method: ClassVar[str] = "RequestUpdate"  # also in a batch: clients do not know how their updates travel

    def tell(self, serving: "Serving", reqid: bytes, code: Code, index: int = 0, *, again: bool = False) -> None:
        """Say that it is under way (PENDING), done at ``index`` (OK) or refused; ``again``: it has taken long."""


@dataclass(frozen=True, slots=True)
class _Connection(Requester):
    """A connection that asked by ``=``."""

    route: Route

    def tell(self, serving: "Serving", reqid: bytes, code: Code, index: int = 0, *, again: bool = False) -> None:
        if code in _STATUSES:
            serving.node.answer(self.route, reqid, RequestUpdateReply(_STATUSES[code], index, serving.node.leader))


@dataclass(frozen=True, slots=True)
class _CommandCaller(Requester):
    """A connection that asked by ``pv.kv`` and is told the result of its command (12.4)."""

    route: Route
    method = "pv.kv"

    def tell(self, serving: "Serving", reqid: bytes, code: Code, index: int = 0, *, again: bool = False) -> None:
        values = {Code.NOT_LEADER: serving.node.leader, Code.BUSY: RETRY_MS}
        frames = serving.outcome(reqid, index) if code == Code.OK else PvReply(code, values.get(code)).encode()
        serving.node.send(self.route, (reqid, *frames))


@dataclass(frozen=True, slots=True)
class _BatchCaller(Requester):
    """A connection that asked by ``pv.update`` under this id: what is to be told to it is gathered."""

    route: Route
    id: bytes
    results: list[UpdateResult] = field(default_factory=list, compare=False)

    def tell(self, serving: "Serving", reqid: bytes, code: Code, index: int = 0, *, again: bool = False) -> None:
        if code is not _PENDING or again:  # most are done before anybody must hear that they are under way
            if not self.results:
                serving.batches.append(self)
            self.results.append(UpdateResult(reqid, code, RETRY_MS if code is _BUSY else index))


@dataclass(slots=True)
class _Pending:
    """An update in the log (``index``) or waiting to get there (0)."""

    reqid: bytes
    requesters: list[Requester]
    since: float
    size: int
    index: int = 0
    data: Frame = b""


class Serving:
    """The leader's table of updates not yet answered."""

    def __init__(self, node: Node, transfer: Transfer, freshness: Freshness, machine: KeyValue | None) -> None:
        """``machine`` is the one whose results clients ask for, if there is one."""
        self.node = node
        self._machine = machine
        self._transfer = transfer
        self._freshness = freshness
        self._pending: dict[bytes, _Pending] = {}
        self._logged: deque[_Pending] = deque()  # ascending index
        self._queue: deque[_Pending] = deque()
        self._accepts: deque[tuple[float, _Pending]] = deque()
        self._logged_bytes = 0
        self._queued_bytes = 0
        self._forget_at = node.now.mono + FORGET_S
        self._publish_at: float | None = None
        self.batches: list[_BatchCaller] = []  # that have results, which are told with the end of this turn
        self._next: list[_Pending] = []  # to be appended with the end of this call
        self.first_write_ms: int | None = None
        self.last_write_ms: int | None = None

    def __len__(self) -> int:
        return len(self._pending)

    # --- requests ------------------------------------------------------------------------------------------------

    def update(self, route: Route, reqid: bytes, data: Frame) -> None:
        """Handle ``=``."""
        self._take(_Connection(route), reqid, data)
        self._append()

    def updates(
        self, route: Route, request_id: bytes, message: PvUpdate, refusal: Callable[[Frame], int] | None = None
    ) -> None:
        """Handle ``pv.update``; ``refusal`` gives the code with which the machine refuses data, 0 for none."""
        batch = _BatchCaller(route, request_id)
        for reqid, data in message.items:
            if refusal is not None and (code := refusal(data)):
                batch.tell(self, reqid, Code(code))
            else:
                self._take(batch, reqid, data)
        self._append()
        self._tell()

    def command(self, route: Route, reqid: bytes, data: Frame) -> None:
        """Handle ``pv.kv``; the command was looked at."""
        self._take(_CommandCaller(route), reqid, data)
        self._append()

    def _take(self, requester: Requester, reqid: bytes, data: Frame) -> None:
        node = self.node
        if node.role is not _LEADER:
            self._refuse(requester, reqid, Code.NOT_LEADER)
            return
        known, pending = node.dedup.find(reqid), self._pending.get(reqid)
        if (known or pending) and self._is_taken(known, pending, data):
            self._refuse(requester, reqid, Code.ID_TAKEN)
        elif pending is not None:
            self._join(pending, requester)
        elif known is not None:
            self._repeat(requester, reqid, known[0])
        elif not self._freshness.fresh(reqid, node.now.wall_s, node.dedup.floor):
            self._refuse(requester, reqid, Code.EXPIRED)
        else:
            self._admit(_Pending(reqid, [requester], node.now.mono, len(data)), data)

    def _is_taken(self, known: Known | None, pending: _Pending | None, data: Frame) -> bool:
        """Whether another command came with this id: who holds a copy of another's memory makes equal ids."""
        if known is not None:
            return known[1] not in (0, command_digest(EntryType.STATE, data))
        return pending is not None and not pending.index and pending.data != data

    def _repeat(self, requester: Requester, reqid: bytes, index: int) -> None:
        """The log has it already: perhaps from an earlier leader, perhaps not applied yet."""
        node = self.node
        if index <= node.applied:
            self._wrote()
            requester.tell(self, reqid, Code.OK, index)
            node.event(UpdateDone(reqid, "repeat", index, 0.0, requester.method))
            return
        pending = _Pending(reqid, [requester], node.now.mono, 0, index)
        # A new leader is told again of all that its clients had under way: no walk through the queue for each.
        insort(self._logged, pending, key=attrgetter("index"))
        self._watch(pending)
        requester.tell(self, reqid, Code.PENDING)

    def _admit(self, pending: _Pending, data: Frame) -> None:
        waits = self._transfer.target is not None or bool(self._queue) or self._full(pending.size)
        if waits and not self._room_to_wait(pending):
            self.node.drop(DropReason.OVERLOAD)
            self._refuse(pending.requesters[0], pending.reqid, Code.BUSY)
            return
        self._watch(pending)
        if waits:
            pending.data = bytes(data)
            self._queue.append(pending)
            self._queued_bytes += pending.size
        else:
            pending.data = data
            self._plan(pending)
        pending.requesters[0].tell(self, pending.reqid, _PENDING)

    def _full(self, size: int) -> bool:
        """Whether so much must wait outside the log; where all is committed, anything goes into it."""
        uncommitted = self.node.log.last + len(self._next) - self.node.commit
        large = self._logged_bytes + size > UNCOMMITTED_BYTES_MAX
        return uncommitted >= UNCOMMITTED_ENTRIES_MAX or (uncommitted > 0 and large)

    def _room_to_wait(self, pending: _Pending) -> bool:
        return len(self._queue) < PENDING_UPDATES_MAX and self._queued_bytes + pending.size <= PENDING_BYTES_MAX

    def _plan(self, pending: _Pending) -> None:
        self._next.append(pending)
        self._logged_bytes += pending.size

    def _append(self) -> None:
        """Put into the log what goes there now, all at once: most updates come many in a message."""
        if not self._next:
            return
        planned, self._next = self._next, []
        node = self.node
        first, term, kind = node.log.last + 1, node.term, EntryType.STATE
        node.append([encode_entry(pending.reqid, kind, term, pending.data) for pending in planned], "leader")
        for index, pending in enumerate(planned, first):
            pending.index = index
            pending.data = b""
        self._logged += planned

    def _watch(self, pending: _Pending) -> None:
        self._pending[pending.reqid] = pending
        self._accepts.append((self.node.now.mono + ACCEPT_S, pending))

    def _join(self, pending: _Pending, requester: Requester) -> None:
        if requester not in pending.requesters:
            pending.requesters.append(requester)
            del pending.requesters[:-ROUTES_PER_REQID]
        requester.tell(self, pending.reqid, Code.PENDING)

    # --- course --------------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Put what waits into the log, as far as there is room. Called after commits and transfers."""
        node = self.node
        while self._queue and node.role == Role.LEADER and self._transfer.target is None:
            if self._full(self._queue[0].size):
                break
            pending = self._queue.popleft()
            self._queued_bytes -= pending.size
            self._plan(pending)
        self._append()

    def applied(self, index: int) -> None:
        """Answer every update up to ``index`` to all its requesters."""
        node = self.node
        if self._logged and self._logged[0].index <= index:
            self._wrote()
        while self._logged and self._logged[0].index <= index:
            pending = self._logged.popleft()
            self._logged_bytes -= pending.size
            del self._pending[pending.reqid]
            for requester in pending.requesters:
                requester.tell(self, pending.reqid, _OK, pending.index)
            taken_s = node.now.mono - pending.since
            node.event(UpdateDone(pending.reqid, "done", pending.index, taken_s, pending.requesters[-1].method))
            pending.requesters.clear()
        # Else the timer would wake the peer for each of them when there is nothing to say any more.
        while self._accepts and not self._accepts[0][1].requesters:
            self._accepts.popleft()
        self._tell()
        self.progress()

    def deposed(self) -> None:
        """We no longer lead: waiting clients are sent to the next leader and repeat there with the same id."""
        for pending in self._pending.values():
            for requester in pending.requesters:
                self._refuse(requester, pending.reqid, Code.NOT_LEADER)
            pending.requesters.clear()
        self._tell()
        self._pending.clear()
        self._logged.clear()
        self._queue.clear()
        self._accepts.clear()
        self._logged_bytes = self._queued_bytes = 0
        self._publish_at = None

    def lead(self) -> None:
        """We lead: publish from now on, if there is a socket for it."""
        if self.node.config.broadcast_url:
            self._publish_at = self.node.now.mono

    # --- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float | None:
        """Return when waiting clients are due an answer, old ids are forgotten, or the PUB socket sends a heartbeat."""
        times = [self._forget_at]
        if self._accepts:
            times.append(self._accepts[0][0])
        if self._publish_at is not None:
            times.append(self._publish_at)
        return min(times)

    def timer(self) -> None:
        """Do what is due."""
        node = self.node
        now = node.now.mono
        while self._accepts and self._accepts[0][0] <= now:
            _, pending = self._accepts.popleft()
            if pending.requesters:
                for requester in pending.requesters:
                    requester.tell(self, pending.reqid, Code.PENDING, again=True)
                self._accepts.append((now + ACCEPT_S, pending))
        self._tell()
        if self._forget_at <= now:
            self._forget_at = now + FORGET_S
            node.dedup.forget_before(node.now.wall_s - self._freshness.ttl_s)
        if self._publish_at is not None and self._publish_at <= now:
            self._publish(node.applied, ())

    def publish(self, batch: Apply) -> None:
        """Publish a batch that was just applied, if we lead."""
        if self._publish_at is None or self.node.role != Role.LEADER:
            return
        group: list[Frame] = []
        size = 0
        for position, entry in enumerate(batch.entries):
            if group and size + len(entry) > PUBLISH_BYTES:
                self._publish(batch.first + position - 1, tuple(group))
                group, size = [], 0
            group.append(entry)
            size += len(entry)
        self._publish(batch.first + len(batch.entries) - 1, tuple(group))

    def _publish(self, index: int, entries: tuple[Frame, ...]) -> None:
        node = self.node
        node.send(PUBLISH, StateBroadcast(node.term, index, entries).encode(node.config.ident))
        self._publish_at = node.now.mono + node.config.broadcast_heartbeat / 1000

    # --- answers -------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Send what was gathered, one message to each who asked."""
        batches, self.batches = self.batches, []
        for batch in batches:
            self.node.answer(batch.route, batch.id, PvUpdateReply(self.node.leader, tuple(batch.results)))
            batch.results.clear()

    def _wrote(self) -> None:
        wall_ms = self.node.now.wall_s * 1000 + self.node.now.wall_part_ms
        self.first_write_ms = self.first_write_ms if self.first_write_ms is not None else wall_ms
        self.last_write_ms = wall_ms

    def outcome(self, reqid: bytes, index: int) -> tuple[Frame, ...]:
        """Return what ``pv.kv`` says of an applied command, behind the id."""
        result = self._machine.result_of(reqid) if self._machine is not None else None
        if result is None:
            return (encode_uint(Code.RESULT_LOST), encode_pv(index))
        return (encode_uint(result.code), result.data)

    def _refuse(self, requester: Requester, reqid: bytes, code: Code) -> None:
        self.node.event(UpdateDone(reqid, _REFUSALS[code], 0, 0.0, requester.method))
        requester.tell(self, reqid, code)
