"""What the renderers of most kinds have in common; a kind says only what is its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import yaml

from pavane_operator.crds.common import CommonSpec
from pavane_operator.crds.status import GenerationRole
from pavane_operator.kinds.defaults import RenderDefaults
from pavane_operator.objects import generations
from pavane_operator.objects.budget import disruption_budget
from pavane_operator.objects.generations import Content, Recorded
from pavane_operator.objects.names import Names
from pavane_operator.objects.owned import owned, service_account
from pavane_operator.objects.pods import LIVE_KEY, Inputs
from pavane_operator.objects.policies import Ports, Surroundings, Target, network_policies
from pavane_operator.plan.model import Child, Manifest, Problem, Repair, Resource, Writers
from pavane_operator.plan.port import NOTHING

Spec = TypeVar("Spec", bound=CommonSpec)


def spec_of(resource: Resource, model: type[Spec]) -> Spec:
    """The spec of a resource whose kind has this model."""
    assert isinstance(resource.spec, model)  # noqa: S101 - the registry parses by the kind's model
    return resource.spec


class BaseRenderer(ABC, Generic[Spec]):
    """The parts of `pavane_operator.plan.port.Renderer` that are the same for kinds with one role per generation."""

    model: type[Spec]
    """Of the kind's spec."""
    names: ClassVar[Names]
    """Of the role whose pods make a generation."""
    ports: ClassVar[Ports]
    """Who may connect to which port."""
    kept_by_repairs: ClassVar[tuple[str, ...]] = ()
    """Fields that volumes, or the pods of a generation among each other, depend on (2.13)."""

    def __init__(self, defaults: RenderDefaults) -> None:
        self._defaults = defaults

    @abstractmethod
    def content(self, inputs: Inputs, spec: Spec) -> Content:
        """What this generation is made of, for ever."""

    def revision(self, resource: Resource, generation: int, rollout_id: str, repair: Repair | None = None) -> Manifest:
        """The ControllerRevision `{name}-g{n}`, or `…-r{k}` of a repair, with its `content`."""
        defaults = self._defaults
        content = self.content(Inputs.of(resource, generation, defaults, repair), self._spec(resource))
        return generations.revision(resource, self.names, defaults, generation, rollout_id, content, repair)

    def public_service(self, resource: Resource, generation: int) -> Manifest:
        """Service `{name}`: where clients connect; its selector names the generation that may write."""
        return generations.public_service(resource, self.names, self._defaults, generation, self.ports.clients)

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

    def _spec(self, resource: Resource) -> Spec:
        return spec_of(resource, self.model)

    def _live(
        self, resource: Resource, settings: Mapping[str, Any] = NOTHING, files: Mapping[str, str] = NOTHING
    ) -> Manifest:
        """ConfigMap `{name}-live`: settings that reach pods that run, and other files beside them."""
        body = owned(resource, "v1", "ConfigMap", f"{resource.name}-live", self.labels(resource))
        return Manifest.of(body | {"data": {LIVE_KEY: yaml.safe_dump(dict(settings)), **files}})

    def _secret(self, resource: Resource, name: str, data: Mapping[str, str], *, create_only: bool = False) -> Manifest:
        """A Secret with these values, in base64."""
        body = owned(resource, "v1", "Secret", name, self.labels(resource))
        return Manifest.of(body | {"type": "Opaque", "data": dict(data)}, create_only=create_only)

    def _around(
        self,
        resource: Resource,
        writers: Writers,
        *,
        spare: int,
        waiting: int = 0,
        selected: Mapping[str, str] | None = None,
        targets: Sequence[Target] = (),
    ) -> tuple[Manifest, ...]:
        """ServiceAccount, NetworkPolicies and PodDisruptionBudget.

        `selected` are labels of the pods of all roles where there are several, `targets` the pods of other resources
        that they reach; `spare` and `waiting` as for `disruption_budget`.
        """
        labels, pods = self.labels(resource), self.names.all_pods(resource.name)
        around = Surroundings(self._defaults.platform_namespace, self._defaults.otlp_endpoint)
        return (
            service_account(resource, labels),
            *network_policies(resource, labels, selected or pods, self.ports, around, targets),
            *disruption_budget(resource, self.names.role, labels, pods, writers, spare=spare, waiting=waiting),
        )


def known_generations(resource: Resource) -> list[int]:
    """The active generation, the one that is being rolled out and the one that stands by, as far as there are any."""
    status = resource.status
    if status is None:
        return []
    standby = (each.number for each in status.generations if each.role is GenerationRole.STANDBY)
    return [number for number in (status.active_generation, status.next_generation, *standby) if number]
