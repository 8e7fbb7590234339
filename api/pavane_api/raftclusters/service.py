"""Rules of the resource endpoints: preconditions, field managers, watch events."""

import json
from collections.abc import AsyncIterator
from typing import Any

from pavane_api.problems import BadRequest, PreconditionFailed, PreconditionRequired
from pavane_api.resources import RAFT_CLUSTERS
from pavane_operator import kube

MANAGER = "pavane-api"
LIST_LIMIT_MAX = 500


def etag(document: kube.Object) -> str:
    """Return the ETag of a resource: its resourceVersion, quoted."""
    return f'"{document["metadata"]["resourceVersion"]}"'


def expected_version(if_match: str | None) -> str | None:
    """Return the resourceVersion that If-Match demands; None for ``*``, any existing one.

    Raises ``PreconditionRequired`` when the header is missing: a change made blindly overwrites somebody else's.
    """
    if if_match is None:
        raise PreconditionRequired("Send If-Match with the ETag of the resource that you changed, or * for any.")
    return None if if_match.strip() == "*" else if_match.strip().removeprefix("W/").strip('"')


async def put(
    client: kube.KubeClient,
    namespace: str,
    name: str,
    document: dict[str, Any],
    *,
    if_match: str | None,
    if_none_match: str | None,
) -> tuple[kube.Object, bool]:
    """Apply ``document`` as the complete intent of this API; returns the resource and whether it is new."""
    metadata = document.get("metadata") if isinstance(document.get("metadata"), dict) else {}
    for field, wanted in (("name", name), ("namespace", namespace)):
        if (metadata or {}).get(field, wanted) != wanted:
            raise BadRequest(f"metadata.{field} is not the {field} in the path: {wanted}.")
    kept = {key: value for key, value in (metadata or {}).items() if key in {"labels", "annotations"}}
    body: dict[str, Any] = {"metadata": {**kept, "name": name, "namespace": namespace}, "spec": document.get("spec")}
    present = await client.get_or_none(RAFT_CLUSTERS, name, namespace)
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise BadRequest("If-None-Match takes only *: create, and only if there is none.")
        if present is not None:
            raise PreconditionFailed(f"RaftCluster {name} exists already.")
        # A create, not an apply: two callers may both have seen that there is none.
        return await client.create(RAFT_CLUSTERS, body, namespace, manager=MANAGER), True
    expected = expected_version(if_match)
    if present is None:
        raise PreconditionFailed(f"There is no RaftCluster {name}; create it with If-None-Match: *.")
    if expected is not None:
        _compare(present, expected)
        body["metadata"]["resourceVersion"] = expected
    return await client.apply(RAFT_CLUSTERS, body, namespace, manager=MANAGER, strict=True), False


async def patch(
    client: kube.KubeClient, namespace: str, name: str, changes: dict[str, Any], *, if_match: str | None
) -> kube.Object:
    """Merge ``changes`` into the resource; ``status`` and most of ``metadata`` cannot be changed so."""
    expected = expected_version(if_match)
    unknown = set(changes) - {"metadata", "spec", "apiVersion", "kind"}
    if unknown:
        raise BadRequest(f"A patch changes metadata and spec, not {', '.join(sorted(unknown))}.")
    body: kube.Object = {key: changes[key] for key in ("metadata", "spec") if key in changes}
    if expected is not None:
        _compare(await client.get(RAFT_CLUSTERS, name, namespace), expected)
        body["metadata"] = {**(body.get("metadata") or {}), "resourceVersion": expected}
    return await client.patch(RAFT_CLUSTERS, name, body, namespace, manager=MANAGER)


async def delete(client: kube.KubeClient, namespace: str, name: str, *, if_match: str | None) -> None:
    """Delete the resource; its pods and then its volumes follow by its deletion policy."""
    expected = expected_version(if_match)
    present = await client.get(RAFT_CLUSTERS, name, namespace)
    if expected is not None:
        _compare(present, expected)
    await client.delete(RAFT_CLUSTERS, name, namespace, uid=present["metadata"]["uid"], resource_version=expected)


def _compare(present: kube.Object, expected: str) -> None:
    version = present["metadata"]["resourceVersion"]
    if version != expected:
        raise PreconditionFailed(
            f"The resource has changed since you read it: it is at {version}, not {expected}. Read it again."
        )


async def events(
    client: kube.KubeClient, namespace: str | None, *, since: str, labels: str, fields: str
) -> AsyncIterator[dict[str, Any]]:
    """Yield changes as events of a stream, from ``since`` (exclusive; empty: the present resources as added first).

    A version that is too old ends the stream with ``event: expired``: list again.
    """
    position = since
    try:
        while True:
            async for change in client.watch(
                RAFT_CLUSTERS, namespace, resource_version=position, labels=labels, fields=fields
            ):
                position = change.object["metadata"]["resourceVersion"]
                data = None if change.type == "BOOKMARK" else json.dumps(change.object, separators=(",", ":"))
                yield {"event": change.type.lower(), "id": position, "data_str": data or "{}"}
    except kube.Gone:
        yield {"event": "expired", "data_str": "list again: this position is too old"}
    except kube.KubeError as error:
        yield {"event": "error", "data_str": error.message}
