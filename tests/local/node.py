"""A node for tests: store, cluster, controllers and kubelet in this process, without HTTP and certificates."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from pavane_local.api.cluster import Cluster
from pavane_local.controllers import collector, endpoints, statefulset
from pavane_local.kubelet.addresses import AddressBlock
from pavane_local.kubelet.kubelet import Kubelet
from pavane_local.kubelet.logs import LogOptions
from pavane_local.kubelet.pod import KubeletSettings
from pavane_local.store import Object, ObjectStore

EVENTUALLY_SECONDS = 20.0
FAST = 200.0  # divides back-offs: 10 s become 50 ms
SERVE_FILE = """
import http.server, os, pathlib, socketserver
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if pathlib.Path(os.environ["SWITCH"]).exists() else 503)
        self.end_headers()
http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8080), Handler).serve_forever()
"""
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


class Node:
    """What a test uses of a running node."""

    def __init__(self, folder: Path, cluster: Cluster, kubelet: Kubelet) -> None:
        self.folder = folder
        self.cluster = cluster
        self.kubelet = kubelet

    def pod(self, name: str) -> Object:
        """The pod, or an empty object."""
        return self.cluster.find("pods", "default", name) or {}

    def container(self, name: str) -> dict[str, Any]:
        """The status of the pod's first container, or an empty one."""
        statuses = self.pod(name).get("status", {}).get("containerStatuses") or [{"state": {}, "lastState": {}}]
        first: dict[str, Any] = statuses[0]
        return first

    def root(self, name: str) -> Path:
        """The root folder of the pod's first container."""
        pod = self.pod(name)
        container = pod["spec"]["containers"][0]["name"]
        return self.folder.joinpath("pods/default", name, pod["metadata"]["uid"], container, "root")

    async def run(self, name: str, *command: str, **spec: Any) -> None:
        """Create a pod with one container; `container` updates the container, the rest the pod's spec."""
        container = {"name": "main", "image": "pavane:test", "command": list(command), **spec.pop("container", {})}
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container], **spec}}
        await self.cluster.create("pods", body)

    async def log(self, name: str, *, previous: bool = False, **options: Any) -> str:
        """The log of the pod's first container."""
        pod = self.pod(name)
        stream = self.kubelet.stream(
            pod, pod["spec"]["containers"][0]["name"], LogOptions(**options), previous=previous
        )
        return b"".join([piece async for piece in stream]).decode()

    def is_ready(self, name: str) -> bool:
        """Whether the pod's condition Ready is True."""
        conditions = self.pod(name).get("status", {}).get("conditions") or ()
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


@contextlib.asynccontextmanager
async def running_node(folder: Path) -> AsyncIterator[Node]:
    """Run a node with namespace `default` in `folder`; what is left of its processes is killed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with ObjectStore(folder / "store.sqlite") as store, contextlib.closing(AddressBlock.claim(folder)) as block:
        cluster = Cluster(store)
        if cluster.find("namespaces", "", "default") is None:
            await cluster.create("namespaces", {"metadata": {"name": "default"}})
        kubelet_settings = KubeletSettings(
            folder,
            Path(sys.prefix),
            lambda: "https://127.0.0.1:6443",
            lambda pod: f"config of {pod['metadata']['name']}",
            lambda pod, audience: f"token of {pod['metadata']['name']} for {audience}",
            speed=FAST,
        )
        kubelet = Kubelet(cluster, kubelet_settings, block)
        await kubelet.recover()
        parts = (
            collector.collect_garbage(cluster),
            collector.namespaces(cluster).run(),
            endpoints.controller(cluster).run(),
            statefulset.controller(cluster).run(),
            kubelet.run(),
        )
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(part) for part in parts]
            yield Node(folder, cluster, kubelet)
            for task in tasks:
                task.cancel()


async def eventually(condition: Callable[[], Any], seconds: float = EVENTUALLY_SECONDS) -> Any:
    """Wait until `condition` is true; returns its value. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "the condition never became true"
        await asyncio.sleep(0.01)
    return value
