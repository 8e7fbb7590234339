"""What the server checks and fills in before it stores an object (`docs/specs/operator.md` 6.2, 6.4, 6.5)."""

import base64
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from pavane_local.api import schema
from pavane_local.api.errors import Cause, bad_request, invalid
from pavane_local.api.kinds import Resource
from pavane_local.store import Object

NAME_LENGTH = 253
LABEL_LENGTH = 63
IGNORED = "pavane.dev/local-ignored"
"""Annotation that lists what the server accepted although it has no effect here (6.5)."""
VOLUMES = ("emptyDir", "configMap", "secret", "downwardAPI", "persistentVolumeClaim")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_NEW_EVENT_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_FIXED = {
    "pods": (("containers", "initContainers", "volumes", "hostname", "subdomain", "nodeName"), "pod updates"),
    "statefulsets.apps": (
        ("serviceName", "selector", "volumeClaimTemplates", "podManagementPolicy"),
        "updates to statefulset spec for fields other than 'replicas', 'template', 'updateStrategy'",
    ),
}


def timestamp(at: datetime) -> str:
    """Return a time (aware, UTC) as Kubernetes writes it."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def spec_of(body: Object) -> Object:
    """Return what `metadata.generation` counts changes of: all but metadata and status."""
    return {key: value for key, value in body.items() if key not in ("metadata", "status", "apiVersion", "kind")}


def released(body: Object) -> bool:
    """Tell whether nothing holds a deleted object any more: no finalizer, and no grace period of a pod."""
    metadata = body["metadata"]
    held = metadata.get("finalizers") or (body["kind"] == "Namespace" and body.get("spec", {}).get("finalizers"))
    waits = body["kind"] == "Pod" and metadata.get("deletionGracePeriodSeconds", 0) > 0
    return "deletionTimestamp" in metadata and not held and not waits


def stored_shape(resource: Resource, body: Object) -> Object:
    """Check that a body is of this kind; returns it as it is stored: events always in the shape of v1.

    Raises:
        ApiError: 400, the body is of another kind.

    """
    for name, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        if body.setdefault(name, wanted) != wanted:
            raise bad_request(f"the {name} in the data ({body[name]}) does not match the expected one ({wanted})")
    if not isinstance(body.setdefault("metadata", {}), dict):
        raise bad_request("metadata must be an object")
    if resource.group == "events.k8s.io":
        body = {_NEW_EVENT_FIELDS.get(key, key): value for key, value in body.items()} | {"apiVersion": "v1"}
    return body


def event_shape(resource: Resource, stored: Object) -> Object:
    """Return a stored event as this resource shows it."""
    if resource.group != "events.k8s.io":
        return stored
    names = {old: new for new, old in _NEW_EVENT_FIELDS.items()}
    return {names.get(key, key): value for key, value in stored.items()} | {"apiVersion": resource.api_version}


def check_name(resource: Resource, metadata: Mapping[str, Any]) -> None:
    """Refuse a name that the kind does not allow.

    Raises:
        ApiError: 422.

    """
    name = metadata.get("name", "")
    if not name:
        cause = Cause("FieldValueRequired", "Required value: name or generateName is required", "metadata.name")
        raise invalid(resource.kind, resource.group, name, [cause])
    if resource.group == "rbac.authorization.k8s.io":
        return
    short = resource.key in ("namespaces", "services")
    pattern, length = (_LABEL, LABEL_LENGTH) if short else (_SUBDOMAIN, NAME_LENGTH)
    if len(name) > length or not pattern.fullmatch(name):
        rule = f"a lowercase name of letters, digits, '-'{'' if short else ' and .'}, at most {length} characters"
        cause = Cause("FieldValueInvalid", f'Invalid value: "{name}": must be {rule}', "metadata.name")
        raise invalid(resource.kind, resource.group, name, [cause])


def keep_metadata(resource: Resource, new: Object, current: Object) -> None:
    """Carry over the metadata that a client cannot change.

    Raises:
        ApiError: 422, a finalizer was added to an object that is being deleted.

    """
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
    added = set(given.get("finalizers") or ()) - set(held.get("finalizers") or ())
    if added and "deletionTimestamp" in held:
        text = f"Forbidden: no new finalizers can be added if the object is being deleted: {sorted(added)}"
        cause = Cause("FieldValueForbidden", text, "metadata.finalizers")
        raise invalid(resource.kind, resource.group, held["name"], [cause])


def admit(resource: Resource, new: Object, current: Object | None, options: Any, now: datetime) -> None:
    """Prune, default and check an object in place; `options` are the `WriteOptions` of the write.

    Raises:
        ApiError: 422 with one cause per field; 400 for unknown fields under `fieldValidation=Strict`.

    """
    for empty in [key for key, value in new["metadata"].items() if value is None or value in ([], {})]:
        del new["metadata"][empty]
    if resource.schema:
        unknown = resource.schema.prune(new)
        if unknown and options.field_validation == "Strict":
            text = ", ".join(f'unknown field "{path}"' for path in unknown)
            raise bad_request(f"strict decoding error: {text}")
        if options.field_validation == "Warn":
            options.warnings.extend(f'unknown field "{path}"' for path in unknown)
        resource.schema.default(new)
        causes = resource.schema.problems(new, current)
    else:
        _default_built_in(resource, new, now)
        causes = list(_built_in_problems(resource, new, current))
    if causes:
        raise invalid(resource.kind, resource.group, new["metadata"]["name"], causes)


def _default_built_in(resource: Resource, new: Object, now: datetime) -> None:
    spec = new.get("spec", {})
    match resource.key:
        case "namespaces":
            new.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
            new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = new["metadata"]["name"]
            new.setdefault("status", {"phase": "Active"})
        case "pods":
            _default_pod(spec)
            spec.setdefault("nodeName", "local")
            spec.setdefault("serviceAccountName", "default")
            new.setdefault("status", {"phase": "Pending", "qosClass": "BestEffort"})
            _list_ignored(new, _ignored_of_pod(spec))
        case "statefulsets.apps":
            _fill(spec, replicas=1, podManagementPolicy="OrderedReady", revisionHistoryLimit=10)
            _fill(spec, updateStrategy={"type": "RollingUpdate"})
            _fill(spec, persistentVolumeClaimRetentionPolicy={"whenDeleted": "Retain", "whenScaled": "Retain"})
            template = spec.get("template", {}).get("spec", {})
            _default_pod(template)
            rolling = ["updateStrategy RollingUpdate"] if spec["updateStrategy"].get("type") != "OnDelete" else []
            _list_ignored(new, [*rolling, *_ignored_of_pod(template)])
        case "services":
            spec |= (
                {"type": "ClusterIP", "sessionAffinity": "None"} | spec | {"clusterIP": "None", "clusterIPs": ["None"]}
            )
            for port in spec.get("ports", ()):
                _fill(port, protocol="TCP", targetPort=port.get("port"))
        case "secrets":
            for key, text in new.pop("stringData", {}).items():
                new.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()
            new.setdefault("type", "Opaque")
        case "persistentvolumeclaims":
            spec.setdefault("volumeMode", "Filesystem")
            capacity = spec.get("resources", {}).get("requests", {})
            new.setdefault(
                "status", {"phase": "Bound", "accessModes": spec.get("accessModes", []), "capacity": capacity}
            )
        case "customresourcedefinitions.apiextensions.k8s.io":
            new["status"] = _definition_status(new, now)


def _fill(target: Object, **defaults: Any) -> None:
    for name, value in defaults.items():
        target.setdefault(name, value)


def _default_pod(spec: Object) -> None:
    _fill(spec, restartPolicy="Always", terminationGracePeriodSeconds=30, dnsPolicy="ClusterFirst")
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        _fill(container, imagePullPolicy="IfNotPresent", terminationMessagePath="/dev/termination-log")
        for port in container.get("ports", ()):
            port.setdefault("protocol", "TCP")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                _fill(container[probe], timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
                if "httpGet" in container[probe]:
                    container[probe]["httpGet"].setdefault("scheme", "HTTP")
    for volume in spec.get("volumes", ()):
        for kind in ("configMap", "secret", "downwardAPI"):
            if kind in volume:
                volume[kind].setdefault("defaultMode", 0o644)


def _ignored_of_pod(spec: Object) -> list[str]:
    ignored = [name for name in ("hostNetwork", "hostPID", "hostIPC", "affinity", "tolerations") if spec.get(name)]
    if spec.get("topologySpreadConstraints"):
        ignored.append("topologySpreadConstraints")
    containers = spec.get("containers", ())
    if any(each.get("securityContext", {}).get("privileged") for each in containers):
        ignored.append("privileged")
    if any(each.get("resources", {}).get("limits") for each in containers):
        ignored.append("resources.limits")
    return ignored


def _list_ignored(new: Object, ignored: list[str]) -> None:
    if ignored:
        new["metadata"].setdefault("annotations", {})[IGNORED] = ", ".join(ignored)
    else:
        new["metadata"].get("annotations", {}).pop(IGNORED, None)


def _built_in_problems(resource: Resource, new: Object, current: Object | None) -> Iterator[Cause]:
    spec = new.get("spec", {})
    if resource.key == "pods":
        yield from _pod_problems(spec, "spec")
    elif resource.key == "statefulsets.apps":
        yield from _pod_problems(spec.get("template", {}).get("spec", {}), "spec.template.spec")
        labels = spec.get("template", {}).get("metadata", {}).get("labels", {})
        wanted = spec.get("selector", {}).get("matchLabels", {})
        if not wanted or any(labels.get(key) != value for key, value in wanted.items()):
            text = f"Invalid value: {labels}: `selector` does not match template `labels`"
            yield Cause("FieldValueInvalid", text, "spec.template.metadata.labels")
    if current and resource.key in _FIXED:
        fields, what = _FIXED[resource.key]
        if any(spec.get(name) != current["spec"].get(name) for name in fields):
            yield Cause("FieldValueForbidden", f"Forbidden: {what}: may not change {', '.join(fields)}", "spec")
    if current and (current.get("immutable") or resource.kind == "ControllerRevision"):
        changed = [name for name in ("data", "stringData", "binaryData") if new.get(name) != current.get(name)]
        yield from (Cause("FieldValueForbidden", "Forbidden: field is immutable", name) for name in changed)
    if resource.kind == "CustomResourceDefinition":
        yield from _definition_problems(new)


def _pod_problems(spec: Object, path: str) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield Cause("FieldValueRequired", "Required value", f"{path}.containers")
    for index, container in enumerate(spec.get("containers", ())):
        missing = [name for name in ("name", "image") if not container.get(name)]
        yield from (
            Cause("FieldValueRequired", "Required value", f"{path}.containers[{index}].{name}") for name in missing
        )
    for index, volume in enumerate(spec.get("volumes", ())):
        if not any(kind in volume for kind in VOLUMES):
            text = f"Forbidden: the local cluster has only the volumes {', '.join(VOLUMES)}"
            yield Cause("FieldValueForbidden", text, f"{path}.volumes[{index}]")


def _definition_problems(definition: Object) -> Iterator[Cause]:
    spec = definition.get("spec", {})
    for field in ("group", "scope", "names", "versions"):
        if not spec.get(field):
            yield Cause("FieldValueRequired", "Required value", f"spec.{field}")
    name = f"{spec.get('names', {}).get('plural')}.{spec.get('group')}"
    if definition["metadata"]["name"] != name:
        text = f'Invalid value: "{definition["metadata"]["name"]}": must be spec.names.plural+"."+spec.group'
        yield Cause("FieldValueInvalid", text, "metadata.name")
    versions = spec.get("versions", ())
    if len(versions) != 1 or not (versions[0].get("served") and versions[0].get("storage")):
        text = "Forbidden: the local cluster takes exactly one version, served and stored"
        yield Cause("FieldValueForbidden", text, "spec.versions")
    elif "openAPIV3Schema" not in versions[0].get("schema", {}):
        yield Cause("FieldValueRequired", "Required value", "spec.versions[0].schema.openAPIV3Schema")


def _definition_status(definition: Object, now: datetime) -> Object:
    """Return names and conditions of a definition: a schema that is not structural is never established (6.4)."""
    spec = definition.get("spec", {})
    versions = spec.get("versions") or [{}]
    path = "spec.versions[0].schema.openAPIV3Schema"
    described = versions[0].get("schema", {}).get("openAPIV3Schema", {})
    problems = list(schema.structural_problems(described, path))
    text = "; ".join(f"{cause.field}: {cause.message}" for cause in problems)
    states = [
        ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
        ("Established", "False", "NotAccepted", "the schema is not structural") if problems
        else ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
        *([("NonStructuralSchema", "True", "Violations", text)] if problems else []),
    ]  # fmt: skip
    before = {each["type"]: each for each in definition.get("status", {}).get("conditions", ())}
    conditions = []
    for kind, state, reason, message in states:
        old = before.get(kind, {})
        changed = old.get("lastTransitionTime") if old.get("status") == state else timestamp(now)
        conditions.append(
            {"type": kind, "status": state, "reason": reason, "message": message, "lastTransitionTime": changed}
        )
    stored = [versions[0].get("name", "")]
    return {"conditions": conditions, "acceptedNames": spec.get("names", {}), "storedVersions": stored}
