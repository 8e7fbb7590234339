"""When the appends of a server's partitions go to storage: under load in rounds that all partitions share.

A storage node does what came together in one turn of its disk, and a server hears all answers in one turn of its loop.
So appends of many clients that each wait for one cost less when those of all partitions go together, and when the next
round begins with nearly all that the last one has answered: they come again one after the other.
"""

from typing import Protocol

HOLD_S = 0.02  # at most, so that a partition whose storage is slow does not hold the others
SHARED_APPENDS_MIN = 8  # under way elsewhere; with fewer the processors have time, and nobody waits for anybody
GATHER_S = 0.01  # at most, and no longer than the last round took, for those that it has answered
GATHERED = 7 / 8  # of them are enough


def earliest(*times: float | None) -> float | None:
    """Return the first of the times at which something is due, ``None`` if nothing is."""
    first = None
    for time in times:
        if time is not None and (first is None or time < first):
            first = time
    return first


class Queue(Protocol):
    """Appends of a partition that wait."""

    @property
    def queued(self) -> int:
        """How many."""

    @property
    def large(self) -> bool:
        """Whether they are so many that they go without those of other partitions."""

    def append_queued(self) -> None:
        """Send what waits, as far as it may go."""


class Rounds:
    """Which partitions have appends under way, and which wait for them. ``now`` is the time of the last input."""

    def __init__(self) -> None:
        self.now = 0.0
        self._waiting: dict[Queue, None] = {}
        """Partitions with appends to be looked at again, in order."""
        self._under_way: dict[Queue, tuple[float, int]] = {}
        self._size = 0
        """Appends of the round that is under way, or of the last one."""
        self._began = 0.0
        self._awaited = 0
        self._gathering_until = 0.0

    def wait(self, partition: Queue) -> None:
        """Look at a partition again at the end of this turn."""
        self._waiting[partition] = None

    def go_on(self) -> None:
        """Let the partitions that wait send, as far as they may."""
        if not self._waiting or self._gathering():
            return
        for partition in [*self._waiting]:
            del self._waiting[partition]
            partition.append_queued()

    def begin(self, partition: Queue, appends: int) -> None:
        """Note that a partition has sent appends to storage."""
        if not self._under_way:
            self._size, self._began = 0, self.now
        self._size += appends
        began, before = self._under_way.get(partition, (self.now, 0))
        self._under_way[partition] = began, before + appends

    def end(self, partition: Queue) -> None:
        """Note that nothing of a partition is under way any more."""
        if self._under_way.pop(partition, None) and not self._under_way and self._size >= SHARED_APPENDS_MIN:
            self._awaited = int(GATHERED * (self._size + self._queued(partition)))
            self._gathering_until = self.now + min(self.now - self._began, GATHER_S)

    def is_open(self, partition: Queue) -> bool:
        """Whether a partition may send now. If not, it waits."""
        if not self._under_way:
            if self.now >= self._gathering_until or self._queued(partition) >= self._awaited:
                return True
        else:
            since = self.now - HOLD_S
            others = sum(
                appends
                for other, (began, appends) in self._under_way.items()
                if other is not partition and since < began < self.now  # what began now is of the same round
            )
            if others < SHARED_APPENDS_MIN:
                return True
        self._waiting[partition] = None
        return False

    def next_due(self) -> float | None:
        """Return when those that wait go on, whatever is under way."""
        if not self._waiting:
            return None
        if not self._under_way:
            return self._gathering_until
        return max(began for began, _ in self._under_way.values()) + HOLD_S

    def _gathering(self) -> bool:
        """Whether nobody may send yet: the usual case, so it is found before any partition is looked at."""
        if self._under_way or self.now >= self._gathering_until:
            return False
        waiting = self._waiting
        return sum([one.queued for one in waiting]) < self._awaited and not any([one.large for one in waiting])

    def _queued(self, partition: Queue) -> int:
        return sum(one.queued for one in {partition: None, **self._waiting})
