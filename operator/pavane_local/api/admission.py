"""What the server checks and fills in before it stores an object (`docs/specs/operator.md` 6.2, 6.4, 6.5)."""

import base64
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pavane_local.api.errors import Cause, bad_request, invalid
from pavane_local.api.kinds import Resource
from pavane_local.api.schema import structural_problems
from pavane_local.store import Object

IGNORED = "pavane.dev/local-ignored"
"""Annotation that lists what the server accepted although it has no effect here (6.5)."""
IGNORED_OF_POD = ("hostNetwork", "hostPID", "hostIPC", "affinity", "tolerations", "topologySpreadConstraints")
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_SHORT = re.compile(_LABEL)
_NEW_EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_OLD_EVENT_FIELDS = {old: new for new, old in _NEW_EVENT_FIELDS.items()}


def timestamp(at: datetime) -> str:
    """Return a time (aware, UTC) as Kubernetes writes it."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def spec_of(body: Object) -> Object:
    """Return what `metadata.generation` counts changes of: all but metadata and status."""
    return {key: value for key, value in body.items() if key not in ("metadata", "status")}


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
        body = {_NEW_EVENT_FIELDS.get(key, key): value for key, value in body.items()} | {"apiVersion": "v1"}
    return body


def event_shape(resource: Resource, stored: Object) -> Object:
    """Return a stored event as this resource shows it."""
    if resource.group != "events.k8s.io":
        return stored
    return {_OLD_EVENT_FIELDS.get(key, key): value for key, value in stored.items()} | {
        "apiVersion": resource.api_version
    }


def check_name(resource: Resource, metadata: Mapping[str, Any]) -> None:
    """Refuse a name that the kind does not allow. Raises `ApiError` 422."""
    name = metadata.get("name") or ""
    short = resource.key in ("namespaces", "services")
    if not name:
        cause = Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")
    elif resource.group == "rbac.authorization.k8s.io" or (_SHORT if short else _SUBDOMAIN).fullmatch(str(name)):
        return
    else:
        rule = f"lower case letters, digits and '-'{'' if short else ' and .'}, at most {63 if short else 253}"
        cause = Cause(
            "FieldValueInvalid", f'Invalid value: "{name}": must consist of {rule} characters', "metadata.name"
        )
    raise invalid(resource.kind, resource.group, str(name), [cause])


def keep_metadata(new: Object, current: Object) -> None:
    """Carry over the metadata that a client cannot change."""
    held, given = current["metadata"], new["metadata"]
    for name in (
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
    ):
        given.pop(name, None)
        if name in held:
            given[name] = held[name]
    given["resourceVersion"] = held["resourceVersion"]
    if not given.get("managedFields") and "managedFields" in held:
        given["managedFields"] = held["managedFields"]


def admit(resource: Resource, new: Object, current: Object | None, options: Any, now: datetime) -> None:
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
        raise invalid(resource.kind, resource.group, metadata["name"], causes)
    if not resource.custom:
        _complete(resource, new, now)


def _complete(resource: Resource, new: Object, now: datetime) -> None:
    """Fill in what depends on other fields of a built-in object."""
    match resource.key:
        case "namespaces":
            new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = new["metadata"]["name"]
        case "pods":
            _list_ignored(new, _ignored(new["spec"]))
        case "statefulsets.apps":
            rolling = new["spec"]["updateStrategy"]["type"] != "OnDelete"
            ignored = ["updateStrategy RollingUpdate"] if rolling else []
            _list_ignored(new, ignored + _ignored(new["spec"]["template"]["spec"]))
        case "services":
            for port in new["spec"].get("ports", ()):
                port.setdefault("targetPort", port["port"])
        case "secrets":
            for key, text in new.pop("stringData", {}).items():
                new.setdefault("data", {})[key] = base64.b64encode(str(text).encode()).decode()
        case "customresourcedefinitions.apiextensions.k8s.io":
            new["status"] = _definition_status(new, now)


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


def _definition_status(definition: Object, now: datetime) -> Object:
    """Return names and conditions of a definition: a schema that is not structural is never established (6.4)."""
    version = definition["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    problems = list(structural_problems(schema, "spec.versions[0].schema.openAPIV3Schema"))
    states = [("NamesAccepted", "True", "NoConflicts", "no conflicts found")]
    if problems:
        states += [("Established", "False", "NotAccepted", "the schema is not structural")]
        states += [("NonStructuralSchema", "True", "Violations", "; ".join(problems))]
    else:
        states += [("Established", "True", "InitialNamesAccepted", "the initial names have been accepted")]
    before = {each["type"]: each for each in definition.get("status", {}).get("conditions", ())}
    conditions = []
    for kind, state, reason, message in states:
        old = before.get(kind, {})
        since = old["lastTransitionTime"] if old.get("status") == state else timestamp(now)
        told = {"type": kind, "status": state, "reason": reason, "message": message}
        conditions.append({**told, "lastTransitionTime": since})
    return {"conditions": conditions, "acceptedNames": definition["spec"]["names"], "storedVersions": [version["name"]]}
