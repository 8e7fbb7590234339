"""The gates before a promotion (docs/specs/operator.md 2.5)."""

from pavane_operator.crds.rollout import Strategy
from pavane_operator.plan.model import Problem
from pavane_operator.plan.view import ResourceView


def closed_gate(view: ResourceView) -> Problem | None:
    """The first closed gate of approval, pause and safety; None when the attempt may be promoted."""
    control = view.spec.rollout
    if control.strategy is Strategy.MANUAL and control.promote != view.next:
        return Problem(
            "WaitingForApproval", f"generation {view.next} has caught up; set spec.rollout.promote to {view.next}"
        )
    if control.paused:
        return Problem("Paused", "set spec.rollout.paused to false to let the attempt go on")
    return view.facts.safety


def may_skip_catching_up(view: ResourceView) -> bool:
    """Whether the attempt is promoted without having caught up (D7): bootstrap, forced, or Immediate."""
    if view.bootstrap:
        return True
    if view.facts.safety is not None:
        return False
    return view.forced or (view.immediate and not view.spec.rollout.paused)
