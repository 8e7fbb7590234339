"""What the server says about itself: versions, groups, resources, schemas (`docs/specs/operator.md` 6.1)."""

from typing import Any

from pavane_local.api.kinds import REVIEWS, VERBS, Registry, Resource
from pavane_local.api.schema import RULES

Document = dict[str, Any]
VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.0+pavane", "platform": "linux/pavane-local"}
SUBRESOURCE_VERBS = {"log": ["get"], "eviction": ["create"], "token": ["create"]}
SUBRESOURCE_KINDS = {
    "scale": ("autoscaling", "v1", "Scale"),
    "eviction": ("policy", "v1", "Eviction"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}


def document(registry: Registry, parts: tuple[str, ...]) -> Document | None:
    """Return the discovery document at a path split at its slashes, or None if there is none."""
    match parts:
        case ("version",):
            return VERSION
        case ("api",):
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ("apis",):
            groups = dict.fromkeys(each.group for each in registry.resources if each.group)
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(registry, each) for each in groups]}
        case ("apis", group) if any(each.group == group for each in registry.resources):
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(registry, group)}
        case ("api", version) | ("apis", _, version):
            return _resources(registry, parts[1] if parts[0] == "apis" else "", version)
        case ("openapi", "v3"):
            return _openapi_index(registry)
        case ("openapi", "v3", "api", version) | ("openapi", "v3", "apis", _, version):
            return _openapi(registry, parts[3] if parts[2] == "apis" else "", version)
    return None


def _group(registry: Registry, group: str) -> Document:
    version = next(each.version for each in registry.resources if each.group == group)
    told = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [told], "preferredVersion": told}


def _of(registry: Registry, group: str, version: str) -> list[Resource]:
    return [each for each in registry.resources if (each.group, each.version) == (group, version)]


def _resources(registry: Registry, group: str, version: str) -> Document | None:
    found = _of(registry, group, version)
    entries = [entry for each in found for entry in _entries(each)]
    name = f"{group}/{version}" if group else version
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name}
    return {**head, "resources": entries} if entries else None


def _entries(resource: Resource) -> list[Document]:
    shared = {"namespaced": resource.namespaced, "kind": resource.kind}
    whole: Document = {
        "name": resource.plural,
        "singularName": resource.singular,
        **shared,
        "verbs": ["create"] if resource.plural in REVIEWS else list(VERBS),
        **({"shortNames": list(resource.short_names)} if resource.short_names else {}),
        **({"categories": list(resource.categories)} if resource.categories else {}),
    }
    entries = [whole]
    for sub in resource.subresources:
        verbs = SUBRESOURCE_VERBS.get(sub, ["get", "patch", "update"])
        entry = {"name": f"{resource.plural}/{sub}", "singularName": "", **shared, "verbs": verbs}
        if sub in SUBRESOURCE_KINDS:
            entry |= dict(zip(("group", "version", "kind"), SUBRESOURCE_KINDS[sub], strict=True))
        entries.append(entry)
    return entries


def _openapi_index(registry: Registry) -> Document:
    versions = {f"apis/{each.group}/{each.version}" if each.group else "api/v1" for each in registry.resources}
    return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in sorted(versions)}}


def _openapi(registry: Registry, group: str, version: str) -> Document | None:
    """Describe one group version: enough for `kubectl apply`, and for `explain` of custom resources."""
    paths, schemas = {}, {}
    for each in _of(registry, group, version):
        told = {"group": each.group, "version": each.version, "kind": each.kind}
        root = f"/apis/{group}/{version}" if group else f"/api/{version}"
        middle = "/namespaces/{namespace}" if each.namespaced else ""
        operation = {
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": told,
            "parameters": [
                {"name": name, "in": "query", "schema": {"type": "string"}} for name in ("fieldValidation", "dryRun")
            ],
            "responses": {"200": {"description": "OK"}},
        }
        paths[f"{root}{middle}/{each.plural}/{{name}}"] = {"patch": operation}
        if each.custom:
            name = ".".join([*reversed(each.group.split(".")), each.version, each.kind])
            schemas[name] = {**_plain(each.structure.schema), "x-kubernetes-group-version-kind": [told]}
    head = {"openapi": "3.0.0", "info": {"title": "pavane local cluster", "version": VERSION["gitVersion"]}}
    return {**head, "paths": paths, "components": {"schemas": schemas}} if paths else None


def _plain(schema: Any) -> Any:
    """Leave out the rules: clients do not evaluate them."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if key != RULES}
    return [_plain(each) for each in schema] if isinstance(schema, list) else schema
