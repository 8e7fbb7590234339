"""Hosts files: names without DNS (docs/specs/operator.md 6.8.5)."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

SERVICE_LABEL = "kubernetes.io/service-name"


def render(namespace: str, slices: Iterable[dict[str, Any]]) -> str:
    """The hosts file of a namespace: all ready endpoints of `slices` (EndpointSlices of all namespaces).

    A service has the names `svc` (in its own namespace), `svc.ns`, `svc.ns.svc` and `svc.ns.svc.cluster.local`;
    an endpoint with a hostname has the same names with the hostname in front.
    """
    lines = []
    for endpoint_slice in slices:
        own = endpoint_slice["metadata"]["namespace"]
        service = endpoint_slice["metadata"].get("labels", {}).get(SERVICE_LABEL)
        for endpoint in endpoint_slice.get("endpoints") or () if service else ():
            if not endpoint.get("conditions", {}).get("ready"):
                continue
            names = [f"{service}.{own}", f"{service}.{own}.svc", f"{service}.{own}.svc.cluster.local"]
            if own == namespace:
                names.insert(0, service)
            if hostname := endpoint.get("hostname"):
                names += [f"{hostname}.{name}" for name in names]
            lines += [f"{address} {' '.join(names)}\n" for address in endpoint["addresses"]]
    return "".join(sorted(lines))


def replace(path: Path, text: str) -> None:
    """Replace a file atomically, if its text differs."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(text)
    scratch.replace(path)
