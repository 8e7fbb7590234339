"""Names and seeds of what belongs to a SwimGroup (docs/specs/operator.md 3.2, 4.1)."""

from __future__ import annotations

from collections.abc import Iterable

from pavane.swim.config import id_of_name
from pavane_operator.crds.swimgroup import DEFINITION
from pavane_operator.objects.names import Names

ROLE = "member"

SWIM_PORT = 7946

NAMES = Names(DEFINITION.name, ROLE)


def active(name: str) -> str:
    """Name of the ConfigMap with the number of the generation that may write."""
    return f"{name}-active"


def member_id(namespace: str, pod: str) -> int:
    """Id in the group of a pod of ours, as the pod itself derives it."""
    return id_of_name(f"{namespace}/{pod}")


def seeds(name: str, namespace: str, generations: Iterable[int]) -> list[str]:
    """The Services of all pods of these generations."""
    return [f"{NAMES.headless_host(name, namespace, number)}:{SWIM_PORT}" for number in generations]
