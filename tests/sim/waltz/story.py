"""A partition whose messages are delivered as a test tells it: sessions, nodes and their files are the product's."""

from collections import deque
from collections.abc import Callable
from typing import Any

from pavane.waltz.core import outputs as o
from pavane.waltz.core.node import Node
from pavane.waltz.core.session import StoreSession
from pavane.waltz.storage import Directory
from pavane.waltz.storage.directory import PartitionFiles
from pavane.waltz.wire import blobs
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from tests.services.memory_disk import MemoryDisk
from tests.sim.waltz.product import Unfenced
from tests.sim.waltz.world import KEY, NODES, PARTITION


class Story:
    """Three storage nodes and the metadata of one partition."""

    def __init__(self, *, fences: bool = True) -> None:
        self._node = Node if fences else Unfenced
        self.disks = {name: MemoryDisk() for name in NODES}
        self.nodes: dict[str, Node] = {}
        self.directories: dict[str, Directory] = {}
        self.meta: blobs.PartitionMetadata | None = None
        self.held_writes: list[o.WriteMeta] | None = None
        """Where metadata writes wait, if they are to."""
        self.version = -1
        for name in NODES:
            self.restart(name)

    def restart(self, name: str) -> None:
        """Start the process of a node, again with what its disk has."""
        directory = Directory(self.disks[name].folder(), KEY, 1)
        directory.assign([PARTITION])
        self.directories[name] = directory
        self.nodes[name] = self._node(directory, disk_reserve_bytes=0)

    def wipe(self, name: str) -> None:
        """Give a node an empty disk."""
        self.disks[name] = MemoryDisk()
        self.restart(name)

    def files(self, name: str) -> PartitionFiles:
        """What a node has of the partition."""
        found = self.directories[name].partition(PARTITION)
        assert found is not None
        return found

    def answer(self, send: o.Send) -> Any:
        """Let a node take a message, and return what it answers."""
        node = self.nodes[send.node]
        node.arrive(send.message.head)
        (answer,) = node.execute([send.message])
        return answer

    def write(self, session: StoreSession, write: o.WriteMeta) -> list[o.Output]:
        """Carry a metadata write out, if nobody has written meanwhile."""
        if done := write.version == self.version:
            self.meta, self.version = write.meta, self.version + 1
        return session.written(0.0, done=done, version=self.version)

    def go_on(
        self, session: StoreSession, outputs: list[o.Output], held: Callable[[o.Send], bool] = lambda _: False
    ) -> tuple[list[o.Output], list[o.Send]]:
        """Deliver everything but what is ``held``; return what the session told its owner, and what was held."""
        told: list[o.Output] = []
        kept: list[o.Send] = []
        todo = deque(outputs)
        while todo:
            match todo.popleft():
                case o.ReadMeta():
                    todo += session.metadata(0.0, self.meta, self.version)
                case o.WriteMeta() as write if self.held_writes is not None:
                    self.held_writes.append(write)
                case o.WriteMeta() as write:
                    todo += self.write(session, write)
                case o.Send() as send:
                    if held(send):
                        kept.append(send)
                    else:
                        todo += session.response(0.0, send.node, self.answer(send))
                case other:
                    told.append(other)
        return told, kept


def session_of(
    generation: int, attempt: int = 0, up: tuple[str, ...] = NODES, nodes: tuple[str, ...] = NODES
) -> StoreSession:
    return StoreSession(PARTITION, generation, nodes, up, attempt=attempt)


def record(txid: int, data: bytes = b"data") -> s.Record:
    return s.Record.of(txid, ReqId(1, 1, PARTITION, txid), 0, data)
