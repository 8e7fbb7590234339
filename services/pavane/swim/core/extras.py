"""META, USER with TRACE, and KEYRING: what applications and administrators tell (docs/specs/swim.md 14, 15.4)."""

from collections import OrderedDict

from pavane.swim.core.node import Node
from pavane.swim.core.outputs import Happened, Own
from pavane.swim.core.updates import Heard, Updates
from pavane.swim.errors import ConfigError, DropReason, MessageError
from pavane.swim.state.envelope import key_id
from pavane.swim.state.extras import TRACE_BYTES, Extra, Numbers
from pavane.swim.state.members import Peer
from pavane.swim.state.partial import NEWS_MAX
from pavane.swim.wire.messages import PingResponse
from pavane.swim.wire.payload import META_BYTES_MAX, KeyOp, KeyStep, Meta, Page, Payload, Trace, User
from pavane.swim.wire.values import U32_MAX, NodeStage

MESSAGES_PER_PERIOD = 32
HEADERS_BYTES = 64  # of a datagram with one message, its own record's included (14)
RESPONSE_BYTES = 39  # of a response with SEQ, STAGE and HEALTH, in which every record that is gossiped must fit
STEPS_MAX = 64  # of key rotations that are remembered: far more than are made while they are told
METAS_PER_PERIOD = 8  # datagrams with METAs that follow pages of walks


class Extras:
    """Takes what applications tell, and hands on what they are told."""

    def __init__(self, node: Node, updates: Updates) -> None:
        self._node = node
        self._updates = updates
        self._useq = int.from_bytes(node.entropy(4), "little")
        self._rate = node.per_period(MESSAGES_PER_PERIOD)
        self._pages = node.per_period(METAS_PER_PERIOD)
        self._had = Numbers(node.config.capacity if node.partial is None else NEWS_MAX)
        self._steps: OrderedDict[tuple[KeyOp, bytes], float] = OrderedDict()  # when each was last heard of

    def __len__(self) -> int:
        return len(self._had)

    # --- telling -------------------------------------------------------------------------------------------------

    def set_meta(self, blob: bytes) -> None:
        """Replace what this node says of itself; raises ``MessageError``."""
        node = self._node
        most = min(META_BYTES_MAX, node.room - HEADERS_BYTES)
        if len(blob) > most:
            raise MessageError(f"{len(blob)} bytes of metadata; at most {most} are carried")
        node.meta = blob
        if node.own in (Own.MEMBER, Own.DIALING):
            self._updates.outbid(node.gen)

    def renewed(self) -> None:
        """Tell our metadata again: its version is our generation, which has changed."""
        node = self._node
        if node.meta is not None:
            node.extras.put(Extra(Meta(node.node, node.meta)))
            for peer in node.members.live:
                peer.told_meta = False

    def send(self, blob: bytes, trace: Trace | None) -> None:
        """Tell everybody a message once; raises ``MessageError``. ``trace``'s origin and number are filled in."""
        node = self._node
        room = node.room - HEADERS_BYTES
        room -= TRACE_BYTES if trace is not None else 0
        if len(blob) > room:
            raise MessageError(f"{len(blob)} bytes; a message of this member has at most {room}")
        if node.own is not Own.MEMBER:
            raise MessageError("nobody would hear it: this member is not in a group")
        if node.stage is not NodeStage.READ_WRITE:
            raise MessageError("an observer tells nothing of its own; promote it first")
        if not self._rate.take(node.now):
            raise MessageError(f"more than {MESSAGES_PER_PERIOD} messages in {node.profile.period_s} s; wait a little")
        self._useq = (self._useq + 1) & U32_MAX
        if trace is not None:
            trace = trace._replace(origin=node.id, useq=self._useq)
        self._queue(Extra(User(node.node, self._useq, blob), trace))

    def rotate(self, op: KeyOp, key: bytes) -> None:
        """Do a step of a key rotation here and everywhere; ``key`` is a master, or for USE and REMOVE also its id.

        Raises ``ConfigError`` for a step that cannot be made.
        """
        node = self._node
        if not node.config.rotate_by_gossip:
            raise ConfigError("this member takes its keys from where it was started; change them there")
        if node.stage is not NodeStage.READ_WRITE:
            raise ConfigError("an observer rotates nothing; ask a full member")
        if op is KeyOp.INSTALL:
            step = KeyStep(op, key_id(key), key)
        else:
            step = KeyStep(op, key if len(key) == len(key_id(b"")) else key_id(key), b"")
        self._step(step)
        self._first(step)
        self._queue(Extra(step))

    def _queue(self, extra: Extra) -> None:
        node = self._node
        if extra.size > node.room - RESPONSE_BYTES:
            node.counts["too_large_to_pass_on"] += 1  # it came from a member with longer datagrams
            return
        node.extras.put(extra)
        node.wake()

    # --- hearing -------------------------------------------------------------------------------------------------

    def heard(self, payload: Payload, heard: Heard) -> None:
        """Take the records of a peer that is believed."""
        traces = {(trace.origin, trace.useq): trace for trace in payload.traces}
        for meta in payload.metas:
            if heard.one_more():
                self._meta(meta, heard)
        for user in payload.users:
            if heard.one_more():
                self._user(user, traces.get((user.origin.id, user.useq)))
        for step in payload.keyrings:
            if heard.one_more() and heard.origin.sealed:
                self._rotated(step)

    def _meta(self, meta: Meta, heard: Heard) -> None:
        node, peer = self._node, self._node.members.get(meta.node.id)
        if peer is None or not peer.live or (peer.meta is not None and meta.node.gen <= peer.meta_gen):
            return
        if not node.believable(meta.node.gen, max(peer.gen, peer.meta_gen), heard.origin):
            node.drop(DropReason.GENERATION)
            return
        changed = peer.meta != meta.blob
        peer.meta, peer.meta_gen = meta.blob, meta.node.gen
        if changed:
            node.event(Happened.META, peer)
        self._queue(Extra(meta))

    def _user(self, user: User, trace: Trace | None) -> None:
        node = self._node
        if user.origin.id in (node.id, 0) or not self._had.fresh(user.origin, user.useq, node.now, node.memory_s):
            return
        node.deliver(user.origin, user.blob, trace)
        self._queue(Extra(user, trace))

    def _rotated(self, step: KeyStep) -> None:
        node = self._node
        if not node.config.rotate_by_gossip or not self._first(step):
            return
        try:
            self._step(step)
        except ConfigError:
            node.counts["key_steps_refused"] += 1
            return
        self._queue(Extra(step))

    def _first(self, step: KeyStep) -> bool:
        """Note a step; false if it was had lately."""
        node, name = self._node, (step.op, step.key_id)
        first = node.now - self._steps.pop(name, float("-inf")) > node.memory_s
        self._steps[name] = node.now
        if len(self._steps) > STEPS_MAX:
            self._steps.popitem(last=False)
        return first

    def _step(self, step: KeyStep) -> None:
        keyring = self._node.keyring
        if keyring is not None:
            keyring.step(step)
            self._node.event(Happened.KEYS, text=f"{step.op.name.lower()} {step.key_id.hex()}")

    # --- to newcomers --------------------------------------------------------------------------------------------

    def after_page(self, page: Page, peer: Peer) -> None:
        """Send a walker the METAs of a page, as far as a few datagrams hold them; each node repeats its own (11.2)."""
        node = self._node
        known = [node.members.get(entry.info.id) for entry in page.entries]
        metas = [Meta(node.node, node.meta)] if node.meta is not None else []
        metas += [Meta(one.node._replace(gen=one.meta_gen), one.meta) for one in known if one and one.meta is not None]
        whole = node.room - RESPONSE_BYTES
        metas = [meta for meta in metas if Extra(meta).size <= whole]
        while metas and self._pages.take(node.now):
            payload, room = Payload(stage=node.shown(peer)), whole
            while metas and (size := Extra(metas[0]).size) <= room:
                room -= size
                payload.metas += (metas.pop(0),)
            node.send(peer.address, PingResponse(peer.node, node.node, 0, payload))
