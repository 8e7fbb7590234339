"""What a peer does with ``+`` and ``pv.append`` of a leader (docs/specs/raft.md 7.1)."""

from dataclasses import dataclass

from pavane.raft.core.election import Election
from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Corrupt, Route
from pavane.raft.core.recovering import Recovering
from pavane.raft.errors import DropReason
from pavane.raft.state.roles import Role
from pavane.raft.wire.frames import UINT_MAX, Frame, Frames
from pavane.raft.wire.pv import PvAppend, PvAppendReply
from pavane.raft.wire.replies import AppendEntriesReply, InstallSnapshotReply
from pavane.raft.wire.requests import AppendEntries

SENDERS_MAX = 64  # leaders whose last message is remembered; a cluster has at most 18 members


@dataclass(slots=True)
class _Last:
    """The last message of one sender and the answer to it; nothing is repeated while ``after`` is not durable."""

    route: Route
    id: bytes
    frames: Frames
    after: int | None


class Follower:
    """Takes the leader's entries and answers once they are durable."""

    def __init__(self, node: Node, election: Election, recovering: Recovering) -> None:
        self._node = node
        self._election = election
        self._recovering = recovering
        self._last: dict[str, _Last] = {}
        self._verified_term = node.term
        self.heard_at: float | None = None  # last AppendEntries of a leader of the current term

    def append(self, route: Route, request_id: Frame, message: AppendEntries) -> None:
        """Handle ``+``."""
        node = self._node
        if not self.may_lead(message.leader, message.term, message.previous_index + len(message.entries)):
            return
        if message.term < node.term:  # also if it was answered before: what was promised may be gone since
            self.answer(route, request_id, message.leader, AppendEntriesReply(node.term, False))
            return
        if self.repeated(route, request_id, message.leader):
            return
        self.follow(message.leader, message.term)
        taken = self._take(message)
        if taken is not None:
            success, after = taken
            shorter = message.previous_index > node.log.last
            reply = AppendEntriesReply(node.term, success, node.log.last + 1 if shorter else None)
            self.answer(route, request_id, message.leader, reply, after)
            self._recovering.progress()

    def append_window(self, route: Route, request_id: Frame, message: PvAppend) -> None:
        """Handle ``pv.append``: an empty one is answered at once, whatever the disk still has to do."""
        node = self._node
        if not self.may_lead(message.leader, message.term, message.previous_index + len(message.entries)):
            return
        if message.term < node.term:
            node.answer(route, request_id, PvAppendReply(node.term, False, 0), node.term_ticket)
            return
        self.follow(message.leader, message.term)
        taken = self._take(message)
        if taken is None:
            return
        success, after = taken
        match = min(node.durable, node.verified)
        if not success:
            reply = PvAppendReply(node.term, False, match, self._conflict(message.previous_index))
        elif message.entries:
            last = message.previous_index + len(message.entries)
            reply = PvAppendReply(node.term, True, max(match, last))
        else:
            reply, after = PvAppendReply(node.term, True, match), node.term_ticket
        node.answer(route, request_id, reply, after)
        self._recovering.progress()

    def may_lead(self, leader: str, term: int, last_told: int) -> bool:
        """Whether the sender of entries or a snapshot up to ``last_told`` may be a leader, and we may answer."""
        node = self._node
        if last_told >= UINT_MAX:  # no log gets there, and what comes behind it could not be said
            node.drop(DropReason.UINT)
            return False
        self._recovering.heard(leader, term, last_told)
        effective = node.configurations.effective
        stranger = effective.names(node.id) and not effective.names(leader)
        rival = node.role == Role.LEADER and term == node.term  # a term has one leader: not a peer's doing
        if leader == node.id or rival or (stranger and term < node.term):
            node.drop(DropReason.SENDER)
            return False
        if self._recovering.silent:
            self.heard_at = None
            return False
        return True

    def repeated(self, route: Route, request_id: Frame, leader: str) -> bool:
        """Whether this is the last message of a sender once more: its answer, if there is one yet, is sent again."""
        last = self._last.get(leader)
        if last is None or last.route != route or last.id != request_id:
            return False
        if last.after is None or self._node.is_stored(last.after):
            self._node.send(route, last.frames)
        return True

    def follow(self, leader: str, term: int) -> None:
        """Acknowledge the leader of this term or a later one."""
        node = self._node
        if term > node.term:
            node.raise_term(term)
        self._election.led()
        if node.role in {Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER}:
            self._election.give_up()
            node.rest("leader", leader)
        node.set_leader(leader)
        self.heard_at = node.now.mono
        if self._verified_term != node.term:
            self._verified_term = node.term
            node.verified = node.commit

    def _take(self, message: AppendEntries | PvAppend) -> tuple[bool, int | None] | None:
        """Return whether the message fits our log and the ticket that its answer waits for; ``None``: no answer."""
        node = self._node
        previous, count = message.previous_index, len(message.entries)
        settled = max(node.commit, node.log.first - 1)
        success = previous <= settled or node.log.term_at(previous) == message.previous_term
        if success:
            self._recovering.judge_history(previous, message.entries)
            if self._recovering.silent:
                return None
            if not node.merge(previous, message.entries):
                node.halt(Corrupt(node.commit))
                return None
            node.verified = max(node.verified, previous + count)
            node.advance(min(message.commit_index, previous + count))
        after = node.term_ticket
        if success:
            durable = node.durable_ticket(previous + count)
            after = durable if after is None else max(after, durable or 0)
        self._election.reset(behind=after)
        return success, after

    def _conflict(self, previous: int) -> tuple[int, int]:
        """Return where our log ends, or else where the term of the entry that differs begins, and that term."""
        log = self._node.log
        term = log.term_at(previous)
        if term is None:
            return log.last + 1, 0
        return max(log.first_of_term_at(previous), self._node.commit + 1), term

    def answer(
        self,
        route: Route,
        request_id: Frame,
        leader: str,
        reply: AppendEntriesReply | InstallSnapshotReply,
        after: int | None = None,
    ) -> None:
        """Answer ``+`` or ``$`` once ``after`` and the term are durable, and remember the answer."""
        after = after if after is not None else self._node.term_ticket
        frames = (bytes(request_id), *reply.encode())
        self._last.pop(leader, None)
        self._last[leader] = _Last(route, bytes(request_id), frames, after)
        if len(self._last) > SENDERS_MAX:
            del self._last[next(iter(self._last))]
        self._node.send(route, frames, after)
