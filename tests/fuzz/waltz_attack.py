"""Bytes at the three ports of a log: decoded, and given to the part that would take them (waltz.md 2, 21)."""

import random
from collections.abc import Sequence
from typing import Any

from pavane.waltz.core import outputs as o
from pavane.waltz.core.admin import Admin
from pavane.waltz.core.cluster import ClusterView
from pavane.waltz.core.node import Node
from pavane.waltz.core.server import ServerCore
from pavane.waltz.storage import Directory
from pavane.waltz.wire import blobs
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import NULL_LOCKS, ChecksumError
from pavane.waltz.wire.frame import (
    ADMIN_CLIENT,
    ADMIN_SERVER,
    LOG_CLIENT,
    LOG_SERVER,
    STORAGE_CLIENT,
    STORAGE_SERVER,
    Channel,
    Side,
)
from pavane.wire import LocalProtocolError, ProtocolError, RemoteProtocolError
from tests.fuzz.choices import Choices
from tests.services.memory_disk import MemoryDisk
from tests.services.waltz.running import KEY
from tests.services.waltz.test_waltz_bad_input import client_messages, storage_messages

PARTITIONS = 2
FRAMES_MAX = 12
VERSIONS = 6


def attack_server(data: bytes) -> None:
    """Frames of several connections at a server that owns a partition on one storage node."""
    choices = Choices(data)
    owner = _Owner()
    channels = {}
    for number in (1, 2):
        version = choices.number(VERSIONS)
        channels[number] = _greeted(LOG_SERVER, LOG_CLIENT, version)
        owner.core.connected(number, version)
    for _ in range(FRAMES_MAX):
        if choices.over or not channels:
            break
        number = choices.pick(sorted(channels))
        channel = channels[number]
        for message in _heard(channel, LOG_CLIENT, client_messages, choices):
            if isinstance(message, ProtocolError):
                if isinstance(message, ChecksumError) and channel.version == VERSIONS - 1:
                    if message.reqid is not None:
                        owner.core.bad_checksum(number, message.reqid, message.kind)
                    continue
                if isinstance(message, RemoteProtocolError) and message.reason == NULL_LOCKS:
                    continue
                owner.core.disconnected(owner.now, number)
                channels.pop(number, None)
                break
            owner.core.message(owner.now, number, message)
        owner.carry_out(channels)


def attack_storage(data: bytes) -> None:
    """Frames at the storage port of a node."""
    choices = Choices(data)
    node = Node(_directory(), disk_reserve_bytes=0)
    channel = _greeted(STORAGE_SERVER, STORAGE_CLIENT, 0)
    for _ in range(FRAMES_MAX):
        if choices.over:
            return
        for message in _heard(channel, STORAGE_CLIENT, storage_messages, choices):
            if isinstance(message, ProtocolError):
                return
            if not isinstance(message, s.Open):
                node.arrive(message.head)
                for answer in node.execute([message]):
                    channel.encode(answer)


def attack_admin(data: bytes) -> None:
    """Frames at the admin port of a node."""
    choices = Choices(data)
    admin = Admin(_directory())
    channel = _greeted(ADMIN_SERVER, ADMIN_CLIENT, 0)
    for _ in range(FRAMES_MAX):
        if choices.over:
            return
        for message in _heard(channel, ADMIN_CLIENT, _admin_messages, choices):
            if isinstance(message, ProtocolError):
                return
            if not isinstance(message, s.Open):
                channel.encode(admin.execute(message))


class _Owner:
    """A server whose storage and metadata answer at once."""

    def __init__(self) -> None:
        self.now = 1.0
        self.core = ServerCore(1, "ledger", PARTITIONS)
        self._node = Node(_directory(), disk_reserve_bytes=0)
        self._meta: blobs.PartitionMetadata | None = None
        self._version = -1
        owned = (blobs.ServerPartitions(1, (blobs.AssignedPartition(0, 1),)),)
        view = ClusterView(
            blobs.PartitionAssignment(1, PARTITIONS, owned),
            0,
            1,
            {1: blobs.ServerDescriptor(1, "h", 1)},
            storage={0: ("n0",)},
        )
        self.core.storage_up(self.now, "n0")
        self.core.set_writable(self.now, writable=True)
        self.core.set_view(self.now, view)
        self.carry_out({})
        assert self.core.owned[0].healthy

    def carry_out(self, channels: dict[int, Channel]) -> None:
        """Do what the core asks for; whatever it answers can be said on the connection."""
        self.now += 0.001
        while outputs := self.core.outputs():
            for output in outputs:
                self._execute(output, channels)
        self.core.handle_timer(self.now)

    def _execute(self, output: o.Output, channels: dict[int, Channel]) -> None:
        match output:
            case o.ReadMeta():
                self.core.metadata(self.now, output.partition, output.attempt, self._meta, self._version)
            case o.WriteMeta():
                self._meta, self._version = output.meta, self._version + 1
                self.core.written(self.now, output.partition, output.attempt, done=True, version=self._version)
            case o.Send():
                self._node.arrive(output.message.head)
                for answer in self._node.execute([output.message]):
                    self.core.storage_response(self.now, "n0", answer)
            case o.Prefer():
                output.answer(True)
            case o.NextClientId():
                output.answer(7)
            case o.Reply() if output.connection in channels:
                channels[output.connection].encode(output.message)
            case o.Hangup():
                self.core.disconnected(self.now, output.connection)
                channels.pop(output.connection, None)


def _directory() -> Directory:
    directory = Directory(MemoryDisk().folder(), KEY, PARTITIONS)
    directory.assign(range(PARTITIONS))
    return directory


def _greeted(side: Side, peer: Side, version: int) -> Channel:
    channel = Channel(side, (version,))
    channel.receive(Channel(peer, (version,)).hello())
    assert channel.message() is None
    assert channel.version == version
    return channel


def _heard(channel: Channel, peer: Side, messages: Any, choices: Choices) -> Sequence[Any]:
    """What a channel makes of one frame: of bytes alone, or of a message with some of its bytes changed."""
    version = channel.version or 0
    if choices.number(2):
        body = choices.bytes(120)
    else:
        rng = random.Random(choices.number(256) * 256 + choices.number(256))
        try:
            body = bytes(peer.sends[version].encode(rng.choice(messages(rng))))
        except LocalProtocolError:  # this version has no such message
            return []
        patch, at = choices.bytes(4), choices.number(len(body))
        body = body[:at] + patch + body[at + len(patch) :]
    channel.receive(bytes((peer.magic,)) + version.to_bytes(2, "big") + len(body).to_bytes(4, "big") + body)
    found: list[Any] = []
    try:
        while (message := channel.message()) is not None:
            found.append(message)
    except ProtocolError as error:
        found.append(error)
    return found


def _admin_messages(rng: random.Random) -> list[object]:
    partition = rng.choice((0, 1, 2, -1))
    txid = rng.choice((-(1 << 63), -1, 0, 1, (1 << 63) - 1))
    head, of_one = s.Head(-1, 1, -1), s.Head(-1, 1, partition)
    return [
        s.SetAvailable(head, (partition,), rng.random() < 0.5),
        s.SetAssigned(head, (partition, 0), rng.random() < 0.5, rng.random() < 0.5),
        s.RecordListRequest(of_one, txid, rng.choice((-1, 0, 5, 1 << 30))),
        s.AdminSessionInfoRequest(of_one),
        s.MetricsRequest(head),
        s.PartitionStatusRequest(head),
    ]
