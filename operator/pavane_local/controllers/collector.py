"""Garbage collector, Namespace, and the end of events (docs/specs/operator.md 6.7)."""

import asyncio
import contextlib
import datetime
from typing import Any

from pavane_local.api.cluster import DEFINITIONS, Cluster, DeleteOptions
from pavane_local.api.errors import ApiError
from pavane_local.controllers.loop import RETRY_SECONDS, Controller, changes, name_of
from pavane_local.store import Object

EVENT_AGE_MAX = datetime.timedelta(hours=1)
EVENTS_CHECK_SECONDS = 60.0


async def collect_garbage(cluster: Cluster) -> None:
    """Delete objects whose owners, by uid, are all gone (background propagation); runs until cancelled."""
    followed: set[str] = set()

    async def collect(resource: str, found: Object) -> None:
        owners = (cluster.find(resource, *name_of(found)) or found)["metadata"].get("ownerReferences")
        if owners and not any(_lives(cluster, each, found) for each in owners):
            with contextlib.suppress(ApiError):  # gone, or another of its name: nothing to do
                await cluster.delete(resource, *name_of(found), DeleteOptions(uid=found["metadata"]["uid"]))

    async def follow(resource: str) -> None:
        async for kind, found in changes(cluster, resource):
            if kind != "DELETED":
                await collect(resource, found)
                continue
            for where in list(followed):
                for each in cluster.store.all(where):
                    owners = each["metadata"].get("ownerReferences", ())
                    if any(owner["uid"] == found["metadata"]["uid"] for owner in owners):
                        await collect(where, each)

    async with asyncio.TaskGroup() as group:

        def follow_all() -> None:
            for resource in {each.storage for each in cluster.registry.values()} - followed:
                followed.add(resource)
                group.create_task(follow(resource))

        follow_all()
        async for _ in changes(cluster, DEFINITIONS):
            follow_all()


def _lives(cluster: Cluster, owner: dict[str, Any], dependent: Object) -> bool:
    for resource in cluster.registry.values():
        if (resource.api_version, resource.kind) == (owner["apiVersion"], owner["kind"]):
            namespace = dependent["metadata"].get("namespace", "") if resource.namespaced else ""
            found = cluster.find(resource.key, namespace, owner["name"])
            return found is not None and found["metadata"]["uid"] == owner["uid"]
    return False


def namespaces(cluster: Cluster) -> Controller:
    """The controller of namespaces: each has a ServiceAccount `default`; a deleted one is emptied, then let go."""

    async def reconcile(_: str, name: str) -> None:
        found = cluster.find("namespaces", "", name)
        if found is None:
            return
        if "deletionTimestamp" not in found["metadata"]:
            if cluster.find("serviceaccounts", name, "default") is None:
                await cluster.create("serviceaccounts", {"metadata": {"name": "default", "namespace": name}})
            return
        resources = {each.storage for each in cluster.registry.values() if each.namespaced}
        content = [(resource, each) for resource in resources for each in cluster.store.all(resource, name)]
        for resource, each in content:
            if "deletionTimestamp" not in each["metadata"]:
                with contextlib.suppress(ApiError):  # already gone
                    await cluster.delete(resource, *name_of(each))
        if content:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, running.add, ("", name))
        else:
            await cluster.patch("namespaces", "", name, {"spec": {"finalizers": []}})

    running = Controller(cluster, reconcile, {"namespaces": lambda found: [name_of(found)]})
    return running


async def expire_events(cluster: Cluster) -> None:
    """Delete events after an hour; runs until cancelled."""
    while True:
        for event in cluster.list("events"):
            created = datetime.datetime.fromisoformat(event["metadata"]["creationTimestamp"])
            if cluster.now() - created > EVENT_AGE_MAX:
                with contextlib.suppress(ApiError):  # already gone
                    await cluster.delete("events", *name_of(event))
        await asyncio.sleep(EVENTS_CHECK_SECONDS)
