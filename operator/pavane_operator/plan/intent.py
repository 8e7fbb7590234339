"""What should be there now: the objects of the resource and of its generations (docs/specs/operator.md 2.8, 4)."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pavane_operator.crds.status import State
from pavane_operator.plan.attempt import SERVE, Attempt
from pavane_operator.plan.children import REVISION, STATEFUL_SET, find, pods_of_sets
from pavane_operator.plan.model import COMPONENT_LABEL, Manifest, Pod, Writers
from pavane_operator.plan.sizes import differs, size_of, sized
from pavane_operator.plan.standing import outdated_pods, standing_manifests


class Intent(Attempt):
    """A snapshot, and the objects that it calls for."""

    @cached_property
    def _manifests(self) -> dict[int, tuple[Manifest, ...]]:
        return {}

    def manifests(self, generation: int) -> tuple[Manifest, ...]:
        """The same as it should be now: with as many pods as are possible on the way there."""
        if generation not in self._manifests:
            self._manifests[generation] = tuple(
                sized(manifest, size_of(self, generation, manifest)) if manifest.kind == STATEFUL_SET else manifest
                for manifest in self.rendered(generation)
            )
        return self._manifests[generation]

    def follows(self, manifest: Manifest) -> bool:
        """Whether the pods of a rendered StatefulSet are led by other pods, not by the operator."""
        return manifest.body["metadata"]["labels"].get(COMPONENT_LABEL) in self.kind.followers

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
        return outdated_pods(self, self.standing)

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
    def shared(self) -> tuple[Manifest, ...]:
        """What the resource needs beside its generations and the public Service."""
        promoting = self.state is State.PROMOTING
        numbers = (self.active, self.next) if promoting else (self.active,)
        may_write = tuple(number for number in numbers if number)
        writers = Writers(may_write, moving=(promoting and bool(self.active)) or self.resizing, fence=self.fence)
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

    # ---- the fence and the public Service

    @property
    def fence(self) -> int:
        """The generation that has the right to write or, from the first irreversible step on, is to get it."""
        moving = self.bootstrap or (self.state is State.PROMOTING and self.irreversible)
        return self.next if moving and self.next else self.active

    @cached_property
    def service_target(self) -> int:
        """The generation that the public Service should select: the active one, or n from D10 on, or from a step on
        that serves."""
        opened = self.state is State.PROMOTING and (
            self.serves
            or self.selected == self.next
            or (self.facts.leads and (not self.bootstrap or self.step_name == SERVE))
        )
        return self.next if opened else self.active

    @cached_property
    def service_manifest(self) -> Manifest:
        """The public Service as it should be now."""
        return self.kind.renderer.public_service(self.resource, self.service_target)


def _as_it_was(body: Mapping[str, Any]) -> Manifest:
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    metadata = {key: value for key, value in body["metadata"].items() if key in kept}
    return Manifest({**body, "metadata": metadata}, create_only=True)
