"""What the server says about itself: versions, groups, resources, schemas (`docs/specs/operator.md` 6.1)."""

from collections.abc import Mapping
from typing import Any

from pavane_local.api.kinds import DESCRIBED, REVIEWS, Resource

Document = dict[str, Any]
VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.0+pavane", "platform": "linux/pavane-local"}
VERBS = ("create", "delete", "get", "list", "patch", "update", "watch")
PATCH_PARAMETERS = [
    {"name": name, "in": "query", "schema": {"type": "string"}} for name in ("fieldValidation", "dryRun")
]  # without them in the description kubectl asks for documents that are not served


def document(registry: Mapping[str, Resource], parts: tuple[str, ...]) -> Document | None:
    """Return the discovery document at a path split at its slashes, or None if there is none."""
    match parts:
        case ("version",):
            return VERSION
        case ("api",):
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ("apis",):
            groups = dict.fromkeys((each.group, each.version) for each in registry.values() if each.group)
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*each) for each in groups]}
        case ("apis", group):
            versions = [each.version for each in registry.values() if each.group == group]
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions[0])} if versions else None
        case ("api", _) | ("apis", _, _):
            found = _of(registry, "/".join(parts[1:]))
            entries = [entry for each in found for entry in _entries(each)]
            head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "/".join(parts[1:])}
            return {**head, "resources": entries} if entries else None
        case ("openapi", "v3"):
            paths = {f"api{'s' if each.group else ''}/{each.api_version}" for each in registry.values()}
            return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in sorted(paths)}}
        case ("openapi", "v3", "api" | "apis", *rest):
            return _openapi("/".join(parts[2:]), _of(registry, "/".join(rest)))
    return None


def _group(group: str, version: str) -> Document:
    told = {"groupVersion": f"{group}/{version}", "version": version}
    return {"name": group, "versions": [told], "preferredVersion": told}


def _of(registry: Mapping[str, Resource], api_version: str) -> list[Resource]:
    return [each for each in registry.values() if each.api_version == api_version]


def _entries(resource: Resource) -> list[Document]:
    shared = {"namespaced": resource.namespaced, "kind": resource.kind}
    singular = resource.names.get("singular") or resource.kind.lower()
    verbs = ["create"] if resource.plural in REVIEWS else list(VERBS)
    whole: Document = {"name": resource.plural, "singularName": singular, **shared, "verbs": verbs}
    whole |= {key: resource.names[key] for key in ("shortNames", "categories") if key in resource.names}
    below = {f"{resource.plural}/{sub}": DESCRIBED["subresources"][sub] for sub in resource.subresources}
    return [whole, *({"name": name, "singularName": "", **shared, **told} for name, told in below.items())]


def _openapi(root: str, resources: list[Resource]) -> Document | None:
    """Describe one group version: enough for `kubectl apply`, and for `explain` of custom resources."""
    paths, schemas = {}, {}
    for each in resources:
        told = {"group": each.group, "version": each.version, "kind": each.kind}
        operation: Document = {"x-kubernetes-action": "patch", "x-kubernetes-group-version-kind": told}
        operation |= {"parameters": PATCH_PARAMETERS, "responses": {"200": {"description": "OK"}}}
        middle = "/namespaces/{namespace}" if each.namespaced else ""
        paths[f"/{root}{middle}/{each.plural}/{{name}}"] = {"patch": operation}
        if each.custom:
            name = ".".join([*reversed(each.group.split(".")), each.version, each.kind])
            schemas[name] = {**each.schema, "x-kubernetes-group-version-kind": [told]}
    head = {"openapi": "3.0.0", "info": {"title": "pavane local cluster", "version": VERSION["gitVersion"]}}
    return {**head, "paths": paths, "components": {"schemas": schemas}} if paths else None
