"""Label and field selectors as lists and watches take them (`docs/specs/operator.md` 6.2)."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pavane_local.api.errors import bad_request
from pavane_local.store import CHANGING_FIELDS, FIELD, field

_PART = re.compile(r"[^,(]+(?:\([^)]*\))?")
_REQUIREMENT = re.compile(
    r"(?P<key>[A-Za-z0-9][\w./-]*)\s*(?:(?P<operator>==|=|!=)\s*(?P<value>[^()=!]*)"
    r"|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?|!\s*(?P<absent>[A-Za-z0-9][\w./-]*)"
)


_ABOUT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
EVENTS = "events.events.k8s.io"
SELECTED_BY = {
    "pods": ("spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase", "status.podIP"),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
    "events": (*(f"involvedObject.{each}" for each in _ABOUT), "reason", "reportingComponent", "type"),
    EVENTS: (*(f"regarding.{each}" for each in _ABOUT), "reason", "reportingController", "type"),
}
"""Fields to select by, beside name and namespace, as Kubernetes has them."""
_STORED = {"reportingController": "reportingComponent"}


class _Requirement(NamedTuple):
    key: str
    values: set[str] | None  # None: any
    wanted: bool

    def holds(self, value: str | None) -> bool:
        return (value is not None if self.values is None else value in self.values) == self.wanted


def _requirements(text: str) -> list[_Requirement]:
    found = []
    for part in filter(None, map(str.strip, _PART.findall(text))):
        match = _REQUIREMENT.fullmatch(part)
        if not match:
            known = "key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
            raise bad_request(f"unable to parse selector: {part!r}; write {known}")
        listed = match["value"] if match["operator"] else match["values"]
        values = None if listed is None else {each.strip() for each in listed.split(",")}
        wanted = not match["absent"] and match["operator"] != "!=" and match["set"] != "notin"
        found.append(_Requirement(match["key"] or match["absent"], values, wanted))
    return found


def labels(text: str) -> Callable[[Mapping[str, str]], bool]:
    """Return a predicate over labels for a selector like `a=b,c!=d,e in (f,g),h,!i`. Raises `ApiError` 400."""
    parts = _requirements(text)
    return lambda found: all(part.holds(found.get(part.key)) for part in parts)


class Fields(NamedTuple):
    """What a field selector like `status.phase=Running` asks for."""

    parts: list[_Requirement]

    def hold(self, found: Mapping[str, Any], before: Mapping[str, str] | None = None) -> bool:
        """Whether they hold of an object, or of what it was before."""

        def value(path: str) -> str:
            was = before is not None and path in CHANGING_FIELDS
            return (before or {}).get(FIELD + path, "") if was else field(found, path)

        return all(part.holds(value(part.key)) for part in self.parts)


def fields(text: str, resource: str) -> Fields:
    """Return what a selector asks of objects of a resource, such as `pods`. Raises `ApiError` 400."""
    parts = _requirements(text)
    known = ("metadata.name", "metadata.namespace", *SELECTED_BY.get(resource, ()))
    for key, values, _ in parts:
        if key not in known or values is None:
            raise bad_request(f"field label not supported: {key}; select by {', '.join(known)}")
    if resource == EVENTS:
        # Stored in the older shape.
        parts = [part._replace(key=_STORED.get(part.key, part.key)) for part in parts]
        parts = [part._replace(key=part.key.replace("regarding.", "involvedObject.")) for part in parts]
    return Fields(parts)
