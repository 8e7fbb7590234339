"""A ComputeCluster's fence is in the log (docs/specs/operator.md 3.5)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from pavane.pods import consumers
from pavane.wire.stages import Stage
from pavane_operator.crds.computecluster import ComputeClusterSpec
from pavane_operator.crds.status import State
from pavane_operator.kinds.base import spec_of
from pavane_operator.kinds.computecluster.names import REPLICAS
from pavane_operator.kinds.computecluster.scripts import faults
from pavane_operator.kinds.fenced import FencedPromotion, facts
from pavane_operator.kinds.waltz.leaving import forget
from pavane_operator.plan.children import STATEFUL_SET, find, pods_of_sets
from pavane_operator.plan.model import Facts, Manifest, Observed, OwnCondition, Pod, Problem, Resource


class ComputePromotion(FencedPromotion):
    """Implements `pavane_operator.plan.port.Promotion` for one resource."""

    working = "writes views"

    def own_status(self, resource: Resource, primary: Pod | None) -> dict[str, Any]:
        """Return which log it is."""
        spec = spec_of(resource, ComputeClusterSpec)
        return {"log": spec.waltz_cluster_ref.name}

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        """See `FencedPromotion`; and whether each replica of the active generation computes."""
        spec = spec_of(resource, ComputeClusterSpec)
        # Read here, beside the event loop, so that the plan finds them read.
        await asyncio.to_thread(faults, spec.scripts, spec.partitions.ticks, spec.partitions.views)
        found = await super().observe(resource, observed)
        return replace(found, conditions=(*found.conditions, *_replicated(resource, observed)))

    def told(self, resource: Resource, observed: Observed, own_status: dict[str, Any]) -> Facts:
        """See `told`."""
        return told(resource, observed, own_status, self.working)


def told(resource: Resource, observed: Observed, own_status: dict[str, Any], working: str) -> Facts:
    """What the pods tell of the log, also of a way back."""
    found = facts(resource, observed, own_status, working)
    if resource.status is not None and resource.status.rollout is not None:
        return replace(found, safety=_unread(resource, observed))
    stages = ((pod.generation, pod.stage) for pod in observed.pods if pod.stage is not None and pod.stage.connected)
    writing = {generation for generation, stage in stages if stage.stage is Stage.READ_WRITE}
    return replace(found, removed=_left(observed), undecided=len(writing) > 1 and found.left is None)


async def leave(resource: Resource, observed: Observed) -> None:
    """Let the log no longer wait for it. Raises `WaltzError`."""
    spec = spec_of(resource, ComputeClusterSpec)
    await forget(observed, spec.waltz_cluster_ref.name, consumers.of_views(resource.name))


def _left(observed: Observed) -> frozenset[str]:
    """Pods that are fenced though the log holds no greater number than theirs: the right to write went back."""
    told = ((pod, pod.stage) for pod in observed.pods if pod.stage is not None)
    return frozenset(pod.name for pod, stage in told if stage.done and stage.fence == pod.generation)


def _unread(resource: Resource, observed: Observed) -> Problem | None:
    """Why the right to write cannot go back yet: the former pod must know that it has lost it, and to whom."""
    status = resource.status
    if status is None or status.rollout is None or status.rollout.state is not State.BAKING:
        return None
    active = status.active_generation or 0
    former = ((pod, pod.stage) for pod in observed.pods if pod.generation < active and not pod.follows)
    for pod, stage in former:
        if stage is not None and (stage.stage >= Stage.READ_WRITE or stage.fence != active):
            text = f"pod {pod.name} has not read in the log yet that generation {active} writes"
            return Problem("NotFollowing", text)
    return None


def _replicated(resource: Resource, observed: Observed) -> tuple[OwnCondition, ...]:
    active = resource.status.active_generation if resource.status is not None else None
    live = find(observed.children, STATEFUL_SET, REPLICAS.stateful_set(resource.name, active)) if active else None
    if live is None:
        return ()
    ready = {pod.name for pod in observed.pods if pod.ready and not pod.deleting}
    wanted = pods_of_sets((Manifest(live.body),))
    missing = [name for name in wanted if name not in ready]
    text = f"{len(wanted) - len(missing)} of {len(wanted)} replicas compute the views"
    if not missing:
        return (OwnCondition("Replicated", True, "AllReplicas", text),)
    return (OwnCondition("Replicated", False, "ReplicaMissing", f"{text}, not {' and not '.join(missing)}"),)
