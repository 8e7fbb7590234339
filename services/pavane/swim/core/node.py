"""What all parts of the core share: identity, table, queue, clock, outputs and the rules of sending.

Parts know each other only downwards; what must go up is a method of the small Protocol that each part names.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pavane.parts.rates import Bucket
from pavane.parts.timers import Timers
from pavane.swim.config import Config, Encoding, Profile, Start, ViewKind
from pavane.swim.core.outputs import Event, Happened, Member, Output, Own, Persist, Send
from pavane.swim.errors import DropReason
from pavane.swim.state.auth import Psks
from pavane.swim.state.envelope import ENVELOPE_BYTES, Keyring
from pavane.swim.state.extras import ExtraQueue
from pavane.swim.state.members import Members, Peer
from pavane.swim.state.news import News, NewsQueue
from pavane.swim.state.partial import PartialView
from pavane.swim.state.suspicion import transmissions
from pavane.swim.wire import libtribe, messages
from pavane.swim.wire.messages import NAMES, Leave, Message, PingResponse
from pavane.swim.wire.payload import Payload, StageShown, Trace
from pavane.swim.wire.values import U32_MAX, UNSPECIFIED, Address, NodeId, NodeInfo, NodeStage, State

if TYPE_CHECKING:
    from random import Random  # given by the caller: nothing in here draws by itself

AMPLIFICATION_MAX = 3  # bytes to an address that nobody has proven to be the asker's, per byte received (18.3)
GEN_STEP_MAX = 64  # 5.2: how far one datagram that is not authenticated may move a generation
GEN_AHEAD_MAX = 1 << 16  # seconds: clocks that differ by more are broken
HEALTH_MAX = 8  # at nine times its period a node still does some good
SENDS_PER_TIMER = 256  # a burst of more would overflow the receive buffers of small machines
SENDS_PAUSE_S = 0.01
NEWS_EXTRA = 512  # beside two pieces for each peer
EXTRAS_MORE = 512  # messages, beside what each peer says of itself
SMALL_HELPERS = 3  # a group of fewer members than so many times the helpers draws them in turn (8.1)
LOSS_WEIGHT = 1 / 32
LOSS_MAX = 0.5  # beyond it the estimate says more about a broken host than about a network


@dataclass(slots=True)
class Origin:
    """Where a datagram came from: ``size`` counts its envelope, ``data`` is what was inside."""

    source: Address
    data: bytes
    size: int
    authenticated: bool
    sealed: bool = False


class Health:
    """The local health score of 9.3: 0 is well; it stretches periods and time-outs."""

    def __init__(self) -> None:
        self.score = 0

    def worse(self, by: int = 1) -> None:
        """Something failed that may be our own fault."""
        self.score = min(self.score + by, HEALTH_MAX)

    def better(self) -> None:
        """A probe succeeded."""
        self.score = max(self.score - 1, 0)

    @property
    def factor(self) -> int:
        """By what times are multiplied."""
        return 1 + self.score


@dataclass(slots=True)
class Traffic:
    """Datagrams and their bytes, envelopes included, by message."""

    sent: Counter[str] = field(default_factory=Counter)
    sent_bytes: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)
    received_bytes: Counter[str] = field(default_factory=Counter)


class TableWatcher(Protocol):
    """Hears of every change of the table of members."""

    def became_live(self, peer: Peer) -> None:
        """A peer is ALIVE again, or for the first time."""

    def became_tombstone(self, peer: Peer) -> None:
        """A peer is DEAD or has LEFT."""

    def wake(self) -> None:
        """There is news to pass on."""

    def renewed(self) -> None:
        """Our own generation grew."""


class Node:
    """The state of 2.1 that more than one part needs. ``now`` is the time of the input being handled."""

    def __init__(
        self,
        config: Config,
        rng: "Random",
        entropy: Callable[[int], bytes],
        now: float,
        unix_s: float,
        watcher: TableWatcher,
    ) -> None:
        self._watcher = watcher
        self.config = config
        codec = libtribe if config.encoding is Encoding.LIBTRIBE else messages
        self.encode, self.decode, self.ttl_at = codec.encode, codec.decode, codec.TTL_AT
        self.profile = config.profile
        self._paced: list[tuple[Bucket, int]] = []
        self.rng = rng
        self.entropy = entropy
        self.now = now
        self._unix_offset_s = unix_s - now
        self._clock_learnt = False
        self.id = config.id or self.draw_id()
        self.gen = self.first_gen()
        self.address = config.address
        self.own = Own.OUT
        self.members = Members(config.capacity)
        self.partial = PartialView(config.capacity) if config.view is ViewKind.PARTIAL else None
        self.news = NewsQueue(2 * config.capacity + NEWS_EXTRA)
        self.extras = ExtraQueue(config.capacity + EXTRAS_MORE)
        self.meta: bytes | None = None
        self.timers = Timers()
        self.health = Health()
        self.answered_share = 1.0  # of first shots (10)
        self.stage = NodeStage.JOINING
        self.own_since = now
        self.member_since = now
        self.keyring = (
            Keyring(config.keys, config.group, entropy, 2 * config.capacity, seal=config.seal) if config.keys else None
        )
        self.protecting: OrderedDict[Address, None] = OrderedDict()  # who sends envelopes, while some do not (15.4)
        self.psks = Psks(config.psks, config.group) if config.psks else None
        self.room = config.max_datagram_bytes - (ENVELOPE_BYTES if self.keyring else 0)
        self.counts: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.traffic = Traffic()
        self._outputs: list[Output] = []
        self._persisted: NodeId | None = None
        self._patient: deque[tuple[Address, Callable[[], Message]]] = deque()
        self._allowance = SENDS_PER_TIMER
        self._near_capacity = False
        self.changes = 0  # of entries, ever
        self.overfull = False  # there are members that do not fit: our digest would differ for ever (7.1)

    # --- pace ----------------------------------------------------------------------------------------------------

    def per_period(self, count: int, burst: int | None = None) -> Bucket:
        """Return a bucket that lets through ``count`` per period, of whatever profile is in use by then."""
        bucket = Bucket(count / self.profile.period_s, count if burst is None else burst)
        self._paced.append((bucket, count))
        return bucket

    def set_profile(self, profile: Profile) -> None:
        """Use other times from now on (17.1)."""
        self.profile = profile
        for bucket, count in self._paced:
            bucket.set_rate(count / profile.period_s, self.now)

    @property
    def memory_s(self) -> float:
        """How long messages are remembered, so that no node acts on one twice (7.5, 14, 15.4)."""
        return 2 * self.profile.sync_interval_s

    # --- identity ------------------------------------------------------------------------------------------------

    @property
    def info(self) -> NodeInfo:
        """What others are told about this node; the address may be unspecified."""
        return NodeInfo(self.id, self.gen, self.address)

    @property
    def node(self) -> NodeId:
        """Own id and generation."""
        return NodeId(self.id, self.gen)

    @property
    def unix_s(self) -> int:
        """Unix time, as told at the start and by ``set_unix``."""
        return int(self.now + self._unix_offset_s)

    def set_unix(self, unix_s: float) -> None:
        """Correct the clock; one that was found unusable counts again once it is near what the group told (5.2)."""
        if not self._clock_learnt or unix_s >= self.unix_s - GEN_AHEAD_MAX:
            self._unix_offset_s = unix_s - self.now

    def learn_unix(self, unix_s: float) -> None:
        """Take the time from the group: the clock is unusable."""
        self._clock_learnt = True
        self._unix_offset_s = unix_s - self.now

    def draw_id(self) -> int:
        """Return a new random id."""
        return int.from_bytes(self.entropy(4), "little") or 1

    def first_gen(self) -> int:
        """Return the generation of a start: the clock's, so that no disk is needed to be newer than before (5.2).

        A store helps where the clock cannot: it was set back, or others made us bid higher than it.
        """
        pinned, stored = self.config.first_gen, self.config.stored_gen
        if pinned is not None:
            return pinned
        return min(max(self.unix_s, 0 if stored is None else stored + 1), U32_MAX - 1)

    def believable(self, gen: int, known: int, origin: Origin) -> bool:
        """Apply the poisoning guard (5.2): a forged generation must not leave a node unable to refute."""
        return origin.authenticated or gen <= max(known + GEN_STEP_MAX, self.unix_s + GEN_AHEAD_MAX)

    def shown(self, peer: Peer | None) -> StageShown | None:
        """Return the stage to be shown to ``peer``; a full member is silent once that acknowledged it (16.1)."""
        config = self.config
        if self.stage is NodeStage.JOINING or (config.start is Start.READ_WRITE and not config.rollout):
            return StageShown(self.stage, config.rollout) if self.stage is NodeStage.DRAINING else None
        if self.stage is NodeStage.READ_WRITE and peer is not None and peer.shown_stage:
            return None
        return StageShown(self.stage, config.rollout)

    # --- counting and events -------------------------------------------------------------------------------------

    def drop(self, reason: DropReason) -> None:
        """Count something that is not taken."""
        self.dropped[reason] += 1

    def event(
        self,
        kind: Happened,
        peer: Peer | None = None,
        address: Address | None = None,
        text: str = "",
        rtt_s: float | None = None,
    ) -> None:
        """Emit an event for the program."""
        member = None if peer is None else snapshot(peer)
        self._outputs.append(Event(kind, member, address, text, rtt_s))

    def deliver(self, origin: NodeId, data: bytes, trace: Trace | None) -> None:
        """Hand a message of ``origin``, which may be unknown here, to the program."""
        peer = self.members.get(origin.id)
        member = snapshot(peer) if peer is not None else Member(*origin, UNSPECIFIED, State.ALIVE)
        self._outputs.append(Event(Happened.USER, member, data=data, trace=trace))

    def become(self, own: Own) -> None:
        """Change where this node stands."""
        if own is not self.own:
            self.own = own
            self.own_since = self.now
            if own is Own.MEMBER:
                self.member_since = self.now
            self.event(Happened.OWN_STATE, text=own)

    def outputs(self) -> list[Output]:
        """Hand over what has gathered; a new generation comes first, for the rest may name it."""
        gathered, self._outputs = self._outputs, []
        if self.config.stored_gen is not None and self._persisted != self.node and self.own is not Own.OUT:
            self._persisted = self.node
            gathered.insert(0, Persist(self.id, self.gen))
        return gathered

    # --- the table -----------------------------------------------------------------------------------------------

    @property
    def population(self) -> int:
        """N: ALIVE and SUSPECT entries and oneself; in a partial view an estimate (7.5)."""
        tracked = len(self.members) + 1
        return tracked if self.partial is None else max(tracked, len(self.partial.news))

    def free(self, for_whom: int) -> int:
        """Return how many slots there are for ``for_whom``."""
        if self.partial is not None:
            return self.partial.free(self.now, for_whom)
        return self.members.capacity - len(self.members)

    @property
    def transmissions(self) -> int:
        """How often a piece of news is sent (10)."""
        loss = min(max(1 - self.answered_share**0.5, 0.0), LOSS_MAX)
        return transmissions(self.population, loss)

    def others(self, count: int, without: Peer | None = None) -> list[Peer]:
        """Draw up to ``count`` different live peers."""
        return self.members.sample(count, self.rng, without)

    def in_turn(self, count: int, fits: Callable[[Peer], bool] | None = None) -> list[Peer]:
        """Draw up to ``count`` different live peers that fit, in a small group in turn (8.1)."""
        if self.population < SMALL_HELPERS * self.profile.helpers:
            return self.members.in_turn(count, self.rng, fits)
        if fits is None:
            return self.others(count)
        peers = [peer for peer in self.members.live if fits(peer)]
        return self.rng.sample(peers, min(count, len(peers)))

    def add(self, info: NodeInfo, state: State) -> Peer:
        """Add an entry and tell the parts."""
        peer, evicted = self.members.add(info, state, self.now)
        self._entered(peer, evicted, was_live=False)
        if state is State.ALIVE:
            self.event(Happened.JOINED, peer)
        return peer

    def change(self, peer: Peer, state: State, gen: int, address: Address) -> None:
        """Change an entry and tell the parts."""
        before, was, moved = peer.live, peer.state, address != peer.address
        evicted = self.members.change(peer, state, gen, address, self.now)
        self._entered(peer, evicted, was_live=before)
        if state is State.ALIVE and not before:
            self.event(Happened.JOINED, peer)
        elif state is State.ALIVE and (was is State.SUSPECT or moved):
            self.event(Happened.ALIVE, peer)
        elif state is not was:
            self.event(Happened(state.name.lower()), peer)

    def forget(self, peer: Peer) -> None:
        """Stop to track a peer that lives."""
        self.members.forget(peer)
        peer.suspicion = None
        self.changes += 1

    def _entered(self, peer: Peer, evicted: Peer | None, *, was_live: bool) -> None:
        self.changes += 1
        if peer.live and not was_live:
            self._watcher.became_live(peer)
        elif not peer.live:
            self._watcher.became_tombstone(peer)
        if evicted is not None:
            self.counts["tombstones_evicted"] += 1
        self.overfull = self.overfull and len(self.members) >= self.members.capacity
        near = self.partial is None and len(self.members) >= 0.9 * self.members.capacity
        if near and not self._near_capacity:
            self.event(Happened.NEAR_CAPACITY)
        self._near_capacity = near

    @property
    def tombstone_s(self) -> float:
        """How long tombstones are kept (5.4)."""
        return max(30.0, self.memory_s)

    def spread(self, kind: State, about: NodeInfo, reporter: int = 0) -> None:
        """Queue a piece of news."""
        self.news.put(News(kind, about, reporter))
        if self.partial is not None:
            self.partial.news.note(kind, about, self.now)
        if kind is State.ALIVE and about.id == self.id:
            self._watcher.renewed()
        self.wake()

    def wake(self) -> None:
        """Send queued news soon."""
        self._watcher.wake()

    # --- sending -------------------------------------------------------------------------------------------------

    def send(self, to: Address, message: Message | bytes) -> None:
        """Send to an address that is validated: a peer's, or one that we dial or probe on our own account (18.3)."""
        if to.ip and to.port:
            inner = message if isinstance(message, bytes) else self.encode(message)
            datagram = self.keyring.wrap(inner) if self.keyring and self.overhead(to) else inner
            self._outputs.append(Send(to, datagram))
            self.traffic.sent[NAMES[inner[0]]] += 1
            self.traffic.sent_bytes[NAMES[inner[0]]] += len(datagram)

    def farewell(self, to: NodeId) -> Message:
        """Return what tells ``to`` that we leave: the other encoding has a record for it, but no message."""
        if self.config.encoding is Encoding.LIBTRIBE:
            return PingResponse(to, self.node, 0, Payload(left=(self.node,)))
        return Leave(self.info)

    def overhead(self, to: Address) -> int:
        """Return the bytes of the envelope in which ``to`` is sent something, 0 if it gets plaintext."""
        plain = self.keyring is None or (self.config.accept_plaintext and to not in self.protecting)
        return 0 if plain else ENVELOPE_BYTES

    def protects(self, source: Address) -> None:
        """Note that ``source`` has the keys: it is sent envelopes, also while others get plaintext."""
        if self.config.accept_plaintext:
            self.protecting[source] = None
            self.protecting.move_to_end(source)
            if len(self.protecting) > 2 * self.config.capacity:
                self.protecting.popitem(last=False)

    def answer(self, origin: Origin, message: Message, to: Address | None = None) -> bool:
        """Send to an address that nobody has validated: never more than three times what came from there."""
        datagram = self.encode(message)
        size = len(datagram) + self.overhead(to or origin.source)
        if size > AMPLIFICATION_MAX * origin.size:
            self.drop(DropReason.AMPLIFICATION)
            return False
        self.send(to or origin.source, datagram)
        return True

    def send_patiently(self, to: Address, make: Callable[[], Message]) -> None:
        """Send when the allowance of this timer run lasts, else a little later."""
        self._patient.append((to, make))
        if len(self._patient) == 1:
            self._send_patient()

    def forget_unsent(self) -> None:
        """Forget what waits for the next timer run."""
        self._patient.clear()

    def renew_allowance(self) -> None:
        """Begin a timer run."""
        self._allowance = SENDS_PER_TIMER

    def _send_patient(self) -> None:
        while self._patient and self._allowance:
            to, make = self._patient.popleft()
            self._allowance -= 1
            self.send(to, make())
        if self._patient:
            self.timers.plan(self.now + SENDS_PAUSE_S, self._send_patient)

    def learn_address(self, info: NodeInfo) -> None:
        """Take our own address from a peer that saw it, unless it is configured."""
        if info.id == self.id and not self.config.address.ip and info.address.ip and info.address.port:
            self.address = info.address.plain()


def snapshot(peer: Peer) -> Member:
    """Return what a user is shown of an entry."""
    return Member(peer.id, peer.gen, peer.address, peer.state, peer.stage, peer.rollout, peer.meta)


def usable(address: Address) -> Address:
    """Return the address if datagrams can be sent to it, else ``UNSPECIFIED``: port 0 is never stored (3.1)."""
    plain = address.plain()
    return plain if plain.ip and plain.port else UNSPECIFIED
