"""StatefulSet (docs/specs/operator.md 6.7): Parallel, OnDelete; never two pods of one identity."""

import hashlib
import json
from collections.abc import Iterable

from pavane_local.api.cluster import Cluster, DeleteOptions
from pavane_local.controllers.loop import Controller, Name, is_ready, name_of, owner_of
from pavane_local.store import Object

RESOURCE = "statefulsets.apps"
CLAIMS = "persistentvolumeclaims"
HASH_LABEL = "controller-revision-hash"


def controller(cluster: Cluster) -> Controller:
    """The controller of StatefulSets."""

    def of_name(found: Object) -> Iterable[Name]:
        """The sets that a pod `set-0` or a claim `volume-set-0` may belong to, or have been in the way of."""
        namespace, name = name_of(found)
        stem = name.rpartition("-")[0]
        sets = (each["metadata"]["name"] for each in cluster.list(RESOURCE, namespace))
        return [(namespace, each) for each in sets if stem == each or stem.endswith(f"-{each}")]

    async def reconcile(namespace: str, name: str) -> None:
        if (found := cluster.find(RESOURCE, namespace, name)) is not None:
            pods = _pods(cluster, found)
            if "deletionTimestamp" not in found["metadata"]:
                start = found["spec"].get("ordinals", {}).get("start", 0)
                for ordinal in (wanted := set(range(start, start + found["spec"]["replicas"]))) - pods.keys():
                    await _create(cluster, found, ordinal)
                for pod in [pods[ordinal] for ordinal in pods.keys() - wanted]:
                    if "deletionTimestamp" not in pod["metadata"]:
                        await cluster.delete("pods", *name_of(pod), DeleteOptions(uid=pod["metadata"]["uid"]))
            await _tell(cluster, found, pods)

    return Controller(cluster, reconcile, {RESOURCE: lambda found: [name_of(found)], "pods": of_name, CLAIMS: of_name})


def revision(found: Object) -> str:
    """Name of the revision that a StatefulSet's template is."""
    digest = hashlib.sha256(json.dumps(found["spec"]["template"], sort_keys=True).encode()).hexdigest()[:10]
    return f"{found['metadata']['name']}-{digest}"


def pod_of(found: Object, ordinal: int) -> Object:
    """The pod of a StatefulSet with this ordinal."""
    template, (namespace, name) = found["spec"]["template"], name_of(found)
    pod = f"{name}-{ordinal}"
    own = {"statefulset.kubernetes.io/pod-name": pod, "apps.kubernetes.io/pod-index": str(ordinal)}
    claimed = [each["metadata"]["name"] for each in found["spec"].get("volumeClaimTemplates") or ()]
    mounted = [{"name": each, "persistentVolumeClaim": {"claimName": f"{each}-{pod}"}} for each in claimed]
    own_volumes = [*(template["spec"].get("volumes") or ()), *mounted]
    identity = {"hostname": pod, "subdomain": found["spec"].get("serviceName", ""), "volumes": own_volumes}
    metadata = {
        "name": pod, "namespace": namespace, "annotations": template["metadata"].get("annotations", {}),
        "labels": {**template["metadata"].get("labels", {}), **own, HASH_LABEL: revision(found)},
        "ownerReferences": [owner_of(found)],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**template["spec"], **identity}}


def _pods(cluster: Cluster, found: Object) -> dict[int, Object]:
    """The pods that the set owns, by ordinal."""
    (namespace, name), uid = name_of(found), found["metadata"]["uid"]
    pods = {}
    for pod in cluster.list("pods", namespace):
        stem, _, ordinal = pod["metadata"]["name"].rpartition("-")
        owned = any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences", ()))
        if stem == name and ordinal.isdigit() and owned:
            pods[int(ordinal)] = pod
    return pods


async def _create(cluster: Cluster, found: Object, ordinal: int) -> None:
    pod = pod_of(found, ordinal)
    namespace, name = name_of(pod)
    for template in found["spec"].get("volumeClaimTemplates") or ():
        meta = template["metadata"]
        labels = {**found["spec"]["selector"].get("matchLabels", {}), **meta.get("labels", {})}
        named = {"name": f"{meta['name']}-{name}", "namespace": namespace, "labels": labels}
        claim = {"metadata": named, "spec": template["spec"]}
        present = cluster.find(CLAIMS, *name_of(claim))
        if present is None:
            await cluster.create(CLAIMS, claim)
        elif "deletionTimestamp" in present["metadata"]:
            return  # its deletion wakes us
    if cluster.find("pods", namespace, name) is None:  # else somebody else's pod has the name: its deletion wakes us
        await cluster.create("pods", pod)


async def _tell(cluster: Cluster, found: Object, pods: dict[int, Object]) -> None:
    update, hashes = revision(found), [each["metadata"]["labels"].get(HASH_LABEL) for each in pods.values()]
    updated = hashes.count(update)
    current = update if updated == len(hashes) else found.get("status", {}).get("currentRevision", update)
    ready = sum(map(is_ready, pods.values()))
    status = {
        "observedGeneration": found["metadata"].get("generation", 1), "collisionCount": 0,
        "replicas": len(pods), "availableReplicas": ready, "currentRevision": current, "updateRevision": update,
    }  # fmt: skip
    counts = {"readyReplicas": ready, "currentReplicas": hashes.count(current), "updatedReplicas": updated}
    changed = status | {name: count or None for name, count in counts.items()}  # a real server leaves these out at 0
    if status | {name: count for name, count in counts.items() if count} != found.get("status"):
        patch = {"metadata": {"uid": found["metadata"]["uid"]}, "status": changed}
        await cluster.patch(RESOURCE, *name_of(found), patch, subresource="status")
