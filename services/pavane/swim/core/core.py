"""The member's state machine without I/O (docs/specs/swim.md 2.3, 2.4, 2.6).

Whoever drives it calls ``receive`` for every datagram and ``handle_timer`` at ``next_timer()``, with the true time
however late, and after each call sends what ``outputs()`` returns. No method blocks, and none raises for a mistake of a
peer.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pavane.swim.config import Config, Encoding, Profile
from pavane.swim.core.answering import Author, Trust, author_of
from pavane.swim.core.assembly import Parts
from pavane.swim.core.node import Origin, Traffic, snapshot, usable
from pavane.swim.core.outputs import Happened, Member, Output, Own
from pavane.swim.core.probing import Match
from pavane.swim.core.staging import StagingStatus
from pavane.swim.core.updates import Heard
from pavane.swim.errors import ConfigError, DropReason
from pavane.swim.state.envelope import ENVELOPE_BYTES, MACED, SEALED
from pavane.swim.wire.messages import (
    NAMES,
    Broadcast,
    JoinAck,
    JoinNak,
    JoinRedirect,
    JoinReq,
    Leave,
    Message,
    PingRequest,
    PingResponse,
)
from pavane.swim.wire.payload import Digest, KeyOp, Payload, Trace
from pavane.swim.wire.values import U32_MAX, UNSPECIFIED, Address, NodeId, NodeInfo, NodeStage, State
from pavane.wire import RemoteProtocolError

if TYPE_CHECKING:
    from random import Random  # given by the caller: nothing in here draws by itself

_ENVELOPES = (bytes((MACED,)), bytes((SEALED,)))
LATE_PERIODS = 0.25  # a timer served so late says that this process lacks CPU


class Core:
    """One member. ``entropy(n)`` returns n unpredictable bytes; ``unix_s`` is the Unix time at ``now``."""

    def __init__(
        self, config: Config, rng: "Random", entropy: Callable[[int], bytes], now: float, unix_s: float
    ) -> None:
        """Raises ``ConfigError``."""
        config.validate()
        parts = self._parts = Parts(config, rng, entropy, now, unix_s)
        self._node = parts.node
        self._updates = parts.updates
        self._probing = parts.probing
        self._sync = parts.sync
        self._answering = parts.answering
        self._admission = parts.admission
        self._dialing = parts.dialing
        self._links = parts.links
        self._staging = parts.staging
        self._extras = parts.extras
        self._was_member = False

    # --- what a user asks ----------------------------------------------------------------------------------------

    @property
    def own(self) -> Own:
        """Where this node stands."""
        return self._node.own

    @property
    def info(self) -> NodeInfo:
        """Own id, generation and address, which is unspecified until a peer has told it."""
        return self._node.info

    @property
    def health(self) -> int:
        """The local health score, 0 (well) to 8 (9.3)."""
        return self._node.health.score

    @property
    def counts(self) -> Mapping[str, int]:
        """What happened since the start."""
        return self._node.counts

    @property
    def traffic(self) -> Traffic:
        """Datagrams and bytes by message."""
        return self._node.traffic

    @property
    def dropped(self) -> Counter[str]:
        """Drops by reason."""
        return self._node.dropped

    @property
    def key_ids(self) -> tuple[bytes, ...]:
        """Ids of the keys in use, the one that protects what is sent first."""
        keyring = self._node.keyring
        return keyring.key_ids if keyring is not None else ()

    @property
    def digest(self) -> Digest | None:
        """What this node tells of its view to compare it: equal views, equal digests (11.1); ``None`` if overfull."""
        return self._sync.digest()

    @property
    def dead(self) -> int:
        """How many are remembered as DEAD."""
        return sum(peer.state is State.DEAD for peer in self._node.members.tombstones)

    @property
    def stage(self) -> NodeStage:
        """How far this node takes part (16.1)."""
        return self._node.stage

    @property
    def staging(self) -> StagingStatus:
        """How far an observer is caught up (16.3)."""
        return self._staging.status()

    def members(self) -> tuple[Member, ...]:
        """Return everybody who is ALIVE or SUSPECT here, this node included, by id."""
        node = self._node
        peers = [snapshot(peer) for peer in node.members.live]
        if node.own is not Own.OUT:
            peers.append(
                Member(node.id, node.gen, node.address, State.ALIVE, node.stage, node.config.rollout, node.meta)
            )
        return tuple(sorted(peers, key=lambda member: member.id))

    def dead_members(self, most: int) -> tuple[Member, ...]:
        """Return those who died last and are remembered as DEAD, at most so many, newest first."""
        dead = (peer for peer in reversed(tuple(self._node.members.tombstones)) if peer.state is State.DEAD)
        return tuple(snapshot(peer) for peer in islice(dead, most))

    def join(self, seeds: Sequence[Address], now: float) -> None:
        """Begin to look for the group at ``seeds``; nothing happens if that has begun."""
        node = self._node
        node.now = now
        self._dialing.set_seeds(seeds)
        if node.own is not Own.OUT:
            return
        if self._was_member:
            node.gen = min(max(node.gen + 1, node.first_gen()), U32_MAX)
        self._was_member = True
        node.become(Own.DIALING)
        self._staging.start()
        self._probing.start()
        self._sync.start()
        self._admission.start()
        self._dialing.start()
        self._links.start()

    def set_seeds(self, seeds: Sequence[Address], now: float) -> None:
        """Take the addresses that the seeds' names have by now, for the next round."""
        self._node.now = now
        self._dialing.set_seeds(seeds)

    def leave(self, now: float) -> None:
        """Leave the group in order (12); ``own`` is OUT when that is done."""
        self._node.now = now
        self._parts.leave()

    def ping(self, id_: int, now: float) -> bool:
        """Probe a peer out of turn; the outcome is a ``PINGED`` event and no suspicion. False for a stranger."""
        node = self._node
        node.now = now
        peer = node.members.get(id_)
        if peer is None or not peer.live:
            return False

        def ended(answered: bool | None) -> None:
            node.event(Happened.PINGED, peer, rtt_s=node.now - now if answered else None)

        return self._probing.once(peer.node, peer.address, Payload(), node.profile.period_s, ended)

    def promote(self, now: float, *, force: bool = False) -> bool:
        """Make an observer a full member; false while it is not caught up, unless ``force`` (16.2)."""
        self._node.now = now
        return self._staging.promote(force=force)

    def promote_when_ready(self, now: float) -> None:
        """Let an observer promote itself from now on, as with ``Start.SELF`` (16.2)."""
        self._node.now = now
        self._staging.promote_when_ready()

    def drain(self, now: float) -> None:
        """Leave the group so that the next generation takes over first (16.4)."""
        self._node.now = now
        self._staging.drain()

    def set_profile(self, profile: Profile, now: float) -> None:
        """Use other times from now on; what is planned already keeps its end (17.1)."""
        self._node.now = now
        self._node.set_profile(profile)

    def announce(self, now: float) -> None:
        """Announce this node on the network again (13)."""
        self._node.now = now
        self._dialing.announce()

    def set_meta(self, blob: bytes, now: float) -> None:
        """Replace what this node says of itself (14); raises ``MessageError``."""
        self._node.now = now
        self._extras.set_meta(blob)

    def send_user(self, blob: bytes, now: float, trace: Trace | None = None) -> None:
        """Tell everybody a message, at most once each (14); raises ``MessageError``."""
        self._node.now = now
        self._extras.send(blob, trace)

    def rotate(self, op: KeyOp, key: bytes, now: float) -> None:
        """Do a step of a key rotation everywhere (15.4); raises ``ConfigError``."""
        self._node.now = now
        self._extras.rotate(op, key)

    def set_keys(self, keys: Sequence[bytes]) -> None:
        """Replace the keys, the first of which protects what is sent; raises ``ConfigError``."""
        if self._node.keyring is None:
            raise ConfigError("this member runs without keys; start it with keys to protect what it sends")
        self._node.keyring.set_keys(keys)

    def set_psks(self, psks: Sequence[bytes]) -> None:
        """Replace the PSKs, the first of which we use; raises ``ConfigError``."""
        if self._node.psks is None:
            raise ConfigError("this member runs without PSKs; start it with some to ask joiners for them")
        self._node.psks.replace(psks)

    def set_unix(self, unix_s: float, now: float) -> None:
        """Correct the wall clock."""
        self._node.now = now
        self._node.set_unix(unix_s)

    # --- input and output ----------------------------------------------------------------------------------------

    def outputs(self) -> list[Output]:
        """Return what is to be done, in order."""
        return self._node.outputs()

    def next_timer(self) -> float | None:
        """Return when ``handle_timer`` is due, ``None`` while the node is out."""
        return self._node.timers.next()

    def handle_timer(self, now: float) -> None:
        """Do what is due."""
        node = self._node
        node.now = now
        due = node.timers.next()
        if due is None or due > now:
            return
        if now - due > LATE_PERIODS * node.profile.period_s:
            node.health.worse()
        if now - due > node.profile.period_s:
            self._probing.void()
            self._updates.after_stall()
        node.renew_allowance()
        node.timers.run(now)

    def receive(self, source: Address, datagram: bytes, now: float) -> None:
        """Handle one datagram."""
        node = self._node
        node.now = now
        if node.own is Own.OUT:
            node.drop(DropReason.STATE)
            return
        try:
            origin = self._open(source.plain(), datagram)
            message = node.decode(origin.data)
        except RemoteProtocolError as error:
            node.drop(DropReason(error.reason))
            return
        node.traffic.received[NAMES[message.CODE]] += 1
        node.traffic.received_bytes[NAMES[message.CODE]] += origin.size
        self._dispatch(message, origin)

    def _open(self, source: Address, datagram: bytes) -> Origin:
        keyring = self._node.keyring
        if datagram[:1] in _ENVELOPES:
            if len(datagram) <= ENVELOPE_BYTES:
                raise RemoteProtocolError(DropReason.SHORT, "envelope without a message")
            if keyring is None:
                raise RemoteProtocolError(DropReason.KEYID, "no key is configured")
            inner = keyring.open(datagram)
            self._node.protects(source)
            sealed = datagram[0] == SEALED
            return Origin(source, inner, len(datagram), authenticated=True, sealed=sealed)
        if keyring is not None and not self._node.config.accept_plaintext:
            raise RemoteProtocolError(DropReason.PLAINTEXT)
        return Origin(source, datagram, len(datagram), authenticated=False)

    def _dispatch(self, message: Message, origin: Origin) -> None:
        leaving = self._node.own is Own.LEAVING
        match message:
            case PingRequest():
                self._ping(message, origin)
            case PingResponse() if not leaving:
                self._response(message, origin)
            case JoinReq() if not leaving:
                self._admission.request(message, origin)
            case JoinAck() | JoinNak() | JoinRedirect() if not leaving:
                self._dialing.answer(message, origin)
            case Broadcast() if not leaving:
                if message.src.id in (self._node.id, 0):
                    self._node.drop(DropReason.SELF)
                else:
                    self._dialing.announced(message, origin)
            case Leave() if not leaving:
                self._leave(message, origin)
            case _:
                self._node.drop(DropReason.STATE)

    # --- pings, responses, leaves --------------------------------------------------------------------------------

    def _ping(self, request: PingRequest, origin: Origin) -> None:
        node = self._node
        if request.src.id == node.id:
            self._answering.own_name(request, origin)
            return
        if not request.src.id:
            node.drop(DropReason.STRANGER)
            return
        who = self._author(request.src.id, origin)
        if node.own is Own.LEAVING:
            self._answering.leaving(request, who)
            return
        who = self._records(request.payload, request.src.id, origin, who)
        if node.own is not Own.OUT:  # it may have cost us our id
            self._answering.ping(request, origin, who)

    def _response(self, response: PingResponse, origin: Origin) -> None:
        node, author = self._node, response.target.id
        if response.src.id != node.id:
            if author in (node.id, 0):
                node.drop(DropReason.SELF)
                return
            who = self._author(author, origin)
            self._records(response.payload, author, origin, who)
            self._answering.pass_back(response, origin, who)
            return
        matched = self._probing.match(response, origin.source)
        if author in (node.id, 0):
            if matched is Match.NONE:
                node.drop(DropReason.SELF)
            return
        who = self._author(author, origin)
        if matched is Match.ACK and who.peer is not None and response.target.gen > who.peer.gen:
            if node.believable(response.target.gen, who.peer.gen, origin):
                self._updates.revive(who.peer, response.target.gen)
                who = author_of(node, author, origin)
            else:
                node.drop(DropReason.GENERATION)
        if who.trust < Trust.BURIED:
            node.drop(DropReason.STRANGER)
            return
        self._records(response.payload, author, origin, who, matching=matched is not Match.NONE)

    def _author(self, author: int, origin: Origin) -> Author:
        """Judge the author, and note that it was heard."""
        who = author_of(self._node, author, origin)
        if who.peer is not None and who.peer.live and origin.source == who.peer.address:
            who.peer.heard_at, who.peer.silent = self._node.now, False
            if origin.authenticated:
                self._updates.same_address(who.peer)
        return who

    def _records(self, payload: Payload, author: int, origin: Origin, who: Author, *, matching: bool = False) -> Author:
        """Apply the records that the author may send; returns what is known of the author after that."""
        node = self._node
        heard = Heard(origin, author, direct=who.relay is None, matching=matching)
        if who.trust is Trust.BURIED:
            self._from_the_grave(payload, heard, who)
            return author_of(node, author, origin)
        if who.trust < Trust.KNOWN:
            return who
        if who.peer is not None and who.peer.live and origin.source == who.peer.address:
            self._staging.heard(who.peer, payload)
            self._links.heard(who.peer, payload)
        self._updates.records(payload, heard)
        if node.own is Own.OUT:
            return author_of(node, author, origin)
        self._extras.heard(payload, heard)
        for page in payload.pages:
            # Whatever the records said about it: pages count only while their sender is a peer.
            if who.peer is not None and who.peer.live:
                self._sync.merge(page, who.peer, heard)
        for unlink in payload.unlinks:
            if self._names_us(unlink.receiver):
                self._links.unlinked(who.peer, unlink, origin, proven=matching or origin.authenticated)
        return author_of(node, author, origin)

    def _names_us(self, receiver: NodeId) -> bool:
        """Say whether a record is meant for us; from pings of the other encoding nobody knows our generation."""
        node = self._node
        any_gen = node.config.encoding is Encoding.LIBTRIBE and not receiver.gen
        return receiver == node.node or (any_gen and receiver.id == node.id)

    def _from_the_grave(self, payload: Payload, heard: Heard, who: Author) -> None:
        """Let a buried author say that it is alive, and nothing else (2.3)."""
        peer = who.peer
        for info in payload.alive:
            if peer is None or info.id != peer.id:
                continue
            where = usable(info.address) if info.address.ip else heard.origin.source
            if heard.origin.authenticated or heard.origin.source == peer.address == where:
                self._updates.hear(State.ALIVE, info, 0, heard)

    def _leave(self, leave: Leave, origin: Origin) -> None:
        node, src = self._node, leave.src
        if src.id in (node.id, 0):
            node.drop(DropReason.SELF)
            return
        who = self._author(src.id, origin)
        if who.trust < Trust.KNOWN or (who.peer is not None and who.relay is not None):
            node.drop(DropReason.STRANGER)
        elif who.peer is None:
            info = src._replace(address=UNSPECIFIED)
            if node.partial is None:
                node.add(info, State.LEFT)
                node.spread(State.LEFT, info)
            else:
                self._updates.hear(State.LEFT, info, 0, Heard(origin, info.id, direct=True))
        elif not node.believable(src.gen, who.peer.gen, origin):
            node.drop(DropReason.GENERATION)
        elif src.gen >= who.peer.gen:
            self._updates.bury(who.peer, State.LEFT, src.gen)
