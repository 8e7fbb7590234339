"""What looks after a kind whose resources are not rolled out: no plan, a pass over all of them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Protocol

import httpx2
import structlog

from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.kube import KubeClient, KubeError
from pavane_operator.kube.resources import Object
from pavane_operator.kube.resources import Resource as ResourceType
from pavane_operator.plan.model import OwnCondition

LOOK_S = 5.0
"""Between two passes while no resource changes: progress in a status may be so old."""

Members = Callable[[str, str, str], Sequence[tuple[ResourceType, dict[str, Any]]]]
"""What is known to belong to a resource, by kind, namespace and name: the type and the object of each."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Around:
    """What a pass works with."""

    kube: KubeClient
    http: httpx2.AsyncClient
    members: Members
    now: Callable[[], datetime]
    defaults: RenderDefaults
    """Settings for pods that it makes."""
    known: Callable[[ResourceType], Sequence[Object]]
    """All resources of a kind with pods that the watches have told of."""
    tell: Callable[[Object, tuple[OwnCondition, ...]], None]
    """Give one of these the conditions that the pass alone knows of; those that it gave before go."""
    namespaces: Sequence[str] = ()
    """Where it looks; none = everywhere."""


class PodlessKind(ABC):
    """Looks after all resources of a kind: no plan and no rollout, a pass over all of them."""

    watched: ClassVar[tuple[ResourceType, ...]]
    """The types whose changes it hears of, its own first."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._kube = around.kube
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Something of a watched type came, changed or went."""
        self._changed.set()

    async def run(self) -> None:
        """Do not return."""
        while True:
            self._changed.clear()
            try:
                await self.look()
            except KubeError as error:
                log.warning("resources cannot be looked after yet", kind=self.watched[0].kind, error=str(error))
            except Exception:  # one resource that nobody thought of ends no operator
                log.exception("a pass failed", kind=self.watched[0].kind)
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    @abstractmethod
    async def look(self) -> None:
        """Make one pass. Raises ``KubeError``."""

    async def _listed(self, resource: ResourceType) -> list[Object]:
        namespaces = self._around.namespaces or (None,)
        pages = [await self._kube.list_all(resource, namespace) for namespace in namespaces]
        return [body for page in pages for body in page.items]


class PodlessFactory(Protocol):
    """Makes what looks after a kind without pods of its own; nothing is done before ``run``."""

    def __call__(self, around: Around) -> PodlessKind:
        """The pass over all resources of the kind."""
