"""From objects as the API server stores them to what the planner looks at: pure conversions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pavane_operator.crds.tls import TlsSpec
from pavane_operator.kube.resources import ENDPOINT_SLICES, PODS, SECRETS, VOLUME_CLAIMS, Object
from pavane_operator.kube.resources import Resource as ResourceType
from pavane_operator.objects.names import MANAGER_LABEL, MANAGER_LABEL_VALUE
from pavane_operator.plan.model import (
    COMPONENT_LABEL,
    GENERATION_LABEL,
    REPAIR_ANNOTATION,
    TEMPLATE_ANNOTATION,
    Child,
    Pod,
    Resource,
    StageView,
    parse_number,
)
from pavane_operator.plan.port import Kind
from pavane_operator.runtime.cache import belongs_to
from pavane_operator.tls.names import certificate_secret

ENDED_MAX_CHARACTERS = 300
"""Of a container's last words in a message of the status, which has more to say."""
SERVICE_NAME_LABEL = "kubernetes.io/service-name"


def resource_of(kind: Kind, body: Object) -> Resource:
    """The custom resource; fields of a newer release's definition, defaults among them, are not looked at.

    Raises pydantic's ValidationError for a value that no definition of ours allows.
    """
    metadata = body["metadata"]
    return Resource(
        kind=kind.name,
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        metadata_generation=int(metadata.get("generation") or 0),
        spec=kind.definition.spec.model_validate(body.get("spec") or {}, extra="ignore"),
        status=kind.definition.status.parse(body.get("status")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        annotations=metadata.get("annotations") or {},
        deleted_at=_deleted_at(metadata),
    )


def children_of(uid: str, members: Iterable[tuple[ResourceType, Object]]) -> tuple[Child, ...]:
    """What the resource owns, and all volume claims with its labels, also those of a former resource of its name."""
    return tuple(
        Child(
            kind=resource.kind,
            name=body["metadata"]["name"],
            uid=body["metadata"]["uid"],
            resource_version=body["metadata"]["resourceVersion"],
            body=body,
        )
        for resource, body in members
        if resource == VOLUME_CLAIMS or (resource not in (PODS, ENDPOINT_SLICES) and _owned_by(body, uid))
    )


def followed_secrets(members: Iterable[tuple[ResourceType, Object]]) -> dict[str, Object]:
    """By name, the Secrets that come with the watch of children, so that nobody has to ask for them.

    A list brings those of users as well that carry the labels of the resource: no watch tells when they change.
    """
    return {
        body["metadata"]["name"]: body
        for resource, body in members
        if resource == SECRETS and body["metadata"]["labels"].get(MANAGER_LABEL) == MANAGER_LABEL_VALUE
    }


def certificates_of(kind: str, secrets: Iterable[Object]) -> dict[str, Object]:
    """Of these Secrets the certificates that the operator keeps for resources of a kind, each as `Secret/name`."""
    found = {}
    for body in secrets:
        name, _, resource = belongs_to(body) or ("", "", "")
        if name == kind.lower() and body["metadata"]["name"] == certificate_secret(resource, TlsSpec()):
            found[f"Secret/{body['metadata']['name']}"] = body
    return found


def pods_of(
    members: Iterable[tuple[ResourceType, Object]],
    stage: Callable[[Object], StageView | None],
    followers: Container[str] = (),
) -> tuple[Pod, ...]:
    """The pods of the resource; `stage` tells what is known of the staged life of one, but of these roles."""
    found = []
    for resource, body in members:
        generation = parse_number((body["metadata"].get("labels") or {}).get(GENERATION_LABEL))
        if resource == PODS and generation is not None:
            follows = body["metadata"]["labels"].get(COMPONENT_LABEL) in followers
            pod = _pod(body, generation, None if follows else stage(body))
            found.append(replace(pod, follows=follows))
    return tuple(found)


def standing_of(members: Iterable[tuple[ResourceType, Object]]) -> tuple[Pod, ...]:
    """The pods of the roles that belong to the resource: no label says a generation, and they have no stages."""
    return tuple(
        _pod(body, 0, None)
        for resource, body in members
        if resource == PODS and GENERATION_LABEL not in (body["metadata"].get("labels") or {})
    )


def service_pods_of(service: str, members: Iterable[tuple[ResourceType, Object]]) -> frozenset[str]:
    """Names of the pods that are ready in the EndpointSlices of this Service."""
    ready = set()
    for resource, body in members:
        if resource != ENDPOINT_SLICES or (body["metadata"].get("labels") or {}).get(SERVICE_NAME_LABEL) != service:
            continue
        for endpoint in body.get("endpoints") or ():
            target = endpoint.get("targetRef") or {}
            # Absent means ready, says the API.
            if target.get("kind") == "Pod" and (endpoint.get("conditions") or {}).get("ready") is not False:
                ready.add(str(target["name"]))
    return frozenset(ready)


def timestamp(text: str) -> datetime:
    """A Kubernetes time, in UTC."""
    return datetime.fromisoformat(text).astimezone(UTC)


def _pod(body: Object, generation: int, stage: StageView | None) -> Pod:
    metadata, status = body["metadata"], body.get("status") or {}
    conditions = {one["type"]: one for one in status.get("conditions") or ()}
    scheduling = conditions.get("PodScheduled") or {}
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    waiting: Object = next(
        (one["state"]["waiting"] for one in containers if (one.get("state") or {}).get("waiting")), {}
    )
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        generation=generation,
        address=status.get("podIP") or None,
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        deleting="deletionTimestamp" in metadata,
        scheduled=bool((body.get("spec") or {}).get("nodeName")) or scheduling.get("status") == "True",
        restarts=sum(int(one.get("restartCount") or 0) for one in containers),
        waiting_reason=waiting.get("reason"),
        waiting_message=str(waiting.get("message") or scheduling.get("message") or ""),
        ended=next(filter(None, map(_ended, containers)), ""),
        repair=parse_number((metadata.get("annotations") or {}).get(REPAIR_ANNOTATION)) or 0,
        template=(metadata.get("annotations") or {}).get(TEMPLATE_ANNOTATION, ""),
        stage=stage,
    )


def _ended(container: Object) -> str:
    """Exit code, and the reason and the last words where there are any; empty where it never failed."""
    states = (container.get(name) or {} for name in ("state", "lastState"))
    end: Object = next((state["terminated"] for state in states if state.get("terminated")), {})
    if not end.get("exitCode"):
        return ""
    why = "" if end.get("reason") in (None, "", "Error") else f" ({end['reason']})"
    said = " ".join(str(end.get("message") or "").split())
    return f"exit code {end['exitCode']}{why}" + (f": {said[:ENDED_MAX_CHARACTERS]}" if said else "")


def _owned_by(body: Object, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences") or ())


def _deleted_at(metadata: dict[str, Any]) -> datetime | None:
    stamp = metadata.get("deletionTimestamp")
    if stamp is None:
        return None
    return timestamp(stamp) - timedelta(seconds=int(metadata.get("deletionGracePeriodSeconds") or 0))
