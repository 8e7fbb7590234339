"""How a generation whose pods settle who leads gets the right to write: the operator cannot see the fence (3.4, 3.5).

AllowWrites is the fence: the pod writes its generation where the old one finds it before its next write, for example on
a volume that both mount. What counts is what the pods say of it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from pavane.wire.stages import Stage
from pavane_operator.plan.model import Facts, Observed, OwnCondition, Pod, Problem, Resource
from pavane_operator.plan.port import PromotionStep

ALLOW_WRITES = "AllowWrites"
STEPS = (PromotionStep(ALLOW_WRITES, irreversible=True, allow_writes=True),)
BOOTSTRAP_STEPS = (PromotionStep(ALLOW_WRITES, allow_writes=True),)


class FencedPromotion:
    """Implements `pavane_operator.plan.port.Promotion` for one resource."""

    working: ClassVar[str]
    """What the pod that leads does, for a condition."""

    def __init__(self, namespace: str, name: str, uid: str) -> None:
        """Nothing to open."""

    def own_status(self, resource: Resource, primary: Pod | None) -> dict[str, Any]:
        """Return what the status has of this kind alone; ``primary`` is the pod that leads."""
        raise NotImplementedError

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        """Judge what the pods say of their stages."""
        leading = [pod for pod in observed.pods if _leads(pod) and not pod.deleting]
        primary = max(leading, key=lambda pod: pod.generation, default=None)
        return self.told(resource, observed, self.own_status(resource, primary))

    def told(self, resource: Resource, observed: Observed, own_status: dict[str, Any]) -> Facts:
        """Return what the pods tell."""
        return facts(resource, observed, own_status, self.working)

    async def step(self, name: str, resource: Resource, observed: Observed, at: datetime) -> None:
        """There is no step that the planner does not take itself."""
        raise ValueError(f"{resource.kind} has no step {name} of its own")

    async def undo(self, generation: int, resource: Resource, observed: Observed) -> None:
        """Nothing to take back: a pod that only replayed has written nothing."""

    async def close(self) -> None:
        """Nothing to close."""


def facts(resource: Resource, observed: Observed, own_status: dict[str, Any], working: str) -> Facts:
    """What the pods' words mean; total, also over none."""
    status = resource.status
    active, coming = (status.active_generation, status.next_generation) if status is not None else (None, None)
    pods = [pod for pod in observed.pods if not pod.deleting]
    leading = {pod.generation for pod in pods if _leads(pod)}
    may_write = {pod.generation for pod in observed.pods if _may_write(pod)}
    # Who took the right to write back sees in the store the greater number of the generation that it was taken from.
    left, holder = max(((seen(pod), pod.generation) for pod in pods if _leads(pod) and _took_back(pod)), default=(0, 0))
    may_write = {number for number in may_write if number > left or number == holder}
    back = bool(active and coming and coming < active)
    allowed = coming is not None and any(pod.generation == coming for pod in pods if _may_write(pod))
    down = active and pods and not leading
    return Facts(
        leads=coming is not None and coming in leading and (not back or left == active),
        safety=None,  # one writer and one volume: there is no majority to wait for
        steps_done=frozenset({ALLOW_WRITES}) if allowed and (not back or left == active) else frozenset(),
        fence=max(may_write, default=None),
        left=left or None,
        down=Problem("ActiveDown", _why_nobody(active, pods)) if active and down else None,
        members=frozenset(),
        exchange=None,
        settling=bool(down),
        own_status=own_status,
        conditions=(_writes(leading, working),) if active else (),
    )


def _why_nobody(active: int, pods: list[Pod]) -> str:
    """Say that nobody leads, and what the pods themselves say that they wait for."""
    told = [
        f"{pod.name}: {blocker.message}"
        for pod in pods
        if pod.generation == active and pod.stage is not None
        for blocker in pod.stage.blockers
    ]
    return "; ".join([f"no pod of generation {active} leads", *told])


def _may_write(pod: Pod) -> bool:
    return pod.stage is not None and pod.stage.stage is Stage.READ_WRITE


def _leads(pod: Pod) -> bool:
    return _may_write(pod) and pod.stage is not None and bool(pod.stage.leads)


def seen(pod: Pod) -> int:
    """The greatest number of a generation in the store, as far as the pod has told one."""
    return (pod.stage.fence if pod.stage is not None else None) or 0


def _took_back(pod: Pod) -> bool:
    return seen(pod) > pod.generation


def _writes(leading: set[int], working: str) -> OwnCondition:
    if leading:
        return OwnCondition("WritesAllowed", True, "Leading", f"generation {max(leading)} {working}")
    return OwnCondition("WritesAllowed", False, "NotLeading", f"no pod {working} now")
