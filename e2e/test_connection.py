"""An application in a pod: the Secret that the operator keeps for it, mounted, and one line (docs/connect.md)."""

import contextlib
from typing import Any

from e2e.cluster import RaftTest
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
