"""One core under test, with peers that are nothing but addresses whose datagrams the test writes."""

import itertools
import random
from collections.abc import Callable
from typing import Any

from pavane.swim.config import Config, RequireToken
from pavane.swim.core.core import Core
from pavane.swim.core.outputs import Event, Happened, Persist, Send
from pavane.swim.wire.messages import JoinAck, JoinReq, Message, PingRequest, PingResponse, decode
from pavane.swim.wire.payload import Payload
from pavane.swim.wire.values import Address, NodeId, NodeInfo

UNIX_S = 1_750_000_000
SELF = Address.parse("10.0.0.1:7946")


def place(number: int) -> Address:
    return Address(bytes((10, 0, 1, number)), 7946)


def info(node: int, gen: int = 1, address: Address | None = None) -> NodeInfo:
    """Return the peer ``node``, which lives at ``place(node)``."""
    return NodeInfo(node, gen, place(node) if address is None else address)


class Lone:
    """A core of id 1 and generation 10."""

    def __init__(self, **config: Any) -> None:
        self.now = 1000.0
        settings = {"id": 1, "first_gen": 10, "address": SELF, **config}
        entropy = random.Random(7)
        self.core = Core(Config(**settings), random.Random(1), entropy.randbytes, self.now, UNIX_S)
        self.events: list[Event] = []
        self.sent: list[tuple[Address, Message]] = []
        self.raw: list[Send] = []
        self.saved: list[int] = []
        self._seq = itertools.count(1)

    def join(self, *seeds: Address) -> None:
        self.core.join(seeds, self.now)
        self._gather()

    def _gather(self) -> None:
        for output in self.core.outputs():
            if isinstance(output, Event):
                self.events.append(output)
            elif isinstance(output, Persist):
                self.saved.append(output.gen)
            else:
                self.raw.append(output)
                keys = self.core._node.config.keys
                self.sent.append((output.to, decode(output.datagram[21:-16] if keys else output.datagram)))

    def hear(self, source: Address, message: Message | bytes) -> list[tuple[Address, Message]]:
        """Deliver a datagram; returns what was sent because of it."""
        self.take()
        self.core.receive(source, message if isinstance(message, bytes) else message.encode(), self.now)
        self._gather()
        return self.take()

    def take(self) -> list[tuple[Address, Message]]:
        """Return what was sent since the last look."""
        sent, self.sent = self.sent, []
        return sent

    def wait(self, seconds: float, answer: Callable[[Address, Message], Message | None] | None = None) -> None:
        """Let time pass; ``answer`` may respond to what is sent, at once and from its destination."""
        end = self.now + seconds
        while (due := self.core.next_timer()) is not None and due <= end:
            self.now = max(self.now, due)
            self.core.handle_timer(self.now)
            mark = len(self.sent)
            self._gather()
            if answer is not None:
                for to, message in self.sent[mark:]:
                    if (response := answer(to, message)) is not None:
                        self.core.receive(to, response.encode(), self.now)
                        self._gather()
        self.now = end

    def happened(self, kind: Happened) -> list[Event]:
        return [event for event in self.events if event.kind is kind]

    def admit(self, *nodes: int) -> None:
        """Let peers join through the token exchange, one after the other."""
        for node in nodes:
            request = JoinReq(info(node))
            answers = self.hear(place(node), request)
            if self.core._node.config.require_token is not RequireToken.OFF:
                ((_, nak),) = answers
                answers = self.hear(place(node), JoinReq(info(node), nak.etag.encode()))  # type: ignore[union-attr]
            assert any(isinstance(message, JoinAck) for _, message in answers)
            self.now += 0.1

    def ping(self, node: int, payload: Payload | None = None, **changes: Any) -> PingRequest:
        """Return a ping of ``node`` for the core, with a number."""
        payload = payload or Payload()
        payload.seq = next(self._seq)
        fields = {"src": NodeId(node, 1), "target": NodeId(self.core.info.id, self.core.info.gen), "ttl": 0, **changes}
        return PingRequest(payload=payload, **fields)

    def news(self, node: int, **records: Any) -> list[tuple[Address, Message]]:
        """Let the peer ``node`` tell something."""
        gossip = PingResponse(NodeId(1, 10), NodeId(node, 1), 0, Payload(**records))
        return self.hear(place(node), gossip)

    def sees(self) -> dict[int, tuple[int, str]]:
        members = self.core._node.members
        return {peer.id: (peer.gen, peer.state.name) for peer in members}


def alive(to: Address, message: Message) -> Message | None:
    """Answer pings as a healthy peer does."""
    del to
    if isinstance(message, PingRequest) and message.ttl == 0 and message.src.id != message.target.id:
        return PingResponse(message.src, message.target, 0, Payload(seq=message.payload.seq))
    return None


def silent(*nodes: int) -> Callable[[Address, Message], Message | None]:
    def answer(to: Address, message: Message) -> Message | None:
        return None if to in {place(node) for node in nodes} else alive(to, message)

    return answer


def only(sent: list[tuple[Address, Message]]) -> tuple[Address, Message]:
    (one,) = sent
    return one
