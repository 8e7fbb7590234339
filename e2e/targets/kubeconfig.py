"""Target `kubeconfig`: the cluster of the current context, if `E2E_ALLOWED_CONTEXTS` names it.

`E2E_IMAGE` names an image that its nodes can pull. Where Pavane is installed already it is used as it is; else it is
installed for the run. Signals to processes come from a privileged pod on the node, so a test user must be allowed one.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from e2e.targets.base import KUBECTL, SYSTEM, Capability, Target
from e2e.targets.charts import RELEASES
from e2e.targets.forwarded import ForwardedTarget
from tests.requires import requires

CAPABILITIES = frozenset({Capability.CHART, Capability.CONTAINERS, Capability.CEL})
ALLOWED = "E2E_ALLOWED_CONTEXTS"
NAMESPACE = "pavane-e2e"
"""Of the pods that send signals: they are privileged, so they have a namespace without the platform's restrictions."""
SIGNAL_S = "60s"
SEND = """
import os, pathlib, sys
number, *containers = sys.argv[1:]
sent = False
for entry in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        groups = (entry / "cgroup").read_text()
    except OSError:
        continue
    if any(one in groups for one in containers):
        os.kill(int(entry.name), int(number))
        sent = True
sys.exit(not sent)
"""


class KubeconfigTarget(ForwardedTarget):
    """The user's cluster."""

    name: ClassVar[str] = "kubeconfig"
    capabilities: ClassVar[frozenset[Capability]] = CAPABILITIES

    def signal(self, pod: str, namespace: str, number: signal.Signals) -> bool:
        found = self.kubectl("get", "pod", pod, "--namespace", namespace, "--output", "json", check=False)
        if found.returncode:
            return False
        document = json.loads(found.stdout)
        statuses = (document.get("status") or {}).get("containerStatuses") or ()
        running = [one["containerID"].rpartition("/")[2] for one in statuses if "running" in one["state"]]
        sender = self._sender(document["spec"]["nodeName"], number, running)
        name = sender["metadata"]["name"]
        bare = ("--namespace", NAMESPACE)
        self.kubectl("create", "--filename", "-", *bare, stdin=json.dumps(sender))
        ended = "--for=jsonpath={.status.containerStatuses[0].state.terminated}"
        self.kubectl("wait", f"pod/{name}", ended, f"--timeout={SIGNAL_S}", *bare)
        code = "--output=jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
        sent = self.kubectl("get", "pod", name, code, *bare).stdout == "0"
        self.kubectl("delete", "pod", name, "--wait=false", *bare)
        return sent

    def _sender(self, node: str, number: int, containers: list[str]) -> dict[str, Any]:
        container = {
            "name": "sender",
            "image": self.image,
            "command": ["python3", "-c", SEND, str(number), *containers],
            "securityContext": {"privileged": True, "runAsUser": 0, "runAsNonRoot": False},
        }
        spec = {
            "nodeName": node,
            "hostPID": True,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [container],
        }
        name = f"signal-{uuid.uuid4().hex[:8]}"
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Target]:
    """Use the cluster of the current context; what is installed for the run is uninstalled after it."""
    requires("kubectl")
    requires("helm")
    context = _kubectl("config", "current-context").strip()
    if context not in os.environ.get(ALLOWED, "").split(","):
        pytest.fail(
            f"tests would change the cluster of context {context}: allow it by {ALLOWED}={context}", pytrace=False
        )
    target = KubeconfigTarget(folder, os.environ["E2E_IMAGE"])
    target.kubeconfig.write_text(_kubectl("config", "view", "--minify", "--flatten"))
    target.kubectl("create", "namespace", NAMESPACE)
    with contextlib.ExitStack() as stack:
        stack.callback(target.kubectl, "delete", "namespace", NAMESPACE)
        releases = {one["name"] for one in json.loads(target.helm("list", "-n", SYSTEM, "-o", "json").stdout)}
        if not releases.intersection(RELEASES):
            stack.callback(target.uninstall)
            target.install()
        stack.enter_context(target.reachable())
        asyncio.run(target.until_ready())
        yield target


def _kubectl(*arguments: str) -> str:
    result = subprocess.run([KUBECTL, *arguments], check=False, capture_output=True, text=True)
    if result.returncode:
        pytest.fail(f"kubectl {' '.join(arguments)}: {result.stderr.strip()}", pytrace=False)
    return result.stdout
