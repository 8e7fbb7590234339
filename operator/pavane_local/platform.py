"""A whole local cluster in one folder (docs/specs/operator.md 6.8–6.10)."""

import asyncio
import contextlib
import hashlib
import ipaddress
import json
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pavane_local.api.cluster import DEFINITIONS, Cluster, DeleteOptions, WriteOptions
from pavane_local.api.server import ApiServer
from pavane_local.controllers import collector, endpoints, statefulset
from pavane_local.embedded import embedded_api
from pavane_local.folder import locked
from pavane_local.kubelet.addresses import BLOCK_PREFIX_BITS, AddressBlock
from pavane_local.kubelet.kubelet import Kubelet
from pavane_local.kubelet.port import KubeletSettings
from pavane_local.store import Object, Store
from pavane_operator.crds.definitions import definitions

SYSTEM = "pavane-system"
FAST_SPEED = 20.0
API_PORT, OPS_PORT = 8000, 8080
OTLP_ENDPOINT = f"http://pavane-api.{SYSTEM}.svc.cluster.local:{API_PORT}"
IMAGE = "pavane:local"
MANAGER = WriteOptions(manager="pavane-local")
SPEC_HASH = "pavane.dev/spec-hash"


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
    Raises FolderInUse, StoreVersionError, AddressesMissing, AddressesExhausted.
    """
    folder = settings.folder.absolute()
    with locked(folder), Store(folder / "store.sqlite") as store:
        cluster = Cluster(store)
        await _bootstrap(cluster)
        server = ApiServer(cluster, folder)
        with contextlib.closing(AddressBlock.claim(folder, _former_block(cluster))) as block:
            speed = FAST_SPEED if settings.fast else 1.0
            kubelet_settings = KubeletSettings(folder, Path(sys.prefix), dict(settings.images), speed)
            kubelet = Kubelet(embedded_api(cluster, server.kubeconfig_of), kubelet_settings, block)
            await kubelet.recover(cluster.list("pods"), cluster.list("persistentvolumeclaims"))
            async with server.running(kubelet), asyncio.TaskGroup() as group:
                parts = [
                    collector.GarbageCollector(cluster).run(),
                    collector.namespaces(cluster).run(),
                    collector.expire_events(cluster),
                    endpoints.controller(cluster).run(),
                    statefulset.controller(cluster).run(),
                    kubelet.run(),
                ]
                tasks = [group.create_task(part) for part in parts]
                try:
                    if settings.platform_pods:
                        await _platform_pods(cluster)
                    yield LocalCluster(folder, cluster, kubelet, server.kubeconfig)
                finally:
                    await kubelet.stop(SYSTEM)
                    for task in tasks:
                        task.cancel()


def _former_block(cluster: Cluster) -> str | None:
    """The block that the pods of the last run had their addresses from."""
    for pod in cluster.list("pods"):
        if address := pod.get("status", {}).get("podIP"):
            return str(ipaddress.IPv4Network((address, BLOCK_PREFIX_BITS), strict=False))
    return None


async def _bootstrap(cluster: Cluster) -> None:
    """Make what every cluster has: definitions, namespaces, the node, accounts and Service of the platform."""
    for definition in definitions():
        await cluster.apply(DEFINITIONS, definition, MANAGER, force=True)
    await _ensure(cluster, "nodes", "", "local")
    for namespace in ("default", SYSTEM):
        await _ensure(cluster, "namespaces", "", namespace)
    for account in ("pavane-operator", "pavane-api"):
        await _ensure(cluster, "serviceaccounts", SYSTEM, account)
    spec = {"selector": {"app": "pavane-api"}, "ports": [{"name": "api", "port": API_PORT}]}
    service = {"metadata": {"name": "pavane-api", "namespace": SYSTEM}, "spec": spec}
    await cluster.apply("services", service, MANAGER, force=True)


async def _ensure(cluster: Cluster, resource: str, namespace: str, name: str) -> None:
    if cluster.find(resource, namespace, name) is None:
        await cluster.create(resource, {"metadata": {"name": name} | ({"namespace": namespace} if namespace else {})})


async def _platform_pods(cluster: Cluster) -> None:
    """Let the operator and the control plane run as they are today; a pod of another make is replaced."""
    for part in ("operator", "api"):
        pod = _platform_pod(part)
        name = pod["metadata"]["name"]
        present = cluster.find("pods", SYSTEM, name)
        if (
            present
            and present["metadata"].get("annotations", {}).get(SPEC_HASH) != pod["metadata"]["annotations"][SPEC_HASH]
        ):
            await cluster.delete("pods", SYSTEM, name, DeleteOptions(grace_seconds=0))
            present = None
        if present is None:
            await cluster.create("pods", pod)


def _platform_pod(part: str) -> Object:
    def field_of(name: str, path: str) -> Object:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    name = f"pavane-{part}"
    probe: dict[str, Any] = {"periodSeconds": 1, "timeoutSeconds": 5}
    spec = {
        "serviceAccountName": name,
        "containers": [{
            "name": part,
            "image": IMAGE,
            "command": ["pavane", part],
            "env": [
                field_of("POD_NAME", "metadata.name"),
                field_of("POD_NAMESPACE", "metadata.namespace"),
                field_of("POD_IP", "status.podIP"),
                {"name": "PAVANE_API_DATA", "value": "/var/lib/pavane"},
                {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": OTLP_ENDPOINT},
            ],
            "volumeMounts": [{"name": "data", "mountPath": "/var/lib/pavane"}],
            "livenessProbe": {"httpGet": {"path": "/livez", "port": OPS_PORT}, "initialDelaySeconds": 30, **probe},
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": OPS_PORT}, **probe},
        }],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    meta = {"name": name, "namespace": SYSTEM, "labels": {"app": name}, "annotations": {SPEC_HASH: digest}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
