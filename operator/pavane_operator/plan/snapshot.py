"""What is there: the resource, its objects and its pods, and what follows from them (docs/specs/operator.md 2)."""

from datetime import datetime, timedelta
from functools import cached_property

from pavane_operator.crds.common import VolumeSpec, rollout_id
from pavane_operator.crds.status import SERVED, Condition, Rollout, State, Status, Truth
from pavane_operator.crds.values import parse_duration
from pavane_operator.plan.children import REVISION, SERVICE, STATEFUL_SET, VOLUME, find
from pavane_operator.plan.model import (
    DELETE_IN_USE_ANNOTATION,
    FINALIZER,
    GENERATION_LABEL,
    IN_USE,
    LAST_GENERATION_ANNOTATION,
    PAUSE_ANNOTATION,
    REPAIR_ANNOTATION,
    ROLLOUT_ID_ANNOTATION,
    SKIP_FINALIZER_ANNOTATION,
    UID_LABEL,
    Child,
    Manifest,
    Observed,
    Pod,
    Resource,
    Settings,
    parse_number,
)
from pavane_operator.plan.port import Kind

RETIRE = "Retire"
"""Recorded with `Baking` and `Retiring`; its time is when the old generation lost the fence."""

BEFORE_PROMOTION = frozenset({State.CREATING_NEXT, State.INITIALIZING, State.CATCHING_UP, State.CAUGHT_UP})


class ResourceSnapshot:
    """What is there: the resource, its status and what was observed. Attributes are worked out when first asked."""

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

    # ---- identities

    @cached_property
    def want(self) -> str:
        """Rollout id of the spec: that of the values as written where a generation of release 0.1.0 has it."""
        usual = rollout_id(self.kind.name, self.spec)
        written = rollout_id(self.kind.name, self.spec, as_written=True)
        failed = self.status.failed
        known = (self.have, self.rollout.id, failed.id if failed is not None else None, self.id_of(self.standby))
        return written if written in known and usual != self.have else usual

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
            self.facts.left,
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

    @property
    def failed_before(self) -> bool:
        """Whether the spec failed, and nobody has asked to try it again."""
        failed = self.status.failed
        return failed is not None and self.want == failed.id and self.spec.rollout.retry != failed.generation

    @property
    def reconciliation_paused(self) -> bool:
        """Whether an annotation stops all work but observing (A2)."""
        return self.resource.annotations.get(PAUSE_ANNOTATION) == "true" and self.state is not State.PROMOTING

    @cached_property
    def users(self) -> tuple[str, ...]:
        """Resources whose references hold up the deletion; empty = it is not being deleted, or goes."""
        annotations = self.resource.annotations
        forced = "true" in (annotations.get(DELETE_IN_USE_ANNOTATION), annotations.get(SKIP_FINALIZER_ANNOTATION))
        held = self.resource.deleted_at is not None and FINALIZER in self.resource.finalizers and not forced
        return self.observed.users or () if held and self.release is None else ()

    @property
    def release(self) -> Condition | None:
        """The recorded condition that nothing holds up the deletion; None before."""
        return release_of(self.status)

    @property
    def leaving(self) -> bool:
        """Whether the resource is being deleted, and nothing holds that up."""
        return self.resource.deleted_at is not None and not self.users

    @property
    def before_promotion(self) -> bool:
        """Whether an attempt is under way that may still be given up."""
        return self.state in BEFORE_PROMOTION

    # ---- the way back (2.7)

    @cached_property
    def bake(self) -> timedelta:
        """How long a former generation follows the one that replaced it."""
        return parse_duration(self.spec.rollout.bake or "0s")

    @cached_property
    def standby(self) -> int:
        """The former generation that follows while the active one bakes; 0 = there is none."""
        sets = (child for child in self.observed.children if child.kind == STATEFUL_SET and not child.deleting)
        former = (child.generation or 0 for child in sets if (child.generation or 0) < self.active)
        return max(former, default=0) if self.state is State.BAKING or self.fence_went_back else 0

    @property
    def switching_back(self) -> bool:
        """Whether the right to write goes back to the former generation."""
        return self.state is State.PROMOTING and 0 < self.next < self.active

    @property
    def is_left(self) -> bool:
        """Whether a gate has sent the right to write back: the spec is still that of the generation that is left."""
        return self.failed_before and self.status.failed is not None and self.status.failed.generation == self.active

    def has_lost_fence_to_former(self, generation: int) -> bool:
        """Whether the store has given the right to write of this generation back to a former one; where it is members,
        by the word of both."""
        if self.facts.left is not None:
            return generation == self.facts.left and (self.facts.fence or 0) < generation
        members = self.facts.members or ()
        counted = {pod.generation for pod in self.observed.pods if pod.name in members}
        removed = {pod.generation for pod in self.observed.pods if pod.name in self.facts.removed}
        return bool(counted) and max(counted) < generation and generation in removed

    @property
    def fence_went_back(self) -> bool:
        """Whether the former generation has the right to write already: the status was lost on the way back."""
        return self.state in (State.BAKING, State.RETIRING) and self.has_lost_fence_to_former(self.active)

    @property
    def bake_ends(self) -> datetime:
        """When the former generation may go."""
        return (self.rollout.step.at if self.rollout.step else self.now) + self.bake

    # ---- objects

    def revision(self, generation: int) -> Child | None:
        """The revision of a generation: that of its last repair, if it was ever repaired."""
        name = f"{self.resource.name}-g{generation}"
        revisions = [
            child
            for child in self.observed.children
            if child.kind == REVISION
            and (child.name == name or (child.name.startswith(f"{name}-r") and child.generation == generation))
        ]
        return max(revisions, key=repair_of, default=None)

    @property
    def revision_is_lost(self) -> bool:
        """Whether nothing says any more what the active generation is made of."""
        return bool(self.active) and self.revision(self.active) is None

    def rendered(self, generation: int) -> tuple[Manifest, ...]:
        """What the spec asks for a generation beside its revision; nothing while the revision is missing."""
        if generation not in self._rendered:
            revision = self.revision(generation)
            found = () if revision is None else self.kind.renderer.generation(self.resource, revision)
            self._rendered[generation] = found
        return self._rendered[generation]

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

    @property
    def unpromoted_volumes(self) -> list[Child]:
        """Those of generations that certainly never had the right to write: they hold copies at best."""
        never = {entry.generation for entry in self.status.history if entry.result not in SERVED}
        if self.state is not State.PROMOTING:
            never.add(self.next)
        return [volume for volume in self.volumes if volume.generation in never - {self.active}]

    def objects(self, generation: int) -> list[Child]:
        """Live objects of one generation, without volumes."""
        return [child for child in self.observed.children if child.kind != VOLUME and child.generation == generation]

    @cached_property
    def foreign_objects(self) -> list[Child]:
        """Live objects of generations that are not active, without volumes, and without the revisions of generations
        that once were: a user may want to go back to one."""
        former = {entry.generation for entry in self.status.history if entry.result in SERVED}
        return [
            child
            for child in self.observed.children
            if child.kind != VOLUME
            and child.generation not in (None, self.active)
            and not (child.kind == REVISION and child.generation in former)
        ]

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

    # ---- pods

    def pods(self, generation: int) -> list[Pod]:
        """All pods of a generation, also those that are going."""
        return [pod for pod in self.observed.pods if pod.generation == generation]

    def live_pods(self, generation: int) -> list[Pod]:
        """Pods of a generation that the operator leads and that are not being deleted."""
        return [pod for pod in self.running_pods(generation) if not pod.follows]

    def running_pods(self, generation: int) -> list[Pod]:
        """The same, and those that they lead."""
        return [pod for pod in self.pods(generation) if not pod.deleting]


def release_of(status: Status | None) -> Condition | None:
    """The condition that lets the deletion go ahead: recorded first, so that a later referrer does not stop it."""
    found = (each for each in (status.conditions if status is not None else ()) if each.type == IN_USE)
    return next((each for each in found if each.status is Truth.FALSE), None)


def repair_of(revision: Child) -> int:
    """Which repair of its generation the revision is; 0 = the generation as it was created."""
    return parse_number(revision.annotations.get(REPAIR_ANNOTATION)) or 0
