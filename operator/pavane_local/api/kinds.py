"""The resources that the local API server knows: built-in ones and those of custom definitions (6.1, 6.4)."""

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import yaml

from pavane_local.api.schema import Schema, Validator

REVIEWS = ("tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews")  # answered, never stored
DESCRIBED = yaml.safe_load(resources.files(__package__).joinpath("builtin.yaml").read_text(encoding="utf-8"))


class Resource:
    """One kind as the server serves it; `custom` if a definition brought it."""

    def __init__(self, told: Mapping[str, Any], *, custom: bool = False) -> None:
        """Read a description: an entry of builtin.yaml, or a definition in the same notation."""
        self.names = told
        self.custom = custom
        self.group: str = told.get("group", "")
        self.version: str = told.get("version", "v1")
        self.plural: str = told["plural"]
        self.kind: str = told["kind"]
        self.namespaced: bool = told.get("namespaced", True)
        self.subresources: Mapping[str, Any] = told.get("subresources", {})
        self.columns: Sequence[Mapping[str, Any]] = told.get("columns") or DESCRIBED["columns"]
        self.api_version = f"{self.group}/{self.version}" if self.group else self.version
        self.key = f"{self.plural}.{self.group}" if self.group else self.plural
        self.storage: str = told.get("storedAs", self.key)
        self.stored_fields: Mapping[str, str] = told.get("storedFields", {})
        schema = told.get("schema", {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
        metadata = {"metadata": told.get("metadata", DESCRIBED["metadata"])}
        self.schema: Schema = {**schema, "properties": DESCRIBED["object"] | schema.get("properties", {}) | metadata}
        self.validator = Validator(self.schema)


BUILT_IN = tuple(Resource(each) for each in DESCRIBED["resources"])


def all_resources(definitions: Iterable[Mapping[str, Any]]) -> dict[str, Resource]:
    """Return all resources by key: the built-in ones and those of the CustomResourceDefinitions given."""
    return {each.key: each for each in (*BUILT_IN, *(_custom(each["spec"]) for each in definitions))}


def _custom(spec: Mapping[str, Any]) -> Resource:
    (version,) = spec["versions"]
    told = {**spec["names"], "group": spec["group"], "namespaced": spec["scope"] == "Namespaced"}
    told |= {"version": version["name"], "schema": version["schema"]["openAPIV3Schema"]}
    told |= {"columns": version.get("additionalPrinterColumns"), "subresources": version.get("subresources", {})}
    return Resource(told, custom=True)
