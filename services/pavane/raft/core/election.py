"""Standing, asking for votes and giving them (docs/specs/raft.md 6.1-6.4, 6.7 phase 2).

The spiral rule holds: no further term before a majority has answered in this one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, PeerChannel, Route, Standing, VoteGranted, VoteReceived
from pavane.raft.core.prevote import PHASE_PREVOTE, Prevote
from pavane.raft.core.programs import Program, Programs
from pavane.raft.core.recovering import Recovering
from pavane.raft.core.requests import Ask, Requests
from pavane.raft.errors import DropReason
from pavane.raft.state.quorum import has_majority
from pavane.raft.state.roles import Role
from pavane.raft.wire.frames import UINT_MAX, Frame
from pavane.raft.wire.pv import FEATURE_VOTE, PvVote, PvVoteReply
from pavane.raft.wire.replies import RequestVoteReply
from pavane.raft.wire.requests import RequestVote
from pavane.wire import Stage

START_GRACE_S = 0.3  # added to the first time-out: peers that start together find the leader that is already there
PATIENT_TIMEOUTS = 2  # a voter that Cnew leaves out, or whose volume is full, waits so much longer: others stand first
BACK_OFF_DOUBLINGS_MAX = 4  # a time-out of 200 ms becomes longer than one of 2500, the most that clusters are run with
PHASE_VOTE = 1
PHASE_TRANSFER = 2
GRANTED, STALE_TERM, LOG_BEHIND, VOTED, STICKY, NO_VOTER, RECOVERING = range(7)  # reasons of pv.vote (4.3)


@dataclass(slots=True)
class _Round:
    """One candidacy."""

    ticket: int  # of the term and the own vote
    phase: int
    asks: dict[str, Ask]
    granted: set[str]
    answered: set[str]
    repeat_at: float
    refused: bool = False  # by one of the original program


class Election:
    """The election timer of a voter, its candidacies, and its votes for others."""

    def __init__(
        self,
        node: Node,
        requests: Requests,
        programs: Programs,
        recovering: Recovering,
        won: Callable[[], None],
        leader_heard_at: Callable[[], float],
    ) -> None:
        """``leader_heard_at`` says when the leader in ``node.leader`` was heard last, or, if we lead, a majority."""
        self._node = node
        self._requests = requests
        self._programs = programs
        self._recovering = recovering
        self._won = won
        self._doublings = 0  # of the time-out, while we stand in the way of peers of the original program
        self._deadline = node.now.mono + START_GRACE_S + self._timeout_s()
        self._open_ticket: int | None = None
        self._round: _Round | None = None
        self._leader_heard_at = leader_heard_at
        self._prevote = Prevote(node, requests, programs, lambda: self.stand(PHASE_VOTE), self._not_now, self._outdated)

    # --- timer ---------------------------------------------------------------------------------------------------

    def reset(self, behind: int | None = None) -> None:
        """Draw a new time-out; with a ticket, the timer stands still until that is durable (6.1)."""
        self._open_ticket = behind
        self._deadline = self._node.now.mono + self._timeout_s()

    def next_timer(self) -> float | None:
        """Return the next time-out or repetition."""
        if not self._armed():
            return None
        asking_until = self._prevote.next_timer()
        if asking_until is not None:
            return asking_until
        if self._round is None:
            return self._deadline
        return min(self._deadline, self._round.repeat_at)

    def timer(self) -> None:
        """Stand, or ask again."""
        if not self._armed():
            return
        if self._node.role == Role.PRE_CANDIDATE:
            self._prevote.timer()
            return
        now = self._node.now.mono
        if self._round is not None and self._round.repeat_at <= now:
            self._repeat(self._round)
        if self._deadline <= now:
            if self._round is None or has_majority(self._node.configurations.effective, self._round.answered):
                self._ask_first()
            else:
                self.reset()

    def stored(self) -> None:
        """Storage went on: the timer may run again, the own vote may count."""
        if self._open_ticket is not None and self._node.is_stored(self._open_ticket):
            self.reset()
        if self._round is not None and self._node.is_stored(self._round.ticket):
            self._count(self._node.id, granted=True)

    @property
    def may_stand(self) -> bool:
        """Whether this log tells which members would have to vote (9.4, 5), and there is a next term."""
        return not self._node.doubts_configuration and self._node.term < UINT_MAX

    def _armed(self) -> bool:
        voter = self._node.role in {Role.FOLLOWER, Role.PRE_CANDIDATE, Role.CANDIDATE}
        idle = self._open_ticket is None and not self._recovering.undecided
        return voter and idle and self.may_stand

    def _timeout_s(self) -> float:
        config, effective = self._node.config, self._node.configurations.effective
        timeout_s = self._node.rng.randint(config.election_min, config.election_max) / 1000
        leaving = effective.transitional and all(peer != self._node.id for peer, _ in effective.new)
        patient = leaving or not self._node.has_room
        return (PATIENT_TIMEOUTS if patient else 1) * (1 << self._doublings) * timeout_s

    # --- standing ------------------------------------------------------------------------------------------------

    def led(self) -> None:
        """A leader of this term was heard."""
        self._doublings = 0
        self._prevote.led()

    def _ask_first(self) -> None:
        """Ask whether a candidacy would succeed, before anybody is disturbed by it."""
        self.give_up()
        self._node.set_leader(None)
        self._node.set_role(Role.PRE_CANDIDATE, "timeout")
        self._tell_standing()
        self._prevote.begin()

    def _not_now(self) -> None:
        self._node.rest("prevote")

    def _outdated(self, peer: str, reply: PvVoteReply) -> None:
        """Take a refusal of a later term; ask again at once in the next where nothing but the term stands against us.

        One that stands in vain raises the term in each of its time-outs; with a longer one we would always be late.
        """
        asking = self._node.role == Role.PRE_CANDIDATE
        self._higher_term(peer, reply.term)
        if asking and reply.reason in {STALE_TERM, VOTED} and self._armed():
            self._ask_first()

    def _higher_term(self, peer: str, term: int) -> None:
        self._recovering.heard(peer, term)
        self.give_up()
        self._node.raise_term(term)
        self._node.rest("term")
        self.reset()

    def stand(self, phase: int) -> None:
        """Become a candidate in the next term and ask every other member for its vote."""
        node = self._node
        self.give_up()
        node.set_leader(None)
        ticket = node.raise_term(node.term + 1, node.id)
        node.set_role(Role.CANDIDATE, "transfer" if phase == PHASE_TRANSFER else "prevote")
        self._tell_standing()
        self._round = _Round(ticket, phase, {}, set(), set(), node.now.mono + node.config.rpc_timeout_s)
        self.reset()
        for peer, url in node.configurations.effective.members:
            if peer != node.id:
                self._ask(self._round, peer, url)

    def _tell_standing(self) -> None:
        others = (peer for peer, _ in self._node.configurations.effective.members if peer != self._node.id)
        self._node.event(Standing(tuple((peer, self._programs.kind(peer).value) for peer in others)))

    def connected(self, peer: str, channel: Channel) -> None:
        """A connection came up: the question for this vote may have found none before."""
        if channel == Channel.SIDE:
            self._prevote.ask_again(peer)
        current = self._round
        ask = current.asks.get(peer) if current is not None else None
        if current is not None and ask is not None and ask.to.channel == channel and peer not in current.answered:
            self._again(current, peer, ask)

    def heard_kinds(self, peer: str) -> None:
        """A peer answered something: if it is known as ours by now, ask it as such at once."""
        if self._prevote.misjudged(peer):
            self._prevote.ask_again(peer)
        current = self._round
        ask = current.asks.get(peer) if current is not None else None
        if current is not None and ask is not None and peer not in current.answered and self._misaddressed(peer, ask):
            self._again(current, peer, ask)

    def give_up(self) -> None:
        """End the candidacy: its questions are no longer repeated, answers to them no longer count."""
        self._prevote.give_up()
        if self._round is not None:
            for ask in self._round.asks.values():
                self._requests.cancel(ask)
        self._round = None

    def _ask(self, current: _Round, peer: str, url: str) -> None:
        node = self._node
        last, last_term = node.log.last, node.log.last_term
        if self._programs.offers(peer, FEATURE_VOTE):
            current.asks[peer] = self._requests.ask(
                PeerChannel(Channel.SIDE, peer, url),
                PvVote(node.id, node.term, last, last_term, current.phase),
                PvVoteReply,
                self._answered,
                after=current.ticket,
            )
        else:
            current.asks[peer] = self._requests.ask(
                PeerChannel(Channel.RPC, peer, url),
                RequestVote(node.id, node.term, last, last_term),
                RequestVoteReply,
                self._answered,
                after=current.ticket,
            )

    def _repeat(self, current: _Round) -> None:
        current.repeat_at = self._node.now.mono + self._node.config.rpc_timeout_s
        for peer, ask in list(current.asks.items()):
            if peer not in current.answered:
                self._again(current, peer, ask)

    def _again(self, current: _Round, peer: str, ask: Ask) -> None:
        if self._misaddressed(peer, ask):
            self._requests.cancel(ask)
            self._ask(current, peer, ask.to.url)
        else:
            self._requests.again(ask)

    def _misaddressed(self, peer: str, ask: Ask) -> bool:
        """Whether it turned out to be ours: unlike "?", pv.vote may reach a peer that does not know us as a member."""
        return ask.to.channel == Channel.RPC and self._programs.offers(peer, FEATURE_VOTE)

    def _answered(self, ask: Ask, reply: RequestVoteReply | PvVoteReply) -> None:
        if reply.term > self._node.term:
            self._higher_term(ask.to.peer, reply.term)
        else:
            if isinstance(reply, RequestVoteReply) and not reply.granted and reply.term == self._node.term:
                self._back_off()
            self._count(ask.to.peer, granted=reply.granted and reply.term == self._node.term)

    def _back_off(self) -> None:
        """Let one of the original program stand before us: with its refusal it began its own time-out anew (6.1).

        It may be the only one whose log is new enough, and its times may be longer than ours.
        """
        if self._round is not None and not self._round.refused:
            self._round.refused = True
            self._doublings = min(self._doublings + 1, BACK_OFF_DOUBLINGS_MAX)
            self.reset()

    def _count(self, peer: str, *, granted: bool) -> None:
        current = self._round
        if current is None:
            return
        current.answered.add(peer)
        if granted and peer not in current.granted:
            current.granted.add(peer)
            self._node.event(VoteReceived(peer))
        own_vote_counts = self._node.is_stored(current.ticket)
        if own_vote_counts and has_majority(self._node.configurations.effective, current.granted):
            self.give_up()
            self._doublings = 0
            self._won()

    # --- voting --------------------------------------------------------------------------------------------------

    def vote(self, route: Route, request_id: Frame, message: RequestVote | PvVote) -> None:
        """Answer a request for a vote, or meet it with silence (6.3)."""
        node = self._node
        asker = message.candidate
        self._recovering.heard(asker, message.term, message.last_index)
        newer = (message.last_term, message.last_index) > (node.log.last_term, node.log.last)
        if asker == node.id or not self._may_ask(message, newer):
            node.drop(DropReason.SENDER)
            return
        if self._recovering.undecided:
            return
        if isinstance(message, PvVote) and message.phase == PHASE_PREVOTE:
            reason = STICKY if self._is_led(asking=True) else self._judge(message, newer)
            self._count_refusal(reason)
            node.answer(route, request_id, PvVoteReply(node.term, reason == GRANTED, reason), node.term_ticket)
            return
        if self._is_led(asking=False) and not (isinstance(message, PvVote) and message.phase == PHASE_TRANSFER):
            node.drop(DropReason.STICKY)
            return
        if message.term > node.term:
            self.give_up()
            if self._refusal(message, newer) != GRANTED:  # else term and vote are stored by one command
                node.raise_term(message.term)
            node.rest("term")
        reason = self._judge(message, newer)
        if reason == GRANTED:
            if node.vote != asker or node.term != message.term:
                node.raise_term(message.term, asker)
                node.event(VoteGranted(node.term, asker))
            self._doublings = 0
            self.reset()
        self._count_refusal(reason)
        granted = reason == GRANTED
        answer: RequestVoteReply | PvVoteReply = (
            PvVoteReply(node.term, granted, reason)
            if isinstance(message, PvVote)
            else RequestVoteReply(node.term, granted)
        )
        node.answer(route, request_id, answer, node.term_ticket)

    def _count_refusal(self, reason: int) -> None:
        if reason == NO_VOTER and self._node.stage != Stage.READ_WRITE:
            self._node.drop(DropReason.STAGE)

    def _is_led(self, *, asking: bool) -> bool:
        """Whether there is a live leader that a candidate should not disturb (6.4).

        One of the original program does not give up when it hears nobody, so only a pre-vote (``asking``) spares it.
        """
        node = self._node
        if node.leader is None or node.now.mono - self._leader_heard_at() > node.config.election_min / 1000:
            return False
        return asking or node.leader == node.id or self._programs.kind(node.leader) == Program.OURS

    def _may_ask(self, message: RequestVote | PvVote, newer: bool) -> bool:
        node = self._node
        effective = node.configurations.effective
        if effective.names(message.candidate) or not effective.names(node.id):
            return True
        return isinstance(message, PvVote) and newer

    def _judge(self, message: RequestVote | PvVote, newer: bool) -> int:
        node = self._node
        if message.term < node.term:
            return STALE_TERM
        if message.term == node.term and node.vote not in {"", message.candidate}:
            return VOTED
        if message.term == node.term and node.role == Role.LEADER:
            return VOTED
        return self._refusal(message, newer)

    def _refusal(self, message: RequestVote | PvVote, newer: bool) -> int:
        """Return what stands against a vote whatever was voted before."""
        node = self._node
        if node.role == Role.RECOVERING:
            return RECOVERING
        # A voter is ReadWrite by being one; a learner that is ReadWrite may be the vote that its promotion needs.
        if node.stage != Stage.READ_WRITE or (node.role == Role.REMOVED and not newer):
            return NO_VOTER
        if message.term <= node.vote_floor:
            return STALE_TERM
        equal = (message.last_term, message.last_index) == (node.log.last_term, node.log.last)
        return GRANTED if newer or equal else LOG_BEHIND
