"""Questions to other peers: ids, what is outstanding, and which handler an answer belongs to (2.1, 3.4)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import Channel, Disconnect, PeerChannel
from pavane.raft.errors import DropReason
from pavane.raft.silence import Silence
from pavane.raft.wire.decoder import Drop, Reply, decode_reply
from pavane.raft.wire.frames import Frame, Frames, encode_uint, next_message_id
from pavane.raft.wire.requests import PeerPoll

OUTSTANDING_MAX = 64  # questions per socket whose answers are still awaited; the oldest gives way


class Question(Protocol):
    """A request that knows its frames."""

    def encode(self, ident: bytes) -> tuple[Frame, ...]:
        """Return the frames behind the id."""
        ...


@dataclass(slots=True, eq=False)
class Ask:
    """A question under way; ``handler`` takes (ask, reply). ``many``: several messages may answer it."""

    to: PeerChannel
    id: bytes
    frames: tuple[Frame, ...]
    reply: type[Reply]
    handler: Callable[["Ask", Any], None]
    many: bool


class Requests:
    """Numbers messages per socket and matches replies to the questions still outstanding.

    ``silence`` tells which ``sockets`` owe an answer.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._last_ids: dict[tuple[Channel, str], int] = {}
        self._outstanding: dict[tuple[Channel, str], dict[bytes, Ask]] = {}
        self.silence: Silence[tuple[Channel, str]] = Silence()
        self.sockets: dict[tuple[Channel, str], PeerChannel] = {}
        self.answered_at: dict[str, float] = {}  # monotonic second of the last answer of a PEER ID

    def poll(self) -> PeerPoll:
        """Return who we are, for the polls that peers borrow from clients (4.1)."""
        return PeerPoll(self._node.id, self._node.term)

    def ask(
        self,
        to: PeerChannel,
        question: Question,
        reply: type[Reply],
        handler: Callable[[Ask, Any], None],
        *,
        after: int | None = None,
        many: bool = False,
    ) -> Ask:
        """Send a question under a new id."""
        key = (to.channel, to.peer)
        number = next_message_id(self._last_ids.get(key, 0))
        self._last_ids[key] = number
        ask = Ask(to, encode_uint(number), question.encode(self._node.config.ident), reply, handler, many)
        waiting = self._outstanding.setdefault(key, {})
        waiting[ask.id] = ask
        if len(waiting) > OUTSTANDING_MAX:
            del waiting[next(iter(waiting))]
        self.sockets[key] = to
        self.silence.asked(key, sum(map(len, ask.frames)))
        self._node.send(to, (ask.id, *ask.frames), after)
        return ask

    def again(self, ask: Ask, question: Question | None = None) -> None:
        """Send a question once more under the same id: the same bytes, or another message of the same stream."""
        frames = ask.frames if question is None else question.encode(self._node.config.ident)
        key = (ask.to.channel, ask.to.peer)
        self.sockets[key] = ask.to  # it may have been closed meanwhile
        self.silence.asked(key, sum(map(len, frames)))
        self._node.send(ask.to, (ask.id, *frames), self._node.term_ticket)

    def cancel(self, ask: Ask | None) -> None:
        """Stop waiting for an answer."""
        if ask is not None:
            self._outstanding.get((ask.to.channel, ask.to.peer), {}).pop(ask.id, None)

    def disconnect(self, to: PeerChannel) -> None:
        """Close a socket and forget what was asked through it."""
        key = (to.channel, to.peer)
        self._outstanding.pop(key, None)
        self.sockets.pop(key, None)
        self.silence.forget(key)
        self._node.event(Disconnect(to))

    def take(self, peer: str, channel: Channel, frames: Frames) -> None:
        """Give a message from one of our sockets to the handler of its question, or count it."""
        key = (channel, peer)
        self.silence.heard(key)
        waiting = self._outstanding.get(key, {})
        ask = waiting.get(bytes(frames[0])) if frames else None
        if ask is None:
            self._node.drop(DropReason.STALE)
            return
        reply = decode_reply(ask.reply, frames[1:])
        if isinstance(reply, Drop):
            self._node.drop(reply.reason)
            return
        if not ask.many:
            del waiting[ask.id]
        if channel != Channel.SEED:
            self.answered_at[peer] = self._node.now.mono
        ask.handler(ask, reply)
