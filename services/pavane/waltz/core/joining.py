"""Which replicas of a partition count, and how others come to count in their place (docs/specs/waltz.md 13.10)."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence, Set

from pavane.waltz.core.copying import Copying
from pavane.waltz.core.replica import Replica, Work
from pavane.waltz.core.retention import Keeping
from pavane.waltz.state.recovery import Report
from pavane.waltz.wire import storage as s

SWITCH_S = 1.0  # that a session waits, before it opens, for those that are to count; then it opens with the former ones
PAUSE_S = 10.0  # after a session that waited in vain
NEAR_RECORDS = 1000  # a replica that joins notes at the latest after so many: else the next session copies them again


class Joining(Copying, ABC):
    """Of the replicas of a session those *count* that the metadata name; the assignment names the *wanted* ones.

    ``joined`` are wanted ones that an earlier session has filled and verified. With ``switching`` this session lets
    the wanted ones count from its opening on, if they are complete; else once it is open, not before ``switch_from``,
    it ends for a session that does.
    """

    def __init__(
        self,
        partition: int,
        nodes: Sequence[str],
        up: Iterable[str],
        keeping: Keeping,
        joined: Iterable[str],
        switch_from: float,
        *,
        switching: bool,
    ) -> None:
        super().__init__(partition, nodes, up, keeping)
        self.joined = set(joined)
        self.switching = switching
        self._draining = ""
        """Why the session ends as soon as nothing is under way."""
        self._wanted: Set[str] = frozenset(nodes)
        self._counted: Set[str] = self._wanted
        self._switch_at: float | None = None if switching else switch_from

    @abstractmethod
    def _contact(self, replica: Replica) -> None:
        """Begin with a replica."""

    def _end_pause(self) -> None:
        if self._pause_due is not None and self._pause_due <= self._now:
            self._pause_due = None
            self._poke()

    @abstractmethod
    def _judge(self) -> None:
        """Commit what a quorum has, and end if that is to be and nothing is under way."""

    @property
    def changing(self) -> bool:
        """Whether others are to count than do."""
        return self._wanted != self._counted

    @property
    def joining(self) -> dict[str, int]:
        """Nodes that are to count, and up to which transaction they are filled."""
        return {node: self._replicas[node].hwm for node in sorted(self._wanted - self._counted)}

    @property
    def failures(self) -> set[str]:
        """Nodes that failed in this session."""
        return {node for node, replica in self._replicas.items() if replica.failed}

    def _reports(self) -> Mapping[str, Report]:
        return {
            node: Report(replica.hwm, replica.plan.voting, replica.plan.lossy)
            for node, replica in self._replicas.items()
            if replica.plan is not None and not replica.failed
        }

    def uses(self, node: str) -> bool:
        """Whether a node counts, or is to."""
        return node in self._counted or node in self._wanted

    def _count(self, nodes: Iterable[str]) -> None:
        self._counted = frozenset(nodes)
        self._quorum = len(self._counted) // 2 + 1

    def _want(self, nodes: Iterable[str]) -> None:
        """Others are to count: fill them, while those that do go on."""
        self._wanted = frozenset(nodes)
        for node in self._replicas.keys() - self._wanted - self._counted:
            self._leave(self._replicas[node])
        for node in sorted(self._wanted):
            if node not in self._replicas or self._replicas[node].left:
                self._replicas[node] = Replica(node)
                self._contact(self._replicas[node])
        self._poke()

    def _leave(self, replica: Replica) -> None:
        replica.left = replica.failed = True
        replica.voting = replica.receiving = replica.waiting = False

    def _enough(self, recovered: Set[str]) -> bool:
        """Whether the session may open, as far as ``recovered`` ones hold all that is in the log."""
        if self.changing and self.switching:
            if not self._may_switch(recovered):
                return False
            for node in self._counted - self._wanted:
                self._leave(self._replicas[node])
            self._count(self._wanted)
        return len(recovered & self._counted) >= self._quorum

    def _may_switch(self, ready: Set[str]) -> bool:
        """Whether all that join are complete, and with them a majority of those that are to count."""
        return self._wanted - self._counted <= ready and 2 * len(ready & self._wanted) > len(self._wanted)

    def _consider(self, now: float) -> None:
        """End the session where the next one can let the wanted ones count."""
        if self.open and self.changing and not self.switching and (self._switch_at is None or self._switch_at <= now):
            replicas = self._replicas.items()
            if self._may_switch({node for node, one in replicas if one.voting or one.noted is not None}):
                self.switching = True
                self._draining = self._draining or "the replicas change"
                self._judge()

    def _too_late(self, now: float) -> bool:
        """Look at the time; whether this session is to open with those that count, as the others did not come."""
        if self._switch_at is None or self._switch_at > now:
            return False
        self._switch_at = None
        late = self.switching and not self.open
        if late:
            self.switching, self._switch_at = False, now + PAUSE_S
        self._consider(now)
        return late

    def _join(self, replica: Replica) -> Work:
        """Keep a replica near the end of the log until it counts; only then it gets batches."""
        while replica.node not in self._counted:
            if not self.open:
                yield None
                continue
            if replica.node not in self.joined:
                self.joined.add(replica.node)
                self._poke()  # others may have waited for it
            if replica.hwm < self.hwm:
                yield from self._catch_up(replica, self.hwm)
            elif self._wanted - self._counted <= self.joined and (
                replica.noted is None or replica.hwm - replica.noted >= NEAR_RECORDS
            ):
                yield from self._own(replica, s.SetLowWaterMark, replica.hwm, False)
                replica.noted = replica.hwm
                self._consider(self._now)
            else:
                yield None
