"""Conditions of a resource (docs/specs/operator.md 2.9)."""

from dataclasses import dataclass, replace

from pavane_operator.crds.status import Condition, Rollout, State, Status, Truth, condition_of
from pavane_operator.plan.attempt import NEVER_OPENS
from pavane_operator.plan.blockers import BEYOND_REPAIR, HANDING_OVER, WRITE_STOP_LIMIT, active_down, cause
from pavane_operator.plan.gates import gate_problem, outside_problem, switch_back_problem
from pavane_operator.plan.model import CAN_SWITCH_BACK, DELETE_IN_USE_ANNOTATION, IN_USE, TEMPLATE_DRIFT, Problem
from pavane_operator.plan.snapshot import BEFORE_PROMOTION
from pavane_operator.plan.view import ResourceView
from pavane_operator.plan.volumes import CANNOT_GROW, RESIZING, growth_problem
from pavane_operator.plan.windows import window_problem


@dataclass(frozen=True, slots=True)
class _Verdict:
    truth: Truth
    reason: str
    message: str = ""


def conditions(view: ResourceView, status: Status) -> list[Condition]:
    """All conditions for the status that the plan decided."""
    rollout = status.rollout or Rollout(state=State.IDLE)
    suspended = view.spec.suspend and rollout.state is State.IDLE
    down = None if suspended else _down(view, status, rollout)
    verdicts = {
        "Ready": _ready(status, down, suspended=suspended),
        "UpToDate": _up_to_date(view, status, rollout),
        "CaughtUp": _caught_up(view, status, rollout),
        "Paused": _paused(view, status, rollout),
    }
    grows = growth_problem(view)
    stalled = _stalled(view, status, rollout, down)
    if stalled is None and grows is not None and grows.reason == CANNOT_GROW:
        stalled = _Verdict(Truth.TRUE, grows.reason, grows.message)
    if stalled is not None:
        verdicts["Stalled"] = stalled
    if down is not None and down.reason not in BEYOND_REPAIR:
        verdicts["Reconciling"] = _Verdict(Truth.TRUE, down.reason, down.message)
    elif rollout.state is not State.IDLE and not (rollout.state is State.BAKING and _applied(view, status)):
        verdicts["Reconciling"] = _Verdict(Truth.TRUE, rollout.state.value)
    elif view.unrepaired or view.resizing:
        verdicts["Reconciling"] = _Verdict(Truth.TRUE, "Repairing" if view.unrepaired else "Scaling")
    elif view.outdated and rollout.state is State.IDLE:
        verdicts["Reconciling"] = _Verdict(Truth.TRUE, "Replacing", f"{len(view.outdated)} pods have a former template")
    elif verdicts["UpToDate"].reason == "ReferenceNotReady":
        verdicts["Reconciling"] = replace(verdicts["UpToDate"], truth=Truth.TRUE)
    elif grows is not None and grows.reason == RESIZING:
        verdicts["Reconciling"] = _Verdict(Truth.TRUE, grows.reason, grows.message)
    elif stalled is None and view.observed.failure is not None:
        verdicts["Reconciling"] = _Verdict(Truth.TRUE, view.observed.failure.reason, view.observed.failure.message)
    if rollout.state is view.state is State.BAKING:
        verdicts[CAN_SWITCH_BACK] = _can_switch_back(view)
    if view.users:
        text = f"{', '.join(view.users)} refers to it: delete that first, or set annotation {DELETE_IN_USE_ANNOTATION}"
        verdicts[IN_USE] = _Verdict(Truth.TRUE, "Referenced", f'{text}="true" to give it up')
    elif view.resource.deleted_at is not None:
        verdicts[IN_USE] = _Verdict(Truth.FALSE, "Released")
    if view.drifted:
        verdicts[TEMPLATE_DRIFT] = _Verdict(
            Truth.TRUE,
            "ChangedByHand",
            f"somebody changed the pod template of StatefulSet {', '.join(view.drifted)}: pods that start are made of "
            "that. Delete it with --cascade=orphan: the operator makes it again as it was, and the pods stay",
        )
    for own in view.facts.conditions:
        truth = Truth.UNKNOWN if own.status is None else Truth.TRUE if own.status else Truth.FALSE
        verdicts[own.type] = _Verdict(truth, own.reason, own.message)
    return [_condition(view, name, verdict) for name, verdict in verdicts.items()]


def _can_switch_back(view: ResourceView) -> _Verdict:
    """Whether the former generation could take over now, until when, and what it costs."""
    problem = switch_back_problem(view)
    if problem is not None:
        return _Verdict(Truth.FALSE, problem.reason, problem.message)
    pods = len(view.pods(view.standby))
    volumes = sum(volume.generation == view.standby for volume in view.volumes)
    text = f"generation {view.standby} follows with {pods} pods and {volumes} volumes until {view.bake_ends:%F %T} UTC"
    return _Verdict(Truth.TRUE, "Following", f"{text}; a spec that goes back to it takes one hand-over")


def _condition(view: ResourceView, name: str, verdict: _Verdict) -> Condition:
    return condition_of(
        view.status.conditions,
        name,
        verdict.truth,
        verdict.reason,
        verdict.message,
        generation=view.resource.metadata_generation,
        now=view.now,
    )


def _down(view: ResourceView, status: Status, rollout: Rollout) -> Problem | None:
    """Why the active generation takes no writes, once that counts."""
    down = active_down(view, status.active_generation or 0)
    if down is None or rollout.state is not State.PROMOTING:
        return down
    known = (blocker.since for blocker in rollout.blockers if blocker.reason in (down.reason, HANDING_OVER))
    since = min(known, default=view.now)
    return down if view.now - since > WRITE_STOP_LIMIT else None


def _ready(status: Status, down: Problem | None, *, suspended: bool) -> _Verdict:
    if suspended:
        return _Verdict(Truth.FALSE, "Suspended", "spec.suspend is true; the volumes are kept")
    if not status.active_generation:
        return _Verdict(Truth.FALSE, "Bootstrapping", "there is no active generation yet")
    if down is not None:
        return _Verdict(Truth.FALSE, down.reason, down.message)
    return _Verdict(Truth.TRUE, "Serving", f"generation {status.active_generation} serves")


def _applied(view: ResourceView, status: Status) -> bool:
    return view.want == view.id_of(status.active_generation or 0)


def _up_to_date(view: ResourceView, status: Status, rollout: Rollout) -> _Verdict:
    state = rollout.state
    if state is State.IDLE:
        return _up_to_date_in_idle(view, status)
    if state is State.RETIRING and view.failed_before:
        return _up_to_date_in_idle(view, status)
    if state is State.RETIRING or (state is State.BAKING and _applied(view, status)):
        return _Verdict(Truth.TRUE, "Applied")
    if state is State.BAKING:
        return _Verdict(Truth.UNKNOWN, "Applying", cause(rollout).removeprefix("; "))
    if state in (State.PROMOTING, State.ABORTING):
        return _Verdict(Truth.UNKNOWN, state.value, rollout.message or "")
    if (never := _never_opens(view, rollout)) is not None:
        return _Verdict(Truth.FALSE, never.reason, never.message)
    if view.deadline_passed:
        text = f"generation {rollout.generation} is not ready in time{cause(rollout)}"
        return _Verdict(Truth.UNKNOWN, "DeadlineExceeded", text)
    held = view.held_reason if state is State.CAUGHT_UP else None
    gate = gate_problem(view) if state is view.state is State.CAUGHT_UP else None
    if held is None and gate is not None:
        return _Verdict(Truth.UNKNOWN, gate.reason, gate.message)
    return _Verdict(Truth.UNKNOWN, held or "Applying", f"generation {rollout.generation} is being rolled out")


def _never_opens(view: ResourceView, rollout: Rollout) -> Problem | None:
    """What is wrong with the windows of an attempt that none of them will let through."""
    if rollout.state not in BEFORE_PROMOTION or view.held_reason != NEVER_OPENS:
        return None
    return window_problem(view.spec.rollout.windows, view.now) or outside_problem(view)


def _up_to_date_in_idle(view: ResourceView, status: Status) -> _Verdict:
    failure = view.observed.failure
    if failure is not None and failure.rejected:  # what is live cannot be applied; an attempt is aborted for it
        return _Verdict(Truth.FALSE, failure.reason, f"the API server refuses it: {failure.message}")
    applied = _applied(view, status)
    if view.spec.suspend and not applied:
        return _Verdict(Truth.FALSE, "Suspended", "set spec.suspend to false to start the rollout")
    if view.problems:  # of what is live too, although nothing is to be rolled out
        return _Verdict(Truth.FALSE, view.problems[0].reason, view.problems[0].message)
    failed = None if applied else status.failed
    if failed is not None and failed.id == view.want and view.spec.rollout.retry != failed.generation:
        hint = f"change the spec, or set spec.rollout.retry to {failed.generation}"
        return _Verdict(Truth.FALSE, failed.reason, f"generation {failed.generation}: {failed.message}; {hint}")
    if applied and view.revision_is_lost and not view.restorable:
        text = f"ControllerRevision {view.resource.name}-g{view.active}, what the pods are made of, is gone"
        hint = "they can neither be scaled nor restored; change spec.rollout.restart to roll out new ones"
        return _Verdict(Truth.FALSE, "RevisionLost", f"{text}: {hint}")
    window = window_problem(view.spec.rollout.windows, view.now)
    if window is not None:  # told before somebody waits for it; it holds up nothing else
        return _Verdict(Truth.FALSE, window.reason, window.message)
    if applied:
        return _Verdict(Truth.TRUE, "Applied")
    if view.spec.rollout.paused:
        return _Verdict(Truth.FALSE, "Paused", "set spec.rollout.paused to false to start the rollout")
    return _Verdict(Truth.UNKNOWN, "Applying", "a rollout starts")


def _caught_up(view: ResourceView, status: Status, rollout: Rollout) -> _Verdict:
    if rollout.state is State.IDLE:
        if view.spec.suspend:
            return _Verdict(Truth.UNKNOWN, "Suspended")
        if _applied(view, status):
            return _Verdict(Truth.TRUE, "Applied")
        failed = status.failed is not None and status.failed.id == view.want
        return _Verdict(Truth.FALSE if failed else Truth.UNKNOWN, "NoAttempt")
    if rollout.state in (State.CAUGHT_UP, State.PROMOTING, State.BAKING, State.RETIRING) and not view.deadline_passed:
        return _Verdict(Truth.TRUE, "CaughtUp")
    first = next((blocker.reason for blocker in rollout.blockers), rollout.state.value)
    return _Verdict(Truth.FALSE, first)


def _paused(view: ResourceView, status: Status, rollout: Rollout) -> _Verdict:
    if view.reconciliation_paused:
        return _Verdict(
            Truth.TRUE, "ReconciliationPaused", "remove annotation pavane.dev/pause-reconciliation to go on"
        )
    held_back = rollout.state is State.IDLE and not _applied(view, status)
    if view.spec.rollout.paused and (held_back or rollout.state is State.CAUGHT_UP):
        return _Verdict(Truth.TRUE, "Paused", "spec.rollout.paused is true")
    return _Verdict(Truth.FALSE, "NotPaused")


def _stalled(view: ResourceView, status: Status, rollout: Rollout, down: Problem | None) -> _Verdict | None:
    if down is not None and down.reason in BEYOND_REPAIR:
        return _Verdict(Truth.TRUE, down.reason, down.message)
    if (never := _never_opens(view, rollout)) is not None:
        return _Verdict(Truth.TRUE, never.reason, never.message)
    if rollout.state in BEFORE_PROMOTION and view.deadline_passed:
        return _Verdict(Truth.TRUE, "DeadlineExceeded", f"generation {rollout.generation} keeps trying{cause(rollout)}")
    if rollout.state is not State.IDLE:
        return None
    verdict = _up_to_date_in_idle(view, status)
    if verdict.truth is not Truth.FALSE or verdict.reason in ("Paused", "ReferenceNotReady", "Suspended"):
        return None
    return _Verdict(Truth.TRUE, verdict.reason, verdict.message)
