"""The gates before a promotion, or a way back (docs/specs/operator.md 2.5)."""

from pavane_operator.crds.rollout import Strategy
from pavane_operator.plan.model import Problem
from pavane_operator.plan.questions import words
from pavane_operator.plan.view import ResourceView
from pavane_operator.plan.windows import window_problem


def closed_gate(view: ResourceView) -> Problem | None:
    """The first closed gate of approval, pause, windows, the spec's own and safety; None = it may be promoted."""
    control = view.spec.rollout
    if control.strategy is Strategy.MANUAL and control.promote != view.next:
        return Problem(
            "WaitingForApproval", f"generation {view.next} has caught up; set spec.rollout.promote to {view.next}"
        )
    if control.paused:
        return Problem("Paused", "set spec.rollout.paused to false to let the attempt go on")
    if view.outside_window:
        return outside_problem(view)
    return gate_problem(view) or view.facts.safety


def outside_problem(view: ResourceView) -> Problem:
    """What an attempt waits for outside of its windows."""
    return Problem(view.window_reason, f"generation {view.next} waits for its window, {_opening(view)}")


def _opening(view: ResourceView) -> str:
    if view.window_opens is not None:
        return f"which opens at {view.window_opens:%F %R} UTC"
    problem = window_problem(view.spec.rollout.windows, view.now)
    return f"which never opens: {problem.message}" if problem is not None else "which never opens"


def gate_problem(view: ResourceView) -> Problem | None:
    """Which gate of the spec has not passed, the worst of them; None = all have, or none is asked."""
    closed = view.closed_gates
    return Problem(f"Gate{closed[0].verdict}", words(closed[0])) if closed else None


def switch_back_problem(view: ResourceView) -> Problem | None:
    """What keeps the right to write from going back to the former generation now; None = nothing (2.7)."""
    if view.spec.rollout.paused:
        return Problem("Paused", "spec.rollout.paused is true")
    pods = {pod.name: pod for pod in view.live_pods(view.standby)}
    expected = view.expected_pods(view.standby)
    if not expected:
        return Problem("NoStandby", "the former generation is gone")
    for name in expected:
        pod = pods.get(name)
        if pod is None or not pod.scheduled:
            return Problem("PodNotScheduled", f"pod {name} of the former generation has no node")
        if view.settles_at(pod) is None or (pod.stage is not None and pod.stage.done):
            return Problem("NotFollowing", f"pod {name} of the former generation does not follow")
    return view.facts.safety


def may_skip_catching_up(view: ResourceView) -> bool:
    """Whether the attempt is promoted without having caught up (D7): bootstrap, forced, or Immediate."""
    if view.bootstrap:
        return True
    if view.facts.safety is not None:
        return False
    return view.forced or (view.immediate and not view.spec.rollout.paused and not view.outside_window)
