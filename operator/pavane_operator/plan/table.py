"""The transition table as data (docs/specs/operator.md 2.4).

Rows are tried from the top, the first that matches decides; their names are those of the specification. A3 stands in
the planner, before there is anything to look at. C1 to C5 and C7 are one row with several reasons. C0 is part of
their condition, C8 shows in the conditions of the status: neither decides anything.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pavane.wire.stages import Stage
from pavane_operator.crds.rollout import OnDeadline, parse_repair
from pavane_operator.crds.status import State
from pavane_operator.plan import baking, effects
from pavane_operator.plan.blockers import cause, image_pull_overdue
from pavane_operator.plan.effects import Decision
from pavane_operator.plan.gates import closed_gate, may_skip_catching_up, switch_back_problem
from pavane_operator.plan.model import FINALIZER, Problem
from pavane_operator.plan.questions import words
from pavane_operator.plan.sizes import differs, is_stopped
from pavane_operator.plan.snapshot import BEFORE_PROMOTION, repair_of
from pavane_operator.plan.view import ResourceView

ANY = frozenset(State)
IDLE = frozenset({State.IDLE})
BAKING = frozenset({State.BAKING})
RETIRING = frozenset({State.RETIRING})
REVERSIBLE = BEFORE_PROMOTION | {State.PROMOTING}


@dataclass(frozen=True, slots=True)
class Row:
    """One row: where it applies, when it matches, what it does."""

    name: str
    states: frozenset[State]
    matches: Callable[[ResourceView], bool]
    effect: Callable[[ResourceView], Decision]
    meaning: str
    """For the diagram and for people."""
    to: State | None = None
    """The state it leads to; None = the same."""

    @property
    def always(self) -> bool:
        """Whether it matches whatever is seen, so that no row below it is ever reached in its states."""
        return self.matches is _always


def interrupt(view: ResourceView) -> Problem | None:
    """Why the attempt is to be aborted (C1-C5, C7); in Promoting only while it can be undone."""
    if view.state is State.PROMOTING and view.irreversible:
        return None
    if view.spec.rollout.abort == view.next:
        return Problem("Cancelled", "spec.rollout.abort names it")
    if view.want == view.have:
        return Problem("Reverted", "the spec is that of the active generation again")
    if view.want != view.rollout.id:
        return Problem("Superseded", "the spec has changed")
    if view.state is not State.CREATING_NEXT and view.revision(view.next) is None:
        return Problem("Superseded", "its revision is gone, so the spec of its pods is unknown")
    if view.bootstrap and effects.is_resized(view):
        return Problem("Superseded", "spec.replicas has changed before the first generation served")
    if _repair_waits(view):
        return Problem("Superseded", "the active generation must be repaired first")
    if view.fence_too_low is not None:
        return Problem("Superseded", f"generation {view.fence_too_low} holds the fence in the store")
    if view.spec.suspend and view.before_promotion:
        return Problem("Suspended", "spec.suspend is true")
    failed = _failure(view)
    if failed is not None:
        return failed
    if view.deadline_passed and view.spec.rollout.on_deadline is OnDeadline.ABORT:
        return Problem("DeadlineExceeded", f"it was not ready within {view.spec.rollout.deadline}{cause(view.rollout)}")
    return None


def _repair_waits(view: ResourceView) -> bool:
    """Whether row B2 would match in Idle: an active generation that crashes lets nobody catch up."""
    return view.before_promotion and _repair_is_due(view)


def _repair_is_due(view: ResourceView) -> bool:
    named = parse_repair(view.spec.rollout.repair)
    if named is None or named[0] != view.active:
        return False
    revision = view.revision(view.active)
    return revision is not None and repair_of(revision) < named[1] and not view.ready(view.active)


def _repairable(view: ResourceView) -> bool:
    """B2 waits for the pods that it replaces; in Promoting everything else goes on meanwhile."""
    if view.repair is None or view.problems:
        return False
    if view.state is State.PROMOTING:
        return bool(view.repair_is_new or view.unrepaired) and bool(effects.repair_actions(view))
    return view.repair_is_new or bool(view.unrepaired)


def _failure(view: ResourceView) -> Problem | None:
    limit = view.spec.rollout.crash_limit
    for pod in view.running_pods(view.next):
        if limit and pod.restarts > limit:
            last = f"last with {pod.ended}" if pod.ended else "see its logs"  # which are gone with the pod
            return Problem("CrashLoop", f"pod {pod.name} restarted {pod.restarts} times; {last}")
    overdue = image_pull_overdue(view)
    if overdue is not None:
        return Problem("ImagePull", f"pod {overdue.pod}: {overdue.message}")
    failure = view.observed.failure
    if failure is not None and failure.rejected and view.state is State.CREATING_NEXT:
        return Problem("Rejected", failure.message)
    gate = view.failed_gate
    return None if gate is None else Problem("GateFailed", words(gate))


def _abort(view: ResourceView) -> Decision:
    found = interrupt(view) or Problem("Cancelled")
    return effects.abort(view, found.reason, message=found.message)


def _goes_back(view: ResourceView) -> bool:
    wanted = view.want != view.have and view.want == view.id_of(view.standby)
    return view.fence_went_back or ((wanted or view.sent_back is not None) and switch_back_problem(view) is None)


def _bake_is_over(view: ResourceView) -> bool:
    """Whether its time is over, or something comes first that both generations would be in the way of."""
    changed = view.want not in (view.have, view.id_of(view.standby))
    return (
        (view.now >= view.bake_ends and not view.closed_gates)
        or not view.standby
        or view.spec.suspend
        or (changed and not view.spec.rollout.paused and not view.problems)
        or differs(view, view.active)
        or view.facts.due is not None
        or _repair_is_due(view)
    )


def _retirement_due(view: ResourceView) -> bool:
    return any(pod.generation != view.active for pod in view.observed.pods) or bool(view.foreign_objects)


def _next_objects_left(view: ResourceView) -> bool:
    return (
        bool(view.objects(view.next))
        or bool(view.pods(view.next))
        or any(volume.generation == view.next for volume in view.volumes)
    )


def _service_leads_to_next(view: ResourceView) -> bool:
    ready = {pod.name for pod in view.live_pods(view.next)} & view.observed.service_pods
    return view.selected == view.next and bool(ready)


def _always(_view: ResourceView) -> bool:
    return True


def _wait(_view: ResourceView) -> Decision:
    return Decision()


TABLE: tuple[Row, ...] = (
    Row("A1", ANY, lambda view: view.leaving, effects.delete, "it is being deleted, and nobody refers to it"),
    Row(
        "A2",
        ANY - {State.PROMOTING},
        lambda view: view.reconciliation_paused,
        effects.only_observe,
        "annotation pause-reconciliation",
    ),
    Row("A4", ANY, lambda view: FINALIZER not in view.resource.finalizers, effects.add_finalizer, "finalizer missing"),
    # ---- Idle
    Row("B1", IDLE, lambda view: view.spec.suspend, effects.suspend, "suspended"),
    Row("B2", IDLE | {State.PROMOTING}, _repairable, effects.repair_in_place, "a repair of its pods is requested"),
    Row("B3", IDLE, lambda view: view.want == view.have, effects.steady, "the spec is that of the active generation"),
    Row("B4", IDLE, lambda view: bool(view.problems), effects.upkeep, "the spec cannot be rolled out"),
    Row("B5", IDLE, lambda view: view.failed_before, effects.upkeep, "the spec failed before"),
    Row("B6", IDLE, lambda view: view.spec.rollout.paused, effects.upkeep, "paused"),
    Row("B7", IDLE, is_stopped, effects.upkeep, "the active generation is scaled to 0"),
    Row("B8", IDLE, _always, effects.claim, "the spec has changed", State.CREATING_NEXT),
    # ---- interrupts
    Row(
        "C9",
        frozenset({State.PROMOTING}),
        lambda view: (
            view.switching_back and not view.irreversible and view.want != view.rollout.id and not view.is_left
        ),
        baking.stay,
        "a way back is called off",
        State.BAKING,
    ),
    Row(
        "C",
        REVERSIBLE,
        lambda view: not view.switching_back and interrupt(view) is not None,
        _abort,
        "cancelled, reverted, superseded or failed",
        State.ABORTING,
    ),
    # ---- forward
    Row(
        "D0",
        BEFORE_PROMOTION - {State.CREATING_NEXT},
        effects.is_resized,
        effects.to_creating,
        "replicas has changed",
        State.CREATING_NEXT,
    ),
    Row("D1", frozenset({State.CREATING_NEXT}), effects.is_incomplete, effects.create, "objects are missing"),
    Row(
        "D2",
        frozenset({State.CREATING_NEXT}),
        lambda view: view.next_answers,
        effects.to_initializing,
        "every pod answers",
        State.INITIALIZING,
    ),
    Row(
        "D3",
        frozenset({State.INITIALIZING, State.CATCHING_UP}),
        lambda view: bool(effects.advances(view)),
        effects.advance,
        "a pod is below ReadOnly",
    ),
    Row(
        "D4",
        frozenset({State.INITIALIZING}),
        lambda view: view.complete(view.next, stage=Stage.READ_ONLY),
        effects.to_catching_up,
        "all pods ReadOnly",
        State.CATCHING_UP,
    ),
    Row(
        "D5",
        frozenset({State.CATCHING_UP}),
        lambda view: view.caught_up,
        effects.to_caught_up,
        "within lag for the stability period",
        State.CAUGHT_UP,
    ),
    Row(
        "D6",
        frozenset({State.CAUGHT_UP}),
        lambda view: not view.caught_up,
        effects.to_catching_up,
        "a pod lags, restarted or disconnected",
        State.CATCHING_UP,
    ),
    Row(
        "D7",
        frozenset({State.CATCHING_UP, State.CAUGHT_UP}),
        may_skip_catching_up,
        effects.promote,
        "bootstrap, forced or Immediate",
        State.PROMOTING,
    ),
    Row(
        "D8",
        frozenset({State.CAUGHT_UP}),
        lambda view: closed_gate(view) is None,
        effects.promote,
        "all gates open",
        State.PROMOTING,
    ),
    Row(
        "D9",
        frozenset({State.PROMOTING}),
        lambda view: not view.facts.leads and (view.selected != view.next or view.serves),
        effects.take_step,
        "steps not finished",
    ),
    Row(
        "D10",
        frozenset({State.PROMOTING}),
        lambda view: not _service_leads_to_next(view),
        effects.open_service,
        "n leads, and the public Service has no ready pod of it",
    ),
    Row(
        "E1",
        frozenset({State.PROMOTING}),
        lambda view: bool(view.bake) and not (view.bootstrap or view.switching_back),
        effects.to_baking,
        "the same, and a time to bake is set",
        State.BAKING,
    ),
    Row(
        "D11",
        frozenset({State.PROMOTING}),
        _always,
        effects.to_retiring,
        "the public Service has a ready pod of n",
        State.RETIRING,
    ),
    Row(
        "E2",
        BAKING | RETIRING,
        _goes_back,
        baking.switch_back,
        "the former spec is wanted or a gate has failed, and its pods follow; or it has the fence already",
        State.PROMOTING,
    ),
    Row(
        "E3",
        BAKING,
        _bake_is_over,
        baking.end_bake,
        "its time is over and all gates have passed, or another wish comes first",
        State.RETIRING,
    ),
    Row("E4", BAKING, _always, baking.bake, "the former generation follows"),
    Row("D12", RETIRING, _retirement_due, effects.retire, "former generations remain"),
    Row("D13", RETIRING, _always, effects.retired, "none of them remains", State.IDLE),
    Row("D15", frozenset({State.ABORTING}), _next_objects_left, effects.take_back, "objects of n remain"),
    Row("D16", frozenset({State.ABORTING}), _always, effects.aborted, "none of n remains", State.IDLE),
    Row("wait", ANY, _always, _wait, "nothing to do yet"),
)
"""All rows, in order."""
