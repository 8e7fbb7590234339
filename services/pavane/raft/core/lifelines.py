"""Gives up connections to peers that carry nothing, and has them dialled anew (docs/specs/raft.md 14.3)."""

from collections.abc import Callable

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, Disconnect, PeerChannel
from pavane.raft.core.programs import Programs
from pavane.raft.core.requests import Requests
from pavane.raft.silence import LOOK_S
from pavane.raft.wire.replies import RequestConfigReply
from pavane.raft.wire.requests import RequestConfig


class Lifelines:
    """Looks at the side and seed channels while they owe an answer; ``down`` takes (peer, channel) of what was closed.

    An RPC channel is closed along with the side channel of a peer of ours, which lost the same way. That of any other
    stays the system's: behind a new one a message that the other program took late would do harm (1.4), and the system
    alone knows that it took nothing.
    """

    def __init__(
        self, node: Node, requests: Requests, programs: Programs, down: Callable[[str, Channel], None]
    ) -> None:
        self._node = node
        self._requests = requests
        self._programs = programs
        self._down = down
        self._look_at = 0.0

    def connected(self, peer: str, channel: Channel, up: bool) -> None:
        """A connection came up or went."""
        if channel in (Channel.SIDE, Channel.SEED):
            self._requests.silence.connected((channel, peer), up)

    def next_timer(self) -> float | None:
        """Return when to look again; ``None`` while nobody owes an answer."""
        return self._look_at if self._requests.silence else None

    def timer(self) -> None:
        """Ask peers that have been silent for long, and close the channels of those that have been for too long."""
        silence, now = self._requests.silence, self._node.now.mono
        if now < self._look_at or not silence:
            return
        self._look_at = now + LOOK_S
        doubtful, lost = silence.look()
        for key in doubtful:
            self._requests.ask(
                self._requests.sockets[key],
                RequestConfig(self._requests.poll()),
                RequestConfigReply,
                lambda _ask, _reply: None,
            )
        for key in lost:
            self._give_up(self._requests.sockets[key])

    def _give_up(self, to: PeerChannel) -> None:
        ours = to.channel == Channel.SIDE and self._programs.lost(to.peer)
        self._close(to)
        if ours:
            self._close(PeerChannel(Channel.RPC, to.peer, to.url))

    def _close(self, to: PeerChannel) -> None:
        """Close it; the next message opens it anew. What was asked stays so, as when a connection breaks."""
        self._node.event(Disconnect(to))
        self._down(to.peer, to.channel)
