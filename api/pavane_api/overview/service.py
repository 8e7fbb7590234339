"""Follows the resources of several kinds at once."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from pavane_operator import kube
from pavane_operator.kube.informer import Informer

CHANGES_PENDING_MAX = 64  # per stream; the watches wait while its reader is behind


async def events(
    client: kube.KubeClient, resources: Sequence[kube.Resource], namespace: str | None = None
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield server-sent events: a ``snapshot`` per kind, then ``added``, ``modified`` and ``deleted`` as they happen.

    Only of the namespace, or of all. A kind whose position became too old gets another snapshot. The stream ends when
    the cluster cannot be reached.
    """
    pending: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(CHANGES_PENDING_MAX)
    followers = [asyncio.create_task(_follow(client, resource, namespace, pending)) for resource in resources]
    try:
        while (event := await pending.get()) is not None:
            yield event
    finally:
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


async def _follow(
    client: kube.KubeClient,
    resource: kube.Resource,
    namespace: str | None,
    pending: "asyncio.Queue[dict[str, Any] | None]",
) -> None:
    names = {"kind": resource.kind, "plural": resource.plural}
    try:
        async for found in Informer(client, resource, namespace).lists_and_changes():
            if isinstance(found, kube.ObjectList):
                await pending.put(_event("snapshot", {**names, "items": [_slim(item) for item in found.items]}))
            else:
                await pending.put(_event(found.type.lower(), {**names, "object": _slim(found.object)}))
    except kube.KubeError:
        await pending.put(None)


def _event(name: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"event": name, "data_str": json.dumps(data, separators=(",", ":"))}


def _slim(document: kube.Object) -> kube.Object:
    """Return the document without the record of field owners, which is half of its bytes."""
    metadata = {key: value for key, value in document["metadata"].items() if key != "managedFields"}
    return {**document, "metadata": metadata}
