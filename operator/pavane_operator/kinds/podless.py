"""The port that a kind without pods implements: no plan and no rollout, a pass over all its resources."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Protocol

import httpx2

from pavane_operator.kube import KubeClient
from pavane_operator.kube.resources import Resource as ResourceType

Members = Callable[[str, str, str], Sequence[tuple[ResourceType, dict[str, Any]]]]
"""What is known to belong to a resource, by kind, namespace and name: the type and the object of each."""


class PodlessKind(Protocol):
    """Looks after all resources of a kind without pods: no plan and no rollout, a pass over all of them."""

    @property
    def watched(self) -> tuple[ResourceType, ...]:
        """The types whose changes it hears of."""

    def changed(self) -> None:
        """Something of a watched type came, changed or went."""

    async def run(self) -> None:
        """Does not return."""


class PodlessFactory(Protocol):
    """Makes what looks after a kind without pods, in some namespaces; none = all."""

    def __call__(
        self,
        kube: KubeClient,
        http: httpx2.AsyncClient,
        members: Members,
        now: Callable[[], datetime],
        namespaces: Sequence[str] = (),
    ) -> PodlessKind:
        """Nothing is done before `run`."""
