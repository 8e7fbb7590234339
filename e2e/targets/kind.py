"""Target `kind`: Kubernetes nodes in containers, pods in containers of these; operator and control plane by the charts.

`e2e/on-kind` makes the cluster and loads the image; a cluster that it left (KEEP=1) serves any further run.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from e2e.targets.base import Capability, Target
from e2e.targets.forwarded import ForwardedTarget

CLUSTER = "pavane-e2e"
SPARK = {Capability.SPARK} if "-spark:" in os.environ.get("E2E_IMAGE", "") else set()
CAPABILITIES = frozenset({Capability.CHART, Capability.CONTAINERS, Capability.NODES, Capability.CEL, *SPARK})
"""The nodes of `.ci/kind` enforce no network policies, and local volumes do not grow."""
ENGINE_S = 60


class KindTarget(ForwardedTarget):
    """A kind cluster with Pavane installed by Helm."""

    name: ClassVar[str] = "kind"
    capabilities: ClassVar[frozenset[Capability]] = CAPABILITIES
    values = (f"rbac.sparkExecutors={'true' if SPARK else 'false'}",)

    def __init__(self, folder: Path, image: str) -> None:
        super().__init__(folder, image)
        self.kubeconfig.write_text(_output("kind", "get", "kubeconfig", "--name", CLUSTER))

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
