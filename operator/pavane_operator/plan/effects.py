"""What each row of the transition table does (docs/specs/operator.md 2.4). All functions are pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pavane.wire.stages import Stage
from pavane_operator.crds.base import TEXT_MAX_CHARACTERS
from pavane_operator.crds.common import DeletionPolicy, StorageSpec
from pavane_operator.crds.status import HISTORY_MAX_ITEMS, Attempt, Failure, Result, Rollout, State, Step
from pavane_operator.crds.values import parse_duration
from pavane_operator.plan.attempt import SERVE
from pavane_operator.plan.children import CONFIG_MAP, STATEFUL_SET, WITHDRAWN, find, is_missing_or_drifted
from pavane_operator.plan.model import (
    FINALIZER,
    LAST_GENERATION_ANNOTATION,
    SKIP_FINALIZER_ANNOTATION,
    Action,
    AdvanceStage,
    AllowWrites,
    ApplyChild,
    Child,
    CreateChild,
    DeleteChild,
    Event,
    Leave,
    Manifest,
    MarkResource,
    Pod,
    Repair,
    RunStep,
    Undo,
    parse_number,
)
from pavane_operator.plan.sizes import differs, next_parting, surplus_volumes
from pavane_operator.plan.snapshot import RETIRE
from pavane_operator.plan.standing import replaceable
from pavane_operator.plan.view import ResourceView
from pavane_operator.plan.volumes import growth

POD = "Pod"
STORE_LOOK = timedelta(seconds=1)
"""While members come or go the store is looked at this often: nobody tells when it has settled."""
DELETION_LIMIT = timedelta(minutes=2)
"""After this long a deletion is let through unfinished: nobody should have to remove a finalizer by hand (2.10)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a row decided."""

    actions: tuple[Action, ...] = ()
    rollout: Rollout | None = None
    """The rollout from now on; None = as before. With it there are no actions: the effect comes in a later plan, which
    has read the status back (2.1)."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the status, by their Python names."""
    events: tuple[Event, ...] = ()
    wake_at: datetime | None = None
    critical: bool = False
    alone: bool = False
    """Repair nothing beside it."""
    frozen: bool = False
    """Leave the status as it is, and repair nothing."""


# ---- before everything


def only_observe(_view: ResourceView) -> Decision:
    """A2: the status follows what is seen, nothing else is done."""
    return Decision(alone=True)


def add_finalizer(view: ResourceView) -> Decision:
    """A4."""
    return Decision(actions=(MarkResource(view.highest_number or None),), alone=True)


def delete(view: ResourceView) -> Decision:
    """A1: record that the deletion goes ahead where others might have held it up, stop all pods, delete volumes if that
    is the policy, take back what it has left with others, then remove the finalizer."""
    if FINALIZER not in view.resource.finalizers:
        return Decision(frozen=True)
    skipped = view.resource.annotations.get(SKIP_FINALIZER_ANNOTATION) == "true"
    if view.observed.users is not None and view.release is None and not skipped:
        return Decision(alone=True)
    began = view.release.last_transition_time if view.release is not None else view.resource.deleted_at
    due = (began or view.now) + DELETION_LIMIT
    release = MarkResource(view.highest_number or None, finalizer=False)
    if skipped or view.now >= due:
        event = Event("DeletionIncomplete", "the finalizer was removed before all was gone", warning=True)
        return Decision(actions=(release,), events=() if skipped else (event,), critical=True, frozen=True)
    sets = [child for child in view.observed.children if child.kind == STATEFUL_SET]
    # What belongs to the resource serves the pods of its generations: it stops after them.
    first = [child for child in sets if child.generation is not None]
    actions = _deletions(first or (() if view.observed.pods else sets))
    waiting = bool(view.observed.pods or view.observed.standing or sets)
    if not waiting:
        everything = getattr(view.spec, "deletion_policy", None) is DeletionPolicy.DELETE
        volumes = view.volumes if everything else view.unpromoted_volumes
        actions = _deletions(volumes)
        waiting = bool(volumes)
    if not waiting:
        actions = (release,) if view.kind.leave is None else (Leave(), release)
    return Decision(actions=actions, wake_at=due, critical=bool(actions), frozen=True)


# ---- Idle


def suspend(view: ResourceView) -> Decision:
    """B1: what is stopped, and in which order, is a matter of sizes (`plan.sizes`)."""
    if view.rollout.step is not None:
        return Decision(rollout=Rollout(state=State.IDLE))
    leftovers = _leftovers(view)
    return Decision(actions=leftovers, critical=bool(leftovers))


def repair_in_place(view: ResourceView) -> Decision:
    """B2, D9: the revision, then the template, then the pods of former ones, one after the other."""
    actions = repair_actions(view)
    if actions:
        return Decision(actions=actions, alone=True, critical=True)
    return Decision(actions=advance_active(view))


def repair_actions(view: ResourceView) -> tuple[Action, ...]:
    """What can be done for the repair now."""
    if view.repair is None:
        return ()
    generation, time = view.repair
    revision = view.revision(generation)
    if view.repair_is_new and revision is not None:
        repair = Repair(time, revision)
        return (CreateChild(view.kind.renderer.revision(view.resource, generation, view.want, repair)),)
    drifted = repairs(view, generation)
    if drifted or any(pod.deleting for pod in view.pods(generation)):
        return drifted
    return tuple(map(_pod_deletion, view.unrepaired[:1]))


def _pod_deletion(pod: Pod) -> DeleteChild:
    return DeleteChild(POD, pod.name, pod.uid, pod.resource_version)


def steady(view: ResourceView) -> Decision:
    """B3."""
    decision = upkeep(view)
    return decision if decision.rollout is not None else replace(decision, changes={"failed": None})


def upkeep(view: ResourceView) -> Decision:
    """B3-B6, also while the new spec is held back: leftovers go, pods advance, and the store gets the step that it
    needs: recorded first, then taken. Volumes of former generations go once the active one has all that they hold."""
    step, due = view.rollout.step, view.facts.due
    if due is None and step is not None:
        return Decision(rollout=Rollout(state=State.IDLE))
    if due is not None and (step is None or step.name != due or view.facts.request_expired):
        return _record(view, due)
    calls, retry_at = ((), None) if step is None else _calls(view, step, view.active)
    volumes = surplus_volumes(view, view.active)
    if isinstance(view.storage, StorageSpec) and not view.storage.retain and _active_is_well(view):
        volumes += [volume for volume in view.volumes if volume.generation not in (None, view.active)]
    exchanged = replaceable(view, view.standing, view.outdated)
    replaced = () if exchanged is None else (_pod_deletion(exchanged),)
    deletions = (*_leftovers(view), *_deletions(volumes), *replaced)
    settling = [time for pod in view.joining if (time := view.settles_at(pod)) is not None and time > view.now]
    looks = [view.now + STORE_LOOK] if view.resizing or view.outdated else []
    return Decision(
        actions=(*deletions, *advance_active(view), *calls, *growth(view)),
        wake_at=min([*settling, *looks, *([retry_at] if retry_at else [])], default=None),
        critical=bool(deletions),
    )


def claim(view: ResourceView) -> Decision:
    """B8."""
    number = view.highest_number + 1
    now = view.now.replace(microsecond=0)
    rollout = Rollout(
        state=State.CREATING_NEXT,
        id=view.want,
        generation=number,
        started_at=now,
        deadline=now + parse_duration(view.spec.rollout.deadline),
    )
    return Decision(
        rollout=rollout,
        changes={"next_generation": number, "last_generation": number},
        events=(Event("RolloutStarted", f"generation {number} is being created"),),
        critical=True,
    )


# ---- abort


def abort(view: ResourceView, reason: str, *, message: str) -> Decision:
    """C1-C7: the reason is recorded, the next plan begins to take back."""
    stored = view.fence_too_low
    changes = {} if stored is None else {"last_generation": max(stored, view.highest_number)}
    changed = {"state": State.ABORTING, "reason": reason, "message": message[:TEXT_MAX_CHARACTERS], "step": None}
    rollout = view.rollout.model_copy(update=changed)
    note = f"generation {view.next} is given up ({reason}): {message}"
    return Decision(
        rollout=rollout,
        changes=changes,
        events=(Event("RolloutAborted", note, warning=reason in FAILURES),),
        critical=True,
    )


FAILURES = frozenset({"Cancelled", "CrashLoop", "GateFailed", "ImagePull", "Rejected", "DeadlineExceeded"})
"""Reasons that count as a failure of the spec, so that it is not tried again by itself."""
_RESULTS = {"Superseded": Result.SUPERSEDED}


def take_back(view: ResourceView) -> Decision:
    """D15: objects first; volumes once no pod remains that could still use them."""
    objects = view.objects(view.next)
    actions = _deletions(objects)
    if not view.pods(view.next) and not objects:
        actions = _deletions(volume for volume in view.volumes if volume.generation == view.next)
    if actions:
        return Decision(actions=(Undo(view.next), *actions), critical=True)
    return Decision()


def aborted(view: ResourceView) -> Decision:
    """D16."""
    reason = view.rollout.reason or "Cancelled"
    identity = view.rollout.id  # None when the status was lost together with the revision
    now = view.now.replace(microsecond=0)
    attempt = Attempt(
        generation=view.next,
        id=identity or "",
        image=view.image_of(view.next),
        result=_RESULTS.get(reason, Result.ABORTED),
        reason=reason,
        message=view.rollout.message,
        started_at=view.rollout.started_at,
        finished_at=now,
    )
    changes: dict[str, Any] = {"next_generation": None, "history": _history(view, attempt)}
    if reason in FAILURES and identity is not None:
        message = view.rollout.message or ""
        changes["failed"] = Failure(id=identity, generation=view.next, reason=reason, message=message, at=now)
    return Decision(rollout=Rollout(state=State.IDLE), changes=changes)


# ---- forward


def create(view: ResourceView) -> Decision:
    """D1: the mark on the resource alone, then the revision, then what is rendered from it."""
    marked = parse_number(view.resource.annotations.get(LAST_GENERATION_ANNOTATION)) or 0
    if marked < view.next:
        return Decision(actions=(MarkResource(view.next),), alone=True)
    if view.revision(view.next) is None:
        revision = view.kind.renderer.revision(view.resource, view.next, view.rollout.id or view.want)
        return Decision(actions=(CreateChild(revision),), alone=True)
    certificates = view.observed.certificates.actions
    if certificates:  # before the pods that mount them
        return Decision(actions=certificates, alone=True)
    missing = repairs(view, view.next)
    surplus = () if missing else _deletions(surplus_volumes(view, view.next))
    return Decision(actions=missing or surplus, alone=True, critical=bool(surplus))


def is_incomplete(view: ResourceView) -> bool:
    """Whether an object of the next generation, or one that all generations need, does not exist, or has not the size
    that the spec asks for."""
    if view.revision(view.next) is None:
        return True
    wanted = (*view.shared, view.service_manifest, *view.standing, *view.manifests(view.next))
    missing = any(find(view.observed.children, manifest.kind, manifest.name) is None for manifest in wanted)
    return missing or bool(view.observed.certificates.actions) or is_resized(view)


def is_resized(view: ResourceView) -> bool:
    """Whether the next generation has not the size that the spec asks for, or volumes beyond it."""
    return differs(view, view.next)


def to_creating(view: ResourceView) -> Decision:
    """D0: `replicas` has changed."""
    return Decision(rollout=view.rollout.model_copy(update={"state": State.CREATING_NEXT}))


def to_initializing(view: ResourceView) -> Decision:
    """D2."""
    return _stage_reached(view, State.INITIALIZING, "all pods answer")


def advance(view: ResourceView) -> Decision:
    """D3."""
    return Decision(actions=advances(view))


def to_catching_up(view: ResourceView) -> Decision:
    """D4, D6."""
    if view.state is State.CAUGHT_UP:
        return Decision(rollout=view.rollout.model_copy(update={"state": State.CATCHING_UP}))
    return _stage_reached(view, State.CATCHING_UP, "all pods are read-only")


def to_caught_up(view: ResourceView) -> Decision:
    """D5."""
    return Decision(
        rollout=view.rollout.model_copy(update={"state": State.CAUGHT_UP}),
        events=(Event("CaughtUp", f"generation {view.next} has caught up"),),
    )


def promote(view: ResourceView) -> Decision:
    """D7, D8."""
    forced = True if view.forced and not view.bootstrap and not view.caught_up else None
    return Decision(
        rollout=view.rollout.model_copy(update={"state": State.PROMOTING, "step": None, "forced": forced}),
        events=(Event("Promoting", f"generation {view.next} is being promoted"),),
        critical=True,
    )


def take_step(view: ResourceView) -> Decision:
    """D9: pods up to ReadWrite, then the next step, recorded before it is taken."""
    recorded = view.recorded_index
    undone = [i for i, step in enumerate(view.steps) if step.name not in view.facts.steps_done]
    target = max(min(undone, default=len(view.steps) - 1), recorded)
    # The Service first: what the API server does not take now would keep clients away from the one that leads then.
    allowed = (*(_service_actions(view) if view.serves else ()), *_permissions(view))
    if target > recorded:
        step = view.steps[target]
        there = step.name in view.facts.steps_done
        if step.irreversible and not there and view.facts.safety is not None and not view.bootstrap:
            return Decision(actions=allowed)
        return _record(view, step.name)
    if recorded < 0 or recorded >= len(view.steps):
        return Decision(actions=allowed)
    step = view.steps[recorded]
    if step.allow_writes or step.rendered or step.name in view.facts.steps_done:
        return Decision(actions=allowed)
    if view.facts.request_expired or view.rollout.step is None:
        return _record(view, step.name)
    calls, retry_at = _calls(view, view.rollout.step, view.next)
    return Decision(actions=(*allowed, *calls), wake_at=retry_at)


def open_service(view: ResourceView) -> Decision:
    """D10."""
    last = SERVE if view.bootstrap else next((step.name for step in reversed(view.steps) if step.irreversible), None)
    if last is not None and not view.irreversible_recorded:
        return _record(view, last)
    return Decision(actions=(*_service_actions(view), *_permissions(view)))


def to_retiring(view: ResourceView) -> Decision:
    """D11."""
    return _served(view, State.RETIRING)


def to_baking(view: ResourceView) -> Decision:
    """E1."""
    return _served(view, State.BAKING)


def _served(view: ResourceView, state: State) -> Decision:
    """Generation n is the active one; what becomes of the other, the state says."""
    now = view.now.replace(microsecond=0)
    attempt = Attempt(
        generation=view.next,
        id=view.id_of(view.next) or view.rollout.id or "",
        image=view.image_of(view.next),
        result=Result.PROMOTED,
        message=view.rollout.message,
        started_at=view.rollout.started_at,
        finished_at=now,
        write_gap_ms=None,
    )
    rollout = Rollout(
        state=state,
        id=view.rollout.id,
        generation=view.next,
        started_at=view.rollout.started_at,
        forced=view.rollout.forced,
        step=Step(name=RETIRE, at=now),
    )
    history, event = _history(view, attempt), Event("Promoted", f"generation {view.next} is active")
    if view.switching_back:
        left: dict[str, Any] = {"result": Result.ROLLED_BACK, "reason": "SwitchedBack"}
        if view.is_left and view.status.failed is not None:
            left |= {"reason": view.status.failed.reason, "message": view.status.failed.message}
        history = [each.model_copy(update=left) if each.generation == view.active else each for each in history]
        event = Event("SwitchedBack", f"generation {view.next} is active again; {view.active} goes")
    return Decision(
        rollout=rollout,
        changes={
            "active_generation": view.next,
            "next_generation": None,
            "history": history,
        },
        events=(event,),
        critical=True,
    )


def retire(view: ResourceView) -> Decision:
    """D12: what belongs only to former generations goes, without volumes."""
    due = retirement_ends(view)
    if view.now < due:
        return Decision(actions=advance_active(view), wake_at=due)
    batch = next_parting(view) if view.kind.partings > 1 else None
    if batch is not None:
        applied = tuple(ApplyChild(manifest) for manifest in batch)
        return Decision(actions=applied + advance_active(view), wake_at=view.now + STORE_LOOK)
    leftovers = _leftovers(view)
    return Decision(actions=leftovers + advance_active(view), critical=bool(leftovers))


def retired(view: ResourceView) -> Decision:
    """D13. The first generation that is promoted has no former one, so nothing was retired."""
    event = Event("OldGenerationRetired", f"only generation {view.active} remains")
    followed = any(entry.result is Result.PROMOTED for entry in view.status.history[1:])
    return Decision(rollout=Rollout(state=State.IDLE), events=(event,) if followed else ())


# ---- shared by rows


def retirement_ends(view: ResourceView) -> datetime:
    """When the old generation may be deleted."""
    step = view.rollout.step
    return (step.at if step else view.now) + parse_duration(view.spec.rollout.retire_delay)


def deletion(child: Child) -> DeleteChild:
    """Delete exactly what was seen."""
    return DeleteChild(child.kind, child.name, child.uid, child.resource_version)


def _deletions(children: Iterable[Child]) -> tuple[Action, ...]:
    return tuple(deletion(child) for child in children if not child.deleting)


def repairs(view: ResourceView, *generations: int) -> tuple[Action, ...]:
    """Everything that the resource and these generations need and that is not there, or not as it should be."""
    invalid = _config_is_invalid(view)
    shared = () if invalid else view.shared
    manifests = (
        *(manifest for manifest in shared if manifest not in view.lost_secrets),
        *view.standing,
        *(manifest for number in generations for manifest in view.manifests(number)),
    )
    wanted = [_put(view, manifest) for manifest in manifests if is_missing_or_drifted(manifest, view.observed.children)]
    ordered = sorted(wanted, key=lambda action: action.manifest.kind == STATEFUL_SET)
    restored = map(CreateChild, view.restorable)
    first = (*view.observed.certificates.actions, *restored, *_service_actions(view))
    return (*first, *ordered, *(() if invalid else _withdrawals(view)))


def advances(view: ResourceView) -> tuple[AdvanceStage, ...]:
    """For each pod of the next generation that is below ReadOnly and has not been sent the commands yet."""
    settings = _settings_of_next(view)
    return tuple(AdvanceStage(name, view.next, settings) for name in unasked(view, view.next, Stage.READ_ONLY))


def _permissions(view: ResourceView) -> tuple[AllowWrites, ...]:
    """For each pod of the next generation that may not write yet, from the step that allows it on."""
    allowing = [i for i, step in enumerate(view.steps) if step.allow_writes]
    if not allowing or view.recorded_index < allowing[0]:
        return ()
    settings = _settings_of_next(view)
    return tuple(AllowWrites(name, view.next, settings) for name in unasked(view, view.next, Stage.READ_WRITE))


def _settings_of_next(view: ResourceView) -> Mapping[str, str]:
    bootstrap = view.bootstrap and view.step_name != SERVE
    return view.kind.renderer.expected_state(view.resource, view.next, bootstrap=bootstrap)


def unasked(view: ResourceView, generation: int, stage: Stage) -> list[str]:
    """Names of the pods that are below a stage and have not been sent the commands up to it."""
    return [
        pod.name
        for pod in view.live_pods(generation)
        if pod.stage is not None
        and pod.stage.connected
        and pod.stage.stage < stage
        and (pod.stage.asked is None or pod.stage.asked < stage)
    ]


def advance_active(view: ResourceView) -> tuple[AdvanceStage | AllowWrites, ...]:
    """Lead pods of the active generation that start again to where they were."""
    if not view.active:
        return ()
    settings = view.kind.renderer.expected_state(view.resource, view.active, bootstrap=False)
    lost = {
        pod.name
        for pod in view.live_pods(view.active)
        if pod.stage and any(blocker.reason == "StateLost" for blocker in pod.stage.blockers)
    }
    early = {pod.name for pod in view.joining if not view.has_settled(pod)}
    advance = [name for name in unasked(view, view.active, Stage.READ_ONLY) if name in early - lost]
    allow = [name for name in unasked(view, view.active, Stage.READ_WRITE) if name not in early | lost]
    return (
        *(AdvanceStage(name, view.active, settings) for name in advance),
        *(AllowWrites(name, view.active, settings) for name in allow),
    )


def _leftovers(view: ResourceView) -> tuple[Action, ...]:
    # A kubelet warns of a running pod whose ConfigMap is gone: that goes when the pods have stopped.
    running = {pod.generation for pod in view.observed.pods}
    return _deletions(
        child for child in view.foreign_objects if child.kind != CONFIG_MAP or child.generation not in running
    )


def _active_is_well(view: ResourceView) -> bool:
    allowed = view.spec.rollout.caught_up.allowed_lag
    return view.complete(view.active, stage=Stage.READ_WRITE) and all(
        pod.stage is not None and (pod.stage.target or 0) - (pod.stage.progress or 0) <= allowed
        for pod in view.live_pods(view.active)
    )


def _record(view: ResourceView, name: str) -> Decision:
    step = Step(name=name, at=view.now.replace(microsecond=0))
    return Decision(rollout=view.rollout.model_copy(update={"step": step}), critical=True)


def _calls(view: ResourceView, step: Step, generation: int) -> tuple[tuple[Action, ...], datetime | None]:
    """The call of the recorded step, unless one runs; and when it is to be repeated."""
    call = view.observed.step_call
    if call is None or (call.name, call.at) != (step.name, step.at):
        return (RunStep(step.name, generation, step.at),), None
    if call.running:
        return (), None
    if call.retry_at is not None and call.retry_at > view.now:
        return (), call.retry_at
    return (RunStep(step.name, generation, step.at),), None


def _put(view: ResourceView, manifest: Manifest) -> CreateChild | ApplyChild:
    live = find(view.observed.children, manifest.kind, manifest.name)
    if manifest.create_only or (manifest.guarded and live is None):
        return CreateChild(manifest)
    return ApplyChild(manifest, live.resource_version if manifest.guarded and live is not None else None)


def _withdrawals(view: ResourceView) -> tuple[Action, ...]:
    """Policies and budgets that the spec no longer asks for."""
    manifests = (*view.shared, *view.rendered(view.active), *view.rendered(view.next))
    wanted = {(manifest.kind, manifest.name) for manifest in manifests}
    return tuple(
        deletion(child)
        for child in view.observed.children
        if child.kind in WITHDRAWN and (child.kind, child.name) not in wanted and not child.deleting
    )


def _service_actions(view: ResourceView) -> tuple[Action, ...]:
    manifest = view.service_manifest
    return (_put(view, manifest),) if is_missing_or_drifted(manifest, view.observed.children) else ()


def _stage_reached(view: ResourceView, state: State, what: str) -> Decision:
    return Decision(
        rollout=view.rollout.model_copy(update={"state": state}),
        events=(Event("StageReached", f"generation {view.next}: {what} ({state})"),),
    )


def _history(view: ResourceView, attempt: Attempt) -> list[Attempt]:
    """The newest attempts, and however many failed since: the last two that were promoted, which an undo needs."""
    entries = [attempt, *(entry for entry in view.status.history if entry.generation != attempt.generation)]
    promoted = [entry for entry in entries if entry.result is Result.PROMOTED][:2]
    while len(entries) > HISTORY_MAX_ITEMS:
        entries.remove(next(entry for entry in reversed(entries) if entry not in promoted))
    return entries


def _config_is_invalid(view: ResourceView) -> bool:
    return any(problem.reason == "InvalidConfig" for problem in view.problems)
