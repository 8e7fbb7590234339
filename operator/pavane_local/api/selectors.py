"""Label and field selectors as lists and watches take them (`docs/specs/operator.md` 6.2)."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pavane_local.api.errors import bad_request

_PART = re.compile(r"[^,(]+(?:\([^)]*\))?")
_REQUIREMENT = re.compile(
    r"(?P<key>[A-Za-z0-9][\w./-]*)\s*(?:(?P<operator>==|=|!=)\s*(?P<value>[^()=!]*)"
    r"|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?|!\s*(?P<absent>[A-Za-z0-9][\w./-]*)"
)


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


def fields(text: str, *, events: bool = False) -> Callable[[Mapping[str, Any]], bool]:
    """Return a predicate over an object for a selector like `metadata.name=a`. Raises `ApiError` 400."""
    parts = _requirements(text)
    for key, values, _ in parts:
        known = key in ("metadata.name", "metadata.namespace") or (events and key.startswith("involvedObject."))
        if not known or values is None:
            raise bad_request(f"field label not supported: {key}; select by metadata.name or metadata.namespace")

    def value(found: Mapping[str, Any], path: str) -> str:
        section, _, name = path.partition(".")
        return str(found.get(section, {}).get(name, ""))

    return lambda found: all(part.holds(value(found, part.key)) for part in parts)
