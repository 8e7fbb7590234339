"""From a planner's action to a call of the API; stops at the first failure (docs/specs/operator.md 5.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from pavane_operator.kube import AlreadyExists, Conflict, Forbidden, Invalid, KubeClient, KubeError, NotFound
from pavane_operator.kube.resources import BUILT_IN, VOLUME_CLAIMS, Object
from pavane_operator.kube.resources import Resource as ResourceType
from pavane_operator.plan.model import (
    FINALIZER,
    LAST_GENERATION_ANNOTATION,
    ActionFailure,
    ApplyChild,
    CreateChild,
    DeleteChild,
    GrowVolume,
    Manifest,
    MarkResource,
    Refusal,
    Resource,
)
from pavane_operator.runtime.cache import Cache

TYPES: Mapping[str, ResourceType] = {resource.kind: resource for resource in BUILT_IN}
"""Resource types by the kind that manifests and actions carry."""

NO_VERSION = "1"
"""Of an empty store, so no object has it. An apply with it makes what is absent and is refused for what is there: one
call instead of a look and a call."""

ChildAction = MarkResource | CreateChild | ApplyChild | DeleteChild | GrowVolume


class Executor:
    """Executes what concerns Kubernetes objects, and shows the cache what the server answered."""

    def __init__(
        self, kube: KubeClient, resource_type: ResourceType, cache: Cache, now: Callable[[], datetime]
    ) -> None:
        self._kube = kube
        self._type = resource_type
        self._cache = cache
        self._now = now
        self.refusals: dict[str, Refusal] = {}
        """Growth of volumes that the server refused, by uid of the claim."""

    async def execute(self, resource: Resource, action: ChildAction) -> None:
        """One call. Raises KubeError; nothing is retried here."""
        match action:
            case MarkResource():
                await self._mark(resource, action)
            case CreateChild(manifest):
                child_type = TYPES[manifest.kind]
                body = await self._kube.create_if_absent(child_type, dict(manifest.body), resource.namespace)
                _check_owner(resource, body)
                self._cache.seen(child_type, body)
            case ApplyChild(manifest, resource_version):
                await self._apply(resource, manifest, resource_version)
            case DeleteChild():
                await self._kube.delete(
                    TYPES[action.kind],
                    action.name,
                    resource.namespace,
                    uid=action.uid,
                    resource_version=action.resource_version,
                )

            case GrowVolume():
                await self._grow(resource, action)

    async def write_status(self, resource: Resource, status: Object) -> None:
        """Apply the status, if the resource is still the one that was read. Raises KubeError."""
        metadata = {"name": resource.name, "resourceVersion": resource.resource_version}
        body = await self._kube.apply_status(self._type, {"metadata": metadata, "status": status}, resource.namespace)
        self._cache.seen(self._type, body)

    def makes(self, resource: Resource, action: object) -> tuple[str, str] | None:
        """Kind and name of the object that the action makes because, as far as is known, it is not there; else None."""
        if not isinstance(action, CreateChild | ApplyChild):
            return None
        manifest = action.manifest
        known = self._knows(resource, TYPES[manifest.kind], manifest.name)
        return None if known else (manifest.kind, manifest.name)

    def _knows(self, resource: Resource, child_type: ResourceType, name: str) -> bool:
        known = self._cache.members(resource.kind, resource.namespace, resource.name)
        return any(one == child_type and body["metadata"]["name"] == name for one, body in known)

    async def _apply(self, resource: Resource, manifest: Manifest, resource_version: str | None) -> None:
        child_type = TYPES[manifest.kind]
        intent = dict(manifest.body)
        if resource_version is not None:
            intent["metadata"] = {**intent["metadata"], "resourceVersion": resource_version}
        if not self._knows(resource, child_type, manifest.name):
            absent = {**intent, "metadata": {**intent["metadata"], "resourceVersion": NO_VERSION}}
            try:
                self._cache.seen(child_type, await self._kube.apply(child_type, absent, resource.namespace))
                return
            except Conflict:
                present = await self._kube.get_or_none(child_type, manifest.name, resource.namespace)
            if present is not None:
                _check_owner(resource, present)
        self._cache.seen(child_type, await self._kube.apply(child_type, intent, resource.namespace))

    async def _grow(self, resource: Resource, action: GrowVolume) -> None:
        intent: Object = {
            # The uid makes this fail where the claim is gone: an apply would else create one.
            "metadata": {"name": action.name, "uid": action.uid},
            "spec": {"resources": {"requests": {"storage": action.size}}},
        }
        try:
            body = await self._kube.apply(VOLUME_CLAIMS, intent, resource.namespace)
        except (Forbidden, Invalid) as error:
            self.refusals[action.uid] = Refusal(action.size, error.message, self._now())
            return
        self.refusals.pop(action.uid, None)
        self._cache.seen(VOLUME_CLAIMS, body)

    async def _mark(self, resource: Resource, action: MarkResource) -> None:
        # The uid makes this fail where the resource is gone: an apply would else create an empty one.
        metadata: Object = {"name": resource.name, "uid": resource.uid}
        if action.finalizer:
            metadata["finalizers"] = [FINALIZER]
        if action.last_generation is not None:
            metadata["annotations"] = {LAST_GENERATION_ANNOTATION: str(action.last_generation)}
        try:
            body = await self._kube.apply(self._type, {"metadata": metadata}, resource.namespace)
        except NotFound:
            if action.finalizer:
                raise
            return
        self._cache.seen(self._type, body)


def _check_owner(resource: Resource, body: Object) -> None:
    """Refuse to take over what is not ours: the user's, or a former resource's that is still being cleaned up."""
    owners = body["metadata"].get("ownerReferences") or ()
    if not any(owner.get("uid") == resource.uid for owner in owners):
        name = body["metadata"]["name"]
        raise AlreadyExists(
            f"{body['kind']} {name} exists and does not belong to {resource.kind} {resource.name}: "
            "delete it, or give the resource another name",
            status=409,
            reason="NotOurs",
        )


def failure_of(error: Exception) -> ActionFailure:
    """What went wrong, as a blocker shows it."""
    if isinstance(error, KubeError):
        # Forbidden is no rejection for good: rights and quotas are granted without a change of the resource.
        return ActionFailure(error.reason or type(error).__name__, error.message, rejected=isinstance(error, Invalid))
    return ActionFailure(type(error).__name__, str(error) or type(error).__name__)
