"""Applies news to the table: precedence, suspicion, burial, refutation (docs/specs/swim.md 5, 9)."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from pavane.swim.core.dialing import Dialing
from pavane.swim.core.gossip import ITEMS_MAX
from pavane.swim.core.node import Node, Origin, usable
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.errors import DropReason
from pavane.swim.state.members import Peer
from pavane.swim.state.partial import PartialView
from pavane.swim.state.precedence import Verdict, judge
from pavane.swim.state.suspicion import CONFIRMATIONS, LONGEST, Suspicion
from pavane.swim.wire.payload import Payload
from pavane.swim.wire.values import U32_MAX, UNSPECIFIED, Address, NodeInfo, NodeStage, State

UNKNOWN_PER_PERIOD = 100  # ids that plaintext may name to us: a bound on the probing that forgers cause (5.3)
UNKNOWN_BURST = 400
OVER_CAPACITY_PAUSE_S = 60.0


@dataclass(slots=True)
class Heard:
    """How news came: ``direct`` from its author, in a response that ``matching`` a probe of ours, in a ``page``."""

    origin: Origin
    author: int
    direct: bool
    matching: bool = False
    page: bool = False
    items: int = ITEMS_MAX

    def one_more(self) -> bool:
        """Count an item; false once there were too many."""
        self.items -= 1
        return self.items >= 0


class Claims(Protocol):
    """Settles what news says about this member itself, or what this member may not decide."""

    def probe_conflict(self, address: Address) -> None:
        """Somebody may use our id at `address`."""

    def rename(self) -> None:
        """Our id belongs to somebody else."""

    def cannot_judge(self) -> None:
        """A suspicion ended here, but only full members decide about it."""


class Updates:
    """News in, changed table and news out."""

    def __init__(self, node: Node, dialing: Dialing, claims: Claims) -> None:
        self._node = node
        self._dialing = dialing
        self._claims = claims
        self._unknown_limit = node.per_period(UNKNOWN_PER_PERIOD, UNKNOWN_BURST)
        self._refuted_suspicion_at = float("-inf")
        self._over_capacity_at = float("-inf")
        self._passed_on: OrderedDict[int, int] = OrderedDict()  # id: gen, of those that did not fit

    # --- hearing -------------------------------------------------------------------------------------------------

    def records(self, payload: Payload, heard: Heard) -> None:
        """Apply the news in ``payload``; pages are the business of ``Sync``."""
        for node in payload.dead:
            self._record(State.DEAD, NodeInfo(*node, UNSPECIFIED), 0, heard)
        for node in payload.left:
            self._record(State.LEFT, NodeInfo(*node, UNSPECIFIED), 0, heard)
        for suspicion in payload.suspects:
            self._record(State.SUSPECT, NodeInfo(*suspicion.node, UNSPECIFIED), suspicion.reporter, heard)
        for info in payload.alive:
            self._record(State.ALIVE, info, 0, heard)

    def _record(self, kind: State, info: NodeInfo, reporter: int, heard: Heard) -> None:
        if heard.one_more():
            self.hear(kind, info, reporter, heard)
        else:
            self._node.drop(DropReason.ITEMS)

    def hear(self, kind: State, info: NodeInfo, reporter: int, heard: Heard) -> None:
        """Apply one piece of news by the table of 5.3."""
        node = self._node
        if not info.id or node.own is Own.OUT:  # out: what the same datagram said before has cost us our id
            return
        peer = node.members.get(info.id)
        known = node.gen if info.id == node.id else peer.gen if peer else 0
        if not node.believable(info.gen, known, heard.origin):
            node.drop(DropReason.GENERATION)
            return
        info = info._replace(address=self._address(info, heard))
        if node.partial is not None and peer is not None and self._rises_elsewhere(kind, info, peer, heard):
            node.members.forget(peer)
            peer = None
        if info.id == node.id:
            self._about_self(kind, info)
        elif peer is None:
            self._about_unknown(kind, info, reporter, heard)
        else:
            verdict = judge(kind, info.gen, peer.state, peer.gen)
            if verdict is Verdict.APPLY:
                self._apply(kind, peer, info, reporter, heard)
            elif verdict is Verdict.CONFIRM and not heard.page:
                self.confirm(peer, reporter)

    def _address(self, info: NodeInfo, heard: Heard) -> Address:
        """Return what the address field means (3.1)."""
        if not info.address.ip and info.id == heard.author and heard.direct:
            return heard.origin.source
        return usable(info.address)

    def _apply(self, kind: State, peer: Peer, info: NodeInfo, reporter: int, heard: Heard) -> None:
        match kind:
            case State.ALIVE:
                self.revive(peer, info.gen, info.address)
            case State.SUSPECT:
                self.suspect(peer, info.gen, reporter, gossip=not heard.page)
            case _:
                self.bury(peer, kind, info.gen)

    def _about_unknown(self, kind: State, info: NodeInfo, reporter: int, heard: Heard) -> None:
        node = self._node
        if kind is State.ALIVE and not info.address.ip:
            return
        view = node.partial
        if kind is State.SUSPECT and view is None:
            return
        if view is not None and not view.news.fresh(kind, info, node.now, node.memory_s):
            return
        if not (heard.origin.authenticated or heard.matching or self._unknown_limit.take(node.now)):
            node.drop(DropReason.RATE)
        elif view is not None:
            self._pass_on(view, kind, info, reporter)
        elif kind is State.ALIVE and len(node.members) >= node.members.capacity:
            self._does_not_fit(info)
        else:
            node.add(info, kind)
            if not heard.page:
                node.spread(kind, info)

    def _pass_on(self, view: PartialView, kind: State, info: NodeInfo, reporter: int) -> None:
        """Tell on what is news about a member that this node does not track (7.5)."""
        if kind is State.ALIVE:
            view.passive.add(info, self._node.rng)
            self._dialing.lives_at(info.address)
        elif kind is not State.SUSPECT:
            view.passive.gone(info.node)
        self._node.spread(kind, info, reporter)

    def _rises_elsewhere(self, kind: State, info: NodeInfo, peer: Peer, heard: Heard) -> bool:
        """Say whether news makes a tombstone meaningless without making a link: only its own author can (7.5)."""
        tracks_us = heard.direct and heard.author == info.id
        newer = kind is State.ALIVE and not peer.live and info.gen > peer.gen
        return newer and not (tracks_us and self._node.free(info.id))

    def _does_not_fit(self, info: NodeInfo) -> None:
        """Pass on news about a member for which there is no slot, once for each generation (7.1)."""
        node = self._node
        if self._passed_on.get(info.id, -1) < info.gen:
            self._passed_on[info.id] = info.gen
            if len(self._passed_on) > node.members.capacity:
                self._passed_on.popitem(last=False)
            node.spread(State.ALIVE, info)
        node.overfull = True
        if node.now - self._over_capacity_at >= OVER_CAPACITY_PAUSE_S:
            self._over_capacity_at = node.now
            node.event(Happened.OVER_CAPACITY)

    # --- about ourselves -----------------------------------------------------------------------------------------

    def _about_self(self, kind: State, info: NodeInfo) -> None:
        node = self._node
        if info.gen < node.gen or node.own not in (Own.MEMBER, Own.DIALING):
            return
        if kind is not State.ALIVE:
            if kind is State.SUSPECT and node.now - self._refuted_suspicion_at >= node.profile.period_s:
                self._refuted_suspicion_at = node.now
                node.health.worse()
            node.counts["refutations"] += 1
            self.outbid(info.gen)
        elif info.address.ip and node.address.ip and info.address != node.address:
            self.outbid(info.gen)
            self._claims.probe_conflict(info.address)
        elif info.gen > node.gen:
            self.outbid(info.gen)

    def outbid(self, gen: int) -> None:
        """Take the generation after ``gen`` and let everybody know (5.2)."""
        node = self._node
        if gen >= U32_MAX:
            self._claims.rename()
            return
        node.gen = gen + 1
        node.spread(State.ALIVE, node.info)

    # --- changing entries ----------------------------------------------------------------------------------------

    def revive(self, peer: Peer, gen: int, address: Address = UNSPECIFIED) -> None:
        """Make an entry ALIVE at a larger generation, and let it be known."""
        node = self._node
        where = address if address.ip else peer.address
        if not where.ip or (not peer.live and node.free(peer.id) <= 0):
            return
        if peer.state is State.SUSPECT:
            node.counts["false_alarms"] += 1
        node.change(peer, State.ALIVE, gen, where)
        node.spread(State.ALIVE, peer.info)

    def suspect(self, peer: Peer, gen: int, reporter: int, *, gossip: bool = True) -> None:
        """Begin to suspect an entry, or to suspect it anew at a larger generation."""
        node = self._node
        node.change(peer, State.SUSPECT, gen, peer.address)
        peer.suspicion = Suspicion(node.now, self.minimum_s(), node.population, reporter, self._confirmations())
        self._watch(peer, peer.suspicion)
        if gossip:
            node.spread(State.SUSPECT, peer.info, reporter)

    def _confirmations(self) -> int:
        """Return k of 9.1: in a partial view a suspect may have no more than t links (7.5)."""
        view = self._node.partial
        return CONFIRMATIONS if view is None else min(CONFIRMATIONS, view.wanted - 1)

    def confirm(self, peer: Peer, reporter: int) -> None:
        """Count another reporter."""
        if peer.suspicion is not None and peer.suspicion.confirm(reporter):
            self._watch(peer, peer.suspicion)
            self._node.spread(State.SUSPECT, peer.info, reporter)

    def unanswered(self, peer: Peer) -> None:
        """Originate a suspicion, or confirm the one that there is (8.1)."""
        node = self._node
        if node.own is not Own.MEMBER or node.stage is not NodeStage.READ_WRITE:
            return
        if peer.state is State.SUSPECT:
            self.confirm(peer, node.id)
        else:
            node.counts["suspicions"] += 1
            self.suspect(peer, peer.gen, node.id)

    def bury(self, peer: Peer, kind: State, gen: int, *, gossip: bool = True) -> None:
        """Make an entry a tombstone, or renew one."""
        node = self._node
        node.change(peer, kind, gen, peer.address)
        node.news.drop(peer.id)
        if gossip:
            node.spread(kind, peer.info)

    def minimum_s(self) -> float:
        """Return min of 9.1."""
        node, profile = self._node, self._node.profile
        periods = max(profile.floor_periods, profile.slope_periods * math.log10(node.population))
        return periods * profile.period_s * node.health.factor

    def longest_s(self) -> float:
        """Return max of 9.1 for a healthy node: one that is cut off is never healthy."""
        return LONGEST * self.minimum_s() / self._node.health.factor

    def promoted(self) -> None:
        """Give suspicions that ended while this node was an observer their shortest time again (16.2)."""
        node = self._node
        for peer in node.members.live:
            if peer.suspicion is not None and peer.suspicion.due <= node.now:
                peer.suspicion.not_before = node.now + self.minimum_s()
                self._watch(peer, peer.suspicion)

    def after_stall(self) -> None:
        """Let queued input be read before anybody is declared dead (9.3)."""
        for peer in self._node.members.live:
            if peer.suspicion is not None:
                peer.suspicion.not_before = self._node.now + self._node.profile.period_s

    def same_address(self, proven: Peer) -> None:
        """Declare older ids at the address of ``proven`` dead: one process has one id (5.3)."""
        if self._node.stage is not NodeStage.READ_WRITE:
            return
        for other in self._node.members.at(proven.address):
            if other is not proven:
                self.bury(other, State.DEAD, other.gen)

    def keep_tombstone(self, peer: Peer) -> None:
        """Forget a tombstone when its time is over."""
        node = self._node

        def forget() -> None:
            if not peer.live:
                node.members.forget(peer)

        peer.plan(node.timers.plan(node.now + node.tombstone_s, forget))

    def _watch(self, peer: Peer, suspicion: Suspicion) -> None:
        node = self._node

        def look() -> None:
            if peer.suspicion is not suspicion or node.own is not Own.MEMBER:
                return
            if node.now < suspicion.due:
                self._watch(peer, suspicion)
            elif node.stage is not NodeStage.READ_WRITE:
                self._claims.cannot_judge()
            else:
                node.counts["deaths"] += 1
                self.bury(peer, State.DEAD, peer.gen)

        peer.plan(node.timers.plan(max(suspicion.due, node.now), look))
