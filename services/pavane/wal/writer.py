"""The storage thread: takes every batch that waits, writes them together, syncs once (docs/specs/raft.md 13.4)."""

import threading
import time
from collections.abc import Callable, Sequence

from pavane.wal.log import Appender, Batch
from pavane.wal.times import SyncTimes

QUEUE_BATCHES = 1024  # STORAGE_QUEUE of docs/specs/raft.md 14.4: beyond it the caller stops taking input
QUEUE_BYTES = 128 << 20  # the same in bytes
HERE_S = 0.0005  # what a sync may take, by those before it: then two hand-overs cost as much
HERE_BYTES = 64 << 10  # of a batch that the caller may write itself: more takes longer than a hand-over


class Writer:
    """Runs an ``Appender`` in a thread of its own.

    ``done`` and ``failed`` are called on that thread: ``done`` with the batches that were executed, in order;
    ``failed`` once, with the exception after which nothing is written any more: ``OSError``, or what a mistake raised.
    """

    def __init__(
        self, appender: Appender, done: Callable[[Sequence[Batch]], None], failed: Callable[[Exception], None]
    ) -> None:
        self._appender = appender
        self._done = done
        self._failed = failed
        self._condition = threading.Condition()
        self._queue: list[Batch] = []
        self._open_batches = 0
        self._open_bytes = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="pavane-wal", daemon=True)
        self._times = SyncTimes()
        self.syncs = 0
        self.sync_seconds = 0.0

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """True while more waits than the queue should hold: take no input that may add to it."""
        return self._open_batches >= QUEUE_BATCHES or self._open_bytes >= QUEUE_BYTES

    def suits_here(self, batch: Batch) -> bool:
        """Whether ``write_here`` is quicker than ``submit``; ask only when all that was submitted has been done."""
        steps = batch.before or batch.after or any(write.create or write.remove for write in batch.writes)
        return not steps and batch.size <= HERE_BYTES and self._times.are_below(HERE_S)

    def write_here(self, batch: Batch) -> None:
        """Write and sync a batch on the caller's thread, while nothing else is queued; raises ``OSError``, for good."""
        self._execute([batch])

    def submit(self, batch: Batch) -> None:
        """Queue a batch; never blocks. Callers look at ``is_full`` before they take in more work."""
        with self._condition:
            self._queue.append(batch)
            self._open_batches += 1
            self._open_bytes += batch.size
            self._condition.notify()

    def close(self) -> None:
        """Write what is queued, then end the thread and close the file; returns when that is done."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self._appender.close()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queue and not self._closing:
                    self._condition.wait()
                batches, self._queue = self._queue, []
            if not batches:
                return
            try:
                self._execute(batches)
            except Exception as error:
                self._failed(error)  # whatever it was: who waits for this thread must not wait for ever
                return
            with self._condition:
                self._open_batches -= len(batches)
                self._open_bytes -= sum(batch.size for batch in batches)
            self._done(batches)

    def _execute(self, batches: Sequence[Batch]) -> None:
        started = time.perf_counter()
        self._appender.execute(batches)
        if any(batch.sync for batch in batches):
            took = time.perf_counter() - started
            self.syncs += 1
            self.sync_seconds += took
            self._times.note(took)
