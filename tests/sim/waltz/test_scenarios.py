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
from pavane.waltz.core.session import SLOW_BATCHES, Session
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
        self.held_writes: list[o.WriteMeta] | None = None
        """Where metadata writes wait, if they are to."""
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

    def write(self, session: Session, write: o.WriteMeta) -> list[o.Output]:
        """Carry a metadata write out, if nobody has written meanwhile."""
        if done := write.version == self._version:
            self.meta, self._version = write.meta, self._version + 1
        return session.written(0.0, done=done, version=self._version)

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


def session_of(generation: int, attempt: int = 0, up: tuple[str, ...] = NODES) -> Session:
    return Session(PARTITION, generation, NODES, up, attempt=attempt)


def record(txid: int) -> s.Record:
    return s.Record.of(txid, ReqId(1, 1, PARTITION, txid), 0, b"data")


@pytest.mark.parametrize("fences", [True, False], ids=["durable fence", "without it"])
def test_a_node_that_starts_again_in_a_recovery_does_not_obey_the_old_owner(fences: bool) -> None:
    story = Story(fences=fences)
    old = session_of(1)
    told, _ = story.go_on(old, old.start(0.0))
    assert told == [o.Opened(0, -1)]

    told, late = story.go_on(old, old.append(0.0, [record(0)]), lambda send: send.node != "n0")
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


def opened_by_two() -> tuple[Story, Session]:
    """A session of n0 and n1, of a partition that has been open before."""
    story = Story(fences=True)
    first = session_of(1)
    story.go_on(first, first.start(0.0))
    session = session_of(2, up=("n0", "n1"))
    told, _ = story.go_on(session, session.start(0.0))
    assert told == [o.Opened(1, -1)]
    return story, session


def commits_without_n1(story: Story, session: Session, txid: int) -> bool:
    told, late = story.go_on(session, session.append(0.0, [record(txid)]), lambda send: send.node == "n1")
    committed = told == [o.Committed(txid)]
    for send in late:
        told += story.go_on(session, session.response(0.0, send.node, story.answer(send)))[0]
    assert told == [o.Committed(txid)]
    return committed


def test_a_node_whose_connection_ends_before_it_votes_joins_the_session_again() -> None:
    story, session = opened_by_two()
    story.held_writes = []
    story.go_on(session, session.node_up(0.0, "n2"))  # it recovers; the metadata do not say so yet
    told, _ = story.go_on(session, session.node_down(0.0, "n2"))
    told += story.go_on(session, session.node_up(0.0, "n2"))[0]
    assert told == []
    assert not commits_without_n1(story, session, 0)

    # The first write is from before it was away. Another owner may have begun since, and n2 may have forgotten it.
    [early] = story.held_writes
    story.go_on(session, story.write(session, early))
    assert not commits_without_n1(story, session, 1)
    [_, again] = story.held_writes
    story.go_on(session, story.write(session, again))
    assert commits_without_n1(story, session, 2)


def test_a_node_that_refuses_at_first_is_asked_again_by_the_session() -> None:
    story, session = opened_by_two()

    def refused(send: o.Send) -> bool:
        return send.node == "n2"

    _, [question] = story.go_on(session, session.node_up(0.0, "n2"), refused)
    refusal = s.Failure(question.message.head, "partition 0 is damaged from transaction 7 on")
    assert story.go_on(session, session.response(0.0, "n2", refusal))[0] == []
    assert not commits_without_n1(story, session, 0)
    due = session.next_due()
    assert due is not None
    story.go_on(session, session.tick(due))
    assert commits_without_n1(story, session, 1)


def test_a_vote_is_void_when_the_node_that_gave_it_has_to_begin_anew() -> None:
    """A voter falls behind, votes on what is undecided, and comes back: it has cut that record meanwhile."""
    story, session = opened_by_two()
    story.go_on(session, session.node_up(0.0, "n2"))
    theirs: list[o.Send] = []

    def append(txid: int, *held: str) -> dict[str, o.Send]:
        told, late = story.go_on(session, session.append(0.0, [record(txid)]), lambda send: send.node in held)
        assert told == ([] if "n1" in held else [o.Committed(txid)])
        theirs.extend(send for send in late if send.node == "n2")
        return {send.node: send for send in late}

    def answered(send: o.Send) -> list[o.Output]:
        return story.go_on(session, session.response(0.0, send.node, story.answer(send)))[0]

    for txid in range(SLOW_BATCHES):
        append(txid, "n2")
    last = append(SLOW_BATCHES, "n1", "n2")
    undecided = append(SLOW_BATCHES + 1, *NODES)
    append(SLOW_BATCHES + 2, *NODES)
    assert answered(last["n1"]) == [o.Committed(SLOW_BATCHES)]  # from here on n2 copies, and has no vote on new ones
    for send in theirs[:-1]:
        assert answered(send) == []  # its vote on the undecided one is the last of these

    told, _ = story.go_on(session, session.node_down(0.0, "n2"))
    told += story.go_on(session, session.node_up(0.0, "n2"))[0]
    told += answered(undecided["n0"])
    assert told == []
    assert answered(undecided["n1"]) == [o.Committed(SLOW_BATCHES + 1)]
