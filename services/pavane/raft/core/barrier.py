"""Proof of leadership for reads, without clocks (docs/specs/raft.md 10.5)."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pavane.raft.core.node import Node
from pavane.raft.core.outputs import BarrierDone
from pavane.raft.core.replication import Replication
from pavane.raft.state.roles import Role

BARRIERS_MAX = 10_000  # reads waiting for one


@dataclass(slots=True)
class _Barrier:
    """A read that waits: for answers to messages sent after number ``sequence``, then for ``index`` to be applied."""

    sequence: int
    since: float
    then: Callable[[bool], None]
    index: int | None = None


class Barriers:
    """Reads that wait, in their order."""

    def __init__(self, node: Node, replication: Replication) -> None:
        self._node = node
        self._waiting: deque[_Barrier] = deque()
        self._replication = replication

    @property
    def full(self) -> bool:
        """Whether no further read is taken."""
        return len(self._waiting) >= BARRIERS_MAX

    def wanted_sequence(self) -> int:
        """Return the number after which the newest barrier needs a message; -1 if nobody waits."""
        return self._waiting[-1].sequence if self._waiting else -1

    def wait(self, then: Callable[[bool], None]) -> None:
        """Call ``then(True)`` when a read that arrived now may be served, ``then(False)`` if we stop leading."""
        self._waiting.append(_Barrier(self._replication.sequence, self._node.now.mono, then))
        self.progress()

    def progress(self) -> None:
        """Serve what may be served. Called after answers, commits and applied entries."""
        node = self._node
        while self._waiting and node.role == Role.LEADER and node.exact:
            barrier = self._waiting[0]
            if barrier.index is None:
                barrier.index = node.commit
            if not self._replication.confirmed(barrier.sequence) or node.applied < barrier.index:
                return
            self._end(ok=True)

    def fail(self) -> None:
        """End all of them: we no longer lead."""
        while self._waiting:
            self._end(ok=False)

    def _end(self, *, ok: bool) -> None:
        barrier = self._waiting.popleft()
        self._node.event(BarrierDone(ok, self._node.now.mono - barrier.since))
        barrier.then(ok)
