"""Label and field selectors as lists and watches take them (`docs/specs/operator.md` 6.2)."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pavane_local.api.errors import bad_request

Labels = Mapping[str, str]
_PART = re.compile(r"[^,(]+(?:\([^)]*\))?")
_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^)]*)\)")
_EQUALITY = re.compile(r"([^=!\s]+)\s*(==|!=|=)\s*(.*)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


def labels(text: str) -> Callable[[Labels], bool]:
    """Return a predicate over the labels of an object for a selector like `a=b,c!=d,e in (f,g),h,!i`.

    Raises `ApiError`: 400, the text is no selector.
    """
    tests = [_label_test(part.strip()) for part in _PART.findall(text)]
    return lambda found: all(test(found) for test in tests)


def _label_test(part: str) -> Callable[[Labels], bool]:
    if match := _SET.fullmatch(part):
        key, operator, values = match[1], match[2], {value.strip() for value in match[3].split(",")}
        if operator == "in":
            return lambda found: found.get(key) in values
        return lambda found: found.get(key) not in values
    if match := _EQUALITY.fullmatch(part):
        key, operator, value = match[1], match[2], match[3].strip()
        if operator == "!=":
            return lambda found: found.get(key) != value
        return lambda found: found.get(key) == value
    name = part.removeprefix("!").strip()
    if not _NAME.fullmatch(name):
        raise bad_request(f"unable to parse label selector: {part!r}; write key=value, key!=value, key in (a,b) or key")
    if part.startswith("!"):
        return lambda found: name not in found
    return lambda found: name in found


def fields(text: str, *, of_events: bool = False) -> Callable[[Mapping[str, Any]], bool]:
    """Return a predicate over an object for a selector like `metadata.name=a,metadata.namespace!=b`.

    Raises `ApiError`: 400, the text is no selector, or names a field that cannot be selected by.
    """
    tests = [_field_test(part.strip(), of_events) for part in text.split(",") if part.strip()]
    return lambda found: all(test(found) for test in tests)


def _field_test(part: str, of_events: bool) -> Callable[[Mapping[str, Any]], bool]:
    match = _EQUALITY.fullmatch(part)
    if not match:
        raise bad_request(f"unable to parse field selector: {part!r}; write field=value or field!=value")
    path, equal, value = match[1], match[2] != "!=", match[3].strip()
    if path not in ("metadata.name", "metadata.namespace") and not (of_events and path.startswith("involvedObject.")):
        raise bad_request(f"field label not supported: {path}; select by metadata.name or metadata.namespace")
    section, name = path.split(".", 1)
    return lambda found: (str(found.get(section, {}).get(name, "")) == value) == equal
