"""Coordinators, files in memory and a small application in one process, stepped by one generator (21.2)."""

import copy
import json
import random
from collections import deque
from typing import Any

from pavane.ambrosia.core.coordinator import Coordinator, Settings
from pavane.ambrosia.effects import (
    Append,
    Attach,
    BeginCheckpoint,
    BlobToBinding,
    CloseStream,
    Effect,
    EndCheckpoint,
    Say,
    Storage,
    Timer,
    ToBinding,
    ToStream,
)
from pavane.ambrosia.errors import FatalError, Superseded
from pavane.ambrosia.state import Progress
from pavane.ambrosia.storage import CheckpointReader, FileStore, Registry, Replay
from pavane.ambrosia.wire.links import Channel, Code, Hello
from pavane.ambrosia.wire.messages import (
    BATCH_TYPES,
    OUR_INITIAL_MESSAGE,
    Call,
    Frame,
    RpcType,
    Type,
    attach_to,
    checkpoint,
    outgoing,
    read_batch,
    read_checkpoint,
    read_frames,
    read_rpc,
)
from pavane.ambrosia.wire.records import RecordBuffer
from tests.services.memory_disk import MemoryDisk

GO, TAKE = 1, 2
PROMOTIONS = 0.5
"""Of the lives: those of a follower that leads before its application has handled the log (6.3)."""


class Application:
    """A binding and its application: passes a ball with a counter to its peers, and checks what comes."""

    def __init__(self, name: str, *, attach: bool = True) -> None:
        self.name = name
        self.primary = False
        self.goes = 0  # Impulses handled since it leads
        self.attach = attach
        self.attached: set[str] = set()
        self.state: dict[str, Any] = {"sent": {}, "taken": {}, "handled": 0}
        self.outgoing = bytearray()
        self.records = RecordBuffer()
        self.blob_left = 0
        self.blob = bytearray()
        self.seq: int | None = None

    def feed(self, data: bytes) -> None:
        self.records.feed(data)
        while True:
            if self.blob_left:
                chunk = self.records.take(self.blob_left)
                self.blob += chunk
                self.blob_left -= len(chunk)
                if self.blob_left:
                    return
                self.state = json.loads(self.blob)
            record = self.records.next()
            if record is None:
                return
            if record.header.seq >= 0:
                assert self.seq is None or record.header.seq == self.seq + 1, "a gap on the way to the application"
                self.seq = record.header.seq
            for message in read_frames(record.body):
                self.take(message)

    def take(self, message: Frame) -> None:
        if message.type == Type.CHECKPOINT:
            self.blob_left = read_checkpoint(message.data)
            self.blob.clear()
        elif message.type in (Type.TAKE_BECOMING_PRIMARY_CHECKPOINT, Type.TAKE_CHECKPOINT):
            first = message.type == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT and not self.primary
            if first and self.seq is None and not self.blob:
                self.outgoing += OUR_INITIAL_MESSAGE
            blob = json.dumps(self.state).encode()
            self.outgoing += checkpoint(len(blob)) + blob
            self.primary = True
        elif message.type == Type.BECOMING_PRIMARY:
            self.primary = True
        elif message.type in BATCH_TYPES:
            for inner in read_batch(message):
                self.take(inner)
        elif message.type == Type.RPC:
            self.handle(read_rpc(message.data))
        else:
            assert message.type == Type.INITIAL_MESSAGE

    def handle(self, call: Any) -> None:
        self.state["handled"] += 1
        arguments = json.loads(call.arguments)
        if call.method == GO:
            self.goes += self.primary
            self.send(arguments["to"], arguments["hops"])
            return
        source, number = arguments["from"], arguments["number"]
        assert number == self.state["taken"].get(source, 0) + 1, f"{self.name} took {number} of {source} out of order"
        self.state["taken"][source] = number
        if arguments["hops"]:
            self.send(source, arguments["hops"] - 1)

    def send(self, to: str, hops: int) -> None:
        if self.attach and to not in self.attached:
            self.attached.add(to)
            self.outgoing += attach_to(to)
        number = self.state["sent"].get(to, 0) + 1
        self.state["sent"][to] = number
        arguments = json.dumps({"from": self.name, "number": number, "hops": hops}).encode()
        self.outgoing += outgoing("" if to == self.name else to, Call(TAKE, RpcType.FORK, arguments))

    def impulse(self, to: str, hops: int) -> None:
        arguments = json.dumps({"to": to, "hops": hops}).encode()
        self.outgoing += outgoing("", Call(GO, RpcType.IMPULSE, arguments))


class Pipe:
    """One stream: bytes both ways."""

    def __init__(self, number: int, dialler: "Node", target: "Node", channel: Channel) -> None:
        self.number = number
        self.ends = (dialler, target)
        self.channel = channel
        self.way: dict[Node, deque[bytes]] = {dialler: deque(), target: deque()}  # towards whom


class Node:
    """One immortal: its disk stays, all else is made anew by every ``start``."""

    def __init__(self, model: "Model", name: str, trigger: int) -> None:
        self.model = model
        self.name = name
        self.trigger = trigger
        self.disk = MemoryDisk()
        self.up = False
        self.lives = 0
        self.said: list[str] = []
        self.overtaken = False
        self.ghosts: list[Node] = []
        """Former lives that stood still and go on: applications and files, no streams (14)."""
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.app = Application(self.name)
        self.to_app: deque[bytes] = deque()
        self.storage: deque[Storage] = deque()
        self.attached: set[str] = set()
        self.timers: list[str] = []
        self.store = FileStore(self.disk.folder(self.name), Registry(self.disk.folder("registry")), self.name)
        try:
            meta = self.store.lock("model", self.name)
        except FatalError:  # who stood still holds the lock
            self.store.tenure.overtake()
            meta = self.store.lock("model", self.name)
        self.up = True
        settings = Settings(self.name, log_trigger_bytes=self.trigger)
        if not meta.last_checkpoint:
            self.core = Coordinator(settings, 7 + self.lives, meta)
            self.core.first_start()
        else:
            reader = CheckpointReader(self.store.folder, meta.last_checkpoint)
            self.core = Coordinator(settings, reader.head.committer, meta)
            self.core.restore(reader.head, meta.last_checkpoint)
            progress = Progress.restored(reader.head)
            replay = Replay(self.store.folder, meta.last_checkpoint, meta.last_log, progress)
            while (record := replay.next()) is not None:
                self.core.replay(record)
            self.store.finish(replay)
            self.core.replayed(promotion=self.model.rng.random() < PROMOTIONS)
        self.flush()

    def flush(self) -> None:
        for effect in self.core.outputs():
            self.execute(effect)

    def execute(self, effect: Effect) -> None:
        match effect:
            case ToBinding(data):
                self.to_app.append(data)
            case BlobToBinding(number):
                self.to_app.extend(CheckpointReader(self.store.folder, number).blob())
            case Attach(peer):
                self.attached.add(peer)
            case ToStream(stream, data):
                self.model.carry(self, stream, data)
            case CloseStream(stream):
                self.model.cut(stream)
            case Timer(name):
                self.timers.append(name)
            case Say(text):
                self.said.append(text)
            case _:
                self.storage.append(effect)

    def crash(self) -> None:
        self.up = False
        self.disconnect()
        for life in (self, *self.ghosts):
            life.store.close()
        self.ghosts.clear()
        self.disk.crash(self.model.rng)

    def stand_still(self) -> None:
        """Stop in the middle of whatever this does; another process overtakes it, and later it goes on."""
        self.disconnect()
        ghost = copy.copy(self)
        ghost.overtaken = True
        ghost.said = []
        self.ghosts.append(ghost)
        self.start()

    @property
    def writes_checkpoint(self) -> bool:
        """Whether a checkpoint is on its way to the disk: what comes of it is decided now."""
        return any(isinstance(effect, BeginCheckpoint | EndCheckpoint) for effect in self.storage)

    def disconnect(self) -> None:
        for pipe in list(self.model.pipes.values()):
            if self in pipe.ends:
                self.model.cut(pipe.number)

    def haunt(self, ghost: "Node") -> None:
        """Let a former life do its next step; it ends when it notices that it was overtaken."""
        possible = ghost.own_steps()
        try:
            if not possible:
                raise Superseded("nothing is left to do")
            self.model.rng.choice(possible)()
        except (FatalError, Superseded):
            self.ghosts.remove(ghost)
            ghost.store.close()

    def steps(self) -> list[Any]:
        """What may happen next here."""
        if not self.up:
            return [self.start]
        possible = self.own_steps()
        possible += [lambda ghost=ghost: self.haunt(ghost) for ghost in self.ghosts]
        if self.timers:
            possible.append(self.ring)
        possible += [lambda peer=peer: self.model.dial(self, peer) for peer in self.attached]
        return possible

    def own_steps(self) -> list[Any]:
        possible: list[Any] = []
        if self.storage:
            possible.append(self.persist)
        if self.to_app:
            possible.append(self.deliver)
        if self.app.outgoing:
            possible.append(self.listen)
        return possible

    def persist(self) -> None:
        effect = self.storage.popleft()
        self.store.carry_out(effect)
        assert not (self.overtaken and isinstance(effect, Append)), "acknowledged though another process took over"
        self.core.stored(effect)
        self.flush()

    def deliver(self) -> None:
        data = self.to_app.popleft()
        self.app.feed(data)
        self.core.binding_wrote(len(data))
        self.flush()

    def listen(self) -> None:
        size = self.model.rng.randint(1, len(self.app.outgoing))
        data = bytes(self.app.outgoing[:size])
        del self.app.outgoing[:size]
        self.core.binding_received(data)
        self.flush()

    def ring(self) -> None:
        self.core.timer(self.timers.pop(self.model.rng.randrange(len(self.timers))))
        self.flush()


class Model:
    """All nodes, their streams and one generator."""

    def __init__(self, seed: int, names: tuple[str, ...] = ("a", "b"), trigger: int = 2000) -> None:
        self.rng = random.Random(seed)
        self.pipes: dict[int, Pipe] = {}
        self.numbers = 0
        self.nodes: dict[str, Node] = {}
        for name in names:
            self.nodes[name] = Node(self, name, trigger)

    def dial(self, node: Node, peer: str) -> None:
        target = self.nodes.get(peer)
        if target is None or not target.up:
            return
        for channel in Channel:
            if any(pipe.ends == (node, target) and pipe.channel is channel for pipe in self.pipes.values()):
                continue
            self.numbers += 1
            hello = Hello(node.name, peer, channel, "model", node.store.tenure.token, node.core.committer)
            found = Hello.decode(hello.encode())
            assert found is not None
            answer = target.core.links.accept(self.numbers, found[0])
            if answer.code == Code.SUCCESS:
                self.pipes[self.numbers] = Pipe(self.numbers, node, target, channel)
                node.core.links.dialled(self.numbers, peer, channel)
                target.core.links.begin(self.numbers)
                node.flush()
            target.flush()

    def carry(self, node: Node, number: int, data: bytes) -> None:
        pipe = self.pipes.get(number)
        if pipe is not None:
            pipe.way[pipe.ends[1] if pipe.ends[0] is node else pipe.ends[0]].append(data)
        else:
            node.core.wrote(number, len(data))

    def cut(self, number: int) -> None:
        pipe = self.pipes.pop(number, None)
        for node in pipe.ends if pipe is not None else ():
            if node.up:
                node.core.links.closed(number)

    def arrive(self, pipe: Pipe, node: Node) -> None:
        data = pipe.way[node].popleft()
        if len(data) > 1 and self.rng.random() < 0.2:  # a part of it
            size = self.rng.randint(1, len(data) - 1)
            pipe.way[node].appendleft(data[size:])
            data = data[:size]
        other = pipe.ends[1] if pipe.ends[0] is node else pipe.ends[0]
        other.core.wrote(pipe.number, len(data))
        other.flush()
        node.core.received(pipe.number, data)
        node.flush()

    def step(self) -> bool:
        possible = [step for node in self.nodes.values() for step in node.steps()]
        for pipe in self.pipes.values():
            possible += [lambda pipe=pipe, node=node: self.arrive(pipe, node) for node in pipe.ends if pipe.way[node]]
        if not possible:
            return False
        self.rng.choice(possible)()
        return True

    def chaos(self, steps: int) -> int:
        """Run with Impulses, cuts and crashes; return how many crashes there were."""
        crashes = 0
        for _ in range(steps):
            draw = self.rng.random()
            node = self.rng.choice(list(self.nodes.values()))
            if draw < 0.05 and node.up and node.app.primary:
                node.app.impulse(self.rng.choice(list(self.nodes)), self.rng.randint(0, 3))
            elif draw < 0.06 and node.up:
                node.crash()
                crashes += 1
            elif draw < (0.1 if node.writes_checkpoint else 0.062) and node.up:
                node.stand_still()
            elif draw < 0.067 and self.pipes:
                self.cut(self.rng.choice(list(self.pipes)))
            self.step()
        return crashes

    def settle(self, steps: int = 20000) -> None:
        """Run without faults until all that was sent has been taken."""
        for _ in range(steps):
            self.step()
            if self.settled():
                return
        raise AssertionError(f"does not settle: {self.difference()}")

    def settled(self) -> bool:
        nodes = self.nodes.values()
        if any(not node.up or not node.core.live or node.app.outgoing or node.storage or node.to_app for node in nodes):
            return False
        buffered = any(len(output) for node in nodes for output in node.core.links.outputs.values())
        assert not any("contradict" in text for node in nodes for text in node.said), [n.said for n in nodes]
        return not self.difference() and not buffered

    def difference(self) -> dict[str, Any]:
        """Return which pairs do not agree about how many calls were sent and taken."""
        found = {}
        for source in self.nodes.values():
            for name, sent in source.app.state["sent"].items():
                taken = self.nodes[name].app.state["taken"].get(source.name, 0)
                if taken != sent:
                    found[f"{source.name}->{name}"] = (sent, taken)
        return found
