"""A local cluster in this process, with the operator as a process beside it that tests may kill."""

import asyncio
import base64
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2

from pavane.application.finding import FILE, Connection
from pavane.raft.client import RaftClient
from pavane.raft.keys import RaftKeys
from pavane_local.platform import LocalCluster, LocalSettings, local_cluster
from pavane_operator.kube import KubeClient, Target
from pavane_operator.kube.resources import EVENTS, LEASES, PODS, SECRETS, Object, Resource, custom
from tests.services.ports import free_ports

RAFT_CLUSTERS = custom("RaftCluster", "raftclusters")
NAMESPACE = "default"
NAME = "log"
UNTIL_S = 45.0
FAST = {"retireDelay": "0s", "caughtUp": {"stabilityPeriod": "200ms"}}
"""Rollout settings without waits that only time would end."""

Condition = Callable[[Object], Any]


@dataclass
class Rig:
    """What a test holds in its hands."""

    local: LocalCluster
    kube: KubeClient
    folder: Path
    operator: asyncio.subprocess.Process | None = None
    spec: dict[str, Any] = field(default_factory=dict)
    health_port: int = 0
    started: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start_operator(self, module: str = "pavane_operator.runtime.main", **settings: str) -> None:
        """Start the operator that `module` runs, with these variables."""
        (self.health_port,) = free_ports(1)
        variables = {
            **os.environ,
            "KUBECONFIG": str(self.local.kubeconfig),
            "POD_IP": "127.0.0.1",
            "POD_NAMESPACE": "pavane-system",
            "POD_UID": "the-same-pod",
            "PAVANE_HEALTH_PORT": str(self.health_port),
            "PAVANE_DEFAULT_IMAGE": "pavane:local",
            **settings,
        }
        command = (sys.executable, "-c", f"import sys; from {module} import run; sys.exit(run())")
        with (self.folder / "operator.log").open("ab") as log:
            self.operator = await asyncio.create_subprocess_exec(*command, env=variables, stdout=log, stderr=log)
        self.started.append(self.operator)

    async def stop_operator(self, *, kill: bool = False) -> int:
        operator, self.operator = self.operator, None
        assert operator is not None
        with contextlib.suppress(ProcessLookupError):
            operator.kill() if kill else operator.terminate()
        return await operator.wait()

    async def apply(self, **spec: Any) -> None:
        """Change these fields of the resource; the others stay as they were applied last."""
        rollout = {**FAST, **self.spec.get("rollout", {}), **spec.pop("rollout", {})}
        self.spec = {"stateMachine": "Broadcast", "replicas": 1, **self.spec, **spec, "rollout": rollout}
        body = {"metadata": {"name": NAME}, "spec": self.spec}
        await self.kube.apply(RAFT_CLUSTERS, body, NAMESPACE, manager="pavane-cli")

    async def until(self, condition: Condition) -> Object:
        """The status once it fulfils the condition."""
        status: Object = {}
        try:
            async with asyncio.timeout(UNTIL_S):
                while True:
                    body = await self.kube.get_or_none(RAFT_CLUSTERS, NAME, NAMESPACE)
                    status = (body or {}).get("status") or {}
                    if body is not None and condition(status):
                        return status
                    await asyncio.sleep(0.03)
        except TimeoutError:
            log = (self.folder / "operator.log").read_text()[-3000:]
            raise AssertionError(f"not within {UNTIL_S} s; status {status}\noperator: {log}") from None

    async def until_active(self, generation: int) -> Object:
        return await self.until(lambda status: status.get("activeGeneration") == generation and state(status) == "Idle")

    async def names(self, resource: Resource) -> set[str]:
        return {item["metadata"]["name"] for item in (await self.kube.list(resource, NAMESPACE)).items}

    async def until_gone(self, resource: Resource, prefix: str) -> None:
        async with asyncio.timeout(UNTIL_S):
            while any(name.startswith(prefix) for name in await self.names(resource)):
                await asyncio.sleep(0.03)

    async def until_present(self, resource: Resource, name: str, *, other_than: str) -> None:
        async with asyncio.timeout(UNTIL_S):
            while True:
                body = await self.kube.get_or_none(resource, name, NAMESPACE)
                if body is not None and body["metadata"]["uid"] != other_than:
                    return
                await asyncio.sleep(0.03)

    async def until_lease(self, *, transitions: int) -> None:
        async with asyncio.timeout(UNTIL_S):
            while True:
                lease = await self.kube.get_or_none(LEASES, "pavane-operator", "pavane-system")
                if lease is not None and lease["spec"]["leaseTransitions"] >= transitions:
                    return
                await asyncio.sleep(0.03)

    async def until_operator_ready(self) -> str:
        """What the readiness probe says once it succeeds."""
        async with httpx2.AsyncClient() as http, asyncio.timeout(UNTIL_S):
            while True:
                with contextlib.suppress(httpx2.TransportError):
                    answer = await http.get(f"http://127.0.0.1:{self.health_port}/readyz")
                    if answer.status_code == httpx2.codes.OK:
                        return answer.text
                await asyncio.sleep(0.03)

    async def until_event(self, reason: str) -> None:
        async with asyncio.timeout(UNTIL_S):
            while reason not in {item["reason"] for item in (await self.kube.list(EVENTS, NAMESPACE)).items}:
                await asyncio.sleep(0.03)

    async def until_metric(self, text: str) -> None:
        async with asyncio.timeout(UNTIL_S):
            while text not in await self.metrics():
                await asyncio.sleep(0.03)

    async def metrics(self) -> str:
        """What the operator's port tells."""
        async with httpx2.AsyncClient() as http:
            return (await http.get(f"http://127.0.0.1:{self.health_port}/metrics")).text

    async def kill_pod(self, name: str) -> None:
        """SIGKILL to the pod's process."""
        pod = await self.kube.get(PODS, name, NAMESPACE)
        container_id: str = pod["status"]["containerStatuses"][0]["containerID"]
        os.killpg(int(container_id.removeprefix("process://").partition("/")[0]), signal.SIGKILL)

    async def connection(self) -> Connection:
        """What an application gets, with the names that a pod of the namespace knows."""
        secret = await self.kube.get(SECRETS, f"{NAME}-client", NAMESPACE)
        found = Connection.parse(base64.b64decode(secret["data"][FILE]).decode(), f"{NAME}-client")
        return replace(found, resolve=_resolver(self.local.folder / "hosts" / NAMESPACE))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RaftClient]:
        """A client of the log, by the addresses that its pods have now."""
        keys = await self.kube.get(SECRETS, f"{NAME}-keys", NAMESPACE)
        pods = (await self.kube.list(PODS, NAMESPACE)).items
        seeds = [f"tcp://{pod['status']['podIP']}:8047" for pod in pods]
        hosts = self.local.folder / "hosts" / NAMESPACE
        known = RaftKeys.of(keys)
        async with RaftClient(seeds, known.ident, curve=known.curve, resolve=_resolver(hosts)) as client:
            yield client


@asynccontextmanager
async def a_rig(folder: Path) -> AsyncIterator[Rig]:
    """A local cluster and a running operator; both are gone afterwards."""
    settings = LocalSettings(folder / "cluster", fast=True, platform_pods=False)
    async with local_cluster(settings) as local, await KubeClient.connect(Target(local.kubeconfig)) as kube:
        rig = Rig(local, kube, folder)
        await rig.start_operator()
        try:
            yield rig
        finally:
            for operator in rig.started:
                with contextlib.suppress(ProcessLookupError):
                    operator.kill()
                await operator.wait()


def state(status: Object) -> str | None:
    return (status.get("rollout") or {}).get("state")


def condition(status: Object, kind: str) -> tuple[str, str] | None:
    """(status, reason) of one condition."""
    found = [one for one in status.get("conditions") or () if one["type"] == kind]
    return (found[0]["status"], found[0]["reason"]) if found else None


def blockers(status: Object) -> set[str]:
    return {one["reason"] for one in (status.get("rollout") or {}).get("blockers") or ()}


def _resolver(hosts: Path) -> Callable[[str], list[str]]:
    def resolve(host: str) -> list[str]:
        lines = [line.split() for line in hosts.read_text().splitlines()]
        return [words[0] for words in lines if host in words[1:]]

    return resolve
