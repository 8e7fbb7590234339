"""The cluster as clients see it: every verb with the rules of an API server (`docs/specs/operator.md` 6.2).

The HTTP server, the controllers and the kubelet all call this one class: same rules, same events for all.
"""

import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, Self

from pavane_local.api import admission, errors, ownership, patches, selectors
from pavane_local.api.kinds import Registry, Resource
from pavane_local.store import Change, Event, EventType, ExpiredError, Key, Object, Store, clone

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
DEFINITION_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
NAME_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""No vowels, so that a generated name spells no word."""
NAME_SUFFIX_SIZE = 5
POD_GRACE_SECONDS = 30

FieldValidation = Literal["Ignore", "Warn", "Strict"]
PatchKind = Literal["merge", "json", "strategic"]
Decision = Callable[[Object | None], Change | None]


@dataclass(frozen=True)
class WriteOptions:
    """Who writes (`manager` owns the fields, 6.3), whether only to try, and what to do about unknown fields."""

    manager: str = "pavane-local"
    dry_run: bool = False
    field_validation: FieldValidation = "Ignore"
    warnings: list[str] = field(default_factory=list)
    """Filled with what the caller should be told."""


@dataclass(frozen=True)
class DeleteOptions:
    """Conditions and time of a deletion; `grace_seconds` counts for pods, None means what the pod asks for."""

    uid: str | None = None
    resource_version: str | None = None
    grace_seconds: int | None = None
    dry_run: bool = False


DEFAULT_WRITE = WriteOptions()
DEFAULT_DELETE = DeleteOptions()


class WatchEvent(NamedTuple):
    """What a watcher sees; `object` is shared by all watchers: copy it (`store.clone`) before you change it."""

    type: EventType
    object: Object


class Watch:
    """Events of one resource in order, filtered by selectors. Iterate; use as context manager to close it.

    An object that enters or leaves the selector becomes ADDED or DELETED. A reader that lags too far gets 410.
    """

    def __init__(
        self, cluster: "Cluster", resource: Resource, namespace: str | None, since: int | None, selects: "Selector"
    ):
        self._namespace = namespace
        self._selects = selects
        initial = [] if since is not None else cluster.store.all(resource.storage, namespace)
        self._initial = [each for each in reversed(initial) if selects.object(each)]
        try:
            self._subscription = cluster.store.subscribe(resource.storage, since)
        except ExpiredError as error:
            raise errors.expired(f"too old resource version: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop receiving events."""
        self._subscription.close()

    def end(self) -> None:
        """Let the reader take what is there; after that it gets 410."""
        self._subscription.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WatchEvent:
        if self._initial:
            return WatchEvent("ADDED", self._initial.pop())
        while True:
            try:
                event = await self._subscription.next()
            except ExpiredError as error:
                raise errors.expired(str(error)) from error
            if self._namespace in (None, event.key.namespace) and (kind := self._kind(event)):
                return WatchEvent(kind, event.object)

    def _kind(self, event: Event) -> EventType | None:
        before = event.previous_labels is not None and self._selects.labels(event.previous_labels)
        if not self._selects.fields(event.object):
            return None
        if event.type == "DELETED" or not self._selects.labels(event.object["metadata"].get("labels") or {}):
            return "DELETED" if before else None
        return "MODIFIED" if before else "ADDED"


class Selector:
    """Label and field selector of a list or watch.

    Raises `ApiError`: 400, a text is no selector.
    """

    def __init__(self, resource: Resource, labels: str, fields: str) -> None:
        self.labels = selectors.labels(labels)
        self.fields = selectors.fields(fields, of_events=resource.storage == "events")

    def object(self, found: Object) -> bool:
        """Tell whether an object is selected."""
        return self.fields(found) and self.labels(found["metadata"].get("labels") or {})


class Cluster:
    """Every verb of 6.2 on the objects of a store.

    `resource` is always `plural` or `plural.group`, as in `pods` or `statefulsets.apps`; `namespace` is "" for
    cluster-wide kinds. All objects given in are left alone, all given out (but those of watches) belong to the caller.
    All methods raise `ApiError` for what an API server would refuse.
    """

    def __init__(self, store: Store, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.store = store
        self.now = now
        self.registry = Registry.of(store.all(DEFINITIONS))

    # Reading

    def find(self, resource: str, namespace: str, name: str) -> Object | None:
        """Return the object, or None."""
        served = self.registry.by_key(resource)
        found = self.store.get(Key(served.storage, namespace, name))
        return None if found is None else self.shown(served, found)

    def get(self, resource: str, namespace: str, name: str) -> Object:
        """Return the object; 404 if there is none."""
        found = self.find(resource, namespace, name)
        if found is None:
            raise errors.not_found(resource, name)
        return found

    def list(
        self, resource: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> "list[Object]":
        """Return the objects that the selectors choose (all namespaces if None), sorted by namespace and name."""
        served = self.registry.by_key(resource)
        selects = Selector(served, labels, fields)
        found = self.store.all(served.storage, namespace)
        return [self.shown(served, each) for each in found if selects.object(each)]

    def watch(
        self,
        resource: str,
        namespace: str | None = None,
        *,
        since: int | None = None,
        labels: str = "",
        fields: str = "",
    ) -> Watch:
        """Watch a resource after resourceVersion `since`; None: first every present object as ADDED. 410 if too old."""
        served = self.registry.by_key(resource)
        return Watch(self, served, namespace, since, Selector(served, labels, fields))

    @staticmethod
    def shown(resource: Resource, stored: Object) -> Object:
        """Return a copy of a stored object as this resource shows it, with today's defaults."""
        shown: Object = (
            admission.event_shape(resource, clone(stored)) if resource.storage == "events" else clone(stored)
        )
        if resource.custom:
            resource.structure.default(shown)
        return shown

    # Writing

    async def create(self, resource: str, body: Object, options: WriteOptions = DEFAULT_WRITE) -> Object:
        """Create an object; 409 if there is one already. `metadata.generateName` gives it a random name."""
        served = self.registry.by_key(resource)
        body = admission.stored_shape(served, clone(body))
        metadata = body.setdefault("metadata", {})
        if not metadata.get("name") and metadata.get("generateName"):
            suffix = "".join(secrets.choice(NAME_SUFFIX_LETTERS) for _ in range(NAME_SUFFIX_SIZE))
            metadata["name"] = metadata["generateName"] + suffix
        if metadata.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        name = metadata.get("name", "")

        def decide(current: Object | None) -> Change:
            if current is not None:
                raise errors.already_exists(served.key, name)
            return self._new(served, body, options)

        return await self._write(served, metadata.get("namespace", ""), name, decide, options)

    async def update(
        self, resource: str, body: Object, options: WriteOptions = DEFAULT_WRITE, *, subresource: str = ""
    ) -> Object:
        """Replace an object (or its status); 409 if `metadata.resourceVersion` is given and not the latest."""
        served = self.registry.by_key(resource)
        body = admission.stored_shape(served, clone(body))
        metadata = body["metadata"]
        name = metadata.get("name", "")
        if served.custom and not metadata.get("resourceVersion"):
            cause = errors.Cause(
                "FieldValueInvalid", "Invalid value: 0x0: must be specified for an update", "metadata.resourceVersion"
            )
            raise errors.invalid(served.kind, served.group, name, [cause])

        def change(current: Object) -> Change | None:
            return self._changed(served, current, body, options, subresource)

        return await self._write(
            served, metadata.get("namespace", ""), name, _of_present(served, name, change), options
        )

    async def patch(
        self, resource: str, namespace: str, name: str, patch: Any, kind: PatchKind = "merge",
        options: WriteOptions = DEFAULT_WRITE, *, subresource: str = "",
    ) -> Object:  # fmt: skip
        """Patch an object (or its status): RFC 7396, RFC 6902 or, for built-in kinds, strategic merge."""
        served = self.registry.by_key(resource)

        def change(current: Object) -> Change | None:
            shown = self.shown(served, current)
            patched = admission.stored_shape(served, patches.patched(served, shown, patch, kind))
            if patched["metadata"].get("name") != name or patched["metadata"].get("namespace", "") != namespace:
                raise errors.bad_request("the name and the namespace of an object cannot be patched")
            return self._changed(served, current, patched, options, subresource)

        return await self._write(served, namespace, name, _of_present(served, name, change), options)

    async def apply(
        self, resource: str, body: Object, options: WriteOptions, *, force: bool = False, subresource: str = ""
    ) -> tuple[Object, bool]:
        """Apply an object as `options.manager` (server-side apply, 6.3); returns it and whether it was created."""
        served = self.registry.by_key(resource)
        body = admission.stored_shape(served, clone(body))
        metadata = body["metadata"]
        name, namespace = metadata.get("name", ""), metadata.get("namespace", "")
        created = False

        def decide(current: Object | None) -> Change | None:
            nonlocal created
            created = current is None
            if metadata.get("managedFields"):
                raise errors.bad_request("metadata.managedFields must be nil")
            if current is not None:
                merged = ownership.applied(served, current, body, options.manager, subresource, force=force)
                return self._changed(served, current, merged, options, subresource, applied=body)
            if subresource or metadata.get("uid"):
                raise errors.not_found(served.key, name)
            if metadata.get("resourceVersion"):
                raise errors.conflict(served.key, name, errors.STALE)
            return self._new(served, body, options, applied=body)

        return await self._write(served, namespace, name, decide, options), created

    async def delete(self, resource: str, namespace: str, name: str, options: DeleteOptions = DEFAULT_DELETE) -> Object:
        """Delete an object, or, while finalizers or a pod's grace period hold it, mark it; returns its last shape."""
        served = self.registry.by_key(resource)

        decide = _of_present(served, name, lambda current: self._deletion(served, current, options))
        removed = await self._write(served, namespace, name, decide, WriteOptions(dry_run=options.dry_run))
        if resource == DEFINITIONS and not options.dry_run:
            await self._delete_instances(removed)
        return removed

    # How a write is decided

    async def _write(
        self, resource: Resource, namespace: str, name: str, decide: Decision, options: WriteOptions
    ) -> Object:
        if bool(namespace) != resource.namespaced:
            raise errors.bad_request(f"{resource.key} {'need' if resource.namespaced else 'have no'} a namespace")
        key = Key(resource.storage, namespace, name)
        if options.dry_run:
            current = self.store.get(key)
            change = decide(current)
            written = change.object if change else current
        else:
            written = await self.store.transact(key, decide)
        assert written is not None  # noqa: S101 - every decision refuses an absent object that it does not create
        if not options.dry_run:
            await self._after(resource, written)
        return self.shown(resource, written)

    async def _after(self, resource: Resource, written: Object) -> None:
        """Follow a change of a definition, and let go of a definition when its last object is gone."""
        if resource.key == DEFINITIONS:
            self.registry = Registry.of(self.store.all(DEFINITIONS))
        elif resource.custom and "deletionTimestamp" in written["metadata"] and not self.store.all(resource.storage):
            definition = self.find(DEFINITIONS, "", resource.key)
            if definition and "deletionTimestamp" in definition["metadata"]:
                await self._release(definition)

    async def _delete_instances(self, definition: Object) -> None:
        resource = definition["metadata"]["name"]
        present = self.store.all(resource)
        for each in present:
            metadata = each["metadata"]
            if "deletionTimestamp" not in metadata:
                await self.delete(resource, metadata.get("namespace", ""), metadata["name"])
        if not present:
            await self._release(definition)

    async def _release(self, definition: Object) -> None:
        name = definition["metadata"]["name"]
        kept = [each for each in definition["metadata"].get("finalizers", ()) if each != DEFINITION_FINALIZER]
        await self.patch(DEFINITIONS, "", name, {"metadata": {"finalizers": kept}})

    def _new(self, resource: Resource, body: Object, options: WriteOptions, applied: Object | None = None) -> Change:
        new: Object = clone(body)
        metadata = new["metadata"]
        admission.check_name(resource, metadata)
        self._check_namespace(resource, metadata)
        for stale in ("managedFields", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            metadata.pop(stale, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": admission.timestamp(self.now())}
        if "status" in resource.subresources:
            new.pop("status", None)
            metadata["generation"] = 1
        if resource.key == DEFINITIONS:
            metadata.setdefault("finalizers", [DEFINITION_FINALIZER])
        admission.admit(resource, new, None, options, self.now())
        ownership.record(resource, None, new, options.manager, "", self.now(), applied)
        return Change(new)

    def _check_namespace(self, resource: Resource, metadata: Mapping[str, Any]) -> None:
        if resource.custom:
            definition = self.store.get(Key(DEFINITIONS, "", resource.key))
            if definition is None or "deletionTimestamp" in definition["metadata"]:
                message = "create not allowed while custom resource definition is terminating"
                raise errors.ApiError(405, "MethodNotAllowed", message)
        if not resource.namespaced:
            return
        namespace = self.store.get(Key("namespaces", "", metadata["namespace"]))
        if namespace is None:
            raise errors.not_found("namespaces", metadata["namespace"])
        if "deletionTimestamp" in namespace["metadata"]:
            name = metadata["namespace"]
            cause = errors.Cause("NamespaceTerminating", f"namespace {name} is being terminated", "metadata.namespace")
            message = (
                f'{resource.key} "{metadata["name"]}" is forbidden: unable to create new content in namespace {name}'
            )
            raise errors.ApiError(403, "Forbidden", f"{message} because it is being terminated", causes=[cause])

    def _changed(
        self, resource: Resource, current: Object, body: Object, options: WriteOptions, subresource: str,
        applied: Object | None = None,
    ) -> Change | None:  # fmt: skip
        given, held = body["metadata"], current["metadata"]
        for precondition in ("resourceVersion", "uid"):
            if given.get(precondition, held[precondition]) != held[precondition]:
                raise errors.conflict(resource.key, held["name"], errors.STALE)
        if subresource:
            status = {"status": body["status"]} if "status" in body else {}
            new = {**{key: clone(value) for key, value in current.items() if key != "status"}, **clone(status)}
        else:
            new = clone(body)
            admission.keep_metadata(new, current)
            if "status" in resource.subresources:
                new.pop("status", None)
                new |= {"status": clone(current["status"])} if "status" in current else {}
        admission.admit(resource, new, current, options, self.now())
        if "generation" in held and admission.spec_of(new) != admission.spec_of(current):
            new["metadata"]["generation"] = held["generation"] + 1
        ownership.record(resource, current, new, options.manager, subresource, self.now(), applied)
        if new == current:
            return None
        return Change(new, removed=admission.released(new))

    def _deletion(self, resource: Resource, current: Object, options: DeleteOptions) -> Change | None:
        held = current["metadata"]
        for name, wanted in (("uid", options.uid), ("resourceVersion", options.resource_version)):
            if wanted is not None and wanted != held[name]:
                why = f"the {name} in the precondition ({wanted}) does not match the one of the object ({held[name]})"
                raise errors.conflict(resource.key, held["name"], why)
        grace = 0
        if resource.key == "pods":
            asked = current["spec"].get("terminationGracePeriodSeconds", POD_GRACE_SECONDS)
            grace = asked if options.grace_seconds is None else options.grace_seconds
        new = clone(current)
        if "deletionTimestamp" not in held or grace < held.get("deletionGracePeriodSeconds", 0):
            end = admission.timestamp(self.now() + timedelta(seconds=grace))
            new["metadata"] |= {"deletionTimestamp": end, "deletionGracePeriodSeconds": grace}
            if resource.key == "namespaces":
                new["status"] = {"phase": "Terminating"}
        removed = admission.released(new)
        return Change(new, removed) if removed or new != current else None


def _of_present(resource: Resource, name: str, change: Callable[[Object], Change | None]) -> Decision:
    """Return a decision that refuses an absent object."""

    def decide(current: Object | None) -> Change | None:
        if current is None:
            raise errors.not_found(resource.key, name)
        return change(current)

    return decide
