"""Who owns which field: server-side apply and its bookkeeping (`docs/specs/operator.md` 6.3).

An object is flattened to leaves, each under a path in the notation of FieldsV1 (`f:spec`, `k:{"name":"a"}`, `v:"x"`).
A manager owns a set of such paths.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pavane_local.api.admission import IMMUTABLE, without
from pavane_local.api.errors import ApiError, Cause
from pavane_local.api.kinds import Resource
from pavane_local.api.schema import Schema, child, list_keys
from pavane_local.store import Object, clone

Path = tuple[str, ...]
UNOWNED = ("name", "namespace", "generateName", "resourceVersion", "managedFields", "selfLink", *IMMUTABLE)
"""Metadata that nobody owns."""


class Manager(NamedTuple):
    """Identity of an owner: name, `Apply` or `Update`, and the subresource it wrote to."""

    name: str
    operation: str
    subresource: str


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _steps(schema: Schema, value: list[Any]) -> list[str] | None:
    """Return the path step of every entry of a list, or None if the list is replaced as a whole."""
    kind, keys = schema.get("x-kubernetes-list-type", "atomic"), list_keys(schema)
    if kind == "set":
        return [f"v:{_compact(item)}" for item in value]
    if kind != "map" or not all(isinstance(item, dict) for item in value):
        return None
    parts = schema["items"].get("properties", {})
    defaults = {key: parts[key]["default"] for key in keys if "default" in parts.get(key, {})}
    known = [{key: each for key, each in (defaults | item).items() if key in keys} for item in value]
    return [f"k:{_compact(each)}" for each in known]


def leaves(resource: Resource, body: Object) -> dict[Path, Any]:
    """Flatten an object: path → value, without what nobody owns."""
    owned = without(body, "apiVersion", "kind", "metadata")
    if metadata := without(body.get("metadata", {}), *UNOWNED):
        owned["metadata"] = metadata
    return dict(_leaves(resource.schema, owned, ())) if owned else {}


def _leaves(schema: Schema, value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, dict) and value and schema.get("x-kubernetes-map-type") != "atomic":
        for key, item in value.items():
            yield from _leaves(child(schema, key), item, (*path, f"f:{key}"))
    elif isinstance(value, list) and value and (steps := _steps(schema, value)) is not None:
        for step, item in zip(steps, value, strict=True):
            yield (*path, step), None
            if isinstance(item, dict):
                yield from _leaves(schema["items"], item, (*path, step))
    else:
        yield path, value


def _encode(paths: Iterable[Path]) -> dict[str, Any]:
    """Return FieldsV1; the mark `.` stands only where a path is owned that has others below it."""
    below: dict[str, list[Path]] = {}
    for path in sorted(paths):
        below.setdefault(path[0], []).append(path[1:])
    return {
        step: ({".": {}} if () in rest and len(rest) > 1 else {}) | _encode(path for path in rest if path)
        for step, rest in below.items()
    }


def _decode(node: Mapping[str, Any], path: Path = ()) -> Iterator[Path]:
    if path and (not node or "." in node):
        yield path
    for step, below in node.items():
        if step != "." and isinstance(below, dict):
            yield from _decode(below, (*path, step))


def _managers(body: Object) -> dict[Manager, Object]:
    """Return the entries of `metadata.managedFields`."""
    entries = body["metadata"].get("managedFields", ())
    return {Manager(each["manager"], each["operation"], each.get("subresource", "")): each for each in entries}


def owned(entry: Object) -> frozenset[Path]:
    """Return the paths of an entry of `metadata.managedFields`."""
    return frozenset(_decode(entry.get("fieldsV1", {})))


def record(
    resource: Resource, current: Object | None, new: Object, writer: Manager, time: str, applied: Object | None = None
) -> None:
    """Write into `new` who owns what after this change; `applied` is the body of an apply, None for other writes."""
    before, after = leaves(resource, current) if current else {}, leaves(resource, new)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    entries = _managers(new)
    paths = {who: owned(entry) & after.keys() for who, entry in entries.items()}
    mine = paths.get(writer, frozenset()) | changed
    if applied is not None:
        mine = frozenset(leaves(resource, applied)) & after.keys()
    if paths.get(writer) != mine:
        told = {"manager": writer.name, "operation": writer.operation, "apiVersion": resource.api_version, "time": time}
        subresource = {"subresource": writer.subresource} if writer.subresource else {}
        entries[writer] = {**told, "fieldsType": "FieldsV1", **subresource}
    paths = {who: held - (mine & changed) for who, held in paths.items()} | {writer: mine}
    stored = [{**entries[who], "fieldsV1": _encode(held)} for who, held in paths.items() if held]
    new["metadata"] = without(new["metadata"], "managedFields") | ({"managedFields": stored} if stored else {})


def merged(resource: Resource, current: Object, applied: Object, writer: Manager, *, force: bool) -> Object:
    """Merge an applied body into an object, without what its writer left out now. Raises `ApiError` 409: conflicts."""
    wanted, present, others = leaves(resource, applied), leaves(resource, current), _managers(current)
    mine = owned(others.pop(writer, {}))
    if not force:
        _refuse_conflicts(wanted, present, others)
    held = frozenset[Path]().union(*map(owned, others.values()))
    kept = clone(current)
    for path in sorted(mine - wanted.keys() - held, key=len):
        # Entries of lists go before their keys, by which they are found.
        if not any(other[: len(path)] == path for other in held):
            _remove(resource.schema, kept, path)
    result: Object = _merged(resource.schema, kept, _without_null(applied))
    return result


def _refuse_conflicts(
    wanted: Mapping[Path, Any], present: Mapping[Path, Any], others: Mapping[Manager, Object]
) -> None:
    differing = {path for path, value in wanted.items() if path not in present or present[path] != value}
    by = {"Apply": "", "Update": " using {apiVersion}"}
    causes = [
        Cause("FieldManagerConflict", f'conflict with "{who.name}"' + by[who.operation].format(**entry), path)
        for who, entry in others.items()
        for path in map(_readable, sorted(owned(entry) & differing))
    ]
    if causes:
        listed = "; ".join(f"{cause.message}: {cause.field}" for cause in causes)
        told = f"Apply failed with {len(causes)} conflict{'s' * (len(causes) > 1)}: {listed}"
        raise ApiError(409, "Conflict", told, causes)


def _readable(path: Path) -> str:
    """Write a path as people do: `.spec.containers[name="a"].image`."""
    text = ""
    for kind, rest in (step.split(":", 1) for step in path):
        keys = json.loads(rest).items() if kind == "k" else ()
        listed = ",".join(f"{key}={json.dumps(value)}" for key, value in keys)
        text += {"f": f".{rest}", "k": f"[{listed}]", "v": f"[={rest}]"}[kind]
    return text


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value] if isinstance(value, list) else value


def _merged(schema: Schema, live: Any, wanted: Any) -> Any:
    if isinstance(wanted, dict) and isinstance(live, dict) and schema.get("x-kubernetes-map-type") != "atomic":
        given = {key: _merged(child(schema, key), live.get(key), value) for key, value in wanted.items()}
        return {key: clone(value) for key, value in live.items() if key not in wanted} | given
    if isinstance(wanted, list) and isinstance(live, list):
        old, new = _steps(schema, live), _steps(schema, wanted)
        if old is not None and new is not None:
            present, given = dict(zip(old, live, strict=True)), dict(zip(new, wanted, strict=True))
            kept = [_merged(schema["items"], item, given.get(step, item)) for step, item in present.items()]
            return kept + [clone(item) for step, item in given.items() if step not in present]
    return clone(wanted)


def _remove(schema: Schema, holder: Any, path: Path) -> None:
    """Remove what lies at a path, and what is empty after that."""
    place: str | int = path[0][2:]
    if isinstance(holder, list):
        below, steps = schema.get("items", {}), _steps(schema, holder) or []
        place = steps.index(path[0]) if path[0] in steps else len(holder)
    else:
        below = child(schema, str(place))
    if place not in (range(len(holder)) if isinstance(holder, list) else holder):
        return
    if len(path) > 1:
        _remove(below, holder[place], path[1:])
    if len(path) == 1 or holder[place] in ({}, []):
        del holder[place]
