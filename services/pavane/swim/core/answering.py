"""Which authors are believed, and how pings are answered (docs/specs/swim.md 2.3, 8.2, 8.3)."""

from dataclasses import dataclass
from enum import IntEnum

from pavane.parts.rates import SharedLimit
from pavane.swim.core.extras import Extras
from pavane.swim.core.gossip import Gossip
from pavane.swim.core.node import Node, Origin
from pavane.swim.core.outputs import Own
from pavane.swim.core.partial import Links
from pavane.swim.core.sync import EMPTY, Sync
from pavane.swim.core.updates import Claims, Updates
from pavane.swim.errors import DropReason
from pavane.swim.state.members import Peer
from pavane.swim.wire.messages import PingRequest, PingResponse
from pavane.swim.wire.payload import Payload, Unlink
from pavane.swim.wire.values import Address, NodeId, NodeStage, State

SHORT_ANSWERS_PER_S = 50
SHORT_ANSWERS_PER_SOURCE_PER_S = 5
RELAYS_PER_S = 50
RELAYS_PER_SOURCE_PER_S = 5
RELAYS_MAX = 256
WANDERING_TTL_MIN = 2  # below, a ping goes no further than to its target
WANDERING_TTL_MAX = 4  # above, it would visit half a group whose members know few others
NACK_PERIODS = 0.25


class Trust(IntEnum):
    """How far the author of a datagram is believed (2.3)."""

    STRANGER = 0
    RELAYED_STRANGER = 1
    BURIED = 2
    KNOWN = 3
    AUTHENTICATED = 4


@dataclass(frozen=True, slots=True)
class Author:
    """What is known of an author: its entry if any, and the known peer that passed the datagram on, if one did."""

    trust: Trust
    peer: Peer | None
    relay: Peer | None


def author_of(node: Node, author: int, origin: Origin) -> Author:
    """Judge the author of a ping, a response or a Leave."""
    peer = node.members.get(author)
    there = node.members.at(origin.source)
    relay = None if any(other is peer for other in there) else next(iter(there), None)
    if peer is not None and not peer.live:
        trust = Trust.BURIED
    elif origin.authenticated:
        trust = Trust.AUTHENTICATED
    elif peer is not None:
        trust = Trust.KNOWN if origin.source == peer.address or relay is not None else Trust.STRANGER
    else:
        trust = Trust.STRANGER if relay is None else Trust.RELAYED_STRANGER
    return Author(trust, peer, relay)


@dataclass(slots=True)
class _Relay:
    """A ping that we passed on, and where its answer goes."""

    to: Address
    until: float
    via: Address | None  # whom we asked to find a target that is unknown here


class Answering:
    """Answers pings, passes them on, and passes copies of answers back."""

    def __init__(
        self,
        node: Node,
        gossip: Gossip,
        updates: Updates,
        sync: Sync,
        extras: Extras,
        links: Links,
        claims: Claims,
    ) -> None:
        self._node = node
        self._extras = extras
        self._links = links
        self._claims = claims
        self._gossip = gossip
        self._updates = updates
        self._sync = sync
        self._short_limit = SharedLimit(SHORT_ANSWERS_PER_S, SHORT_ANSWERS_PER_SOURCE_PER_S)
        self._relay_limit = SharedLimit(RELAYS_PER_S, RELAYS_PER_SOURCE_PER_S)
        self._relays: dict[tuple[int, int, int], _Relay] = {}

    def __len__(self) -> int:
        return len(self._relays)

    def stop(self) -> None:
        """Forget what is under way: the node is out."""
        self._relays.clear()

    # --- pings ---------------------------------------------------------------------------------------------------

    def ping(self, request: PingRequest, origin: Origin, who: Author) -> None:
        """Answer or pass on a ping whose records have been applied."""
        node = self._node
        if request.target.id != node.id:
            self._forward(request, origin, who)
            return
        if who.trust >= Trust.KNOWN and request.target.gen > node.gen and node.own in (Own.MEMBER, Own.DIALING):
            # We started again with an older generation than others remember.
            if node.believable(request.target.gen, node.gen, origin):
                self._updates.outbid(request.target.gen)
            else:
                node.drop(DropReason.GENERATION)
        if who.trust in (Trust.STRANGER, Trust.BURIED):
            self._short(request, origin, who.peer)
        elif who.peer is not None:
            self._answer_peer(request, origin, who, who.peer)
        else:
            self._answer_unknown(request, origin, who)

    def _answer_peer(self, request: PingRequest, origin: Origin, who: Author, peer: Peer) -> None:
        node, seq = self._node, request.payload.seq
        page = self._sync.page_for(peer, request.payload.digest) if who.relay is None else None
        stage = request.payload.stage
        observer = stage is not None and stage.stage is NodeStage.READ_ONLY
        digest = self._sync.digest() if page or observer else None
        payload = self._gossip.payload(peer, seq, digest=digest, page=page)
        node.counts["pages"] += len(payload.pages)
        message = self._response(request, payload)
        node.send(peer.address, message)
        if request.payload.digest == EMPTY:
            for made in payload.pages:
                self._extras.after_page(made, peer)
        if who.relay is not None:
            node.send(who.relay.address, message)
        elif origin.source != peer.address:
            # Two processes with one id: the one that the table does not name hears at least that (8.3).
            self._short(request, origin, None)

    def _answer_unknown(self, request: PingRequest, origin: Origin, who: Author) -> None:
        """Answer an author without an entry: by the relay, or with the word that it has none here."""
        node, payload = self._node, Payload(seq=request.payload.seq, stage=self._node.shown(None))
        if who.relay is not None:
            node.send(who.relay.address, self._response(request, payload))
        if who.trust is not Trust.AUTHENTICATED:
            return
        payload.unlinks = (Unlink(request.src, self._links.replacement(request.src.id, origin.source)),)
        reply_to = request.payload.reply_to
        if reply_to is not None and reply_to.ip:
            node.answer(origin, self._response(request, payload), reply_to.plain())
        elif who.relay is None:
            node.answer(origin, self._response(request, payload))

    def _response(self, request: PingRequest, payload: Payload) -> PingResponse:
        return PingResponse(request.src, self._node.node, request.ttl, payload)

    def _short(self, request: PingRequest, origin: Origin, buried: Peer | None) -> None:
        """Tell a stranger or a buried author why nothing else is said to it."""
        node, seq = self._node, request.payload.seq
        if seq is None or request.ttl != 0:
            node.drop(DropReason.STRANGER)
            return
        if not self._short_limit.take(origin.source, node.now):
            node.drop(DropReason.RATE)
            return
        payload = Payload(seq=seq, stage=node.shown(None) if node.stage is not NodeStage.READ_WRITE else None)
        if buried is not None and not buried.live and origin.source == buried.address:
            grave = NodeId(buried.id, buried.gen)
            payload.dead = (grave,) if buried.state is State.DEAD else ()
            payload.left = (grave,) if buried.state is State.LEFT else ()
        else:
            payload.unlinks = (Unlink(request.src, self._links.replacement(request.src.id, origin.source)),)
        node.answer(origin, self._response(request, payload))

    def leaving(self, request: PingRequest, who: Author) -> None:
        """Answer a ping while we leave: with LEFT of ourselves first (12)."""
        if who.peer is not None and who.trust >= Trust.KNOWN and request.target.id == self._node.id:
            payload = self._gossip.payload(who.peer, request.payload.seq)
            self._node.send(who.peer.address, self._response(request, payload))

    def own_name(self, request: PingRequest, origin: Origin) -> None:
        """Answer the probe of another process with our id, and probe it in turn (5.3)."""
        node, seq = self._node, request.payload.seq
        probe = seq is not None and request.ttl == 0 and request.target.id == node.id
        if not probe or origin.source == node.address or node.own is not Own.MEMBER:
            node.drop(DropReason.SELF)
        elif self._short_limit.take(origin.source, node.now):
            node.answer(origin, self._response(request, Payload(seq=seq)))
            self._claims.probe_conflict(origin.source)

    # --- relaying ------------------------------------------------------------------------------------------------

    def _forward(self, request: PingRequest, origin: Origin, who: Author) -> None:
        """Pass a ping on to a peer by its id, with the ttl one less (8.2)."""
        node, seq = self._node, request.payload.seq
        target = node.members.get(request.target.id)
        if request.ttl == 0 or who.trust < Trust.KNOWN or len(origin.data) > node.room:
            node.drop(DropReason.RELAY)
            return
        known = target is not None and target.live
        to = target if known else self._somebody(request, origin)
        if to is None:
            self._cannot_help(request, origin, who)
            return
        if node.own is not Own.MEMBER or not self._relay_limit.take(origin.source, node.now):
            node.drop(DropReason.RATE)
            return
        node.counts["relayed"] += 1
        data = bytearray(origin.data)
        data[node.ttl_at] = (request.ttl if known else min(request.ttl, WANDERING_TTL_MAX)) - 1
        node.send(to.address, bytes(data))
        if seq is not None:
            asker = who.peer.address if who.peer is not None else origin.source
            self._expect(seq, request, asker, None if known else to.address)

    def _somebody(self, request: PingRequest, origin: Origin) -> Peer | None:
        """Draw who may know a target that is unknown here, if the ping may go on."""
        if request.ttl < WANDERING_TTL_MIN:
            return None
        peers = self._node.members.live
        others = [peer for peer in peers if peer.id != request.src.id and peer.address != origin.source]
        return self._node.rng.choice(others) if others else None

    def _cannot_help(self, request: PingRequest, origin: Origin, who: Author) -> None:
        """Drop a ping of somebody unknown here; in a partial view that is usual, and the asker hears of it (7.5)."""
        node, seq = self._node, request.payload.seq
        node.drop(DropReason.RELAY)
        if node.partial is not None and seq is not None and self._relay_limit.take(origin.source, node.now):
            self._nack(request, who.peer.address if who.peer is not None else origin.source, seq)

    def _nack(self, request: PingRequest, to: Address, seq: int) -> None:
        node = self._node
        payload = Payload(seq=seq, health=node.health.score, stage=node.shown(node.members.get(request.src.id)))
        node.send(to, PingResponse(request.src, node.node, 0, payload))

    def _expect(self, seq: int, request: PingRequest, to: Address, via: Address | None) -> None:
        node, key = self._node, (seq, request.src.id, request.target.id)
        period_s = node.profile.period_s
        if key not in self._relays and len(self._relays) >= RELAYS_MAX:
            return
        relay = self._relays[key] = _Relay(to, node.now + period_s, via)

        def nack() -> None:
            if self._relays.get(key) is relay:
                self._nack(request, to, seq)

        def forget() -> None:
            if self._relays.get(key) is relay:
                del self._relays[key]

        node.timers.plan(node.now + NACK_PERIODS * period_s, nack)
        node.timers.plan(relay.until, forget)

    def pass_back(self, response: PingResponse, origin: Origin, who: Author) -> None:
        """Pass the copy of an answer to whom we relayed the ping for, once; nobody may answer for the target."""
        node, seq = self._node, response.payload.seq
        key = (seq, response.src.id, response.target.id) if seq is not None else None
        relay = self._relays.get(key) if key is not None else None
        if who.trust < Trust.KNOWN and (relay is None or relay.via != origin.source):
            node.drop(DropReason.STRANGER)
        elif key is None or relay is None or len(origin.data) > node.room:
            node.drop(DropReason.RELAY)
        else:
            del self._relays[key]
            node.send(relay.to, origin.data)
