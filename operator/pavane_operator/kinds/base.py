"""What the renderers of most kinds have in common; a kind says only what is its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pavane_operator.crds.status import GenerationRole
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.objects import generations
from pavane_operator.objects.generations import Recorded
from pavane_operator.objects.names import Names
from pavane_operator.objects.policies import Surroundings
from pavane_operator.plan.model import Child, Manifest, Problem, Resource


class BaseRenderer:
    """The parts of `pavane_operator.plan.port.Renderer` that are the same for kinds with one role per generation."""

    names: ClassVar[Names]
    """Of the role whose pods make a generation."""
    kept_by_repairs: ClassVar[tuple[str, ...]] = ()
    """Fields that volumes, or the pods of a generation among each other, depend on (2.13)."""

    def __init__(self, defaults: RenderDefaults) -> None:
        self._defaults = defaults

    @property
    def _surroundings(self) -> Surroundings:
        return Surroundings(self._defaults.platform_namespace, self._defaults.otlp_endpoint)

    def standing(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """Nothing: all roles of most kinds belong to a generation."""
        return ()

    def repair_problem(self, resource: Resource, revision: Child) -> Problem | None:
        """One of the fields that a repair keeps differs."""
        return generations.repair_problem(resource, revision, self.kept_by_repairs)

    def labels(self, resource: Resource) -> Mapping[str, str]:
        """Labels of an object of the whole resource."""
        return self.names.labels(resource.name, self._defaults.version)

    def dns_names(self, resource: Resource) -> tuple[str, ...]:
        """The public Service, and the pods of the generations that stand in the status."""
        return self.names.dns_names(resource.name, resource.namespace, known_generations(resource))

    def image(self, revision: Child) -> str:
        """The image that the revision recorded."""
        return Recorded.of(revision).image

    def expected_state(self, resource: Resource, generation: int, *, bootstrap: bool) -> Mapping[str, str]:
        """Nothing."""
        return {}


def known_generations(resource: Resource) -> list[int]:
    """The active generation, the one that is being rolled out and the one that stands by, as far as there are any."""
    status = resource.status
    if status is None:
        return []
    standby = (each.number for each in status.generations if each.role is GenerationRole.STANDBY)
    return [number for number in (status.active_generation, status.next_generation, *standby) if number]
