"""When the appends of a server's partitions go to storage: under load in rounds that all partitions share.

A storage node does what came together in one turn of its disk, and a server hears all answers in one turn of its loop.
So appends of many clients that each wait for one cost less when those of all partitions go together.
"""

from typing import Protocol

HOLD_S = 0.02  # at most, so that a partition whose storage is slow does not hold the others
SHARED_APPENDS_MIN = 8  # under way elsewhere; with fewer the processors have time, and nobody waits for anybody


class Queue(Protocol):
    """Appends of a partition that wait."""

    def append_queued(self) -> None:
        """Send what waits, as far as it may go."""


class Rounds:
    """Which partitions have appends under way, and which wait for them. ``now`` is the time of the last input."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: dict[Queue, None] = {}
        """Partitions with appends to be looked at again, in order."""
        self._under_way: dict[Queue, tuple[float, int]] = {}

    def begin(self, partition: Queue, appends: int) -> None:
        """Note that a partition has sent appends to storage."""
        began, before = self._under_way.get(partition, (self.now, 0))
        self._under_way[partition] = began, before + appends

    def end(self, partition: Queue) -> None:
        """Note that nothing of a partition is under way any more."""
        self._under_way.pop(partition, None)

    def is_open(self, partition: Queue) -> bool:
        """Whether a partition may send now. If not, it waits."""
        since = self.now - HOLD_S
        others = sum(
            appends
            for other, (began, appends) in self._under_way.items()
            if other is not partition and since < began < self.now  # what began now is of the same round
        )
        if others < SHARED_APPENDS_MIN:
            return True
        self.waiting[partition] = None
        return False

    def next_due(self) -> float | None:
        """Return when those that wait go on, whatever is under way."""
        if not self.waiting:
            return None
        return max((began for began, _ in self._under_way.values()), default=self.now) + HOLD_S
