"""Calls to be made at a time, for a machine without a clock."""

import heapq
from collections.abc import Callable

PRUNED_FROM = 256  # below, cancelled calls cost less than looking for them


class Timer:
    """A planned call, which ``cancel`` takes back."""

    __slots__ = ("at", "call")

    def __init__(self, at: float, call: Callable[[], None] | None) -> None:
        self.at = at
        self.call = call

    def cancel(self) -> None:
        """Forget the call."""
        self.call = None


class Timers:
    """Planned calls in the order of their time, then of their planning."""

    __slots__ = ("_heap", "_planned", "_pruned_at")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._planned = 0
        self._pruned_at = PRUNED_FROM

    def __len__(self) -> int:
        return len(self._heap)

    def plan(self, at: float, call: Callable[[], None]) -> Timer:
        """Plan ``call`` for time ``at``."""
        if len(self._heap) >= self._pruned_at:
            # Else whoever makes us plan anew all the time fills the memory with what was cancelled.
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapq.heapify(self._heap)
            self._pruned_at = max(PRUNED_FROM, 2 * len(self._heap))
        timer = Timer(at, call)
        self._planned += 1
        heapq.heappush(self._heap, (at, self._planned, timer))
        return timer

    def next(self) -> float | None:
        """Return when the next call is due, ``None`` if there is none."""
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run(self, now: float) -> None:
        """Make every call that is due at ``now``; calls planned meanwhile wait for the next run."""
        last = self._planned
        later = []
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if entry[1] > last:
                later.append(entry)
            elif (call := entry[2].call) is not None:
                entry[2].call = None
                call()
        for entry in later:
            heapq.heappush(self._heap, entry)

    def clear(self) -> None:
        """Forget every call."""
        for _, _, timer in self._heap:
            timer.cancel()
        self._heap.clear()
