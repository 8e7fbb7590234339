"""Token buckets: how often something may happen."""

from collections import OrderedDict
from collections.abc import Hashable

BUCKETS_MAX = 1024  # sources remembered; a flood from more than that meets the limit of all of them together


class Bucket:
    """Lets through ``rate`` per second, and ``burst`` at once (one second's worth if not given)."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float | None = None) -> None:
        self._rate = rate
        self._burst = rate if burst is None else burst
        self._level = self._burst
        self._at = 0.0

    def set_rate(self, rate: float, now: float) -> None:
        """Let through another ``rate`` from now on; ``burst`` stays."""
        self.ready(now)
        self._rate = rate

    def ready(self, now: float) -> bool:
        """Say whether one more may pass."""
        if now > self._at:
            self._level = min(self._burst, self._level + (now - self._at) * self._rate)
            self._at = now
        return self._level >= 1

    def take(self, now: float) -> bool:
        """Let one pass if it may."""
        if not self.ready(now):
            return False
        self._level -= 1
        return True

    def owe(self, amount: float, now: float) -> float:
        """Let ``amount`` pass in any case; return in how many seconds it is paid for, below 0 if something is left."""
        self.ready(now)
        self._level -= amount
        return -self._level / self._rate


class SharedLimit:
    """A limit for all together and one for each source, of which the least recently seen are forgotten."""

    __slots__ = ("_all", "_each", "_sources")

    def __init__(self, rate: float, rate_each: float) -> None:
        self._all = Bucket(rate)
        self._each = rate_each
        self._sources: OrderedDict[Hashable, Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sources)

    def take(self, source: Hashable, now: float) -> bool:
        """Let one of ``source`` pass if both limits allow it."""
        bucket = self._sources.pop(source, None) or Bucket(self._each)
        self._sources[source] = bucket
        if len(self._sources) > BUCKETS_MAX:
            self._sources.popitem(last=False)
        return bucket.ready(now) and self._all.take(now) and bucket.take(now)
