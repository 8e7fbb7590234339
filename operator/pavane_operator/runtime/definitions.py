"""Whether the API server knows our kinds as this release does (docs/specs/operator.md 5.12)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from pavane_operator.crds.definitions import PODLESS, definitions
from pavane_operator.kube import KubeClient, KubeError
from pavane_operator.kube.resources import CRDS, GROUP, VERSION, Object
from pavane_operator.plan.port import Kind


async def awaited_definitions(kube: KubeClient, kinds: Iterable[Kind]) -> AsyncIterator[str]:
    """Look again each time the caller comes back, until all are there; yields what is missing, for people."""
    expected = {definition["metadata"]["name"]: definition for definition in definitions()}
    for plural in (*(kind.plural for kind in kinds), *(kind.plural for kind in PODLESS)):
        name = f"{plural}.{GROUP}"
        while True:
            try:
                missing = lacking(expected[name], await kube.get_or_none(CRDS, name))
            except KubeError as error:
                missing = f"the API server: {error}"
            if missing is None:
                break
            yield missing


def lacking(expected: Object, live: Object | None) -> str | None:
    """What the live definition lacks of the expected one; None when an operator of this release can work with it.

    A definition of a later release, which knows more fields, serves an earlier operator well.
    """
    name = expected["metadata"]["name"]
    advice = "install the chart pavane-crds of the operator's release"
    if live is None:
        return f"CustomResourceDefinition {name}: {advice}"
    schema = _schema(live)
    if schema is None:
        return f"version {VERSION} of CustomResourceDefinition {name}: {advice}"
    field = _missing_field(_schema(expected) or {}, schema)
    return None if field is None else f"field {field} of CustomResourceDefinition {name}: {advice}"


def _schema(definition: Object) -> Mapping[str, Any] | None:
    for version in definition["spec"]["versions"]:
        if version["name"] == VERSION and version.get("served"):
            schema: Mapping[str, Any] = (version.get("schema") or {}).get("openAPIV3Schema") or {}
            return schema
    return None


def _missing_field(expected: Mapping[str, Any], live: Mapping[str, Any], path: str = "") -> str | None:
    for name, inner in (expected.get("properties") or {}).items():
        if name not in (live.get("properties") or {}):
            return f"{path}.{name}".lstrip(".")
        found = _missing_field(inner, live["properties"][name], f"{path}.{name}")
        if found is not None:
            return found
    items = expected.get("items")
    return None if items is None else _missing_field(items, live.get("items") or {}, f"{path}[]")
