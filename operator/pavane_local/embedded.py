"""The embedded cluster as the kubelet sees it."""

from collections.abc import AsyncIterator, Callable

from pavane_local.api.cluster import Cluster, DeleteOptions
from pavane_local.api.errors import ApiError
from pavane_local.controllers.loop import changes, name_of, record
from pavane_local.kubelet.port import KubeletApi
from pavane_local.store import EventType, Object


def embedded_api(cluster: Cluster, kubeconfig_for: Callable[[Object], str]) -> KubeletApi:
    """The kubelet's port to the cluster of this process; `kubeconfig_for` makes a pod's kubeconfig."""
    return _EmbeddedApi(cluster, kubeconfig_for)


class _EmbeddedApi(KubeletApi):
    def __init__(self, cluster: Cluster, kubeconfig_for: Callable[[Object], str]) -> None:
        self._cluster = cluster
        self._kubeconfig_for = kubeconfig_for

    async def get(self, resource: str, namespace: str, name: str) -> Object | None:
        return self._cluster.find(resource, namespace, name)

    def watch(self, resource: str) -> AsyncIterator[tuple[EventType, Object]]:
        return changes(self._cluster, resource)

    async def patch_status(self, pod: Object, status: Object) -> None:
        patch = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        try:
            await self._cluster.patch("pods", *name_of(pod), patch, subresource="status")
        except ApiError as error:
            _ignore_gone(error)

    async def confirm_deletion(self, pod: Object) -> None:
        options = DeleteOptions(uid=pod["metadata"]["uid"], grace_seconds=0)
        try:
            await self._cluster.delete("pods", *name_of(pod), options)
        except ApiError as error:
            _ignore_gone(error)

    async def event(self, pod: Object, kind: str, reason: str, message: str) -> None:
        try:
            await record(self._cluster, pod, "Pod", "v1", kind, reason, message)
        except ApiError as error:
            _ignore_gone(error)

    async def kubeconfig(self, pod: Object) -> str:
        return self._kubeconfig_for(pod)


def _ignore_gone(error: ApiError) -> None:
    """Pass over: the pod is gone (404), has a namesake (409), or its namespace goes (403)."""
    if error.code not in (403, 404, 409):
        raise error
