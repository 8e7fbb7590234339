"""Names and ports of what belongs to a Coordinator (docs/specs/operator.md 4.1, 4.2)."""

from __future__ import annotations

from pavane.pods.coordinator_settings import LINK_PORT, RECEIVE_PORT, SEND_PORT
from pavane_operator.crds.coordinator import DEFINITION, PartitionLog
from pavane_operator.objects.names import Names
from pavane_operator.objects.pods import Port
from pavane_operator.plan.model import Resource

NAMES = Names(DEFINITION.name, "instance")
LINK = Port("link", LINK_PORT)
HTTP = Port("http", 8080)
"""Calls and queries, if the application serves them."""
__all__ = ["HTTP", "LINK", "NAMES", "RECEIVE_PORT", "SEND_PORT", "claim", "folder", "target"]

UID_CHARACTERS = 8
"""Of the resource's uid: a resource of the same name that comes later begins anew."""


def claim(resource: Resource) -> str:
    """Name of the claim of the log's volume."""
    return f"{resource.name}-log-{resource.uid[:UID_CHARACTERS]}"


def target(log: PartitionLog) -> str:
    """The WaltzCluster, as the runtime names it."""
    return f"WaltzCluster/{log.waltz_cluster_ref.name}"


def folder(name: str, uid: str) -> str:
    """Folder of the resource on the volume, and its name in a partition."""
    return f"{name}-{uid[:UID_CHARACTERS]}"
