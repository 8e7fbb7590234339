"""The last events, part of the replicated state, and the cursors of watchers into it (docs/specs/raft.md 12.6)."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from pavane.raft.errors import Code
from pavane.raft.machines import limits
from pavane.raft.machines.commands import ROOT, Failed, span
from pavane.raft.machines.decoding import bad, path_of, range_start, uint
from pavane.raft.wire.msgpack import Value


class Happened(IntEnum):
    """Kind of an event. 16 and up are of the tree."""

    PUT = 1
    DELETE = 2
    EXPIRED = 3  # deleted with its lease
    CREATED = 17
    DATA = 18
    REMOVED = 19
    CHILDREN = 20


class Event(NamedTuple):
    """One change. ``data`` is nil where nothing was written; ``mark`` is a key's lease, a node's cversion.

    ``version`` is that of what was written or, of what is gone, the last.
    """

    kind: int
    key: bytes
    data: bytes | None
    version: int
    mark: int

    @property
    def size(self) -> int:
        """Bytes that it counts for."""
        return len(self.key) + len(self.data or b"") + limits.EVENT_BYTES


class History:
    """All events since ``floor``, by revision ascending; older ones are forgotten when there are too many.

    ``floor`` is the first revision of which every event is still here.
    """

    def __init__(self, revisions: Iterable[tuple[int, tuple[Event, ...]]] = (), floor: int = 1) -> None:
        self._revisions: list[tuple[int, tuple[Event, ...]]] = []  # a deque is slow in its middle
        self._start = 0  # what lies before it is forgotten
        self._events = 0
        self._bytes = 0
        self.floor = floor
        for revision, events in revisions:
            self.add(revision, events)

    def __len__(self) -> int:
        return len(self._revisions) - self._start

    def __iter__(self) -> Iterator[tuple[int, tuple[Event, ...]]]:
        return islice(self._revisions, self._start, None)

    def add(self, revision: int, events: tuple[Event, ...]) -> None:
        """Remember what the command at ``revision`` did; at least one event."""
        self._revisions.append((revision, events))
        self._count(events, 1)
        while self._events > limits.HISTORY_EVENTS_MAX or self._bytes > limits.HISTORY_BYTES_MAX:
            oldest, forgotten = self._revisions[self._start]
            self._revisions[self._start] = _FORGOTTEN
            self._start += 1
            self._count(forgotten, -1)
            self.floor = oldest + 1
        if self._start > len(self._revisions) // 2:
            del self._revisions[: self._start]
            self._start = 0

    def since(self, revision: int) -> Iterator[tuple[int, tuple[Event, ...]]]:
        """Return what is known from ``revision`` on; the history does not grow meanwhile."""
        return islice(self._revisions, bisect_left(self._revisions, revision, self._start, key=_revision), None)

    def _count(self, events: tuple[Event, ...], sign: int) -> None:
        self._events += sign * len(events)
        self._bytes += sign * sum(event.size for event in events)


_FORGOTTEN: tuple[int, tuple[Event, ...]] = (0, ())


def _revision(entry: tuple[int, tuple[Event, ...]]) -> int:
    return entry[0]


class Scope(IntEnum):
    """What of the tree is watched; KEYS is a range of the flat key space instead."""

    KEYS = 0
    NODE = 1  # its data and existence
    CHILDREN = 2
    NODE_AND_CHILDREN = 3
    SUBTREE = 4


@dataclass(frozen=True, slots=True)
class Watch:
    """What one watcher wants: ``start`` to ``end`` as in RANGE, or ``start`` as path; ``first`` 0 means from now on."""

    scope: Scope
    start: bytes
    end: bytes
    first: int = 0
    progress: bool = False

    @classmethod
    def decode(cls, query: dict[str, Value], level: int, *, tree: bool) -> "Watch":
        """Decode the map of ``pv.watch``; unknown keys are ignored, of the known ones only ``start`` is needed.

        Raises ``Failed``: BAD_COMMAND, TOO_LARGE, or UNSUPPORTED for the tree on a machine without one.
        """
        scope = uint(query.get("tree", 0))
        if scope not in _SCOPES or (scope != Scope.KEYS and not tree):
            raise Failed(Code.UNSUPPORTED, level)
        start, end, progress = query.get("start"), query.get("end", b""), query.get("progress", False)
        if not isinstance(progress, bool):
            bad("progress is neither true nor false")
        first = uint(query.get("from", 0))
        if scope == Scope.KEYS:
            return cls(Scope.KEYS, range_start(start), range_start(end), first, progress)
        return cls(Scope(scope), path_of(start), b"", first, progress)

    def encode(self) -> dict[str, Value]:
        """Return the map of ``pv.watch``."""
        return {
            "start": self.start,
            "end": self.end,
            "tree": int(self.scope),
            "from": self.first,
            "progress": self.progress,
        }

    def wants(self, event: Event) -> bool:
        """Return whether ``event`` is of interest."""
        of_tree = event.kind >= Happened.CREATED
        match self.scope:
            case Scope.KEYS:
                start, end = span(self.start, self.end)
                return not of_tree and start <= event.key and (end is None or event.key < end)
            case Scope.NODE:
                return of_tree and event.key == self.start and event.kind != Happened.CHILDREN
            case Scope.CHILDREN:
                return event.kind == Happened.CHILDREN and event.key == self.start
            case Scope.NODE_AND_CHILDREN:
                return of_tree and event.key == self.start
            case Scope.SUBTREE:
                below = self.start if self.start == ROOT else self.start + b"/"
                return of_tree and (event.key == self.start or event.key.startswith(below))


_SCOPES = frozenset(Scope)


class Cursor:
    """How far one watcher has read: a place in the history, not a queue."""

    def __init__(self, watch: Watch, applied: int) -> None:
        self.watch = watch
        self.next = watch.first or applied + 1

    @property
    def from_now(self) -> bool:
        """Whether the watcher does not know the revision at which it begins."""
        return self.watch.first == 0

    @property
    def progress(self) -> bool:
        """Whether the watcher asked to be told how far nothing has happened."""
        return self.watch.progress

    def take(self, history: History, applied: int, most: int | None = None) -> tuple[int, tuple[Event, ...]] | None:
        """Return the next revision with events of interest, all of them in order, or ``None`` if there is none yet.

        ``applied`` is the revision that the history is complete to. With ``most`` only so many revisions are looked
        at: ``None`` then says nothing of those from ``next`` on. Raises ``Failed`` with COMPACTED and the first
        revision still known when the place is no longer in it.
        """
        if self.next < history.floor:
            raise Failed(Code.COMPACTED, history.floor)
        looked = 0
        for revision, events in islice(history.since(self.next), most):
            looked += 1
            self.next = revision + 1
            wanted = self.wanted(events)
            if wanted:
                return revision, wanted
        if looked != most:
            self.next = max(self.next, applied + 1)
        return None

    def wanted(self, events: Iterable[Event]) -> tuple[Event, ...]:
        """Return those of the events that are of interest."""
        return tuple(event for event in events if self.watch.wants(event))


def message_parts(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Split the events of one revision where a message would be larger than a reply may be, or have too many."""
    begin = size = 0
    for position, event in enumerate(events):
        full = size + event.size > limits.REPLY_BYTES_MAX or position - begin == limits.MESSAGE_EVENTS_MAX
        if size and full:
            yield events[begin:position]
            begin, size = position, 0
        size += event.size
    yield events[begin:]
