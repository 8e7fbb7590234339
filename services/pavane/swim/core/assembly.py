"""The parts of a member, and what they ask of each other (docs/specs/swim.md 2.3).

Each part gets the parts below it in its constructor, and for what must go up a small Protocol, which ``Parts`` is.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from pavane.swim.config import Config
from pavane.swim.core.admission import Admission
from pavane.swim.core.answering import Answering
from pavane.swim.core.dialing import Dialing
from pavane.swim.core.extras import Extras
from pavane.swim.core.gossip import Gossip
from pavane.swim.core.node import Node, Origin, usable
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.core.partial import Links, PartialViewLinks
from pavane.swim.core.probing import Probing
from pavane.swim.core.staging import Staging
from pavane.swim.core.sync import Sync
from pavane.swim.core.updates import Heard, Updates
from pavane.swim.errors import DropReason
from pavane.swim.state.members import Members, Peer
from pavane.swim.wire.messages import JoinAck
from pavane.swim.wire.payload import Digest, Payload
from pavane.swim.wire.values import Address, NodeInfo, NodeStage, State

if TYPE_CHECKING:
    from random import Random  # given by the caller: nothing in here draws by itself

CONFLICT_PAUSE_S = 10.0  # between probes that forged news can make us send


class Parts:
    """One member, put together. Arguments as of ``Core``."""

    def __init__(
        self, config: Config, rng: "Random", entropy: Callable[[int], bytes], now: float, unix_s: float
    ) -> None:
        node = self.node = Node(config, rng, entropy, now, unix_s, self)
        self.gossip = Gossip(node)
        self.dialing = Dialing(node, self)
        self.updates = Updates(node, self.dialing, self)
        self.probing = Probing(node, self.gossip, self.updates, self)
        self.sync = Sync(node, self.gossip, self.updates, self.probing)
        self.links = (
            Links(node, self.dialing)
            if node.partial is None
            else PartialViewLinks(node, self.dialing, node.partial, self.gossip, self.probing, self)
        )
        self.extras = Extras(node, self.updates)
        self.answering = Answering(node, self.gossip, self.updates, self.sync, self.extras, self.links, self)
        self.admission = Admission(node, self.gossip, self.updates, self.probing, self.dialing, self.links)
        self.staging = Staging(node, self.probing, self.updates, self.sync, self.links, self)
        self._conflict_at = float("-inf")

    # --- what a part asks of one above it ------------------------------------------------------------------------

    def wake(self) -> None:
        """Send queued news soon."""
        self.gossip.wake()

    def renewed(self) -> None:
        """Spread what is versioned by our generation again."""
        self.extras.renewed()

    def own_digest(self) -> Digest | None:
        """Return the digest of our table; ``None`` if it is overfull."""
        return self.sync.digest()

    def probe_failed(self) -> None:
        """Look whether links are missing."""
        self.links.probe_failed()

    def wants_peers(self) -> bool:
        """Return whether this node knows no peer, or has too few links."""
        return self.node.own is Own.DIALING or self.links.starving

    def nobody_at(self, address: Address) -> None:
        """Forget an address that does not answer."""
        self.links.nobody_at(address)

    # --- coming and going ----------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave the group in order (12)."""
        node = self.node
        if node.own is Own.DIALING:
            self._out()
        elif node.own is Own.MEMBER:
            node.become(Own.LEAVING)
            for peer in node.members.live:
                self.dialing.remember(peer.address)
            tick_s = node.profile.gossip_tick_s
            linger_s = max(2 * tick_s, min(1.0, node.transmissions * tick_s))
            node.news.drop(node.id)
            node.spread(State.LEFT, node.info)
            self.links.hand_on()
            self._say_leave()
            node.timers.plan(node.now + tick_s, self._say_leave)
            node.timers.plan(node.now + linger_s, self._out)

    def acked(self, ack: JoinAck, origin: Origin) -> None:
        """Take an acknowledgement of an open dial."""
        node, desc, payload = self.node, ack.desc, ack.payload
        peer = node.members.get(desc.id)
        if desc.id in (node.id, 0):
            node.drop(DropReason.SELF)
            return
        if self.links.cannot_track(peer, ack):
            node.event(Happened.JOIN_REFUSED, address=origin.source, text="capacity")
            node.send(origin.source, self.links.refusal(desc))
            return
        for info in payload.sample:
            node.learn_address(info)
        where = usable(desc.address)
        where = where if where.ip else origin.source
        newcomer = node.own is Own.DIALING
        if peer is None:
            peer = node.add(NodeInfo(desc.id, desc.gen, where), State.ALIVE)
        elif desc.gen > peer.gen:
            self.updates.revive(peer, desc.gen, where)
        elif not peer.live:
            # It does not know that it is buried here; hearing that it refutes, and its answer revives it.
            ask = self.gossip.payload(peer, 0)
            self.probing.once(peer.node, origin.source, ask, node.profile.period_s, lambda _: None)
            return
        heard = Heard(origin, desc.id, direct=True, matching=True, page=True)
        peer.heard_at = node.now
        self.staging.heard(peer, payload)
        self.links.heard(peer, payload)
        self.links.introduced(payload)
        for info in payload.sample if node.partial is None else ():
            if info.id != node.id and heard.one_more():
                self.updates.hear(State.ALIVE, info, 0, heard)
        if newcomer:
            self.sync.walk(peer)

    def became_live(self, peer: Peer) -> None:
        """Probe a new peer, link to it; the first one makes this node a member."""
        node = self.node
        self.probing.insert(peer)
        self.dialing.seen(peer)
        self.links.became_live(peer)
        if node.own is Own.DIALING:
            node.become(Own.MEMBER)
            self.staging.became_member()
            self.dialing.admitted()
            node.spread(State.ALIVE, node.info)

    def became_tombstone(self, peer: Peer) -> None:
        """Remember a dead peer, forget one that left, and look for others if it was the last."""
        self.updates.keep_tombstone(peer)
        self.links.became_tombstone(peer)
        if peer.state is State.DEAD:
            self.dialing.remember(peer.address)
        else:
            self.dialing.left(peer.address)
        self.lost_a_link()

    def lost_a_link(self) -> None:
        """Look for the group again when nobody tracks us any more."""
        node = self.node
        if node.own is Own.MEMBER and not len(node.members):
            node.become(Own.DIALING)
            self.sync.stop()
            self.dialing.admitted()  # the pauses of a member that looked for more links are over
            self.dialing.round()

    def cannot_judge(self) -> None:
        """An observer's suspicion ended: full members know what became of the peer (16.1)."""
        if self.node.stage is NodeStage.READ_ONLY and not self.sync.walking:
            self.sync.walk()

    def _say_leave(self) -> None:
        node = self.node
        for peer in node.members.live:
            node.send_patiently(peer.address, partial(node.farewell, peer.node))

    def _out(self) -> None:
        """End everything; what was learned about addresses is kept for the next ``join``."""
        node = self.node
        node.timers.clear()
        self._clear()
        self.admission.stop()
        self.dialing.stop()
        node.become(Own.OUT)

    def _clear(self) -> None:
        node = self.node
        for peer in node.members:
            peer.plan(None)  # of an entry that is in no table any more
        node.members = Members(node.config.capacity)
        if node.partial is not None:
            node.partial.clear()
        node.forget_unsent()
        node.news.clear()
        node.extras.clear()
        self.gossip.stop()
        self.sync.stop()
        self.probing.stop()
        self.answering.stop()

    # --- two processes with one id -------------------------------------------------------------------------------

    def probe_conflict(self, address: Address) -> None:
        """Ask whether somebody answers under our id at ``address``; then one of us yields (5.3)."""
        node = self.node
        if node.own is not Own.MEMBER or address == node.address or node.now - self._conflict_at < CONFLICT_PAUSE_S:
            return
        self._conflict_at = node.now

        def ended(answered: bool | None) -> None:
            larger = not node.address.ip or node.address.encode() > address.encode()
            if answered and larger and node.own is Own.MEMBER:
                self.rename(address)

        self.probing.once(node.node, address, Payload(), node.profile.period_s, ended)

    def rename(self, holder: Address | None = None) -> None:
        """Give the id up: a random one is drawn anew and joins again, with a configured one the node goes OUT."""
        node = self.node
        node.event(Happened.ID_CONFLICT, address=holder)
        if node.config.id is not None:
            self._out()
            return
        for peer in node.members.live:
            self.dialing.remember(peer.address)
        self._clear()
        node.id, node.gen = node.draw_id(), node.first_gen()
        node.become(Own.DIALING)
        self.dialing.round()
