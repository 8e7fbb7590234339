"""How peers of the original kind ask, and what our leaders owe them (docs/specs/raft.md 7.3, 18.2 S7)."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pavane.raft.core.outputs import Channel, PeerChannel
from pavane.raft.wire.decoder import Drop, Reply, decode_reply
from pavane.raft.wire.frames import encode_uint
from pavane.raft.wire.requests import AppendEntries, RequestVote
from tests.sim.clients import IDENT
from tests.sim.kit.network import Connection, Frames
from tests.sim.kit.seeds import holds

if TYPE_CHECKING:
    from tests.sim.js_model import JsPeer

Answer = Callable[[Any], None]

ID_MODULUS = 1 << 24


class JsChecks:
    """S7: what our leaders owe to peers of the original kind."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self.messages = 0
        self.installed = 0
        self._outstanding: dict[tuple[str, str], tuple[int, Frames]] = {}

    def sent(self, sender: str, target: str, term: int, frames: Frames) -> None:
        """One message at a time to each, repeated in the same bytes."""
        message = tuple(bytes(frame) for frame in frames)
        told, before = self._outstanding.get((sender, target), (0, ()))
        if told == term and before:
            holds(before == message, "S7", f"{sender} sends {target} another message before the last is answered")
        self._outstanding[sender, target] = (term, message)
        self.messages += 1

    def answered(self, sender: str, target: str, frames: Frames) -> None:
        _, before = self._outstanding.get((sender, target), (0, ()))
        if before and before[0] == bytes(frames[0]):
            del self._outstanding[sender, target]

    def restarted(self, sender: str) -> None:
        """A peer that starts anew knows of no message that it sent, and numbers them from the first on."""
        for key in [key for key in self._outstanding if key[0] == sender]:
            del self._outstanding[key]

    def truncated(self, peer: str, index: int, gone: list[bytes], leader: list[bytes]) -> None:
        """Nothing is cut off that its leader has as well: it may be the other holder of a committed entry."""
        for at, entry in enumerate(gone, index + 1):
            holds(leader[at - 1 : at] != [entry], "S7", f"{peer} truncates entry {at}, which its leader has")


class Debounce:
    """What the last message of each peer was answered: its repetition gets the same, or nothing while it is in work."""

    def __init__(self, answer: Callable[[bytes, Frames], None]) -> None:
        self._answer = answer
        self._last: dict[str, tuple[bytes, bytes]] = {}
        self._answers: dict[str, Frames] = {}

    def repeated(self, peer: str, route: bytes, request_id: bytes) -> bool:
        """Take a message; true if it is the last one again, which has been dealt with here then."""
        if self._last.get(peer) != (route, request_id):
            self._last[peer] = (route, request_id)
            self._answers.pop(peer, None)
            return False
        if peer in self._answers:
            self._answer(route, self._answers[peer])
        return True

    def answered(self, peer: str, route: bytes, request_id: bytes, frames: Frames) -> None:
        if self._last.get(peer) == (route, request_id):
            self._answers[peer] = frames


class Rpc:
    """A socket toward one peer: one request at a time, repeated until it is answered or the socket is reset."""

    def __init__(self, owner: "JsPeer", peer: str, url: str) -> None:
        self._owner = owner
        self._to = PeerChannel(Channel.RPC, peer, url)
        self._number = 0
        self._pending: tuple[bytes, Frames, type[Reply], Answer] | None = None

    def ask(self, message: RequestVote | AppendEntries, reply: type[Reply], answer: Answer, repeat_s: float) -> None:
        assert self._pending is None, "the original takes no second request"
        self._number = (self._number + 1) % ID_MODULUS
        request_id = encode_uint(self._number)
        self._pending = (request_id, (request_id, *message.encode(IDENT)), reply, answer)
        self._send(self._pending, repeat_s)

    def reset(self) -> None:
        """Give up what is outstanding, and the connection with it."""
        if self._pending is not None:
            self.close()

    def close(self) -> None:
        """End for good: the peer is no member any more."""
        self._pending = None
        connection = self._owner.sockets.pop(self._to, None)
        if connection is not None:
            self._owner.world.network.close(connection)

    def _send(self, request: tuple[bytes, Frames, type[Reply], Answer], repeat_s: float) -> None:
        if self._pending is request:
            connection = self._owner.sockets.get(self._to) or self._connect()
            if connection is not None:
                self._owner.world.network.ask(connection, request[1])
            self._owner.after(repeat_s, lambda: self._send(request, repeat_s))

    def _connect(self) -> Connection | None:
        target = self._owner.world.listening(self._to.url)
        if target is None:
            return None
        connection = self._owner.world.network.open(
            self._owner.id, target, lambda frames: self._owner.after(0.0, lambda: self._take(frames))
        )
        self._owner.sockets[self._to] = connection
        return connection

    def _take(self, frames: Frames) -> None:
        if self._pending is not None and self._pending[0] == bytes(frames[0]):
            _, _, kind, answer = self._pending
            reply = decode_reply(kind, frames[1:])
            holds(not isinstance(reply, Drop), "S7", f"{self._owner.id} ends at an answer of {self._to.peer}")
            self._pending = None
            answer(reply)
