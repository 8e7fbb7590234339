"""What rows do while a former generation follows, and on the way back to it (docs/specs/operator.md 2.7)."""

from typing import Any

from pavane.wire.stages import Stage
from pavane_operator.crds.status import Failure, Rollout, State, Step
from pavane_operator.plan.effects import Decision, advance_active, unasked
from pavane_operator.plan.model import AdvanceStage, Event
from pavane_operator.plan.questions import words
from pavane_operator.plan.snapshot import RETIRE
from pavane_operator.plan.view import ResourceView


def switch_back(view: ResourceView) -> Decision:
    """E2: a promotion of the former generation, which has caught up already."""
    now = view.now.replace(microsecond=0)
    identity = view.id_of(view.standby)
    rollout = Rollout(state=State.PROMOTING, id=identity, generation=view.standby, started_at=now)
    note = f"generation {view.standby} takes over again from {view.active}"
    changes: dict[str, Any] = {"next_generation": view.standby}
    gate = view.sent_back
    if gate is not None:  # recorded with the way back, so that the spec, which stays as it is, is not tried again
        note = f"{note}: {words(gate)}"
        changes["failed"] = Failure(
            id=view.want, generation=view.active, reason="GateFailed", message=words(gate), at=now
        )
    return Decision(
        rollout=rollout, changes=changes, events=(Event("SwitchingBack", note, gate is not None),), critical=True
    )


def stay(view: ResourceView) -> Decision:
    """C9: the former generation goes on following."""
    promoted = (each.finished_at for each in view.status.history if each.generation == view.active)
    step = Step(name=RETIRE, at=next(promoted, view.now.replace(microsecond=0)))
    rollout = Rollout(state=State.BAKING, id=view.have, generation=view.active, step=step)
    return Decision(rollout=rollout, changes={"next_generation": None}, critical=True)


def bake(view: ResourceView) -> Decision:
    """E4: pods of both generations that restart are led where they were."""
    settings = view.kind.renderer.expected_state(view.resource, view.standby, bootstrap=False)
    restarted = unasked(view, view.standby, Stage.READ_ONLY)
    following = tuple(AdvanceStage(name, view.standby, settings) for name in restarted)
    ends = view.bake_ends if view.bake_ends > view.now else None  # a gate holds it: its next answer wakes us
    return Decision(actions=(*following, *advance_active(view)), wake_at=ends)


def end_bake(view: ResourceView) -> Decision:
    """E3."""
    return Decision(rollout=view.rollout.model_copy(update={"state": State.RETIRING}), critical=True)
