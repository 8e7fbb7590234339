"""The resources that the local API server knows: built-in ones and those of custom definitions (6.1, 6.4)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

import yaml

from pavane_local.api.errors import ApiError
from pavane_local.api.schema import Structure

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
REVIEWS = ("tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews")
"""Answered, never stored."""
AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_DESCRIBED = yaml.safe_load(resources.files(__package__).joinpath("builtin.yaml").read_text(encoding="utf-8"))
_TEXT = {"type": "string"}


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
    singular: str
    short_names: tuple[str, ...]
    categories: tuple[str, ...]
    columns: tuple[Mapping[str, Any], ...]
    """Printer columns in the notation of a definition: name, type, jsonPath, priority, description."""
    subresources: Mapping[str, Mapping[str, str]]
    """By name; of `scale`, the JSON paths `specReplicasPath`, `statusReplicasPath`, `labelSelectorPath`."""
    storage: str
    """Name in the store; the two shapes of Event share one."""

    @property
    def key(self) -> str:
        """How callers of the cluster name this resource: `plural` or `plural.group`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """Return `version` or `group/version`."""
        return f"{self.group}/{self.version}" if self.group else self.version


def _resource(names: Mapping[str, Any], version: Mapping[str, Any], group: str, *, namespaced: bool) -> Resource:
    schema = version.get("schema", {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    properties = schema.get("properties", {}) | {"apiVersion": _TEXT, "kind": _TEXT, "metadata": _DESCRIBED["metadata"]}
    return Resource(
        group=group,
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        namespaced=namespaced,
        structure=Structure({**schema, "properties": properties}),
        custom=not version.get("builtIn"),
        singular=names.get("singular") or names["kind"].lower(),
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        columns=tuple(version.get("columns") or (AGE,)),
        subresources=version.get("subresources", {}),
        storage=names.get("storedAs") or f"{names['plural']}{'.' if group else ''}{group}",
    )


def custom_resource(definition: Mapping[str, Any]) -> Resource:
    """Read the resource of one CustomResourceDefinition that has passed its checks."""
    spec = definition["spec"]
    version = spec["versions"][0]
    schema, columns = version["schema"]["openAPIV3Schema"], version.get("additionalPrinterColumns")
    version = {**version, "schema": schema, "columns": columns}
    return _resource(spec["names"], version, spec["group"], namespaced=spec["scope"] == "Namespaced")


BUILT_IN = tuple(
    _resource(
        each, {"name": "v1", "builtIn": True, **each}, each.get("group", ""), namespaced=each.get("namespaced", True)
    )
    for each in _DESCRIBED["resources"]
)


@dataclass(frozen=True)
class Registry:
    """All served resources: the built-in ones and those of the established custom definitions."""

    resources: tuple[Resource, ...]

    @classmethod
    def of(cls, definitions: Iterable[Mapping[str, Any]]) -> "Registry":
        """Build the registry from the CustomResourceDefinition objects of the store."""
        return cls((*BUILT_IN, *(custom_resource(each) for each in definitions if _established(each))))

    @cached_property
    def _by_key(self) -> dict[str, Resource]:
        return {resource.key: resource for resource in self.resources}

    def by_key(self, key: str) -> Resource:
        """Return the resource named `plural` or `plural.group`. Raises `ApiError` 404."""
        try:
            return self._by_key[key]
        except KeyError:
            raise ApiError(404, "NotFound", "the server could not find the requested resource") from None

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """Return the resource of a path, or None."""
        resource = self._by_key.get(f"{plural}.{group}" if group else plural)
        return resource if resource and resource.version == version else None


def _established(definition: Mapping[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions", ())
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
