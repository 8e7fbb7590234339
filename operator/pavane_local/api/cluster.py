"""The cluster as clients see it: every verb with the rules of an API server (`docs/specs/operator.md` 6.2).

The HTTP server, the controllers and the kubelet all call this one class: same rules, same events for all.
"""

import functools
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pavane_local.api import admission, errors, ownership, patches, schema, selectors
from pavane_local.api.admission import timestamp, without
from pavane_local.api.kinds import Resource, all_resources
from pavane_local.store import Change, Event, Key, Labels, Object, Objects, ObjectStore, Watch, clone

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
POD_GRACE_SECONDS = 30


@dataclass(frozen=True)
class WriteOptions:
    """Who writes (`manager` owns the fields, 6.3), whether only to try, and whether to refuse unknown fields.

    The cluster's own parts wait while the disk is full, others get an error.
    """

    manager: str = "pavane-local"
    dry_run: bool = False
    strict: bool = False
    wait_for_room: bool = True


@dataclass(frozen=True)
class DeleteOptions:
    """Conditions and time of a deletion; `grace_seconds` counts for pods, None means what the pod asks for."""

    uid: str | None = None
    resource_version: str | None = None
    grace_seconds: int | None = None
    dry_run: bool = False
    wait_for_room: bool = True


DEFAULT_WRITE = WriteOptions()
DEFAULT_DELETE = DeleteOptions()


class Cluster:
    """Every verb of 6.2 on the objects of a store.

    `resource` is always `plural` or `plural.group`, as in `pods` or `statefulsets.apps`; `namespace` is "" for
    cluster-wide kinds. All objects given in are left alone, all given out (but those of watches) belong to the caller.
    All methods raise `ApiError` for what an API server would refuse.
    """

    def __init__(self, store: ObjectStore, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.store = store
        self.now = now
        self.registry = all_resources(store.all(DEFINITIONS))

    def kind(self, resource: str) -> Resource:
        """Return what is known about a resource; 404 if it is not served."""
        if resource not in self.registry:
            raise errors.not_served()
        return self.registry[resource]

    def find(self, resource: str, namespace: str, name: str) -> Object | None:
        """Return the object, or None."""
        served = self.kind(resource)
        found = self.store.get(Key(served.storage, namespace, name))
        return None if found is None else self.shown(served, found)

    def get(self, resource: str, namespace: str, name: str) -> Object:
        """Return the object; 404 if there is none."""
        if (found := self.find(resource, namespace, name)) is None:
            raise errors.not_found(resource, name)
        return found

    def list(self, resource: str, namespace: str | None = None, *, labels: str = "", fields: str = "") -> Objects:
        """Return the objects that the selectors choose (all namespaces if None), sorted by namespace and name."""
        served = self.kind(resource)
        return [self.shown(served, each) for each in self.chosen(served, namespace, labels, fields)]

    def chosen(self, served: Resource, namespace: str | None, labels: str, fields: str) -> Objects:
        """Return the same as it is stored: to be copied before it is changed."""
        has_labels, asked = selectors.labels(labels), selectors.fields(fields, served.key)
        found = [each for each in self.store.all(served.storage, namespace) if asked.hold(each)]
        return [each for each in found if has_labels(each["metadata"].get("labels") or {})]

    def watch(
        self, resource: str, namespace: str | None = None, since: int | None = None, labels: str = "", fields: str = ""
    ) -> Watch:
        """Watch a resource after resourceVersion `since` (410 if too old); None: first what is there as ADDED."""
        served = self.kind(resource)
        has_labels, asked = selectors.labels(labels), selectors.fields(fields, served.key)

        def view(event: Event, before: Labels | None) -> Event | None:
            metadata = event.object["metadata"]
            if namespace not in (None, metadata.get("namespace", "")):
                return None
            was = before is not None and has_labels(before) and asked.hold(event.object, before)
            holds = has_labels(metadata.get("labels") or {}) and asked.hold(event.object)
            if event.type != "DELETED" and holds:
                return Event("MODIFIED" if was else "ADDED", event.object)
            return Event("DELETED", event.object) if was else None

        return self.store.watch(served.storage, since, view)

    @staticmethod
    def shown(resource: Resource, stored: Object) -> Object:
        """Return a copy of a stored object as this resource shows it, with today's defaults."""
        shown = admission.shown_shape(resource, clone(stored))
        if resource.custom:
            schema.default(resource.schema, shown)
        return shown

    async def create(self, resource: str, body: Object, options: WriteOptions = DEFAULT_WRITE) -> Object:
        """Create an object; 409 if there is one already."""
        served, body = self._given(resource, body)
        if body["metadata"].get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")

        def refuse(current: Object) -> Change:
            name = current["metadata"]["name"]
            raise errors.about(409, "AlreadyExists", served.key, name, f'{served.key} "{name}" already exists')

        created = functools.partial(self._new, served, body, options)
        return await self._write(served, body["metadata"], refuse, options, created)

    async def update(
        self, resource: str, body: Object, options: WriteOptions = DEFAULT_WRITE, *, subresource: str = ""
    ) -> Object:
        """Replace an object (or its status); 409 if `metadata.resourceVersion` is given and not the latest."""
        served, body = self._given(resource, body)
        if served.custom and not body["metadata"].get("resourceVersion"):
            text = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
            raise errors.ApiError(422, "Invalid", text)

        def changed(current: Object) -> Change | None:
            return self._changed(served, current, body, options, subresource)

        return await self._write(served, body["metadata"], changed, options)

    async def patch(
        self, resource: str, namespace: str, name: str, patch: Any, kind: str = "merge",
        options: WriteOptions = DEFAULT_WRITE, *, subresource: str = "",
    ) -> Object:  # fmt: skip
        """Patch an object (or its status): `merge` (RFC 7396), `json` (RFC 6902), for built-in kinds `strategic`."""
        served, where = self.kind(resource), {"namespace": namespace, "name": name}

        def changed(current: Object) -> Change | None:
            patched = patches.patched(served, self.shown(served, current), patch, kind)
            patched = admission.stored_shape(served, patched)
            if any(patched["metadata"].get(key, "") != wanted for key, wanted in where.items()):
                raise errors.bad_request("the name and the namespace of an object cannot be patched")
            return self._changed(served, current, patched, options, subresource)

        return await self._write(served, where, changed, options)

    async def apply(
        self, resource: str, body: Object, options: WriteOptions, *, force: bool = False, subresource: str = ""
    ) -> tuple[Object, bool]:
        """Apply an object as `options.manager` (server-side apply, 6.3); returns it and whether it was created."""
        served, body = self._given(resource, body)
        metadata = body["metadata"]
        if metadata.get("managedFields"):
            raise errors.bad_request("metadata.managedFields must be nil")
        if subresource:
            body["metadata"] = without(metadata, "labels", "annotations", "finalizers", "ownerReferences")
            body = {key: body[key] for key in ("apiVersion", "kind", "metadata", "status") if key in body}
        elif "status" in served.subresources:
            body.pop("status", None)
        if unknown := list(schema.prune(served.schema, clone(body))):
            told = [f".{field}: field not declared in schema" for field in unknown]
            listed = told[0] if len(told) == 1 else "\n  ".join(("errors:", *told))
            of = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {served.api_version}, Kind={served.kind}"
            raise errors.ApiError(422, "Invalid", f"failed to create typed patch object ({of}): {listed}")
        writer = ownership.Manager(options.manager, "Apply", subresource)
        is_new = False

        def created() -> Change:
            nonlocal is_new
            is_new = True
            if subresource:
                raise errors.not_found(served.key, metadata.get("name", ""))
            if uid := metadata.get("uid"):  # A resourceVersion is no such precondition: a real server creates.
                why = f"uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                raise errors.conflict(served.key, metadata.get("name", ""), why)
            return self._new(served, body, options, applied=body)

        def changed(current: Object) -> Change | None:
            merged = ownership.merged(served, current, body, writer, force=force)
            return self._changed(served, current, merged, options, subresource, applied=body)

        return await self._write(served, metadata, changed, options, created), is_new

    async def delete(self, resource: str, namespace: str, name: str, options: DeleteOptions = DEFAULT_DELETE) -> Object:
        """Delete an object, or, while finalizers or a pod's grace period hold it, mark it; returns its last shape."""
        served, where = self.kind(resource), {"namespace": namespace, "name": name}
        return await self._write(served, where, lambda found: self._deletion(served, found, options), options)

    def _given(self, resource: str, body: Object) -> tuple[Resource, Object]:
        served = self.kind(resource)
        return served, admission.stored_shape(served, clone(body))

    async def _write(
        self, resource: Resource, where: Mapping[str, Any], changed: Callable[[Object], Change | None],
        options: WriteOptions | DeleteOptions, created: Callable[[], Change] | None = None,
    ) -> Object:  # fmt: skip
        namespace, name = where.get("namespace") or "", where.get("name") or ""
        if bool(namespace) != resource.namespaced:
            raise errors.bad_request(f"{resource.key} {'need' if resource.namespaced else 'have no'} a namespace")
        key = Key(resource.storage, namespace, name)

        def decide(current: Object | None) -> Change | None:
            if current is not None:
                return changed(current)
            if created is None:
                raise errors.not_found(resource.key, name)
            return created()

        if options.dry_run:
            current = self.store.get(key)
            change = decide(current)
            written = change.object if change else current
        else:
            written = await self.store.transact(key, decide, wait_for_room=options.wait_for_room)
        assert written is not None  # noqa: S101 - every decision refuses an absent object that it does not create
        if resource.key == DEFINITIONS and not options.dry_run:
            self.registry = all_resources(self.store.all(DEFINITIONS))
        return self.shown(resource, written)

    def _new(self, resource: Resource, body: Object, options: WriteOptions, applied: Object | None = None) -> Change:
        new: Object = clone(body)
        metadata = new["metadata"]
        if resource.custom and self.store.get(Key(DEFINITIONS, "", resource.key)) is None:
            raise errors.not_served()  # The definition was deleted while this write waited.
        if namespace := metadata.get("namespace"):
            found = self.store.get(Key("namespaces", "", namespace))
            if found is None:
                raise errors.not_found("namespaces", namespace)
            if "deletionTimestamp" in found["metadata"]:
                text = f"namespace {namespace} is being terminated"
                cause = errors.Cause("NamespaceTerminating", text, "metadata.namespace")
                message = f"{resource.key} is forbidden: unable to create new content: {text}"
                raise errors.ApiError(403, "Forbidden", message, [cause], kind=resource.plural, group=resource.group)
        for stale in ("managedFields", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            metadata.pop(stale, None)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp(self.now())}
        if "status" in resource.subresources:
            new.pop("status", None)
            metadata["generation"] = 1
        admission.admit(resource, new, None, strict=options.strict)
        writer = ownership.Manager(options.manager, "Update" if applied is None else "Apply", "")
        ownership.record(resource, None, new, writer, timestamp(self.now()), applied)
        return Change(new)

    def _changed(
        self, resource: Resource, current: Object, body: Object, options: WriteOptions, subresource: str,
        applied: Object | None = None,
    ) -> Change | None:  # fmt: skip
        given, held = body["metadata"], current["metadata"]
        for precondition in ("resourceVersion", "uid"):
            if given.get(precondition, held[precondition]) != held[precondition]:
                raise errors.conflict(resource.key, held["name"])
        new: Object = clone(current if subresource else body)
        if not subresource:
            admission.keep_metadata(new, current)
        if subresource or "status" in resource.subresources:
            status = body if subresource else current
            new = without(new, "status") | ({"status": clone(status["status"])} if "status" in status else {})
        admission.admit(resource, new, current, strict=options.strict)
        if "generation" in held and without(new, "metadata", "status") != without(current, "metadata", "status"):
            new["metadata"]["generation"] = held["generation"] + 1
        writer = ownership.Manager(options.manager, "Update" if applied is None else "Apply", subresource)
        ownership.record(resource, current, new, writer, timestamp(self.now()), applied)
        return None if new == current else Change(new, removed=admission.released(new))

    def _deletion(self, resource: Resource, current: Object, options: DeleteOptions) -> Change | None:
        held = current["metadata"]
        for name, wanted in (("uid", options.uid), ("resourceVersion", options.resource_version)):
            if wanted is not None and wanted != held[name]:
                why = f"the {name} in the precondition ({wanted}) does not match the one of the object ({held[name]})"
                raise errors.conflict(resource.key, held["name"], why)
        if resource.key == DEFINITIONS and self.store.all(held["name"]):
            raise errors.conflict(resource.key, held["name"], "there are objects of this kind: delete them first")
        grace = 0
        if resource.key == "pods":
            asked = current["spec"].get("terminationGracePeriodSeconds", POD_GRACE_SECONDS)
            grace = asked if options.grace_seconds is None else options.grace_seconds
        new = clone(current)
        if "deletionTimestamp" not in held or grace < held.get("deletionGracePeriodSeconds", 0):
            end = timestamp(self.now() + timedelta(seconds=grace))
            new["metadata"] |= {"deletionTimestamp": end, "deletionGracePeriodSeconds": grace}
            new["metadata"] |= {"generation": held["generation"] + 1} if "generation" in held else {}
            if resource.key == "namespaces":
                new["status"] = {"phase": "Terminating"}
        removed = admission.released(new)
        return Change(new, removed) if removed or new != current else None
