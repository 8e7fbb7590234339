"""The port that each kind implements; the planner and runtime know nothing else of it (docs/specs/operator.md 3)."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol

from pavane_operator.crds.descriptor import Definition
from pavane_operator.plan.model import Child, Facts, Manifest, Observed, Problem, Repair, Resource, Writers

NOTHING: Mapping[str, Any] = MappingProxyType({})
"""No other resource is there."""


@dataclass(frozen=True, slots=True)
class PromotionStep:
    """One step of a promotion, as data; the planner takes them in order."""

    name: str
    irreversible: bool = False
    """Recorded in `rollout.step` before it is taken; afterwards nothing aborts the attempt."""
    allow_writes: bool = False
    """The planner itself leads the pods of the next generation up to ReadWrite; `Promotion.step` is not called."""
    rendered: bool = False
    """Its effect is an object that is rendered for `Writers.fence` and applied; `Promotion.step` is not called."""
    serves: bool = False
    """The public Service leads to the next generation from here on, before it leads: clients then wait for the takeover
    alone, not for the Service as well. For stores that lead within a moment and refuse clients until then."""


class Renderer(Protocol):
    """Pure functions from a resource to the objects it wants. Pods come from the revision, never from the live spec."""

    def references(self, resource: Resource, targets: Mapping[str, Any] = NOTHING) -> tuple[str, ...]:
        """Names of the Secrets that this kind's spec, or one of the present `targets`, refers to; of `spec.tls` the
        runtime knows itself."""

    def problems(self, resource: Resource, references: Mapping[str, Any]) -> tuple[Problem, ...]:
        """Why this spec cannot be rolled out: reason `ReferenceNotReady`, `InvalidConfig` or `UnsupportedVersion`.
        `references` are the present Secrets of these names, and the present targets, as `Observed` has them."""

    def revision(self, resource: Resource, generation: int, rollout_id: str, repair: Repair | None = None) -> Manifest:
        """The ControllerRevision of a new generation: P fields, resolved image, render version; create only.

        Its labels carry the generation, its annotation `pavane.dev/rollout-id` the id. Repair k of the generation
        (2.13) is `{name}-g{n}-r{k}`; annotation `pavane.dev/repair` says so on it and on the pods' template.
        """

    def repair_problem(self, resource: Resource, revision: Child) -> Problem | None:
        """Why the pods of this revision cannot be rendered afresh from the present spec: volumes or peers depend on a
        field that differs. None = they can."""

    def labels(self, resource: Resource) -> Mapping[str, str]:
        """Labels of an object of the whole resource."""

    def dns_names(self, resource: Resource) -> tuple[str, ...]:
        """Under which names pods are reached: of the public Service, first, and of each generation that there is or is
        to be. They go into certificates."""

    def shared(self, resource: Resource, writers: Writers, references: Mapping[str, Any]) -> tuple[Manifest, ...]:
        """Objects of the whole resource but the public Service: generated Secrets (create only), live ConfigMap,
        ServiceAccount, policies and budgets. Of the kinds in `plan.children.WITHDRAWN`, what is left out is deleted.
        `references` as for `problems`."""

    def public_service(self, resource: Resource, generation: int) -> Manifest:
        """The public Service with a selector for this generation, guarded; 0 selects no pod."""

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMap, headless Service and StatefulSet of the generation whose revision this is, all with its label.

        A StatefulSet has as many replicas as the spec asks for; the planner decides how many it gets now.
        """

    def standing(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        """ConfigMaps, headless Services and StatefulSets of the roles that belong to the resource, without the label of
        a generation, as the revision of the generation that serves has them. No retirement deletes them; a changed
        template is applied, and pods of the former one are replaced one at a time, as `Facts.exchange` lets them."""

    def image(self, revision: Child) -> str:
        """The image that the revision recorded."""

    def expected_state(self, resource: Resource, generation: int, *, bootstrap: bool) -> Mapping[str, str]:
        """Settings that `UpdateConfiguration` gives a pod before InitializationComplete."""


class Promotion(Protocol):
    """Speaks to the store of one resource through its protocol's client. The only part of a kind that does I/O."""

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        """What the store says now. Never raises for an unreachable store: that is a fact too."""

    async def step(self, name: str, resource: Resource, observed: Observed, at: datetime) -> None:
        """Take the step of a promotion, or the one that is `Facts.due`; idempotent, first looks whether its effect is
        there. Raises what the client raises."""

    async def undo(self, generation: int, resource: Resource, observed: Observed) -> None:
        """Take back what an aborted generation left in the store; idempotent."""

    async def close(self) -> None:
        """Close all connections."""


class PromotionFactory(Protocol):
    """Makes the promotion of one resource."""

    def __call__(self, namespace: str, name: str, uid: str) -> Promotion:
        """A promotion without connections; it opens them when it is first used."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What the operator does with a kind: its definition, and behaviour."""

    definition: Definition
    steps: tuple[PromotionStep, ...]
    """Of an ordinary promotion, in order."""
    bootstrap_steps: tuple[PromotionStep, ...]
    """Of the first generation; the planner adds the irreversible step `Serve` itself (D10)."""
    renderer: Renderer
    promotion: PromotionFactory
    partings: int = 1
    """In how many batches at least the pods of a former generation go, the next one when `Facts.parting` lets it; 1 =
    all at once."""
    followers: frozenset[str] = frozenset()
    """Roles of a generation whose pods are led by those of its other role, not by the operator."""
    clients: Callable[[Resource], tuple[str, ...]] = lambda _: ()
    """Those of a resource that get a certificate of its second authority, which only ports for clients trust: the
    renderer's `references` names the Secret with all of them (`tls.names.issued_secret`)."""
    settled: Callable[[Resource, Iterable[Child]], Resource] = lambda resource, _: resource
    """The resource, to which these objects belong, with what counts where its spec says nothing."""
    leave: Callable[[Resource, Observed], Awaitable[None]] | None = None
    """Takes back what a resource that is being deleted has left with others, once its pods are gone; idempotent. What
    it raises is tried again, until a deletion goes on without."""
    trusts_others: bool = False
    """Whether its pods speak TLS with those of other resources of the kind: `references` then also holds the
    certificates that the operator keeps for those of the namespace, each as `Secret/name`."""

    @property
    def name(self) -> str:
        """As in `kind:`."""
        return self.definition.name

    @property
    def plural(self) -> str:
        """As in the path of the API."""
        return self.definition.plural

    @property
    def stage_kind(self) -> str:
        """What its pods call themselves on the stage port."""
        return self.definition.folder
