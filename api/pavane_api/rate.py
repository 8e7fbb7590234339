"""A token bucket."""

import time
from collections.abc import Callable


class Rate:
    """Lets ``per_second`` things pass on average and as many at once as come in one second."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._available = per_second
        self._seen = clock()

    def take(self) -> bool:
        """Return whether one more may pass now."""
        now = self._clock()
        self._available = min(self._per_second, self._available + (now - self._seen) * self._per_second)
        self._seen = now
        if self._available < 1:
            return False
        self._available -= 1
        return True
