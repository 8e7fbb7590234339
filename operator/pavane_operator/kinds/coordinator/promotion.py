"""How a generation of a Coordinator gets the right to write (docs/specs/operator.md 3.4).

AllowWrites is the fence: the pod writes its generation on the volume that both generations share, and the old one stops
at its next record. The operator cannot read the volume, so what counts is what the pods say of it.
"""

from __future__ import annotations

from datetime import datetime

from pavane.wire.stages import Stage
from pavane_operator.crds.coordinator import CoordinatorSpec
from pavane_operator.kinds.port import PromotionStep
from pavane_operator.plan.model import Facts, Observed, OwnCondition, Pod, Problem, Resource

ALLOW_WRITES = "AllowWrites"
STEPS = (PromotionStep(ALLOW_WRITES, irreversible=True, allow_writes=True),)
BOOTSTRAP_STEPS = (PromotionStep(ALLOW_WRITES, allow_writes=True),)


class CoordinatorPromotion:
    """Implements `pavane_operator.kinds.port.Promotion` for one resource."""

    def __init__(self, namespace: str, name: str, uid: str) -> None:
        """Nothing to open."""

    async def observe(self, resource: Resource, observed: Observed) -> Facts:
        """Judge what the pods say of their stages."""
        return facts(resource, observed)

    async def step(self, name: str, resource: Resource, observed: Observed, at: datetime) -> None:
        """There is no step that the planner does not take itself."""
        raise ValueError(f"Coordinator has no step {name} of its own")

    async def undo(self, generation: int, resource: Resource, observed: Observed) -> None:
        """Nothing to take back: who only replayed has written nothing."""

    async def close(self) -> None:
        """Nothing to close."""


def facts(resource: Resource, observed: Observed) -> Facts:
    """What the pods' words mean; total, also over none."""
    status = resource.status
    active, coming = (status.active_generation, status.next_generation) if status is not None else (None, None)
    pods = [pod for pod in observed.pods if not pod.deleting]
    leading = {pod.generation for pod in pods if _leads(pod)}
    may_write = {pod.generation for pod in observed.pods if _may_write(pod)}
    allowed = coming is not None and any(pod.generation == coming for pod in pods if _may_write(pod))
    down = active and pods and not leading
    spec = resource.spec
    assert isinstance(spec, CoordinatorSpec)  # noqa: S101 - parsed by the kind's model
    return Facts(
        leads=coming is not None and coming in leading,
        safety=None,  # one process and one volume: there is no majority to wait for
        steps_done=frozenset({ALLOW_WRITES}) if allowed else frozenset(),
        fence=max(may_write, default=None),
        down=Problem("ActiveDown", f"the pod of generation {active} does not lead") if down else None,
        members=frozenset(),
        exchange=None,
        settling=bool(down),
        own_status={"instance": spec.instance_name or resource.name},
        conditions=(_writes(leading),) if active else (),
    )


def _may_write(pod: Pod) -> bool:
    return pod.stage is not None and pod.stage.stage is Stage.READ_WRITE


def _leads(pod: Pod) -> bool:
    return _may_write(pod) and pod.stage is not None and bool(pod.stage.leads)


def _writes(leading: set[int]) -> OwnCondition:
    if leading:
        return OwnCondition("WritesAllowed", True, "Leading", f"generation {max(leading)} takes calls")
    return OwnCondition("WritesAllowed", False, "NotLeading", "no pod takes calls now")
