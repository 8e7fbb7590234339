"""One container of a pod: runs, restarts, probes, its part of the pod's status (docs/specs/operator.md 6.8)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pavane_local.kubelet import probes
from pavane_local.kubelet.logs import RunLog
from pavane_local.kubelet.spawn import PROCESS_FILE, Child, Command, StartError, spawn
from pavane_local.kubelet.volumes import MissingReference

BACKOFF_FIRST_SECONDS = 10.0
BACKOFF_SECONDS_MAX = 300.0
BACKOFF_RESET_SECONDS = 600.0  # a run this long was no crash loop, as in Kubernetes
REFERENCE_RETRY_SECONDS = 1.0  # a ConfigMap that env needs and that is not there yet
MESSAGE_BYTES_MAX = 4096
START_ERROR_CODE = 128

Prepare = Callable[[], Awaitable[Command]]
Record = Callable[[str, str, str], Awaitable[None]]


class NoImage(Exception):
    """The image maps to no virtual environment."""


class Container:
    """A container with the history of its runs. `former` is its last known status, of a kubelet before this one."""

    def __init__(
        self,
        spec: dict[str, Any],
        folder: Path,
        former: dict[str, Any] | None,
        changed: Callable[[], None],
        speed: float,
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.name: str = spec["name"]
        self.state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: dict[str, Any] = {}
        self.restarts = 0
        self.ready = self.started = False
        self.log: RunLog | None = None
        self._changed = changed
        self._speed = speed
        self._stopping = asyncio.Event()
        self._child: Child | None = None
        self._exited: asyncio.Task[int] | None = None
        if former is not None:
            self._resume(former)

    def _resume(self, former: dict[str, Any]) -> None:
        self.restarts = former.get("restartCount", 0)
        self.last_state = former.get("lastState", {})
        if "terminated" in former.get("state", {}):
            self.state = former["state"]

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last run, if none is under way or due."""
        code: int | None = self.state.get("terminated", {}).get("exitCode")
        return code

    async def run(self, policy: str, prepare: Prepare, target: probes.Target, record: Record) -> None:
        """Run until the restart policy (`Always`, `OnFailure`, `Never`) or `stop` ends it."""
        delay = 0.0
        if self.exit_code is not None and not self._again(policy):
            return
        if self.exit_code is not None:
            self._next_run()
        while not self._stopping.is_set():
            began = asyncio.get_running_loop().time()
            if not await self._once(prepare, target, record):
                await self._pause(REFERENCE_RETRY_SECONDS)
                continue
            if self._stopping.is_set() or not self._again(policy):
                return
            if asyncio.get_running_loop().time() - began >= BACKOFF_RESET_SECONDS:
                delay = 0.0
            if delay:
                ended, self.state = (
                    self.state,
                    _waiting("CrashLoopBackOff", f"back-off {delay / self._speed:g} s restarting"),
                )
                self.last_state = ended
                self._changed()
                await record("Warning", "BackOff", f"Back-off restarting failed container {self.name}")
                await self._pause(delay / self._speed)
                if self._stopping.is_set():
                    self.state = ended
                    return
                self.state = ended
            delay = min(BACKOFF_SECONDS_MAX, delay * 2 or BACKOFF_FIRST_SECONDS)
            self._next_run()

    async def stop(self, grace_seconds: float) -> None:
        """SIGTERM to the group, SIGKILL after the grace period; not ready at once, and never started again."""
        self._stopping.set()
        self.ready = False
        self._changed()
        await self._end(grace_seconds)

    def status(self) -> dict[str, Any]:
        """Its `ContainerStatus`."""
        return {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "containerID": f"process://{self._child.pid}" if self._child else "",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }

    def _again(self, policy: str) -> bool:
        return policy == "Always" or (policy == "OnFailure" and self.exit_code != 0)

    def _next_run(self) -> None:
        self.restarts += 1
        self.last_state = self.state

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _once(self, prepare: Prepare, target: probes.Target, record: Record) -> bool:
        """One run; False if it could not be prepared yet."""
        (self.folder / "root").mkdir(parents=True, exist_ok=True)
        message_file = self.folder / "termination-log"
        message_file.write_bytes(b"")
        began = now_text()
        log = self.log = RunLog(self.folder / f"{self.restarts}.log")
        try:
            self._child = child = await spawn(await prepare(), log.feed, self.folder / PROCESS_FILE)
        except (MissingReference, NoImage, StartError) as error:
            log.close()
            reason = {MissingReference: "CreateContainerConfigError", NoImage: "ErrImageNeverPull"}.get(type(error))
            if reason:
                self.state = _waiting(reason, str(error))
            else:
                self.state = {"terminated": _terminated(START_ERROR_CODE, began, "StartError", str(error))}
            self._changed()
            await record("Warning", "Failed", str(error))
            return reason is None
        self._exited = exited = asyncio.create_task(child.wait(), name=f"exit of {self.name}")
        self.state = {"running": {"startedAt": began}}
        self._changed()
        try:
            code = await self._watched(exited, target, record)
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

    async def _watched(self, exited: asyncio.Task[int], target: probes.Target, record: Record) -> int:
        """Probe the running container until it ends; its exit code."""
        async with asyncio.TaskGroup() as group:
            probing = group.create_task(self._probe(target, record))
            code = await asyncio.shield(exited)
            probing.cancel()
        return code

    async def _probe(self, target: probes.Target, record: Record) -> None:
        """Wait for the startup probe, then probe liveness and readiness; without a readiness probe it is ready."""
        if "startupProbe" in self.spec:
            async for good, why in probes.results(self.spec["startupProbe"], target):
                if good:
                    break
                await self._unhealthy("Startup", why, record)
        self.started = True
        self.ready = "readinessProbe" not in self.spec and not self._stopping.is_set()
        self._changed()
        async with asyncio.TaskGroup() as group:
            if "livenessProbe" in self.spec:
                group.create_task(self._liveness(target, record))
            if "readinessProbe" in self.spec:
                group.create_task(self._readiness(target))

    async def _liveness(self, target: probes.Target, record: Record) -> None:
        async for good, why in probes.results(self.spec["livenessProbe"], target):
            if not good:
                await self._unhealthy("Liveness", why, record)

    async def _readiness(self, target: probes.Target) -> None:
        async for good, _ in probes.results(self.spec["readinessProbe"], target):
            if self.ready != (ready := good and not self._stopping.is_set()):
                self.ready = ready
                self._changed()

    async def _unhealthy(self, probe: str, why: str, record: Record) -> None:
        await record("Warning", "Unhealthy", f"{probe} probe of {self.name} failed: {why}; it is restarted")
        await self._end(self.spec.get("terminationGracePeriodSeconds", 30))

    async def _end(self, grace_seconds: float) -> None:
        if self._child is None or self._exited is None:
            return
        child, exited = self._child, self._exited
        child.signal(signal.SIGTERM)
        await asyncio.wait({exited}, timeout=grace_seconds)
        child.signal(signal.SIGKILL)
        await asyncio.wait({exited})


def interrupted(former: dict[str, Any]) -> dict[str, Any]:
    """The status of a container whose kubelet died: what ran is terminated, nobody knows how (6.10)."""
    state = former.get("state", {})
    if "running" in state:
        state = {"terminated": _terminated(137, state["running"].get("startedAt"), "ContainerStatusUnknown")}
    return {**former, "state": state, "containerID": "", "ready": False, "started": False}


def now_text() -> str:
    """The present time as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _waiting(reason: str, message: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def _terminated(code: int, began: str | None, reason: str, message: str = "") -> dict[str, Any]:
    state = {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": now_text()}
    return state | ({"message": message} if message else {})
