"""The resources that the local API server knows: built-in ones and those of custom definitions (6.1, 6.4)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from pavane_local.api.errors import not_served
from pavane_local.api.schema import Structure

REVIEWS = ("tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews")
"""Answered, never stored."""
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_DESCRIBED = yaml.safe_load(resources.files(__package__).joinpath("builtin.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Resource:
    """One kind as the server serves it; `custom` if a definition brought it."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    structure: Structure
    custom: bool
    names: Mapping[str, Any]
    """`singular`, `shortNames` and `categories`, as in a definition."""
    columns: tuple[Mapping[str, Any], ...]
    """Printer columns in the notation of a definition: name, type, jsonPath, priority, description."""
    subresources: Mapping[str, Any]
    key: str
    """How callers of the cluster name this resource: `plural` or `plural.group`."""
    storage: str
    """Name in the store; the two shapes of Event share one."""

    @property
    def api_version(self) -> str:
        """Return `version` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version


def _resource(told: Mapping[str, Any], *, custom: bool = False) -> Resource:
    group, plural, schema = told.get("group", ""), told["plural"], told.get("schema", ANYTHING)
    properties = {**_DESCRIBED["object"], **schema.get("properties", {}), "metadata": _DESCRIBED["metadata"]}
    if "metadata" in told:
        properties["metadata"] = told["metadata"]
    key = f"{plural}.{group}" if group else plural
    return Resource(
        group=group,
        version=told.get("version", "v1"),
        plural=plural,
        kind=told["kind"],
        namespaced=told.get("namespaced", True),
        structure=Structure({**schema, "properties": properties}),
        custom=custom,
        names=told,
        columns=tuple(told.get("columns") or _DESCRIBED["columns"]),
        subresources=told.get("subresources", {}),
        key=key,
        storage=told.get("storedAs", key),
    )


BUILT_IN = tuple(_resource(each) for each in _DESCRIBED["resources"])


class Registry:
    """All served resources: the built-in ones and those of the CustomResourceDefinitions given."""

    def __init__(self, definitions: Iterable[Mapping[str, Any]]) -> None:
        self.resources = (*BUILT_IN, *(self._of(each["spec"]) for each in definitions))
        self._by_key = {resource.key: resource for resource in self.resources}

    @staticmethod
    def _of(spec: Mapping[str, Any]) -> Resource:
        (version,) = spec["versions"]
        told = {**spec["names"], "group": spec["group"], "namespaced": spec["scope"] == "Namespaced"}
        told |= {"version": version["name"], "schema": version["schema"]["openAPIV3Schema"]}
        told |= {"columns": version.get("additionalPrinterColumns"), "subresources": version.get("subresources", {})}
        return _resource(told, custom=True)

    def by_key(self, key: str) -> Resource:
        """Return the resource named `plural` or `plural.group`. Raises `ApiError` 404."""
        if key not in self._by_key:
            raise not_served()
        return self._by_key[key]

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Return the resource of a path, or None."""
        resource = self._by_key.get(f"{plural}.{group}" if group else plural)
        return resource if resource and resource.version == version else None
