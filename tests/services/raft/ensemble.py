"""A few cores in one room: messages arrive at once and in order, time moves only when told, all is written down."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pavane.raft.config import Config
from pavane.raft.core.core import Core
from pavane.raft.core.outputs import (
    Applied,
    Apply,
    Channel,
    Event,
    Freeze,
    MachineWork,
    Now,
    Outputs,
    PeerChannel,
    Restore,
    Send,
)
from pavane.raft.core.status import Status
from pavane.raft.machines.keyvalue import Tree
from pavane.raft.state.commands import Append, Recovered, SnapshotPart, Stored
from pavane.raft.state.roles import Role
from pavane.raft.wire.decoder import AnyReply, Drop, Request, decode_reply, decode_request
from pavane.raft.wire.entry import EntryType, LogEntry, entry_data, entry_reqid, entry_type
from pavane.raft.wire.pv import PvAppend, PvSnapshot
from pavane.raft.wire.replies import RequestUpdateReply
from pavane.raft.wire.requests import AppendEntries, ConfigUpdate, InstallSnapshot, RequestEntries, RequestUpdate
from pavane.raft.wire.snapshot import SnapshotMeta, join_groups
from pavane.wire import Stage
from tests.sim.disk import Disk

IDENT = b"s3cr3t"
WALL_S = 1_750_000_000
TURNS_MAX = 10_000  # deliveries after one input: more is an endless loop

Frames: TypeAlias = tuple[bytes, ...]


def url(peer: str) -> str:
    return f"tcp://10.0.0.{ord(peer) - ord('a') + 1}:8047"


def members(names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, url(name)) for name in names)


def reqid(number: int, second: int = WALL_S) -> bytes:
    return second.to_bytes(4, "big") + number.to_bytes(8, "big")


def decoded(kind: type[AnyReply], frames: Frames) -> AnyReply:
    reply = decode_reply(kind, frames[1:])
    assert not isinstance(reply, Drop)
    return reply


class Ensemble:
    """Cores named by letters. ``cuts`` holds pairs (from, to) whose messages are lost; ``stuck`` disks do not sync.

    With ``keys`` the machine is a Tree. Who is ``absent`` never started: a test may speak for it.
    """

    def __init__(
        self,
        voters: str,
        learners: str = "",
        *,
        absent: str = "",
        seed: int = 1,
        keys: bool = False,
        **settings: Any,
    ) -> None:
        self.time = 0.0
        self.settings = settings | ({"machine": "Tree"} if keys else {})
        self.machines: dict[str, Tree | None] = {}
        self._keys = keys
        self.rng = random.Random(seed)
        self.voters = voters
        self.everybody = voters + learners
        self.cores: dict[str, Core] = {}
        self.disks: dict[str, Disk] = {}
        self.cuts: set[tuple[str, str]] = set()
        self.stuck: set[str] = set()
        self.trace: list[str] = []
        self.events: dict[str, list[Event]] = {name: [] for name in self.everybody}
        self.replies: list[tuple[str, Frames]] = []
        self.asked: list[tuple[str, str, Request | Drop]] = []
        self._mail: deque[Callable[[], None]] = deque()
        self._held: dict[str, list[Send]] = {name: [] for name in self.everybody}
        self._stored = dict.fromkeys(self.everybody, 0)
        for name in self.everybody:
            self.disks[name] = Disk()
        for name in self.everybody:
            if name not in absent:
                self.start(name)

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self, name: str, recovered: Recovered | None = None, **settings: Any) -> None:
        voter = name in self.voters
        named = {"peers": members(self.voters) if voter else (), "seeds": tuple(url(peer) for peer in self.everybody)}
        self.machines[name] = Tree() if self._keys else None
        config = Config(id=name, ident=IDENT, url=url(name), **(named | self.settings | settings))
        stage = Stage.READ_WRITE if voter else Stage.READ_ONLY
        recovered = recovered if recovered is not None else self.disks[name].recovered(corrupt=False)
        rng = random.Random(self.rng.getrandbits(32))
        self.cores[name] = Core(config, recovered, self.disks[name], rng, self.now(), stage, self.machines[name])
        self.settle()

    def now(self) -> Now:
        return Now(self.time, WALL_S + int(self.time))

    def status(self, name: str) -> Status:
        return self.cores[name].status()

    def roles(self) -> dict[str, Role]:
        return {name: self.status(name).role for name in self.cores}

    def leader(self) -> str:
        """The one that leads in the highest term; asking for it where nobody leads is a failure."""
        leading = [name for name in self.cores if self.status(name).role == Role.LEADER]
        assert leading, f"nobody leads: {self.roles()}"
        return max(leading, key=lambda name: self.status(name).term)

    def down(self, name: str) -> None:
        del self.cores[name]

    # --- time ----------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass; every timer fires when it is due."""
        end = self.time + seconds
        while True:
            timers = [core.next_timer() for core in self.cores.values()]
            due = min((timer for timer in timers if timer is not None), default=end)
            if due >= end:
                break
            self.time = max(self.time, due)
            for core in list(self.cores.values()):
                timer = core.next_timer()
                if timer is not None and timer <= self.time:
                    core.handle_timer(self.now())
            self.settle()
        self.time = end

    def until(self, happened: Callable[[], bool], seconds: float = 10.0) -> None:
        end = self.time + seconds
        while not happened():
            assert self.time < end, f"did not happen within {seconds} s: {self.roles()}"
            self.advance(0.01)

    def elect(self) -> str:
        self.until(lambda: Role.LEADER in self.roles().values())
        self.advance(0.1)
        return self.leader()

    # --- clients -------------------------------------------------------------------------------------------------

    def ask(self, name: str, frames: Sequence[bytes | memoryview], client: str = "client") -> list[Frames]:
        """Send a request; return what comes back before time moves."""
        before = len(self.replies)
        self._receive(name, client, tuple(bytes(frame) for frame in frames))
        self.settle()
        return [reply for who, reply in self.replies[before:] if who == client]

    def update(self, name: str, number: int, data: bytes = b"data", client: str = "client") -> list[RequestUpdateReply]:
        frames = self.ask(name, (reqid(number), *RequestUpdate(data).encode(IDENT)), client)
        return [decoded(RequestUpdateReply, reply) for reply in frames]

    def change(self, name: str, number: int, names: str) -> None:
        self.ask(name, (reqid(number), *ConfigUpdate.of(members(names)).encode(IDENT)), "admin")

    def read(self, name: str, previous: int) -> None:
        self.ask(name, (b"read", *RequestEntries(previous).encode(IDENT)), "reader")

    def told(self, client: str) -> list[Frames]:
        """All that a client was told so far."""
        return [reply for who, reply in self.replies if who == client]

    def entries(self, name: str) -> list[bytes]:
        return self.disks[name].entries

    # --- machinery -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Carry everything out until nobody wants anything."""
        for _ in range(TURNS_MAX):
            busy = False
            for name, core in list(self.cores.items()):
                outputs = core.outputs()
                if outputs.store or outputs.send or outputs.apply or outputs.events:
                    busy = True
                    self._carry_out(name, core, outputs)
            if self._mail:
                busy = True
                self._mail.popleft()()
            if not busy:
                return
        raise AssertionError("the cores never come to rest")

    def sync(self, name: str) -> None:
        """Let a stuck disk finish what it was given."""
        if self.disks[name].queue:
            self._synced(name)
        self.settle()

    def _carry_out(self, name: str, core: Core, outputs: Outputs) -> None:
        disk = self.disks[name]
        for event in outputs.events:
            self.events[name].append(event)
            self._write(f"{name} * {event}")
        for command in outputs.store:
            if isinstance(command, Append):
                last = command.first + len(command.entries) - 1
                self._write(f"{name} = Append(ticket={command.ticket}, entries {command.first} to {last})")
            elif isinstance(command, SnapshotPart):
                self._write(f"{name} = SnapshotPart(ticket={command.ticket}, {len(command.data)} bytes)")
            else:
                self._write(f"{name} = {command}")
        disk.submit(outputs.store)
        self._held[name] += outputs.send
        self._release(name)
        if name not in self.stuck and disk.queue:
            self._synced(name)
        for work in outputs.apply:
            self._work(name, core, work)

    def _work(self, name: str, core: Core, work: MachineWork) -> None:
        machine = self.machines[name]
        match work:
            case Apply(first, entries):
                last = first + len(entries) - 1
                self._write(f"{name} ! entries {first} to {last}")
                for index, entry in enumerate(entries, first):
                    if machine is not None and entry_type(entry) == EntryType.STATE:
                        machine.apply(index, entry_reqid(entry), entry_data(entry))
                core.applied([Applied(last)], self.now())
            case Freeze(index, term, configuration, configuration_index, table, _, bare):
                self._write(f"{name} ! snapshot of {index}")
                assert machine is not None
                data = b"".join(machine.freeze())
                ids, digests = join_groups(table.freeze(index))
                meta = SnapshotMeta(
                    configuration, configuration_index, machine.name, machine.level, table.floor, ids, bare, digests
                )
                self.disks[name].save(index, term, meta, data)
                core.snapshot_saved(index, len(data), self.now())
            case Restore(index):
                self._write(f"{name} ! begin from the snapshot of {index}")
                source = self.disks[name].open_snapshot(index)
                if machine is not None:
                    machine.restore([source.read(source.head.data_offset, source.head.data_bytes)], index)
                core.restored(index, self.now())

    def _synced(self, name: str) -> None:
        disk = self.disks[name]
        self._stored[name] = disk.sync(len(disk.queue))
        self.cores[name].stored(Stored(self._stored[name]), self.now())
        self._release(name)

    def _release(self, name: str) -> None:
        waiting: list[Send] = []
        for send in self._held[name]:
            if send.after is not None and send.after > self._stored[name]:
                waiting.append(send)
            elif isinstance(send.to, bytes):
                self._answer(name, send.to.decode(), tuple(bytes(frame) for frame in send.frames))
            else:
                self._ask(name, send.to, tuple(bytes(frame) for frame in send.frames))
        self._held[name] = waiting

    def _ask(self, name: str, to: PeerChannel, frames: Frames) -> None:
        target = next((peer for peer in self.everybody if url(peer) == to.url), None)
        if target is None:
            return
        self._write_request(name, target, to.channel, frames)
        route = f"{name} {to.channel.value} {to.peer}"
        if target in self.cores and (name, target) not in self.cuts:
            self._mail.append(lambda: self._receive(target, route, frames))

    def _receive(self, target: str, route: str, frames: Frames) -> None:
        if target in self.cores:
            self.cores[target].receive(route.encode(), frames, self.now())

    def _answer(self, name: str, route: str, frames: Frames) -> None:
        source, _, rest = route.partition(" ")
        if source not in self.everybody:
            self.replies.append((route, frames))
            self._write(f"{name} > {route} {_hex(frames)}")
            return
        channel, _, peer = rest.partition(" ")
        self._write(f"{name} > {source} answer {_hex(frames)}")
        if source in self.cores and (name, source) not in self.cuts:
            self._mail.append(lambda: self._reply(source, peer, Channel(channel), frames))

    def _reply(self, source: str, peer: str, channel: Channel, frames: Frames) -> None:
        if source in self.cores:
            self.cores[source].reply(peer, channel, frames, self.now())

    def _write_request(self, name: str, target: str, channel: Channel, frames: Frames) -> None:
        message = decode_request(frames, IDENT)
        self.asked.append((name, target, message))
        if isinstance(message, AppendEntries | PvAppend):
            entries = ", ".join(_entry(LogEntry.decode(entry)) for entry in message.entries)
            shown = (
                f"{frames[1].decode()} term {message.term}, prev {message.previous_index}/{message.previous_term}, "
                f"commit {message.commit_index} [{entries}]"
            )
        elif isinstance(message, InstallSnapshot | PvSnapshot):
            shown = (
                f"{frames[1].decode()} term {message.term}, snapshot of {message.last_index}/{message.last_term}, "
                f"bytes {message.offset} to {message.offset + len(message.chunk)} of {message.total}"
            )
        else:
            shown = str(message)
        self._write(f"{name} > {target} {channel.value} {frames[0].hex()} {shown}")

    def _write(self, line: str) -> None:
        self.trace.append(f"{self.time:.3f} {line}")


def _entry(entry: LogEntry) -> str:
    name = ("STATE", "CONFIG", "CHECKPOINT")[entry.type]
    return f"{name} of term {entry.term}"


def _hex(frames: Frames) -> str:
    return "|".join(frame.hex() for frame in frames)
