"""The peer's state machine without I/O (docs/specs/raft.md 5.2).

Duties of whoever drives it (5.3), after each batch of inputs: take ``outputs()``; handle ``Disconnect`` events; execute
``store`` in order and report ``stored`` after the fsync; release every ``Send`` once its ticket is durable, each group
(with the same ticket, or none) in order; give ``apply`` to the machine in order and report ``applied``; then arm one
timer for ``next_timer()`` and call ``handle_timer`` with the true time, however late. A failed write or fsync ends the
process: no retry, no more answers.
"""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pavane.raft.config import Config
from pavane.raft.core.barrier import Barriers
from pavane.raft.core.election import Election
from pavane.raft.core.entry_streams import EntryStreams
from pavane.raft.core.follower import Follower
from pavane.raft.core.installing import Installing
from pavane.raft.core.keyspace import KeyCounts, Keyspace
from pavane.raft.core.learner import Learner
from pavane.raft.core.learner_streams import LearnerStreams
from pavane.raft.core.lifelines import Lifelines
from pavane.raft.core.membership import Membership
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Applied, Channel, Now, Outputs, Route, StageReached, TransferChanged
from pavane.raft.core.programs import Program, Programs
from pavane.raft.core.recovering import Recovering
from pavane.raft.core.replication import QUORUM_TIMEOUTS, Replication
from pavane.raft.core.requests import Requests
from pavane.raft.core.serving import Serving
from pavane.raft.core.snapshots import Snapshots
from pavane.raft.core.status import Fence, Status, picture, status_value
from pavane.raft.core.tally import Tally
from pavane.raft.core.transfer import Transfer
from pavane.raft.errors import Code, DropReason
from pavane.raft.machines.keyvalue import KeyValue
from pavane.raft.machines.limits import LEVEL_FIRST
from pavane.raft.state.commands import RECOVERING_FLOOR, EntrySource, Recovered, Stored
from pavane.raft.state.configuration import Members, fault_in
from pavane.raft.state.dedup import Freshness
from pavane.raft.state.roles import Role
from pavane.raft.wire.decoder import Drop, decode_request
from pavane.raft.wire.entry import CHECKPOINT_DATA, EntryType, bootstrap_entry
from pavane.raft.wire.frames import Frame, Frames
from pavane.raft.wire.pv import (
    PvAppend,
    PvFollow,
    PvHello,
    PvKv,
    PvLease,
    PvNow,
    PvRead,
    PvReply,
    PvSnapshot,
    PvStatus,
    PvTransfer,
    PvVote,
    PvWatch,
    PvWatchAcknowledge,
    PvWatchReply,
)
from pavane.raft.wire.pv_update import PvUpdate
from pavane.raft.wire.replies import RequestBroadcastUrlReply, RequestConfigReply, RequestLogInfoReply
from pavane.raft.wire.requests import (
    AppendEntries,
    ClientDispatch,
    ConfigUpdate,
    InstallSnapshot,
    PeerPoll,
    RequestBroadcastUrl,
    RequestConfig,
    RequestEntries,
    RequestLogInfo,
    RequestUpdate,
    RequestVote,
)
from pavane.wire import LocalProtocolError, Stage

if TYPE_CHECKING:
    from random import Random  # given by the caller: nothing in here draws by itself


Dispatch = Callable[[bytes, Frames, bool], Sequence[bytes] | None]


class Timed(Protocol):
    """A part with timers."""

    def next_timer(self) -> float | None:
        """Return the monotonic second of the next time, ``None`` for never."""
        ...

    def timer(self) -> None:
        """Do what is due."""
        ...


class Core:
    """One peer. Every input takes the time; no method blocks, and none raises for a mistake of a peer or client."""

    def __init__(
        self,
        config: Config,
        recovered: Recovered,
        source: EntrySource,
        rng: "Random",
        now: Now,
        stage: Stage = Stage.READ_WRITE,
        machine: KeyValue | None = None,
        dispatch: Dispatch | None = None,
        *,
        compacts: bool = False,
    ) -> None:
        """Start from what the store found. ``stage`` is ReadWrite for a peer without a platform, Creation in a pod.

        ``machine`` is the one that the caller feeds, if it is one that clients ask: it is only read here. ``dispatch``
        answers requests of an application's own (10.7): (type, frames, whether we lead) → frames, or ``None``.
        ``compacts`` says that the caller can answer ``Freeze`` without a ``machine`` (9.1).
        """
        config.validate()
        self.config = config
        node = self._node = Node(config, recovered, source, rng, now, stage, self)
        freshness = Freshness(config.request_id_ttl_s, config.margin_s)
        self._initial: Members = ()
        self._dispatch = dispatch
        self._requests = Requests(node)
        self._programs = Programs(node, self._requests, recovered.notes)
        self._recovering = Recovering(node, self._requests)
        self._election = Election(
            node, self._requests, self._programs, self._recovering, self._won, self._leader_heard_at
        )
        self._follower = Follower(node, self._election, self._recovering)
        self._installing = Installing(
            node,
            self._requests,
            self._follower,
            self._election,
            self._recovering,
            lambda: node.now.wall_s - (config.request_id_ttl_s - config.margin_s),
        )
        self._snapshots = Snapshots(node, lambda: machine is not None or (compacts and not self._mixed()))
        self._replication = Replication(node, self._requests, self._programs, self)
        self._barriers = Barriers(node, self._replication)
        self._transfer = Transfer(
            node, self._requests, self._programs, self._replication, self._election, self._transfer_failed
        )
        self._membership = Membership(
            node, self._requests, self._programs, self._replication, self._transfer, freshness
        )
        self._serving = Serving(node, self._transfer, freshness, machine)
        self._entry_streams = EntryStreams(node, self._barriers)
        self._learner_streams = LearnerStreams(node, self._barriers)
        self._keyspace: Keyspace | None = None
        self._learner = Learner(
            node, self._requests, self._follower, self._recovering, self._installing, self._leader_silence_s
        )
        self._lifelines = Lifelines(
            node, self._requests, self._programs, lambda peer, channel: self._connection(peer, channel, up=False)
        )
        self._timed: tuple[Timed, ...] = (
            self._lifelines,
            self._programs,
            self._recovering,
            self._election,
            self._replication,
            self._transfer,
            self._membership,
            self._serving,
            self._entry_streams,
            self._learner_streams,
            self._installing,
            self._learner,
        )
        self._handlers: dict[type, Callable[[Route, Frame, Any], None]] = {
            RequestUpdate: lambda route, id_, message: self._serving.update(route, bytes(id_), message.data),
            PvUpdate: lambda route, id_, message: self._serving.updates(route, bytes(id_), message),
            AppendEntries: self._follower.append,
            PvAppend: self._follower.append_window,
            InstallSnapshot: self._installing.original,
            PvSnapshot: self._installing.ours,
            PvFollow: self._learner_streams.request,
            RequestEntries: self._entry_streams.request,
            RequestVote: self._election.vote,
            PvVote: self._election.vote,
            PvHello: self._programs.hello,
            PvNow: self._transfer.stand,
            RequestConfig: self._answer_configuration,
            RequestLogInfo: self._answer_log_info,
            ConfigUpdate: lambda route, id_, message: self._membership.request(route, bytes(id_), message),
            RequestBroadcastUrl: self._answer_broadcast_url,
            PvTransfer: self._transfer.request,
            ClientDispatch: self._dispatch_request,
            PvStatus: self._answer_status,
            **dict.fromkeys((PvKv, PvRead, PvLease, PvWatch), self._refuse_keys),
        }
        if machine is not None:
            self._serve(Keyspace(node, self._barriers, self._serving, self._transfer, machine))
        self._begin()

    def _serve(self, keyspace: Keyspace) -> None:
        """Take the requests of a key-value machine."""
        self._keyspace = keyspace
        self._timed += (keyspace,)
        self._handlers |= {
            RequestUpdate: keyspace.update,
            PvUpdate: keyspace.updates,
            PvKv: keyspace.command,
            PvRead: keyspace.read,
            PvLease: keyspace.keep_alive,
            PvWatch: keyspace.watching.watch,
            PvWatchAcknowledge: keyspace.watching.acknowledge,
        }

    def _begin(self) -> None:
        node = self._node
        if node.role == Role.FOLLOWER:
            node.stage = Stage.READ_WRITE
        self._programs.refresh()
        self._recovering.begin()
        node.feed()

    # --- inputs --------------------------------------------------------------------------------------------------

    def receive(self, route: Route, frames: Frames, now: Now) -> None:
        """Take a message from the ROUTER: ``frames`` begin with the id frame, ``route`` is its connection."""
        node = self._node
        node.now = now
        if node.halted:
            return
        message = decode_request(frames, self.config.ident)
        if isinstance(message, Drop):
            node.drop(message.reason)
            return
        handler = self._handlers.get(type(message))
        if handler is None:
            node.drop(DropReason.TYPE)
        else:
            handler(route, frames[0], message)

    def reply(self, peer: str, channel: Channel, frames: Frames, now: Now) -> None:
        """Take a message from one of our DEALERs; ``peer`` as in ``PeerChannel`` (for ``SEED`` the url)."""
        self._node.now = now
        if not self._node.halted:
            self._requests.take(peer, channel, frames)
            self._membership.heard_kinds()
            self._election.heard_kinds(peer)

    def connection(self, peer: str, channel: Channel, up: bool, now: Now) -> None:
        """Learn that a DEALER's connection came up or went down."""
        self._node.now = now
        self._lifelines.connected(peer, channel, up)
        self._connection(peer, channel, up=up)

    def _connection(self, peer: str, channel: Channel, *, up: bool) -> None:
        self._programs.connection(peer, channel, up)
        if up:
            self._election.connected(peer, channel)
        if channel == Channel.RPC:
            self._replication.connected(peer, up)
        elif channel == Channel.SIDE and up:
            self._membership.connected(peer)
            self._transfer.connected(peer)
        elif channel == Channel.SEED and up:
            self._learner.connected(peer)

    def stored(self, done: Stored, now: Now) -> None:
        """Learn that every storage command up to a ticket is durable."""
        self._node.now = now
        self._node.stored(done.ticket)
        self._snapshots.consider()
        self._election.stored()
        self._replication.commit()
        self._recovering.progress()

    def applied(self, results: Sequence[Applied], now: Now) -> None:
        """Learn how far the machine has applied entries."""
        self._node.now = now
        for result in results:
            batch = self._node.applied_up_to(result.index)
            self._serving.applied(self._node.applied)
            if batch is not None:
                self._serving.publish(batch)
        if self._keyspace is not None:
            self._keyspace.applied()
        self._barriers.progress()

    def restored(self, index: int, now: Now) -> None:
        """Learn that the machine began from the snapshot of ``index``, as ``Restore`` asked."""
        self._node.now = now
        self._node.restored(index)
        if self._keyspace is not None:
            self._keyspace.restored()
        self._barriers.progress()

    def snapshot_saved(self, index: int, data_bytes: int, now: Now) -> None:
        """Learn that the snapshot of ``index``, as ``Freeze`` asked for, stands verified in its place on the disk."""
        self._node.now = now
        self._snapshots.saved(index, data_bytes)

    def offer_snapshot(self, index: int, term: int, now: Now) -> bool:
        """Have saved what an application made of the entries up to ``index``, of ``term``: ``Freeze`` asks for it.

        False if it is too early: the entry is not applied and durable here yet, a member that may be of the original
        program may still be sent ids of these entries, or another snapshot is being saved. Raises ``ValueError`` that
        says why there can be no such snapshot.
        """
        self._node.now = now
        return self._snapshots.offer(index, term, mixed=self._mixed())

    def ending(self, now: Now) -> None:
        """Leave the commit index behind, for the next start and for tools that read the folder (13.2)."""
        self._node.now = now
        self._node.note_commit()

    def keep_log(self, snapshot_entries: int, log_retention: int) -> None:
        """Take a snapshot every so many entries from now on, and keep so many in front of it."""
        self._snapshots.entries, self._snapshots.log_retention = snapshot_entries, log_retention

    def set_stage(self, stage: Stage, now: Now) -> None:
        """Walk forward to ``stage``; going back is refused with ``LocalProtocolError``."""
        node = self._node
        node.now = now
        if stage < node.stage:
            raise LocalProtocolError(f"stage {node.stage.title} does not go back to {stage.title}")
        if stage == node.stage:
            return
        node.stage = stage
        node.event(StageReached(stage))
        self._write_initial()

    def bootstrap(self, initial: Members, now: Now) -> None:
        """Remember the members of a new cluster; entry 1 is written when the stage becomes ReadWrite (8.4 ``entry``).

        Ignored where the log is not empty. Raises ``ValueError`` for a list that is no configuration.
        """
        fault = fault_in(initial)
        if fault is not None:
            raise ValueError(f"initial: {fault}")
        self._node.now = now
        self._initial = initial
        self._recovering.heal_alone()
        self._write_initial()

    def transfer(self, target: str | None, now: Now) -> None:
        """Hand leadership to ``target``, or to the best voter of ours; events ``TransferChanged`` tell the course.

        Raises ``LocalProtocolError`` when this peer does not lead.
        """
        self._node.now = now
        if not self._transfer.start(target):
            self._node.event(TransferChanged(target or "", "failed"))

    def room(self, has_room: bool, now: Now) -> None:
        """Take whether the volume has room for updates: without it a leader hands the lead on (13.4)."""
        self._node.now = now
        self._node.has_room = has_room
        if not has_room:
            self._transfer.make_room()

    # --- time and outputs ----------------------------------------------------------------------------------------

    def handle_timer(self, now: Now) -> None:
        """Do what is due."""
        self._node.now = now
        if not self._node.halted:
            for part in self._timed:
                part.timer()

    def next_timer(self) -> float | None:
        """Return the monotonic second at which ``handle_timer`` is due, ``None`` for never."""
        if self._node.halted:
            return None
        due: float | None = None
        for part in self._timed:  # asked in every turn: a plain loop costs half of what generators do
            time = part.next_timer()
            if time is not None and (due is None or time < due):
                due = time
        return due

    def outputs(self) -> Outputs:
        """Return everything to be done since the last call, and forget it."""
        if not self._node.halted:
            self._replication.pump()
        return self._node.take_outputs()

    def status(self) -> Status:
        """Return a picture of the peer; cheap and without effect."""
        return picture(
            self._node,
            programs=self._programs,
            replication=self._replication,
            serving=self._serving,
            learner=self._learner,
            transfer_to=self._transfer.target,
            streams=len(self._entry_streams),
            fed=self._learner_streams.peers,
            received=self._installing.taken,
        )

    @property
    def last(self) -> int:
        """The index of the last entry of the log."""
        return self._node.log.last

    @property
    def uncommitted(self) -> int:
        """How many entries of the log are not known to be committed."""
        return self._node.log.last - self._node.commit

    @property
    def tally(self) -> Tally:
        """What was counted since the start."""
        return self._node.tally

    def key_counts(self) -> KeyCounts | None:
        """Return how much the machine holds, ``None`` if it is none that clients ask."""
        return self._keyspace.counts() if self._keyspace is not None else None

    def fence(self) -> Fence:
        """Return what is known about this peer's right to take part (8.6); it asks its seeds by itself."""
        return self._learner.fence()

    # --- what the node tells -------------------------------------------------------------------------------------

    def role_changed(self, old: Role) -> None:
        """Begin or end what belongs to a role."""
        node = self._node
        if old == Role.LEADER:
            if node.leader is None and self._transfer.target is not None:
                node.set_leader(self._transfer.target)
            self._replication.stop()
            self._barriers.fail()
            self._entry_streams.deposed()
            self._learner_streams.deposed()
            if self._keyspace is not None:
                self._keyspace.deposed()
            self._membership.deposed()
            self._serving.deposed()
            self._transfer.deposed()
        if node.role == Role.LEADER:
            self._lead()
        elif node.role == Role.FOLLOWER:
            self._election.reset()
        elif node.role == Role.REMOVED:
            self._serving.first_write_ms = None  # where it is taken in again, the time since then counts
        self._learner.role_changed()

    def committed(self) -> None:
        """Go on with what waits for commits."""
        node = self._node
        self._membership.progress()
        if node.role == Role.LEADER and self._out_of_office():
            self.depose("removed")
        self._serving.progress()
        self._barriers.progress()
        self._learner_streams.progress()
        self._recovering.progress()

    def machine_idle(self) -> None:
        """Perhaps save the machine's state, while it is known at which index it stands."""
        self._snapshots.consider()

    def configured(self) -> None:
        """Follow the configuration in force."""
        node = self._node
        self._programs.refresh()
        self._replication.refresh()
        if node.role not in {Role.LEADER, Role.PRE_CANDIDATE, Role.CANDIDATE}:
            node.set_role(node.resting_role(), "configuration")

    def _lead(self) -> None:
        """Begin to lead: prove the log exact, or append what proves it (6.6)."""
        node = self._node
        node.set_leader(node.id)
        node.exact = node.commit == node.log.last
        self._replication.lead()
        self._serving.lead()
        if self._keyspace is not None:
            self._keyspace.lead()
        last = node.log.last
        self._membership.progress()
        if node.commit < node.log.last and node.log.last == last:
            node.append_own(EntryType.CHECKPOINT, CHECKPOINT_DATA)

    def _won(self) -> None:
        self._node.set_role(Role.LEADER, "elected")

    def depose(self, reason: str) -> None:
        """Step down, as replication finds necessary."""
        self._node.rest(reason)

    def _out_of_office(self) -> bool:
        """Whether a configuration without us is committed and in force."""
        node = self._node
        effective = node.configurations.effective
        return node.configurations.index <= node.commit and not effective.names(node.id)

    def follower_answered(self) -> None:
        """Serve what waited for a member's answer."""
        self._barriers.progress()
        self._transfer.progress()

    def wanted_sequence(self) -> int:
        """Return the number after which the newest waiting read needs a message; -1 if none waits."""
        return self._barriers.wanted_sequence()

    def _transfer_failed(self) -> None:
        self._membership.transfer_failed()
        self._serving.progress()

    def _leader_heard_at(self) -> float:
        """Return when the leader we believe in was heard last, or, if we lead, a majority."""
        if self._node.role == Role.LEADER:
            return self._replication.quorum_heard_at()
        heard_at = self._follower.heard_at
        return heard_at if heard_at is not None else -math.inf

    def _leader_silence_s(self) -> float:
        return QUORUM_TIMEOUTS * self.config.election_max / 1000

    def _write_initial(self) -> None:
        """Write entry 1 of a new cluster, once permitted (8.4)."""
        node = self._node
        empty = node.log.last == 0 and node.vote_floor != RECOVERING_FLOOR
        if self._initial and empty and node.stage == Stage.READ_WRITE:
            node.append([bootstrap_entry(self._initial)], "bootstrap")
            self._recovering.begin()
        if node.log.last > 0:
            self._initial = ()

    # --- small questions -----------------------------------------------------------------------------------------

    def _answer_configuration(self, route: Route, request_id: Frame, message: RequestConfig) -> None:
        node = self._node
        self._heard(message.poll)
        members = node.configurations.effective.members
        node.answer(route, request_id, RequestConfigReply(node.role == Role.LEADER, node.leader, members))

    def _answer_log_info(self, route: Route, request_id: Frame, message: RequestLogInfo) -> None:
        node = self._node
        self._heard(message.poll)
        leads, applied = node.role == Role.LEADER, node.applied
        reply = RequestLogInfoReply(
            leads,
            node.leader,
            node.term,
            node.log.first,
            applied,
            node.commit,
            node.log.last,
            node.snapshot.data_bytes if node.snapshot is not None else 0,
            self._snapshots.prune_index(mixed=self._mixed()),
        )
        node.answer(route, request_id, reply, node.term_ticket)

    def _answer_broadcast_url(self, route: Route, request_id: Frame, message: RequestBroadcastUrl) -> None:
        del message
        self._node.answer(route, request_id, RequestBroadcastUrlReply(self.config.broadcast_url or None))

    def _answer_status(self, route: Route, request_id: Frame, message: PvStatus) -> None:
        del message
        value = status_value(self.status())
        self._node.answer(route, request_id, PvReply(Code.OK, value), self._node.term_ticket)

    def _dispatch_request(self, route: Route, request_id: Frame, message: ClientDispatch) -> None:
        node = self._node
        leads = node.role == Role.LEADER
        answer = None if self._dispatch is None else self._dispatch(message.type, message.arguments, leads)
        if answer is None:
            node.drop(DropReason.TYPE)
        else:
            node.send(route, (request_id, *answer))

    def _refuse_keys(self, route: Route, request_id: Frame, message: PvKv | PvRead | PvLease | PvWatch) -> None:
        """Say that this machine has no keys, in place of ``Keyspace``."""
        code, level = Code.UNSUPPORTED, LEVEL_FIRST
        reply = PvWatchReply(code, 0, [level]) if isinstance(message, PvWatch) else PvReply(code, level)
        self._node.answer(route, request_id, reply)

    def _mixed(self) -> bool:
        """Whether a member may be one of the original program."""
        others = (peer for peer, _ in self._node.configurations.effective.members if peer != self._node.id)
        return any(self._programs.kind(peer) != Program.OURS for peer in others)

    def _heard(self, poll: PeerPoll | None) -> None:
        if poll is not None:
            self._recovering.heard(poll.peer, poll.term)
