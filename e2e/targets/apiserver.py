"""Target `apiserver`: a real control plane of Kubernetes, the platform by its charts, pods as processes."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from e2e.kubernetes.control_plane import dies_with
from e2e.kubernetes.kubelet import NODES
from e2e.kubernetes.mirror import NODE
from e2e.targets.base import SYSTEM, Capability, Target, is_ready
from e2e.targets.charts import ChartTarget
from e2e.targets.local import LOG_SHOWN_CHARS, ProcessTarget, children_in
from e2e.waiting import eventually
from pavane.runtime.names import parse_hosts
from pavane_cli.access import HOSTS_FOLDER
from pavane_operator.kube import KubeClient, KubeError
from pavane_operator.kube import Target as KubeTarget
from tests.requires import requires

CAPABILITIES = frozenset({Capability.CHART, Capability.DIRECT, Capability.CEL, Capability.GROWTH, Capability.SPARK})
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "helm")
API_NAME = f"pavane-api.{SYSTEM}.svc"
API_PORT = 8000
STOP_S = 30


class ApiServerTarget(ProcessTarget, ChartTarget):
    """A process that runs the control plane and a node (`e2e.kubernetes.cluster`)."""

    name: ClassVar[str] = "apiserver"
    capabilities: ClassVar[frozenset[Capability]] = CAPABILITIES
    values = ("api.extraEnv.PAVANE_API_HOST=$(POD_IP)", "rbac.sparkExecutors=true")
    """Processes share the machine's network: each keeps to the address of its pod. A test has executors of Spark."""

    def __init__(self, folder: Path, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(folder)
        self.process = process
        self.token = ""

    def ended(self) -> str | None:
        return None if self.process.poll() is None else (self.folder / "cluster.log").read_text()[-LOG_SHOWN_CHARS:]

    def environment(self) -> Mapping[str, str]:
        """Token and present address of the control plane, once it is installed and ready."""
        hosts = self.kubeconfig.parent / HOSTS_FOLDER / SYSTEM
        addresses = parse_hosts(hosts.read_text()).get(API_NAME, ()) if hosts.exists() else ()
        urls = [f"http://{address}:{API_PORT}" for address in addresses]
        return {"PAVANE_API_TOKEN": self.token, "PAVANE_API_URL": urls[0]} if self.token and urls else {}

    async def until_node_ready(self) -> None:
        """Wait until pods can be scheduled."""

        async def ready() -> bool:
            assert (words := self.ended()) is None, words
            if not self.kubeconfig.exists():
                return False
            with contextlib.suppress(KubeError):
                async with await KubeClient.connect(KubeTarget(self.kubeconfig)) as kube:
                    return is_ready(await kube.get(NODES, NODE))
            return False

        await eventually(ready, "the node is ready")


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Target]:
    """Run a control plane with a node and install the charts on it."""
    for program in PROGRAMS:
        requires(program)
    with _started(folder) as target:
        asyncio.run(target.until_node_ready())
        target.install()
        target.token = target.new_token()
        asyncio.run(target.until_ready())
        yield target


@contextlib.contextmanager
def _started(folder: Path) -> Iterator[ApiServerTarget]:
    with (folder / "cluster.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "e2e.kubernetes.cluster", str(folder / ".pavane")],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - it calls nothing that takes a lock
        )
    try:
        yield ApiServerTarget(folder, process)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        finally:
            process.kill()
            process.wait()
    assert children_in(folder) == [], "processes were left behind"
