"""The three ways to patch an object: RFC 7396, RFC 6902 and strategic merge (`docs/specs/operator.md` 6.2)."""

import functools
import json
from typing import Any

import jsonpatch

from pavane_local.api.errors import ApiError, bad_request
from pavane_local.api.kinds import Resource
from pavane_local.api.ownership import MERGE_KEYS
from pavane_local.store import clone

DELETED_ITEMS = "$deleteFromPrimitiveList/"
ORDER = "$setElementOrder/"
"""The order that a client wishes for a merged list; ours stay in the order of their arrival."""


def patched(resource: Resource, current: dict[str, Any], patch: Any, kind: str) -> dict[str, Any]:
    """Return a copy of `current` with a patch of this kind applied.

    Raises:
        ApiError: 415 for strategic merge of a custom resource, 422 for a JSON patch that does not fit, 400.

    """
    if kind == "strategic" and resource.schema:
        message = "the body of the request was in an unknown format - accepted media types include: "
        raise ApiError(
            415, "UnsupportedMediaType",
            message + "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        )  # fmt: skip
    if kind == "json":
        try:
            result = jsonpatch.JsonPatch(patch).apply(current)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
            raise ApiError(
                422, "Invalid", f"the server rejected our request due to an error in our request: {error}"
            ) from error
    elif not isinstance(patch, dict):
        raise bad_request("a patch of this type is an object")
    else:
        result = _strategic(current, patch) if kind == "strategic" else _merge(current, patch)
    if not isinstance(result, dict) or not isinstance(result.get("metadata"), dict):
        raise bad_request("the patch leaves no object")
    return result


def _merge(current: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return clone(patch)
    merged = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged


def _strategic(current: Any, patch: dict[str, Any], name: str = "") -> dict[str, Any]:
    if patch.get("$patch") == "replace":
        return clone({key: value for key, value in patch.items() if key != "$patch"})  # type: ignore[no-any-return]
    merged = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        if key.startswith(DELETED_ITEMS):
            field = key.removeprefix(DELETED_ITEMS)
            merged[field] = [item for item in merged.get(field, ()) if item not in value]
        elif key.startswith(ORDER) or key in ("$patch", "$retainKeys"):
            continue
        elif value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            removed = value.get("$patch") == "delete"
            merged[key] = None if removed else _strategic(merged.get(key), value, key)
        elif isinstance(value, list):
            merged[key] = _strategic_list(merged.get(key) or [], value, key)
        else:
            merged[key] = value
    kept = patch.get("$retainKeys")
    return {key: value for key, value in merged.items() if value is not None and (kept is None or key in kept)}


def _strategic_list(current: list[Any], patch: list[Any], name: str) -> list[Any]:
    keys = MERGE_KEYS.get(name)
    if name == "finalizers":
        return [*current, *(item for item in patch if item not in current)]
    if keys is None or {"$patch": "replace"} in patch:
        return [clone(item) for item in patch if item != {"$patch": "replace"}]
    merged = list(current)
    for item in patch:
        told = functools.partial(_same, item, _own_key(name, item, keys))
        place = next((index for index, each in enumerate(merged) if told(each)), None)
        if item.get("$patch") == "delete":
            if place is not None:
                del merged[place]
        elif place is None:
            merged.append(_strategic({}, item))
        else:
            merged[place] = _strategic(merged[place], item)
    return merged


def _own_key(name: str, item: dict[str, Any], keys: tuple[str, ...]) -> str:
    """Return the one merge key of a list entry: ports merge by number alone (6.2)."""
    key = next((key for key in keys if key in item), None)
    if key is None:
        raise bad_request(f"an entry of {name} lacks its merge key {keys[0]}: {json.dumps(item)}")
    return key


def _same(item: dict[str, Any], key: str, other: dict[str, Any]) -> bool:
    return bool(other.get(key) == item[key])
