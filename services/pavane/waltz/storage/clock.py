"""The time of a storage node, by which the log tells how old its segments are (docs/specs/waltz.md 12.6)."""

import time
from collections.abc import Callable

SETTLE_S = 300.0  # in which a machine that has begun with a wrong time is put right: nothing is too old until then


class Clock:
    """Milliseconds since 1970. Setting the machine's time ahead does not move it: it runs as the machine's counter.

    What it cannot know is whether the time was right when the process began: other nodes are asked for that.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._began = steady()
        self._offset = wall() - self._began

    @property
    def settled(self) -> bool:
        """Whether the process has run for so long that somebody would have put the time right."""
        return self._steady() - self._began >= SETTLE_S

    def ms(self, after: int = 0) -> int:
        """Return the time, no earlier than ``after``, which this log has seen before, unless that lies ahead."""
        most = int((self._offset + self._steady()) * 1000)
        return max(min(int(self._wall() * 1000), most), min(after, most))
