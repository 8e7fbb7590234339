"""Fills datagrams with news and sends plain gossip (docs/specs/swim.md 3.4, 9.1, 10)."""

from collections.abc import Callable

from pavane.parts.timers import Timer
from pavane.swim.core.node import Node
from pavane.swim.core.outputs import Own
from pavane.swim.state.extras import TRACE_BYTES, Extra
from pavane.swim.state.members import Peer
from pavane.swim.state.news import News
from pavane.swim.state.partial import PASSIVE_MAX, PartialView
from pavane.swim.wire.messages import PingRequest, PingResponse
from pavane.swim.wire.payload import HEADER_BYTES, Digest, KeyStep, Meta, Page, Payload, Suspicion, Unlink, User
from pavane.swim.wire.values import Address, NodeId, NodeInfo, State

PING_BYTES = 20  # without records
ITEMS_MAX = 128  # of one datagram; the receiver applies no more (11.2)
GATHER_SHARE = 0.1  # of a tick: news comes in groups, and peers should not answer it in step
SLOTS_BYTES = 14  # CAPACITY and PEERS
SLOTS_FIRST = 3  # datagrams to a new peer that show our slots, in a partial view
SLOTS_EVERY = 16  # and of all later ones, should those that showed a change be lost
SAMPLE_MAX = 3  # other peers named to a newcomer, should its first walk not get through

MakePage = Callable[[int, int], Page | None]
"""Makes a page of at most so many bytes, header included, and so many entries."""


class _Filling:
    """A payload being filled up to ``room`` bytes and ``ITEMS_MAX`` items."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.items = ITEMS_MAX
        self.dead: list[NodeId] = []
        self.left: list[NodeId] = []
        self.suspects: list[Suspicion] = []
        self.alive: list[NodeInfo] = []

    def put(self, news: News) -> bool:
        """Add a piece of news if it fits."""
        kind, node = news.kind, news.about.node
        there: list[NodeId] | list[Suspicion] | list[NodeInfo]
        there = (self.alive, self.suspects, self.dead, self.left)[kind]
        cost = news.size + (0 if there else HEADER_BYTES)
        if cost > self.room or not self.items:
            return False
        self.room -= cost
        self.items -= 1
        match kind:
            case State.ALIVE:
                self.alive.append(news.about)
            case State.SUSPECT:
                self.suspects.append(Suspicion(node, news.reporter))
            case State.DEAD:
                self.dead.append(node)
            case State.LEFT:
                self.left.append(node)
        return True


class Gossip:
    """Makes what is sent to peers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ticked_at = float("-inf")
        self._timer: Timer | None = None

    def payload(
        self,
        to: Peer,
        seq: int | None,
        *,
        reply_to: Address | None = None,
        unlink: Unlink | None = None,
        digest: Digest | None = None,
        page: MakePage | None = None,
    ) -> Payload:
        """Fill a payload for ``to``: what it must hear first, then news, then the table, then the rest."""
        node = self._node
        payload = Payload(seq=seq, reply_to=reply_to, health=node.health.score or None, stage=node.shown(to))
        if unlink is not None:
            payload.unlinks = (unlink,)
        payload.digest = digest
        if to.welcome:
            to.welcome = False
            self.welcome(payload, to, node.room - PING_BYTES)
        filling = _Filling(node.room - PING_BYTES - len(payload.encode()))
        self._put_news(filling, to)
        payload.dead, payload.left = tuple(filling.dead), tuple(filling.left)
        payload.suspects, payload.alive = tuple(filling.suspects), tuple(filling.alive)
        self._put_extras(filling, payload, to)
        if page is not None and (made := page(filling.room - HEADER_BYTES, filling.items)):
            payload.pages = (made,)
        if node.partial is not None and seq is not None and payload.capacity is None:
            self._show_slots(node.partial, filling, payload, to)
        return payload

    def _show_slots(self, view: PartialView, filling: _Filling, payload: Payload, to: Peer) -> None:
        """Show a peer what slots there are, when that is new to it, and whom it could link to (3.4)."""
        node, link = self._node, view.links.get(to.id)
        if link is None or filling.room < SLOTS_BYTES:
            return
        link.exchanges += 1
        free = view.free(node.now)
        if link.exchanges <= SLOTS_FIRST or link.told_free != free or link.exchanges % SLOTS_EVERY == 0:
            link.told_free = free
            self.welcome(payload, to, len(payload.encode()) + filling.room)

    def _put_news(self, filling: _Filling, to: Peer) -> None:
        node = self._node
        leaving = node.own is Own.LEAVING
        # Applications are not starved by a storm of news.
        reserved = filling.room // 4 if len(node.extras) else 0
        if leaving:
            filling.put(News(State.LEFT, node.info))
        if to.state is not State.ALIVE:
            # So that it can refute; which of the reporters is told makes no difference to it.
            reporters = to.suspicion.reporters if to.suspicion else ()
            filling.put(News(to.state, to.info, min(reporters, default=node.id)))

        def fits(news: News) -> bool:
            told = news.about.id == to.id or (leaving and news.about.id == node.id)
            return not told and filling.put(news)

        if len(node.news):
            filling.room -= reserved
            node.news.take(fits, node.transmissions)
            filling.room += reserved

    def _put_extras(self, filling: _Filling, payload: Payload, to: Peer) -> None:
        """Add what applications tell, and what we say of ourselves until the peer has acknowledged it."""
        node = self._node

        def fits(extra: Extra) -> bool:
            if extra.size > filling.room or not filling.items:
                return False
            filling.room -= extra.size
            filling.items -= 1
            match extra.record:
                case Meta():
                    payload.metas += (extra.record,)
                case User():
                    payload.users += (extra.record,)
                    if extra.trace is not None and filling.room >= TRACE_BYTES:
                        filling.room -= TRACE_BYTES
                        payload.traces += (extra.trace,)
                case KeyStep():
                    payload.keyrings += (extra.record,)
            return True

        if len(node.extras):
            node.extras.take(fits, node.transmissions)
        if node.meta is not None and not to.told_meta and all(meta.node.id != node.id for meta in payload.metas):
            fits(Extra(Meta(node.node, node.meta)))

    def welcome(self, payload: Payload, to: Peer, room: int) -> None:
        """Add what a newcomer wants to know about the group, within ``room`` bytes (6.2)."""
        node = self._node
        payload.capacity, payload.peers = node.members.capacity, len(node.members)
        if node.partial is not None:
            payload.peers = node.members.capacity - node.partial.free(node.now)
        named = [peer.info for peer in node.others(SAMPLE_MAX, to) if peer.state is State.ALIVE]
        if node.partial is not None:
            # Beside our neighbours: links among them alone would make a chain of small crowds.
            named += node.partial.passive.sample(PASSIVE_MAX - len(named), node.rng)
        room -= len(payload.encode()) + (0 if payload.sample else HEADER_BYTES)
        for info in named:
            if info.size <= room and info.id != to.id:
                room -= info.size
                payload.sample += (info,)

    def tell(self, peer: Peer) -> None:
        """Send plain gossip: a response that answers nothing and expects nothing (8.3)."""
        node = self._node

        def make() -> PingResponse:
            return PingResponse(peer.node, node.node, 0, self.payload(peer, None))

        node.send_patiently(peer.address, make)

    def ask(self, peer: Peer, payload: Payload, ttl: int = 0) -> PingRequest:
        """Return a ping of ``peer``."""
        return PingRequest(self._node.node, peer.node, ttl, payload)

    def wake(self) -> None:
        """See that the tick runs while there is news.

        A node that was quiet tells at once what it hears, so that news crosses the group in a few hops and not in a
        few ticks; one that was not waits for its next tick and tells all that has come meanwhile (10).
        """
        node = self._node
        if self._timer is None and (len(node.news) or len(node.extras)) and len(node.members):
            tick_s = node.profile.gossip_tick_s
            soon = node.now + node.rng.uniform(0, GATHER_SHARE * tick_s)
            self._timer = node.timers.plan(max(soon, self._ticked_at + tick_s), self._tick)

    def stop(self) -> None:
        """Forget the tick: the node is out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = None
        node = self._node
        self._ticked_at = node.now
        if len(node.news) or len(node.extras):
            for peer in node.in_turn(node.profile.gossip_peers):
                self.tell(peer)
            self.wake()
