"""An ordered table of records that can be read as it was at one moment while it is written (docs/specs/raft.md 9.1)."""

from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

from sortedcontainers import SortedDict


class Record(Protocol):
    """What a table holds: immutable, of a known size, perhaps bound to a lease."""

    @property
    def lease(self) -> int:
        """The lease that it goes with; 0 is none."""
        ...

    @property
    def size(self) -> int:
        """Bytes of its value."""
        ...


R = TypeVar("R", bound=Record)


class Table(Generic[R]):
    """Records by key in ascending order; ``bytes`` is the size of all keys and values."""

    def __init__(self, records: Iterable[tuple[bytes, R]] = ()) -> None:
        self._records: SortedDict[bytes, R] = SortedDict(records)
        self._views: WeakSet[Frozen[R]] = WeakSet()
        self._bound: dict[int, set[bytes]] = {}
        self.bytes = 0
        for key, record in self._records.items():
            self.bytes += len(key) + record.size
            self._bind(key, record)

    def __len__(self) -> int:
        return len(self._records)

    def get(self, key: bytes) -> R | None:
        """Return the record of ``key``."""
        record: R | None = self._records.get(key)
        return record

    def write(self, key: bytes, record: R | None) -> R | None:
        """Put ``record`` in the place of ``key``'s, ``None`` deletes it; returns what was there."""
        old = self.get(key)
        for view in self._views:
            view.keep(key, old)
        if old is not None:
            self.bytes -= len(key) + old.size
            self._unbind(key, old)
        if record is None:
            self._records.pop(key, None)
        else:
            self._records[key] = record
            self.bytes += len(key) + record.size
            self._bind(key, record)
        return old

    def between(self, start: bytes, end: bytes | None, *, descending: bool = False) -> Iterator[tuple[bytes, R]]:
        """Yield the records from ``start`` to before ``end``; the table is not written meanwhile."""
        if end is None or start < end:
            for key in self._records.irange(start, end, inclusive=(True, False), reverse=descending):
                yield key, self._records[key]

    def count(self, start: bytes, end: bytes | None) -> int:
        """Return the number of keys from ``start`` to before ``end``."""
        stop = len(self) if end is None else self._records.bisect_left(end)
        return max(0, stop - int(self._records.bisect_left(start)))

    def bound_to(self, lease: int) -> list[bytes]:
        """Return the keys bound to ``lease``, ascending."""
        return sorted(self._bound.get(lease, ()))

    def freeze(self) -> "Frozen[R]":
        """Return all records as they are now; drop it when it is no longer needed, for it costs writers."""
        view = Frozen(self)
        self._views.add(view)
        return view

    def after(self, key: bytes | None, count: int) -> list[bytes]:
        """Return at most ``count`` keys behind ``key``, ascending."""
        first = 0 if key is None else self._records.bisect_right(key)
        return list(self._records.islice(first, first + count))

    def _bind(self, key: bytes, record: R) -> None:
        if record.lease:
            self._bound.setdefault(record.lease, set()).add(key)

    def _unbind(self, key: bytes, record: R) -> None:
        if record.lease:
            keys = self._bound[record.lease]
            keys.discard(key)
            if not keys:
                del self._bound[record.lease]


class Frozen(Generic[R]):
    """The records of a table at one moment, read in slices from first to last.

    Before a writer changes a record that was not read yet, the table hands over the old one. So the cost is that of
    what changes meanwhile, there is nothing to merge afterwards, and a reader that gives up is simply forgotten.
    """

    def __init__(self, table: Table[R]) -> None:
        self._table = table
        self._kept: SortedDict[bytes, R | None] = SortedDict()
        self._count = len(table)
        self._last: bytes | None = None
        self._done = False

    def __len__(self) -> int:
        return self._count

    def keep(self, key: bytes, old: R | None) -> None:
        """Remember that ``key`` had the record ``old`` (``None``: it was not there), which is about to change."""
        if not self._done and (self._last is None or key > self._last):
            self._kept.setdefault(key, old)

    def take(self, count: int) -> list[tuple[bytes, R]]:
        """Return the next records, about ``count`` and at least one, in ascending order; none at the end."""
        while not self._done:
            present = self._table.after(self._last, count)
            self._done = len(present) < count
            bound = None if self._done else present[-1]
            self._last = bound
            old = [key for key in self._kept.irange(maximum=bound)]
            records = {key: self._table.get(key) for key in present} | {key: self._kept.pop(key) for key in old}
            found = [(key, record) for key, record in sorted(records.items()) if record is not None]
            if found:
                return found
        return []
