"""The log as the core sees it: terms as runs, request ids back to back, the newest entries in memory (5.1, 13.2)."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from pavane.raft.state.commands import EntrySource, Recovered, SnapshotSource
from pavane.raft.wire.entry import entry_term
from pavane.raft.wire.frames import REQID_BYTES

ENTRY_CACHE_BYTES = 64 * 1024 * 1024  # what a follower that is a little behind can get without a disk
READ_ENTRIES = 128  # looked at together: at most so many more than are returned
ENTRY_OVERHEAD_BYTES = 64  # what a cached entry costs beside its bytes


class Log:
    """Entries ``first … last``, read from a cache or from ``source``; durable or not does not matter here."""

    def __init__(self, recovered: Recovered, source: EntrySource, cache_bytes: int = ENTRY_CACHE_BYTES) -> None:
        self.first = recovered.first_index
        snapshot = recovered.snapshot
        # The term of the entry before the first, where it is known: what the first message to a follower names.
        self._base_term = snapshot.term if snapshot is not None and snapshot.index == self.first - 1 else None
        self.last = recovered.last_index
        self._run_starts = [index for index, _ in recovered.term_runs]
        self._run_terms = [term for _, term in recovered.term_runs]
        self._reqids = bytearray(recovered.reqids)
        self._source = source
        self._cache: dict[int, bytes] = {}  # the entries from _cached_from to last
        self._cached_from = self.last + 1
        self._cache_bytes = 0
        self._cache_bytes_max = cache_bytes

    @property
    def last_term(self) -> int:
        """The term of the last entry, or of the snapshot that it would follow; 0 at the beginning of time."""
        return self._run_terms[-1] if self._run_terms else self._base_term or 0

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at ``index``: 0 at index 0, ``None`` where it is not known any more, or yet."""
        if index == self.first - 1:
            return self._base_term if index > 0 else 0
        if not self.first <= index <= self.last:
            return None
        return self._run_terms[bisect_right(self._run_starts, index) - 1]

    def last_of(self, term: int) -> int | None:
        """Return the last index of a term, ``None`` if the log has no entry of it."""
        run = bisect_left(self._run_terms, term)
        if run == len(self._run_terms) or self._run_terms[run] != term:
            return None
        return self._run_starts[run + 1] - 1 if run + 1 < len(self._run_starts) else self.last

    def first_of_term_at(self, index: int) -> int:
        """Return the first index that has the term of the entry at ``index``, which must be in the log."""
        return max(self._run_starts[bisect_right(self._run_starts, index) - 1], self.first)

    def reqid_at(self, index: int) -> bytes:
        """Return the request id of the entry at ``index``, which must be in the log."""
        start = (index - self.first) * REQID_BYTES
        return bytes(self._reqids[start : start + REQID_BYTES])

    def reqids(self) -> Iterable[tuple[int, bytes]]:
        """Yield (index, request id) of every entry."""
        for index in range(self.first, self.last + 1):
            yield index, self.reqid_at(index)

    def append(self, entries: Sequence[bytes]) -> None:
        """Add entries after the last one."""
        term = self._run_terms[-1] if self._run_terms else None
        for index, entry in enumerate(entries, self.last + 1):
            if (own := entry_term(entry)) != term:
                term = own
                self._run_starts.append(index)
                self._run_terms.append(term)
            self._cache[index] = entry
        self._reqids += b"".join([entry[:REQID_BYTES] for entry in entries])
        self.last += len(entries)
        self._cache_bytes += sum(map(len, entries)) + ENTRY_OVERHEAD_BYTES * len(entries)
        while self._cache_bytes > self._cache_bytes_max and self._cached_from < self.last:
            self._cache_bytes -= len(self._cache.pop(self._cached_from)) + ENTRY_OVERHEAD_BYTES
            self._cached_from += 1

    def compact(self, first: int) -> None:
        """Forget every entry below ``first``, which is at most one behind the last."""
        if first <= self.first:
            return
        base_term = self.term_at(first - 1)
        del self._reqids[: (first - self.first) * REQID_BYTES]
        for index in range(self._cached_from, first):
            self._cache_bytes -= len(self._cache.pop(index)) + ENTRY_OVERHEAD_BYTES
        self._cached_from = max(self._cached_from, first)
        kept = bisect_right(self._run_starts, first) - 1
        if first > self.last:
            self._run_starts, self._run_terms = [], []
        elif kept >= 0:
            self._run_starts = [first, *self._run_starts[kept + 1 :]]
            self._run_terms = self._run_terms[kept:]
        self.first = first
        self._base_term = base_term

    def begin_behind(self, index: int, term: int) -> None:
        """Forget all entries; the next one follows the snapshot at ``index``, whose last entry had ``term``."""
        self._run_starts, self._run_terms = [], []
        self._reqids.clear()
        self._cache.clear()
        self._cache_bytes = 0
        self.first, self.last, self._cached_from = index + 1, index, index + 1
        self._base_term = term

    def truncate(self, after: int) -> None:
        """Forget every entry above ``after``."""
        while self.last > after:
            entry = self._cache.pop(self.last, None)
            if entry is not None:
                self._cache_bytes -= len(entry) + ENTRY_OVERHEAD_BYTES
            self.last -= 1
        self._cached_from = min(self._cached_from, self.last + 1)
        while self._run_starts and self._run_starts[-1] > after:
            self._run_starts.pop()
            self._run_terms.pop()
        del self._reqids[max(0, after - self.first + 1) * REQID_BYTES :]

    def open_snapshot(self, index: int) -> SnapshotSource:
        """Open the snapshot file up to ``index``; raises ``OSError``."""
        return self._source.open_snapshot(index)

    def read(self, first: int, last: int, bytes_max: int, count_max: int) -> Sequence[bytes | memoryview]:
        """Return entries from ``first`` on: at least one, at most up to ``last``, ``bytes_max`` or ``count_max``.

        Raises ``CorruptEntry`` when a stored entry is damaged.
        """
        last = min(last, first + count_max - 1)
        if first < self._cached_from:
            return self._source.read(first, min(last, self._cached_from - 1), bytes_max)
        entries: list[bytes] = []
        size = 0
        while first <= last and size <= bytes_max:  # some at a time: a loop over single ones costs twice as much
            more = [self._cache[index] for index in range(first, min(last + 1, first + READ_ENTRIES))]
            size += sum(map(len, more))
            entries += more
            first += len(more)
        while size > bytes_max and len(entries) > 1:
            size -= len(entries.pop())
        return entries
