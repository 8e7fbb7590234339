"""Virtual time: what happens next, all of it from one seed."""

import heapq
import random
from collections.abc import Callable

LOOK_S = 0.02  # how often a condition is looked at
AT_ONCE_MAX = 100_000  # events at one moment; more is a loop


class Scheduler:
    """The heap of what happens next, and the one source of randomness. Events at one time keep their order."""

    def __init__(self, seed: int, *, begin_s: float = 0.0) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.time = begin_s
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        self._at_once = 0

    def schedule(self, at: float, what: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (at, self._planned, what))

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.schedule(self.time + seconds, what)

    def run(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def until(self, condition: Callable[[], bool], seconds: float, look_s: float = LOOK_S) -> float | None:
        """Let things happen until ``condition`` holds; returns after how long, or ``None``."""
        began, end, look_at = self.time, self.time + seconds, self.time
        while True:
            if self.time >= look_at:
                if condition():
                    return self.time - began
                look_at = self.time + look_s
            if not self._heap or self._heap[0][0] > end:
                self.time = max(self.time, end)
                return self.time - began if condition() else None
            at, _, what = heapq.heappop(self._heap)
            self._at_once = 0 if at > self.time else self._at_once + 1
            assert self._at_once < AT_ONCE_MAX, f"seed {self.seed}: time stands still"
            self.time = max(self.time, at)
            what()


class Alarm:
    """The one timer of a simulated process: ``arm`` after every turn, ``cancel`` when the process ends."""

    def __init__(self, scheduler: Scheduler, fire: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._fire = fire
        self._at: float | None = None

    def arm(self, due: float | None) -> None:
        """Fire at ``due`` at the latest; None = nothing is due."""
        if due is not None and (self._at is None or due < self._at):
            self._at = due
            self._scheduler.schedule(due, lambda: self._due(due))

    def cancel(self) -> None:
        self._at = None

    def _due(self, at: float) -> None:
        if self._at == at:  # else an earlier one took its place, or it was cancelled
            self._at = None
            self._fire()
