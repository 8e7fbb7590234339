"""The question before a candidacy: would a majority let us lead? (docs/specs/raft.md 6.2)

It changes no term anywhere. A peer that is cut off, or that comes back, so disturbs nobody.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, PeerChannel
from pavane.raft.core.programs import Program, Programs
from pavane.raft.core.requests import Ask, Requests
from pavane.raft.state.quorum import has_majority
from pavane.raft.wire.pv import FEATURE_VOTE, PvVote, PvVoteReply
from pavane.raft.wire.replies import RequestConfigReply
from pavane.raft.wire.requests import RequestConfig

PHASE_PREVOTE = 0
OVERRULE_TIMEOUTS = 4  # election_max times this: then a leader of the original program that they name is taken for gone


@dataclass(slots=True)
class _Round:
    """One pre-vote. ``ours`` are asked for their vote, everybody else whether a leader is known."""

    patient_until: float  # from then on the silence of others counts as no objection
    ends_at: float
    repeat_at: float
    overruling: bool
    asks: dict[str, Ask] = field(default_factory=dict)
    ours: set[str] = field(default_factory=set)
    granted: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)  # by their newest question
    objecting: set[str] = field(default_factory=set)


class Prevote:
    """The rounds of one peer. ``passed`` or ``failed`` ends one, ``higher`` takes an answer of a later term."""

    def __init__(
        self,
        node: Node,
        requests: Requests,
        programs: Programs,
        passed: Callable[[], None],
        failed: Callable[[], None],
        higher: Callable[[str, PvVoteReply], None],
    ) -> None:
        self._node = node
        self._requests = requests
        self._programs = programs
        self._passed = passed
        self._failed = failed
        self._higher = higher
        self._round: _Round | None = None
        self._objected_since: float | None = None

    def begin(self) -> None:
        """Ask every other member; this may pass at once."""
        config, now = self._node.config, self._node.now.mono
        self.give_up()
        since = self._objected_since
        overruling = since is not None and now - since >= OVERRULE_TIMEOUTS * config.election_max / 1000
        ends_at = now + config.election_min / 1000
        self._round = _Round(now + config.rpc_timeout_s, ends_at, now + config.rpc_timeout_s, overruling)
        for peer, url in self._members():
            self._ask(self._round, peer, url)
        self._judge(self._round)

    def give_up(self) -> None:
        """End the round: answers to it no longer count."""
        if self._round is not None:
            for ask in self._round.asks.values():
                self._requests.cancel(ask)
        self._round = None

    def led(self) -> None:
        """A leader was heard: objections in its favour were right."""
        self._objected_since = None

    def next_timer(self) -> float | None:
        """Return when to ask again or to end the round; ``None`` if there is none."""
        return min(self._round.repeat_at, self._round.ends_at) if self._round is not None else None

    def timer(self) -> None:
        """Ask again the peers that have not agreed, and judge what silence means by now."""
        current, now = self._round, self._node.now.mono
        if current is None:
            return
        if current.repeat_at <= now:
            current.repeat_at = now + self._node.config.rpc_timeout_s
            for peer, url in self._members():
                if peer not in current.granted:
                    self._ask(current, peer, url)
        self._judge(current)
        if self._round is current and current.ends_at <= now:
            self._end(current)

    def ask_again(self, peer: str) -> None:
        """A connection came up, or the peer is known as ours by now: the question may have met nobody before."""
        current = self._round
        url = self._node.configurations.effective.url(peer)
        if current is not None and url is not None and peer not in current.granted:
            self._ask(current, peer, url)

    def misjudged(self, peer: str) -> bool:
        """Whether a peer was asked as the original program and is known as ours by now."""
        current = self._round
        asked = current is not None and peer in current.asks and peer not in current.ours
        return asked and self._programs.offers(peer, FEATURE_VOTE)

    def _members(self) -> tuple[tuple[str, str], ...]:
        members = self._node.configurations.effective.members
        return tuple((peer, url) for peer, url in members if peer != self._node.id)

    def _ask(self, current: _Round, peer: str, url: str) -> None:
        """Ask one peer, in our way if it is ours; a question that is still open goes out again as it is."""
        node, to = self._node, PeerChannel(Channel.SIDE, peer, url)
        before, ours = current.asks.get(peer), self._programs.offers(peer, FEATURE_VOTE)
        if before is not None and ours and not self.misjudged(peer) and peer not in current.answered:
            self._requests.again(before)
            # It may have been replaced by the original program: any answer of that one shows it (4.2).
            self._requests.ask(to, RequestConfig(self._requests.poll()), RequestConfigReply, self._named)
            return
        self._requests.cancel(before)
        current.answered.discard(peer)
        if ours:
            current.ours.add(peer)
            ballot = PvVote(node.id, node.term + 1, node.log.last, node.log.last_term, PHASE_PREVOTE)
            current.asks[peer] = self._requests.ask(to, ballot, PvVoteReply, self._answered, after=node.term_ticket)
        else:
            if self._programs.kind(peer) == Program.UNKNOWN:
                # One of ours does not object for a leader that it has not heard lately.
                self._programs.ask_again([peer])
            question = RequestConfig(self._requests.poll())
            current.asks[peer] = self._requests.ask(to, question, RequestConfigReply, self._named)

    def _answered(self, ask: Ask, reply: PvVoteReply) -> None:
        current, peer = self._round, ask.to.peer
        if not reply.granted and reply.term > self._node.term:
            self._higher(peer, reply)
        elif current is not None and current.asks.get(peer) is ask:
            current.answered.add(peer)
            if reply.granted:
                current.granted.add(peer)
            self._judge(current)

    def _named(self, ask: Ask, reply: RequestConfigReply) -> None:
        """A program that is not known as ours objects if it knows a leader; its newest answer counts."""
        current, peer = self._round, ask.to.peer
        if current is None or current.asks.get(peer) is not ask:
            return
        current.answered.add(peer)
        if reply.leader is not None and reply.leader != self._node.id:
            current.objecting.add(peer)
        else:
            current.objecting.discard(peer)
        self._judge(current)

    def _judge(self, current: _Round) -> None:
        if self._would_pass(current, overruling=current.overruling):
            self.give_up()
            self._objected_since = None
            self._passed()

    def _would_pass(self, current: _Round, *, overruling: bool) -> bool:
        patient = self._node.now.mono < current.patient_until
        agreeing = {self._node.id, *current.granted}
        for peer, _ in self._members():
            objects = peer in current.objecting and not overruling
            silent = peer not in current.answered and peer not in current.objecting
            if peer not in current.ours and not objects and not (silent and patient):
                agreeing.add(peer)
        return has_majority(self._node.configurations.effective, agreeing)

    def _end(self, current: _Round) -> None:
        if not self._would_pass(current, overruling=True):
            self._objected_since = None
        elif self._objected_since is None:
            self._objected_since = self._node.now.mono
        self.give_up()
        self._failed()
