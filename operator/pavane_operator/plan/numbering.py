"""A status that was lost is rebuilt from what is there (docs/specs/operator.md 2.3)."""

from datetime import datetime

from pavane.wire.stages import Stage
from pavane_operator.crds.status import Rollout, State, Status, Step
from pavane_operator.plan.children import STATEFUL_SET
from pavane_operator.plan.model import parse_time
from pavane_operator.plan.snapshot import RETIRE
from pavane_operator.plan.view import ResourceView


def rebuilt_status(view: ResourceView) -> Status | None:
    """The status that a resource without one must have; None while what is seen does not tell yet.

    Numbers come from objects and fences, the state from which generation the public Service selects and who writes.
    `failed` and `history` are lost.
    """
    if view.facts.undecided:
        return None
    numbers = _generations_with_pods(view)
    fence = _reported_fence(view)
    active = view.selected if view.selected is not None else (fence or 0)
    if fence and any(step.serves for step in view.kind.steps):
        active = min(active, fence)  # the Service goes before the fence
    # Whoever was a member is none that comes: it was left by a way back (2.7).
    left = {view.facts.left, *(pod.generation for pod in view.observed.pods if pod.name in view.facts.removed)}
    above = max((number for number in numbers - left if number > active), default=None)
    status = view.status.model_copy(
        update={"active_generation": active or None, "last_generation": view.highest_number or None}
    )
    if above is None:
        retiring = any(number != active for number in numbers)
        # Then the former generation writes already: it must not be the one that goes.
        went_back = view.has_lost_fence_to_former(active)
        step = Step(name=RETIRE, at=view.now.replace(microsecond=0))
        state = State.BAKING if view.bake or went_back else State.RETIRING
        rollout = (
            Rollout(state=state, id=view.id_of(active), generation=active, step=step)
            if retiring
            else Rollout(state=State.IDLE)
        )
        return status.model_copy(update={"rollout": rollout})
    promoting = _is_promoting(view, active, above)
    if promoting is None:
        return None
    # Whether the store was asked is unknown, so nothing may abort: the last irreversible step counts as recorded.
    last = next((step.name for step in reversed(view.kind.steps) if step.irreversible), None)
    recorded = Step(name=last, at=view.now.replace(microsecond=0)) if promoting and active and last else None
    rollout = Rollout(
        step=recorded,
        state=State.PROMOTING if promoting else State.INITIALIZING,
        id=view.id_of(above),
        generation=above,
        started_at=_created(view, above),
    )
    return status.model_copy(update={"next_generation": above, "rollout": rollout})


def _generations_with_pods(view: ResourceView) -> set[int]:
    numbers = {pod.generation for pod in view.observed.pods}
    return numbers | {
        child.generation
        for child in view.observed.children
        if child.kind == STATEFUL_SET and child.generation is not None
    }


def _reported_fence(view: ResourceView) -> int | None:
    fences = [view.facts.fence, *(pod.stage.fence for pod in view.observed.pods if pod.stage)]
    return max((fence for fence in fences if fence is not None), default=None)


def _is_promoting(view: ResourceView, active: int, above: int) -> bool | None:
    """Whether the generation above the active one may already have written; None while nobody answers."""
    stages = [pod.stage for pod in view.live_pods(above)]
    if view.selected == above:
        return True
    if any(stage is not None and stage.stage is Stage.READ_WRITE for stage in stages):
        return True
    fence = _reported_fence(view)
    if fence is not None:
        return fence >= above
    if active:
        return None
    return False if all(stage is not None for stage in stages) else None


def _created(view: ResourceView, generation: int) -> datetime:
    revision = view.revision(generation)
    created = parse_time(revision.body["metadata"].get("creationTimestamp")) if revision else None
    return created or view.now.replace(microsecond=0)
