"""One container of a pod: runs, restarts, its part of the pod's status (docs/specs/operator.md 6.8)."""

import asyncio
import contextlib
import datetime
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pavane_local.kubelet.logs import RunLog
from pavane_local.kubelet.spawn import RUN_ERROR, CannotStart, Child, spawn

BACKOFF_FIRST_SECONDS = 10.0
BACKOFF_SECONDS_MAX = 300.0
BACKOFF_RESET_SECONDS = 600.0  # a run this long was no crash loop, as in Kubernetes
START_RETRY_SECONDS = 1.0  # a ConfigMap that env needs and that is not there yet
LIVENESS_GRACE_SECONDS = 30
MESSAGE_BYTES_MAX = 4096
ANSWER_BYTES_MAX = 10 * 1024  # as much of an answer to a probe as the kubelet of Kubernetes reads

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a container needs of its pod; `record` writes a warning (reason, message), `speed` divides back-offs."""

    address: str
    speed: float
    once: bool  # what ends stays so (restartPolicy Never)
    prepare: Callable[["Container"], tuple[list[str], dict[str, str]]]  # arguments, environment
    changed: Callable[[], None]
    record: Callable[[str, str], Awaitable[None]]


class Container:
    """A container with the history of its runs. `former` is its last known status, of a kubelet before this one."""

    def __init__(self, spec: State, folder: Path, former: State, around: Surroundings) -> None:
        self.spec = spec
        self.folder = folder
        ended = {key: value for key, value in former.get("state", {}).items() if key == "terminated"}
        self.state: State = ended or {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: State = former.get("lastState", {})
        self.restarts: int = former.get("restartCount", 0)
        self.ready = self.started = False
        self.log: RunLog | None = None
        self._around = around
        self._stopping = asyncio.Event()
        self._child: Child | None = None

    async def run(self) -> None:
        """Run again and again until `stop` ends it."""
        delay, loop = 0.0, asyncio.get_running_loop()
        if "terminated" in self.state:
            if self._around.once:
                return
            self._next_run()
        while not self._stopping.is_set():
            began = loop.time()
            if not await self._once():
                await self._pause(START_RETRY_SECONDS)
                continue
            if self._around.once:
                return
            if loop.time() - began >= BACKOFF_RESET_SECONDS:
                delay = 0.0
            if delay and not self._stopping.is_set():
                self.last_state = ended = self.state
                text = f"Back-off {delay / self._around.speed:g} s restarting failed container {self.spec['name']}"
                await self._waits("CrashLoopBackOff", text, "BackOff")
                await self._pause(delay / self._around.speed)
                self.state = ended
            delay = min(BACKOFF_SECONDS_MAX, delay * 2 or BACKOFF_FIRST_SECONDS)
            if not self._stopping.is_set():
                self._next_run()

    async def stop(self) -> None:
        """SIGTERM to the group and wait for its end (`kill` hastens it); not ready at once, and never started again."""
        self._stopping.set()
        self.ready = False
        self._around.changed()
        if self._child is not None:
            await self._child.end(None)

    def kill(self) -> None:
        """SIGKILL to the group."""
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    def status(self) -> State:
        """Its `ContainerStatus`."""
        return {
            "name": self.spec["name"], "image": self.spec["image"], "imageID": "", "restartCount": self.restarts,
            "containerID": self._child.id if self._child else "", "ready": self.ready, "started": self.started,
            "state": self.state, "lastState": self.last_state,
        }  # fmt: skip

    def _next_run(self) -> None:
        self.restarts += 1
        self.last_state = self.state

    async def _waits(self, reason: str, message: str, event: str) -> None:
        waiting = {"waiting": {"reason": reason, "message": message}}
        if self.state != waiting:
            self.state = waiting
            self._around.changed()
            await self._around.record(event, message)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _once(self) -> bool:
        """One run; False if it could not be started."""
        message_file = self.folder / "termination-log"
        began = now_text()
        with contextlib.ExitStack() as held:
            try:
                (self.folder / "root").mkdir(parents=True, exist_ok=True)
                message_file.write_bytes(b"")
                self.log = log = held.enter_context(contextlib.closing(RunLog(self.folder / f"{self.restarts}.log")))
                self._child = child = await spawn(*self._around.prepare(self), self.folder / "root", log.feed)
            except CannotStart as error:
                await self._waits(error.reason, str(error), "Failed")
                return False
            except OSError as error:  # a full disk, for one
                await self._waits(RUN_ERROR, f"{self.folder} cannot be written: {error}", "Failed")
                return False
            self.state = {"running": {"startedAt": began}}
            self._around.changed()
            try:
                async with asyncio.TaskGroup() as group:
                    probing = group.create_task(self._probe(child))
                    code = await asyncio.shield(child.exited)
                    probing.cancel()
            finally:
                await child.end(0)
                self._child = None
        message = message_file.read_bytes()[:MESSAGE_BYTES_MAX].decode(errors="replace")
        self.ready = self.started = False
        self.state = _terminated(code, began, "Error" if code else "Completed", message)
        self._around.changed()
        return True

    async def _probe(self, child: Child) -> None:
        """Wait for the startup probe, then probe liveness and readiness; without a readiness probe it is ready."""
        if "startupProbe" in self.spec:
            await self._follow("startupProbe", child)
        self.started = True
        self._set_ready("readinessProbe" not in self.spec)
        async with asyncio.TaskGroup() as group:
            for kind in ("livenessProbe", "readinessProbe"):
                if kind in self.spec:
                    group.create_task(self._follow(kind, child))

    async def _follow(self, kind: str, child: Child) -> None:
        """Act on the results of a probe; that of the start ends with its first success."""
        ports = {each["name"]: each["containerPort"] for each in self.spec.get("ports") or () if "name" in each}
        async for good, why in _results(self.spec[kind], self._around.address, ports):
            if kind == "readinessProbe":
                self._set_ready(good)
            elif not good:
                await self._around.record("Unhealthy", f"{kind} of {self.spec['name']} failed: {why}; it is restarted")
                await child.end(LIVENESS_GRACE_SECONDS)
            elif kind == "startupProbe":
                return

    def _set_ready(self, ready: bool) -> None:
        self.ready = ready and not self._stopping.is_set()
        self._around.changed()


def interrupted(former: State) -> State:
    """The status of a container whose kubelet died: what ran counts as killed, for an unknown reason (6.10)."""
    state = former["state"]
    if "running" in state:
        state = _terminated(137, state["running"]["startedAt"], "ContainerStatusUnknown", "")
    return {**former, "state": state, "containerID": "", "ready": False, "started": False}


def now_text() -> str:
    """The present time as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _terminated(code: int, began: str, reason: str, message: str) -> State:
    state = {"exitCode": code, "reason": reason, "message": message, "startedAt": began, "finishedAt": now_text()}
    return {"terminated": state}


async def _results(probe: dict[str, Any], address: str, ports: Mapping[str, int]) -> AsyncIterator[tuple[bool, str]]:
    """Runs a probe for ever; yields (success, why) each time that a threshold is reached, also repeatedly."""
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    count, last = 0, None
    while True:
        good, why = await _attempt(probe, address, ports)
        count = count + 1 if good == last else 1
        last = good
        if count >= probe["successThreshold" if good else "failureThreshold"]:
            yield good, why
        await asyncio.sleep(probe["periodSeconds"])


async def _attempt(probe: dict[str, Any], address: str, ports: Mapping[str, int]) -> tuple[bool, str]:
    """One attempt: (success, what happened). Any status from 200 to 399 is a success."""
    port = ports.get(probe["httpGet"]["port"], probe["httpGet"]["port"])
    head = f"GET {probe['httpGet'].get('path', '/')} HTTP/1.1\r\nHost: {address}:{port}\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(probe["timeoutSeconds"]):
            reader, writer = await asyncio.open_connection(address, port, limit=ANSWER_BYTES_MAX)
            try:
                writer.write(head.encode())
                status = (await reader.readline()).split()[1]
            finally:
                writer.close()
            return 200 <= int(status) < 400, f"HTTP status {int(status)}"
    except (OSError, ValueError, IndexError) as error:
        return False, f"no HTTP answer ({error!r})"
