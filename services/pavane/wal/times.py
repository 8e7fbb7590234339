"""How long syncs take, so that who has a small batch knows whether to hand it to a thread (docs/specs/raft.md 13.4)."""

import time
from collections.abc import Callable
from typing import TypeVar

SLOW_S = 0.002  # of a sync: no caller waits for the next one
RECENT = 0.8  # share of what was known of syncs that one more leaves standing; a slow one counts whole
STALL_S = 0.05  # of a sync: a disk that stalled may do so again, however quick it is meanwhile
STALLED_S = 10.0  # after such a sync, in which no caller waits for any
T = TypeVar("T")


class SyncTimes:
    """What the last syncs of one volume took. Used by one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = SLOW_S  # not known yet, so no caller waits for the first ones
        self._stalled_until = clock()

    def are_below(self, seconds: float) -> bool:
        """Whether the next one should take no longer."""
        return self._seconds <= seconds and self._clock() >= self._stalled_until

    def note(self, took: float) -> None:
        """Take note of a sync of so many seconds."""
        if took > STALL_S:
            self._stalled_until = self._clock() + STALLED_S
        self._seconds = max(took if took >= SLOW_S else 0.0, RECENT * self._seconds + (1 - RECENT) * took)

    def timed(self, work: Callable[[], T]) -> T:
        """Call ``work``, which syncs, and note what it took."""
        began = time.perf_counter()
        try:
            return work()
        finally:
            self.note(time.perf_counter() - began)
