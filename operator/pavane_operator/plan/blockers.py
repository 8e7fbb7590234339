"""What an attempt waits for (docs/specs/operator.md 2.6)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from pavane.wire.stages import Stage
from pavane_operator.crds.base import TEXT_MAX_CHARACTERS
from pavane_operator.crds.status import BLOCKERS_MAX_ITEMS, Blocker, Rollout, State, Verdict
from pavane_operator.crds.values import parse_duration
from pavane_operator.plan.attempt import HOLDING_REASONS, NEVER_OPENS, OUTSIDE_WINDOW, WINDOW_REASONS
from pavane_operator.plan.children import pods_of_sets
from pavane_operator.plan.clock import NOT_HYDRATED
from pavane_operator.plan.gates import closed_gate, gate_problem, outside_problem, switch_back_problem
from pavane_operator.plan.model import Pod, Problem
from pavane_operator.plan.snapshot import BEFORE_PROMOTION
from pavane_operator.plan.view import ResourceView

IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
"""What kubelets say while an image cannot be had."""
CRASH_REASONS = frozenset({"CrashLoopBackOff", "RunContainerError", "CreateContainerError"})
"""What kubelets say while a container does not stay up."""
CONFIG_REASON = "CreateContainerConfigError"
"""What kubelets say while a Secret, a ConfigMap or a key that a container names is not there yet."""
WRITE_STOP_LIMIT = timedelta(seconds=5)
"""Leadership moves from pod to pod within a moment; only after this long is a missing leader a trouble."""
HANDING_OVER = "HandingOver"
"""That moment in a promotion."""
BEYOND_REPAIR = frozenset({"QuorumLost", "RegistryLost"})
"""Why a store takes no writes, where a person has to decide what to give up."""
OTHERS = ""
"""Stands for all reasons that are not named, in alphabetical order."""
_WORST_FIRST = (
    "Rejected",
    "KeysLost",
    "QuorumLost",
    "RegistryLost",
    "StateLost",
    "FenceTooLow",
    "ReconciliationPaused",
    "Paused",
    "WaitingForApproval",
    NEVER_OPENS,
    "ImagePull",
    "CrashLoop",
    "GateFailed",
    "GateFailing",
    "NoQuorum",
    "ActiveDown",
    "PromotionStep",
    "PodNotScheduled",
    "VolumePending",
    "PodPending",
    "StageUnreachable",
    "NotInitialized",
    "NoLeader",
    NOT_HYDRATED,
    "Lagging",
    "Joining",
    "WithinStabilityPeriod",
    HANDING_OVER,
    "GateInconclusive",
    OTHERS,
    OUTSIDE_WINDOW,
    "GateWaiting",
)
"""Reasons by how much help they need."""


@dataclass(frozen=True, slots=True)
class _Found:
    reason: str
    message: str
    pod: str | None = None
    lag: int | None = None
    since: datetime | None = None
    """Since when, where another reason came before this one."""
    first: bool = False
    """A failed call: whatever else is missing may only follow from it."""


def blockers(view: ResourceView, rollout: Rollout) -> list[Blocker]:
    """The worst blockers of an attempt in the state that `rollout` will have, and all that hold it, with the times they
    first appeared."""
    since = {(blocker.pod, blocker.reason): blocker.since for blocker in view.rollout.blockers}
    unique = {(found.pod, found.reason): found for found in _found(view, rollout)}
    ordered = sorted(unique.values(), key=_order)
    holding = [found for found in ordered if found.reason in HOLDING_REASONS]  # the deadline hangs on these
    others = [found for found in ordered if found.reason not in HOLDING_REASONS]
    kept = sorted([*holding, *others[: BLOCKERS_MAX_ITEMS - len(holding)]], key=_order)
    now = view.now.replace(microsecond=0)
    return [
        Blocker(
            pod=found.pod,
            reason=found.reason,
            message=found.message[:TEXT_MAX_CHARACTERS],
            lag=found.lag,
            since=found.since or since.get((found.pod, found.reason), now),
        )
        for found in kept
    ]


def cause(rollout: Rollout) -> str:
    """What an attempt waits for most, as the end of a sentence; empty where nothing is known."""
    worst = next(iter(rollout.blockers), None)
    if worst is None:
        return ""
    pod = f"{worst.pod}: " if worst.pod else ""
    return f"; it waits for {pod}{worst.reason}" + (f", {worst.message}" if worst.message else "")


def image_pull_overdue(view: ResourceView) -> Blocker | None:
    """A blocker that says an image could not be pulled for longer than the operator allows (C5)."""
    failing = {pod.name for pod in view.running_pods(view.next) if pod.waiting_reason in IMAGE_REASONS}
    for blocker in view.rollout.blockers:
        overdue = view.now - blocker.since >= view.settings.image_pull_limit
        if overdue and blocker.reason == "ImagePull" and blocker.pod in failing:
            return blocker
    return None


def _order(found: _Found) -> tuple[bool, int, str, str]:
    return not found.first, _rank(found.reason), found.reason, found.pod or ""


def _rank(reason: str) -> int:
    return _WORST_FIRST.index(reason if reason in _WORST_FIRST else OTHERS)


def _found(view: ResourceView, rollout: Rollout) -> Iterator[_Found]:
    if view.observed.failure is not None:
        yield _Found(view.observed.failure.reason, view.observed.failure.message, first=True)
    if view.reconciliation_paused and view.state is not State.IDLE:
        yield _Found("ReconciliationPaused", "remove annotation pavane.dev/pause-reconciliation to go on")
    if rollout.state in BEFORE_PROMOTION:
        yield from _before_promotion(view, rollout)
    elif rollout.state is not view.state:
        return  # what the new state waits for is not known before the plan that follows
    elif rollout.state is State.PROMOTING:
        yield from _promoting(view)
    elif rollout.state is State.RETIRING:
        yield from _retiring(view)
    elif rollout.state is State.ABORTING:
        yield from _going(view, lambda number: number == view.next)
    elif rollout.state is State.BAKING and view.want == view.id_of(view.standby) != view.have:
        problem = switch_back_problem(view)
        yield from () if problem is None else (_of(problem),)
    elif _gate_is_in_the_way(view):
        held = (gate_problem(view), None if view.sent_back is None else switch_back_problem(view))
        yield from (_of(problem) for problem in held if problem is not None)
    elif view.resizing or view.unrepaired:
        yield from _keeping(view)
    elif active_down(view, view.active) is not None:
        yield from _down(view)
    elif view.outdated:
        yield from _exchanging(view)


def _gate_is_in_the_way(view: ResourceView) -> bool:
    """Whether a gate keeps a bake from its end, or will if it stays as it is."""
    if view.state is not State.BAKING:
        return False
    return any(each.verdict is not Verdict.WAITING or view.now >= view.bake_ends for each in view.closed_gates)


def _before_promotion(view: ResourceView, rollout: Rollout) -> Iterator[_Found]:
    state, number = rollout.state, rollout.generation or 0
    if view.held_reason in WINDOW_REASONS:
        yield _of(outside_problem(view))
    elif view.held_reason is not None:
        gate = closed_gate(view)
        text = gate.message if gate is not None and gate.reason == view.held_reason else ""
        yield _Found(view.held_reason, text or "set spec.rollout.paused to false to let the attempt go on")
    elif state is State.CAUGHT_UP and view.facts.safety is not None:
        yield _of(view.facts.safety)
    if state is view.state and (gate := gate_problem(view)) is not None:
        yield _of(gate)
    yield from (_of(problem) for problem in view.problems if problem.reason in ("ReferenceNotReady", "KeysLost"))
    yield from _standing(view)
    yield from _pods(view, number, lag=state in (State.CATCHING_UP, State.CAUGHT_UP) and not view.bootstrap)
    yield from _followers(view, number)
    expected = view.expected_pods(number)
    for pod in view.pods(number):
        if pod.name not in expected and not pod.follows:
            yield _Found("PodTerminating", "the pod is stopping, for fewer replicas are wanted", pod.name)
    if not expected:
        yield _Found("PodPending", f"the objects of generation {number} are being created")


def is_handing_over(view: ResourceView) -> bool:
    """Whether nobody leads because a promotion moves the right to lead, and not for longer than that takes."""
    down = view.facts.down
    if view.state is not State.PROMOTING or down is None or down.reason != "NoQuorum":
        return False
    return view.now - (_down_since(view) or view.now) <= WRITE_STOP_LIMIT


def _down_since(view: ResourceView) -> datetime | None:
    return min(
        (each.since for each in view.rollout.blockers if each.reason in (HANDING_OVER, "NoQuorum")), default=None
    )


def _promoting(view: ResourceView) -> Iterator[_Found]:
    handing_over = is_handing_over(view)
    if handing_over:
        text = f"leadership moves to generation {view.next}; writes pause for a moment"
        yield _Found(HANDING_OVER, text, since=_down_since(view))
    elif view.facts.down is not None:
        since = _down_since(view) if view.facts.down.reason == "NoQuorum" else None
        yield _Found(view.facts.down.reason, view.facts.down.message, since=since)
    yield from _failed_step(view)
    if view.repair_is_new:
        yield from map(_of, view.problems)
    if not view.irreversible and view.facts.safety is not None and not view.bootstrap:
        yield _of(view.facts.safety)
    yield from _standing(view)
    yield from _followers(view, view.next)
    pods = _pods(view, view.next, lag=False)
    yield from (found for found in pods if not (handing_over and found.reason == "NoLeader"))
    if view.selected == view.next and not (view.serves and not view.facts.leads):
        yield _Found("NoReadyEndpoint", f"the public Service has no ready pod of generation {view.next} yet")
    elif not view.facts.leads and not handing_over:
        yield _Found("NotLeading", f"generation {view.next} does not lead yet")


def _keeping(view: ResourceView) -> Iterator[_Found]:
    """What scaling, or a repair, of the active generation waits for."""
    if view.facts.safety is not None:
        yield _of(view.facts.safety)
    yield from _failed_step(view)
    yield from _followers(view, view.active)
    yield from _pods(view, view.active, lag=False)
    wanted = view.expected_pods(view.active)
    for pod in view.joining if view.facts.members else ():
        if pod.name in wanted:
            yield from _behind(view, pod)
        else:
            yield _Found("PodTerminating", "it is no member any more, and the pod stops", pod.name)


def active_down(view: ResourceView, active: int) -> Problem | None:
    """Why the active generation takes no writes; None = it does, there is none, or it is not to run."""
    if not active or (view.spec.suspend and view.state is State.IDLE):
        return None
    if view.facts.down is None and not any(pod.ready for pod in view.live_pods(active)):
        return Problem("ActiveDown", f"no pod of generation {active} is ready")
    return view.facts.down


def _down(view: ResourceView) -> Iterator[_Found]:
    """Why the active generation takes no writes while nothing is rolled out: that, and what its pods say."""
    down = active_down(view, view.active)
    if down is not None:
        yield _of(down)
    yield from _standing(view)
    yield from _followers(view, view.active)
    yield from _pods(view, view.active, lag=False)
    for pod in view.live_pods(view.active):
        if pod.ended and not pod.ready and pod.waiting_reason is None:  # between two of its restarts
            yield _Found("CrashLoop", f"it restarted {pod.restarts} times, last it ended with {pod.ended}", pod.name)


def _exchanging(view: ResourceView) -> Iterator[_Found]:
    """What the replacement of the next pod of a former template waits for."""
    if view.facts.exchange is not None:
        yield _of(view.facts.exchange)
    yield from _standing(view)


def _standing(view: ResourceView) -> Iterator[_Found]:
    """Pods of the roles that belong to the resource, which the pods of its generations need."""
    yield from _unstaged(view, view.observed.standing, pods_of_sets(view.standing))


def _followers(view: ResourceView, generation: int) -> Iterator[_Found]:
    """Pods that those of a generation lead."""
    yield from _unstaged(view, view.pods(generation), view.expected_followers(generation))


def _unstaged(view: ResourceView, of: Iterable[Pod], expected: Iterable[str]) -> Iterator[_Found]:
    """Pods without stages that are not Ready."""
    pods = {pod.name: pod for pod in of}
    for name in expected:
        if name not in pods:
            yield _Found(
                "PodPending",
                f"the pod does not exist yet: kubectl describe statefulset {name.rpartition('-')[0]}",
                name,
            )
        elif pods[name].deleting:
            yield _Found("PodTerminating", "the pod is stopping", name)
        elif not pods[name].ready:
            found = list(_pod(view, pods[name]))
            yield from found or [_Found("PodPending", "the pod is not ready yet; see its logs", name)]


def _failed_step(view: ResourceView) -> Iterator[_Found]:
    call = view.observed.step_call
    if call is not None and call.message and call.name == view.step_name:
        yield _Found("PromotionStep", f"{call.name}: {call.message}; it is repeated until it succeeds")


def _retiring(view: ResourceView) -> Iterator[_Found]:
    step = view.rollout.step
    delay = parse_duration(view.spec.rollout.retire_delay)
    if step is not None and view.now < step.at + delay:
        yield _Found("RetireDelay", f"the old generation stays until {(step.at + delay):%H:%M:%S} UTC")
    elif view.kind.partings > 1 and view.facts.parting is not None:
        yield _of(view.facts.parting)
    yield from _going(view, lambda number: number != view.active)


def _going(view: ResourceView, concerned: Callable[[int], bool]) -> Iterator[_Found]:
    for pod in view.observed.pods:
        if concerned(pod.generation):
            yield _Found("PodTerminating", "the pod is stopping", pod.name)
    if any(child.generation is not None and concerned(child.generation) for child in view.observed.children):
        yield _Found("ObjectsRemain", "objects of a former generation are being deleted")


def _pods(view: ResourceView, generation: int, *, lag: bool) -> Iterator[_Found]:
    pods = {pod.name: pod for pod in view.live_pods(generation)}
    for name in view.expected_pods(generation):
        if name not in pods:
            stateful_set = name.rpartition("-")[0]
            text = "the pod does not exist yet; kubectl describe statefulset"
            yield _Found("PodPending", f"{text} {stateful_set} says why, if it is refused", name)
            continue
        yield from _pod(view, pods[name])
        yield from _stage(view, pods[name], lag=lag)


def _pod(view: ResourceView, pod: Pod) -> Iterator[_Found]:
    if pod.waiting_reason in IMAGE_REASONS:
        yield _Found("ImagePull", pod.waiting_message or "the image cannot be pulled; check spec.image", pod.name)
    elif pod.waiting_reason in CRASH_REASONS:
        text = pod.waiting_message or f"the container does not stay up ({pod.waiting_reason})"
        last = f"; it ended with {pod.ended}" if pod.ended else ""
        yield _Found("CrashLoop", f"{text}{last}; see the logs of the pod", pod.name)
    elif pod.waiting_reason == CONFIG_REASON:
        yield _Found("PodPending", f"the pod waits for what it names: {pod.waiting_message}", pod.name)
    elif not pod.scheduled:
        reason = "VolumePending" if _waits_for_volume(view, pod) else "PodNotScheduled"
        yield _Found(reason, pod.waiting_message or "no node has room for the pod", pod.name)
    elif pod.address is None:
        text = f"the pod has no address yet; its events say what it waits for: kubectl describe pod {pod.name}"
        yield _Found("PodPending", pod.waiting_message or text, pod.name)


def _waits_for_volume(view: ResourceView, pod: Pod) -> bool:
    """Whether its claim is not bound, and not only because that waits for a node: then the scheduler says so."""
    claims = [claim for claim in view.volumes if claim.name.endswith(f"-{pod.name}")]
    unbound = any((claim.body.get("status") or {}).get("phase") != "Bound" for claim in claims)
    return unbound and "persistentvolume" in pod.waiting_message.replace(" ", "").lower()


def _stage(view: ResourceView, pod: Pod, *, lag: bool) -> Iterator[_Found]:
    stage = pod.stage
    if pod.address is None or pod.waiting_reason in IMAGE_REASONS:
        return
    # Where no stream is needed the pod tells on its ops port.
    if stage is None or (not stage.connected and pod.name in view.streams):
        yield _Found("StageUnreachable", "the pod does not answer on its stage port", pod.name)
        return
    for reported in stage.blockers:
        if reported.reason == "StateLost" and view.facts.members and pod.name not in view.facts.members:
            yield _Found("Joining", "a former member had this name; the pod joins as a new one", pod.name)
        else:
            yield _Found(reported.reason, reported.message, pod.name)
    if stage.stage < Stage.READ_ONLY:
        yield _Found("NotInitialized", f"the pod is in stage {stage.stage.title}", pod.name)
    elif lag and all(reported.reason != NOT_HYDRATED for reported in stage.blockers):
        yield from _behind(view, pod)


def _behind(view: ResourceView, pod: Pod) -> Iterator[_Found]:
    settles_at = view.settles_at(pod)
    if settles_at is None:
        stage = pod.stage
        behind = max((stage.target or 0) - (stage.progress or 0), 0) if stage is not None else 0
        if behind:
            yield _Found("Lagging", f"{behind} behind", pod.name, behind)
        else:
            yield _Found("Joining", "the pod takes its place beside the others", pod.name)
    elif settles_at > view.now:
        left = settles_at - view.now
        yield _Found("WithinStabilityPeriod", f"{left.total_seconds():.0f} s left", pod.name)


def _of(problem: Problem) -> _Found:
    return _Found(problem.reason, problem.message)
