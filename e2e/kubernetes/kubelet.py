"""The process kubelet on a real API server: the node, its Lease, volumes, logs (docs/specs/operator.md 6.8).

The scheduler binds pods to the node; here they run as processes, as on the embedded cluster.
"""

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from e2e.kubernetes.control_plane import ADDRESS, ControlPlane
from e2e.kubernetes.mirror import MANAGER, NODE, RETRY_S, Mirror, NodeClient
from pavane.runtime.http import HttpServer, listen
from pavane_local.controllers import endpoints
from pavane_local.controllers.loop import changes
from pavane_local.kubelet.addresses import AddressBlock
from pavane_local.kubelet.container import now_text
from pavane_local.kubelet.kubelet import Kubelet
from pavane_local.kubelet.logs import LogOptions
from pavane_local.kubelet.pod import KubeletSettings
from pavane_local.store import ObjectStore
from pavane_operator.kube import Conflict, KubeError, NotFound, Object, Target
from pavane_operator.kube.resources import LEASES, VOLUME_CLAIMS, Resource

NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACE_OF_LEASES = "kube-node-lease"
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass", namespaced=False)
STORAGE_CLASS = "folder"
PROVISIONER = "pavane.dev/process-kubelet"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""Annotation of a claim by which the scheduler asks for its volume."""
LEASE_S = 40
"""As of a real kubelet; it is renewed four times as often."""
FAST = 20.0
"""What back-offs are divided by, as with `pavane up --fast`."""
CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "500", "ephemeral-storage": "1Ti"}
"""More than any test asks for: processes share the machine without limits."""


@contextlib.asynccontextmanager
async def node(plane: ControlPlane, folder: Path) -> AsyncIterator[None]:
    """Run a node on the control plane, its pods below ``folder``; call it from the main thread (6.8.3)."""
    async with await NodeClient.connect(Target(plane.kubeconfig)) as client:
        with _empty_store(folder) as store, contextlib.closing(AddressBlock.claim(folder)) as block:
            mirror = Mirror(store, client, plane.authority)
            access = (lambda: plane.server, mirror.kubeconfig_of, mirror.token_of)
            settings = KubeletSettings(folder, Path(sys.prefix), *access, speed=FAST)
            kubelet = Kubelet(mirror, settings, block)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(mirror.run(), name="mirror")]
                await mirror.complete()
                await kubelet.recover()
                volumes = _Volumes(client, mirror, settings)
                parts = [kubelet.run(), endpoints.controller(mirror).run(), volumes.run(), _renew(client)]
                tasks += [group.create_task(part) for part in parts]
                async with _logs(plane, mirror, kubelet) as port:
                    await _register(client, port)
                    yield
                    for task in tasks:
                        task.cancel()


def _empty_store(folder: Path) -> ObjectStore:
    """A store without what it held of an earlier API server."""
    for former in folder.glob("mirror.sqlite*"):
        former.unlink()
    return ObjectStore(folder / "mirror.sqlite")


async def _register(client: NodeClient, port: int) -> None:
    """Tell of the node; the scheduler may use it from then on."""
    await client.apply(NODES, {"metadata": {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}}, manager=MANAGER)
    conditions = [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "pods run as processes"},
        *({"type": f"{kind}Pressure", "status": "False"} for kind in ("Memory", "Disk", "PID")),
    ]
    times = {"lastHeartbeatTime": now_text(), "lastTransitionTime": now_text()}
    status = {
        "addresses": [{"type": "InternalIP", "address": ADDRESS}, {"type": "Hostname", "address": NODE}],
        "capacity": CAPACITY,
        "allocatable": CAPACITY,
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "conditions": [{**each, **times} for each in conditions],
    }
    body = {"metadata": {"name": NODE}, "status": status}
    await client.apply(NODES, body, manager=MANAGER, subresource="status")


async def _renew(client: NodeClient) -> None:
    """Keep the node's Lease: without it the node counts as lost and its pods go."""
    while True:
        spec = {"holderIdentity": NODE, "leaseDurationSeconds": LEASE_S, "renewTime": now_text()[:-1] + ".000000Z"}
        with contextlib.suppress(KubeError):  # four chances until it runs out
            await client.apply(LEASES, {"metadata": {"name": NODE}, "spec": spec}, NAMESPACE_OF_LEASES, manager=MANAGER)
        await asyncio.sleep(LEASE_S / 4)


class _Volumes:
    """A volume for each claim of our storage class; both are the claim's folder, which the kubelet looks after."""

    def __init__(self, client: NodeClient, mirror: Mirror, settings: KubeletSettings) -> None:
        self._client = client
        self._mirror = mirror
        self._settings = settings

    async def run(self) -> None:
        metadata = {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        }
        body = {
            "metadata": metadata,
            "provisioner": PROVISIONER,
            "allowVolumeExpansion": True,
            # Bound at once, a claim may be missed by the scheduler, which then leaves its pod alone for minutes.
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        await self._client.apply(STORAGE_CLASSES, body, manager=MANAGER)
        async for kind, claim in changes(self._mirror, "persistentvolumeclaims"):
            chosen = SELECTED_NODE in (claim["metadata"].get("annotations") or {})
            if chosen and claim["spec"].get("storageClassName") == STORAGE_CLASS:
                await self._serve(claim, gone=kind == "DELETED")

    async def _serve(self, claim: Object, *, gone: bool) -> None:
        """Bring the volume up to what the claim asks for; repeat what the server did not do."""
        while True:
            try:
                if gone:
                    await self._client.delete(VOLUMES, f"pvc-{claim['metadata']['uid']}")
                else:
                    await self._provide(claim)
            except KubeError:
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _provide(self, claim: Object) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        size = spec["resources"]["requests"]["storage"]
        about = {key: metadata[key] for key in ("name", "namespace", "uid")}
        volume = {
            "metadata": {
                "name": f"pvc-{metadata['uid']}",
                "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
            },
            "spec": {
                "capacity": {"storage": size},
                "accessModes": spec["accessModes"],
                "storageClassName": STORAGE_CLASS,
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **about},
                "hostPath": {"path": str(self._settings.claim_folder(claim))},
            },
        }
        await self._client.apply(VOLUMES, volume, manager=MANAGER)
        has = (claim.get("status") or {}).get("capacity", {}).get("storage")
        if has is not None and has != size:  # a folder is as large as the disk: growth is only written down
            body = {"metadata": {"uid": metadata["uid"]}, "status": {"capacity": {"storage": size}}}
            with contextlib.suppress(NotFound, Conflict):
                await self._client.patch_status(VOLUME_CLAIMS, metadata["namespace"], metadata["name"], body)


@contextlib.asynccontextmanager
async def _logs(plane: ControlPlane, mirror: Mirror, kubelet: Kubelet) -> AsyncIterator[int]:
    """Serve what `kubectl logs` asks a node for, to the API server alone; yields the port."""

    async def container_logs(request: Request) -> Response:
        names, query = request.path_params, request.query_params
        pod = mirror.find("pods", names["namespace"], names["pod"])
        if pod is None:
            return PlainTextResponse(f"pod {names['pod']} does not run here", 404)
        tail = int(query["tailLines"]) if "tailLines" in query else None
        options = LogOptions(query.get("follow") == "true", tail, query.get("timestamps") == "true")
        try:
            stream = kubelet.stream(pod, names["container"], options, previous=query.get("previous") == "true")
        except LookupError as error:
            return PlainTextResponse(str(error.args[0]), 400)
        return StreamingResponse(stream, media_type="text/plain")

    app = Starlette(routes=[Route("/containerLogs/{namespace}/{pod}/{container}", container_logs)])
    listener = listen(ADDRESS, 0)
    server = HttpServer(
        app,
        lifespan="off",
        timeout_graceful_shutdown=1,
        ssl_certfile=plane.certificate,
        ssl_keyfile=plane.key,
        ssl_ca_certs=str(plane.certificate),
        ssl_cert_reqs=ssl.CERT_REQUIRED,
    )
    task = asyncio.create_task(server.serve([listener]), name="kubelet port")
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
