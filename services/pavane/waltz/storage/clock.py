"""The time of a storage node, by which the log tells how old its segments are (docs/specs/waltz.md 12.6)."""

import time
from collections.abc import Callable


class Clock:
    """Milliseconds since 1970. Setting the machine's time ahead does not move it: it runs as the machine's counter.

    What it cannot know is whether the time was right when the process began: other nodes are asked for that.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._offset = wall() - steady()

    def ms(self, after: int = 0) -> int:
        """Return the time, no earlier than ``after``, which this log has seen before, unless that lies ahead."""
        most = int((self._offset + self._steady()) * 1000)
        return max(min(int(self._wall() * 1000), most), min(after, most))
