"""What arrives at a process that may be stopped for a while: it waits, and is taken in its order afterwards."""

from collections import deque
from collections.abc import Callable


class Inputs:
    """A queue in front of one process; it is empty, and passes everything on at once, while the process runs."""

    def __init__(self, schedule: Callable[[float, Callable[[], None]], None], now: Callable[[], float]) -> None:
        self._schedule = schedule
        self._now = now
        self._until = 0.0
        self._waiting: deque[Callable[[], None]] = deque()

    def stop(self, until: float) -> None:
        """Stop the process until a time, at least."""
        self._until = max(self._until, until)

    def give(self, what: Callable[[], None]) -> None:
        if not self._waiting and self._now() >= self._until:
            what()
            return
        self._waiting.append(what)
        if len(self._waiting) == 1:
            self._schedule(self._until, self._go_on)

    def clear(self) -> None:
        """The process has ended: nobody takes what waited, and the next one runs."""
        self._until = 0.0
        self._waiting.clear()

    def _go_on(self) -> None:
        if self._waiting and self._now() < self._until:
            self._schedule(self._until, self._go_on)
            return
        while self._waiting:
            self._waiting.popleft()()
