"""StatefulSet (docs/specs/operator.md 6.7): Parallel and OrderedReady, OnDelete; never two pods of one identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from pavane_local.api.cluster import Cluster, DeleteOptions
from pavane_local.api.errors import ApiError
from pavane_local.controllers.loop import Controller, Name, name_of, record
from pavane_local.store import Object

RESOURCE = "statefulsets.apps"


def controller(cluster: Cluster) -> Controller:
    """The controller of StatefulSets."""

    def of_name(found: Object) -> Iterable[Name]:
        """The set that a pod `set-0` or a claim `volume-set-0` may belong to, or have been in the way of."""
        namespace, name = name_of(found)
        stem = name.rpartition("-")[0]
        sets = (each["metadata"]["name"] for each in cluster.list(RESOURCE, namespace))
        return [(namespace, each) for each in sets if stem == each or stem.endswith(f"-{each}")]

    async def reconcile(namespace: str, name: str) -> None:
        if (found := cluster.find(RESOURCE, namespace, name)) is not None:
            await _StatefulSet(cluster, found).reconcile()

    sources = {RESOURCE: lambda found: [name_of(found)], "pods": of_name, "persistentvolumeclaims": of_name}
    return Controller(cluster, reconcile, sources)


def revision(found: Object) -> str:
    """Name of the revision that a StatefulSet's template is."""
    digest = hashlib.sha256(json.dumps(found["spec"]["template"], sort_keys=True).encode()).hexdigest()[:10]
    return f"{found['metadata']['name']}-{digest}"


def pod_of(found: Object, ordinal: int) -> Object:
    """The pod of a StatefulSet with this ordinal."""
    template, meta = found["spec"]["template"], found["metadata"]
    name = f"{meta['name']}-{ordinal}"
    labels = {
        **template["metadata"].get("labels", {}),
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(ordinal),
        "controller-revision-hash": revision(found),
    }
    claims = found["spec"].get("volumeClaimTemplates") or ()
    claimed = {each["metadata"]["name"] for each in claims}
    kept = [each for each in template["spec"].get("volumes") or () if each["name"] not in claimed]
    mounted = [{"name": each, "persistentVolumeClaim": {"claimName": f"{each}-{name}"}} for each in sorted(claimed)]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": meta["namespace"],
            "labels": labels,
            "annotations": template["metadata"].get("annotations", {}),
            "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
        },
        "spec": {
            **template["spec"],
            "hostname": name,
            "subdomain": found["spec"].get("serviceName", ""),
            "volumes": [*kept, *mounted],
        },
    }


class _StatefulSet:
    """One look at one StatefulSet."""

    def __init__(self, cluster: Cluster, found: Object) -> None:
        self._cluster = cluster
        self._found = found
        self._namespace, self._name = name_of(found)
        self._replicas: int = found["spec"].get("replicas", 1)
        self._pods: dict[int, Object] = {}
        for pod in cluster.list("pods", self._namespace):
            stem, _, ordinal = pod["metadata"]["name"].rpartition("-")
            if stem == self._name and ordinal.isdigit() and self._owns(pod):
                self._pods[int(ordinal)] = pod

    async def reconcile(self) -> None:
        """Delete what has ended or is too much, create what is missing, then tell the status."""
        if "deletionTimestamp" not in self._found["metadata"]:
            if self._found["spec"].get("podManagementPolicy") == "Parallel":
                await self._all_at_once()
            else:
                await self._one_by_one()
        await self._tell()

    async def _all_at_once(self) -> None:
        for ordinal, pod in self._pods.items():
            if ordinal >= self._replicas or _ended(pod):
                await self._delete(pod)
        for ordinal in range(self._replicas):
            if ordinal not in self._pods:
                await self._create(ordinal)

    async def _one_by_one(self) -> None:
        """OrderedReady: upwards one pod after the other is Ready, downwards one after the other is gone."""
        for ordinal in range(self._replicas):
            pod = self._pods.get(ordinal)
            if pod is None:
                return await self._create(ordinal)
            if _ended(pod):
                return await self._delete(pod)
            if not _ready(pod) or "deletionTimestamp" in pod["metadata"]:
                return None
        extra = [each for ordinal, each in sorted(self._pods.items()) if ordinal >= self._replicas]
        if extra:
            await self._delete(extra[-1])
        return None

    async def _create(self, ordinal: int) -> None:
        pod = pod_of(self._found, ordinal)
        for template in self._found["spec"].get("volumeClaimTemplates") or ():
            claim = self._claim(template, pod["metadata"]["name"])
            present = self._cluster.find("persistentvolumeclaims", self._namespace, claim["metadata"]["name"])
            if present is None:
                await self._cluster.create("persistentvolumeclaims", claim)
            elif "deletionTimestamp" in present["metadata"]:
                return  # its deletion wakes us
        if self._cluster.find("pods", self._namespace, pod["metadata"]["name"]) is not None:
            return  # somebody else's pod has the name: its deletion wakes us
        try:
            self._pods[ordinal] = await self._cluster.create("pods", pod)
        except ApiError as error:
            message = f"create Pod {pod['metadata']['name']} failed: {error.message}"
            await record(self._cluster, self._found, "StatefulSet", "apps/v1", "Warning", "FailedCreate", message)
            raise

    async def _delete(self, pod: Object) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            namespace, name = name_of(pod)
            await self._cluster.delete("pods", namespace, name, DeleteOptions(uid=pod["metadata"]["uid"]))

    def _claim(self, template: dict[str, Any], pod: str) -> Object:
        meta = template["metadata"]
        labels = {**self._found["spec"]["selector"].get("matchLabels", {}), **meta.get("labels", {})}
        named = {"name": f"{meta['name']}-{pod}", "namespace": self._namespace, "labels": labels}
        annotations = {"annotations": meta["annotations"]} if "annotations" in meta else {}
        return {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": named | annotations,
            "spec": template["spec"],
        }

    def _owns(self, pod: Object) -> bool:
        uid = self._found["metadata"]["uid"]
        return any(each["uid"] == uid for each in pod["metadata"].get("ownerReferences", ()))

    async def _tell(self) -> None:
        update = revision(self._found)
        current = self._found.get("status", {}).get("currentRevision", update)
        hashes = [each["metadata"]["labels"].get("controller-revision-hash") for each in self._pods.values()]
        ready = sum(_ready(each) for each in self._pods.values())
        updated = hashes.count(update)
        if updated == len(hashes):
            current = update
        status = {
            "observedGeneration": self._found["metadata"].get("generation", 1),
            "replicas": len(self._pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "currentReplicas": hashes.count(current),
            "updatedReplicas": updated,
            "currentRevision": current,
            "updateRevision": update,
            "collisionCount": 0,
        }
        if status != self._found.get("status"):
            patch = {"metadata": {"uid": self._found["metadata"]["uid"]}, "status": status}
            await self._cluster.patch(RESOURCE, self._namespace, self._name, patch, subresource="status")


def _ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
