"""The peer table with its digest (docs/specs/swim.md 2.1, 5.4, 11.1)."""

import bisect
import hashlib
from collections.abc import Callable, Iterator, ValuesView
from typing import TYPE_CHECKING

from pavane.parts.timers import Timer
from pavane.swim.state.suspicion import Suspicion
from pavane.swim.wire.payload import Digest
from pavane.swim.wire.values import Address, NodeId, NodeInfo, NodeStage, State

if TYPE_CHECKING:
    from random import Random  # given by the caller: nothing in here draws by itself

NEVER = float("-inf")  # one object for all entries: a large table has many
CROWD = 8  # from so many peers for each one wanted on, and up to so many entries for each peer, drawing is quick
TOMBSTONES_PER_PEER = 4  # tombstones kept, as a multiple of the capacity


class Peer:
    """One entry. Every change of ``gen``, ``address`` or ``state`` goes through ``Members``."""

    __slots__ = (
        "address",
        "answered",
        "cursor",
        "dialled_at",
        "digest",
        "digest_at",
        "gen",
        "heard_at",
        "id",
        "meta",
        "meta_gen",
        "one_way",
        "page_at",
        "page_count",
        "reply_page_at",
        "rollout",
        "shown_stage",
        "silent",
        "since",
        "stage",
        "state",
        "suspicion",
        "timer",
        "told_meta",
        "welcome",
    )

    def __init__(self, info: NodeInfo, state: State, now: float) -> None:
        self.id = info.id
        self.gen = info.gen
        self.address = info.address
        self.state = state
        self.since = now  # of the state
        self.suspicion: Suspicion | None = None
        self.timer: Timer | None = None  # the end of the suspicion, or of the tombstone
        self.answered = False  # one of our probes, ever: it has heard of us (8.1)
        self.meta: bytes | None = None  # what it says of itself, of generation ``meta_gen`` (14)
        self.meta_gen = 0
        self.told_meta = False  # it has acknowledged a ping with what we say of ourselves
        self.silent = False  # it has not answered our last probe, nor said anything since
        self.heard_at = NEVER  # a datagram of its own, from its own address
        self.one_way = 0  # probes in a row that were answered by detours only (6.7)
        self.cursor = 0  # first id of the next page of its walk (11.2)
        self.page_at = NEVER
        self.page_count = 0  # pages for it since ``page_at``
        self.reply_page_at = NEVER  # a page in answer to a page
        self.welcome = False  # it joined through us: the next response tells it more about the group (3.4)
        self.stage = NodeStage.READ_WRITE  # what it showed last (16.1)
        self.rollout = 0
        self.shown_stage = False  # it has acknowledged a ping with our own stage
        self.digest: Digest | None = None  # the last one of its own
        self.digest_at = NEVER
        self.dialled_at = NEVER  # because it said that it does not track us (7.4)

    @property
    def live(self) -> bool:
        """ALIVE or SUSPECT; otherwise the entry is a tombstone."""
        return self.state <= State.SUSPECT

    def plan(self, timer: Timer | None) -> None:
        """Let ``timer`` take the place of the one before."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    @property
    def info(self) -> NodeInfo:
        """Id, generation and address."""
        return NodeInfo(self.id, self.gen, self.address)

    @property
    def node(self) -> NodeId:
        """Id and generation."""
        return NodeId(self.id, self.gen)


class Members:
    """Entries by id. At most ``capacity`` are live and four times as many are tombstones."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._peers: dict[int, Peer] = {}
        self._live: dict[int, Peer] = {}
        self._tombstones: dict[int, Peer] = {}  # oldest first
        self._ids: list[int] = []
        self._turns: list[int] = []  # who was not drawn yet since the last shuffle
        self._at: dict[Address, tuple[Peer, ...]] = {}  # mostly of one, which costs a table of thousands little
        self._xor = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, node: int) -> bool:
        return node in self._peers

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._peers.values())

    @property
    def live(self) -> ValuesView[Peer]:
        """ALIVE and SUSPECT entries."""
        return self._live.values()

    @property
    def tombstones(self) -> ValuesView[Peer]:
        """DEAD and LEFT entries."""
        return self._tombstones.values()

    def get(self, node: int) -> Peer | None:
        """Return the entry of ``node``."""
        return self._peers.get(node)

    def at(self, address: Address) -> tuple[Peer, ...]:
        """Return the live entries with ``address``."""
        return self._at.get(address, ())

    def sample(self, count: int, rng: "Random", without: Peer | None = None) -> list[Peer]:
        """Draw up to ``count`` different live peers, in a time that does not grow with the table."""
        if len(self._live) <= CROWD * count or CROWD * len(self._live) < len(self._ids):
            peers = [peer for peer in self._live.values() if peer is not without]
            return rng.sample(peers, min(count, len(peers)))
        drawn: dict[int, Peer] = {}
        while len(drawn) < count:
            peer = self._peers[rng.choice(self._ids)]
            if peer.live and peer is not without:
                drawn[peer.id] = peer
        return list(drawn.values())

    def in_turn(self, count: int, rng: "Random", fits: Callable[[Peer], bool] | None = None) -> list[Peer]:
        """Draw up to ``count`` different live peers that fit, each of them once before any of them again (8.1).

        Looks at the whole table: it is for small groups, where independent draws leave somebody out again and again.
        """
        waiting = {peer.id: peer for peer in self._live.values() if fits is None or fits(peer)}
        drawn: list[Peer] = []
        for fresh in (False, True):
            if fresh:
                self._turns = list(self._live)
                rng.shuffle(self._turns)
            chosen = [node for node in self._turns if node in waiting][: count - len(drawn)]
            drawn += [waiting.pop(node) for node in chosen]
            self._turns = [node for node in self._turns if node not in chosen]
            if len(drawn) == count or not waiting:
                break
        return drawn

    def add(self, info: NodeInfo, state: State, now: float) -> tuple[Peer, Peer | None]:
        """Add an entry; returns it, and the oldest tombstone if that had to make room and is forgotten."""
        peer = Peer(info, state, now)
        self._peers[peer.id] = peer
        bisect.insort(self._ids, peer.id)
        self._enter(peer)
        return peer, self._evicted()

    def change(self, peer: Peer, state: State, gen: int, address: Address, now: float) -> Peer | None:
        """Change an entry; returns the tombstone that had to make room, if any."""
        self._leave(peer)
        if state is not peer.state:
            peer.since = now
        if state is not State.SUSPECT:
            peer.suspicion = None
        if gen != peer.gen:
            peer.shown_stage = peer.told_meta = False  # it may have started again
        if state >= State.DEAD:
            peer.stage, peer.rollout, peer.digest, peer.meta = NodeStage.READ_WRITE, 0, None, None
        peer.state, peer.gen, peer.address = state, gen, address
        self._enter(peer)
        return self._evicted()

    def forget(self, peer: Peer) -> None:
        """Remove an entry."""
        self._leave(peer)
        peer.plan(None)
        del self._peers[peer.id]
        del self._ids[bisect.bisect_left(self._ids, peer.id)]

    def from_id(self, low: int, high: int) -> Iterator[Peer]:
        """Return the entries, tombstones included, with ``low`` ≤ id ≤ ``high`` in ascending order."""
        for position in range(bisect.bisect_left(self._ids, low), len(self._ids)):
            if self._ids[position] > high:
                return
            yield self._peers[self._ids[position]]

    def digest(self, own: NodeId) -> Digest:
        """Summarize the live entries and the node itself."""
        return Digest(len(self._live) + 1, (self._xor ^ entry_hash(own, State.ALIVE)).to_bytes(8, "little"))

    def _enter(self, peer: Peer) -> None:
        if peer.live:
            self._live[peer.id] = peer
            self._at[peer.address] = (*self.at(peer.address), peer)
            self._xor ^= entry_hash(peer.node, peer.state)
        else:
            self._tombstones[peer.id] = peer

    def _leave(self, peer: Peer) -> None:
        if peer.live:
            del self._live[peer.id]
            others = tuple(other for other in self.at(peer.address) if other is not peer)
            if others:
                self._at[peer.address] = others
            else:
                del self._at[peer.address]
            self._xor ^= entry_hash(peer.node, peer.state)
        else:
            del self._tombstones[peer.id]

    def _evicted(self) -> Peer | None:
        if len(self._tombstones) <= TOMBSTONES_PER_PEER * self.capacity:
            return None
        oldest = next(iter(self._tombstones.values()))
        self.forget(oldest)
        return oldest


def entry_hash(node: NodeId, state: State) -> int:
    """Return what one live entry adds to a digest by XOR."""
    data = node.id.to_bytes(4, "little") + node.gen.to_bytes(4, "little") + bytes((state,))
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
