"""Gathers the events of a resource and of its pods."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pavane_api.events.schemas import EventNote, EventNotes
from pavane_api.pods.service import bodies_of
from pavane_operator import kube
from pavane_operator.kube.resources import CORE_EVENTS

SHOWN_MAX = 100
"""Events in one answer; whoever looks for older ones has kubectl."""
OF_ONE_MAX = 500
"""Read of one object; Kubernetes folds repetitions, and drops events after an hour."""
PODS_MAX = 16
"""Pods whose events are read, those of the newest generations first; each is a call."""


async def events(client: kube.KubeClient, resource: kube.Object) -> EventNotes:
    """Return the newest events of a resource and its pods, those whose time is later first."""
    pods = (await bodies_of(client, resource))[-PODS_MAX:]
    namespace = resource["metadata"]["namespace"]

    async def about(body: kube.Object) -> tuple[kube.Object, ...]:
        fields = f"involvedObject.uid={body['metadata']['uid']}"
        return tuple((await client.list(CORE_EVENTS, namespace, limit=OF_ONE_MAX, fields=fields)).items)

    found = await asyncio.gather(*(about(body) for body in (resource, *pods)))
    # Some times have microseconds: behind the Z of the others they would be the earlier ones.
    notes = sorted((_note(each) for part in found for each in part), key=lambda note: note.at.rstrip("Z"), reverse=True)
    return EventNotes(items=notes[:SHOWN_MAX])


def _note(event: Mapping[str, Any]) -> EventNote:
    # Writers of events.k8s.io count in `series`, older ones in `count`; each leaves the fields of the other empty.
    series, about = event.get("series") or {}, event.get("involvedObject") or {}
    at = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return EventNote(
        at=at or event["metadata"]["creationTimestamp"],
        about=f"{about.get('kind', '')}/{about.get('name', '')}",
        type=event.get("type") or "Normal",
        reason=event.get("reason") or "",
        message=event.get("message") or "",
        count=series.get("count") or event.get("count") or 1,
    )
