"""Everything that the rows of the table ask, worked out once per plan (docs/specs/operator.md 2)."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pavane.wire.stages import Stage
from pavane_operator.crds.common import VolumeSpec, rollout_id
from pavane_operator.crds.rollout import Strategy, parse_repair
from pavane_operator.crds.status import Blocker, Result, Rollout, State, Status
from pavane_operator.crds.values import parse_duration
from pavane_operator.kinds.port import Kind, PromotionStep
from pavane_operator.plan.children import REVISION, SERVICE, STATEFUL_SET, VOLUME, find, pods_of_sets
from pavane_operator.plan.model import (
    GENERATION_LABEL,
    LAST_GENERATION_ANNOTATION,
    PAUSE_ANNOTATION,
    REPAIR_ANNOTATION,
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
from pavane_operator.plan.sizes import differs, size_of, sized
from pavane_operator.plan.standing import outdated_pods, standing_manifests

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
        self._rendered: dict[int, tuple[Manifest, ...]] = {}
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
        """Why the spec cannot be rolled out (B4), or the generation that it names not be repaired (2.13)."""
        found = self.kind.renderer.problems(self.resource, self.observed.references)
        if self.observed.certificates.problem is not None:
            found = (*found, self.observed.certificates.problem)
        found += tuple(
            Problem(
                "KeysLost",
                f"Secret {manifest.name} is gone, and pods rest on what it held: create it again as it was, from a "
                "backup or from a pod that still runs (see Lost keys in the operations guide)",
            )
            for manifest in self.lost_secrets
            if (manifest.kind, manifest.name) not in self.observed.remembered
        )
        if self.repair is None or not self.repair_is_new:
            return found
        revision = self.revision(self.repair[0])
        refused = None if revision is None else self.kind.renderer.repair_problem(self.resource, revision)
        return found if refused is None else (*found, refused)

    # ---- repair in place

    @cached_property
    def repair(self) -> tuple[int, int] | None:
        """Which generation the spec asks to repair, and for which time, where that is possible now (2.13)."""
        named = parse_repair(self.spec.rollout.repair)
        if named is None or self.state not in (State.IDLE, State.PROMOTING):
            return None
        promoting = self.state is State.PROMOTING
        if named[0] == self.active:  # once it has lost the fence nobody needs it any more
            return None if promoting and (self.fence_moved or self.selected == self.next) else named
        return named if promoting and named[0] == self.next else None

    @cached_property
    def repair_is_new(self) -> bool:
        """Whether the repair has not begun and is needed: its revision does not stand, and a pod is not Ready."""
        if self.repair is None:
            return False
        generation, time = self.repair
        revision = self.revision(generation)
        return revision is not None and repair_of(revision) < time and not self.ready(generation)

    @cached_property
    def unrepaired(self) -> list[Pod]:
        """Pods of a generation under repair that are not Ready and come from a template before it."""
        if self.repair is None:
            return []
        revision = self.revision(self.repair[0])
        standing = repair_of(revision) if revision is not None else 0
        return [pod for pod in self.live_pods(self.repair[0]) if not pod.ready and pod.repair < standing]

    @property
    def reconciliation_paused(self) -> bool:
        """Whether an annotation stops all work but observing (A2)."""
        return self.resource.annotations.get(PAUSE_ANNOTATION) == "true" and self.state is not State.PROMOTING

    @property
    def before_promotion(self) -> bool:
        """Whether an attempt is under way that may still be given up."""
        return self.state in BEFORE_PROMOTION

    # ---- objects

    def revision(self, generation: int) -> Child | None:
        """The revision of a generation: that of its last repair, if it was ever repaired."""
        name = f"{self.resource.name}-g{generation}"
        standing = [
            child
            for child in self.observed.children
            if child.kind == REVISION
            and (child.name == name or (child.name.startswith(f"{name}-r") and child.generation == generation))
        ]
        return max(standing, key=repair_of, default=None)

    def rendered(self, generation: int) -> tuple[Manifest, ...]:
        """What the spec asks for a generation beside its revision; nothing while the revision is missing."""
        if generation not in self._rendered:
            revision = self.revision(generation)
            found = () if revision is None else self.kind.renderer.generation(self.resource, revision)
            self._rendered[generation] = found
        return self._rendered[generation]

    def manifests(self, generation: int) -> tuple[Manifest, ...]:
        """The same as it should be now: with as many pods as are possible on the way there."""
        if generation not in self._manifests:
            self._manifests[generation] = tuple(
                sized(manifest, size_of(self, generation, manifest)) if manifest.kind == STATEFUL_SET else manifest
                for manifest in self.rendered(generation)
            )
        return self._manifests[generation]

    @cached_property
    def standing(self) -> tuple[Manifest, ...]:
        """Objects of the roles that belong to the resource, as they should be now."""
        revision = self.revision(self.active or self.next)
        return (
            () if revision is None else standing_manifests(self, self.kind.renderer.standing(self.resource, revision))
        )

    @cached_property
    def outdated(self) -> list[Pod]:
        """Pods of these roles that are made of a former template, the next to be replaced first."""
        return outdated_pods(self)

    @property
    def storage(self) -> VolumeSpec | None:
        """What the spec says about volumes; None for a kind without any."""
        storage = getattr(self.spec, "storage", None)
        return storage if isinstance(storage, VolumeSpec) else None

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
        may_write = tuple(number for number in numbers if number)
        writers = Writers(may_write, moving=promoting or self.resizing, fence=self.fence)
        return self.kind.renderer.shared(self.resource, writers, self.observed.references)

    @cached_property
    def lost_secrets(self) -> tuple[Manifest, ...]:
        """Those made once for ever that are gone although a generation serves: made now they would hold other keys."""
        if not self.active:
            return ()
        return tuple(
            manifest
            for manifest in self.shared
            if manifest.create_only and find(self.observed.children, manifest.kind, manifest.name) is None
        )

    @cached_property
    def restorable(self) -> tuple[Manifest, ...]:
        """What is gone that nobody can make a second time, as it was seen last."""
        lost = {(manifest.kind, manifest.name) for manifest in self.lost_secrets}
        lost |= {key for key in self.observed.remembered if key[0] == REVISION and self.revision_is_lost}
        return tuple(_as_it_was(body) for key, body in self.observed.remembered.items() if key in lost)

    @property
    def revision_is_lost(self) -> bool:
        """Whether nothing says any more what the active generation is made of."""
        return bool(self.active) and self.revision(self.active) is None

    @property
    def fence(self) -> int:
        """The generation that has the right to write or, from the first irreversible step on, is to get it."""
        moving = self.bootstrap or (self.state is State.PROMOTING and self.irreversible)
        return self.next if moving and self.next else self.active

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
        """Live objects of generations that are not active, without volumes, and without the revisions of generations
        that once were: a user may want to go back to one."""
        former = {entry.generation for entry in self.status.history if entry.result is Result.PROMOTED}
        return [
            child
            for child in self.observed.children
            if child.kind != VOLUME
            and child.generation not in (None, self.active)
            and not (child.kind == REVISION and child.generation in former)
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
        return pods_of_sets(self.manifests(generation))

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

    def ready(self, generation: int) -> bool:
        """Whether every pod of the generation is there and Ready."""
        ready = {pod.name for pod in self.live_pods(generation) if pod.ready}
        expected = self.expected_pods(generation)
        return bool(expected) and ready.issuperset(expected)

    @cached_property
    def streams(self) -> frozenset[str]:
        """Names of the pods that need a stage stream now (docs/specs/operator.md 5.8)."""
        if self.state is State.ABORTING:
            return frozenset()
        if self.state is State.IDLE:
            pods = [
                pod
                for pod in self.live_pods(self.active)
                if pod.stage is not None
                and pod.stage.stage < Stage.READ_WRITE
                and all(blocker.reason != "StateLost" for blocker in pod.stage.blockers)
            ]
        elif self.state in BEFORE_PROMOTION:
            pods = self.live_pods(self.next)
        else:
            pods = [pod for pod in self.observed.pods if not pod.deleting]
        return frozenset(pod.name for pod in pods if pod.address)

    # ---- the size of the active generation

    @cached_property
    def joining(self) -> list[Pod]:
        """Live pods of the active generation that the store, as far as is known, does not count on yet."""
        members = self.facts.members
        counts_on_none = members is not None and not members
        return [] if counts_on_none else [pod for pod in self.live_pods(self.active) if pod.name not in (members or ())]

    def settles_at(self, pod: Pod) -> datetime | None:
        """When the pod will have been within lag for the whole stability period; None while it is not."""
        since = pod.stage.within_lag_since if pod.stage is not None and pod.stage.connected else None
        return since and since + parse_duration(self.spec.rollout.caught_up.stability_period)

    def has_settled(self, pod: Pod) -> bool:
        """Whether the pod has been within lag for the whole stability period."""
        time = self.settles_at(pod)
        return time is not None and time <= self.now

    @cached_property
    def resizing(self) -> bool:
        """Whether the active generation is on its way to the number of pods that the spec asks for."""
        if self.state is not State.IDLE or not self.active or self.spec.suspend:
            return False
        wanted = set(pods_of_sets(self.rendered(self.active)))
        members = self.facts.members
        return (
            self.facts.due is not None
            or differs(self, self.active)
            or (bool(members) and not wanted.issubset(members or ()))
        )

    @cached_property
    def stable_at(self) -> datetime | None:
        """When every pod of n will have been within lag for the whole stability period; None while one is not."""
        pods = {pod.name: pod for pod in self.live_pods(self.next)}
        times = [self.settles_at(pods[name]) if name in pods else None for name in self.expected_pods(self.next)]
        known = [time for time in times if time is not None]
        return max(known) if known and len(known) == len(times) else None

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
        return self.irreversible_recorded or (self.fence_moved and not self.bootstrap)

    @cached_property
    def fence_moved(self) -> bool:
        """Whether the effect of a step that cannot be taken back is seen in the store."""
        return any(step.irreversible and step.name in self.facts.steps_done for step in self.steps)

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


def _as_it_was(body: Mapping[str, Any]) -> Manifest:
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    metadata = {key: value for key, value in body["metadata"].items() if key in kept}
    return Manifest({**body, "metadata": metadata}, create_only=True)


def repair_of(revision: Child) -> int:
    """Which repair of its generation the revision is; 0 = the generation as it was created."""
    return parse_number(revision.annotations.get(REPAIR_ANNOTATION)) or 0
