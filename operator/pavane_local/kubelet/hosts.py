"""Hosts files: names without DNS (docs/specs/operator.md 6.8.5)."""

from collections.abc import Iterable
from typing import Any

SERVICE_LABEL = "kubernetes.io/service-name"


def render(namespace: str, slices: Iterable[dict[str, Any]]) -> str:
    """The hosts file of a namespace: all ready endpoints of `slices` (EndpointSlices of all namespaces)."""
    lines = []
    for each in slices:
        own, service = each["metadata"]["namespace"], each["metadata"].get("labels", {}).get(SERVICE_LABEL)
        names = [f"{service}.{own}", f"{service}.{own}.svc", f"{service}.{own}.svc.cluster.local"]
        names += [service] if own == namespace else []
        for endpoint in each.get("endpoints") or () if service else ():
            if endpoint.get("conditions", {}).get("ready"):
                host = endpoint.get("hostname")
                hosts = [*names, *(f"{host}.{name}" for name in names)] if host else names
                lines += [f"{address} {' '.join(hosts)}\n" for address in endpoint["addresses"]]
    return "".join(sorted(lines))
