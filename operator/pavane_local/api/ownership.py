"""Who owns which field: server-side apply and its bookkeeping (`docs/specs/operator.md` 6.3).

An object is flattened to leaves, each under a path in the notation of FieldsV1 (`f:spec`, `k:{"name":"a"}`, `v:"x"`).
A manager owns a set of such paths.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from pavane_local.api.errors import ApiError, Cause
from pavane_local.api.kinds import Resource
from pavane_local.api.schema import Schema, child, list_keys
from pavane_local.store import Object, clone

Path = tuple[str, ...]
SERVER_FIELDS = frozenset(
    (
        *("name", "namespace", "generateName", "uid", "resourceVersion", "generation", "creationTimestamp"),
        *("deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"),
    )
)
"""Metadata that nobody owns."""


class Manager(NamedTuple):
    """Identity of an owner: name, `Apply` or `Update`, and the subresource it wrote to."""

    name: str
    operation: str
    subresource: str


@dataclass(frozen=True)
class Entry:
    """What one manager owns, since when, in which version of the kind."""

    paths: frozenset[Path]
    time: str
    api_version: str


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def elements(schema: Schema, value: list[Any]) -> list[str] | None:
    """Return the path step of every entry of a list, or None if the list is replaced as a whole."""
    kind, keys = schema.get("x-kubernetes-list-type", "atomic"), list_keys(schema)
    if kind == "set":
        return [f"v:{_compact(item)}" for item in value]
    if kind != "map" or not all(isinstance(item, dict) for item in value):
        return None
    parts = schema["items"].get("properties", {})
    defaults = {key: parts[key]["default"] for key in keys if "default" in parts.get(key, {})}
    return [
        f"k:{_compact({key: (defaults | item)[key] for key in keys if key in (defaults | item)})}" for item in value
    ]


def leaves(resource: Resource, body: Object) -> dict[Path, Any]:
    """Flatten an object: path → value, without what nobody owns."""
    found: dict[Path, Any] = {}
    owned = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
    if metadata := {key: value for key, value in body.get("metadata", {}).items() if key not in SERVER_FIELDS}:
        owned["metadata"] = metadata
    else:
        owned.pop("metadata", None)
    _flatten(resource.structure.schema, owned, (), found)
    found.pop((), None)
    return found


def _flatten(schema: Schema, value: Any, path: Path, into: dict[Path, Any]) -> None:
    if isinstance(value, dict) and value and schema.get("x-kubernetes-map-type") != "atomic":
        for key, item in value.items():
            _flatten(child(schema, key), item, (*path, f"f:{key}"), into)
    elif isinstance(value, list) and value and (steps := elements(schema, value)) is not None:
        for step, item in zip(steps, value, strict=True):
            into[*path, step] = None
            if isinstance(item, dict):
                _flatten(schema["items"], item, (*path, step), into)
    else:
        into[path] = value


def _encode(paths: Iterable[Path]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path in paths:
        node = tree
        for step in path:
            node = node.setdefault(step, {})
        node["."] = {}
    return _without_marks(tree)


def _without_marks(node: dict[str, Any]) -> dict[str, Any]:
    """Leave the mark `.` only where a path is owned that has others below it."""
    return {} if list(node) == ["."] else {step: _without_marks(below) for step, below in sorted(node.items())}


def _decode(node: Mapping[str, Any], path: Path = ()) -> Iterable[Path]:
    if path and (not node or "." in node):
        yield path
    for step, below in node.items():
        if step != "." and isinstance(below, dict):
            yield from _decode(below, (*path, step))


def managers(body: Object) -> dict[Manager, Entry]:
    """Read `metadata.managedFields`."""
    return {
        Manager(each["manager"], each["operation"], each.get("subresource", "")): Entry(
            frozenset(_decode(each.get("fieldsV1", {}))), each["time"], each["apiVersion"]
        )
        for each in body["metadata"].get("managedFields", ())
        if each.get("manager")
    }


def _stored(found: Mapping[Manager, Entry]) -> list[dict[str, Any]]:
    return [
        {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": entry.api_version,
            "time": entry.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": _encode(entry.paths),
        }
        | ({"subresource": manager.subresource} if manager.subresource else {})
        for manager, entry in found.items()
        if entry.paths
    ]


def record(
    resource: Resource, current: Object | None, new: Object, manager: str, subresource: str, now: datetime,
    applied: Object | None,
) -> None:  # fmt: skip
    """Write into `new` who owns what after this change; `applied` is the body of an apply, None for other writes."""
    before = leaves(resource, current) if current else {}
    after = leaves(resource, new)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    entries = managers(new)
    known = {who: replace(entry, paths=entry.paths & after.keys()) for who, entry in entries.items()}
    writer = Manager(manager, "Update" if applied is None else "Apply", subresource)
    if applied is None:
        taken = frozenset(changed)
        own = taken | (known[writer].paths if writer in known else frozenset())
    else:
        own = frozenset(leaves(resource, _part(resource, applied, subresource))) & after.keys()
        taken = own & changed
    known = {who: replace(entry, paths=entry.paths - taken) if who != writer else entry for who, entry in known.items()}
    if writer not in known or known[writer].paths != own:
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        known[writer] = Entry(own, stamp, resource.api_version)
    if stored := _stored(known):
        new["metadata"]["managedFields"] = stored
    else:
        new["metadata"].pop("managedFields", None)


def _part(resource: Resource, body: Object, subresource: str) -> Object:
    """Return what an apply to this subresource is about."""
    if subresource:
        return {"status": body["status"]} if "status" in body else {}
    return {key: value for key, value in body.items() if key != "status" or "status" not in resource.subresources}


def applied(
    resource: Resource, current: Object, body: Object, manager: str, subresource: str, *, force: bool
) -> Object:
    """Merge an applied body into the current object, and remove what this manager applied before and left out now.

    Raises `ApiError`: 409 with one cause per field that another manager owns with another value, unless `force`.
    """
    wanted = leaves(resource, _part(resource, body, subresource))
    present = leaves(resource, current)
    me = Manager(manager, "Apply", subresource)
    others = {who: entry for who, entry in managers(current).items() if who != me}
    if not force:
        _refuse_conflicts(wanted, present, others)
    mine = managers(current).get(me)
    held = frozenset[Path]().union(*(entry.paths for entry in others.values()))
    kept = clone(current)
    dropped = (mine.paths if mine else frozenset()) - wanted.keys() - held
    for path in sorted(dropped, key=len):  # Entries before their keys, by which they are found.
        if not any(other[: len(path)] == path for other in held):
            _remove(resource.structure.schema, kept, path)
    merged: Object = _merged(resource.structure.schema, kept, _without_null(body))
    return merged


def _refuse_conflicts(wanted: Mapping[Path, Any], present: Mapping[Path, Any], others: Mapping[Manager, Entry]) -> None:
    differing = {path for path, value in wanted.items() if path not in present or present[path] != value}
    causes = [
        Cause("FieldManagerConflict", f'conflict with "{who.name}" using {entry.api_version}', _readable(path))
        for who, entry in others.items()
        for path in sorted(entry.paths & differing)
    ]
    if causes:
        listed = "\n".join(f"- {cause.message}: {cause.field}" for cause in causes)
        text = f"{causes[0].message}: {causes[0].field}" if len(causes) == 1 else f"\n{listed}"
        count = "1 conflict" if len(causes) == 1 else f"{len(causes)} conflicts"
        raise ApiError(409, "Conflict", f"Apply failed with {count}: {text}", causes=causes)


def _readable(path: Path) -> str:
    """Write a path as people do: `.spec.containers[name="a"].image`."""
    text = ""
    for step in path:
        kind, rest = step.split(":", 1)
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(rest).items()) + "]"
        else:
            text += f"[={rest}]"
    return text


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


def _merged(schema: Schema, live: Any, wanted: Any) -> Any:
    if isinstance(wanted, dict) and isinstance(live, dict) and schema.get("x-kubernetes-map-type") != "atomic":
        merged = {key: clone(value) for key, value in live.items() if key not in wanted}
        return merged | {key: _merged(child(schema, key), live.get(key), value) for key, value in wanted.items()}
    if isinstance(wanted, list) and isinstance(live, list):
        old, new = elements(schema, live), elements(schema, wanted)
        if old is not None and new is not None:
            present, given = dict(zip(old, live, strict=True)), dict(zip(new, wanted, strict=True))
            kept = [_merged(schema["items"], item, given.get(step, item)) for step, item in present.items()]
            return kept + [clone(item) for step, item in given.items() if step not in present]
    return clone(wanted)


def _remove(schema: Schema, holder: Any, path: Path) -> None:
    """Remove what lies at a path, and what is empty after that."""
    place: str | int | None
    if path[0].startswith("f:"):
        name = path[0][2:]
        place, below = name if isinstance(holder, dict) and name in holder else None, child(schema, name)
    else:
        steps = elements(schema, holder) if isinstance(holder, list) else None
        place, below = steps.index(path[0]) if steps and path[0] in steps else None, schema.get("items", {})
    if place is None:
        return
    if len(path) > 1:
        _remove(below, holder[place], path[1:])
    if len(path) == 1 or holder[place] in ({}, []):
        del holder[place]
