"""Fields that a server refused, in words that name the resource and what was probably meant."""

import functools
import re
from typing import Any

from pavane.parts.spelling import nearest
from pavane_operator.crds.definitions import definitions
from pavane_operator.kube.errors import UNDECLARED, Cause, Invalid

METADATA = frozenset({
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
    "generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences",
    "resourceVersion", "selfLink", "uid",
})  # fmt: skip
"""Fields of the metadata of any resource, which a definition leaves to the server."""

_STEP = re.compile(r"[^.\[\]]+|\[[^\]]*\]")
"""A name, or which entry of a list it is: ``[0]`` or ``[name="x"]``."""


def in_words(error: Invalid, kind: str, name: str, place: str = "") -> Invalid:
    """Return what a server said of an applied resource, for its author; ``place`` is where, and comes first."""
    causes = tuple(_cause(kind, cause) for cause in error.causes)
    message = error.message
    if causes != error.causes or error.is_misfit:
        message = f"{kind} {name}: " + "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
    message = f"{place}: {message}" if place else message
    return Invalid(message, status=error.status, reason=error.reason, causes=causes)


def said_of_unknown(kind: str, path: str) -> str:
    """Return what to say of a field that resources of this kind do not have."""
    near = nearest_field(kind, path)
    return "there is no such field" + (f"; did you mean {near}?" if near else "")


def unknown_fields(kind: str, document: dict[str, Any]) -> list[str]:
    """Return the paths of the fields beside and in the metadata that no resource of this kind has."""
    metadata = document.get("metadata")
    inner = metadata if isinstance(metadata, dict) else {}
    beside = [name for name in document if name not in _schemas()[kind]["properties"]]
    return [*beside, *(f"metadata.{name}" for name in inner if name not in METADATA)]


def nearest_field(kind: str, path: str) -> str | None:
    """Return the path of the field that ``path`` probably stands for; its last name is the one that is unknown."""
    schema = _schemas().get(kind, {})
    *steps, unknown = _STEP.findall(path) or [""]
    for step in steps:
        inner = schema.get("items") if step.startswith("[") else schema.get("properties", {}).get(step)
        schema = inner or schema.get("additionalProperties") or {}
    near = nearest(unknown, schema.get("properties", {}))
    return None if near is None else path.removesuffix(unknown) + near


@functools.cache
def _schemas() -> dict[str, dict[str, Any]]:
    found = {each["spec"]["names"]["kind"]: each["spec"]["versions"][0] for each in definitions()}
    schemas = {kind: version["schema"]["openAPIV3Schema"] for kind, version in found.items()}
    for schema in schemas.values():
        schema["properties"]["metadata"] = {"properties": {name: {} for name in METADATA}}
    return schemas


def _cause(kind: str, cause: Cause) -> Cause:
    if not cause.message.startswith(UNDECLARED):
        return cause
    return Cause(cause.field, said_of_unknown(kind, cause.field), cause.reason)
