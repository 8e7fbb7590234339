"""Bytes at a coordinator: of peers, of its application, in files that it reads (docs/specs/ambrosia.md 3, 6, 11)."""

import random
from contextlib import suppress
from typing import Any

from pavane.ambrosia.core.coordinator import Coordinator, Settings
from pavane.ambrosia.effects import CloseStream, Storage, ToBinding, ToStream
from pavane.ambrosia.errors import Fatal, FatalError
from pavane.ambrosia.state import Phase
from pavane.ambrosia.storage import FileStore, Registry
from pavane.ambrosia.wire import batches
from pavane.ambrosia.wire import messages as m
from pavane.ambrosia.wire.files import CheckpointHead, Page, SavedOutput
from pavane.ambrosia.wire.links import Answer, Channel, Code, Hello
from pavane.ambrosia.wire.primitives import Cursor
from pavane.ambrosia.wire.records import LogRecord, RecordBuffer
from pavane.wire import ProtocolError
from tests.fuzz.choices import Choices
from tests.services.memory_disk import MemoryDisk

NAME, PEERS = "alice", ("bob", "carol")
STEPS_MAX = 24
NUMBERS = (0, 1, 2, 127, 1 << 31, (1 << 63) - 1, -1, -(1 << 63))


def decode_any(data: bytes) -> None:
    """Decode bytes as whatever the protocol has, in files and between processes: only our errors."""
    choices = Choices(data)
    kind = choices.number(8)
    rng = random.Random(choices.number(256))
    whole = [
        _record(rng).encode(),
        _head(rng).encode(),
        _hello(rng).encode(),
        Answer(Code.NOT_LIVE, (1, 2), "x").encode(),
    ]
    body = _patched(choices, whole[kind % 4]) if choices.number(2) else choices.bytes(200)
    with suppress(ProtocolError):
        match kind:
            case 0:
                LogRecord.decode(Cursor(body))
            case 1:
                CheckpointHead.decode(body)
            case 2:
                Hello.decode(body)
            case 3:
                Answer.decode(body)
            case 4:
                records = RecordBuffer()
                records.feed(body)
                while records.next() is not None:
                    pass
            case 5:
                list(batches.calls_of(body))
            case _:
                for message in m.read_frames(body):
                    for read in (batches.split_calls, batches.count_calls, batches.read_calls, m.read_batch):
                        with suppress(ProtocolError):
                            read(message)


def attack(data: bytes) -> None:
    """Bytes of peers and of the application at a coordinator that is live.

    What a peer sends ends its stream at most; what an application sends may end the coordinator, in words.
    """
    choices = Choices(data)
    victim = Victim()
    for _ in range(STEPS_MAX):
        if choices.over:
            return
        rng = random.Random(choices.number(256))
        if choices.number(4) == 0:
            try:
                victim.core.binding_received(_bytes(choices, rng, _of_application))
                victim.carry_out()
            except FatalError as error:
                if error.fatal is not Fatal.UNEXPECTED:
                    raise
                return
        elif not victim.streams or choices.number(4) == 0:
            victim.accept(_hello(rng))
        else:
            victim.core.received(choices.pick(sorted(victim.streams)), _bytes(choices, rng, _of_peer))
        victim.carry_out()
        assert victim.core.phase is not Phase.INIT


class Victim:
    """A coordinator whose application and disk answer at once; the streams of its peers are open or closed."""

    def __init__(self) -> None:
        disk = MemoryDisk()
        self.store = FileStore(disk.folder(NAME), Registry(disk.folder("registry")), NAME)
        self.streams: set[int] = set()
        self.core = Coordinator(Settings(NAME, log_trigger_bytes=2000), 7, self.store.lock("fuzz", NAME))
        self.core.first_start()
        self.carry_out()
        self.core.binding_received(m.OUR_INITIAL_MESSAGE + m.checkpoint(2) + b"{}")
        self.carry_out()
        assert self.core.live
        self.core.binding_received(b"".join(map(m.attach_to, PEERS)))
        self._number = 0

    def accept(self, hello: Hello) -> None:
        """Let a peer dial."""
        self._number += 1
        if self.core.links.accept(self._number, hello).code == Code.SUCCESS:
            self.streams.add(self._number)
            self.core.links.begin(self._number)

    def carry_out(self) -> None:
        """Do what the core asks for until it wants nothing."""
        while effects := self.core.outputs():
            for effect in effects:
                self._execute(effect)

    def _execute(self, effect: Any) -> None:
        match effect:
            case ToBinding(data):
                self.core.binding_wrote(len(data))
            case ToStream(stream, data):
                self.core.wrote(stream, len(data))
            case CloseStream(stream):
                self.streams.discard(stream)
            case _ if isinstance(effect, Storage):
                self.store.carry_out(effect)
                self.core.stored(effect)


def _bytes(choices: Choices, rng: random.Random, messages: Any) -> bytes:
    """A message that belongs there, whole or with some of its bytes changed, or bytes alone."""
    if choices.number(4) == 0:
        return choices.bytes(100)
    found = rng.choice(messages(rng))
    return found if choices.number(2) else _patched(choices, found)


def _patched(choices: Choices, body: bytes) -> bytes:
    patch, at = choices.bytes(4), choices.number(256) % (len(body) + 1)
    body = body[:at] + patch + body[at + len(patch) :]
    return body[: choices.number(256)] if choices.number(4) == 0 else body


def _number(rng: random.Random) -> int:
    return rng.choice(NUMBERS) if rng.random() < 0.3 else rng.randrange(5)


def _calls(rng: random.Random) -> list[m.Call | m.Return]:
    sender = rng.choice((NAME, *PEERS))
    return [
        m.Call(rng.randrange(-5, 5), m.RpcType.FORK, b"abc"),
        m.Call(1, m.RpcType.IMPULSE, b""),
        m.Call(1, m.RpcType.ASYNC, b"x", sender, _number(rng)),
        m.Return(m.RpcKind.VALUE, sender, _number(rng), b"value"),
        m.Return(m.RpcKind.VOID, sender, _number(rng)),
    ]


def _of_peer(rng: random.Random) -> list[bytes]:
    calls = [m.incoming(call) for call in _calls(rng)]
    return [
        m.ReplayFrom(_number(rng), _number(rng)).encode(),
        m.trim_to(_number(rng)),
        m.Commit(_number(rng), _number(rng)).encode(),
        *calls,
        m.batch(calls, impulses=1),
        m.batch(calls[2:], count_replayable=False),
        m.frame(rng.choice(list(m.Type)), b"\0" * rng.randrange(20)),
    ]


def _of_application(rng: random.Random) -> list[bytes]:
    calls = [m.outgoing(rng.choice(("", *PEERS, "dave")), call) for call in _calls(rng)]
    return [
        *calls,
        m.batch(calls),
        m.attach_to(rng.choice(("dave", NAME, "x" * 255))),
        m.frame(m.Type.TAKE_CHECKPOINT),
        m.checkpoint(3) + b"new",
        m.frame(rng.choice(list(m.Type)), b"\0" * rng.randrange(20)),
    ]


def _hello(rng: random.Random) -> Hello:
    source = rng.choice((*PEERS, "dave", NAME))
    return Hello(source, rng.choice((NAME, NAME, "bob")), rng.choice(list(Channel)), "p", (_number(rng), 1), 3)


def _record(rng: random.Random) -> LogRecord:
    body = m.incoming(rng.choice(_calls(rng)))
    return LogRecord(7, _number(rng), body, {"bob": (_number(rng), 1)}, {"": _number(rng)})


def _head(rng: random.Random) -> CheckpointHead:
    page = Page(m.incoming(_calls(rng)[0]), _number(rng), 1, 0, 1)
    outputs = {"bob": SavedOutput(_number(rng), 0, 0, (page,))}
    return CheckpointHead(7, _number(rng), b"", {"bob": (1, 1)}, {"": 1}, {"": (2, 1)}, outputs, 5)
