"""Stages: newcomers observe until they are caught up, old members drain (docs/specs/swim.md 16)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pavane.swim.config import Start
from pavane.swim.core.node import Node
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.core.partial import Links
from pavane.swim.core.probing import Ended, Probing
from pavane.swim.core.sync import Sync
from pavane.swim.core.updates import Updates
from pavane.swim.state.members import Peer
from pavane.swim.wire.payload import Payload
from pavane.swim.wire.values import NodeStage, State

AGREEING = 3  # members whose digest must equal one's own
FRESH_PERIODS = 10  # how old their digests may be
ASKED = 3  # members pinged per period for their digests, beside the probe
ALONE_S = 5.0  # of dialling without hearing a full member; a group of observers would admit nobody
APPROXIMATE_S = 30.0
DRAIN_PERIODS = 2  # until a draining member leaves: time for others to hear that it admits nobody


class CaughtUp(StrEnum):
    """Whether an observer knows what the group knows (16.3)."""

    NO = "no"
    APPROXIMATE = "approximate"  # digests never agree for long in a group that keeps changing
    YES = "yes"


@dataclass(frozen=True, slots=True)
class StagingStatus:
    """What a controller wants to know of a node (16.3). ``progress`` and ``target`` count periods since ``join``."""

    stage: NodeStage
    rollout: int
    caught_up: CaughtUp
    agreeing: int
    wanted: int
    progress: int
    target: int
    rollout_heard: int
    fenced: bool


class Leaver(Protocol):
    """What staging needs of the member."""

    def leave(self) -> None:
        """Leave in order."""


class Staging:
    """The stage of this node and its transitions; what the others showed."""

    def __init__(
        self, node: Node, probing: Probing, updates: Updates, sync: Sync, links: Links, leaver: Leaver
    ) -> None:
        self._node = node
        self._leaver = leaver
        self._probing = probing
        self._updates = updates
        self._sync = sync
        self._links = links
        self._joined_at = 0.0
        self._full_heard_at = float("-inf")
        self._caught_up = CaughtUp.NO
        self._progress = 0
        self._fenced = False
        self._by_itself = False
        self.rollout_heard = 0  # the latest of full members

    # --- what there is to see ------------------------------------------------------------------------------------

    def _agreeing(self) -> tuple[int, int]:
        """Return how many full members agree with our table, of how many that are wanted (16.3: q)."""
        node = self._node
        if node.partial is not None:
            return self._links.linked
        own, since = self._sync.digest(), node.now - FRESH_PERIODS * node.profile.period_s
        full = self._full()
        agreeing = sum(1 for peer in full if peer.digest == own and peer.digest_at >= since)
        wanted = min(AGREEING, len(full))
        return min(agreeing, wanted), wanted

    @property
    def caught_up(self) -> CaughtUp:
        """Judge by the digests of full members (16.3)."""
        node = self._node
        if node.own is not Own.MEMBER:
            return CaughtUp.NO
        agreeing, wanted = self._agreeing()
        informed = self._sync.walked_full if node.partial is None else self._links.informed
        if informed and wanted and agreeing >= wanted and not node.health.score:
            return CaughtUp.YES
        bound = max(1, node.population // 100)
        changes = self._sync.walk_changes
        quiet = len(changes) == changes.maxlen and max(changes) <= bound
        if node.now - node.member_since >= APPROXIMATE_S and quiet and wanted:
            return CaughtUp.APPROXIMATE
        return CaughtUp.NO

    def status(self) -> StagingStatus:
        """Return where this node stands; progress equals target exactly when it is caught up (16.3)."""
        node = self._node
        target = int((node.now - self._joined_at) / node.profile.period_s)
        caught_up, (agreeing, wanted) = self.caught_up, self._agreeing()
        behind = (wanted - agreeing) if wanted else 1
        if caught_up is CaughtUp.NO:
            behind = max(behind, 1)
        elif caught_up is CaughtUp.APPROXIMATE:
            behind = 0
        self._progress = min(max(self._progress, target - behind), target)
        return StagingStatus(
            node.stage,
            node.config.rollout,
            caught_up,
            agreeing,
            wanted,
            self._progress,
            target,
            self.rollout_heard,
            self._fenced,
        )

    # --- transitions ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin anew with ``join``."""
        node = self._node
        self._joined_at = node.now
        self._full_heard_at = node.now
        self._caught_up, self._progress, self._fenced, self.rollout_heard = CaughtUp.NO, 0, False, 0
        self._by_itself = node.config.start is Start.SELF
        node.stage = NodeStage.READ_WRITE if node.config.start is Start.READ_WRITE else NodeStage.JOINING
        if node.stage is NodeStage.JOINING:
            self._plan()

    def became_member(self) -> None:
        """Somebody tracks us: from now on we observe."""
        if self._node.stage is NodeStage.JOINING:
            self._node.stage = NodeStage.READ_ONLY

    def promote(self, *, force: bool = False) -> bool:
        """Become a full member by an order from outside; false while not caught up, unless ``force`` (16.2)."""
        node = self._node
        if node.stage is NodeStage.READ_WRITE:
            return True
        if node.stage is NodeStage.DRAINING or node.own not in (Own.DIALING, Own.MEMBER):
            return False
        if not force and self.caught_up is CaughtUp.NO:
            return False
        self._change(NodeStage.READ_WRITE)
        node.event(Happened.PROMOTED)
        self._updates.promoted()
        return True

    def promote_when_ready(self) -> None:
        """Go on as a node that was started with ``Start.SELF``: its rollout has become the active one (16.2)."""
        self._by_itself = True

    def drain(self) -> None:
        """Admit no joiner and suspect no peer any more, and leave in two periods (16.4)."""
        node = self._node
        if node.own is not Own.MEMBER:
            self._leaver.leave()
        elif node.stage is not NodeStage.DRAINING:
            self._change(NodeStage.DRAINING)
            node.timers.plan(node.now + DRAIN_PERIODS * node.profile.period_s, self._drained)

    def _drained(self) -> None:
        self._node.event(Happened.DRAINED)
        self._leaver.leave()

    def _change(self, stage: NodeStage) -> None:
        self._node.stage = stage
        for peer in self._node.members.live:
            peer.shown_stage = False

    # --- hearing -------------------------------------------------------------------------------------------------

    def heard(self, peer: Peer, payload: Payload) -> None:
        """Note what a live peer shows of itself, in a datagram of its own."""
        node = self._node
        if payload.stage is not None:
            peer.stage, peer.rollout = NodeStage(payload.stage.stage), payload.stage.rollout
        if payload.digest is not None:
            peer.digest, peer.digest_at = payload.digest, node.now
            self._sync.compare(payload.digest)
        if peer.stage is not NodeStage.READ_WRITE:
            return
        self._full_heard_at = node.now
        if not self._kin(peer):
            return
        self.rollout_heard = max(self.rollout_heard, peer.rollout)
        if peer.rollout > node.config.rollout and node.stage is NodeStage.READ_WRITE and self._replaced():
            self.drain()
        if peer.rollout > node.config.rollout and self._by_itself and node.stage < NodeStage.READ_WRITE:
            self._fence()

    def _kin(self, peer: Peer) -> bool:
        """Say whether a peer counts its rollouts with us."""
        kin = self._node.config.kin
        return kin is None or kin(peer.id, peer.rollout)

    def _replaced(self) -> bool:
        """Say whether enough full members of later rollouts are there for us to go (16.4)."""
        wanted, own = self._node.config.drain_for, self._node.config.rollout
        if wanted is None:
            return False
        later = (peer for peer in self._node.members.live if peer.rollout > own and self._kin(peer))
        return sum(peer.state is State.ALIVE and peer.stage is NodeStage.READ_WRITE for peer in later) >= wanted

    def _fence(self) -> None:
        if not self._fenced:
            self._fenced = True
            self._node.event(Happened.FENCED, text=str(self.rollout_heard))

    # --- catching up ---------------------------------------------------------------------------------------------

    def _full(self) -> list[Peer]:
        """Return the full members that were heard directly."""
        heard = float("-inf")
        return [
            peer
            for peer in self._node.members.live
            if peer.state is State.ALIVE and peer.stage is NodeStage.READ_WRITE and peer.heard_at > heard
        ]

    def _plan(self) -> None:
        node = self._node
        node.timers.plan(node.now + node.profile.period_s, self._look)

    def _look(self) -> None:
        node = self._node
        if node.stage >= NodeStage.READ_WRITE:
            return
        self._plan()
        caught_up = self.caught_up
        if caught_up is not self._caught_up:
            self._caught_up = caught_up
            node.event(Happened.CAUGHT_UP, text=caught_up)
        if self._by_itself and not self._fenced and (caught_up is not CaughtUp.NO or self._alone()):
            self.promote(force=True)
        elif caught_up is not CaughtUp.YES and node.own is Own.MEMBER:
            self._ask()

    def _alone(self) -> bool:
        """Say whether there is no full member that we could wait for (16.2)."""
        node = self._node
        if node.own is Own.DIALING:
            return node.now - max(node.own_since, self._full_heard_at) >= ALONE_S
        return node.now - max(node.own_since, self._full_heard_at) >= self._updates.longest_s()

    def _ask(self) -> None:
        """Ask full members for their digests, which answers to an observer carry."""
        node, full = self._node, self._full()
        for peer in node.rng.sample(full, min(ASKED, len(full))):
            self._probing.once(peer.node, peer.address, Payload(), node.profile.period_s, self._asked(peer))
        if full and not self._sync.walked_full and not self._sync.walking:
            self._sync.walk(node.rng.choice(full))

    def _asked(self, peer: Peer) -> Ended:
        def ended(answered: bool | None) -> None:
            if answered:
                self._links.proven(peer)

        return ended
