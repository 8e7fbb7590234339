"""The embedded cluster as the kubelet sees it (`KubeletApi`)."""

from collections.abc import AsyncIterator, Callable

from pavane_local.api.cluster import Cluster, DeleteOptions
from pavane_local.api.errors import ApiError
from pavane_local.controllers.loop import changes, name_of, record
from pavane_local.store import EventType, Object


class EmbeddedApi:
    """Implements `KubeletApi` by calls into the cluster of this process; `kubeconfig_for` makes a pod's kubeconfig."""

    def __init__(self, cluster: Cluster, kubeconfig_for: Callable[[Object], str]) -> None:
        self._cluster = cluster
        self._kubeconfig_for = kubeconfig_for

    async def get(self, resource: str, namespace: str, name: str) -> Object | None:
        """An object, or None."""
        return self._cluster.find(resource, namespace, name)

    def watch(self, resource: str) -> AsyncIterator[tuple[EventType, Object]]:
        """All objects as ADDED, then every change, for ever."""
        return changes(self._cluster, resource)

    async def patch_status(self, pod: Object, status: Object) -> None:
        """Replace a pod's status, if this very pod still exists."""
        await self._unless_gone(pod, {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status})

    async def confirm_deletion(self, pod: Object) -> None:
        """Delete a pod at last."""
        try:
            options = DeleteOptions(uid=pod["metadata"]["uid"], grace_seconds=0)
            await self._cluster.delete("pods", *name_of(pod), options)
        except ApiError as error:
            _ignore_gone(error)

    async def event(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Record an event about a pod."""
        try:
            await record(self._cluster, pod, "Pod", "v1", kind, reason, message)
        except ApiError as error:
            _ignore_gone(error)

    async def kubeconfig(self, pod: Object) -> str:
        """A kubeconfig with a service-account token that ends with the pod."""
        return self._kubeconfig_for(pod)

    async def _unless_gone(self, pod: Object, patch: Object) -> None:
        try:
            await self._cluster.patch("pods", *name_of(pod), patch, subresource="status")
        except ApiError as error:
            _ignore_gone(error)


def _ignore_gone(error: ApiError) -> None:
    """Pass over: the pod is gone (404), has a namesake (409), or its namespace goes (403)."""
    if error.code not in (403, 404, 409):
        raise error
