"""The cluster that end-to-end tests talk to, and what they do with RaftClusters on it."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pavane.raft.client import RaftClient
from pavane_cli.access import raft_client
from pavane_cli.commands.resources import condition, is_current
from pavane_cli.target import RAFT_CLUSTERS
from pavane_operator.kube import KubeClient, NotFound, Object, Target
from pavane_operator.kube.resources import NAMESPACES, PODS, STATEFUL_SETS, VOLUME_CLAIMS

Value = TypeVar("Value")

POLL_S = 0.05
READY_S = 90.0
LOADED: dict[str, Any] = {"electionTimeout": {"min": "1500ms", "max": "2500ms"}}
"""Election times for runs that kill, on machines with few cores."""
QUICK: dict[str, Any] = {"rollout": {"caughtUp": {"stabilityPeriod": "500ms"}, "retireDelay": "1s"}}
"""A rollout that does not wait longer than a test needs."""


async def eventually(
    check: Callable[[], Awaitable[Value | None]], what: str, timeout_s: float = READY_S, poll_s: float = POLL_S
) -> Value:
    """Return the first true answer of ``check``; fail with ``what`` at the time-out."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = await check()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Platform:
    """A running local cluster with operator and control plane, as a process of its own."""

    folder: Path
    process: "subprocess.Popen[bytes]" = field(repr=False)

    @property
    def kubeconfig(self) -> Path:
        return self.folder / ".pavane" / "kubeconfig"

    def run(
        self, *arguments: str, check: bool = True, stdin: bytes | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run ``pavane`` as a user in the cluster's folder would."""
        result = subprocess.run(
            [sys.executable, "-m", "pavane_cli.main", *arguments],
            check=False,
            cwd=self.folder,
            input=stdin.decode() if stdin is not None else None,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not check or result.returncode == 0, (arguments, result.returncode, result.stdout, result.stderr)
        return result

    def kubectl(
        self, *arguments: str, check: bool = True, stdin: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        result = subprocess.run(
            ["kubectl", "--kubeconfig", str(self.kubeconfig), *arguments],
            check=False,
            cwd=self.folder,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not check or result.returncode == 0, (arguments, result.returncode, result.stdout, result.stderr)
        return result


@contextlib.contextmanager
def platform(folder: Path, *arguments: str) -> Iterator[Platform]:
    """Run ``pavane up`` in ``folder``; at the end it must stop by itself and leave no process behind."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "up.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pavane_cli.main", "up", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Platform(folder, process)
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
    assert children_in(folder) == [], "processes were left behind"


def children_in(folder: Path) -> list[str]:
    """Return the command lines of processes that run in the cluster's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            environment = (entry / "environ").read_bytes()
            if f"PAVANE_ROOT={folder.resolve()}".encode() in environment:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return found


@dataclass(frozen=True)
class RaftTest:
    """One namespace of a platform and the RaftClusters in it."""

    platform: Platform
    kube: KubeClient
    namespace: str

    async def apply(self, name: str = "q", **spec: Any) -> Object:
        """Apply a small RaftCluster, with short periods unless ``spec`` says otherwise."""
        body = {
            "metadata": {"name": name},
            "spec": {"stateMachine": "Broadcast", "replicas": 3, "storage": {"size": "64Mi"}, **QUICK, **spec},
        }
        return await self.kube.apply(RAFT_CLUSTERS, body, self.namespace, manager="e2e", strict=True)

    async def get(self, name: str = "q") -> Object:
        return await self.kube.get(RAFT_CLUSTERS, name, self.namespace)

    async def until(
        self, check: Callable[[Object], object], what: str, name: str = "q", timeout_s: float = READY_S
    ) -> Object:
        """Return the resource as soon as ``check`` holds for it."""
        last: Object = {}

        async def look() -> Object | None:
            nonlocal last
            with contextlib.suppress(NotFound):
                last = await self.get(name)
                return last if check(last) else None
            return None

        try:
            return await eventually(look, what, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {last.get('status')}") from None

    async def until_current(self, name: str = "q", generation: int | None = None, timeout_s: float = READY_S) -> Object:
        """Return the resource when its spec is Ready and nothing is rolled out any more."""

        def check(document: Object) -> bool:
            active = (document.get("status") or {}).get("activeGeneration")
            return is_current(document) and (generation is None or active == generation)

        return await self.until(check, f"{name} is current", name, timeout_s)

    async def until_state(self, *states: str, name: str = "q", timeout_s: float = READY_S) -> Object:
        """Return the resource when its rollout is in one of ``states``."""
        return await self.until(lambda document: state_of(document) in states, f"state {states}", name, timeout_s)

    async def pods(self, name: str = "q") -> list[Object]:
        labels = f"app.kubernetes.io/instance={name}"
        return list((await self.kube.list_all(PODS, self.namespace, labels=labels)).items)

    async def stateful_sets(self, name: str = "q") -> list[str]:
        labels = f"app.kubernetes.io/instance={name}"
        found = (await self.kube.list_all(STATEFUL_SETS, self.namespace, labels=labels)).items
        return sorted(item["metadata"]["name"] for item in found)

    async def claims(self, name: str = "q") -> list[str]:
        labels = f"app.kubernetes.io/instance={name}"
        found = (await self.kube.list_all(VOLUME_CLAIMS, self.namespace, labels=labels)).items
        return sorted(item["metadata"]["name"] for item in found)

    @contextlib.asynccontextmanager
    async def client(self, name: str = "q") -> AsyncIterator[RaftClient]:
        async with await raft_client(self.kube, await self.get(name), self.platform.kubeconfig) as client:
            yield client

    def kill(self, pod: str, namespace: str | None = None) -> None:
        """Kill all processes of a pod with SIGKILL."""
        self.platform.run("kill", pod, "-n", namespace or self.namespace)


def state_of(document: Object) -> str:
    return str(((document.get("status") or {}).get("rollout") or {}).get("state", "Idle"))


def reason_of(document: Object, kind: str) -> str:
    return str((condition(document, kind) or {}).get("reason"))


def blockers_of(document: Object) -> list[str]:
    rollout = (document.get("status") or {}).get("rollout") or {}
    return [str(item["reason"]) for item in rollout.get("blockers") or ()]


@contextlib.asynccontextmanager
async def namespace_of(platform: Platform, name: str) -> AsyncIterator[RaftTest]:
    """Make a namespace for one test; it goes with everything in it."""
    async with await KubeClient.connect(Target(platform.kubeconfig)) as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": name}})
        try:
            yield RaftTest(platform, kube, name)
        finally:
            for item in (await kube.list_all(RAFT_CLUSTERS, name)).items:
                await kube.delete(RAFT_CLUSTERS, item["metadata"]["name"], name)
            await kube.delete(NAMESPACES, name)
