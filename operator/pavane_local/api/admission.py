"""What the server checks and fills in before it stores an object (`docs/specs/operator.md` 6.2, 6.4, 6.5)."""

import base64
from collections.abc import Iterable
from datetime import datetime

from pavane_local.api import schema
from pavane_local.api.errors import Cause, bad_request, invalid
from pavane_local.api.kinds import Resource
from pavane_local.api.tables import values
from pavane_local.store import Object

IGNORED = "pavane.dev/local-ignored"  # annotation: what was accepted without effect (6.5)
IGNORED_OF_POD = (
    *(".hostNetwork", ".hostPID", ".hostIPC", ".affinity", ".tolerations", ".topologySpreadConstraints"),
    *(".containers[*].securityContext.privileged", ".containers[*].resources.limits"),
)
IMMUTABLE = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
"""Metadata that no client can change."""


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
    if resource.stored_fields:
        return {resource.stored_fields.get(key, key): value for key, value in body.items()}
    return body


def shown_shape(resource: Resource, stored: Object) -> Object:
    """Return a stored object as this resource shows it."""
    shown_fields = {old: new for new, old in resource.stored_fields.items()}
    shown = {shown_fields.get(key, key): value for key, value in stored.items()}
    return shown | {"apiVersion": resource.api_version}


def keep_metadata(new: Object, current: Object) -> None:
    """Carry over the metadata that a client cannot change."""
    held, given = current["metadata"], new["metadata"]
    kept = {name: held[name] for name in (*IMMUTABLE, "generateName", "resourceVersion") if name in held}
    if not given.get("managedFields") and "managedFields" in held:
        kept["managedFields"] = held["managedFields"]
    new["metadata"] = without(given, *IMMUTABLE) | kept


def admit(resource: Resource, new: Object, current: Object | None, *, strict: bool) -> None:
    """Prune, default and check in place. Raises `ApiError` 422 by field, or 400 for unknown fields if `strict`."""
    metadata = new["metadata"]
    for empty in [key for key, value in metadata.items() if value is None or value in ([], {})]:
        del metadata[empty]
    unknown = [f'unknown field "{path}"' for path in schema.prune(resource.schema, new)]
    if unknown and strict:
        raise bad_request(f"strict decoding error: {', '.join(unknown)}")
    schema.default(resource.schema, new)
    causes = schema.problems(resource.schema, resource.validator, new, current)
    if current and "deletionTimestamp" in metadata and not causes:
        added = set(metadata.get("finalizers", ())) - set(current["metadata"].get("finalizers", ()))
        text = f"Forbidden: no new finalizers can be added if the object is being deleted: {sorted(added)}"
        causes = [Cause("FieldValueForbidden", text, "metadata.finalizers")] if added else []
    if causes:
        raise invalid(resource.kind, resource.group, metadata.get("name", ""), causes)
    match resource.key:
        case "pods":
            _list_ignored(new, new["spec"])
        case "statefulsets.apps":
            spec = new["spec"]
            ignored = ["updateStrategy RollingUpdate"] * (spec["updateStrategy"]["type"] != "OnDelete")
            ignored += ["podManagementPolicy OrderedReady"] * (spec["podManagementPolicy"] != "Parallel")
            _list_ignored(new, spec["template"]["spec"], ignored)
        case "secrets":
            for key, text in new.pop("stringData", {}).items():
                new.setdefault("data", {})[key] = base64.b64encode(str(text).encode()).decode()
        case "customresourcedefinitions.apiextensions.k8s.io":
            states = {"status": "True", "reason": "Accepted", "lastTransitionTime": metadata["creationTimestamp"]}
            conditions = [{"type": each, **states} for each in ("NamesAccepted", "Established")]
            versions = [each["name"] for each in new["spec"]["versions"]]
            names = {"acceptedNames": new["spec"]["names"], "storedVersions": versions}
            new["status"] = {"conditions": conditions, **names}


def _list_ignored(new: Object, spec: Object, others: Iterable[str] = ()) -> None:
    annotations = without(new["metadata"].get("annotations", {}), IGNORED)
    if ignored := [*others, *(path[1:] for path in IGNORED_OF_POD if any(values(spec, path)))]:
        annotations[IGNORED] = ", ".join(ignored)
    new["metadata"] = without(new["metadata"], "annotations") | ({"annotations": annotations} if annotations else {})
