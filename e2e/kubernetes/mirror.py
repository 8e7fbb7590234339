"""A copy of the objects of a real API server that the process kubelet needs, and the way for what it writes.

The kubelet and the endpoints controller of `pavane_local` work on a `Cluster`. Here that is a mirror: watches of the
real server fill its store, and what the kubelet writes goes to the real server and comes back by the watch.
"""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, ParamSpec, TypeVar

from pavane_local.api.cluster import DEFAULT_DELETE, DEFAULT_WRITE, Cluster, DeleteOptions, WriteOptions
from pavane_local.api.errors import ApiError
from pavane_local.certs import kubeconfig
from pavane_local.controllers.endpoints import RESOURCE as SLICES
from pavane_local.store import Change, Key, ObjectStore
from pavane_operator.kube import KubeClient, KubeError, NotFound, Object
from pavane_operator.kube.client import MERGE
from pavane_operator.kube.errors import TooManyRequests, Unavailable
from pavane_operator.kube.resources import (
    CONFIG_MAPS,
    ENDPOINT_SLICES,
    NAMESPACES,
    PODS,
    SECRETS,
    SERVICES,
    VOLUME_CLAIMS,
    Resource,
)

NODE = "local"
MANAGER = "process-kubelet"
TOKEN_S = 24 * 3600
"""Life of a pod's token: longer than any run, for programs read their kubeconfig once (6.8.6)."""
RETRY_S = 0.2
"""After a call that a busy server did not answer, and between two watches."""
CORE_EVENTS = Resource("", "v1", "events", "Event")
FOLLOWED = {
    "namespaces": NAMESPACES,
    "services": SERVICES,
    "configmaps": CONFIG_MAPS,
    "secrets": SECRETS,
    "persistentvolumeclaims": VOLUME_CLAIMS,
    "pods": PODS,
}
"""What is copied: resource here → resource there. Pods come last, for they need the others."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class NodeClient(KubeClient):
    """The calls that only a node makes."""

    async def patch_status(self, resource: Resource, namespace: str, name: str, body: Object) -> Object:
        """Merge patch of an object's status."""
        return await self._call("PATCH", resource.path(namespace, name, "status"), body=body, content_type=MERGE)

    async def confirm_end(self, namespace: str, name: str, uid: str | None) -> None:
        """Tell that no process of a pod is left: it goes now."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        await self._call("DELETE", PODS.path(namespace, name), body={**body, "preconditions": {"uid": uid}})

    async def token_of(self, pod: Object, audience: str = "") -> str:
        """A token for the ServiceAccount of a pod, which ends with the pod; for an audience, or the API server."""
        metadata, account = pod["metadata"], pod["spec"].get("serviceAccountName", "default")
        bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
        body: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": TOKEN_S, "boundObjectRef": bound},
        }
        if audience:
            body["spec"] |= {"audiences": [audience]}
        accounts = Resource("", "v1", "serviceaccounts", "ServiceAccount")
        answer = await self._call("POST", accounts.path(metadata["namespace"], account, "token"), body=body)
        return str(answer["status"]["token"])


def told(call: Callable[Parameters, Awaitable[Result]]) -> Callable[Parameters, Coroutine[Any, Any, Result]]:
    """Repeat a call that got no answer; turn a refusal into the error that callers of a `Cluster` know."""

    @functools.wraps(call)
    async def told_call(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        while True:
            try:
                return await call(*arguments, **options)
            except (Unavailable, TooManyRequests):
                await asyncio.sleep(RETRY_S)
            except KubeError as error:
                # A real server calls a patch of a pod's namesake invalid, the embedded one a conflict.
                namesake = any(cause.field == "metadata.uid" for cause in error.causes)
                raise ApiError(409 if namesake else error.status, error.reason, error.message) from error

    return told_call


def _audiences(pod: Object) -> set[str]:
    """Audiences of the tokens that volumes of a pod ask for."""
    volumes = pod["spec"].get("volumes") or ()
    sources = [each for volume in volumes for each in volume.get("projected", {}).get("sources", ())]
    return {each.get("serviceAccountToken", {}).get("audience", "") for each in sources} - {""}


class Mirror(Cluster):
    """The objects of `FOLLOWED`, of pods those of this node; EndpointSlices are made here (`endpoints.controller`)."""

    def __init__(self, store: ObjectStore, client: NodeClient, authority: bytes) -> None:
        super().__init__(store)
        self._client = client
        self._authority = authority
        self._kubeconfigs: dict[str, str] = {}  # by uid of the pod
        self._tokens: dict[tuple[str, str], str] = {}  # by uid of the pod and audience
        self._complete = {name: asyncio.Event() for name in FOLLOWED}

    def kubeconfig_of(self, pod: Object) -> str:
        """Return the kubeconfig of a pod that the mirror holds or held; empty if the pod's account was gone."""
        return self._kubeconfigs.get(pod["metadata"]["uid"], "")

    def token_of(self, pod: Object, audience: str) -> str:
        """Return the token for an audience that a volume of the pod asks for; empty as above."""
        return self._tokens.get((pod["metadata"]["uid"], audience), "")

    async def run(self) -> None:
        """Follow the real server until cancelled."""
        async with asyncio.TaskGroup() as group:
            for name, resource in FOLLOWED.items():
                group.create_task(self._follow(name, resource), name=f"mirror of {name}")

    async def complete(self) -> None:
        """Wait until everything that was there at the start is here."""
        for each in self._complete.values():
            await each.wait()

    # ---- what the real server says ------------------------------------------------------------------------------

    async def _follow(self, name: str, resource: Resource) -> None:
        fields = f"spec.nodeName={NODE}" if resource == PODS else ""
        while True:
            with contextlib.suppress(KubeError):  # a watch that ended or broke: what was missed is in the next list
                listed = await self._client.list_all(resource, fields=fields)
                present = {each["metadata"]["uid"] for each in listed.items}
                for stored in self.store.all(name):
                    if stored["metadata"]["uid"] not in present:
                        await self._take(name, "DELETED", stored)
                for each in listed.items:
                    await self._take(name, "MODIFIED", each)
                self._complete[name].set()
                changes = self._client.watch(resource, resource_version=listed.resource_version, fields=fields)
                async for change in changes:
                    if change.type != "BOOKMARK":
                        await self._take(name, change.type, change.object)
            await asyncio.sleep(RETRY_S)

    async def _take(self, name: str, kind: str, found: Object) -> None:
        metadata = found["metadata"]
        gone = kind == "DELETED"
        if name == "pods" and not gone:
            await self._credentials(found)
        await self.store.transact(
            Key(name, metadata.get("namespace", ""), metadata["name"]),
            lambda current: None if gone and current is None else Change(found, removed=gone),
        )
        if name == "services" and gone:
            await self._forget(Key(SLICES, metadata["namespace"], f"{metadata['name']}-local"))

    async def _credentials(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._kubeconfigs:
            with contextlib.suppress(NotFound):  # the account or the pod is gone: it will not run long
                for audience in _audiences(pod):
                    self._tokens[uid, audience] = await self._client.token_of(pod, audience)
                token, namespace = await self._client.token_of(pod), pod["metadata"]["namespace"]
                self._kubeconfigs[uid] = kubeconfig(self._client.server, self._authority, token, namespace)

    async def _forget(self, key: Key) -> None:
        await self.store.transact(key, lambda current: None if current is None else Change(current, removed=True))

    # ---- what the kubelet and the endpoints controller write -----------------------------------------------------

    @told
    async def patch(
        self, resource: str, namespace: str, name: str, patch: Any, kind: str = "merge",
        options: WriteOptions = DEFAULT_WRITE, *, subresource: str = "",
    ) -> Object:  # fmt: skip
        """Write the status of a pod."""
        assert (resource, kind, subresource) == ("pods", "merge", "status")
        status = {key: value for key, value in patch["status"].items() if key != "qosClass"}  # the server's own
        return await self._client.patch_status(PODS, namespace, name, {**patch, "status": status})

    @told
    async def delete(self, resource: str, namespace: str, name: str, options: DeleteOptions = DEFAULT_DELETE) -> Object:
        """Confirm the end of a pod."""
        assert (resource, options.grace_seconds) == ("pods", 0)
        await self._client.confirm_end(namespace, name, options.uid)
        return {}

    @told
    async def apply(
        self, resource: str, body: Object, options: WriteOptions, *, force: bool = False, subresource: str = ""
    ) -> tuple[Object, bool]:
        """Record an event about a pod."""
        assert resource == "events"
        return await self._client.apply(CORE_EVENTS, body, body["metadata"]["namespace"], manager=MANAGER), True

    async def create(self, resource: str, body: Object, options: WriteOptions = DEFAULT_WRITE) -> Object:
        """Make an EndpointSlice here, and show it there."""
        made = await super().create(resource, body, options)
        await self._publish(made)
        return made

    async def update(
        self, resource: str, body: Object, options: WriteOptions = DEFAULT_WRITE, *, subresource: str = ""
    ) -> Object:
        """Change an EndpointSlice here, and show it there."""
        changed = await super().update(resource, body, options, subresource=subresource)
        await self._publish(changed)
        return changed

    @told
    async def _publish(self, endpoint_slice: Object) -> None:
        """Show which pods a Service leads to. A real server refuses loopback addresses, so it gets names for them."""
        metadata = endpoint_slice["metadata"]
        shown: Mapping[str, Any] = {
            "labels": {**metadata["labels"], "endpointslice.kubernetes.io/managed-by": MANAGER},
            **{key: metadata[key] for key in ("name", "namespace", "ownerReferences")},
        }
        endpoints = [
            {**each, "addresses": [f"{address.replace('.', '-')}.pod.{NODE}" for address in each["addresses"]]}
            for each in endpoint_slice.get("endpoints") or ()
        ]
        body = {**endpoint_slice, "metadata": dict(shown), "addressType": "FQDN", "endpoints": endpoints}
        await self._client.apply(ENDPOINT_SLICES, body, metadata["namespace"], manager=MANAGER)
