"""Target `kind`: Kubernetes nodes in containers, pods in containers of these; operator and control plane by the charts.

`e2e/on-kind` makes the cluster and loads the image; a cluster that it left (KEEP=1) serves any further run.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

import httpx2

from e2e.targets.base import SYSTEM, Capability, Target
from e2e.targets.charts import ChartTarget

CLUSTER = "pavane-e2e"
CAPABILITIES = frozenset({Capability.CHART, Capability.CONTAINERS, Capability.NODES, Capability.CEL})
"""The nodes of `.ci/kind` enforce no network policies, and local volumes do not grow."""
FORWARD_S = 30.0
CHECK_S = 2.0
ENGINE_S = 60
POLL_S = 0.05


class KindTarget(ChartTarget):
    """A kind cluster with Pavane installed by Helm."""

    name: ClassVar[str] = "kind"
    capabilities: ClassVar[frozenset[Capability]] = CAPABILITIES

    def __init__(self, folder: Path, image: str) -> None:
        super().__init__(folder, folder / "kubeconfig")
        self.image = image
        self._forward: _Forward | None = None
        self._token = ""
        self.kubeconfig.write_text(_output("kind", "get", "kubeconfig", "--name", CLUSTER))

    # --- the platform ---

    def environment(self) -> Mapping[str, str]:
        """Address and token of the control plane, once it is installed."""
        if self._forward is None:
            return {}
        return {"PAVANE_API_URL": self._forward.url(), "PAVANE_API_TOKEN": self._token}

    @contextlib.contextmanager
    def reachable(self) -> Iterator[None]:
        """Forward a port of this machine to the control plane, for an account that may do everything."""
        self._token = self.new_token()
        self._forward = _Forward(self.kubeconfig)
        try:
            yield
        finally:
            self._forward.stop()
            self._forward = None

    # --- pods and nodes ---

    def signal(self, pod: str, namespace: str, number: signal.Signals) -> bool:
        found = self.kubectl("get", "pod", pod, "--namespace", namespace, "--output", "json", check=False)
        if found.returncode:
            return False
        document = json.loads(found.stdout)
        statuses = (document.get("status") or {}).get("containerStatuses") or ()
        running = [item["containerID"].removeprefix("containerd://") for item in statuses if "running" in item["state"]]
        kill = ("ctr", "--namespace", "k8s.io", "tasks", "kill", "--all", "--signal", number.name)
        sent = [self.on_node(document["spec"]["nodeName"], *kill, one).returncode == 0 for one in running]
        return any(sent)

    def on_node(self, node: str, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in a node."""
        return _engine("exec", node, *command)

    def workers(self) -> list[str]:
        """Names of the nodes that run pods of resources."""
        found = self.kubectl("get", "nodes", "--selector", "!node-role.kubernetes.io/control-plane", "--output", "name")
        return sorted(line.removeprefix("node/") for line in found.stdout.split())

    def lose_node(self, node: str) -> None:
        """End a node at once, as a power cut would."""
        assert _engine("kill", node).returncode == 0, f"{node} did not run"

    def start_node(self, node: str) -> None:
        """Start a node that was lost."""
        assert _engine("start", node).returncode == 0, f"{node} does not start"


@dataclass
class _Forward:
    """A `kubectl port-forward` to the control plane. It ends with the pod that it found, so it is begun again."""

    kubeconfig: Path
    process: "subprocess.Popen[str] | None" = None
    port: int = 0

    def url(self) -> str:
        """Address at which the control plane answers now."""
        deadline = time.monotonic() + FORWARD_S
        while not self._answers():
            assert time.monotonic() < deadline, "the control plane cannot be reached through a port-forward"
            self.stop()
            self._start()
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def _answers(self) -> bool:
        if self.process is None:
            return False
        with contextlib.suppress(httpx2.HTTPError):
            url = f"http://127.0.0.1:{self.port}/api/v1/openapi.json"
            return httpx2.get(url, timeout=CHECK_S, trust_env=False).status_code == httpx2.codes.OK
        return False

    def _start(self) -> None:
        self.process = subprocess.Popen(
            ["kubectl", "port-forward", "--namespace", SYSTEM, "service/pavane-api", ":8000"],
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.port = _port(self.process.stdout)


def _port(said: IO[str] | None) -> int:
    """The port that the first line names; 0 when there is none, for it ended."""
    assert said is not None
    found = re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", said.readline())
    return int(found[1]) if found else 0


def _output(*command: str) -> str:
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=ENGINE_S)
    assert result.returncode == 0, f"{' '.join(command)}: {result.stderr.strip()}; `make e2e-kind` makes the cluster"
    return result.stdout


def _engine(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["docker", *arguments], check=False, capture_output=True, text=True, timeout=ENGINE_S)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Target]:
    """Install the charts on the cluster that `e2e/on-kind` made; what they installed stays, for the cluster goes."""
    target = KindTarget(folder, os.environ["E2E_IMAGE"])
    target.install()
    with target.reachable():
        asyncio.run(target.until_ready())
        yield target
