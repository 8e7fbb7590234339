"""When to take a snapshot, and what follows once its file stands (docs/specs/raft.md 9.1, P6)."""

from collections.abc import Callable
from dataclasses import dataclass

from pavane.raft.core.node import NewestSnapshot, Node
from pavane.raft.core.outputs import SnapshotChanged
from pavane.raft.state.commands import SnapshotSave
from pavane.raft.wire.reqid import reqid_second

PRUNE_STEPS = 10_000  # entries looked at per question: the next one goes on
PAUSE_S = 10.0  # between two: at most half of what is written is snapshots, whatever the rate


@dataclass(frozen=True, slots=True)
class _Taking:
    """The snapshot being saved."""

    index: int
    term: int
    since: float
    applied_bytes: int


class Snapshots:
    """Keeps the log short. ``automatic`` says whether the peer takes snapshots by itself."""

    def __init__(self, node: Node, automatic: Callable[[], bool]) -> None:
        self._node = node
        self._automatic = automatic
        self.entries = node.config.snapshot_entries
        self.log_retention = node.config.log_retention
        self._taking: _Taking | None = None
        self._covered_bytes = 0  # of what was applied since the start, how much the newest snapshot covers
        self._not_before = node.now.mono
        self._old = 0  # entries up to here have request ids that nobody may send any more

    def consider(self) -> None:
        """Have one taken if it is time; to be called when the machine is idle, or more of the log is durable."""
        node = self._node
        if self._taking is not None or node.machine_busy or node.applied > node.durable or not self._automatic():
            return
        before = node.snapshot or NewestSnapshot(0, 0, 0)
        logged_bytes = node.applied_bytes - self._covered_bytes
        by_count = node.applied - before.index >= self.entries and logged_bytes >= before.data_bytes
        if (by_count and node.now.mono >= self._not_before) or logged_bytes >= node.config.snapshot_bytes:
            self._take(node.applied)

    def offer(self, index: int, term: int, *, mixed: bool) -> bool:
        """Have saved what an application made of the entries up to ``index``, of ``term``; false if it is too early.

        Raises ``ValueError`` that says why there can be no such snapshot.
        """
        node = self._node
        before = node.snapshot.index if node.snapshot is not None else 0
        if index <= before:
            raise ValueError(f"there is a snapshot up to {before} already, this one ends at {index}")
        if self._taking is not None or index > min(self.prune_index(mixed=mixed), node.durable):
            return False
        if node.log.term_at(index) != term:
            raise ValueError(f"entry {index} has term {node.log.term_at(index)} here, not {term}")
        self._take(index)
        return True

    def _take(self, index: int) -> None:
        node = self._node
        self._taking = _Taking(index, node.freeze(index), node.now.mono, node.applied_bytes)

    def prune_index(self, *, mixed: bool) -> int:
        """Return up to where the log may be cut; frame 10 of ``%``.

        Our snapshots keep the request ids. One that an original member gets does not, so with such members entries stay
        until their ids are too old to be sent again.
        """
        node = self._node
        if not mixed:
            return node.applied
        self._old = max(self._old, node.log.first - 1)
        expired = node.now.wall_s - node.config.request_id_ttl_s
        for _ in range(PRUNE_STEPS):
            if self._old >= node.applied or reqid_second(node.log.reqid_at(self._old + 1)) >= expired:
                break
            self._old += 1
        return self._old

    def saved(self, index: int, data_bytes: int) -> None:
        """The file of the snapshot of ``index`` stands: record it, then let the log in front of it go.

        What the snapshot before it needs stays, for one that rots is replaced by the other.
        """
        node, taking = self._node, self._taking
        if taking is None or taking.index != index:
            return
        self._taking = None
        self._not_before = node.now.mono + PAUSE_S
        self._covered_bytes = taking.applied_bytes
        before = node.snapshot.index if node.snapshot is not None else 0
        if before >= index:
            return  # a leader's newer one was installed meanwhile
        node.snapshot = NewestSnapshot(index, taking.term, data_bytes)
        node.store(lambda ticket: SnapshotSave(ticket, index, taking.term))
        node.compact(min(before, index - self.log_retention) + 1)
        node.event(SnapshotChanged("taken", index, node.now.mono - taking.since))
