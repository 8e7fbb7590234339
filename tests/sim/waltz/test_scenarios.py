"""Single stories of two owners, told step by step; sessions and nodes are the product's (docs/specs/waltz.md 10).

What the simulation leaves to chance is chosen here: which message arrives when. A connection between the two ends may
outlive a storage node that is started again, as behind a proxy or with the original's clients.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from pavane.wal.memory import MemoryDisk
from pavane.waltz.core import outputs as o
from pavane.waltz.core.node import Node
from pavane.waltz.core.session import Session
from pavane.waltz.storage import Directory
from pavane.waltz.wire import blobs
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from tests.sim.waltz.world import KEY, NODES, PARTITION


class Story:
    """Three storage nodes and the metadata of one partition."""

    def __init__(self, *, fences: bool) -> None:
        self._fences = fences
        self._disks = {name: MemoryDisk() for name in NODES}
        self.nodes: dict[str, Node] = {}
        self.meta: blobs.PartitionMetadata | None = None
        self._version = -1
        for name in NODES:
            self.restart(name)

    def restart(self, name: str) -> None:
        """Start the process of a node, again with what its disk has."""
        directory = Directory(self._disks[name].folder(), KEY, 1)
        directory.assign([PARTITION])
        self.nodes[name] = Node(directory, disk_reserve_bytes=0, fences=self._fences)

    def answer(self, send: o.Send) -> Any:
        """Let a node take a message, and return what it answers."""
        node = self.nodes[send.node]
        node.arrive(send.message.head)
        (answer,) = node.execute([send.message])
        return answer

    def go_on(
        self, session: Session, outputs: list[o.Output], held: Callable[[o.Send], bool] = lambda _: False
    ) -> tuple[list[o.Output], list[o.Send]]:
        """Deliver everything but what is ``held``; return what the session told its owner, and what was held."""
        told: list[o.Output] = []
        kept: list[o.Send] = []
        todo = deque(outputs)
        while todo:
            match todo.popleft():
                case o.ReadMeta():
                    todo += session.metadata(0.0, self.meta, self._version)
                case o.WriteMeta() as write:
                    if done := write.version == self._version:
                        self.meta, self._version = write.meta, self._version + 1
                    todo += session.written(0.0, done=done, version=self._version)
                case o.Send() as send:
                    if held(send):
                        kept.append(send)
                    else:
                        todo += session.response(0.0, send.node, self.answer(send))
                case other:
                    told.append(other)
        return told, kept


def session_of(generation: int, attempt: int = 0) -> Session:
    return Session(PARTITION, generation, NODES, NODES, attempt=attempt)


@pytest.mark.parametrize("fences", [True, False], ids=["durable fence", "without it"])
def test_a_node_that_starts_again_in_a_recovery_does_not_obey_the_old_owner(fences: bool) -> None:
    story = Story(fences=fences)
    old = session_of(1)
    told, _ = story.go_on(old, old.start(0.0))
    assert told == [o.Opened(0, -1)]

    record = s.Record.of(0, ReqId(1, 1, PARTITION, 1), 0, b"data")
    told, late = story.go_on(old, old.append(0.0, [record]), lambda send: send.node != "n0")
    assert told == []

    # Another owner finds the record on one node of three: nothing that was committed, so it is cut.
    new = session_of(2)
    unstamped = {"n1", "n2"}
    told, stamps = story.go_on(
        new, new.start(0.0), lambda send: isinstance(send.message, s.SetLowWaterMark) and send.node in unstamped
    )
    assert told == []
    assert {send.node for send in stamps} == unstamped

    # A node that has promised to obey the new owner starts again; then what the old one has sent it arrives.
    story.restart("n1")
    message = next(send for send in late if send.node == "n1")
    told = old.response(0.0, "n1", story.answer(message))
    committed = o.Committed(0) in told

    # The new owner goes on, in a second attempt if one of its messages is refused.
    told = []
    for send in stamps:
        told += story.go_on(new, new.response(0.0, send.node, story.answer(send)))[0]
    if not new.open:
        new = session_of(2, attempt=1)
        told += story.go_on(new, new.start(0.0))[0]
    assert new.open, told
    lost = committed and new.hwm < 0
    assert lost is not fences
