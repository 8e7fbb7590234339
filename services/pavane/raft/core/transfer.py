"""Handing leadership to a chosen voter (docs/specs/raft.md 6.7)."""

from collections.abc import Callable
from dataclasses import dataclass, field

from pavane.raft.core.election import PHASE_TRANSFER, Election
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, PeerChannel, Route, TransferChanged
from pavane.raft.core.programs import Programs
from pavane.raft.core.replication import Replication
from pavane.raft.core.requests import Ask, Requests
from pavane.raft.errors import Code, DropReason
from pavane.raft.state.roles import Role
from pavane.raft.wire.frames import Frame
from pavane.raft.wire.pv import PvNow, PvNowReply, PvReply, PvTransfer
from pavane.wire import LocalProtocolError, Stage

ROOM_AGAIN_S = 5.0  # a leader without room whose transfer failed tries the next voter after this long
REQUESTS_MAX = 3  # pv.now is sent at most this often, each rpc_timeout
WAITING_MAX = 64  # who asked for the transfer under way and is told its end; the newest are kept


@dataclass(slots=True)
class _Attempt:
    """One transfer under way."""

    target: str
    url: str
    deadline: float
    requests: int = 0
    ask: Ask | None = None
    next_at: float = 0.0
    waiting: list[tuple[Route, bytes]] = field(default_factory=list)


class Transfer:
    """The leader's side, and the target's."""

    def __init__(
        self,
        node: Node,
        requests: Requests,
        programs: Programs,
        replication: Replication,
        election: Election,
        failed: Callable[[], None],
    ) -> None:
        self._node = node
        self._requests = requests
        self._programs = programs
        self._replication = replication
        self._election = election
        self._failed = failed
        self._attempt: _Attempt | None = None
        self._unwilling: set[str] = set()  # whom a transfer failed with, while we lead
        self._room_at = 0.0

    @property
    def target(self) -> str | None:
        """The member that is about to lead; while this is set, new updates wait."""
        return self._attempt.target if self._attempt is not None else None

    def best(self, among: frozenset[str] | None = None) -> str | None:
        """Return the voter of ours, of those in ``among`` if given, that is ready (8.5) and has the highest match.

        One that is ready comes before all that are not: what it may lack is sent in one round trip, while a candidate
        that has to connect first is overtaken by the time-outs of others. One that did not take the lead when it was
        handed on comes last.
        """
        peers = [
            peer
            for peer, _ in self._node.configurations.effective.new
            if peer != self._node.id and self._programs.writes(peer) and (among is None or peer in among)
        ]
        return max(
            peers,
            key=lambda peer: (peer not in self._unwilling, self._programs.ready(peer), self._replication.match(peer)),
            default=None,
        )

    def make_room(self) -> None:
        """Hand the lead on: our volume has no room left, that of another voter may have."""
        node = self._node
        if node.role == Role.LEADER and node.now.mono >= self._room_at:
            self._room_at = node.now.mono + ROOM_AGAIN_S
            self.start(None)

    def start(self, target: str | None) -> bool:
        """Begin; false if no member is fit. A transfer under way goes on.

        Raises ``LocalProtocolError`` when we do not lead.
        """
        node = self._node
        if node.role != Role.LEADER:
            raise LocalProtocolError("only the leader can hand leadership on")
        if self._attempt is not None:
            return True
        peer = target if target is not None else self.best()
        url = node.configurations.effective.url(peer) if peer is not None else None
        if peer is None or url is None or peer == node.id or not self._programs.writes(peer):
            return False
        self._attempt = _Attempt(peer, url, node.now.mono + node.config.election_max / 1000)
        node.event(TransferChanged(peer, "started"))
        self.progress()
        return True

    def request(self, route: Route, request_id: Frame, message: PvTransfer) -> None:
        """Handle ``pv.transfer`` of a client: answered when the transfer has ended."""
        node = self._node
        if node.role != Role.LEADER:
            node.answer(route, request_id, PvReply(Code.NOT_LEADER, node.leader))
        elif message.target == node.id:
            node.answer(route, request_id, PvReply(Code.OK, node.id))
        elif not self.start(message.target) or self._attempt is None:
            node.answer(route, request_id, PvReply(Code.BAD_COMMAND, self._unfit(message.target)))
        else:
            self._attempt.waiting.append((route, bytes(request_id)))
            del self._attempt.waiting[:-WAITING_MAX]

    def _unfit(self, target: str | None) -> str:
        """Say why ``start`` refused."""
        if target is None:
            return "there is no other peer of Pavane that may vote and answers"
        if self._node.configurations.effective.url(target) is None:
            return f"{target} is no member"
        return f"{target} is no peer of Pavane that may vote and answers"

    def progress(self) -> None:
        """Tell the target to stand once it has everything. Called after answers and time."""
        attempt, node = self._attempt, self._node
        if attempt is None or node.now.mono < attempt.next_at or attempt.requests == REQUESTS_MAX:
            return
        if self._replication.match(attempt.target) < node.log.last:
            return
        attempt.requests += 1
        attempt.next_at = node.now.mono + node.config.rpc_timeout_s
        to = PeerChannel(Channel.SIDE, attempt.target, attempt.url)
        question = PvNow(node.id, node.term, node.log.last, node.commit)
        self._requests.cancel(attempt.ask)
        attempt.ask = self._requests.ask(to, question, PvNowReply, self._replied)

    def connected(self, peer: str) -> None:
        """The side channel of a peer came up: ``pv.now`` may have found no connection before."""
        attempt = self._attempt
        if attempt is not None and attempt.target == peer and attempt.ask is not None:
            self._requests.again(attempt.ask)

    def next_timer(self) -> float | None:
        """Return when to tell the target again, or to give up."""
        if self._attempt is None:
            return None
        if self._attempt.requests == REQUESTS_MAX or self._attempt.next_at <= self._node.now.mono:
            return self._attempt.deadline
        return min(self._attempt.deadline, self._attempt.next_at)

    def timer(self) -> None:
        """Give up at the deadline."""
        attempt = self._attempt
        if attempt is None or attempt.deadline > self._node.now.mono:
            self.progress()
            return
        if attempt.target in self._unwilling:  # all have had their turn
            self._unwilling.clear()
        self._unwilling.add(attempt.target)
        retry_ms = self._node.config.election_max
        self._end(attempt, "failed", PvReply(Code.BUSY, retry_ms))
        self._failed()

    def deposed(self) -> None:
        """We stepped down: as a rule, because the target's term is higher than ours."""
        self._unwilling.clear()
        if self._attempt is not None:
            self._end(self._attempt, "done", PvReply(Code.OK, self._attempt.target))

    def stand(self, route: Route, request_id: Frame, message: PvNow) -> None:
        """Handle ``pv.now``: stand at once if we have all that the leader has, and room for more."""
        node = self._node
        if message.leader != node.leader or message.term != node.term or node.role != Role.FOLLOWER:
            self._refuse(route, request_id)
            return
        fit = node.stage == Stage.READ_WRITE and self._election.may_stand and node.has_room
        if node.verified < message.last_index or not fit:
            self._refuse(route, request_id)
            return
        node.advance(min(message.commit_index, node.verified))
        if node.role != Role.FOLLOWER:  # what is committed now has left us out
            self._refuse(route, request_id)
            return
        node.answer(route, request_id, PvNowReply(node.term, True), node.term_ticket)
        self._election.stand(PHASE_TRANSFER)

    def _refuse(self, route: Route, request_id: Frame) -> None:
        self._node.answer(route, request_id, PvNowReply(self._node.term, False), self._node.term_ticket)

    def _replied(self, ask: Ask, reply: PvNowReply) -> None:
        """The answer to ``pv.now`` changes nothing: success shows by a higher term, refusal by the deadline."""
        if reply.term < self._node.term:
            self._node.drop(DropReason.STALE)

    def _end(self, attempt: _Attempt, result: str, reply: PvReply) -> None:
        self._attempt = None
        self._requests.cancel(attempt.ask)
        self._node.event(TransferChanged(attempt.target, result))
        for route, request_id in attempt.waiting:
            self._node.answer(route, request_id, reply)
