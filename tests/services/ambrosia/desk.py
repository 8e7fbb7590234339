"""A coordinator without processes: it logs what immortals send, delivers it, and starts them again."""

from collections import deque
from typing import Any

from pavane.ambrosia.client.engine import Engine, Failed, Long, Outside, Result
from pavane.ambrosia.client.guard import Guard
from pavane.ambrosia.client.immortal import Immortal
from pavane.ambrosia.wire.messages import (
    BATCH_TYPES,
    MessageBuffer,
    Type,
    checkpoint,
    read_batch,
    read_checkpoint,
    split_outgoing,
)
from pavane.ambrosia.wire.records import Header, checkpoint_record, control_record, xxh64

COMMITTER = 7


class Place:
    """One instance: its log, its checkpoint, and the engine that lives now."""

    def __init__(self, desk: "Desk", kind: type[Immortal], name: str) -> None:
        self.desk, self.kind, self.name = desk, kind, name
        self.log: list[bytes] = []
        self.checkpoint = b""
        self.checkpoint_at = 0
        self.failed: list[Failed] = []
        self.results: dict[str, Result] = {}
        self.long: list[Long] = []
        self.outside: list[Outside] = []
        self.to_logged: dict[str, int] = {}
        self.live()

    def live(self, kind: type[Immortal] | None = None, **options: Any) -> None:
        """Begin a life: from the checkpoint if there is one; ``options`` are those of the engine."""
        self.kind = kind or self.kind
        self.engine = Engine(self.kind, self.name, guard=Guard(strict=True), **options)
        self.stream = MessageBuffer()
        self.sent = dict.fromkeys(self.to_logged, 0)
        if self.checkpoint:
            self.sent = dict(self.sent_at)
            self.engine.feed(checkpoint_record(COMMITTER, checkpoint(len(self.checkpoint))) + self.checkpoint)
            for seq in range(self.checkpoint_at, len(self.log)):
                self.deliver(seq)
        self.engine.feed(control_record(COMMITTER, Type.TAKE_BECOMING_PRIMARY_CHECKPOINT))
        self.turn()

    def deliver(self, seq: int) -> None:
        body = self.log[seq]
        self.engine.feed(Header(COMMITTER, 24 + len(body), xxh64(body), seq).encode() + body)

    def add(self, body: bytes) -> None:
        self.log.append(body)
        self.deliver(len(self.log) - 1)

    def turn(self) -> None:
        """Let the engine handle what it has; carry out what it sent."""
        while self.engine.step():
            self.carry()
        self.carry()
        while self.engine.effects:
            effect = self.engine.effects.popleft()
            if isinstance(effect, Failed):
                self.failed.append(effect)
            elif isinstance(effect, Result):
                self.results[effect.token] = effect
            elif isinstance(effect, Long):
                self.long.append(effect)
            else:
                self.outside.append(effect)

    def carry(self) -> None:
        self.stream.feed(self.engine.take())
        while (message := self.stream.next()) is not None:
            if message.type == Type.INITIAL_MESSAGE:
                self.first = message.raw
            elif message.type == Type.CHECKPOINT:
                self.checkpoint = self.stream.take(read_checkpoint(message.data))
                self.checkpoint_at = len(self.log)
                self.sent_at = dict(self.sent)
                if not self.log:
                    self.add(self.first)
            elif message.type in BATCH_TYPES:
                for each in read_batch(message):
                    self.route(*split_outgoing(each))
            elif message.type == Type.RPC:
                self.route(*split_outgoing(message))

    def route(self, to: str, body: bytes, impulse: bool) -> None:
        to = to or self.name
        if not impulse:
            self.sent[to] = self.sent.get(to, 0) + 1
            if self.sent[to] <= self.to_logged.get(to, 0):
                return  # made again in a replay
            self.to_logged[to] = self.sent[to]
        self.desk.queue.append((to, body))

    def take_checkpoint(self) -> None:
        self.engine.feed(control_record(COMMITTER, Type.TAKE_CHECKPOINT))
        self.turn()


class Desk:
    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.queue: deque[tuple[str, bytes]] = deque()
        self.clock = 1_000_000
        self.tokens = 0

    def start(self, kind: type[Immortal], name: str) -> Place:
        place = self.places[name] = Place(self, kind, name)
        self.settle()
        return place

    def settle(self) -> None:
        while self.queue:
            to, body = self.queue.popleft()
            if to in self.places:
                self.places[to].add(body)
                self.places[to].turn()
            else:
                self.queue.append((to, body))
                if all(each[0] not in self.places for each in self.queue):
                    return

    def request(self, name: str, method: Any, *args: Any, key: str = "") -> Any:
        """Send a request from outside and return the token of its result."""
        self.tokens += 1
        token = str(self.tokens)
        place = self.places[name]
        place.engine.request(token, key, method, method.signature.pack(args, {}))
        place.turn()
        self.settle()
        return token

    def call(self, name: str, method: Any, *args: Any, key: str = "") -> Any:
        result = self.places[name].results[self.request(name, method, *args, key=key)]
        assert result.state == 1, result.value
        return method.signature.result.unpack(result.value)
