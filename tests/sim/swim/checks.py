"""What must hold after every event of a simulated group (docs/specs/swim.md 19.2)."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pavane.swim.core.node import NEWS_EXTRA
from pavane.swim.core.outputs import Happened, Own, Persist, Send
from pavane.swim.state.envelope import MACED, SEALED
from pavane.swim.state.members import TOMBSTONES_PER_PEER
from pavane.swim.state.partial import KEPT_MAX, NEWS_MAX, PASSIVE_MAX
from pavane.swim.wire.messages import JoinAck, PingRequest, PingResponse
from pavane.swim.wire.values import NodeStage, State

if TYPE_CHECKING:
    from tests.sim.swim.world import Process


@dataclass
class Seen:
    """What a process looked like after its last event."""

    own: Own = Own.OUT
    id: int = 0
    gen: int = 0
    stage: NodeStage = NodeStage.JOINING
    accused: int = 0
    entries: dict[int, tuple[int, State]] = field(default_factory=dict)


def leaves(process: "Process") -> bool:
    """Say whether a process was leaving already when it asked for the output that is looked at."""
    return next(event.text for _, event in reversed(process.events) if event.kind is Happened.OWN_STATE) == Own.LEAVING


class Checks:
    """Compares each process with what it was before. Without ``enabled`` only what costs nothing is checked."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._seen: dict[int, Seen] = {}
        self._counters: set[tuple[bytes, bytes]] = set()

    def started(self, process: "Process") -> None:
        self._seen[id(process)] = Seen()

    def sent(self, process: "Process", send: Send) -> None:
        config = process.core._node.config
        assert len(send.datagram) <= config.max_datagram_bytes, "invariant 1: a datagram is too long"
        assert send.to.port, "a datagram goes to port 0"
        if not self.enabled:
            return
        if config.keys and send.datagram[0] in (MACED, SEALED):
            counter = (send.datagram[5:13], send.datagram[13:21])
            assert counter not in self._counters, "invariant 10: an envelope's counter repeats"
            self._counters.add(counter)
        if config.stored_gen is not None:
            own = process.core.info
            assert process.stored == Persist(own.id, own.gen), "a generation is told before it is durable"
        if config.keys:
            return
        message, own = process.core._node.decode(send.datagram), process.core.info
        if isinstance(message, JoinAck):
            assert process.core.stage is NodeStage.READ_WRITE, "invariant 6: an observer admits"
        if process.core.own is Own.LEAVING and isinstance(message, PingRequest | PingResponse) and leaves(process):
            alive = [info for info in message.payload.alive if info.id == own.id and info.gen == own.gen]
            assert not alive, "invariant 10: a leaving node says that it is alive"

    def after(self, process: "Process") -> None:
        core = process.core
        node, members = core._node, core._node.members
        capacity = members.capacity
        assert len(members) <= capacity, "invariant 8: more peers than the capacity"
        assert len(members.tombstones) <= TOMBSTONES_PER_PEER * capacity, "invariant 1: too many tombstones"
        assert len(node.news) <= 2 * capacity + NEWS_EXTRA, "invariant 1: too much news"
        assert len(core._probing) <= 64, "invariant 1: too many probes"
        assert len(core._answering) <= 256, "invariant 1: too many relays"
        assert len(core._dialing) <= 8, "invariant 1: too many dials"
        if node.partial is not None:
            view = node.partial
            assert set(view.links) == {peer.id for peer in members.live}, "links and entries differ"
            assert len(view.passive) <= PASSIVE_MAX, "invariant 1: too many in the passive cache"
            assert len(view.news) <= NEWS_MAX, "invariant 1: too much news remembered"
            assert len(view.kept) <= KEPT_MAX, "invariant 1: too many slots kept"
        assert core._dialing.remembered <= min(capacity, 1024), "invariant 1: too many remembered addresses"
        if self.enabled:
            self._compare(process)

    def _compare(self, process: "Process") -> None:
        core, seen = process.core, self._seen[id(process)]
        info, members = core.info, core._node.members
        entries = {peer.id: (peer.gen, peer.state) for peer in members}
        assert info.id not in entries, "invariant 2: an entry about oneself"
        if core.own is Own.MEMBER and seen.own is Own.MEMBER and seen.id == info.id:
            assert info.gen >= seen.gen, "invariant 2: the own generation fell"
        changed = entries != seen.entries
        if changed and core.own is not Own.OUT and seen.own is not Own.OUT and seen.id == info.id:
            for node, (gen, state) in entries.items():
                old_gen, old_state = seen.entries.get(node, (-1, State.ALIVE))
                assert gen >= old_gen, f"invariant 2: the generation of {node} fell"
                back = old_state >= State.DEAD and state <= State.SUSPECT
                assert not (back and gen <= old_gen), f"invariant 3: {node} rose from the dead"
        accused = core.counts["suspicions"] + core.counts["deaths"]
        if core.own not in (Own.OUT, Own.DIALING) and seen.own not in (Own.OUT, Own.LEAVING):
            assert core.stage >= seen.stage, "invariant 6: the stage went back"
        if core.stage is not NodeStage.READ_WRITE and seen.stage is core.stage:
            assert accused == seen.accused, "invariant 6: an observer accuses"
        if core.own is Own.MEMBER:
            assert len(members), "a member without peers"
        if core.own in (Own.OUT, Own.DIALING):
            assert not len(members), f"{core.own} with peers"
        if changed:
            live = sum(1 for _, state in entries.values() if state <= State.SUSPECT)
            assert live == len(members), "the count of peers is wrong"
        self._seen[id(process)] = Seen(core.own, info.id, info.gen, core.stage, accused, entries)
