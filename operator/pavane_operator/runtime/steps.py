"""The step of a promotion that is being taken: it runs beside the planning and is repeated by it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import structlog

from pavane.parts.backoff import backoff_s
from pavane_operator.plan.model import Observed, Resource, StepCall
from pavane_operator.plan.port import Promotion

STEP_TIMEOUT_S = 10.0
"""Per call (docs/specs/operator.md 3); what is left then is taken up by the next one."""
RETRY_MIN_S = 0.2
RETRY_MAX_S = 5.0
"""Back-off between calls, for ever."""

log = structlog.get_logger(__name__)


class StepRunner:
    """Runs one call of `Promotion.step` at a time; `wake` is called when it ends."""

    def __init__(
        self, promotion: Promotion, now: Callable[[], datetime], rng: random.Random, wake: Callable[[], None]
    ) -> None:
        self._promotion = promotion
        self._now = now
        self._rng = rng
        self._wake = wake
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self.call: StepCall | None = None
        """How the last call goes, for the planner."""

    def start(self, name: str, resource: Resource, observed: Observed, at: datetime) -> None:
        """Call the step, unless a call is running already."""
        if self._task is not None and not self._task.done():
            return
        if self.call is None or (self.call.name, self.call.at) != (name, at):
            self._failures = 0
        self.call = StepCall(name=name, at=at, running=True)
        self._task = asyncio.create_task(self._run(self.call, resource, observed), name=f"step {name}")

    async def close(self) -> None:
        """Stop a running call. A request that was sent may still take effect: steps are idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self, call: StepCall, resource: Resource, observed: Observed) -> None:
        message = ""
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                await self._promotion.step(call.name, resource, observed, call.at)
            self._failures = 0
        except TimeoutError:
            message = f"not done within {STEP_TIMEOUT_S:g} s"
        except Exception as error:
            message = str(error) or type(error).__name__
            about = {"kind": resource.kind, "namespace": resource.namespace, "name": resource.name}
            log.warning("promotion step failed", **about, step=call.name, error=message)
        if message:
            self._failures += 1
        pause_s = backoff_s(self._failures, RETRY_MIN_S, RETRY_MAX_S, self._rng)
        retry_at = self._now() + timedelta(seconds=pause_s)
        self.call = replace(call, running=False, retry_at=retry_at, message=message)
        self._wake()
