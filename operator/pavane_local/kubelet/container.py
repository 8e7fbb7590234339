"""One container of a pod: runs, restarts, its part of the pod's status (docs/specs/operator.md 6.8)."""

import asyncio
import contextlib
import datetime
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pavane_local.kubelet import probes
from pavane_local.kubelet.logs import RunLog
from pavane_local.kubelet.spawn import Child, Command, StartError, spawn
from pavane_local.kubelet.volumes import MissingReference

BACKOFF_FIRST_SECONDS = 10.0
BACKOFF_SECONDS_MAX = 300.0
BACKOFF_RESET_SECONDS = 600.0  # a run this long was no crash loop, as in Kubernetes
REFERENCE_RETRY_SECONDS = 1.0  # a ConfigMap that env needs and that is not there yet
LIVENESS_GRACE_SECONDS = 30
MESSAGE_BYTES_MAX = 4096
START_ERROR_CODE = 128

State = dict[str, Any]


class NoImage(Exception):
    """The image maps to no virtual environment."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a container needs of its pod: how to prepare a run, what to probe, an event (type, reason, message)."""

    prepare: Callable[[], Awaitable[Command]]
    target: probes.Target
    record: Callable[[str, str, str], Awaitable[None]]


class Container:
    """A container with the history of its runs. `former` is its last known status, of a kubelet before this one."""

    def __init__(
        self, spec: State, folder: Path, former: State | None, changed: Callable[[], None], speed: float
    ) -> None:
        former = former or {}
        self.spec = spec
        self.folder = folder
        self.name: str = spec["name"]
        ended = {"terminated": former["state"]["terminated"]} if "terminated" in former.get("state", {}) else None
        self.state: State = ended or {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: State = former.get("lastState", {})
        self.restarts: int = former.get("restartCount", 0)
        self.ready = self.started = False
        self.log: RunLog | None = None
        self._changed = changed
        self._speed = speed
        self._stopping = asyncio.Event()
        self._child: Child | None = None
        self._exited: asyncio.Task[int] | None = None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last run, if none is under way or due."""
        code: int | None = self.state.get("terminated", {}).get("exitCode")
        return code

    async def run(self, policy: str, around: Surroundings) -> None:
        """Run until the restart policy (`Always`, `OnFailure`, `Never`) or `stop` ends it."""
        delay, loop = 0.0, asyncio.get_running_loop()
        if self.exit_code is not None:
            if not self._again(policy):
                return
            self._next_run()
        while not self._stopping.is_set():
            began = loop.time()
            if not await self._once(around):
                await self._pause(REFERENCE_RETRY_SECONDS)
                continue
            if loop.time() - began >= BACKOFF_RESET_SECONDS:
                delay = 0.0
            if self._stopping.is_set() or not self._again(policy):
                return
            if delay and not await self._back_off(delay, around):
                return
            delay = min(BACKOFF_SECONDS_MAX, delay * 2 or BACKOFF_FIRST_SECONDS)
            self._next_run()

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM to the group, SIGKILL after the grace period; not ready at once, and never started again."""
        self._stopping.set()
        self.ready = False
        self._changed()
        await self._end(grace_seconds)

    def kill(self) -> None:
        """SIGKILL, without waiting for the grace period of a `stop` under way."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    def status(self) -> State:
        """Its `ContainerStatus`."""
        return {
            "name": self.name, "image": self.spec.get("image", ""), "imageID": "", "restartCount": self.restarts,
            "containerID": self._child.id if self._child else "", "ready": self.ready, "started": self.started,
            "state": self.state, "lastState": self.last_state,
        }  # fmt: skip

    def _again(self, policy: str) -> bool:
        return policy == "Always" or (policy == "OnFailure" and self.exit_code != 0)

    def _next_run(self) -> None:
        self.restarts += 1
        self.last_state = self.state

    async def _back_off(self, delay: float, around: Surroundings) -> bool:
        """Wait before the next run; False if it is not to come."""
        ended, seconds = self.state, delay / self._speed
        self.state, self.last_state = _waiting("CrashLoopBackOff", f"back-off {seconds:g} s restarting"), ended
        self._changed()
        await around.record("Warning", "BackOff", f"Back-off restarting failed container {self.name}")
        await self._pause(seconds)
        self.state = ended
        return not self._stopping.is_set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _once(self, around: Surroundings) -> bool:
        """One run; False if it could not be prepared yet."""
        (self.folder / "root").mkdir(parents=True, exist_ok=True)
        message_file = self.folder / "termination-log"
        message_file.write_bytes(b"")
        began = now_text()
        log = self.log = RunLog(self.folder / f"{self.restarts}.log")
        try:
            self._child = child = await spawn(await around.prepare(), log.feed)
        except (MissingReference, NoImage, StartError) as error:
            log.close()
            reason = {MissingReference: "CreateContainerConfigError", NoImage: "ErrImageNeverPull"}.get(type(error))
            failed = {"terminated": _terminated(START_ERROR_CODE, began, "StartError", str(error))}
            self.state = _waiting(reason, str(error)) if reason else failed
            self._changed()
            await around.record("Warning", "Failed", str(error))
            return reason is None
        self._exited = exited = asyncio.create_task(child.wait(), name=f"exit of {self.name}")
        self.state = {"running": {"startedAt": began}}
        self._changed()
        try:
            async with asyncio.TaskGroup() as group:
                probing = group.create_task(self._probe(around))
                code = await asyncio.shield(exited)
                probing.cancel()
        finally:
            child.signal(signal.SIGKILL)
            await asyncio.wait({exited})
            self._child = None
            log.close()
        message = message_file.read_bytes()[:MESSAGE_BYTES_MAX].decode(errors="replace")
        self.ready = self.started = False
        self.state = {"terminated": _terminated(code, began, "Error" if code else "Completed", message)}
        self._changed()
        return True

    async def _probe(self, around: Surroundings) -> None:
        """Wait for the startup probe, then probe liveness and readiness; without a readiness probe it is ready."""
        if "startupProbe" in self.spec:
            async for good, why in probes.results(self.spec["startupProbe"], around.target):
                if good:
                    break
                await self._restart("Startup", why, around)
        self.started = True
        self.ready = "readinessProbe" not in self.spec and not self._stopping.is_set()
        self._changed()
        async with asyncio.TaskGroup() as group:
            if "livenessProbe" in self.spec:
                group.create_task(self._liveness(around))
            if "readinessProbe" in self.spec:
                group.create_task(self._readiness(around))

    async def _liveness(self, around: Surroundings) -> None:
        async for good, why in probes.results(self.spec["livenessProbe"], around.target):
            if not good:
                await self._restart("Liveness", why, around)

    async def _readiness(self, around: Surroundings) -> None:
        async for good, _ in probes.results(self.spec["readinessProbe"], around.target):
            if self.ready != (ready := good and not self._stopping.is_set()):
                self.ready = ready
                self._changed()

    async def _restart(self, probe: str, why: str, around: Surroundings) -> None:
        message = f"{probe} probe of {self.name} failed: {why}; it is restarted"
        await around.record("Warning", "Unhealthy", message)
        await self._end(LIVENESS_GRACE_SECONDS)

    async def _end(self, grace_seconds: float) -> None:
        if self._child is None or self._exited is None:
            return
        child, exited = self._child, self._exited
        child.signal(signal.SIGTERM)
        await asyncio.wait({exited}, timeout=grace_seconds)
        child.signal(signal.SIGKILL)
        await asyncio.wait({exited})


def interrupted(former: State) -> State:
    """The status of a container whose kubelet died: what ran is terminated, nobody knows how (6.10)."""
    state = former.get("state", {})
    if "running" in state:
        state = {"terminated": _terminated(137, state["running"].get("startedAt"), "ContainerStatusUnknown")}
    return {**former, "state": state, "containerID": "", "ready": False, "started": False}


def now_text() -> str:
    """The present time as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _waiting(reason: str, message: str) -> State:
    return {"waiting": {"reason": reason, "message": message}}


def _terminated(code: int, began: str | None, reason: str, message: str = "") -> State:
    state = {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": now_text()}
    return state | ({"message": message} if message else {})
