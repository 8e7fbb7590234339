"""An application in a pod: the Secret that the operator keeps for it, mounted, and one line (docs/connect.md)."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import RaftTest
from e2e.targets import Capability
from e2e.targets.base import KUBECTL
from e2e.waiting import eventually
from pavane_operator.kube import KubeError
from pavane_operator.kube.resources import PODS

PROGRAM = """
import signal
import pavane
with pavane.connect_sync("q") as raft:
    raft.put("app/colour", "red")
    with raft.lock("jobs/backup") as lock:
        raft.put("jobs/last", "42", fenced_by=lock)
    print(raft.get("app/colour"), raft.list("jobs/")["jobs/last"], flush=True)
signal.pause()
"""
MOUNT = "/var/run/secrets/pavane.dev/q"


def application(image: str) -> dict[str, Any]:
    """A pod without any right in the cluster."""
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "metadata": {"name": "application"},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "q", "secret": {"secretName": "q-client"}}],
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": ["python", "-c", PROGRAM],
                    "volumeMounts": [{"name": "q", "mountPath": MOUNT, "readOnly": True}],
                    "securityContext": restricted,
                }
            ],
        },
    }


async def test_a_pod_with_the_mounted_secret_connects_in_one_line(raft: RaftTest) -> None:
    await raft.apply(stateMachine="KeyValue", replicas=1)
    await raft.until_current(generation=1)
    await raft.kube.create(PODS, application(raft.platform.image), raft.namespace)
    try:
        said = b""

        async def connected() -> bool:
            nonlocal said
            with contextlib.suppress(KubeError):  # it has not begun
                said = b"".join([piece async for piece in raft.kube.pod_logs("application", raft.namespace)])
            return said.endswith(b"\n")

        await eventually(connected, "the application says something")
        assert said.decode() == "b'red' b'42'\n"
    finally:
        await raft.kube.delete(PODS, "application", raft.namespace)


@pytest.mark.smoke
@pytest.mark.needs(Capability.CONTAINERS)
async def test_a_laptop_connects_by_a_forwarded_port_as_the_page_says(raft: RaftTest) -> None:
    await raft.apply(stateMachine="KeyValue", replicas=1)
    await raft.until_current(generation=1)
    page = (Path(__file__).parents[1] / "docs" / "connect.md").read_text("utf-8")
    (forward, read) = re.findall(r"^    (kubectl port-forward .*8047) &\n    python (-c .*)$", page, re.MULTILINE)[0]
    forward = forward.replace("quickstart", "q").replace("kubectl", f"exec {KUBECTL} -n {raft.namespace}")
    read = read.replace('"quickstart"', f'"q", namespace="{raft.namespace}"')
    given = {**os.environ, "KUBECONFIG": str(raft.platform.kubeconfig)}
    forwarding = await asyncio.create_subprocess_shell(forward, env=given)
    try:
        laptop = await asyncio.create_subprocess_shell(
            f"{sys.executable} {read}", env=given, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await laptop.communicate()
    finally:
        forwarding.send_signal(signal.SIGTERM)
        await forwarding.wait()
    assert said.decode() == "None\n"
