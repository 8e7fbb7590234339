"""How much may wait to be exported: spans differ a hundredfold in size, so they are not only counted."""

import threading
from collections.abc import Iterable, Sized
from typing import Protocol

from pavane.runtime.forks import Process

SPANS_MAX = 8192  # a few seconds of a busy pod; beyond, spans are dropped, never the work they describe
PARTS_LEAST = 8  # that a span counts for
PARTS_MAX = SPANS_MAX * PARTS_LEAST  # of half a kilobyte at most: 32 MB


class Measurable(Protocol):
    """A span that has ended, as far as its size goes."""

    @property
    def attributes(self) -> Sized | None:
        """What it tells."""

    @property
    def links(self) -> Sized:
        """Other spans that it names: that of a batch names one for each message."""

    @property
    def events(self) -> Sized:
        """What happened meanwhile."""


class Room:
    """Keeps count of what waits. Used by any thread; a forked process begins with nothing, as the SDK's queue does."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a span that the collector ends may come while this thread holds it
        self._left = PARTS_MAX
        self._process = Process()  # last: another thread that sees it finds the rest

    def take(self, span: Measurable) -> bool:
        """Whether there is room for ``span``, which then waits."""
        if not self._process.is_this:
            self._begin()
        parts = _parts(span)
        with self._lock:
            if parts > self._left:
                return False
            self._left -= parts
        return True

    def give_back(self, spans: Iterable[Measurable]) -> None:
        """They do not wait any more."""
        parts = sum(map(_parts, spans))
        with self._lock:
            self._left = min(PARTS_MAX, self._left + parts)


def _parts(span: Measurable) -> int:
    """A link has half a kilobyte, and two attributes have no more."""
    return max(PARTS_LEAST, 1 + len(span.attributes or ()) // 2 + len(span.links) + len(span.events))
