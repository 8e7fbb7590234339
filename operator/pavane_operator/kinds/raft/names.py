"""Names, labels, ports and urls of what belongs to a RaftCluster (docs/specs/operator.md 4.1, 4.2)."""

from __future__ import annotations

from collections.abc import Iterable

KIND = "RaftCluster"
PLURAL = "raftclusters"
ROLE = "server"

RAFT_PORT = 8047
PUBLISH_PORT = 8048
STAGE_PORT = 7070
OPS_PORT = 7071

MANAGER_LABEL_VALUE = "pavane-operator"


def stateful_set(name: str, generation: int) -> str:
    """Name of the StatefulSet of a generation and of its headless Service."""
    return f"{name}-{ROLE}-g{generation}"


def pod(name: str, generation: int, ordinal: int) -> str:
    """Name of a pod, which is also its peer id: so a configuration tells generations apart (3.1)."""
    return f"{stateful_set(name, generation)}-{ordinal}"


def revision(name: str, generation: int, repair: int = 0) -> str:
    """Name of the ControllerRevision that records what a generation, or a repair of it, is made of."""
    return f"{name}-g{generation}" + (f"-r{repair}" if repair else "")


def peer_url(name: str, namespace: str, generation: int, ordinal: int) -> str:
    """Url of a member: a name, because addresses change (docs/specs/raft.md 8.2)."""
    return _pod_url(name, namespace, generation, pod(name, generation, ordinal))


def peer_url_template(name: str, namespace: str, generation: int) -> str:
    """The same for whatever pod reads it, as the kubelet expands it."""
    return _pod_url(name, namespace, generation, "$(POD_NAME)")


def config_map(name: str, generation: int, repair: int) -> str:
    """Name of the ConfigMap of a generation; a repair makes another one, for they are immutable (2.13)."""
    return stateful_set(name, generation) + (f"-r{repair}" if repair else "")


def members(name: str, namespace: str, generation: int, replicas: int) -> list[tuple[str, str]]:
    """(peer id, url) of all pods of a generation, by ordinal."""
    return [
        (pod(name, generation, ordinal), peer_url(name, namespace, generation, ordinal)) for ordinal in range(replicas)
    ]


def seeds(name: str, namespace: str, generation: int) -> list[str]:
    """What a pod may ask for the leader: the public Service, then its own generation. Neither changes with members."""
    return [
        f"tcp://{name}.{namespace}.svc:{RAFT_PORT}",
        f"tcp://{stateful_set(name, generation)}.{namespace}.svc:{RAFT_PORT}",
    ]


def all_pods(name: str) -> dict[str, str]:
    """Labels that select the pods of all generations."""
    return {
        "app.kubernetes.io/name": KIND.lower(),
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": ROLE,
    }


def dns_names(name: str, namespace: str, generations: Iterable[int]) -> tuple[str, ...]:
    """Names of the public Service, the shortest of them last, and of all pods of these generations."""
    services = [name, *(stateful_set(name, generation) for generation in generations)]
    pods = [f"*.{service}.{namespace}.svc" for service in services[1:]]
    return (*(f"{service}.{namespace}.svc" for service in services), *pods, f"{name}.{namespace}", name)


def selector(name: str, generation: int) -> dict[str, str]:
    """Labels that select the pods of a generation, and nothing else for ever; generation 0 selects none."""
    return {**all_pods(name), "pavane.dev/generation": str(generation)}


def labels(name: str, version: str, generation: int | None = None) -> dict[str, str]:
    """Labels of a child; without `generation` those of an object of the whole resource."""
    common = {
        "app.kubernetes.io/name": KIND.lower(),
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/version": version,
        "app.kubernetes.io/component": ROLE,
        "app.kubernetes.io/part-of": "pavane",
        "app.kubernetes.io/managed-by": MANAGER_LABEL_VALUE,
    }
    return common if generation is None else {**common, "pavane.dev/generation": str(generation)}


def _pod_url(name: str, namespace: str, generation: int, pod_name: str) -> str:
    return f"tcp://{pod_name}.{stateful_set(name, generation)}.{namespace}.svc:{RAFT_PORT}"
