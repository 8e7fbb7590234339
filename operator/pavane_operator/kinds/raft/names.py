"""Names, ports and urls of what belongs to a RaftCluster (docs/specs/operator.md 4.1, 4.2)."""

from __future__ import annotations

from pavane_operator.crds.raftcluster import DEFINITION
from pavane_operator.objects.names import Names

ROLE = "server"

RAFT_PORT = 8047
PUBLISH_PORT = 8048

NAMES = Names(DEFINITION.name, ROLE)
stateful_set = NAMES.stateful_set
pod = NAMES.pod
"""Name of a pod, which is also its peer id: so a configuration tells generations apart (3.1)."""


def client_secret(name: str) -> str:
    """Name of the Secret for applications: where the cluster is, and the keys of a client."""
    return f"{name}-client"


def public_url(name: str, namespace: str) -> str:
    """Where clients connect: the public Service, whose name stays."""
    return f"tcp://{name}.{namespace}.svc:{RAFT_PORT}"


def peer_url(name: str, namespace: str, generation: int, ordinal: int) -> str:
    """Url of a member: a name, because addresses change (docs/specs/raft.md 8.2)."""
    return _pod_url(name, namespace, generation, pod(name, generation, ordinal))


def peer_url_template(name: str, namespace: str, generation: int) -> str:
    """The same for whatever pod reads it, as the kubelet expands it."""
    return _pod_url(name, namespace, generation, "$(POD_NAME)")


def members(name: str, namespace: str, generation: int, replicas: int) -> list[tuple[str, str]]:
    """(peer id, url) of all pods of a generation, by ordinal."""
    return [
        (pod(name, generation, ordinal), peer_url(name, namespace, generation, ordinal)) for ordinal in range(replicas)
    ]


def seeds(name: str, namespace: str, generation: int) -> list[str]:
    """What a pod may ask for the leader: the public Service, then its own generation. Neither changes with members."""
    return [
        public_url(name, namespace),
        f"tcp://{NAMES.headless_host(name, namespace, generation)}:{RAFT_PORT}",
    ]


def _pod_url(name: str, namespace: str, generation: int, pod_name: str) -> str:
    return f"tcp://{pod_name}.{NAMES.headless_host(name, namespace, generation)}:{RAFT_PORT}"
