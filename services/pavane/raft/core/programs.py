"""Which peers are programs of ours: ``pv.hello`` (docs/specs/raft.md 4.2)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, KindChanged, PeerChannel, Route
from pavane.raft.core.requests import Ask, Requests
from pavane.raft.errors import DropReason
from pavane.raft.state.configuration import Members
from pavane.raft.state.dedup import id_clock
from pavane.raft.state.quorum import has_majority
from pavane.raft.state.roles import Role
from pavane.raft.wire.frames import NONCE_BYTES, Frame
from pavane.raft.wire.msgpack import Value
from pavane.raft.wire.pv import (
    FEATURE_APPEND,
    FEATURE_FOLLOW,
    FEATURE_HOST_NAMES,
    FEATURE_KV,
    FEATURE_SNAPSHOT,
    FEATURE_UPDATE,
    FEATURE_VOTE,
    PvHello,
    PvHelloReply,
)
from pavane.wire import Stage

VERSION = 1
FEATURES = FEATURE_APPEND | FEATURE_VOTE | FEATURE_SNAPSHOT | FEATURE_FOLLOW | FEATURE_HOST_NAMES | FEATURE_UPDATE
LEVEL = 1
HELLO_S = 1.0  # to members whose kind is not known to be ours
HELLO_OURS_S = 5.0
HELLO_LOST_S = 0.2  # before a hello of ours is taken as lost
HELLO_ATTEMPTS = 3  # unanswered ones in a row, while other answers come, make a peer js


class Program(StrEnum):
    """What program a peer runs; ``unknown`` is treated like ``js`` everywhere."""

    OURS = "ours"
    JS = "js"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Peer:
    """What we know of one other peer."""

    id: str
    url: str
    kind: Program = Program.UNKNOWN
    features: int = 0
    stage: int = 0
    ready: int | None = None  # index of the joint configuration whose majorities it reaches, as it said itself
    greeted: bool = False  # answered a hello on the connection that stands now
    rpc_up: bool = False
    hello_at: float = 0.0
    first_unanswered_at: float = 0.0
    unanswered: int = 0
    ask: Ask | None = None
    nonce: bytes = b""


class Programs:
    """Keeps asking the members, and the peers that ``watch`` names, which programs they are."""

    def __init__(self, node: Node, requests: Requests, remembered: Mapping[str, int | str | bytes]) -> None:
        self._node = node
        self._requests = requests
        self._peers: dict[str, Peer] = {}
        self._extra: Members = ()
        self._remembered = dict(remembered)
        self._instance = node.rng.randbytes(8)

    def peer(self, peer: str) -> Peer | None:
        """Return what is known about a PEER ID."""
        return self._peers.get(peer)

    def kind(self, peer: str) -> Program:
        """Return the kind of a peer; ``unknown`` if it has not told."""
        known = self._peers.get(peer)
        return known.kind if known is not None else Program.UNKNOWN

    def offers(self, peer: str, feature: int) -> bool:
        """Whether a peer is ours and has a feature."""
        known = self._peers.get(peer)
        return known is not None and known.kind == Program.OURS and bool(known.features & feature)

    def serves(self, peer: str, feature: int) -> bool:
        """Whether the program behind the open connection said that it is ours and has a feature."""
        return self._peers[peer].greeted and self.offers(peer, feature) if peer in self._peers else False

    def writes(self, peer: str) -> bool:
        """Whether a peer of ours said that it is ReadWrite."""
        known = self._peers.get(peer)
        return known is not None and known.kind == Program.OURS and known.stage == Stage.READ_WRITE

    def ready(self, peer: str) -> bool:
        """Whether a peer said that it reaches a majority of each group of the joint configuration in force here."""
        known = self._peers.get(peer)
        return known is not None and known.ready is not None and known.ready == self._node.configurations.index

    def watch(self, extra: Members) -> None:
        """Ask these too, at once: candidates for membership. The next call replaces them."""
        self._extra = extra
        self.refresh()
        for peer, _ in extra:
            known = self._peers.get(peer)
            if known is not None:
                known.hello_at = self._node.now.mono

    def refresh(self) -> None:
        """Follow the configuration in force."""
        wanted = {
            peer: url
            for peer, url in (*self._node.configurations.effective.members, *self._extra)
            if peer != self._node.id
        }
        for peer in [peer for peer, known in self._peers.items() if wanted.get(peer) != known.url]:
            self._drop(peer)
        for peer, url in wanted.items():
            if peer not in self._peers:
                self._peers[peer] = self._recall(peer, url)

    def _drop(self, peer: str) -> None:
        """Let go of who is no member any more: else its address would be looked for as long as this program runs."""
        known = self._peers.pop(peer)
        self._requests.disconnect(PeerChannel(Channel.SIDE, peer, known.url))
        if self._node.role != Role.LEADER:  # which still feeds it, until it knows
            self._requests.disconnect(PeerChannel(Channel.RPC, peer, known.url))

    def hello(self, route: Route, request_id: Frame, message: PvHello) -> None:
        """Answer a hello."""
        node = self._node
        info: dict[str, Value] = {
            "v": VERSION,
            "peer": node.id,
            "inst": self._instance,
            "feat": FEATURES | (FEATURE_KV if node.config.serves_keys else 0),
            "stage": int(node.stage),
            "gen": node.config.own_generation or 0,
            "term": node.term,
            "machine": node.config.machine,
            "level": LEVEL,
            "now": id_clock(node.now.wall_s, node.dedup.floor) * 1000,
        }
        if node.role == Role.FOLLOWER and node.configurations.effective.transitional and self._reaches_majorities():
            info["ready"] = node.configurations.index
        node.answer(route, request_id, PvHelloReply(message.nonce, info), node.term_ticket)

    def connection(self, peer: str, channel: Channel, up: bool) -> None:
        """A connection came or went; behind a side channel that is up again another program may answer."""
        known = self._peers.get(peer)
        if known is None:
            return
        if channel == Channel.RPC:
            known.rpc_up = up
        elif channel == Channel.SIDE:
            known.greeted = False
            if up:
                known.hello_at = self._node.now.mono

    def lost(self, peer: str) -> bool:
        """Say hello on a new side channel, for the old one carries nothing; return whether one of ours was behind it.

        ``connection`` is told that it went after this.
        """
        known = self._peers.get(peer)
        if known is None:
            return False
        ours = known.kind == Program.OURS and known.greeted
        known.unanswered = 0  # it had no chance to answer
        known.hello_at = self._node.now.mono
        return ours

    def ask_again(self, peers: Iterable[str]) -> None:
        """Say hello to these now, or repeat the hello under way: what they have to say may have changed."""
        for peer in peers:
            known = self._peers.get(peer)
            if known is None:
                continue
            if known.ask is None:
                self._ask(known)
            else:
                self._requests.again(known.ask)

    def next_timer(self) -> float | None:
        """Return when the next hello is due."""
        return min((known.hello_at for known in self._peers.values()), default=None)

    def timer(self) -> None:
        """Send the hellos that are due."""
        now = self._node.now.mono
        for known in self._peers.values():
            if known.hello_at <= now:
                self._judge(known)
                self._ask(known)

    def _ask(self, known: Peer) -> None:
        now = self._node.now.mono
        lost = known.ask is not None
        self._requests.cancel(known.ask)
        if known.unanswered == 0:
            known.first_unanswered_at = now
        known.unanswered += 1
        known.nonce = self._node.rng.randbytes(NONCE_BYTES)
        known.ask = self._requests.ask(
            PeerChannel(Channel.SIDE, known.id, known.url),
            PvHello(self._node.id, self._node.term, known.nonce, {"v": VERSION, "feat": FEATURES}),
            PvHelloReply,
            self._answered,
        )
        if known.kind == Program.OURS:
            again_s = HELLO_OURS_S if known.greeted else HELLO_S
            known.hello_at = now + (again_s if lost else HELLO_LOST_S)
        else:
            known.hello_at = now + HELLO_S

    def _answered(self, ask: Ask, reply: PvHelloReply) -> None:
        known = self._peers.get(ask.to.peer)
        info = reply.info
        if known is None or known.ask is not ask or reply.nonce != known.nonce or info.get("peer") != known.id:
            self._node.drop(DropReason.STALE)
            return
        features, stage, ready = info.get("feat"), info.get("stage"), info.get("ready")
        known.features = features if isinstance(features, int) else 0
        known.stage = stage if isinstance(stage, int) else 0
        known.ready = ready if isinstance(ready, int) else None
        known.greeted = True
        known.ask = None
        known.unanswered = 0
        known.hello_at = self._node.now.mono + (HELLO_OURS_S if known.stage == Stage.READ_WRITE else HELLO_S)
        self._become(known, Program.OURS)

    def _reaches_majorities(self) -> bool:
        """Whether vote requests sent now would reach a majority of each group, ourselves included."""
        reached = {
            known.id
            for known in self._peers.values()
            if (known.kind == Program.OURS and known.greeted) or (known.kind == Program.JS and known.rpc_up)
        }
        return has_majority(self._node.configurations.effective, reached | {self._node.id})

    def _judge(self, known: Peer) -> None:
        """Believe that a peer is js if it answers everything but our hellos."""
        answered_at = self._requests.answered_at.get(known.id, 0.0)
        silent_s = self._node.now.mono - known.first_unanswered_at
        ours = known.kind == Program.OURS and (known.greeted or known.unanswered < HELLO_ATTEMPTS)
        if ours or not known.unanswered or answered_at <= known.first_unanswered_at:
            return
        if known.unanswered >= HELLO_ATTEMPTS or (known.unanswered == 1 and silent_s >= HELLO_S):
            self._become(known, Program.JS)

    def _become(self, known: Peer, kind: Program) -> None:
        value = known.features if kind == Program.OURS else -1
        key = _note_key(known.id, known.url)
        if known.kind != kind:
            known.kind = kind
            self._node.event(KindChanged(known.id, kind.value))
        if self._remembered.get(key) != value:
            self._remembered[key] = value
            self._node.note(key, value)

    def _recall(self, peer: str, url: str) -> Peer:
        known = Peer(peer, url, hello_at=self._node.now.mono)
        value = self._remembered.get(_note_key(peer, url))
        if isinstance(value, int):
            known.kind = Program.JS if value < 0 else Program.OURS
            known.features = max(value, 0)
        return known


def _note_key(peer: str, url: str) -> str:
    return f"kind {peer} {url}"
