"""What end-to-end tests do with RaftClusters, in a namespace of their own."""

import contextlib
import json
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from e2e.targets import Capability, Target
from e2e.targets.base import SYSTEM
from e2e.waiting import READY_S, eventually
from e2e.writer import Writer
from pavane.raft.client import RaftClient
from pavane_api.kinds import RAFT_CLUSTERS, WALTZ_CLUSTERS
from pavane_cli.access import raft_client
from pavane_cli.commands.resources import condition, is_current
from pavane_operator.kube import KubeClient, NotFound, Object
from pavane_operator.kube import Target as KubeTarget
from pavane_operator.kube.resources import NAMESPACES, PODS, STATEFUL_SETS, VOLUME_CLAIMS, Resource, custom

SWIM_GROUPS = custom("SwimGroup", "swimgroups")
LOADED: dict[str, Any] = {"electionTimeout": {"min": "1500ms", "max": "2500ms"}}
"""Election times for runs that kill, on machines with few cores."""
ADMISSION = {"pod-security.kubernetes.io/enforce": "restricted"}
"""What every pod of a test has to pass, where the server checks it."""
QUICK: dict[str, Any] = {"rollout": {"caughtUp": {"stabilityPeriod": "500ms"}, "retireDelay": "1s"}}
"""A rollout that does not wait longer than a test needs."""


@dataclass(frozen=True)
class RaftTest:
    """One namespace of a platform and the RaftClusters in it."""

    platform: Target
    kube: KubeClient
    namespace: str
    type: Resource = RAFT_CLUSTERS

    async def apply(self, name: str = "q", **spec: Any) -> Object:
        """Apply a small RaftCluster, with short periods unless ``spec`` says otherwise."""
        body = {
            "metadata": {"name": name},
            "spec": {"stateMachine": "Broadcast", "replicas": 3, "storage": {"size": "64Mi"}, **QUICK, **spec},
        }
        return await self.kube.apply(self.type, body, self.namespace, manager="e2e", strict=True)

    async def get(self, name: str = "q") -> Object:
        return await self.kube.get(self.type, name, self.namespace)

    async def until(
        self, check: Callable[[Object], object], what: str, name: str = "q", timeout_s: float = READY_S
    ) -> Object:
        """Return the resource as soon as ``check`` holds for it."""
        last: Object = {}

        async def look() -> Object | None:
            nonlocal last
            with contextlib.suppress(NotFound):
                last = await self.get(name)
                return last if check(last) else None
            return None

        try:
            return await eventually(look, what, timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {last.get('status')}") from None

    async def until_current(self, name: str = "q", generation: int | None = None, timeout_s: float = READY_S) -> Object:
        """Return the resource when its spec is Ready and nothing is rolled out any more."""

        def check(document: Object) -> bool:
            active = (document.get("status") or {}).get("activeGeneration")
            return is_current(document) and (generation is None or active == generation)

        return await self.until(check, f"{name} is current", name, timeout_s)

    async def until_state(self, *states: str, name: str = "q", timeout_s: float = READY_S) -> Object:
        """Return the resource when its rollout is in one of ``states``."""
        return await self.until(lambda document: state_of(document) in states, f"state {states}", name, timeout_s)

    async def pods(self, name: str = "q") -> list[Object]:
        labels = f"app.kubernetes.io/instance={name}"
        return list((await self.kube.list_all(PODS, self.namespace, labels=labels)).items)

    async def stateful_sets(self, name: str = "q") -> list[str]:
        labels = f"app.kubernetes.io/instance={name}"
        found = (await self.kube.list_all(STATEFUL_SETS, self.namespace, labels=labels)).items
        return sorted(item["metadata"]["name"] for item in found)

    async def claims(self, name: str = "q") -> list[str]:
        labels = f"app.kubernetes.io/instance={name}"
        found = (await self.kube.list_all(VOLUME_CLAIMS, self.namespace, labels=labels)).items
        return sorted(item["metadata"]["name"] for item in found)

    @contextlib.asynccontextmanager
    async def client(self, name: str = "q") -> AsyncIterator[RaftClient]:
        """Lend a client of the cluster in this process; only on targets with ``Capability.DIRECT``."""
        assert Capability.DIRECT in self.platform.capabilities, "this test must say that it needs Capability.DIRECT"
        async with await raft_client(self.kube, await self.get(name), self.platform.kubeconfig) as client:
            yield client

    @contextlib.asynccontextmanager
    async def writer(self, label: str, name: str = "q") -> AsyncIterator[Writer]:
        """Write all the time, on any target: ``reach``, ``more``, then ``stop`` for the proof."""
        resource = await self.until(
            lambda item: (item.get("status") or {}).get("endpoints"), "clients are served", name
        )
        async with Writer(self.kube, self.namespace, label, resource, self.platform.image) as writer:
            yield writer

    def append(self, text: str, name: str = "q") -> int:
        """Append one entry through the control plane and return its index."""
        return int(self.platform.run("raft", "append", name, text, "-n", self.namespace).stdout)

    def log(self, name: str = "q", after: int = 0) -> list[dict[str, Any]]:
        """Return the entries of the log behind an index, as the control plane shows them."""
        found = self.platform.run(
            "raft", "read", name, "--after", str(after), "-n", self.namespace, "-o", "json"
        ).stdout
        return list(json.loads(found))

    def kill(self, pod: str, namespace: str | None = None) -> None:
        """Kill all processes of a pod with SIGKILL."""
        self.signal(pod, signal.SIGKILL, namespace)

    def signal(self, pod: str, number: signal.Signals, namespace: str | None = None) -> None:
        """Send SIGKILL, SIGSTOP or SIGCONT to all processes of a pod."""
        assert self.platform.signal(pod, namespace or self.namespace, number), f"nothing runs in pod {pod}"

    async def kill_component(self, component: str) -> None:
        """Kill all processes of `operator` or `api`."""

        async def killed() -> bool:
            pods = await self.platform.platform_pods(self.kube, component)
            return any([self.platform.signal(pod["metadata"]["name"], SYSTEM, signal.SIGKILL) for pod in pods])

        await eventually(killed, f"{component} was killed")

    @contextlib.asynccontextmanager
    async def operator_gone(self) -> AsyncIterator[None]:
        """Take the operator away; at the end it is there again, ready or not."""
        pods = await self.platform.platform_pods(self.kube, "operator")
        charts = Capability.CHART in self.platform.capabilities
        if charts:
            self._scale_operator(0)
        else:
            for pod in pods:
                await self.kube.delete(PODS, pod["metadata"]["name"], SYSTEM)

        async def gone() -> bool:
            return not await self.platform.platform_pods(self.kube, "operator")

        await eventually(gone, "the operator has gone")
        try:
            yield
        finally:
            if charts:
                self._scale_operator(len(pods))
            else:
                for pod in pods:
                    metadata = {key: pod["metadata"].get(key, {}) for key in ("name", "labels", "annotations")}
                    await self.kube.create(PODS, {"metadata": metadata, "spec": pod["spec"]}, SYSTEM)

    def _scale_operator(self, replicas: int) -> None:
        self.platform.kubectl("scale", "deployment/pavane-operator", f"--replicas={replicas}", "-n", SYSTEM)


def state_of(document: Object) -> str:
    return str(((document.get("status") or {}).get("rollout") or {}).get("state", "Idle"))


def can_switch_back(document: Object) -> bool:
    return (condition(document, "CanSwitchBack") or {}).get("status") == "True"


def reason_of(document: Object, kind: str) -> str:
    return str((condition(document, kind) or {}).get("reason"))


def blockers_of(document: Object) -> list[str]:
    rollout = (document.get("status") or {}).get("rollout") or {}
    return [str(item["reason"]) for item in rollout.get("blockers") or ()]


@contextlib.asynccontextmanager
async def namespace_of(platform: Target, name: str) -> AsyncIterator[RaftTest]:
    """Make a namespace for one test; it goes with everything in it."""
    async with await KubeClient.connect(KubeTarget(platform.kubeconfig)) as kube:
        await kube.create(NAMESPACES, {"metadata": {"name": name, "labels": ADMISSION}})
        try:
            yield RaftTest(platform, kube, name)
        finally:
            for kind in (WALTZ_CLUSTERS, RAFT_CLUSTERS, SWIM_GROUPS):  # a log goes before its metadata
                for item in (await kube.list_all(kind, name)).items:
                    await kube.delete(kind, item["metadata"]["name"], name)
            await kube.delete(NAMESPACES, name)
