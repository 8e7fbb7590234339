"""Names and labels of what belongs to a resource, the same for all kinds (docs/specs/operator.md 4.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pavane_operator.plan.model import GENERATION_LABEL

STAGE_PORT = 7070
OPS_PORT = 7071
MANAGER_LABEL = "app.kubernetes.io/managed-by"
MANAGER_LABEL_VALUE = "pavane-operator"


@dataclass(frozen=True, slots=True)
class Names:
    """Those of a role of a kind; `name` is always that of the resource."""

    kind: str
    role: str

    def stateful_set(self, name: str, generation: int) -> str:
        """Name of the StatefulSet of a generation and of its headless Service."""
        return f"{name}-{self.role}-g{generation}"

    def pod(self, name: str, generation: int, ordinal: int) -> str:
        """Name of a pod."""
        return f"{self.stateful_set(name, generation)}-{ordinal}"

    def revision(self, name: str, generation: int, repair: int = 0) -> str:
        """Name of the ControllerRevision that records what a generation, or a repair of it, is made of."""
        return f"{name}-g{generation}" + (f"-r{repair}" if repair else "")

    def config_map(self, name: str, generation: int, repair: int) -> str:
        """Name of the ConfigMap of a generation; a repair makes another one, for they are immutable (2.13)."""
        return self.stateful_set(name, generation) + (f"-r{repair}" if repair else "")

    def headless_host(self, name: str, namespace: str, generation: int) -> str:
        """DNS name of all pods of a generation; one label before it is that of one pod."""
        return f"{self.stateful_set(name, generation)}.{namespace}.svc"

    def of_resource(self, name: str) -> dict[str, str]:
        """Labels that select the pods of all roles and generations."""
        return {"app.kubernetes.io/name": self.kind.lower(), "app.kubernetes.io/instance": name}

    def all_pods(self, name: str) -> dict[str, str]:
        """Labels that select the pods of the role, of all generations."""
        return {**self.of_resource(name), "app.kubernetes.io/component": self.role}

    def selector(self, name: str, generation: int) -> dict[str, str]:
        """Labels that select the pods of a generation, and nothing else for ever; generation 0 selects none."""
        return {**self.all_pods(name), GENERATION_LABEL: str(generation)}

    def labels(self, name: str, version: str, generation: int | None = None) -> dict[str, str]:
        """Labels of a child; without `generation` those of an object of the whole resource."""
        common = {
            **self.all_pods(name),
            "app.kubernetes.io/version": version,
            "app.kubernetes.io/part-of": "pavane",
            MANAGER_LABEL: MANAGER_LABEL_VALUE,
        }
        return common if generation is None else {**common, GENERATION_LABEL: str(generation)}

    def dns_names(self, name: str, namespace: str, generations: Iterable[int]) -> tuple[str, ...]:
        """Names of the public Service, the shortest of them last, and of all pods of these generations."""
        hosts = [self.headless_host(name, namespace, generation) for generation in generations]
        pods = [f"*.{host}" for host in hosts]
        return (f"{name}.{namespace}.svc", *hosts, *pods, f"{name}.{namespace}", name)


@dataclass(frozen=True, slots=True)
class StandingNames(Names):
    """Those of a role that belongs to the resource and to none of its generations: they carry no number."""

    def stateful_set(self, name: str, generation: int = 0) -> str:
        """Name of the StatefulSet, of its headless Service and of its ConfigMap."""
        return f"{name}-{self.role}"

    def selector(self, name: str, generation: int = 0) -> dict[str, str]:
        """Labels that select the pods of the role."""
        return self.all_pods(name)

    def labels(self, name: str, version: str, generation: int | None = None) -> dict[str, str]:
        """Labels of a child."""
        return Names.labels(self, name, version)
