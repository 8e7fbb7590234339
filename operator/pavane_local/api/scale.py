"""The subresource `scale`: the number of replicas of whatever has one (`docs/specs/operator.md` 6.2)."""

from typing import Any

from pavane_local.api import tables
from pavane_local.api.cluster import Cluster, WriteOptions
from pavane_local.api.errors import Cause, invalid, section
from pavane_local.api.kinds import Resource
from pavane_local.api.patches import patched
from pavane_local.store import Object


def scale_of(resource: Resource, body: Object) -> Object:
    """Return the Scale of an object, read by the paths of its kind."""
    metadata = body["metadata"]
    wanted, present = (
        next(tables.values(body, resource.subresources["scale"][path]), 0)
        for path in ("specReplicasPath", "statusReplicasPath")
    )
    labels = body["spec"].get("selector", {}).get("matchLabels", {}) if not resource.custom else {}
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    if "labelSelectorPath" in resource.subresources["scale"]:
        selector = next(tables.values(body, resource.subresources["scale"]["labelSelectorPath"]), "")
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in kept},
        "spec": {"replicas": wanted},
        "status": {"replicas": present, "selector": selector},
    }


async def write_scale(
    cluster: Cluster, resource: Resource, namespace: str, name: str, change: Any, kind: str, options: WriteOptions
) -> Object:
    """Replace (`kind` empty) or patch the Scale of an object; returns the new one.

    Raises `ApiError`: as for a write of the object; 422 for a number of replicas below 0.
    """
    scale = scale_of(resource, cluster.get(resource.key, namespace, name))
    wanted = patched(resource, scale, change, "merge" if kind == "strategic" else kind) if kind else change
    replicas = section(wanted, "spec").get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        text = f"Invalid value: {replicas}: must be a whole number, 0 or more"
        raise invalid("Scale", "autoscaling", name, [Cause("FieldValueInvalid", text, "spec.replicas")])
    patch: Any = replicas
    for step in reversed(resource.subresources["scale"]["specReplicasPath"].strip(".").split(".")):
        patch = {step: patch}
    if version := section(wanted, "metadata").get("resourceVersion"):
        patch["metadata"] = {"resourceVersion": version}
    return scale_of(resource, await cluster.patch(resource.key, namespace, name, patch, "merge", options))
