"""Everything that the rows of the table ask, worked out once per plan (docs/specs/operator.md 2)."""

from datetime import datetime, timedelta
from functools import cached_property

from pavane.wire.stages import Stage
from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.rollout import Strategy
from pavane_operator.crds.status import Blocker, Rollout, State, Status
from pavane_operator.crds.values import parse_duration
from pavane_operator.kinds.port import Kind, PromotionStep
from pavane_operator.plan.children import REVISION, SERVICE, VOLUME, find, replicas
from pavane_operator.plan.model import (
    GENERATION_LABEL,
    LAST_GENERATION_ANNOTATION,
    PAUSE_ANNOTATION,
    ROLLOUT_ID_ANNOTATION,
    UID_LABEL,
    Child,
    Manifest,
    Observed,
    Pod,
    Problem,
    Resource,
    Settings,
    Writers,
    parse_number,
)

SERVE = "Serve"
"""Last step of a bootstrap: from here the public Service may let clients in (D10)."""
RETIRE = "Retire"
"""Recorded with `Retiring`; its time is when the old generation lost the fence."""

BEFORE_PROMOTION = frozenset({State.CREATING_NEXT, State.INITIALIZING, State.CATCHING_UP, State.CAUGHT_UP})
HOLDING_REASONS = frozenset({"Paused", "WaitingForApproval"})
"""Gate reasons whose time does not count towards the deadline."""


class View:
    """One snapshot, with what follows from it. Attributes are worked out when first asked."""

    def __init__(
        self, kind: Kind, resource: Resource, status: Status, observed: Observed, now: datetime, settings: Settings
    ) -> None:
        self.kind = kind
        self.resource = resource
        self.spec = resource.spec
        self.status = status
        self.observed = observed
        self.facts = observed.facts
        self.now = now
        self.settings = settings
        self.rollout = status.rollout or Rollout(state=State.IDLE)
        self.state = self.rollout.state
        self.active = status.active_generation or 0
        self.next = status.next_generation or 0
        self.bootstrap = self.active == 0
        self._manifests: dict[int, tuple[Manifest, ...]] = {}

    # ---- identities

    @cached_property
    def want(self) -> str:
        """Rollout id of the spec."""
        return rollout_id(self.kind.name, self.spec)

    @cached_property
    def have(self) -> str | None:
        """Rollout id of the active generation; None before the first."""
        return self.id_of(self.active) if self.active else None

    def id_of(self, generation: int) -> str | None:
        """Rollout id that a generation was created from."""
        revision = self.revision(generation)
        if revision is not None and ROLLOUT_ID_ANNOTATION in revision.annotations:
            return revision.annotations[ROLLOUT_ID_ANNOTATION]
        return next((entry.id for entry in self.status.generations if entry.number == generation), None)

    def image_of(self, generation: int) -> str:
        """Image of a generation's pods; still known when its revision is already deleted."""
        revision = self.revision(generation)
        if revision is not None:
            return self.kind.renderer.image(revision)
        return next((entry.image for entry in self.status.generations if entry.number == generation), "")

    @cached_property
    def highest_number(self) -> int:
        """The highest generation number that was ever used, as far as anything says (2.3)."""
        numbers: list[int | None] = [
            self.status.last_generation,
            self.active,
            self.next,
            parse_number(self.resource.annotations.get(LAST_GENERATION_ANNOTATION)),
            self.facts.fence,
        ]
        numbers += [child.generation for child in self.observed.children]
        for pod in self.observed.pods:
            numbers += [pod.generation, pod.stage.fence if pod.stage else None]
        return max(number or 0 for number in numbers)

    @cached_property
    def fence_too_low(self) -> int | None:
        """The stored fence that a pod of the next generation found to be beyond its own number."""
        stored = [
            parse_number(blocker.detail.get("stored")) or self.next
            for pod in self.live_pods(self.next)
            if pod.stage
            for blocker in pod.stage.blockers
            if blocker.reason == "FenceTooLow"
        ]
        return max(stored, default=None)

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Why the spec cannot be rolled out (B4)."""
        found = self.kind.renderer.problems(self.resource)
        if self.observed.certificates.problem is not None:
            found = (*found, self.observed.certificates.problem)
        return found

    @property
    def reconciliation_paused(self) -> bool:
        """Whether an annotation stops all work but observing (A2)."""
        return self.resource.annotations.get(PAUSE_ANNOTATION) == "true" and self.state is not State.PROMOTING

    # ---- objects

    def revision(self, generation: int) -> Child | None:
        """The revision of a generation."""
        return find(self.observed.children, REVISION, f"{self.resource.name}-g{generation}")

    def manifests(self, generation: int) -> tuple[Manifest, ...]:
        """What a generation should consist of beside its revision; nothing while the revision is missing."""
        if generation not in self._manifests:
            revision = self.revision(generation)
            rendered = () if revision is None else self.kind.renderer.generation(self.resource, revision)
            self._manifests[generation] = rendered
        return self._manifests[generation]

    @cached_property
    def volumes(self) -> list[Child]:
        """Volume claims of this very resource, not those that a former one of its name left."""
        return [
            child
            for child in self.observed.children
            if child.kind == VOLUME and child.labels.get(UID_LABEL) == self.resource.uid
        ]

    @cached_property
    def shared(self) -> tuple[Manifest, ...]:
        """What the resource needs beside its generations and the public Service."""
        promoting = self.state is State.PROMOTING
        numbers = (self.active, self.next) if promoting else (self.active,)
        writers = Writers(tuple(number for number in numbers if number), moving=promoting)
        return self.kind.renderer.shared(self.resource, writers)

    @cached_property
    def service_manifest(self) -> Manifest:
        """The public Service as it should be now."""
        return self.kind.renderer.public_service(self.resource, self.service_target)

    @cached_property
    def service_target(self) -> int:
        """The generation that the public Service should select: the active one, or n from D10 on."""
        opened = self.state is State.PROMOTING and (
            self.selected == self.next or (self.facts.leads and (not self.bootstrap or self.step_name == SERVE))
        )
        return self.next if opened else self.active

    @cached_property
    def service(self) -> Child | None:
        """The live public Service."""
        name = self.kind.renderer.public_service(self.resource, self.active).name
        return find(self.observed.children, SERVICE, name)

    @cached_property
    def selected(self) -> int | None:
        """The number in the live public Service's selector, 0 = no generation yet; None where there is no Service."""
        if self.service is None:
            return None
        selector = self.service.body.get("spec", {}).get("selector") or {}
        return parse_number(selector.get(GENERATION_LABEL)) or 0

    def objects(self, generation: int) -> list[Child]:
        """Live objects of one generation, without volumes."""
        return [child for child in self.observed.children if child.kind != VOLUME and child.generation == generation]

    @cached_property
    def foreign_objects(self) -> list[Child]:
        """Live objects of generations that are not active, without volumes."""
        return [
            child
            for child in self.observed.children
            if child.kind != VOLUME and child.generation not in (None, self.active)
        ]

    # ---- pods

    def pods(self, generation: int) -> list[Pod]:
        """All pods of a generation, also those that are going."""
        return [pod for pod in self.observed.pods if pod.generation == generation]

    def live_pods(self, generation: int) -> list[Pod]:
        """Pods of a generation that are not being deleted."""
        return [pod for pod in self.pods(generation) if not pod.deleting]

    def expected_pods(self, generation: int) -> tuple[str, ...]:
        """Names of the pods that a generation should have."""
        return tuple(
            f"{name}-{ordinal}"
            for name, count in replicas(self.manifests(generation)).items()
            for ordinal in range(count)
        )

    def complete(self, generation: int, *, stage: Stage) -> bool:
        """Whether every pod of the generation is there and has reached the stage."""
        reached = {pod.name for pod in self.live_pods(generation) if pod.stage and pod.stage.stage >= stage}
        expected = self.expected_pods(generation)
        return bool(expected) and reached.issuperset(expected)

    @cached_property
    def next_answers(self) -> bool:
        """Whether every pod of the next generation has an address and answers on its stage port (D2)."""
        answering = {pod.name for pod in self.live_pods(self.next) if pod.address and pod.stage and pod.stage.connected}
        expected = self.expected_pods(self.next)
        return bool(expected) and answering.issuperset(expected)

    @cached_property
    def stable_at(self) -> datetime | None:
        """When every pod of n will have been within lag for the whole stability period; None while one is not."""
        starts = []
        pods = {pod.name: pod for pod in self.live_pods(self.next)}
        for name in self.expected_pods(self.next):
            stage = pods[name].stage if name in pods else None
            if stage is None or not stage.connected or stage.within_lag_since is None:
                return None
            starts.append(stage.within_lag_since)
        return max(starts) + parse_duration(self.spec.rollout.caught_up.stability_period) if starts else None

    @cached_property
    def caught_up(self) -> bool:
        """Whether the next generation has caught up (D5)."""
        return self.stable_at is not None and self.stable_at <= self.now

    # ---- promotion

    @cached_property
    def steps(self) -> tuple[PromotionStep, ...]:
        """The steps of this promotion."""
        return self.kind.bootstrap_steps if self.bootstrap else self.kind.steps

    @property
    def step_name(self) -> str | None:
        """Name of the recorded step."""
        return self.rollout.step.name if self.rollout.step else None

    @cached_property
    def recorded_index(self) -> int:
        """Place of the recorded step among the steps; -1 while none is recorded."""
        names = [step.name for step in self.steps]
        if self.step_name == SERVE:
            return len(names)
        return names.index(self.step_name) if self.step_name in names else -1

    @cached_property
    def irreversible_recorded(self) -> bool:
        """Whether a step that cannot be taken back has been recorded."""
        if self.step_name == SERVE:
            return True
        return any(step.irreversible for step in self.steps[: self.recorded_index + 1])

    @cached_property
    def irreversible(self) -> bool:
        """Whether nothing may abort the attempt any more: such a step is recorded, or its effect seen in the store."""
        seen = any(step.irreversible and step.name in self.facts.steps_done for step in self.steps)
        return self.irreversible_recorded or (seen and not self.bootstrap)

    # ---- decisions of the user and time

    @cached_property
    def forced(self) -> bool:
        """Whether the user forces this very attempt."""
        return self.spec.rollout.force_promote == self.next

    @cached_property
    def immediate(self) -> bool:
        """Whether the strategy does not wait for the new generation to catch up."""
        return self.spec.rollout.strategy is Strategy.IMMEDIATE

    @cached_property
    def holding(self) -> Blocker | None:
        """The stored gate blocker whose time does not count towards the deadline."""
        return next((blocker for blocker in self.rollout.blockers if blocker.reason in HOLDING_REASONS), None)

    @cached_property
    def deadline_passed(self) -> bool:
        """Whether the attempt should be promoting by now; time that it was held does not count."""
        deadline = self.rollout.deadline
        if deadline is None or self.state not in BEFORE_PROMOTION:
            return False
        return self.now >= deadline + self._held_until_now

    @property
    def _held_until_now(self) -> timedelta:
        return max(self.now - self.holding.since, timedelta()) if self.holding else timedelta()

    @cached_property
    def held_reason(self) -> str | None:
        """Why the attempt is held by its user now: `Paused` or `WaitingForApproval`; None if it is not."""
        control = self.spec.rollout
        if self.state not in BEFORE_PROMOTION or self.bootstrap or self.forced:
            return None
        approved = control.strategy is not Strategy.MANUAL or control.promote == self.next
        if not approved and self.state is State.CAUGHT_UP:
            return "WaitingForApproval"
        return "Paused" if control.paused else None
