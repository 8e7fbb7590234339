"""`pavane up` as a process of its own, as a user starts it."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pavane_operator.kube import KubeClient, KubeError, Object, Target
from pavane_operator.kube.resources import PODS, STATEFUL_SETS

PAVANE = (sys.executable, "-m", "pavane_cli.main")
LOG_NAME = "up.log"
READY_LINE = "All is Ready."  # what `pavane up` says then
POLL_S = 0.005  # below what any figure is rounded to
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
LAST_WORDS = 5  # lines of the log that an error shows


class BenchError(Exception):
    """A benchmark cannot go on; the text says why."""


@dataclass(frozen=True)
class LocalCluster:
    """A running ``pavane up`` in ``folder``; ``started`` is when it was started (monotonic seconds)."""

    folder: Path
    process: "subprocess.Popen[bytes]" = field(repr=False)
    started: float

    @property
    def kubeconfig(self) -> Path:
        """Where its kubeconfig is, once it serves."""
        return self.folder / ".pavane" / "kubeconfig"

    async def until_ready(self) -> float:
        """Wait until all that was applied is Ready; returns the seconds since the start of the process."""
        while READY_LINE not in self._log():
            self._check()
            await asyncio.sleep(POLL_S)
        return time.monotonic() - self.started

    async def until_serving(self) -> None:
        """Wait until its API server answers."""
        while True:
            self._check()
            if self.kubeconfig.exists():
                with contextlib.suppress(KubeError):
                    async with self.client() as kube:
                        await kube.raw("GET", "/version")
                        return
            await asyncio.sleep(POLL_S)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[KubeClient]:
        """Lend a client with all rights."""
        async with await KubeClient.connect(Target(self.kubeconfig)) as kube:
            yield kube

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash of the machine would."""
        self.process.kill()
        self.process.wait()

    def _log(self) -> str:
        return (self.folder / LOG_NAME).read_text(encoding="utf-8", errors="replace")

    def _check(self) -> None:
        ended = self.process.poll() is not None
        if ended or time.monotonic() - self.started > START_TIMEOUT_S:
            words = "\n  ".join(self._log().strip().splitlines()[-LAST_WORDS:])
            what = "ended" if ended else f"was not there after {START_TIMEOUT_S:.0f} s"
            raise BenchError(f"`pavane up` in {self.folder} {what}:\n  {words}")


def start(folder: Path, *arguments: str) -> LocalCluster:
    """Start ``pavane up`` in ``folder`` and return at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG_NAME).open("wb") as log:
        started = time.monotonic()
        process = subprocess.Popen(
            [*PAVANE, "up", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return LocalCluster(folder, process, started)


def stop(cluster: LocalCluster) -> None:
    """Stop a cluster in order."""
    cluster.process.terminate()
    try:
        cluster.process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        cluster.kill()
        raise BenchError(f"`pavane up` in {cluster.folder} did not stop within {STOP_TIMEOUT_S:.0f} s") from None


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[LocalCluster]:
    """Run ``pavane up`` for as long as the context is open."""
    cluster = start(folder, *arguments)
    try:
        yield cluster
    finally:
        stop(cluster)


def pid_of(pod: Object) -> int:
    """The process of the pod's first container."""
    container: str = pod["status"]["containerStatuses"][0]["containerID"]
    return int(container.removeprefix("process://").partition("/")[0])


def processes_by_pod(folder: Path) -> Counter[str]:
    """How many process groups run for each pod of the cluster in ``folder``, as the system itself tells."""
    marker = f"PAVANE_ROOT={folder.resolve()}/".encode()
    found: Counter[str] = Counter()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            variables = (entry / "environ").read_bytes().split(b"\0")
            if os.getpgid(int(entry.name)) == int(entry.name) and any(each.startswith(marker) for each in variables):
                names = [each for each in variables if each.startswith(b"HOSTNAME=")]
                found[names[0].decode().partition("=")[2]] += 1
    return found


async def apply_sleepers(kube: KubeClient, name: str, namespace: str, replicas: int) -> None:
    """Make a StatefulSet of pods that do nothing."""
    labels = {"app": name}
    container = {"name": "sleep", "image": "pavane:local", "command": ["sleep", "1000"]}
    pod = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    spec = {
        "serviceName": name,
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    await kube.create(STATEFUL_SETS, {"metadata": {"name": name}, "spec": spec}, namespace)


async def until_all_ready(kube: KubeClient, name: str, namespace: str) -> None:
    """Wait until all pods of a StatefulSet are ready, by a watch."""
    async for change in kube.watch(STATEFUL_SETS, namespace, fields=f"metadata.name={name}"):
        if change.type != "BOOKMARK":
            status = change.object.get("status") or {}
            if status.get("readyReplicas") == change.object["spec"]["replicas"]:
                return
    raise BenchError(f"the watch of StatefulSet {name} ended before its pods were ready")


async def until_no_pods(kube: KubeClient, name: str, namespace: str) -> None:
    """Wait until no pod of a StatefulSet is left."""
    while True:
        if not (await kube.list_all(PODS, namespace, labels=f"app={name}")).items:
            return
        await asyncio.sleep(POLL_S)
