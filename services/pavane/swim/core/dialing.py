"""The joiner's side: rounds over seeds, tokens, redirects, what was lost (docs/specs/swim.md 6.1, 6.6, 6.7)."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Protocol, TypeVar

from pavane.parts.timers import Timer
from pavane.swim.config import SEEDS_MAX
from pavane.swim.core.node import GEN_AHEAD_MAX, GEN_STEP_MAX, Node, Origin, usable
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.errors import DropReason
from pavane.swim.state.auth import label
from pavane.swim.state.members import Peer
from pavane.swim.wire.messages import ERROR_DOMAIN, Broadcast, JoinAck, JoinNak, JoinRedirect, JoinReq, Leave
from pavane.swim.wire.refusals import Refusal
from pavane.swim.wire.values import U32_MAX, Address, NodeStage, State

_Value = TypeVar("_Value")

WAIT_S = 0.5
RETRIES = 3
JITTER = 0.2  # of every wait, so that a crowd does not stay in step
LINGER_S = 10.0  # a late answer is still one
OPEN_MAX = 8
TOKEN_ROUNDS = 2
LIMITED_MAX = 5  # answers "rate limited" in a row
LIMITED_S = 30.0
LIMITED_DEFAULT_S = 1.0
HOPS_MAX = 8
RESTARTS_MAX = 3  # at a seed, after as many hops: one that cannot make room by then never will
DISCOVERED_MAX = 32  # anybody on the network can announce
DISCOVERED_S = 60.0
ANNOUNCEMENTS = 3
ANNOUNCE_PAUSE_S = 2.0
ROUND_PAUSE_S = 1.0
ROUND_PAUSE_MAX_S = 30.0
LOST_PAUSE_S = 10.0
SEED_TRUSTED_S = 60.0  # a name may stand for many: what was reached there is not what others reach
REMEMBERED_MAX = 1024
REMEMBERED_S = 24 * 3600.0


class Dial:
    """One JoinReq with its retries; it stays open for late answers."""

    __slots__ = (
        "address",
        "again",
        "auth",
        "background",
        "hops",
        "limited",
        "restarts",
        "root",
        "settled",
        "timer",
        "token",
        "token_rounds",
        "tries",
        "visited",
        "wait_s",
    )

    def __init__(self, address: Address, *, background: bool) -> None:
        self.address = address
        self.background = background
        self.token = b""
        self.auth = b""
        self.token_rounds = 0
        self.again = 0  # repetitions with another id or generation
        self.limited = 0
        self.hops = 0
        self.root = address  # where the redirects began
        self.restarts = 0
        self.visited = {address}
        self.tries = 0
        self.wait_s = WAIT_S
        self.settled = False  # nothing more is sent; only an ack still counts
        self.timer: Timer | None = None


class Dialer(Protocol):
    """What dialling needs of the member."""

    def wants_peers(self) -> bool:
        """Return whether more peers are needed than are known."""

    def acked(self, ack: JoinAck, origin: Origin) -> None:
        """A peer admitted us."""

    def nobody_at(self, address: Address) -> None:
        """A dial was not answered."""

    def probe_conflict(self, address: Address) -> None:
        """Somebody may use our id at `address`."""


class Dialing:
    """Finds the group and keeps finding what of it was lost."""

    def __init__(self, node: Node, dialer: Dialer) -> None:
        self._node = node
        self._dialer = dialer
        self._seeds: list[Address] = []
        self._acked_at: dict[Address, float] = {}
        self._remembered: dict[Address, float] = {}
        self._left: dict[Address, float] = {}
        self._discovered: dict[Address, float] = {}
        self._open: dict[Address, Dial] = {}
        self._queue: list[Address] = []
        self._current: Dial | None = None
        self._pause_s = ROUND_PAUSE_S
        self._next_round: Timer | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def remembered(self) -> int:
        """How many addresses are remembered beside the seeds."""
        return len(self._remembered)

    # --- what is known -------------------------------------------------------------------------------------------

    def set_seeds(self, addresses: Sequence[Address]) -> None:
        """Take the addresses that the seeds' names have at the moment; new ones are not kept waiting."""
        before = self._seeds
        self._seeds = [address.plain() for address in dict.fromkeys(addresses)][:SEEDS_MAX]
        if not set(self._seeds).issubset(before):
            self._hasten()
        self._acked_at = {address: at for address, at in self._acked_at.items() if address in self._seeds}

    def seen(self, peer: Peer) -> None:
        """A peer is live at its address."""
        self._remembered.pop(peer.address, None)
        self._left.pop(peer.address, None)

    def remember(self, address: Address) -> None:
        """A peer is dead or vanished: it may come back."""
        if address.ip:
            _put(self._remembered, address, self._node.now, self._remembered_max)

    def left(self, address: Address) -> None:
        """A peer left on its own account."""
        self._remembered.pop(address, None)
        if address.ip:
            _put(self._left, address, self._node.now, self._remembered_max)

    @property
    def _remembered_max(self) -> int:
        return min(self._node.members.capacity, REMEMBERED_MAX)

    # --- discovery -----------------------------------------------------------------------------------------------

    def announce(self, rounds: int = ANNOUNCEMENTS) -> None:
        """Tell the network that we are there (13)."""
        node = self._node
        to = node.config.broadcast_to
        if to is None or not rounds or node.own not in (Own.DIALING, Own.MEMBER):
            return
        if node.stage in (NodeStage.JOINING, NodeStage.READ_WRITE):
            node.send(to, Broadcast(node.info))
        node.timers.plan(node.now + ANNOUNCE_PAUSE_S, lambda: self.announce(rounds - 1))

    def announced(self, broadcast: Leave, origin: Origin) -> None:
        """Take an announcement for a seed, which is dialled like any other (13)."""
        node, given = self._node, usable(broadcast.src.address)
        if node.config.broadcast_to is None or given.ip not in (b"", origin.source.ip):
            node.drop(DropReason.STRANGER)
            return
        address = given if given.ip else origin.source
        fresh = address not in self._discovered
        _put(self._discovered, address, node.now, DISCOVERED_MAX)
        if fresh:
            self._hasten()

    def _known_seeds(self) -> list[Address]:
        """Return the seeds that were configured, then those that announced themselves lately."""
        now = self._node.now
        self._discovered = {at: since for at, since in self._discovered.items() if now - since < DISCOVERED_S}
        return list(dict.fromkeys([*self._seeds, *self._discovered]))

    # --- rounds --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to dial in the background, and a first round."""
        self._left.clear()
        self._pause_s = ROUND_PAUSE_S
        self._plan_lost(self._node.profile.period_s)
        self.announce()
        self.round()

    def stop(self) -> None:
        """Forget every dial: the node is out."""
        self._open.clear()
        self._queue.clear()
        self._current = None
        self._next_round = None

    def round(self) -> None:
        """Dial seeds, then remembered peers, one after the other until one admits us."""
        if self._current is not None or self._next_round is not None:
            return
        rng = self._node.rng
        seeds, remembered = self._known_seeds(), list(self._remembered)
        rng.shuffle(seeds)
        rng.shuffle(remembered)
        self._queue = list(dict.fromkeys(seeds + remembered))
        self._dial_next()

    def _dial_next(self) -> None:
        node = self._node
        self._current = None
        if not self._dialer.wants_peers():
            self._queue.clear()
            return
        while self._queue:
            address = self._queue.pop(0)
            # A member that looks for more links does not ask who it is linked to.
            if address != node.address and not node.members.at(address) and self._dial(address, background=False):
                return
        node.event(Happened.JOIN_RETRY)
        self._next_round = node.timers.plan(node.now + self._jittered(self._pause_s), self._again)
        self._pause_s = min(2 * self._pause_s, ROUND_PAUSE_MAX_S)

    def _hasten(self) -> None:
        """Begin the next round soon: somebody new is there, whom the rounds in vain did not ask.

        Never later than planned, for new ones may come all the time.
        """
        self._pause_s = ROUND_PAUSE_S
        soon = self._node.now + self._jittered(ROUND_PAUSE_S)
        if self._next_round is not None and soon < self._next_round.at:
            self._next_round.cancel()
            self._next_round = self._node.timers.plan(soon, self._again)

    def _again(self) -> None:
        self._next_round = None
        if self._dialer.wants_peers():
            self.round()

    def admitted(self) -> None:
        """The node is a member: no further seed is dialled; open dials still count."""
        self._pause_s = ROUND_PAUSE_S
        self._queue.clear()
        if self._next_round is not None:
            self._next_round.cancel()
            self._next_round = None

    # --- one dial ------------------------------------------------------------------------------------------------

    def _dial(self, address: Address, *, background: bool) -> Dial | None:
        """Open a dial; ``None`` if it would be one too many, or if this address is being asked already."""
        old = self._open.get(address)
        # A round takes the place of a dial in the background, which asks only once and then waits for long.
        if old is not None and not old.settled and (background or not old.background):
            return None
        if old is None and len(self._open) >= OPEN_MAX:
            # Who refused, or is silent, keeps nobody else from being asked.
            old = next((dial for dial in self._open.values() if dial.settled), None)
            if old is None:
                return None
        self._close(old)
        dial = Dial(address, background=background)
        self._open[address] = dial
        if not background:
            self._current = dial
        self._send(dial)
        return dial

    def _send(self, dial: Dial) -> None:
        node = self._node
        if dial.timer is not None:
            dial.timer.cancel()
        dial.tries += 1
        dial.auth = self._credentials(dial.token)
        node.send(dial.address, JoinReq(node.info, dial.token, dial.auth))
        last = dial.background or dial.tries > RETRIES
        wait_s = LINGER_S if dial.background else self._jittered(dial.wait_s)
        dial.wait_s *= 2
        dial.timer = node.timers.plan(node.now + wait_s, lambda: self._given_up(dial) if last else self._send(dial))

    def _credentials(self, token: bytes) -> bytes:
        """Return what shows our right to join (6.4)."""
        node, config = self._node, self._node.config
        if config.credentials is not None:
            return config.credentials(token, node.info)
        if node.psks is not None:
            return node.psks.auth(token, node.info)
        return label(config.group) if config.group else b""

    def _given_up(self, dial: Dial) -> None:
        self._dialer.nobody_at(dial.address)
        if dial.background:
            self._close(dial)
        else:
            self._settle(dial)

    def _settle(self, dial: Dial) -> None:
        """Ask no more here, but hear a late answer; go on with the next seed."""
        node = self._node
        dial.settled = True
        if dial.timer is not None:
            dial.timer.cancel()
        dial.timer = node.timers.plan(node.now + LINGER_S, lambda: self._close(dial))
        if dial is self._current:
            self._dial_next()

    def _close(self, dial: Dial | None) -> None:
        if dial is None:
            return
        if dial.timer is not None:
            dial.timer.cancel()
        if self._open.get(dial.address) is dial:
            del self._open[dial.address]
        if dial is self._current:
            self._current = None

    def _jittered(self, wait_s: float) -> float:
        return wait_s * (1 + self._node.rng.uniform(0, JITTER))

    # --- answers -------------------------------------------------------------------------------------------------

    def answer(self, message: JoinAck | JoinNak | JoinRedirect, origin: Origin) -> None:
        """Take an answer to an open dial; anything else is dropped."""
        dial = self._open.get(origin.source)
        if dial is None:
            self._node.drop(DropReason.DIAL)
        elif isinstance(message, JoinAck):
            psks = self._node.psks
            if psks is not None and not psks.proven(message.payload.proof, dial.auth, message.desc):
                self._node.drop(DropReason.PROOF)
                return
            if not self._believable(message, origin):
                self._node.drop(DropReason.GENERATION)
                return
            if dial.address in self._seeds:
                self._acked_at[dial.address] = self._node.now
            self._close(dial)
            self._dialer.acked(message, origin)
            if self._dialer.wants_peers() and self._current is None and self._next_round is None:
                self._dial_next()
        elif dial.settled:
            self._node.drop(DropReason.DIAL)
        elif isinstance(message, JoinRedirect):
            self._redirect(dial, message, origin)
        else:
            self._nak(dial, message)

    def _believable(self, ack: JoinAck, origin: Origin) -> bool:
        """Apply the poisoning guard (5.2), once the time is known: before the first walk the clock may be unusable."""
        node, peer = self._node, self._node.members.get(ack.desc.id)
        return not node.counts["walks"] or node.believable(ack.desc.gen, peer.gen if peer is not None else 0, origin)

    def _nak(self, dial: Dial, nak: JoinNak) -> None:
        node = self._node
        code = nak.code if nak.domain == ERROR_DOMAIN else None
        if code in (Refusal.TOKEN_EXPECTED, Refusal.TOKEN_INVALID) and dial.token_rounds < TOKEN_ROUNDS:
            token = nak.etag.encode()
            if len(node.encode(JoinReq(node.info, token, self._credentials(token)))) <= node.room:
                dial.token = token
                dial.token_rounds += 1
                self._send(dial)
                return
        if code == Refusal.STALE_GEN and not dial.again and self._take_gen(nak.etag):
            dial.again += 1
            self._send(dial)
            return
        if code == Refusal.ID_CONFLICT:
            if self._conflict(dial, nak):
                return
        elif code == Refusal.RATE_LIMITED and not dial.background and dial.limited < LIMITED_MAX:
            dial.limited += 1
            wait_s = min(int(nak.etag) / 1000, LIMITED_S) if _decimal(nak.etag) else LIMITED_DEFAULT_S
            if dial.timer is not None:
                dial.timer.cancel()
            dial.tries = 0
            dial.timer = node.timers.plan(node.now + self._jittered(wait_s), lambda: self._send(dial))
            return
        self._refused(dial, _reason(nak))

    def _refused(self, dial: Dial, reason: str) -> None:
        if dial.background:
            self._close(dial)
        else:
            self._node.event(Happened.JOIN_REFUSED, address=dial.address, text=reason)
            self._settle(dial)

    def _take_gen(self, etag: str) -> bool:
        """Take a generation that a server asks for, within the bound of 5.2; a member never lowers its own."""
        node = self._node
        gen = int(etag) if _decimal(etag) else U32_MAX
        bound = min(max(node.gen + GEN_STEP_MAX, node.unix_s + GEN_AHEAD_MAX), U32_MAX - 1)
        member = node.own is Own.MEMBER
        if gen > bound or (member and gen < node.gen):
            return False
        node.gen = gen
        if member:
            node.spread(State.ALIVE, node.info)
        return True

    def _conflict(self, dial: Dial, nak: JoinNak) -> bool:
        """Our id is somebody else's; true if the dial goes on under a new one."""
        node = self._node
        if node.own is Own.MEMBER:
            try:
                self._dialer.probe_conflict(Address.parse(nak.etag))
            except ValueError:
                return False  # the holder is not named: nobody to ask
            return False
        if node.config.id is None and not dial.again:
            node.id = node.draw_id()
            dial.again += 1
            dial.token, dial.token_rounds = b"", 0
            self._send(dial)
            return True
        return False

    def _redirect(self, dial: Dial, redirect: JoinRedirect, origin: Origin) -> None:
        to = usable(redirect.address)
        visited, hops, restarts = dial.visited, dial.hops + 1, dial.restarts
        if self._node.partial is not None:
            if dial.address in self._seeds:
                self._acked_at[dial.address] = self._node.now
            if not dial.background and (hops > HOPS_MAX or to in visited) and restarts < RESTARTS_MAX:
                # The seed knows that it has sent us away, and gives us the place of one of its peers (7.3).
                to, visited, hops, restarts = dial.root, set(), 0, restarts + 1
        if dial.background or hops > HOPS_MAX or to in visited or not _allowed(to, origin.source, self._node.address):
            self._refused(dial, "redirect")
            return
        was_current = dial is self._current
        self._close(dial)
        following = self._dial(to, background=False)
        if following is not None:
            following.visited = visited | {to}
            following.hops = hops
            following.root, following.restarts = dial.root, restarts
        elif was_current:
            self._dial_next()

    # --- what was lost -------------------------------------------------------------------------------------------

    def _plan_lost(self, after_s: float) -> None:
        self._node.timers.plan(self._node.now + after_s, self._dial_lost)

    def _dial_lost(self) -> None:
        node = self._node
        self._plan_lost(LOST_PAUSE_S)
        self._remembered = {at: since for at, since in self._remembered.items() if node.now - since < REMEMBERED_S}
        if node.own is not Own.MEMBER or (node.partial is not None and not node.partial.free(node.now)):
            return
        lost = [address for address in dict.fromkeys([*self._known_seeds(), *self._remembered]) if self._lost(address)]
        if lost:
            node.counts["lost_dialled"] += 1
            self.dial_back(node.rng.choice(lost))

    def tracked_by(self, address: Address) -> None:
        """Ask there for the acknowledgement that seems to be lost: who dials an observer tracks it (2.6)."""
        # The rest is for the rounds. Where a dial is open the answer can still come, and two that dial each other,
        # and cannot admit anybody, would go on for ever.
        if len(self._open) < OPEN_MAX // 2 and address not in self._open:
            self.dial_back(address)

    def lives_at(self, address: Address) -> None:
        """A member that is tracked elsewhere lives at an address: it is not lost."""
        self._remembered.pop(address, None)

    def dial_back(self, address: Address) -> None:
        """Dial once, with a single JoinReq, to be tracked again."""
        self._dial(address, background=True)

    def _lost(self, address: Address) -> bool:
        node, now, never = self._node, self._node.now, float("-inf")
        # In a partial view nearly all members are linked to other nodes than the seeds: one answer is enough.
        trusted_s = SEED_TRUSTED_S if node.partial is None else float("inf")
        if now - self._acked_at.get(address, never) < trusted_s or address == node.address:
            return False
        # A suspect does not count: when all have started again with new ids, their old ones stay suspect for minutes.
        # Nor does who does not answer an observer, which suspects nobody.
        if any(peer.state is State.ALIVE and not peer.silent for peer in node.members.at(address)):
            return False
        # Who left is left alone, but at a seed's address somebody may start again and know nobody else.
        return address not in self._left or (address in self._seeds and now - self._left[address] >= SEED_TRUSTED_S)


def _put(table: dict[Address, _Value], address: Address, value: _Value, maximum: int) -> None:
    """Put an address last into a bounded table; the first one makes room."""
    table.pop(address, None)
    table[address] = value
    if len(table) > maximum:
        del table[next(iter(table))]


def _reason(nak: JoinNak) -> str:
    """Name a refusal for the user."""
    known = nak.domain == ERROR_DOMAIN and Refusal.TOKEN_EXPECTED <= nak.code <= Refusal.RATE_LIMITED
    return Refusal(nak.code).name.lower() if known else f"{nak.domain:#x}/{nak.code}"


def _decimal(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 10


def _allowed(to: Address, redirector: Address, own: Address) -> bool:
    """Say whether a redirect to ``to`` may be followed (6.6)."""
    if not to.ip or to == own:
        return False
    ip = ip_address(to.ip)
    remote = not ip_address(redirector.ip).is_loopback
    broadcast = to.ip == b"\xff\xff\xff\xff"
    return not (ip.is_unspecified or ip.is_multicast or broadcast or (ip.is_loopback and remote))
