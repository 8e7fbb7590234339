"""A Coordinator's fence is on its volume (docs/specs/operator.md 3.4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pavane.pods import consumers
from pavane.pods.coordinator_settings import VOLUME_FULL
from pavane_operator.crds.coordinator import CoordinatorSpec
from pavane_operator.kinds.base import spec_of
from pavane_operator.kinds.coordinator.names import folder
from pavane_operator.kinds.fenced import ALLOW_WRITES, FencedPromotion
from pavane_operator.kinds.waltz.leaving import forget
from pavane_operator.plan.model import Facts, Observed, OwnCondition, Pod, Resource
from pavane_operator.plan.port import PromotionStep

STEPS = (PromotionStep(ALLOW_WRITES, irreversible=True, allow_writes=True, serves=True),)
"""A takeover is a matter of a tenth of a second, in which callers are refused and come again."""


class CoordinatorPromotion(FencedPromotion):
    """Implements `pavane_operator.plan.port.Promotion` for one resource."""

    working = "takes calls"

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        """Judge what the pods say of their stages, and of the volume."""
        found = await super().observe(resource, observed)
        spec = spec_of(resource, CoordinatorSpec)
        known = spec.log is None and any(pod.stage is not None for pod in observed.pods)
        return replace(found, conditions=(*found.conditions, _room(observed))) if found.conditions and known else found

    def own_status(self, resource: Resource, primary: Pod | None) -> dict[str, Any]:
        """Return under which name others call it, and which pod leads."""
        spec = spec_of(resource, CoordinatorSpec)
        return {"instance": spec.instance_name or resource.name, "primary": primary.name if primary else None}


async def leave(resource: Resource, observed: Observed) -> None:
    """Let the log, if there is one, no longer wait for it. Raises `WaltzError`."""
    spec = spec_of(resource, CoordinatorSpec)
    if spec.log is not None:
        consumer = consumers.of_immortal(folder(resource.name, resource.uid))
        await forget(observed, spec.log.waltz_cluster_ref.name, consumer)


def _room(observed: Observed) -> OwnCondition:
    full = [
        f"{pod.name}: {blocker.message}"
        for pod in observed.pods
        if pod.stage is not None
        for blocker in pod.stage.blockers
        if blocker.reason == VOLUME_FULL
    ]
    return OwnCondition("VolumesHaveRoom", not full, VOLUME_FULL if full else "HasRoom", "; ".join(sorted(full)))
