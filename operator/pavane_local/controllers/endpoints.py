"""Service → EndpointSlice (docs/specs/operator.md 6.7)."""

from collections.abc import Iterable
from typing import Any

from pavane_local.api.cluster import Cluster
from pavane_local.controllers.loop import Controller, Name, is_ready, name_of, owner_of
from pavane_local.store import Object

RESOURCE = "endpointslices.discovery.k8s.io"
SERVICE_LABEL = "kubernetes.io/service-name"


def controller(cluster: Cluster) -> Controller:
    """The controller that keeps one slice per Service with a selector."""

    services, slices = cluster.kind("services"), cluster.kind(RESOURCE)

    def of_pod(pod: Object) -> Iterable[Name]:
        """Name the Services that select it, and those whose slice has it: its labels may have changed."""
        metadata = pod["metadata"]
        labels = metadata.get("labels", {}).items()
        for service in cluster.chosen(services, metadata["namespace"], "", ""):
            if service["spec"].get("selector", {}).items() <= labels:
                yield name_of(service)
        for each in cluster.chosen(slices, metadata["namespace"], "", ""):
            named = [endpoint.get("targetRef", {}).get("uid") for endpoint in each.get("endpoints") or ()]
            if metadata["uid"] in named and (service_name := each["metadata"].get("labels", {}).get(SERVICE_LABEL)):
                yield metadata["namespace"], service_name

    async def reconcile(namespace: str, name: str) -> None:
        service = cluster.find("services", namespace, name)
        if service is None or not service["spec"].get("selector"):
            return
        wanted = endpoint_slice(service, cluster.list("pods", namespace))
        if (present := cluster.find(RESOURCE, *name_of(wanted))) is None:
            await cluster.create(RESOURCE, wanted)
        elif any(present.get(key) != wanted[key] for key in ("endpoints", "ports")):
            await cluster.update(RESOURCE, {**wanted, "metadata": present["metadata"]})

    return Controller(cluster, reconcile, {"services": lambda service: [name_of(service)], "pods": of_pod})


def endpoint_slice(service: Object, pods: Iterable[Object]) -> Object:
    """The slice of a Service: its selected pods that have an address."""
    (namespace, name), spec = name_of(service), service["spec"]
    selected = (pod for pod in pods if spec["selector"].items() <= pod["metadata"].get("labels", {}).items())
    chosen = [pod for pod in selected if pod.get("status", {}).get("podIP")]
    labels = {**service["metadata"].get("labels", {}), SERVICE_LABEL: name}
    metadata = {"name": f"{name}-local", "namespace": namespace, "labels": labels}
    return {
        "metadata": {**metadata, "ownerReferences": [owner_of(service)]}, "addressType": "IPv4",
        "endpoints": [_endpoint(pod, service) for pod in chosen],
        "ports": [_port(each, chosen) for each in spec.get("ports") or ()],
    }  # fmt: skip


def _endpoint(pod: Object, service: Object) -> dict[str, Any]:
    terminating, serving = "deletionTimestamp" in pod["metadata"], is_ready(pod)
    ready = bool(service["spec"].get("publishNotReadyAddresses")) or (serving and not terminating)
    endpoint = {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "nodeName": pod["spec"].get("nodeName", "local"),
        "targetRef": {"kind": "Pod", **{key: pod["metadata"][key] for key in ("namespace", "name", "uid")}},
    }
    if pod["spec"].get("hostname") and pod["spec"].get("subdomain") == service["metadata"]["name"]:
        endpoint["hostname"] = pod["spec"]["hostname"]
    return endpoint


def _port(port: dict[str, Any], pods: Iterable[Object]) -> dict[str, Any]:
    target = port.get("targetPort", port["port"])
    if isinstance(target, str):
        containers = (container for pod in pods for container in pod["spec"]["containers"])
        named = (each for container in containers for each in container.get("ports") or ())
        target = next((each["containerPort"] for each in named if each.get("name") == target), port["port"])
    return {"name": port.get("name", ""), "port": target, "protocol": port.get("protocol", "TCP")}
