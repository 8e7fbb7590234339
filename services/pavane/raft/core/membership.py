"""Changing the members: one joint change at a time (docs/specs/raft.md 8.5, 10.6)."""

from dataclasses import dataclass, field

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, PeerChannel, Route
from pavane.raft.core.programs import Program, Programs
from pavane.raft.core.replication import Replication
from pavane.raft.core.requests import Ask, Requests
from pavane.raft.core.transfer import Transfer
from pavane.raft.state.configuration import Configuration, Members, Refusal, check_change, needs_resolving
from pavane.raft.state.dedup import Freshness, id_clock
from pavane.raft.state.quorum import has_majority
from pavane.raft.state.roles import Role
from pavane.raft.wire.entry import EntryType
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import FEATURE_HOST_NAMES, FEATURE_KV
from pavane.raft.wire.replies import ConfigStatus, ConfigUpdateReply, RequestLogInfoReply
from pavane.raft.wire.requests import ConfigUpdate, RequestLogInfo

CONFIG_LAG_ENTRIES = 1000  # new members further behind would hold up every commit while they catch up
ANSWERED_S = 1.0  # an answer older than this says nothing about now
HOLD_S = 0.3  # how long a change waits for what its new members tell of themselves
SILENT_S = 2.0  # the same, while one of them has not answered at all: its machine may be busy
ACCEPT_S = 0.2  # how often a waiting client is told that it has not been forgotten (1.2 D9)
READY_S = 2.0  # how long leadership stays here while no member of Cnew has its connections: nothing waits for it
ROUTES_PER_REQID = 4  # clients told of the end; the newest are kept
ID_TAKEN = Refusal("Error", "this request id belongs to another change of the members: use a fresh one")
WAITING_MAX = 64  # request ids with waiting clients: repetitions of changes that are not committed yet


@dataclass(slots=True)
class _Held:
    """A change whose new members are being asked."""

    reqid: bytes
    members: Members
    routes: list[Route]
    decide_at: float
    give_up_at: float
    joining: Members
    asks: list[Ask]
    reports: dict[str, tuple[float, int]] = field(default_factory=dict)  # when, last index


@dataclass(slots=True)
class _Succession:
    """Leadership goes to a member of Cnew: ``started`` once one was told, before that its connections are awaited."""

    start_at: float
    ask_at: float
    started: bool = False


class Membership:
    """Takes ``&``, appends Cold,new and then Cnew, and hands leadership over where the leader goes."""

    def __init__(
        self,
        node: Node,
        requests: Requests,
        programs: Programs,
        replication: Replication,
        transfer: Transfer,
        freshness: Freshness,
    ) -> None:
        self._node = node
        self._requests = requests
        self._programs = programs
        self._replication = replication
        self._transfer = transfer
        self._freshness = freshness
        self._held: _Held | None = None
        self._waiting: dict[bytes, tuple[int, list[Route]]] = {}
        self._accept_at = 0.0
        self._succession: _Succession | None = None

    # --- requests ------------------------------------------------------------------------------------------------

    def request(self, route: Route, reqid: bytes, message: ConfigUpdate) -> None:
        """Handle ``&``."""
        node = self._node
        if node.role != Role.LEADER:
            self._answer(route, reqid, ConfigStatus.NOT_LEADER, node.leader)
            return
        index = node.dedup.index_of(reqid)
        if index is not None:
            self._repeated(route, reqid, index, message)
        elif self._held is not None and self._held.reqid == reqid:
            if _names(message) == set(self._held.members):
                _remember(self._held.routes, route)
            else:
                self._refuse(route, reqid, ID_TAKEN)
        elif not self._freshness.fresh(reqid, node.now.wall_s, node.dedup.floor):
            self._answer(route, reqid, ConfigStatus.EXPIRED)
        elif self._held is not None or self._busy():
            self._answer(route, reqid, ConfigStatus.BUSY)
        else:
            self._judge(route, reqid, message)

    def next_timer(self) -> float | None:
        """Return when a held change must be decided, waiting clients be told, or successors be asked."""
        times = [self._held.decide_at] if self._held is not None else []
        if self._waiting:
            times.append(self._accept_at)
        if self._succession is not None and not self._succession.started:
            times.append(min(self._succession.ask_at, self._succession.start_at))
        return min(times, default=None)

    def timer(self) -> None:
        """Decide a held change; tell waiting clients; ask who can lead next."""
        now = self._node.now.mono
        if self._held is not None and self._held.decide_at <= now:
            if self._silent(self._held) and now < self._held.give_up_at:
                self._held.decide_at = min(now + HOLD_S, self._held.give_up_at)
            else:
                self._decide(self._held)
        if self._succession is not None:
            self._succeed(self._succession)
        if self._waiting and self._accept_at <= now:
            self._accept_at = now + ACCEPT_S
            for reqid, (_, routes) in self._waiting.items():
                for route in routes:
                    self._answer(route, reqid, ConfigStatus.ACCEPTED)

    def deposed(self) -> None:
        """We stepped down: send waiting clients to the next leader."""
        leader = self._node.leader
        if self._held is not None:
            for route in self._held.routes:
                self._answer(route, self._held.reqid, ConfigStatus.NOT_LEADER, leader)
            self._release(self._held)
        for reqid, (_, routes) in self._waiting.items():
            for route in routes:
                self._answer(route, reqid, ConfigStatus.NOT_LEADER, leader)
        self._waiting.clear()
        self._succession = None

    def _repeated(self, route: Route, reqid: bytes, index: int, message: ConfigUpdate) -> None:
        node = self._node
        stated = node.configurations.states(index)
        if stated is None:
            self._refuse(route, reqid, Refusal("Error", "this request id belongs to an update"))
        elif _names(message) != set(stated.new):
            self._refuse(route, reqid, ID_TAKEN)
        elif node.commit >= index:
            self._answer(route, reqid, ConfigStatus.ACCEPTED, index)
        else:
            self._wait(route, reqid, index)
            self._answer(route, reqid, ConfigStatus.ACCEPTED)

    def _busy(self) -> bool:
        """Whether another change, or a transfer, is under way; also while the last one is not known committed."""
        node = self._node
        under_way = node.configurations.effective.transitional or node.configurations.index > node.commit
        return under_way or self._transfer.target is not None

    def _judge(self, route: Route, reqid: bytes, message: ConfigUpdate) -> None:
        if not message.readable:
            self._refuse(route, reqid, Refusal("SyntaxError", "peers must be MessagePack"))
            return
        if not isinstance(message.peers, list):
            self._refuse(route, reqid, Refusal("TypeError", "peers must be an array"))
            return
        current = self._node.configurations.effective.new
        checked = check_change(current, message.peers)
        if isinstance(checked, Refusal):
            self._refuse(route, reqid, checked)
            return
        known = dict(current)
        joining = tuple(pair for pair in checked if pair[0] not in known)
        now = self._node.now.mono
        self._held = _Held(reqid, checked, [route], now + HOLD_S, now + SILENT_S, joining, [])
        self._programs.watch(joining)
        for peer, url in joining:
            to = PeerChannel(Channel.SIDE, peer, url)
            ask = self._requests.ask(to, RequestLogInfo(self._requests.poll()), RequestLogInfoReply, self._reported)
            self._held.asks.append(ask)
        if not joining:
            self._decide(self._held)

    def _reported(self, ask: Ask, reply: RequestLogInfoReply) -> None:
        held = self._held
        if held is None or ask not in held.asks:
            return
        held.reports[ask.to.peer] = (self._node.now.mono, reply.last_index)
        self.heard_kinds()

    def connected(self, peer: str) -> None:
        """The side channel of a peer came up: what was asked before may have found no connection."""
        for ask in self._held.asks if self._held is not None else ():
            if ask.to.peer == peer:
                self._requests.again(ask)

    def heard_kinds(self) -> None:
        """Decide at once when every new member has shown log and kind; hand over once one of them is ready."""
        if self._succession is not None:
            self._succeed(self._succession)
        held = self._held
        if held is None:
            return
        reported = all(peer in held.reports for peer, _ in held.joining)
        if reported and all(self._programs.kind(peer) == Program.OURS for peer, _ in held.joining):
            self._decide(held)

    def _decide(self, held: _Held) -> None:
        """Append Cold,new, or refuse."""
        node = self._node
        refusal = self._unfit(held)
        busy = self._unheard(held) or self._busy()
        self._held = None
        if refusal is None and not busy:
            joint = Configuration(held.members, node.configurations.effective.new)
            index = node.append_own(EntryType.CONFIG, joint.encode(), held.reqid)
        for route in held.routes:
            if refusal is not None:
                self._refuse(route, held.reqid, refusal)
            elif busy:
                self._answer(route, held.reqid, ConfigStatus.BUSY)
            else:
                self._wait(route, held.reqid, index)
                self._answer(route, held.reqid, ConfigStatus.ACCEPTED)
        self._release(held)

    def _release(self, held: _Held) -> None:
        """Stop asking; what the new members told is kept if they are members now."""
        for ask in held.asks:
            self._requests.cancel(ask)
        self._held = None
        self._programs.watch(())

    def _silent(self, held: _Held) -> bool:
        """Whether a new member has told nothing of its log, or, where it must be ours, not who it is."""
        keys = self._node.config.serves_keys
        return any(
            peer not in held.reports or (keys and self._programs.kind(peer) == Program.UNKNOWN)
            for peer, _ in held.joining
        )

    def _unheard(self, held: _Held) -> bool:
        """Whether a mixed cluster has a member that was silent in the last second (1.4)."""
        old = self._node.configurations.effective.new
        others = [peer for peer, _ in (*old, *held.joining) if peer != self._node.id]
        mixed = any(self._programs.kind(peer) != Program.OURS for peer in others)
        return mixed and not all(self._heard_lately(held, peer) for peer in others)

    def _heard_lately(self, held: _Held, peer: str) -> bool:
        progress = self._replication.peers.get(peer)
        heard_at = progress.answered_at if progress is not None else held.reports.get(peer, (0.0, 0))[0]
        return self._node.now.mono - heard_at <= ANSWERED_S

    def _unfit(self, held: _Held) -> Refusal | None:
        """Judge kinds, host names (8.2), and who knows the members; a majority must have most of the log (8.5)."""
        node = self._node
        if node.config.serves_keys:
            strange = [peer for peer, _ in held.joining if not self._programs.offers(peer, FEATURE_KV)]
            if strange:
                who = ", ".join(strange)
                return Refusal(
                    "Error", f"a cluster with keys needs peers of ours that serve them; {who} did not say so"
                )
        everybody = (*node.configurations.effective.new, *held.joining)
        if any(needs_resolving(url) for _, url in held.joining):
            deaf = [p for p, _ in everybody if p != node.id and not self._programs.offers(p, FEATURE_HOST_NAMES)]
            if deaf:
                return Refusal("Error", f"host names need peers of ours; {', '.join(deaf)} did not say so")
        deaf = [peer for peer, _ in held.joining if self._stale(held, peer)]
        if deaf:
            return Refusal(
                "NotCaughtUp",
                f"without entry {node.configurations.index}, by which it would know the members: {', '.join(deaf)}; "
                "let it read the log, or empty its folder first",
            )
        near = {peer for peer, _ in held.members if self._near(held, peer)}
        if has_majority(Configuration(held.members), near):
            return None
        behind = ", ".join(peer for peer, _ in held.members if peer not in near)
        return Refusal("NotCaughtUp", f"not within {CONFIG_LAG_ENTRIES} entries of the commit index: {behind}")

    def _stale(self, held: _Held, peer: str) -> bool:
        """Whether a peer of another program may follow former members alone, and be deaf to all others (1.4)."""
        last = held.reports[peer][1] if peer in held.reports else 0
        return self._programs.kind(peer) != Program.OURS and 0 < last < self._node.configurations.index

    def _near(self, held: _Held, peer: str) -> bool:
        node = self._node
        if peer == node.id:
            return True
        if peer in held.reports:
            last = held.reports[peer][1]
        elif peer in self._replication.peers and self._heard_lately(held, peer):
            last = self._replication.match(peer)
        else:
            return False
        # An empty peer may be a wiped one, which cannot vote; before the first commit all are empty.
        return last >= node.commit - CONFIG_LAG_ENTRIES and (last > 0 or node.commit == 0)

    # --- course of a change --------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Take the next step of a joint change. Called after commits and at the start of leadership."""
        node = self._node
        effective = node.configurations.effective
        if node.role != Role.LEADER or node.commit < node.configurations.index:
            return
        if effective.transitional:
            if any(peer == node.id for peer, _ in effective.new):
                self.finish()
            elif self._succession is None:
                self._tell_waiting()
                self._succession = _Succession(node.now.mono + READY_S, node.now.mono)
                self._succeed(self._succession)
        self._tell_waiting()

    def _succeed(self, succession: _Succession) -> None:
        """Let a member of Cnew lead as soon as one has its connections; ask for that, and hold nothing back before."""
        if succession.started:
            return
        now = self._node.now.mono
        among = [peer for peer, _ in self._node.configurations.effective.new]
        best = self._transfer.best(frozenset(among))
        able = any(self._programs.kind(peer) != Program.JS for peer in among)
        if able and (best is None or not self._programs.ready(best)) and now < succession.start_at:
            if succession.ask_at <= now:
                succession.ask_at = now + self._node.config.rpc_timeout_s
                self._programs.ask_again(among)
            return
        succession.started = True
        if best is None or not self._transfer.start(best):
            self.finish()

    def transfer_failed(self) -> None:
        """The chosen member does not take over: append Cnew ourselves, lead until it is committed."""
        if self._succession is not None and self._succession.started:
            self.finish()

    def finish(self) -> None:
        """Append Cnew, under a request id of our own."""
        node = self._node
        if not node.configurations.effective.transitional:
            return
        self._succession = None
        second = id_clock(node.now.wall_s, node.dedup.floor)
        reqid = second.to_bytes(4, "big") + node.rng.randbytes(8)
        node.append_own(EntryType.CONFIG, Configuration(node.configurations.effective.new).encode(), reqid)

    def _tell_waiting(self) -> None:
        for reqid, (index, routes) in list(self._waiting.items()):
            if index <= self._node.commit:
                del self._waiting[reqid]
                for route in routes:
                    self._answer(route, reqid, ConfigStatus.ACCEPTED, index)

    def _wait(self, route: Route, reqid: bytes, index: int) -> None:
        if not self._waiting:
            self._accept_at = self._node.now.mono + ACCEPT_S
        if reqid in self._waiting or len(self._waiting) < WAITING_MAX:
            _remember(self._waiting.setdefault(reqid, (index, []))[1], route)

    def _refuse(self, route: Route, reqid: bytes, refusal: Refusal) -> None:
        argument: dict[str, Value] = {"name": refusal.name, "message": refusal.message}
        self._node.answer(route, reqid, ConfigUpdateReply(ConfigStatus.ARGUMENT, argument))

    def _answer(self, route: Route, reqid: bytes, status: ConfigStatus, argument: int | str | None = None) -> None:
        self._node.answer(route, reqid, ConfigUpdateReply(status, argument))


def _names(message: ConfigUpdate) -> set[tuple[str, str] | None]:
    """Return the members that a change asks for, ``None`` for what is none: their order does not count (1.2 D10)."""
    pairs = message.peers if isinstance(message.peers, list) else []
    return {_member(pair) for pair in pairs}


def _member(pair: object) -> tuple[str, str] | None:
    match pair:
        case [str() as peer, str() as url]:
            return peer, url
    return None


def _remember(routes: list[Route], route: Route) -> None:
    if route not in routes:
        routes.append(route)
        del routes[:-ROUTES_PER_REQID]
