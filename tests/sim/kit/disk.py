"""Disks in virtual time: the thread that writes, and power cuts between any two of its syncs.

The files are those of ``tests.services.memory_disk``: a cut loses, keeps or tears what was not synced.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from pavane.wal import Appender, Batch
from tests.services.memory_disk import MemoryDisk
from tests.sim.kit.scheduler import Scheduler

USUAL_FSYNC_S = (0.0002, 0.004)
SLOW_FSYNC_S = (0.02, 0.25)
SYNCS_MAX = 2  # how many syncs of an interrupted job may have been done

Job = Callable[[], None]


class PowerCutError(BaseException):
    """The machine ends here; no code of the process runs on."""


class DiskThread:
    """One process's thread for its disk: jobs run in order, each as long after the one before as an fsync takes."""

    def __init__(self, scheduler: Scheduler, disk: MemoryDisk) -> None:
        self._scheduler = scheduler
        self._disk = disk
        self._jobs: deque[tuple[Job, Job, Callable[[OSError], None]]] = deque()
        self._life = 0
        self.slow = False

    def run(self, job: Job, done: Job, failed: Callable[[OSError], None]) -> None:
        """Run ``job`` in its turn, then call ``done``, or ``failed`` if it raised ``OSError``."""
        self._jobs.append((job, done, failed))
        if len(self._jobs) == 1:
            self._begin()

    def power_cut(self) -> None:
        """End the process and the power: a waiting job may have begun, and nobody hears of it. Locks are void."""
        self._life += 1
        rng = self._scheduler.rng
        if self._jobs and rng.random() < 0.5:
            self._interrupt(self._jobs[0][0], rng.randint(0, SYNCS_MAX))
        self._jobs.clear()
        self._disk.crash(rng)

    def _begin(self) -> None:
        seconds = self._scheduler.rng.uniform(*(SLOW_FSYNC_S if self.slow else USUAL_FSYNC_S))
        self._scheduler.later(seconds, partial(self._finish, self._life))

    def _finish(self, life: int) -> None:
        if life != self._life:
            return
        job, done, failed = self._jobs[0]
        told: Job = done
        try:
            job()
        except OSError as error:
            told = partial(failed, error)
        self._jobs.popleft()
        if self._jobs:
            self._begin()
        told()

    def _interrupt(self, job: Job, syncs: int) -> None:
        """Run ``job`` until its sync number ``syncs``, at which the power goes."""

        def count() -> None:
            nonlocal syncs
            if syncs == 0:
                raise PowerCutError
            syncs -= 1

        self._disk.before_sync = count
        try:
            job()
        except (OSError, PowerCutError):
            pass
        finally:
            self._disk.before_sync = None


class SimWriter:
    """``pavane.wal.Writer`` in virtual time: all batches that wait are written together."""

    def __init__(
        self,
        thread: DiskThread,
        appender: Appender,
        done: Callable[[Sequence[Batch]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._thread = thread
        self._appender = appender
        self._done = done
        self._failed = failed
        self._waiting: list[Batch] = []
        self._writing: list[Batch] = []
        self._dead = False

    def submit(self, batch: Batch) -> None:
        if self._dead:
            return
        self._waiting.append(batch)
        if len(self._waiting) == 1 and not self._writing:
            self._begin()

    def _begin(self) -> None:
        self._writing, self._waiting = self._waiting, []
        batches = self._writing
        self._thread.run(lambda: self._appender.execute(batches), self._written, self._fail)

    def _written(self) -> None:
        batches, self._writing = self._writing, []
        if self._waiting:
            self._begin()
        self._done(batches)

    def _fail(self, error: OSError) -> None:
        self._dead = True
        self._failed(error)
