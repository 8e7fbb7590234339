"""Anti-entropy: digests in pings, pages of the table in responses, walks over all of it (docs/specs/swim.md 11)."""

from collections import deque
from collections.abc import Iterator
from enum import Enum
from itertools import pairwise

from pavane.parts.timers import Timer
from pavane.swim.core.gossip import Gossip, MakePage
from pavane.swim.core.node import GEN_AHEAD_MAX, Node
from pavane.swim.core.outputs import Own
from pavane.swim.core.probing import Probing
from pavane.swim.core.updates import Heard, Updates
from pavane.swim.errors import DropReason
from pavane.swim.state.members import Peer
from pavane.swim.state.precedence import Verdict, judge
from pavane.swim.wire.payload import PAGE_HEADER_BYTES, Digest, Listed, Page, Payload
from pavane.swim.wire.values import U32_MAX, NodeStage, State

EMPTY = Digest(0, bytes(8))
"""Nobody's own digest: it asks for the next page, whatever the table holds."""

BUSY_PERIODS = 5  # with news under way a difference is likely to vanish by itself
WALK_PAGES = 8  # per peer and period
SUSPECTS_TOLD = 16  # per period
WALKS_LOOKED_AT = 3  # a group that changes all the time is known by what the last ones changed (16.3)
PAGELESS_MAX = 4  # pings of a walk in a row without a page, then another partner is asked


class Wanted(Enum):
    """What a digest asks for."""

    NOTHING = "nothing"
    PAGE = "page"
    WALK = "walk"


class Sync:
    """Both ends of the exchange."""

    def __init__(self, node: Node, gossip: Gossip, updates: Updates, probing: Probing) -> None:
        self._node = node
        self._gossip = gossip
        self._updates = updates
        self._probing = probing
        self._differed = False
        # Of pages that answer a digest: one for all peers, so that a few of them are told the whole table.
        self._cursor = 0
        self._told = node.per_period(SUSPECTS_TOLD)
        self._partner: int | None = None
        self._covered: list[tuple[int, int]] = []
        self._pageless = 0
        self._next: Timer | None = None
        self._walk_changed = 0
        self.walked_full = False  # a walk with a full member has ended since the join (16.3)
        self.walk_changes: deque[int] = deque(maxlen=WALKS_LOOKED_AT)

    @property
    def walking(self) -> bool:
        """Whether a walk is under way."""
        return self._partner is not None

    def start(self) -> None:
        """Look from time to time whether a walk is due."""
        self.walked_full = False
        self.walk_changes.clear()
        self._look_often()

    def _look_often(self) -> None:
        node = self._node

        def look() -> None:
            self._look_often()
            if self._differed and node.own is Own.MEMBER:
                self._differed = False
                self.walk()

        node.timers.plan(node.now + node.profile.sync_interval_s, look)

    def digest(self) -> Digest | None:
        """Return our own digest; ``None`` while members do not fit the table, and in a partial view."""
        return (
            None
            if self._node.overfull or self._node.partial is not None
            else self._node.members.digest(self._node.node)
        )

    def compare(self, digest: Digest) -> bool:
        """Note whether a peer's digest differs from ours; from time to time that leads to a walk (11.2)."""
        own = self.digest()
        differs = own is not None and digest not in (own, EMPTY)
        self._differed = self._differed or differs
        return differs

    # --- answering -----------------------------------------------------------------------------------------------

    def page_for(self, peer: Peer, digest: Digest | None) -> MakePage | None:
        """Return how to make the page that a ping of ``peer`` with ``digest`` is answered with, if it gets one."""
        wanted = self._wanted(digest)
        if wanted is Wanted.NOTHING or self._node.partial is not None:
            return None
        node, period_s = self._node, self._node.profile.period_s
        if node.now - peer.page_at >= period_s:
            busy = len(node.news) and node.now - peer.page_at < BUSY_PERIODS * period_s
            if busy and wanted is Wanted.PAGE:
                return None
            peer.page_at, peer.page_count = node.now, 0
        elif wanted is Wanted.PAGE or peer.page_count >= WALK_PAGES:
            return None
        peer.page_count += 1

        def make(room: int, items: int) -> Page | None:
            page = self._page(peer.cursor if wanted is Wanted.WALK else self._cursor, U32_MAX, room, items)
            if page is not None:
                following = (page.high + 1) & U32_MAX
                if wanted is Wanted.WALK:
                    peer.cursor = following
                else:
                    self._cursor = following
            return page

        return make

    def _wanted(self, digest: Digest | None) -> Wanted:
        if digest == EMPTY:
            return Wanted.WALK
        return Wanted.PAGE if digest is not None and self.compare(digest) else Wanted.NOTHING

    def _page(self, low: int, high: int, room: int, items: int) -> Page | None:
        """List entries from ``low`` on, as many as fit; ``None`` if that is not even one."""
        room -= PAGE_HEADER_BYTES
        listed: list[Listed] = []
        for entry in self._table(low, high):
            room -= entry.info.size + 1
            if room < 0 or len(listed) == items:
                return Page(low, listed[-1].info.id, tuple(listed)) if listed else None
            listed.append(entry)
        return Page(low, high, tuple(listed)) if room >= 0 else None

    def _table(self, low: int, high: int) -> Iterator[Listed]:
        """Return all entries of the range and ourselves, in ascending order."""
        node, own_due = self._node, low <= self._node.id <= high
        for peer in node.members.from_id(low, high):
            if own_due and peer.id > node.id:
                own_due = False
                yield Listed(node.info, State.ALIVE)
            yield Listed(peer.info, peer.state)
        if own_due:
            yield Listed(node.info, State.ALIVE)

    # --- merging -------------------------------------------------------------------------------------------------

    def merge(self, page: Page, peer: Peer, heard: Heard) -> None:
        """Apply a page of ``peer``; answers with what we know better, at most once per period."""
        if self._node.partial is not None:
            return
        ids = [entry.info.id for entry in page.entries]
        ordered = all(before < after for before, after in pairwise(ids))
        if page.low > page.high or not ordered or (ids and not page.low <= ids[0] <= ids[-1] <= page.high):
            self._node.drop(DropReason.PAGE)
            return
        heard.page = True
        better = False
        if heard.matching and peer.id == self._partner and not self._node.counts["walks"]:
            self._take_time(page)
        for entry in page.entries:
            if not heard.one_more():
                # The rest of the range is as good as not received.
                self._node.drop(DropReason.ITEMS)
                page = Page(page.low, entry.info.id - 1, ())
                break
            before = self._node.changes
            better = self._merge(entry, heard) or better
            if peer.id == self._partner:
                self._walk_changed += self._node.changes > before
        better = self._unlisted(page, set(ids), full=peer.stage is NodeStage.READ_WRITE) or better
        node = self._node
        if better and node.now - peer.reply_page_at >= node.profile.period_s:
            peer.reply_page_at = node.now
            self._reply(page, peer)
        if peer.id == self._partner and page.low <= page.high:
            self._cover(page)

    def _take_time(self, page: Page) -> None:
        """Set a clock that is far behind by the largest generation of the first walk (5.2)."""
        newest = max((entry.info.gen for entry in page.entries), default=0)
        if newest > self._node.unix_s + GEN_AHEAD_MAX:
            self._node.learn_unix(newest)

    def _merge(self, entry: Listed, heard: Heard) -> bool:
        """Apply one entry; true if we know better."""
        node, (info, state) = self._node, entry
        if info.id == node.id:
            better = state is not State.ALIVE or info.gen < node.gen
            self._updates.hear(state, info, 0, heard)
            return better
        mine = node.members.get(info.id)
        better = mine is not None and judge(mine.state, mine.gen, state, info.gen) is Verdict.APPLY
        was_suspect = mine is not None and mine.state is State.SUSPECT
        if mine is not None and state is State.DEAD and mine.live and not self._long_suspect(mine):
            state = State.SUSPECT
        self._updates.hear(state, info, 0, heard)
        if mine is not None and mine.state is State.SUSPECT and not was_suspect and self._told.take(node.now):
            self._gossip.tell(mine)
        return better

    def _long_suspect(self, peer: Peer) -> bool:
        return peer.suspicion is not None and self._node.now - peer.suspicion.started >= peer.suspicion.minimum_s

    def _unlisted(self, page: Page, ids: set[int], *, full: bool) -> bool:
        """See what the page leaves out; true if its sender, a ``full`` member or not, ought to know of it."""
        node = self._node
        better = page.low <= node.id <= page.high and node.id not in ids
        for mine in list(node.members.from_id(page.low, page.high)):
            if mine.id in ids or not mine.live:
                continue
            if self._long_suspect(mine) and full:
                # Its death was told and forgotten where the page comes from.
                self._updates.bury(mine, State.DEAD, mine.gen, gossip=False)
            else:
                better = True
        return better

    def _reply(self, page: Page, peer: Peer) -> None:
        def make(room: int, items: int) -> Page | None:
            return self._page(page.low, page.high, room, items)

        payload = self._gossip.payload(peer, self._probing.next_seq(), page=make)
        self._node.counts["pages"] += 1
        self._node.send(peer.address, self._gossip.ask(peer, payload))

    # --- walking -------------------------------------------------------------------------------------------------

    def walk(self, partner: Peer | None = None) -> None:
        """Fetch the whole table of ``partner``, or of a random peer; in a partial view tables differ by design."""
        if self._node.partial is not None:
            return
        self._begin(partner.id if partner is not None else None)
        self._step()

    def stop(self) -> None:
        """Forget the walk: the node is out or alone."""
        self._begin(None)
        self._differed = False

    def _begin(self, partner: int | None) -> None:
        self._partner = partner
        self._walk_changed = 0
        self._covered.clear()
        self._pageless = 0
        if self._next is not None:
            self._next.cancel()

    def _step(self) -> None:
        """Ask for the next page; without one, again after half a period."""
        node = self._node
        partner = node.members.get(self._partner) if self._partner is not None else None
        if partner is None or not partner.live or self._pageless >= PAGELESS_MAX:
            alive = [peer for peer in node.members.live if peer.state is State.ALIVE]
            if node.own is not Own.MEMBER or not alive:
                self._begin(None)
                return
            # An observer learns of deaths through full members alone.
            partner = node.rng.choice([peer for peer in alive if peer.stage is NodeStage.READ_WRITE] or alive)
            self._begin(partner.id)
        self._pageless += 1
        pause_s = node.profile.period_s / 2
        self._probing.once(partner.node, partner.address, Payload(digest=EMPTY), pause_s, lambda _: None)
        self._next = node.timers.plan(node.now + pause_s, self._step)

    def _cover(self, page: Page) -> None:
        """Note the range of a page; the walk is over when the pages cover everything."""
        self._pageless = 0
        if self._next is not None:
            self._next.cancel()
        merged: list[tuple[int, int]] = []
        for low, high in sorted([*self._covered, (page.low, page.high)]):
            if merged and low <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], high))
            else:
                merged.append((low, high))
        self._covered = merged
        if merged == [(0, U32_MAX)]:
            self._node.counts["walks"] += 1
            partner = self._node.members.get(self._partner) if self._partner is not None else None
            self.walked_full = self.walked_full or (partner is not None and partner.stage is NodeStage.READ_WRITE)
            self.walk_changes.append(self._walk_changed)
            self._begin(None)
        else:
            self._step()
