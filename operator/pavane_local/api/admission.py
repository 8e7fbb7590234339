"""What the server checks and fills in before it stores an object (`docs/specs/operator.md` 6.2, 6.4, 6.5)."""

import base64
from datetime import datetime
from typing import Any

from pavane_local.api.errors import Cause, bad_request, invalid
from pavane_local.api.kinds import Resource
from pavane_local.store import Object

IGNORED = "pavane.dev/local-ignored"
"""Annotation that lists what the server accepted although it has no effect here (6.5)."""
IGNORED_OF_POD = ("hostNetwork", "hostPID", "hostIPC", "affinity", "tolerations", "topologySpreadConstraints")
IMMUTABLE = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
"""Metadata that no client can change."""
_OLD_EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_NEW_EVENT_FIELDS = {old: new for new, old in _OLD_EVENT_FIELDS.items()}


def timestamp(at: datetime) -> str:
    """Return a time (aware, UTC) as Kubernetes writes it."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def without(body: Object, *names: str) -> Object:
    """Return a body without some of its fields."""
    return {key: value for key, value in body.items() if key not in names}


def released(body: Object) -> bool:
    """Tell whether nothing holds a deleted object any more: no finalizer, and no grace period of a pod."""
    metadata = body["metadata"]
    held = metadata.get("finalizers") or (body["kind"] == "Namespace" and body["spec"].get("finalizers"))
    waits = body["kind"] == "Pod" and metadata.get("deletionGracePeriodSeconds", 0) > 0
    return "deletionTimestamp" in metadata and not held and not waits


def stored_shape(resource: Resource, body: Object) -> Object:
    """Return a body as it is stored, events always in the shape of v1. Raises `ApiError` 400 for another kind."""
    for name, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        if body.setdefault(name, wanted) != wanted:
            raise bad_request(f"the {name} in the data ({body[name]}) does not match the expected one ({wanted})")
    metadata = body.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise bad_request("metadata must be an object")
    if not all(isinstance(metadata.get(name), str | None) for name in ("name", "namespace", "generateName")):
        raise bad_request("metadata.name, metadata.namespace and metadata.generateName must be strings")
    if resource.group == "events.k8s.io":
        return {_OLD_EVENT_FIELDS.get(key, key): value for key, value in body.items()} | {"apiVersion": "v1"}
    return body


def shown_shape(resource: Resource, stored: Object) -> Object:
    """Return a stored object as this resource shows it."""
    if resource.group != "events.k8s.io":
        return stored
    version = {"apiVersion": resource.api_version}
    return {_NEW_EVENT_FIELDS.get(key, key): value for key, value in stored.items()} | version


def keep_metadata(new: Object, current: Object) -> None:
    """Carry over the metadata that a client cannot change."""
    held, given = current["metadata"], new["metadata"]
    kept = {name: held[name] for name in (*IMMUTABLE, "generateName", "resourceVersion") if name in held}
    if not given.get("managedFields") and "managedFields" in held:
        kept["managedFields"] = held["managedFields"]
    new["metadata"] = without(given, *IMMUTABLE) | kept


def admit(resource: Resource, new: Object, current: Object | None, options: Any) -> None:
    """Prune, default and check an object in place; `options` are the `WriteOptions` of the write.

    Raises `ApiError` 422 with one cause per field, or 400 for unknown fields under `fieldValidation=Strict`.
    """
    metadata = new["metadata"]
    for empty in [key for key, value in metadata.items() if value is None or value in ([], {})]:
        del metadata[empty]
    unknown = [f'unknown field "{path}"' for path in resource.structure.prune(new)]
    if unknown and options.field_validation == "Strict":
        raise bad_request(f"strict decoding error: {', '.join(unknown)}")
    if options.field_validation == "Warn":
        options.warnings.extend(unknown)
    resource.structure.default(new)
    causes = resource.structure.problems(new, current)
    if current and "deletionTimestamp" in metadata and not causes:
        added = set(metadata.get("finalizers", ())) - set(current["metadata"].get("finalizers", ()))
        text = f"Forbidden: no new finalizers can be added if the object is being deleted: {sorted(added)}"
        causes = [Cause("FieldValueForbidden", text, "metadata.finalizers")] if added else []
    if causes:
        raise invalid(resource.kind, resource.group, metadata.get("name", ""), causes)
    match resource.key:
        case "pods":
            _list_ignored(new, _ignored(new["spec"]))
        case "statefulsets.apps":
            spec = new["spec"]
            ignored = ["updateStrategy RollingUpdate"] * (spec["updateStrategy"]["type"] != "OnDelete")
            ignored += ["podManagementPolicy OrderedReady"] * (spec["podManagementPolicy"] != "Parallel")
            _list_ignored(new, ignored + _ignored(spec["template"]["spec"]))
        case "secrets":
            for key, text in new.pop("stringData", {}).items():
                new.setdefault("data", {})[key] = base64.b64encode(str(text).encode()).decode()
        case "customresourcedefinitions.apiextensions.k8s.io":
            states = {"status": "True", "reason": "Accepted", "lastTransitionTime": metadata["creationTimestamp"]}
            conditions = [{"type": each, **states} for each in ("NamesAccepted", "Established")]
            versions = [each["name"] for each in new["spec"]["versions"]]
            names = {"acceptedNames": new["spec"]["names"], "storedVersions": versions}
            new["status"] = {"conditions": conditions, **names}


def _ignored(spec: Object) -> list[str]:
    containers = spec["containers"]
    privileged = any((each.get("securityContext") or {}).get("privileged") for each in containers)
    limited = any((each.get("resources") or {}).get("limits") for each in containers)
    ignored = [name for name in IGNORED_OF_POD if spec.get(name)]
    return ignored + ["privileged"] * privileged + ["resources.limits"] * limited


def _list_ignored(new: Object, ignored: list[str]) -> None:
    if ignored:
        new["metadata"].setdefault("annotations", {})[IGNORED] = ", ".join(ignored)
    else:
        new["metadata"].get("annotations", {}).pop(IGNORED, None)
