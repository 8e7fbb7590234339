"""Updates of clients, exactly once (docs/specs/raft.md 10.2, 10.3), and the broadcast of what was applied (10.7)."""

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import PUBLISH, Apply, ProposalDone, Route, UpdateDone
from pavane.raft.core.transfer import Transfer
from pavane.raft.errors import Code, DropReason
from pavane.raft.machines import KeyValue
from pavane.raft.state.dedup import Freshness
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import EntryType, command_digest
from pavane.raft.wire.frames import ENTRY_DATA_BYTES, Frame, encode_uint
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


@dataclass(frozen=True, slots=True)
class CommandCaller:
    """A connection that asked by ``pv.kv`` and is told the result of its command (12.4)."""

    route: Route


@dataclass(frozen=True, slots=True)
class BatchCaller:
    """A connection that asked by ``pv.update`` under this id: what is to be told to it is gathered."""

    route: Route
    id: bytes


Requester = Route | CommandCaller | BatchCaller | int
"""A connection that asked by ``=``, by ``pv.kv`` or by ``pv.update``, or the ticket of a local caller."""


@dataclass(slots=True)
class _Pending:
    """An update in the log (``index``) or waiting to get there (0)."""

    reqid: bytes
    requesters: list[Requester]
    since: float
    size: int
    index: int = 0
    data: bytes = b""
    kind: EntryType = EntryType.STATE


class Serving:
    """The leader's table of updates not yet answered."""

    def __init__(self, node: Node, transfer: Transfer, freshness: Freshness, machine: KeyValue | None) -> None:
        """``machine`` is the one whose results clients ask for, if there is one."""
        self._node = node
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
        self._gathered: dict[BatchCaller, list[UpdateResult]] = {}
        self.first_write_ms: int | None = None
        self.last_write_ms: int | None = None

    def __len__(self) -> int:
        return len(self._pending)

    # --- requests ------------------------------------------------------------------------------------------------

    def update(self, route: Route, reqid: bytes, data: Frame) -> None:
        """Handle ``=``."""
        self._take(route, reqid, data, EntryType.STATE)

    def updates(
        self, route: Route, request_id: bytes, message: PvUpdate, refusal: Callable[[Frame], int] | None = None
    ) -> None:
        """Handle ``pv.update``; ``refusal`` gives the code with which the machine refuses data, 0 for none."""
        batch = BatchCaller(route, request_id)
        for reqid, data in message.items:
            code = refusal(data) if refusal is not None else Code.OK
            if code != Code.OK:
                self._gather(batch, reqid, code)
            else:
                self._take(batch, reqid, data, EntryType.STATE)
        self._tell()

    def command(self, route: Route, reqid: bytes, data: Frame) -> None:
        """Handle ``pv.kv``; the command was looked at."""
        self._take(CommandCaller(route), reqid, data, EntryType.STATE)

    def propose(self, ticket: int, reqid: bytes, data: bytes, kind: EntryType) -> None:
        """Handle an update of a local caller, who is told by ``ProposalDone``."""
        if not 1 <= len(data) <= ENTRY_DATA_BYTES:
            self._node.event(ProposalDone(ticket, None))
            return
        self._take(ticket, reqid, data, kind)

    def _take(self, requester: Requester, reqid: bytes, data: Frame, kind: EntryType) -> None:
        node = self._node
        if node.role != Role.LEADER:
            self._refuse(requester, reqid, "not_leader")
            return
        if self._is_taken(reqid, data, kind):
            self._refuse(requester, reqid, "taken")
            return
        pending = self._pending.get(reqid)
        if pending is not None:
            self._join(pending, requester)
            return
        index = node.dedup.index_of(reqid)
        if index is not None:
            self._repeat(requester, reqid, index)
        elif not self._freshness.fresh(reqid, node.now.wall_s, node.dedup.floor):
            self._refuse(requester, reqid, "expired")
        else:
            self._admit(_Pending(reqid, [requester], node.now.mono, len(data), kind=kind), data)

    def _is_taken(self, reqid: bytes, data: Frame, kind: EntryType) -> bool:
        """Whether another command came with this id: who holds a copy of another's memory makes equal ids."""
        known = self._node.dedup.find(reqid)
        if known is not None:
            return known[1] not in (0, command_digest(kind, data))
        pending = self._pending.get(reqid)
        return pending is not None and not pending.index and (pending.kind != kind or pending.data != data)

    def _repeat(self, requester: Requester, reqid: bytes, index: int) -> None:
        """The log has it already: perhaps from an earlier leader, perhaps not applied yet."""
        node = self._node
        if index <= node.applied:
            self._done(requester, reqid, index)
            node.event(UpdateDone(reqid, "repeat", index, 0.0, _method(requester)))
            return
        pending = _Pending(reqid, [requester], node.now.mono, 0, index)
        # A new leader is told again of all that its clients had under way: no walk through the queue for each.
        insort(self._logged, pending, key=attrgetter("index"))
        self._watch(pending)
        self._accept(requester, reqid)

    def _admit(self, pending: _Pending, data: Frame) -> None:
        node = self._node
        uncommitted = node.log.last - node.commit
        room = uncommitted < UNCOMMITTED_ENTRIES_MAX and self._logged_bytes + pending.size <= UNCOMMITTED_BYTES_MAX
        waits = self._transfer.target is not None or bool(self._queue) or (not room and uncommitted > 0)
        if waits and not self._room_to_wait(pending):
            node.drop(DropReason.OVERLOAD)
            requester = pending.requesters[0]
            node.event(UpdateDone(pending.reqid, "overload", 0, 0.0, _method(requester)))
            if isinstance(requester, BatchCaller):
                self._gather(requester, pending.reqid, Code.BUSY, RETRY_MS)
            elif isinstance(requester, CommandCaller):
                node.send(requester.route, (pending.reqid, *PvReply(Code.BUSY, RETRY_MS).encode()))
            return
        self._watch(pending)
        if waits:
            pending.data = bytes(data)
            self._queue.append(pending)
            self._queued_bytes += pending.size
        else:
            self._append(pending, data)
        self._accept(pending.requesters[0], pending.reqid)

    def _room_to_wait(self, pending: _Pending) -> bool:
        return len(self._queue) < PENDING_UPDATES_MAX and self._queued_bytes + pending.size <= PENDING_BYTES_MAX

    def _append(self, pending: _Pending, data: Frame) -> None:
        pending.index = self._node.append_own(pending.kind, data, pending.reqid)
        pending.data = b""
        self._logged.append(pending)
        self._logged_bytes += pending.size

    def _watch(self, pending: _Pending) -> None:
        self._pending[pending.reqid] = pending
        self._accepts.append((self._node.now.mono + ACCEPT_S, pending))

    def _join(self, pending: _Pending, requester: Requester) -> None:
        if requester not in pending.requesters:
            pending.requesters.append(requester)
            del pending.requesters[:-ROUTES_PER_REQID]
        self._accept(requester, pending.reqid)

    # --- course --------------------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Put what waits into the log, as far as there is room. Called after commits and transfers."""
        node = self._node
        while self._queue and node.role == Role.LEADER and self._transfer.target is None:
            uncommitted = node.log.last - node.commit
            full = uncommitted >= UNCOMMITTED_ENTRIES_MAX or (
                uncommitted > 0 and self._logged_bytes + self._queue[0].size > UNCOMMITTED_BYTES_MAX
            )
            if full:
                return
            pending = self._queue.popleft()
            self._queued_bytes -= pending.size
            self._append(pending, pending.data)

    def applied(self, index: int) -> None:
        """Answer every update up to ``index`` to all who asked."""
        node = self._node
        while self._logged and self._logged[0].index <= index:
            pending = self._logged.popleft()
            self._logged_bytes -= pending.size
            del self._pending[pending.reqid]
            for requester in pending.requesters:
                self._done(requester, pending.reqid, pending.index)
            taken_s = node.now.mono - pending.since
            node.event(UpdateDone(pending.reqid, "done", pending.index, taken_s, _method(pending.requesters[-1])))
            pending.requesters.clear()
        # Else the timer would wake the peer for each of them when there is nothing to say any more.
        while self._accepts and not self._accepts[0][1].requesters:
            self._accepts.popleft()
        self._tell()
        self.progress()

    def deposed(self, leader: str | None) -> None:
        """We no longer lead: whoever waits is sent to the next leader and repeats there with the same id."""
        for pending in self._pending.values():
            for requester in pending.requesters:
                self._refuse(requester, pending.reqid, "not_leader", leader)
            pending.requesters.clear()
        self._tell(leader)
        self._pending.clear()
        self._logged.clear()
        self._queue.clear()
        self._accepts.clear()
        self._logged_bytes = self._queued_bytes = 0
        self._publish_at = None

    def lead(self) -> None:
        """We lead: publish from now on, if there is a socket for it."""
        if self._node.config.broadcast_url:
            self._publish_at = self._node.now.mono

    # --- time ----------------------------------------------------------------------------------------------------

    def next_timer(self) -> float | None:
        """Return when waiting clients must hear of us, old ids be forgotten, or the PUB socket show life."""
        times = [self._forget_at]
        if self._accepts:
            times.append(self._accepts[0][0])
        if self._publish_at is not None:
            times.append(self._publish_at)
        return min(times)

    def timer(self) -> None:
        """Do what is due."""
        node = self._node
        now = node.now.mono
        while self._accepts and self._accepts[0][0] <= now:
            _, pending = self._accepts.popleft()
            if pending.requesters:
                for requester in pending.requesters:
                    self._accept(requester, pending.reqid, again=True)
                self._accepts.append((now + ACCEPT_S, pending))
        self._tell()
        if self._forget_at <= now:
            self._forget_at = now + FORGET_S
            node.dedup.forget_before(node.now.wall_s - self._freshness.ttl_s)
        if self._publish_at is not None and self._publish_at <= now:
            self._publish(node.applied, ())

    def publish(self, batch: Apply) -> None:
        """Publish a batch that was just applied, if we lead."""
        if self._publish_at is None or self._node.role != Role.LEADER:
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
        node = self._node
        node.send(PUBLISH, StateBroadcast(node.term, index, entries).encode(node.config.ident))
        self._publish_at = node.now.mono + node.config.broadcast_heartbeat / 1000

    # --- answers -------------------------------------------------------------------------------------------------

    def _gather(self, batch: BatchCaller, reqid: bytes, code: int, index: int = 0) -> None:
        self._gathered.setdefault(batch, []).append(UpdateResult(reqid, code, index))

    def _tell(self, leader: str | None = None) -> None:
        """Send what was gathered, one message to each who asked."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, {}
        leader = leader if leader is not None else self._node.leader
        for batch, results in gathered.items():
            self._node.send(batch.route, (batch.id, *PvUpdateReply(leader, tuple(results)).encode()))

    def _accept(self, requester: Requester, reqid: bytes, *, again: bool = False) -> None:
        """Say that an update is under way; a batch hears it only when that takes long: most are done before."""
        if isinstance(requester, bytes):
            self._node.send(requester, (reqid, *RequestUpdateReply(UpdateStatus.ACCEPTED).encode()))
        elif isinstance(requester, CommandCaller):
            self._node.send(requester.route, (reqid, *PvReply(Code.PENDING).encode()))
        elif isinstance(requester, BatchCaller) and again:
            self._gather(requester, reqid, Code.PENDING)

    def _done(self, requester: Requester, reqid: bytes, index: int) -> None:
        wall_ms = self._node.now.wall_s * 1000 + self._node.now.wall_part_ms
        self.first_write_ms = self.first_write_ms if self.first_write_ms is not None else wall_ms
        self.last_write_ms = wall_ms
        if isinstance(requester, BatchCaller):
            self._gather(requester, reqid, Code.OK, index)
        elif isinstance(requester, int):
            self._node.event(ProposalDone(requester, index))
        elif isinstance(requester, CommandCaller):
            self._node.send(requester.route, (reqid, *self._outcome(reqid, index)))
        else:
            self._node.send(requester, (reqid, *RequestUpdateReply(UpdateStatus.DONE, index).encode()))

    def _outcome(self, reqid: bytes, index: int) -> tuple[Frame, ...]:
        """What ``pv.kv`` says of an applied command, behind the id."""
        result = self._machine.result_of(reqid) if self._machine is not None else None
        if result is None:
            return (encode_uint(Code.RESULT_LOST), encode_pv(index))
        return (encode_uint(result.code), result.data)

    def _refuse(self, requester: Requester, reqid: bytes, result: str, leader: str | None = None) -> None:
        node = self._node
        node.event(UpdateDone(reqid, result, 0, 0.0, _method(requester)))
        if isinstance(requester, int):
            node.event(ProposalDone(requester, None))
        elif isinstance(requester, BatchCaller):
            self._gather(requester, reqid, _REFUSALS[result])
        elif isinstance(requester, CommandCaller):
            code = _REFUSALS[result]
            reply = PvReply(code, leader or node.leader) if code == Code.NOT_LEADER else PvReply(code)
            node.send(requester.route, (reqid, *reply.encode()))
        elif result != "not_leader":
            # The document knows no other refusal for an id that cannot be used.
            node.send(requester, (reqid, *RequestUpdateReply(UpdateStatus.EXPIRED).encode()))
        else:
            leader = leader if leader is not None else node.leader
            node.send(requester, (reqid, *RequestUpdateReply(UpdateStatus.NOT_LEADER, leader=leader).encode()))


_REFUSALS = {"not_leader": Code.NOT_LEADER, "expired": Code.EXPIRED, "taken": Code.ID_TAKEN}


def _method(requester: Requester) -> str:
    # An update that came in a batch is one like any other: its client does not know how it travels.
    return "pv.kv" if isinstance(requester, CommandCaller) else "RequestUpdate"
