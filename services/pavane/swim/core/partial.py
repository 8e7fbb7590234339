"""Partial views: links are made, split, handed on and repaired (docs/specs/swim.md 7.3 - 7.5)."""

from typing import Protocol

from pavane.parts.rates import Bucket
from pavane.swim.core.dialing import Dialing
from pavane.swim.core.gossip import Gossip
from pavane.swim.core.node import Node, Origin, usable
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.core.probing import Probing
from pavane.swim.state.members import Peer
from pavane.swim.state.partial import KEPT_S, LINKS_MIN, Link, PartialView
from pavane.swim.wire.messages import JoinAck, Message, PingResponse
from pavane.swim.wire.payload import Payload, Unlink
from pavane.swim.wire.refusals import Refusal
from pavane.swim.wire.values import Address, NodeId, NodeInfo, NodeStage, State

SPLITS_PER_S = 10  # each costs two nodes a handshake
OLDEST_KEPT = 2  # links that no split ends: newcomers cannot cut a node off from the group that it knew
HEARD_PERIODS = 30  # a redirect names only peers that were heard directly since
ASKED_MAX = 16  # links pinged when one does not answer
DIAL_BACK_PAUSE_S = 10.0  # per peer that says that it does not track us
ASK_PAUSE_PERIODS = 5  # between two such rounds
MISMATCH_PAUSE_S = 60.0
INFORMED = 10  # other members that an observer must know before it counts as caught up (16.3)
PROVEN_PERIODS = 3


class Links:
    """What links mean in a full view, where everybody has one to everybody; ``PartialViewLinks`` is the other view."""

    def __init__(self, node: Node, dialing: Dialing) -> None:
        self._node = node
        self._dialing = dialing

    @property
    def starving(self) -> bool:
        """Whether this member needs its seeds again, for it has too few links (7.3, rule 7; 7.5)."""
        return False

    @property
    def linked(self) -> tuple[int, int]:
        """How many links answered lately, of how many that an observer must have (16.3)."""
        return 0, 0

    @property
    def informed(self) -> bool:
        """Whether enough others are known to repair links (16.3)."""
        return False

    def start(self) -> None:
        """Begin with ``join``."""

    def became_live(self, peer: Peer) -> None:
        """Begin a link."""

    def became_tombstone(self, peer: Peer) -> None:
        """End the link of a peer that is dead or has left."""

    def heard(self, peer: Peer, payload: Payload) -> None:
        """Take what a peer says of its slots and of its own peers."""

    def introduced(self, payload: Payload) -> None:
        """Take what comes with an acknowledgement."""

    def make_room(self, info: NodeInfo, origin: Origin) -> NodeInfo | Address | Refusal:
        """Return whose place the asker takes, or where it shall ask, or why neither is possible (7.1, 7.3)."""
        del info, origin
        return Refusal.AT_CAPACITY

    def replacement(self, receiver: int, source: Address) -> NodeInfo | None:
        """Return whom ``receiver`` shall link to instead of us, if we told it so lately."""
        del receiver, source
        return None

    def cannot_track(self, peer: Peer | None, ack: JoinAck) -> bool:
        """Return whether there is no slot for the peer that admitted us, or none for all that it tracks (6.1)."""
        node = self._node
        if peer is None and node.free(ack.desc.id) <= 0:
            return True
        return node.own is Own.DIALING and (ack.payload.peers or 0) > node.members.capacity

    def refusal(self, receiver: NodeInfo) -> Message:
        """Return the message to the peer that admitted us and that we cannot track."""
        return self._node.farewell(receiver.node)

    def unlinked(self, peer: Peer | None, unlink: Unlink, origin: Origin, *, proven: bool) -> None:
        """Note that ``peer`` does not track us: dial it, once (7.4)."""
        del unlink, proven
        node = self._node
        if node.own is not Own.MEMBER:
            return
        if peer is None:
            self._dialing.dial_back(origin.source)
        elif node.now - peer.dialled_at >= DIAL_BACK_PAUSE_S:
            peer.dialled_at = node.now
            self._dialing.dial_back(peer.address)

    def hand_on(self) -> None:
        """Before we leave, name our peers to each other."""

    def nobody_at(self, address: Address) -> None:
        """A dial was not answered."""

    def probe_failed(self) -> None:
        """A probe was not answered."""

    def proven(self, peer: Peer) -> None:
        """Note that a peer answered a ping directly."""


class Linked(Protocol):
    """What links need of the member."""

    def lost_a_link(self) -> None:
        """A peer does not track us any more; it may have been the last one."""


class PartialViewLinks(Links):
    """A partial view: links are few, and made and repaired on purpose."""

    def __init__(
        self, node: Node, dialing: Dialing, view: PartialView, gossip: Gossip, probing: Probing, around: Linked
    ) -> None:
        super().__init__(node, dialing)
        self._around = around
        self._view = view
        self._gossip = gossip
        self._probing = probing
        self._splits = Bucket(SPLITS_PER_S)
        self._named: dict[int, tuple[float, Address, NodeInfo]] = {}  # whom we named to those that we unlinked
        self._asked_at = float("-inf")
        self._mismatch_at = float("-inf")

    def start(self) -> None:
        """Look once per period whether links are missing."""
        node = self._node
        node.timers.plan(node.now + node.profile.period_s, self._look)

    # --- the table -----------------------------------------------------------------------------------------------

    def became_live(self, peer: Peer) -> None:
        """Begin a link."""
        if peer.id not in self._view.links:
            self._view.links[peer.id] = Link()
        self._view.kept.forget(peer.id)

    def became_tombstone(self, peer: Peer) -> None:
        """End the link of a peer that is dead or has left."""
        self._view.links.pop(peer.id, None)

    def _end(self, peer: Peer) -> None:
        """End the link of a peer that lives."""
        node = self._node
        self._view.links.pop(peer.id, None)
        self._view.passive.add(peer.info, node.rng)
        node.forget(peer)
        node.event(Happened.UNLINKED, peer)

    def heard(self, peer: Peer, payload: Payload) -> None:
        """Take what a peer says of its slots and of its own peers."""
        link = self._view.links.get(peer.id)
        if link is not None and payload.capacity is not None and payload.peers is not None:
            link.free = max(payload.capacity - payload.peers, 0)
        self.remember(payload.sample)
        if payload.digest is not None and self._node.now - self._mismatch_at >= MISMATCH_PAUSE_S:
            self._mismatch_at = self._node.now
            self._node.event(Happened.VIEW_MISMATCH, peer)

    def remember(self, infos: tuple[NodeInfo, ...]) -> None:
        """Keep the addresses of members for repair."""
        for info in infos:
            address = usable(info.address)
            if address.ip and info.id not in (self._node.id, 0) and address != self._node.address:
                self._view.passive.add(info._replace(address=address), self._node.rng)

    # --- joiners without a slot ----------------------------------------------------------------------------------

    def make_room(self, info: NodeInfo, origin: Origin) -> NodeInfo | Address | Refusal:
        """Return whose place the asker takes, or where it shall ask, or why neither is possible (7.3)."""
        node, view = self._node, self._view
        if not view.redirected.lately(info.id, node.now) and (to := self._with_room(info, origin)) is not None:
            view.redirected.note(info.id, node.now)
            # Until it shows its slots again: a crowd of joiners is spread over all that have some.
            view.links[to.id].free -= 1
            return to.address
        given_up = self._replaceable(info)
        if not given_up:
            return Refusal.AT_CAPACITY
        if not self._splits.take(node.now):
            return Refusal.RATE_LIMITED
        peer = node.rng.choice(given_up)
        node.counts["edge_splits"] += 1
        self._end(peer)
        self._named = {id_: kept for id_, kept in self._named.items() if node.now < kept[0]}
        self._named[peer.id] = (node.now + KEPT_S, peer.address, info)
        node.send(peer.address, self._unlink(peer.node, info))
        return peer.info

    def _with_room(self, info: NodeInfo, origin: Origin) -> Peer | None:
        """Draw a peer, the likelier the more slots it showed."""
        node, links = self._node, self._view.links
        since = node.now - HEARD_PERIODS * node.profile.period_s
        peers = [
            peer
            for peer in node.members.live
            if links[peer.id].free
            and peer.state is State.ALIVE
            and peer.stage is NodeStage.READ_WRITE
            and peer.heard_at >= since
            and peer.address not in (origin.source, info.address)
        ]
        weights = [links[peer.id].free for peer in peers]
        return node.rng.choices(peers, weights)[0] if peers else None

    def _replaceable(self, info: NodeInfo) -> list[Peer]:
        node = self._node
        younger = [node.members.get(id_) for id_ in list(self._view.links)[OLDEST_KEPT:]]
        return [
            peer
            for peer in younger
            if peer is not None
            and peer.state is State.ALIVE
            and peer.stage is NodeStage.READ_WRITE
            and peer.address != info.address
        ]

    def _unlink(self, receiver: NodeId, replacement: NodeInfo | None = None) -> Message:
        payload = Payload(unlinks=(Unlink(receiver, replacement),))
        return PingResponse(receiver, self._node.node, 0, payload)

    def cannot_track(self, peer: Peer | None, ack: JoinAck) -> bool:
        """Return whether there is no slot for the peer that admitted us."""
        return (peer is None or not peer.live) and self._node.free(ack.desc.id) <= 0

    def refusal(self, receiver: NodeInfo) -> Message:
        """Return an UNLINK: a Leave would tell the whole group that we are gone."""
        return self._unlink(receiver.node)

    def replacement(self, receiver: int, source: Address) -> NodeInfo | None:
        """Return whom ``receiver`` shall link to instead of us, if we told it so lately."""
        until, address, info = self._named.get(receiver, (float("-inf"), source, None))
        return info if self._node.now < until and address == source else None

    # --- ends of links -------------------------------------------------------------------------------------------

    def unlinked(self, peer: Peer | None, unlink: Unlink, origin: Origin, *, proven: bool) -> None:
        """End the link; an UNLINK that is not ``proven`` to be the peer's own is asked about first (7.4)."""
        node = self._node
        if peer is None:
            return
        link = self._view.links.get(peer.id)
        if link is not None and not proven:
            if node.now - link.asked_at >= node.profile.period_s:
                link.asked_at = node.now
                self._probing.once(peer.node, peer.address, Payload(), node.profile.period_s, lambda _: None)
            return
        if link is not None:
            self._end(peer)
        if unlink.replacement is not None:
            self._link_to(unlink.replacement)
        if not len(node.members):
            self._around.lost_a_link()

    def hand_on(self) -> None:
        """Name our peers to each other: they stay linked when we are gone (16.4)."""
        peers = [peer for peer in self._node.members.live if peer.state is State.ALIVE]
        partners = peers[1:] + peers[:1]
        for position in range(0, len(peers), 2):
            first, second = peers[position], partners[position]
            if first is not second:
                self._hand_on(first, second)
                self._hand_on(second, first)

    def _hand_on(self, peer: Peer, partner: Peer) -> None:
        payload = self._gossip.payload(peer, None, unlink=Unlink(peer.node, partner.info))
        self._node.send(peer.address, PingResponse(peer.node, self._node.node, 0, payload))

    # --- new links -----------------------------------------------------------------------------------------------

    def introduced(self, payload: Payload) -> None:
        """Take an acknowledgement; of a peer without a free slot the first one named gave us its own (7.3)."""
        others = [info for info in payload.sample if info.id != self._node.id]
        full = payload.capacity is not None and payload.peers is not None and payload.peers >= payload.capacity
        if full and others and self.missing > 0:
            self._link_to(others[0])

    def _link_to(self, info: NodeInfo) -> None:
        """Dial a member that was told to dial us too, and keep a slot for it."""
        node, view, address = self._node, self._view, usable(info.address)
        peer = node.members.get(info.id)
        linked = peer is not None and peer.live
        if linked or info.id in (node.id, 0) or not address.ip or not view.free(node.now, info.id):
            return
        view.kept.note(info.id, node.now)
        self._dial(address)

    def _dial(self, address: Address) -> None:
        self._view.dialled.note(address, self._node.now)
        self._node.counts["links_dialled"] += 1
        self._dialing.dial_back(address)

    @property
    def sound(self) -> int:
        """Links to peers that answer."""
        return sum(1 for peer in self._node.members.live if peer.state is State.ALIVE and not peer.silent)

    @property
    def missing(self) -> int:
        """How many links this node lacks."""
        return self._view.sought - self.sound

    @property
    def starving(self) -> bool:
        """Whether only the seeds can help (7.3, rule 7; 7.5)."""
        node = self._node
        if node.own is not Own.MEMBER or node.stage is NodeStage.DRAINING:
            return False
        full = any(peer.stage is NodeStage.READ_WRITE for peer in node.members.live)
        return not full or (self.sound < LINKS_MIN and not self._candidates())

    def _candidates(self) -> list[Address]:
        node, view = self._node, self._view
        return [
            info.address
            for info in view.passive
            if not node.members.at(info.address) and not view.dialled.lately(info.address, node.now)
        ]

    def _look(self) -> None:
        """Dial for a link that is missing; for all of them when there are hardly any."""
        node, view = self._node, self._view
        node.timers.plan(node.now + node.profile.period_s, self._look)
        missing, free = self.missing, view.free(node.now)
        if node.own is not Own.MEMBER or node.stage is NodeStage.DRAINING or missing <= 0 or not free:
            return
        if self.starving:
            self._dialing.round()
        at_once = 1 if self.sound >= LINKS_MIN else min(missing, free)
        candidates = self._candidates()
        for address in node.rng.sample(candidates, min(at_once, len(candidates))):
            self._dial(address)

    def nobody_at(self, address: Address) -> None:
        """Forget an address that does not answer a JoinReq."""
        self._view.passive.silent(address)

    def probe_failed(self) -> None:
        """Ping the other links too: if they died together nobody tells us so (7.5)."""
        node, period_s = self._node, self._node.profile.period_s
        if node.now - self._asked_at < ASK_PAUSE_PERIODS * period_s:
            return
        self._asked_at = node.now
        for peer in node.others(ASKED_MAX):
            if not peer.silent:
                self._ask(peer)

    def _ask(self, peer: Peer) -> None:
        def ended(answered: bool | None) -> None:
            peer.silent = peer.silent or answered is False

        self._probing.once(peer.node, peer.address, Payload(), self._node.profile.period_s, ended, retry=True)

    # --- observers -----------------------------------------------------------------------------------------------

    def proven(self, peer: Peer) -> None:
        """Note that a peer answered a ping directly."""
        if (link := self._view.links.get(peer.id)) is not None:
            link.proven_at = self._node.now

    @property
    def linked(self) -> tuple[int, int]:
        """How many links answered lately, of how many that an observer must have (16.3)."""
        node = self._node
        since = node.now - PROVEN_PERIODS * node.profile.period_s
        proven = sum(1 for link in self._view.links.values() if link.proven_at >= since)
        wanted = min(self._view.wanted, node.population - 1)
        return min(proven, wanted), wanted

    @property
    def informed(self) -> bool:
        """Whether this node knows enough others to repair its links (16.3)."""
        node, view = self._node, self._view
        return len(view.passive) + len(node.members) >= min(INFORMED, node.population - 1)
