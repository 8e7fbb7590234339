"""Pings peers in turn: a direct retry, helpers and another one, then suspicion (docs/specs/swim.md 8.1, 9.3)."""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from pavane.parts.timers import Timer
from pavane.swim.core.gossip import Gossip
from pavane.swim.core.node import LOSS_WEIGHT, Node
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.core.updates import Updates
from pavane.swim.state.members import Peer
from pavane.swim.wire.messages import PingRequest, PingResponse
from pavane.swim.wire.payload import Digest, Payload
from pavane.swim.wire.values import U32_MAX, Address, NodeId, NodeStage, State

PENDING_MAX = 64  # probes under way; the cycle has one or two, the rest are probes out of turn
SAMPLES = 128  # round trips of which the 99th percentile is the retry's time-out
SAMPLES_MIN = 8
RETRY_MIN_S = 0.05  # a scheduler's hiccup is no loss
WARM_UP_PERIODS = 3
ONE_WAY_PROBES = 3  # in a row, so that single losses do not raise the event


Ended = Callable[[bool | None], None]
"""Told the outcome of a probe: answered, unanswered, or ``None`` if it is void because this node stalled."""


class Match(Enum):
    """What a response is to our probes."""

    NONE = "none"
    ACK = "ack"
    NACK = "nack"  # a helper got no answer either: our own links work


class Probe:
    """A probe under way, or, after its answer, until its period ends."""

    __slots__ = (
        "address",
        "answered_at",
        "direct_until",
        "ended",
        "helpers",
        "known_there",
        "meta",
        "peer",
        "retried",
        "sent_at",
        "seq",
        "stage",
        "target",
        "timers",
        "was_alive",
    )

    def __init__(self, seq: int, target: NodeId, address: Address, now: float, ended: Ended) -> None:
        self.seq = seq
        self.target = target
        self.address = address
        self.sent_at = now
        self.ended = ended
        self.peer: Peer | None = None
        self.meta: NodeId | None = None  # the version of our own META that its ping carried
        self.stage: NodeStage | None = None  # that all pings of this probe have shown
        self.helpers: dict[int, bool] = {}  # id: has sent a nack
        self.known_there = True  # by the answer: who does not track us has taken none of our records
        self.was_alive = False
        self.retried = False
        self.answered_at: float | None = None
        self.direct_until = float("inf")
        self.timers: list[Timer] = []


class Prober(Protocol):
    """What the probe cycle needs of the member."""

    def own_digest(self) -> Digest | None:
        """Return the digest of our table; `None` if it is overfull."""

    def probe_failed(self) -> None:
        """A probe was not answered."""


class Probing:
    """The probe cycle, and single probes for other parts."""

    def __init__(self, node: Node, gossip: Gossip, updates: Updates, around: Prober) -> None:
        self._node = node
        self._around = around
        self._gossip = gossip
        self._updates = updates
        self._seq = int.from_bytes(node.entropy(4), "little")
        self._pending: dict[int, Probe] = {}
        self._order: list[int] = []
        self._rtts_s: deque[float] = deque(maxlen=SAMPLES)

    def __len__(self) -> int:
        return len(self._pending)

    def start(self) -> None:
        """Begin the cycle, at a random phase."""
        node = self._node
        node.timers.plan(node.now + node.rng.uniform(0, node.profile.period_s), self._period)

    def stop(self) -> None:
        """End everything under way without an outcome: the node is out, or begins anew."""
        self.void()
        self._order.clear()

    def insert(self, peer: Peer) -> None:
        """Give a new peer a random place in the present round."""
        self._order.insert(self._node.rng.randint(0, len(self._order)), peer.id)

    def next_seq(self) -> int:
        """Return a number for a ping."""
        self._seq = (self._seq + 1) & U32_MAX
        return self._seq

    # --- probes out of turn --------------------------------------------------------------------------------------

    def once(
        self,
        target: NodeId,
        address: Address,
        payload: Payload,
        within_s: float,
        ended: Ended,
        *,
        retry: bool = False,
    ) -> bool:
        """Send a ping out of turn; ``ended`` is called exactly once, unless this returns false: no room."""
        if len(self._pending) >= PENDING_MAX:
            return False
        node = self._node
        payload.seq = self.next_seq()
        payload.stage = node.shown(node.members.get(target.id))
        probe = self._begin(payload.seq, target, address, ended)
        message = PingRequest(node.node, target, 0, payload)
        node.send(address, message)
        if retry:
            self._plan(probe, self._retry_s(), lambda: node.send(address, message))
        self._plan(probe, within_s, lambda: self._end(probe, answered=False))
        return True

    def _begin(self, seq: int, target: NodeId, address: Address, ended: Ended) -> Probe:
        probe = Probe(seq, target, address, self._node.now, ended)
        self._pending[seq] = probe
        return probe

    def _plan(self, probe: Probe, after_s: float, call: Callable[[], None]) -> None:
        probe.timers.append(self._node.timers.plan(self._node.now + after_s, call))

    def _end(self, probe: Probe, *, answered: bool | None) -> None:
        if self._pending.pop(probe.seq, None) is None:
            return
        for timer in probe.timers:
            timer.cancel()
        probe.ended(answered)

    def void(self) -> None:
        """Discard what is under way: after a stall it says nothing about others (9.3)."""
        for probe in list(self._pending.values()):
            self._end(probe, answered=None)

    # --- the cycle -----------------------------------------------------------------------------------------------

    def _period(self) -> None:
        node = self._node
        period_s = node.profile.period_s * node.health.factor
        node.timers.plan(node.now + period_s, self._period)
        if node.stage is NodeStage.DRAINING:
            return
        if node.own is Own.MEMBER and (peer := self._next()) is not None and len(self._pending) < PENDING_MAX:
            self._probe(peer, period_s)

    def _next(self) -> Peer | None:
        for _ in range(2):
            while self._order:
                peer = self._node.members.get(self._order.pop())
                if peer is not None and peer.live:
                    return peer
            self._order = [peer.id for peer in self._node.members.live]
            self._node.rng.shuffle(self._order)
        return None

    def _probe(self, peer: Peer, period_s: float) -> None:
        node = self._node
        node.counts["probes"] += 1
        seq = self.next_seq()
        probe = self._begin(seq, peer.node, peer.address, lambda answered: self._ended(probe, answered))
        probe.peer = peer
        probe.direct_until = node.now + period_s / 2
        probe.stage = node.stage
        probe.was_alive = peer.state is State.ALIVE
        self._send(probe)
        self._plan(probe, self._retry_s(), lambda: self._retry(probe))
        self._plan(probe, period_s / 2, lambda: self._ask_helpers(probe))
        self._plan(probe, period_s, lambda: self._end(probe, answered=False))
        # Not among the probe's own timers: it looks back also at a probe that was answered.
        node.timers.plan(node.now + period_s, lambda: self._look_back(probe))

    def _retry_s(self) -> float:
        profile, factor = self._node.profile, self._node.health.factor
        if len(self._rtts_s) < SAMPLES_MIN:
            return min(profile.ack_timeout_s * factor, profile.period_s * factor / 2)
        samples = sorted(self._rtts_s)
        p99 = samples[-(-99 * len(samples) // 100) - 1]
        return min(max(p99, RETRY_MIN_S) * factor, profile.period_s * factor / 2)

    def _send(self, probe: Probe) -> None:
        peer = probe.peer
        if peer is not None:
            payload = self._gossip.payload(peer, probe.seq, digest=self._around.own_digest())
            probe.meta = self._node.node if any(meta.node == self._node.node for meta in payload.metas) else None
            self._node.send(probe.address, self._gossip.ask(peer, payload))

    def _retry(self, probe: Probe) -> None:
        probe.retried = True
        self._first_shot(probe, answered=False)
        self._node.counts["retries"] += 1
        self._send(probe)

    def _first_shot(self, probe: Probe, *, answered: bool) -> None:
        """Estimate loss from what came back before a retry, of peers that nobody suspected (10)."""
        node = self._node
        if probe.was_alive:
            node.answered_share += LOSS_WEIGHT * (answered - node.answered_share)

    def _ask_helpers(self, probe: Probe) -> None:
        node, peer = self._node, probe.peer
        if peer is None or not peer.live:
            return
        chosen = node.in_turn(node.profile.helpers, lambda other: other is not peer and other.state is State.ALIVE)
        # Ourselves too: two links may lose it where a helper's answer takes four.
        self._send(probe)
        reply_to = node.address if node.address.ip else None
        for helper in chosen:
            probe.helpers[helper.id] = False
            # The payload is the target's; nothing but the number and the way back is worth three transmissions.
            payload = Payload(seq=probe.seq, reply_to=reply_to, stage=node.shown(peer))
            node.send(helper.address, self._gossip.ask(peer, payload, ttl=1))

    # --- responses -----------------------------------------------------------------------------------------------

    def match(self, response: PingResponse, source: Address) -> Match:
        """Take a response to one of our probes; it ends that probe, or is a helper's nack."""
        node = self._node
        probe = self._pending.get(response.payload.seq) if response.payload.seq is not None else None
        if probe is None:
            return Match.NONE
        from_helper = [peer.id for peer in node.members.at(source) if peer.id in probe.helpers]
        if response.target.id != probe.target.id:
            if response.target.id in from_helper and response.payload.health is not None:
                probe.helpers[response.target.id] = True
                node.counts["nacks"] += 1
                return Match.NACK
            return Match.NONE
        if source != probe.address and not from_helper:
            return Match.NONE
        probe.answered_at = node.now
        payload = response.payload
        disowned = (*payload.dead, *payload.left, *(unlink.receiver for unlink in payload.unlinks))
        probe.known_there = not from_helper and all(one.id != node.id for one in disowned)
        node.counts["acks_relayed" if from_helper else "acks_direct"] += 1
        self._end(probe, answered=True)
        return Match.ACK

    def _ended(self, probe: Probe, answered: bool | None) -> None:
        """Judge the end of a probe of the cycle."""
        node, peer = self._node, probe.peer
        if peer is None or answered is None:
            return
        if answered:
            node.health.better()
            peer.answered, peer.silent = True, False
            if probe.known_there:
                peer.shown_stage = peer.shown_stage or probe.stage is node.stage
                # Only a ping that was answered before it had to be repeated is known to have arrived.
                peer.told_meta = peer.told_meta or (probe.meta == node.node and not probe.retried)
            if not probe.retried:
                self._rtts_s.append(node.now - probe.sent_at)
                self._first_shot(probe, answered=True)
            return
        peer.silent = True
        self._around.probe_failed()
        node.health.worse(list(probe.helpers.values()).count(False) if probe.helpers else 1)
        if node.members.get(peer.id) is not peer or not peer.live:
            return
        warm = node.now - node.member_since >= WARM_UP_PERIODS * node.profile.period_s
        if peer.answered or warm:
            self._updates.unanswered(peer)

    def _look_back(self, probe: Probe) -> None:
        """See whether a peer that we hear is one that does not hear us (6.7)."""
        node, peer = self._node, probe.peer
        if peer is None or not peer.live:
            return
        direct = probe.answered_at is not None and probe.answered_at <= probe.direct_until
        before = peer.one_way
        if direct or (peer.heard_at < probe.sent_at and before < ONE_WAY_PROBES):
            peer.one_way = 0
        else:
            peer.one_way = min(before + 1, ONE_WAY_PROBES)
        if peer.one_way == ONE_WAY_PROBES and before < ONE_WAY_PROBES:
            node.event(Happened.ONE_WAY, peer)
        elif direct and before == ONE_WAY_PROBES:
            node.event(Happened.ONE_WAY_OVER, peer)
