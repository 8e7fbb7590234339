"""Rules of the resource endpoints: preconditions, field managers, watch events."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from pavane_api.problems import BadRequest, FieldProblem, PreconditionFailed, PreconditionRequired
from pavane_operator import kube
from pavane_operator.crds.fields import in_words, said_of_unknown, unknown_fields
from pavane_operator.kube.informer import Informer

MANAGER = "pavane-api"
LIST_LIMIT_MAX = 500
TRIES_MAX = 5  # of a write whose resource gets a new status between reading and writing
FIELDS_TOLD_MAX = 20  # of a body with more unknown ones: each costs a search
SETTABLE_METADATA = frozenset({"name", "namespace", "labels", "annotations"})

Result = TypeVar("Result")


def etag(document: kube.Object) -> str:
    """Return the ETag of a resource: uid, generation, resourceVersion. If-Match heeds the first two (``spec_of``)."""
    metadata = document["metadata"]
    return f'"{metadata["uid"]}.{metadata["generation"]}.{metadata["resourceVersion"]}"'


def spec_of(tag: str) -> str:
    """Return the part of an ETag that changes with the spec and not with the status.

    Else a valid If-Match would be refused for as long as a resource starts.
    """
    return tag.strip('"').rpartition(".")[0]


def is_known(document: kube.Object, if_none_match: str | None) -> bool:
    """Whether If-None-Match names the ETag of the resource: the caller has all of it, status included."""
    tags = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
    return "*" in tags or etag(document) in tags


def expected_tag(if_match: str | None) -> str | None:
    """Return the ETag that If-Match demands; None for ``*``, any existing resource.

    Raises ``PreconditionRequired`` when the header is missing: a change made blindly overwrites somebody else's.
    """
    if if_match is None:
        raise PreconditionRequired("Send If-Match with the ETag of the resource that you changed, or * for any.")
    return None if if_match.strip() == "*" else if_match.strip().removeprefix("W/")


async def _guarded(write: Callable[[], Awaitable[Result]]) -> Result:
    """Do ``write``, which reads first; again when the status moved meanwhile, which no ETag speaks of."""
    for _ in range(TRIES_MAX - 1):
        try:
            return await write()
        except kube.Conflict as error:
            if error.causes:  # fields of other managers
                raise
    return await write()


async def put(
    client: kube.KubeClient,
    resource: kube.Resource,
    namespace: str,
    name: str,
    document: dict[str, Any],
    *,
    if_match: str | None,
    if_none_match: str | None,
) -> tuple[kube.Object, bool]:
    """Apply ``document`` as the complete intent of this API; returns the resource and whether it is new.

    A field that another manager owns with another value raises ``kube.Conflict``.
    """

    async def write() -> tuple[kube.Object, bool]:
        return await _put(client, resource, namespace, name, document, if_match, if_none_match)

    return await _guarded(write)


async def _put(
    client: kube.KubeClient,
    resource: kube.Resource,
    namespace: str,
    name: str,
    document: dict[str, Any],
    if_match: str | None,
    if_none_match: str | None,
) -> tuple[kube.Object, bool]:
    intent = _intent(resource, document)
    for field, wanted in (("name", name), ("namespace", namespace)):
        if intent["metadata"].setdefault(field, wanted) != wanted:
            raise BadRequest(f"metadata.{field} is not the {field} in the path: {wanted}.")
    present = await client.get_or_none(resource, name, namespace)
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise BadRequest("If-None-Match takes only *: create, and only if there is none.")
        if present is not None:
            raise PreconditionFailed(f"{resource.kind} {name} exists already.")
    else:
        expected = expected_tag(if_match)
        if present is None:
            raise PreconditionFailed(f"There is no {resource.kind} {name}; create it with If-None-Match: *.")
        _expect(present, expected, intent)
    return await _applied(client, resource, namespace, intent), present is None


async def patch(
    client: kube.KubeClient,
    resource: kube.Resource,
    namespace: str,
    name: str,
    changes: dict[str, Any],
    *,
    if_match: str | None,
) -> kube.Object:
    """Merge ``changes`` into what this API applied before; ``status`` cannot be changed so.

    It is an apply as well and no merge patch on the server: one manager with two kinds of writes would conflict with
    itself. A field that another manager owns with another value raises ``kube.Conflict``; null takes back what this
    API set.
    """
    expected = expected_tag(if_match)
    if "status" in changes:
        raise BadRequest("A patch changes metadata and spec, not status.")
    _intent(resource, changes)  # what is wrong by itself

    async def write() -> kube.Object:
        present = await client.get(resource, name, namespace)
        intent = _intent(resource, merged(applied_by(present, MANAGER), changes))
        intent["metadata"] |= {"name": name, "namespace": namespace}
        _expect(present, expected, intent)
        return await _applied(client, resource, namespace, intent)

    return await _guarded(write)


async def _applied(
    client: kube.KubeClient, resource: kube.Resource, namespace: str, intent: dict[str, Any]
) -> kube.Object:
    try:
        return await client.apply(resource, intent, namespace, manager=MANAGER, strict=True)
    except kube.Invalid as error:
        raise in_words(error, resource.kind, intent["metadata"]["name"]) from error


def _intent(resource: kube.Resource, document: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a document that a user may set; raises ``BadRequest`` for fields that no resource has."""
    if unknown := unknown_fields(resource.kind, document)[:FIELDS_TOLD_MAX]:
        errors = [FieldProblem(pointer=path, detail=said_of_unknown(resource.kind, path)) for path in unknown]
        raise BadRequest("; ".join(f"{each.pointer}: {each.detail}" for each in errors), errors=errors)
    for field, wanted in (("apiVersion", resource.api_version), ("kind", resource.kind)):
        if document.get(field, wanted) != wanted:
            raise BadRequest(f"{field} is not that of the path: {wanted}.")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict | None):
        raise BadRequest("metadata must be an object.")
    kept = {key: value for key, value in (metadata or {}).items() if key in SETTABLE_METADATA}
    return {"metadata": kept} | ({"spec": document["spec"]} if "spec" in document else {})


def applied_by(document: kube.Object, manager: str) -> dict[str, Any]:
    """Return the part of ``document`` that ``manager`` owns by apply, from the server's record of field owners."""
    entries = document["metadata"].get("managedFields") or ()
    own = next(
        (
            item
            for item in entries
            if item["manager"] == manager and item["operation"] == "Apply" and not item.get("subresource")
        ),
        None,
    )
    subset = _subset(document, own["fieldsV1"]) if own else {}
    return subset if isinstance(subset, dict) else {}


def _subset(value: Any, fields: dict[str, Any]) -> Any:
    """Return the owned part of ``value``; a list is owned as a whole as soon as one of its items is."""
    inner = {key[2:]: part for key, part in fields.items() if key.startswith("f:")}
    if not inner or not isinstance(value, dict):
        return value
    return {key: _subset(value[key], part) for key, part in inner.items() if key in value}


def merged(target: Any, changes: Any) -> Any:
    """Return ``target`` with a JSON merge patch (RFC 7396) applied."""
    if not isinstance(changes, dict):
        return changes
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


async def delete(
    client: kube.KubeClient, resource: kube.Resource, namespace: str, name: str, *, if_match: str | None
) -> None:
    """Delete the resource; its pods and then its volumes follow by its deletion policy."""
    expected = expected_tag(if_match)

    async def write() -> None:
        present = await client.get(resource, name, namespace)
        precondition: dict[str, Any] = {"metadata": {}}
        _expect(present, expected, precondition)
        version = precondition["metadata"].get("resourceVersion")
        await client.delete(resource, name, namespace, uid=present["metadata"]["uid"], resource_version=version)

    await _guarded(write)


def _expect(present: kube.Object, expected: str | None, intent: dict[str, Any]) -> None:
    """Check the ETag that the caller read, and make what is there a precondition of the write against later changes."""
    if expected is None:
        return
    if spec_of(etag(present)) != spec_of(expected):
        raise PreconditionFailed(
            f"The spec has changed since you read it: its ETag is {etag(present)}, not {expected}. Read it again."
        )
    intent["metadata"]["resourceVersion"] = present["metadata"]["resourceVersion"]


async def events(
    client: kube.KubeClient, resource: kube.Resource, namespace: str | None, *, since: str, labels: str, fields: str
) -> AsyncIterator[dict[str, Any]]:
    """Yield changes as events of a stream, from ``since`` (exclusive; empty: the present resources as added first).

    A version that is too old ends the stream with ``event: expired``: list again.
    """
    try:
        async for change in Informer(client, resource, namespace, labels=labels, fields=fields).watched(since):
            position = change.object["metadata"]["resourceVersion"]
            data = None if change.type == "BOOKMARK" else json.dumps(change.object, separators=(",", ":"))
            yield {"event": change.type.lower(), "id": position, "data_str": data or "{}"}
    except kube.Gone:
        yield {"event": "expired", "data_str": "list again: this position is too old"}
    except kube.KubeError as error:
        yield {"event": "error", "data_str": error.message}
