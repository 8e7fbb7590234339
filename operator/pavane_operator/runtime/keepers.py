"""One task per resource: each event of the resource starts a run, and no error ends the task.

Not a kopf daemon: that is stopped at the deletion timestamp, and after a restart of the operator none is started for an
object that is being deleted, so clean-up would be skipped (docs/specs/operator.md 2.10, 5.2).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from pavane.parts.backoff import backoff_s
from pavane_operator.runtime.metrics import Metrics, Source

RECONCILES_OPEN_MAX = 20
"""Reconciles at once: as many as calls to the API. More would wait in the middle for one another's calls instead of at
their begin, and on a slow server none of them would end within RECONCILE_TIMEOUT_S."""
MERGE_S = 0.05
"""Two reconciles of one resource begin at least this far apart, so a burst of wake-ups becomes one."""
RESYNC_S = 300.0
"""Longest sleep, give or take RESYNC_SPREAD: whatever no event told is seen then."""
RESYNC_SPREAD = 0.1
RECONCILE_TIMEOUT_S = 60.0
"""Every call of a reconcile has a time-out of seconds: one that takes longer hangs. It is begun anew, and told."""
ERROR_DELAY_MIN_S = 0.2
ERROR_DELAY_MAX_S = 5.0
"""Back-off after an error that reached the keeper: doubled from the first to the second."""

Reconcile = Callable[[str], Awaitable[float | None]]
"""Looks after the resource with this uid; returns the longest time to sleep in seconds (None = RESYNC_S)."""

log = structlog.get_logger(__name__)


class Keepers:
    """The tasks, by uid of the resource they keep.

    `reconcile` is called at once for a new resource and after each `wake`, serially per resource. `alive(uid)` says
    whether the resource still exists; a task ends once it does not, and lets `ended(uid)` clean up. All methods are
    called in the event loop.
    """

    def __init__(
        self,
        reconcile: Reconcile,
        alive: Callable[[str], bool],
        rng: random.Random,
        ended: Callable[[str], Awaitable[None]],
        metrics: Metrics,
    ) -> None:
        self._reconcile = reconcile
        self._alive = alive
        self._rng = rng
        self._ended = ended
        self._metrics = metrics
        self._woken_at: dict[str, float] = {}
        self._wakes: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(RECONCILES_OPEN_MAX)
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def wake(self, uid: str, source: Source) -> None:
        """Let the resource be looked at soon; starts its task where there is none and the resource exists."""
        if self._closed:
            return
        if uid not in self._tasks:
            if not self._alive(uid):
                return
            self._wakes[uid] = asyncio.Event()
            self._tasks[uid] = asyncio.create_task(self._keep(uid), name=f"keeper {uid}")
        self._metrics.wakeups[source] += 1
        self._woken_at.setdefault(uid, asyncio.get_running_loop().time())
        self._wakes[uid].set()

    async def close(self) -> None:
        """Stop all tasks and wait for them. What they left half done is found again by observation."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, uid: str) -> None:
        loop = asyncio.get_running_loop()
        errors = 0
        try:
            while self._alive(uid):
                self._wakes[uid].clear()
                began = loop.time()
                delay = RESYNC_S * self._rng.uniform(1 - RESYNC_SPREAD, 1 + RESYNC_SPREAD)
                try:
                    async with self._slots, asyncio.timeout(RECONCILE_TIMEOUT_S):
                        self._metrics.queue_seconds.add(loop.time() - self._woken_at.pop(uid, began))
                        wanted = await self._reconcile(uid)
                except Exception:
                    errors += 1
                    log.exception("reconcile failed", uid=uid, errors=errors)
                    wanted = backoff_s(errors, ERROR_DELAY_MIN_S, ERROR_DELAY_MAX_S, self._rng)
                else:
                    errors = 0
                if not self._alive(uid):
                    break
                await self._sleep(uid, delay if wanted is None else min(wanted, delay))
                await asyncio.sleep(max(0.0, began + MERGE_S - loop.time()))
        finally:
            await self._ended(uid)
            del self._tasks[uid]
            del self._wakes[uid]
            self._woken_at.pop(uid, None)
            if self._alive(uid):  # it came back while the last one was being cleaned up
                self.wake(uid, "resource")

    async def _sleep(self, uid: str, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._wakes[uid].wait()
        except TimeoutError:
            self._metrics.wakeups["timer"] += 1
