"""Label and field selectors as lists and watches take them (`docs/specs/operator.md` 6.2)."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pavane_local.api.errors import bad_request

_PART = re.compile(r"[^,(]+(?:\([^)]*\))?")
_REQUIREMENT = re.compile(
    r"(?P<absent>!)?\s*(?P<key>[A-Za-z0-9][\w./-]*)\s*"
    r"(?:(?P<equal>==|=|!=)\s*(?P<value>[^()=!]*)|(?P<within>in|notin)\s*\((?P<values>[^()]*)\))?"
)


def _requirements(text: str, kind: str) -> list[tuple[str, set[str], bool]]:
    """Return key, values (none: any) and whether they are wanted, for each part of a selector."""
    found = []
    for part in filter(None, map(str.strip, _PART.findall(text))):
        match = _REQUIREMENT.fullmatch(part)
        if not match or (match["absent"] and (match["equal"] or match["within"])):
            known = "key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
            raise bad_request(f"unable to parse {kind} selector: {part!r}; write {known}")
        values = match["value"] if match["equal"] else match["values"]
        wanted = not match["absent"] and match["equal"] != "!=" and match["within"] != "notin"
        found.append(
            (match["key"], {each.strip() for each in values.split(",")} if values is not None else set(), wanted)
        )
    return found


def labels(text: str) -> Callable[[Mapping[str, str]], bool]:
    """Return a predicate over labels for a selector like `a=b,c!=d,e in (f,g),h,!i`. Raises `ApiError` 400."""
    parts = _requirements(text, "label")
    return lambda found: all(
        (found.get(key) in values if values else key in found) == want for key, values, want in parts
    )


def fields(text: str, *, of_events: bool = False) -> Callable[[Mapping[str, Any]], bool]:
    """Return a predicate over an object for a selector like `metadata.name=a,metadata.namespace!=b`.

    Raises `ApiError`: 400, the text is no selector, or names a field that cannot be selected by.
    """
    parts = _requirements(text, "field")
    for path, values, _ in parts:
        known = path in ("metadata.name", "metadata.namespace") or (of_events and path.startswith("involvedObject."))
        if not known or not values:
            raise bad_request(f"field label not supported: {path}; select by metadata.name or metadata.namespace")

    def selects(found: Mapping[str, Any]) -> bool:
        places = (
            (found.get(path.split(".")[0], {}), path.split(".", 1)[1], values, want) for path, values, want in parts
        )
        return all((str(place.get(name, "")) in values) == want for place, name, values, want in places)

    return selects
