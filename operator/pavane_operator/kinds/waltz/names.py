"""Names, ports and addresses of what belongs to a WaltzCluster (docs/specs/operator.md 4.1, 4.2)."""

from __future__ import annotations

import hashlib
from uuid import UUID

from pavane.pods.waltz_settings import ADMIN_PORT, SERVER_PORT, STORAGE_PORT
from pavane_operator.crds.waltzcluster import APPLICATION, DEFINITION, WaltzClusterSpec
from pavane_operator.objects.names import Names, StandingNames
from pavane_operator.objects.pods import Port
from pavane_operator.plan.model import Resource

SERVERS = Names(DEFINITION.name, "server")
STORAGE = StandingNames(DEFINITION.name, "storage")
"""Storage serves one generation of servers after the other."""

WALTZ_PORT = Port("waltz", SERVER_PORT)
NODE_PORT = Port("storage", STORAGE_PORT)
NODE_ADMIN_PORT = Port("admin", ADMIN_PORT)

UID_CHARACTERS = 8
"""Of the resource's uid in the root: a resource of the same name that comes later begins anew."""
KEY_BYTES = 16


def metadata_secret(name: str) -> str:
    """Name of the Secret with which servers reach the metadata store."""
    return f"{name}-metadata"


def client_secret(name: str, identity: str = "") -> str:
    """Name of the Secret for applications, or for one: where the servers are, whom to trust, and what to show."""
    return f"{name}-client" if identity in ("", APPLICATION) else f"{name}-client-{identity}"


def clients_map(name: str) -> str:
    """Name of the ConfigMap with the authorities of clients, for servers."""
    return f"{name}-clients"


def root(resource: Resource, spec: WaltzClusterSpec) -> str:
    """Path of the cluster in the metadata store."""
    if spec.metadata.zookeeper is not None:
        return spec.metadata.zookeeper.root
    return raft_root(spec.cluster_name or resource.name, resource.uid)


def raft_root(cluster_name: str, uid: str) -> str:
    """Path in a RaftCluster."""
    return f"/{cluster_name}-{uid[:UID_CHARACTERS]}"


def key(uid: str) -> UUID:
    """The cluster's key: derived, so that whoever needs it makes the same one."""
    return UUID(bytes=hashlib.blake2b(uid.encode(), digest_size=KEY_BYTES, person=b"waltz-cluster").digest())


def storage_addresses(name: str, namespace: str, nodes: int) -> list[str]:
    """`host:port` of the storage nodes, by ordinal."""
    host = STORAGE.headless_host(name, namespace, 0)
    return [f"{STORAGE.pod(name, 0, ordinal)}.{host}:{STORAGE_PORT}" for ordinal in range(nodes)]
