"""The watchers of an event, found by its key instead of by asking every watcher (docs/specs/raft.md 12.6)."""

from collections import Counter
from collections.abc import Hashable, Iterator
from enum import Enum, auto
from typing import Generic, TypeVar

from pavane.raft.machines.commands import ROOT, parent_of, prefix_range, span
from pavane.raft.machines.history import Event, Happened, Scope, Watch

WatcherT = TypeVar("WatcherT", bound=Hashable)


class _Form(Enum):
    KEY = auto()
    PREFIX = auto()
    RANGE = auto()
    NODE = auto()
    SUBTREE = auto()


_Place = tuple[_Form, bytes, bytes]  # start and end; of all but a range the end is empty


class Interests(Generic[WatcherT]):
    """Watchers by the key, prefix, node or subtree that they watch; only ranges of another form are all compared.

    Those of one place are kept in order, so that the order of messages does not depend on where objects lie in memory.
    """

    def __init__(self) -> None:
        self._watchers: dict[_Place, dict[WatcherT, None]] = {}
        self._prefix_lengths = Counter[int]()
        self._ranges: dict[_Place, None] = {}
        self._subtrees = 0

    def add(self, watch: Watch, watcher: WatcherT) -> None:
        """From now on ``of`` finds ``watcher``, which is not here yet."""
        place = _place(watch)
        watchers = self._watchers.get(place)
        if watchers is None:
            watchers = self._watchers[place] = {}
            self._count(place, 1)
        watchers[watcher] = None

    def remove(self, watch: Watch, watcher: WatcherT) -> None:
        """Forget ``watcher``, which was added for ``watch``."""
        place = _place(watch)
        watchers = self._watchers[place]
        del watchers[watcher]
        if not watchers:
            del self._watchers[place]
            self._count(place, -1)

    def of(self, event: Event) -> Iterator[WatcherT]:
        """Yield all watchers of ``event``, and some that watch its node but not for this kind of event."""
        for place in self._places(event):
            yield from self._watchers.get(place, ())

    def _places(self, event: Event) -> Iterator[_Place]:
        key = event.key
        if event.kind < Happened.CREATED:
            yield _Form.KEY, key, b""
            for length in self._prefix_lengths:
                if length <= len(key):
                    yield _Form.PREFIX, key[:length], b""
            for place in self._ranges:
                start, end = span(place[1], place[2])
                if start <= key and (end is None or key < end):
                    yield place
            return
        yield _Form.NODE, key, b""
        if self._subtrees:
            yield _Form.SUBTREE, key, b""
            while key != ROOT:
                key = parent_of(key)
                yield _Form.SUBTREE, key, b""

    def _count(self, place: _Place, change: int) -> None:
        """Take note of the first watcher at a place, or of the end of the last one."""
        match place[0]:
            case _Form.PREFIX:
                length = len(place[1])
                self._prefix_lengths[length] += change
                if not self._prefix_lengths[length]:
                    del self._prefix_lengths[length]
            case _Form.RANGE if change > 0:
                self._ranges[place] = None
            case _Form.RANGE:
                del self._ranges[place]
            case _Form.SUBTREE:
                self._subtrees += change


def _place(watch: Watch) -> _Place:
    match watch.scope:
        case Scope.SUBTREE:
            return _Form.SUBTREE, watch.start, b""
        case Scope.KEYS if not watch.end:
            return _Form.KEY, watch.start, b""
        case Scope.KEYS if watch.end == prefix_range(watch.start)[1]:
            return _Form.PREFIX, watch.start, b""
        case Scope.KEYS:
            return _Form.RANGE, watch.start, watch.end
        case _:
            return _Form.NODE, watch.start, b""
