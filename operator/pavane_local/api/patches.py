"""The three ways to patch an object: RFC 7396, RFC 6902 and strategic merge (`docs/specs/operator.md` 6.2)."""

import json
from typing import Any

import jsonpatch

from pavane_local.api.errors import ApiError, bad_request
from pavane_local.api.kinds import Resource
from pavane_local.api.schema import Schema, child, list_keys
from pavane_local.store import clone

IGNORED_DIRECTIVES = ("$setElementOrder/", "$retainKeys")  # lists keep their order


def patched(resource: Resource, current: dict[str, Any], patch: Any, kind: str) -> dict[str, Any]:
    """Return a copy of an object with a `merge`, `json` or `strategic` patch. Raises `ApiError` 400, 415 or 422."""
    if kind == "strategic" and resource.custom:
        raise ApiError(415, "UnsupportedMediaType", "custom resources accept only JSON, merge and apply patches")
    if kind == "json":
        try:
            result = jsonpatch.JsonPatch(patch).apply(current)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
            message = f"the server rejected our request due to an error in our request: {error}"
            raise ApiError(422, "Invalid", message) from error
    elif not isinstance(patch, dict):
        raise bad_request("a patch of this type is an object")
    elif kind == "strategic":
        result = _strategic(resource.schema, current, patch)
    else:
        result = _merge(current, patch)
    if not isinstance(result, dict) or not isinstance(result.get("metadata"), dict):
        raise bad_request("the patch leaves no object")
    return result


def _merge(current: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return clone(patch)
    merged = dict(current) if isinstance(current, dict) else {}
    merged |= {key: _merge(merged.get(key), value) for key, value in patch.items()}
    return {key: value for key, value in merged.items() if key not in patch or patch[key] is not None}


def _strategic(schema: Schema, current: Any, patch: dict[str, Any]) -> dict[str, Any]:
    merged = dict(current) if isinstance(current, dict) else {}
    for key, value in patch.items():
        if key.startswith("$"):
            if not key.startswith(IGNORED_DIRECTIVES):
                raise bad_request(f"the directive {key} is not served by the local cluster: send a merge patch")
        elif isinstance(value, dict):
            deleted = value.get("$patch") == "delete"
            merged[key] = None if deleted else _strategic(child(schema, key), merged.get(key), value)
        elif isinstance(value, list):
            merged[key] = _strategic_list(child(schema, key), merged.get(key) or [], value) or None
        else:
            merged[key] = value
    kept = patch.get("$retainKeys")
    return {key: value for key, value in merged.items() if value is not None and (kept is None or key in kept)}


def _strategic_list(schema: Schema, current: list[Any], patch: list[Any]) -> list[Any]:
    if schema.get("x-kubernetes-list-type") == "set":
        return [*current, *(item for item in patch if item not in current)]
    if not list_keys(schema):
        return clone(patch)  # type: ignore[no-any-return]
    key = list_keys(schema)[0]  # Ports merge by number alone (6.2).
    merged = {item.get(key): item for item in current}
    for item in patch:
        if not isinstance(item, dict) or not isinstance(item.get(key), str | int):
            raise bad_request(f"an entry of a list lacks its merge key {key}: {json.dumps(item)}")
        if item.get("$patch") == "delete":
            merged.pop(item[key], None)
        else:
            merged[item[key]] = _strategic(schema["items"], merged.get(item[key]), item)
    return list(merged.values())
