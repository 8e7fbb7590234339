"""Pods that are nothing but a stage port, all of them in one process; and an operator that asks no store.

They show what many resources cost the operator and the API server, without the protocols behind real pods.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import replace

from pavane.compute.transport import STAGE_PORT
from pavane.compute.wire.common import Token
from pavane.stage.role import RoleReport
from pavane.stage.server import StageServer
from pavane.wire.stages import Stage
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kinds.registry import kinds
from pavane_operator.kube import KubeClient, KubeError, NotFound, Object
from pavane_operator.kube.client import MERGE
from pavane_operator.kube.resources import ENDPOINT_SLICES, PODS
from pavane_operator.plan.model import GENERATION_LABEL, Facts, Observed, Resource
from pavane_operator.plan.port import Kind
from pavane_operator.runtime.main import run
from pavane_operator.runtime.observe import SERVICE_NAME_LABEL
from pavane_operator.runtime.operator import MANAGED_SELECTOR

OPS_PORT = 7071
MANAGER = "stub-pods"
CALLS_AT_ONCE = 10
RETRY_S = 0.2
ADDRESSES_PER_BLOCK = 250
STARTED = "2030-01-01T00:00:00Z"


class StubClient(KubeClient):
    """The call that only a kubelet makes."""

    async def patch_status(self, namespace: str, name: str, status: Object) -> None:
        """Merge patch of a pod's status."""
        body = {"status": status}
        await self._call("PATCH", PODS.path(namespace, name, "status"), body=body, content_type=MERGE)


class StubRole:
    """A program that does at once what it is told."""

    unit = "entries"
    live_settings: frozenset[str] = frozenset()
    told_settings = frozenset({"bootstrap", "initial"})
    token: Token | None = None

    def __init__(self, kind: str, generation: int) -> None:
        self.kind = kind
        self.generation = generation

    def configure(self, settings: Mapping[str, str]) -> None:
        """There is nothing to configure."""

    async def read_only(self) -> None:
        """Nothing is to be read."""

    async def read_write(self, token: Token, _told: Mapping[str, str]) -> bool:
        """Nothing is to be stored."""
        self.token = token
        return True

    def report(self) -> RoleReport:
        """It has caught up with nobody."""
        return RoleReport(leads=True)


class StubPod:
    """The stage port and `/stage` of one pod, on an address of its own."""

    def __init__(self, address: str, role: StubRole) -> None:
        self.address = address
        self._stage = StageServer(role, lambda _code, _reason: None, host=address, port=STAGE_PORT)
        self._ops: asyncio.Server | None = None

    async def start(self) -> None:
        """Serve."""
        await self._stage.start()
        self._ops = await asyncio.start_server(self._answer, self.address, OPS_PORT)

    async def stop(self) -> None:
        """Close both ports."""
        await self._stage.stop()
        if self._ops is not None:
            self._ops.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            report = self._stage.report()
            document = {
                "stage": report.stage.title,
                "progress": report.progress,
                "target": report.target,
                "leads": report.leads,
                "blockers": [],
            }
            body = json.dumps(document).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            await writer.drain()
        writer.close()


class StubNode:
    """Gives every pod of ours an address, a stage port and the condition Ready; and shows Services who is ready."""

    def __init__(self, kube: StubClient, stage_kind: str) -> None:
        self._kube = kube
        self._stage_kind = stage_kind
        self._pods: dict[str, StubPod] = {}
        self._slots = asyncio.Semaphore(CALLS_AT_ONCE)
        self._work: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        """Follow the pods until cancelled, then close all of them."""
        try:
            while True:
                with contextlib.suppress(KubeError):
                    await self._follow()
                await asyncio.sleep(RETRY_S)
        finally:
            await asyncio.gather(*self._work, *(pod.stop() for pod in self._pods.values()), return_exceptions=True)

    async def _follow(self) -> None:
        async for change in self._kube.watch(PODS, labels=MANAGED_SELECTOR):
            metadata = change.object["metadata"]
            if change.type == "ADDED" and metadata["uid"] not in self._pods:
                self._spawn(change.object)
            elif change.type == "DELETED" and metadata["uid"] in self._pods:
                await self._pods[metadata["uid"]].stop()

    def _spawn(self, body: Object) -> None:
        number = len(self._pods)
        address = f"127.90.{number // ADDRESSES_PER_BLOCK}.{number % ADDRESSES_PER_BLOCK + 1}"
        generation = int(body["metadata"]["labels"][GENERATION_LABEL])
        pod = self._pods[body["metadata"]["uid"]] = StubPod(address, StubRole(self._stage_kind, generation))
        task = asyncio.create_task(self._start(pod, body))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _start(self, pod: StubPod, body: Object) -> None:
        await pod.start()
        metadata = body["metadata"]
        conditions = [{"type": name, "status": "True"} for name in ("PodScheduled", "ContainersReady", "Ready")]
        status = {
            "phase": "Running",
            "podIP": pod.address,
            "podIPs": [{"ip": pod.address}],
            "startTime": STARTED,
            "conditions": conditions,
        }
        async with self._slots:
            with contextlib.suppress(NotFound):
                await self._kube.patch_status(metadata["namespace"], metadata["name"], status)
            await self._show(body)

    async def _show(self, body: Object) -> None:
        """One slice per pod. A real server refuses loopback addresses, so it gets a name."""
        metadata = body["metadata"]
        service = metadata["labels"]["app.kubernetes.io/instance"]
        endpoint = {
            "addresses": [f"{metadata['name']}.{metadata['namespace']}.svc"],
            "conditions": {"ready": True},
            "targetRef": {"kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]},
        }
        slice_of_one = {
            "metadata": {
                "name": f"{metadata['name']}-stub",
                "labels": {
                    **{key: value for key, value in metadata["labels"].items() if key.startswith("app.kubernetes.io/")},
                    SERVICE_NAME_LABEL: service,
                },
            },
            "addressType": "FQDN",
            "endpoints": [endpoint],
            "ports": [],
        }
        await self._kube.create_if_absent(ENDPOINT_SLICES, slice_of_one, metadata["namespace"], manager=MANAGER)


class NoStore:
    """A promotion that believes the pods: who is ReadWrite leads."""

    def __init__(self, namespace: str, name: str, uid: str) -> None:
        """Whose it is makes no difference."""

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        """Read off the pods' stages."""
        coming = resource.status.next_generation if resource.status is not None else None
        stages = [
            pod.stage.stage if pod.stage is not None else Stage.CREATION
            for pod in observed.pods
            if pod.generation == coming
        ]
        leads = bool(stages) and all(stage is Stage.READ_WRITE for stage in stages)
        return Facts(leads=leads, safety=None)

    async def step(self, *_: object) -> None:
        """A first generation takes no step."""

    async def undo(self, *_: object) -> None:
        """There is nothing to take back."""

    async def close(self) -> None:
        """There are no connections."""


def without_stores(defaults: RenderDefaults) -> tuple[Kind, ...]:
    """All kinds, rendered as ever, promoted without a store."""
    return tuple(replace(kind, promotion=NoStore) for kind in kinds(defaults))


if __name__ == "__main__":
    sys.exit(run(without_stores))
