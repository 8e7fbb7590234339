"""A whole local cluster in one folder (docs/specs/operator.md 6.8–6.10)."""

import asyncio
import contextlib
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import yaml

from pavane_local.api.cluster import Cluster, DeleteOptions, WriteOptions
from pavane_local.api.server import ApiServer
from pavane_local.controllers import collector, endpoints, statefulset
from pavane_local.controllers.loop import name_of
from pavane_local.folder import locked
from pavane_local.kubelet.addresses import AddressBlock
from pavane_local.kubelet.kubelet import Kubelet
from pavane_local.kubelet.pod import KubeletSettings
from pavane_local.store import Object, ObjectStore
from pavane_operator.crds.definitions import definitions

SYSTEM = "pavane-system"
FAST_SPEED = 20.0
SPEC_HASH = "pavane.dev/spec-hash"
CONTROLLERS = (collector.namespaces, endpoints.controller, statefulset.controller)


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """What `pavane up` was asked for: folder, image map, short back-offs, operator and control plane or not."""

    folder: Path
    images: Mapping[str, Path] = field(default_factory=dict)
    fast: bool = False
    platform_pods: bool = True


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A running local cluster: its objects, its kubelet, and the kubeconfig for everybody else."""

    folder: Path
    cluster: Cluster
    kubelet: Kubelet
    kubeconfig: Path


@contextlib.asynccontextmanager
async def local_cluster(settings: LocalSettings) -> AsyncIterator[LocalCluster]:
    """Run a local cluster in this process, from the main thread, for as long as the context is open.

    What an earlier one of the folder left is taken up again. At the end all pods are stopped in order and kept.
    Raises FolderInUse, StoreVersionError, AddressesExhausted, and OSError or ApiError where the disk is full.
    """
    folder = settings.folder.absolute()
    described = yaml.safe_load(resources.files(__package__).joinpath("platform.yaml").read_text(encoding="utf-8"))
    with locked(folder), ObjectStore(folder / "store.sqlite") as store:
        cluster = Cluster(store)
        for body in [*definitions(), *described["objects"]]:
            kind = (body["apiVersion"], body["kind"])
            (resource,) = (each for each in cluster.registry.values() if (each.api_version, each.kind) == kind)
            await cluster.apply(resource.key, body, WriteOptions(wait_for_room=False), force=True)
        server = ApiServer(cluster, folder)
        former = (pod.get("status", {}).get("podIP") for pod in cluster.list("pods"))
        with contextlib.closing(AddressBlock.claim(folder, next(filter(None, former), None))) as block:
            speed = FAST_SPEED if settings.fast else 1.0
            installation = Path(sys.prefix)
            access = (lambda: server.url, server.kubeconfig_of, server.token_of)
            own = KubeletSettings(folder, installation, *access, settings.images, speed)
            kubelet = Kubelet(cluster, own, block)
            await kubelet.recover()
            async with server.running(kubelet.stream), asyncio.TaskGroup() as group:
                controllers = [each(cluster).run() for each in CONTROLLERS]
                parts = [*controllers, collector.collect_garbage(cluster), collector.expire_events(cluster)]
                tasks = [group.create_task(part) for part in [*parts, kubelet.run()]]
                try:
                    for pod in described["pods"] if settings.platform_pods else ():
                        await _platform_pod(cluster, pod)
                    yield LocalCluster(folder, cluster, kubelet, server.kubeconfig)
                finally:
                    await kubelet.stop(SYSTEM)
                    for task in tasks:
                        task.cancel()


async def _platform_pod(cluster: Cluster, pod: Object) -> None:
    """Let a pod of the platform run as it is described today: one of another make is replaced."""
    digest = hashlib.sha256(json.dumps(pod["spec"], sort_keys=True).encode()).hexdigest()[:16]
    present = cluster.find("pods", *name_of(pod))
    if present and present["metadata"].get("annotations", {}).get(SPEC_HASH) == digest:
        return
    if present:
        await cluster.delete("pods", *name_of(pod), DeleteOptions(grace_seconds=0))
    await cluster.create("pods", {**pod, "metadata": {**pod["metadata"], "annotations": {SPEC_HASH: digest}}})
