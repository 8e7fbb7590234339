"""The server's side of a join: stateless until the token is right (docs/specs/swim.md 6.2, 6.3, 18.3)."""

import hmac

from pavane.parts.rates import Bucket, SharedLimit
from pavane.swim.config import JoinPolicy, RequireToken
from pavane.swim.core.dialing import Dialing
from pavane.swim.core.gossip import Gossip
from pavane.swim.core.node import AMPLIFICATION_MAX, GEN_AHEAD_MAX, GEN_STEP_MAX, Node, Origin, usable
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.core.partial import Links
from pavane.swim.core.probing import Probing
from pavane.swim.core.updates import Updates
from pavane.swim.errors import DropReason
from pavane.swim.state.auth import label, proof
from pavane.swim.state.cookie import ROTATION_S, Cookies
from pavane.swim.state.members import Peer
from pavane.swim.wire.messages import ERROR_DOMAIN, JoinAck, JoinNak, JoinRedirect, JoinReq, Message
from pavane.swim.wire.payload import Payload
from pavane.swim.wire.refusals import Refusal
from pavane.swim.wire.values import U32_MAX, Address, NodeInfo, NodeStage, State

ANSWERS_PER_S = 500  # to requests without a valid token
ANSWERS_PER_NETWORK_PER_S = 50
ADMISSIONS_PER_S = 25  # each costs the whole group a round of gossip
ATTEMPTS_FREE_PER_S = 25  # above, also enveloped requests must show a token
RATE_WAIT_MS = 1000
ACK_PAUSE_S = 0.2  # between acknowledgements of one admission
VERDICTS_MAX = 64
VERDICT_S = 2.0
BLOB_BYTES = 2  # length of the payload of an acknowledgement
HEARD_PERIODS = 30  # a redirect names only peers that were heard directly since


class _Verdict:
    """Whether the holder of an id at another address still answers; ``gone`` is ``None`` while it is being asked."""

    __slots__ = ("gone", "until")

    def __init__(self, until: float) -> None:
        self.gone: bool | None = None
        self.until = until


class Admission:
    """Decides about JoinReqs, in the order of 6.2."""

    def __init__(
        self, node: Node, gossip: Gossip, updates: Updates, probing: Probing, dialing: Dialing, links: Links
    ) -> None:
        self._node = node
        self._dialing = dialing
        self._links = links
        self._gossip = gossip
        self._updates = updates
        self._probing = probing
        self._cookies = Cookies(node.config.group, node.entropy)
        self._answers = SharedLimit(ANSWERS_PER_S, ANSWERS_PER_NETWORK_PER_S)
        self._attempts = Bucket(ATTEMPTS_FREE_PER_S)
        self._admissions = Bucket(ADMISSIONS_PER_S)
        self._acked_at: dict[int, float] = {}
        self._verdicts: dict[tuple[int, Address], _Verdict] = {}

    def __len__(self) -> int:
        return len(self._verdicts)

    def start(self) -> None:
        """Rotate the cookie secret from now on."""
        node = self._node

        def rotate() -> None:
            self._cookies.rotate()
            node.timers.plan(node.now + ROTATION_S, rotate)

        node.timers.plan(node.now + ROTATION_S, rotate)

    def stop(self) -> None:
        """Forget what is undecided: the node is out."""
        self._verdicts.clear()
        self._acked_at.clear()

    def request(self, request: JoinReq, origin: Origin) -> None:
        """Handle a JoinReq."""
        node, src = self._node, request.src
        policy = node.config.join_policy
        mine = src.id == node.id and (not src.address.ip or usable(src.address) == node.address)
        if policy is JoinPolicy.IGNORE or mine or not src.id:
            return
        valid = bool(request.token) and self._cookies.valid(request.token, node.unix_s, origin.source, src.id)
        if not valid and not self._answers.take(_network(origin.source), node.now):
            node.drop(DropReason.RATE)
        elif policy is JoinPolicy.REJECT:
            self._refuse(origin, Refusal.NOT_ACCEPTING, valid=valid)
        elif policy is JoinPolicy.REDIRECT:
            self._redirect(request, origin, valid=valid)
        elif not valid and self._needs_token(request, origin):
            code = Refusal.TOKEN_INVALID if request.token else Refusal.TOKEN_EXPECTED
            self._refuse(origin, code, self._cookies.token(node.unix_s, origin.source, src.id))
        else:
            self._authorize(request, origin, valid=valid)

    def _authorize(self, request: JoinReq, origin: Origin, *, valid: bool) -> None:
        """Judge what the asker shows of its right to join (6.4)."""
        node, config = self._node, self._node.config
        if config.authorize is not None:
            verdict = config.authorize(request.token, request.auth, request.src, origin.source)
            if isinstance(verdict, JoinNak | JoinRedirect):
                self._say(origin, verdict, valid=valid)
            if verdict is not True:
                return
        elif node.psks is not None:
            if node.psks.of(request.auth, request.token, request.src) is None:
                self._refuse(origin, Refusal.AUTH_FAILED, valid=valid)
                return
        elif config.group and not hmac.compare_digest(request.auth, label(config.group)):
            self._refuse(origin, Refusal.WRONG_GROUP, valid=valid)
            return
        self._validated(request, origin, valid=valid)

    def _needs_token(self, request: JoinReq, origin: Origin) -> bool:
        required = self._node.config.require_token
        if required is RequireToken.OFF:
            return False
        if required is RequireToken.ON or not origin.authenticated or request.token:
            return True
        elsewhere = usable(request.src.address).ip != origin.source.ip
        return elsewhere or not self._attempts.take(self._node.now)

    # --- the steps after the token -------------------------------------------------------------------------------

    def _validated(self, request: JoinReq, origin: Origin, *, valid: bool) -> None:
        node, src = self._node, request.src
        if node.stage is not NodeStage.READ_WRITE:
            if node.own is Own.DIALING and (valid or origin.authenticated):
                self._dialing.tracked_by(origin.source)
            self._redirect(request, origin, valid=valid)
            return
        peer = node.members.get(src.id)
        info = NodeInfo(src.id, src.gen, self._address(request, origin))
        if peer is not None and peer.state is State.ALIVE and peer.info == info:
            if node.now - self._acked_at.get(peer.id, float("-inf")) >= ACK_PAUSE_S:
                self._acknowledge(peer, request, origin, valid=valid)
        elif not self._admissions.ready(node.now):
            self._refuse(origin, Refusal.RATE_LIMITED, str(RATE_WAIT_MS), valid=valid)
        elif (least := self._least_gen(src.gen, peer, origin)) is not None:
            self._refuse(origin, Refusal.STALE_GEN, str(least), valid=valid)
        elif src.id == node.id:
            self._refuse(origin, Refusal.ID_CONFLICT, str(node.address) if node.address.ip else "", valid=valid)
        elif peer is None or not self._held_elsewhere(peer, info, request, origin, valid=valid):
            self._admit(peer, info, request, origin, valid=valid)

    def _address(self, request: JoinReq, origin: Origin) -> Address:
        """Return the address to store: another IP than the source's is believed only of who holds a key (6.2)."""
        given = usable(request.src.address)
        believed = given.ip == origin.source.ip or origin.authenticated or self._node.psks is not None
        return given if given.ip and believed else origin.source

    def _least_gen(self, gen: int, peer: Peer | None, origin: Origin) -> int | None:
        """Return the generation to ask for, or ``None`` if that of the request will do."""
        node = self._node
        known = 0 if peer is None else peer.gen
        least = known if peer is None or peer.state is State.ALIVE else min(known + 1, U32_MAX)
        if not origin.authenticated and gen > max(known + GEN_STEP_MAX, node.unix_s + GEN_AHEAD_MAX):
            return max(least, node.unix_s)
        return least if gen < least else None

    def _held_elsewhere(self, peer: Peer, info: NodeInfo, request: JoinReq, origin: Origin, *, valid: bool) -> bool:
        """See to a request for an id that is ALIVE at another address; false if its holder is gone for good."""
        if peer.state is not State.ALIVE or peer.address == info.address:
            return False
        verdict = self._verdicts.get((peer.id, peer.address))
        if verdict is not None and self._node.now >= verdict.until:
            verdict = None
        if verdict is None:
            self._ask_holder(peer, request, origin, valid=valid)
        elif verdict.gone is False:
            self._refuse(origin, Refusal.ID_CONFLICT, str(peer.address), valid=valid)
        elif verdict.gone and info.gen <= peer.gen:
            self._refuse(origin, Refusal.STALE_GEN, str(min(peer.gen + 1, U32_MAX)), valid=valid)
        return not (verdict is not None and verdict.gone and info.gen > peer.gen)

    def _ask_holder(self, peer: Peer, request: JoinReq, origin: Origin, *, valid: bool) -> None:
        node, key = self._node, (peer.id, peer.address)
        within_s = node.profile.period_s / 2
        verdict = _Verdict(node.now + within_s + VERDICT_S)

        def decided(answered: bool | None) -> None:
            if answered is None:
                self._verdicts.pop(key, None)
                return
            verdict.gone = not answered
            # A background dial is not repeated, so the request is taken up again here.
            if node.own in (Own.MEMBER, Own.DIALING):
                self._validated(request, origin, valid=valid)

        for old in [old for old, kept in self._verdicts.items() if node.now >= kept.until]:
            del self._verdicts[old]
        if len(self._verdicts) < VERDICTS_MAX and self._probing.once(
            peer.node, peer.address, Payload(), within_s, decided, retry=True
        ):
            self._verdicts[key] = verdict

    def _admit(self, peer: Peer | None, info: NodeInfo, request: JoinReq, origin: Origin, *, valid: bool) -> None:
        node = self._node
        introduced: tuple[NodeInfo, ...] = ()
        if (peer is None or not peer.live) and node.free(info.id) <= 0:
            made = self._links.make_room(info, origin)
            if isinstance(made, Refusal):
                self._refuse(origin, made, str(RATE_WAIT_MS) if made is Refusal.RATE_LIMITED else "", valid=valid)
                return
            if isinstance(made, Address):
                self._send_on(made, Refusal.AT_CAPACITY, origin, valid=valid)
                return
            introduced = (made,)
        self._admissions.take(node.now)
        node.counts["admissions"] += 1
        if peer is None:
            peer = node.add(info, State.ALIVE)
        elif peer.state is not State.ALIVE or peer.info != info:
            node.change(peer, State.ALIVE, info.gen, info.address)
        peer.welcome = True
        node.event(Happened.ADMITTED, peer)
        # Links between members are made all the time in a partial view; only members are news.
        if node.partial is None or node.partial.news.fresh(State.ALIVE, peer.info, node.now, node.memory_s):
            node.spread(State.ALIVE, peer.info)
        if origin.source == peer.address:  # a claim about another port of a shared IP proves nothing (5.3)
            self._updates.same_address(peer)
        self._acknowledge(peer, request, origin, introduced, valid=valid)

    def _acknowledge(
        self, peer: Peer, request: JoinReq, origin: Origin, introduced: tuple[NodeInfo, ...] = (), *, valid: bool
    ) -> None:
        node = self._node
        self._acked_at = {id_: at for id_, at in self._acked_at.items() if node.now - at < ACK_PAUSE_S}
        self._acked_at[peer.id] = node.now
        payload = Payload(stage=node.shown(peer))
        if not request.src.address.ip:
            payload.sample = (NodeInfo(peer.id, peer.gen, origin.source),)
        payload.sample += introduced
        room = node.room
        if not valid:
            # As much of the sample as an address may get that nobody has validated.
            room = min(room, AMPLIFICATION_MAX * origin.size - node.overhead(origin.source))
        psk = node.psks.of(request.auth, request.token, request.src) if node.psks is not None else None
        if psk is not None:
            payload.proof = proof(psk, request.auth, node.info)
        self._gossip.welcome(payload, peer, room - len(node.encode(JoinAck(node.info))) - BLOB_BYTES)
        self._say(origin, JoinAck(node.info, payload), valid=valid)

    # --- refusing ------------------------------------------------------------------------------------------------

    def _refuse(self, origin: Origin, code: Refusal, etag: str = "", *, valid: bool = False) -> None:
        node = self._node
        node.counts["refused"] += 1
        message = JoinNak(ERROR_DOMAIN, code, etag)
        if not valid and code is Refusal.ID_CONFLICT and len(message.encode()) > AMPLIFICATION_MAX * origin.size:
            message = JoinNak(ERROR_DOMAIN, code)
        self._say(origin, message, valid=valid)

    def _redirect(self, request: JoinReq, origin: Origin, *, valid: bool) -> None:
        """Send the asker to the configured address, or to a peer that was heard lately (6.6)."""
        node = self._node
        since = node.now - HEARD_PERIODS * node.profile.period_s
        to = node.config.redirect_to
        if to is None:
            peers = [
                peer
                for peer in node.members.live
                if peer.state is State.ALIVE
                and peer.heard_at >= since
                and peer.address != origin.source
                and peer.id != request.src.id  # where it was before it started again
                and peer.stage is NodeStage.READ_WRITE
            ]
            if node.stage is NodeStage.DRAINING:
                # Those of the generation that takes over.
                latest = max((peer.rollout for peer in peers), default=0)
                peers = [peer for peer in peers if peer.rollout == latest]
            to = node.rng.choice(peers).address if peers else None
        if to is None:
            self._refuse(origin, Refusal.NOT_ACCEPTING, valid=valid)
            return
        self._send_on(to, Refusal.NOT_ACCEPTING, origin, valid=valid)

    def _send_on(self, to: Address, code: Refusal, origin: Origin, *, valid: bool) -> None:
        self._node.counts["redirected"] += 1
        self._say(origin, JoinRedirect(to, ERROR_DOMAIN, code), valid=valid)

    def _say(self, origin: Origin, message: Message, *, valid: bool) -> None:
        """Send an answer: freely to an address that a ``valid`` token has proven, else within the limit of 18.3."""
        if valid:
            self._node.send(origin.source, message)
        else:
            self._node.answer(origin, message)


def _network(source: Address) -> bytes:
    """Return what limits are kept for: the /24 of an IPv4 address, the /64 of an IPv6 one."""
    return source.ip[:3] if len(source.ip) == 4 else source.ip[:8]
