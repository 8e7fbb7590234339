"""Service → EndpointSlice (docs/specs/operator.md 6.7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pavane_local.api.cluster import Cluster
from pavane_local.controllers.loop import Controller, Name, name_of
from pavane_local.store import Object

RESOURCE = "endpointslices.discovery.k8s.io"


def controller(cluster: Cluster) -> Controller:
    """The controller that keeps one slice per Service with a selector."""

    def of_pod(pod: Object) -> Iterable[Name]:
        return [name_of(each) for each in cluster.list("services", pod["metadata"]["namespace"])]

    async def reconcile(namespace: str, name: str) -> None:
        service = cluster.find("services", namespace, name)
        if service is None or not service["spec"].get("selector"):
            return
        wanted = endpoint_slice(service, cluster.list("pods", namespace))
        present = cluster.find(RESOURCE, namespace, wanted["metadata"]["name"])
        if present is None:
            await cluster.create(RESOURCE, wanted)
        else:
            await cluster.update(RESOURCE, {**wanted, "metadata": present["metadata"]})

    return Controller(cluster, reconcile, {"services": lambda service: [name_of(service)], "pods": of_pod})


def endpoint_slice(service: Object, pods: Iterable[Object]) -> Object:
    """The slice of a Service: its selected pods that have an address and have not ended, sorted by name."""
    meta, spec = service["metadata"], service["spec"]
    chosen = [
        pod
        for pod in pods
        if spec["selector"].items() <= pod["metadata"].get("labels", {}).items()
        and pod.get("status", {}).get("podIP")
        and pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]
    owner = {"apiVersion": "v1", "kind": "Service", "name": meta["name"], "uid": meta["uid"], "controller": True}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{meta['name']}-local",
            "namespace": meta["namespace"],
            "labels": {
                **meta.get("labels", {}),
                "kubernetes.io/service-name": meta["name"],
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            },
            "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
        },
        "addressType": "IPv4",
        "endpoints": [_endpoint(pod, service) for pod in sorted(chosen, key=lambda pod: str(pod["metadata"]["name"]))],
        "ports": [_port(each, chosen) for each in spec.get("ports") or ()],
    }


def _endpoint(pod: Object, service: Object) -> dict[str, Any]:
    terminating = "deletionTimestamp" in pod["metadata"]
    serving = any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))
    ready = bool(service["spec"].get("publishNotReadyAddresses")) or (serving and not terminating)
    target = {"kind": "Pod", **{key: pod["metadata"][key] for key in ("namespace", "name", "uid")}}
    endpoint = {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "nodeName": pod["spec"].get("nodeName", "local"),
        "targetRef": target,
    }
    if pod["spec"].get("hostname") and pod["spec"].get("subdomain") == service["metadata"]["name"]:
        endpoint["hostname"] = pod["spec"]["hostname"]
    return endpoint


def _port(port: dict[str, Any], pods: Iterable[Object]) -> dict[str, Any]:
    target = port.get("targetPort", port["port"])
    if isinstance(target, str):
        named = (
            each for pod in pods for container in pod["spec"]["containers"] for each in container.get("ports") or ()
        )
        target = next((each["containerPort"] for each in named if each.get("name") == target), port["port"])
    return {"name": port.get("name", ""), "port": target, "protocol": port.get("protocol", "TCP")}
