"""What every target offers to the tests, and what most of them do in the same way."""

import contextlib
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

from e2e.kubernetes.tools import find
from e2e.waiting import eventually
from pavane_operator.kube import KubeClient, KubeError, Object
from pavane_operator.kube import Target as KubeTarget
from pavane_operator.kube.resources import PODS

SYSTEM = "pavane-system"
COMPONENT_LABEL = "app.kubernetes.io/component"
COMMAND_S = 120
KUBECTL = str(find("kubectl") or "kubectl")
"""The user's own, else the one that `make e2e-tools` built."""
PLATFORM_READY_S = 180.0
"""Longest start of operator and control plane: in containers an image may have to be unpacked first."""


class Capability(StrEnum):
    """What a test may need of its target."""

    EMBEDDED = "embedded"
    """The cluster is `pavane up` itself: a process that a test may kill."""
    DIRECT = "direct"
    """The test process reaches the addresses of pods and resolves names of Services and pods."""
    CHART = "chart"
    """Operator and control plane come from the charts: Deployments, RBAC, hooks."""
    CONTAINERS = "containers"
    """Pods are containers: images are pulled, the security context counts."""
    SPARK = "spark"
    """Pods may run Spark and make executors."""
    NODES = "nodes"
    """There are several nodes, to be drained, stopped and started."""
    NETWORK_POLICY = "network-policy"
    """NetworkPolicies are enforced."""
    CEL = "cel"
    """The server checks the rules in CRDs."""
    GROWTH = "csi-resize"
    """Volume claims grow."""


class Target(ABC):
    """A running cluster with operator and control plane.

    A provider is a module with ``CAPABILITIES`` and ``running(folder)``, a context manager that yields a ready target.
    """

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[Capability]]
    image: str = "pavane:local"
    """An image that runs `pavane` on this target."""

    def __init__(self, folder: Path, kubeconfig: Path) -> None:
        self.folder = folder
        """Where `pavane` and `kubectl` run."""
        self.kubeconfig = kubeconfig

    @abstractmethod
    def naming(self, namespace: str, pods: Mapping[str, Sequence[str]], port: int) -> AbstractContextManager[Path]:
        """Make a port of pods reachable by names (pod → names); yields the hosts file that has them."""

    @abstractmethod
    def signal(self, pod: str, namespace: str, number: signal.Signals) -> bool:
        """Send a signal to all processes of a pod; False when none of it runs."""

    def environment(self) -> Mapping[str, str]:
        """What `pavane` finds in its environment beside ours, for instance address and token of the control plane."""
        return {}

    def run(
        self, *arguments: str, check: bool = True, stdin: bytes | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run `pavane` as a user would."""
        given = stdin.decode() if stdin is not None else None
        return self._run(
            [sys.executable, "-m", "pavane_cli.main", *arguments], check, given, environment=self.environment()
        )

    def kubectl(
        self, *arguments: str, check: bool = True, stdin: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run `kubectl` as a user would."""
        return self._run([KUBECTL, *arguments], check, stdin)

    def _run(
        self,
        command: list[str],
        check: bool,
        stdin: str | None,
        timeout_s: float = COMMAND_S,
        environment: Mapping[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        result = subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            env={**os.environ, "KUBECONFIG": str(self.kubeconfig), **(environment or {})},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert not check or result.returncode == 0, (command, result.returncode, result.stdout, result.stderr)
        return result

    def ended(self) -> str | None:
        """Last words of a target that has ended by itself."""
        return None

    async def platform_pods(self, kube: KubeClient, component: str) -> list[Object]:
        """The pods of `operator` or `api`."""
        return list((await kube.list_all(PODS, SYSTEM, labels=f"{COMPONENT_LABEL}={component}")).items)

    async def until_ready(self) -> None:
        """Wait until operator and control plane are ready."""

        async def ready() -> bool:
            assert (words := self.ended()) is None, words
            if not self.kubeconfig.exists():
                return False
            with contextlib.suppress(KubeError):
                async with await KubeClient.connect(KubeTarget(self.kubeconfig)) as kube:
                    found = [await self.platform_pods(kube, each) for each in ("operator", "api")]
                return all(pods and all(is_ready(pod) for pod in pods) for pods in found)
            return False

        await eventually(ready, "operator and control plane are ready", PLATFORM_READY_S)


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)
