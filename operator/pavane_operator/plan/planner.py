"""The planner: from what is there to what to do next (docs/specs/operator.md 2).

Pure and total: no clock, no I/O, no randomness; it decides for every input and raises for none that the kind's renderer
accepts.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pavane.wire.stages import Stage
from pavane_operator.crds.status import (
    ENDPOINTS_MAX_ITEMS,
    GENERATIONS_MAX_ITEMS,
    Blocker,
    Endpoint,
    GateStatus,
    Generation,
    GenerationRole,
    Rollout,
    State,
    Status,
)
from pavane_operator.plan.attempt import OUTSIDE_WINDOW, WINDOW_REASONS
from pavane_operator.plan.blockers import blockers
from pavane_operator.plan.children import STATEFUL_SET, decided_replicas, find, replicas_of
from pavane_operator.plan.conditions import conditions
from pavane_operator.plan.effects import Decision, repairs
from pavane_operator.plan.events import lasting_events, told_down_at
from pavane_operator.plan.model import (
    Action,
    ApplyChild,
    DeleteChild,
    MarkResource,
    Observed,
    Plan,
    Resource,
    Settings,
    parse_time,
)
from pavane_operator.plan.numbering import rebuilt_status
from pavane_operator.plan.port import Kind
from pavane_operator.plan.snapshot import BEFORE_PROMOTION
from pavane_operator.plan.table import TABLE
from pavane_operator.plan.view import ResourceView

WAKE_INTERVAL = timedelta(seconds=30)
"""A state other than Idle is looked at again after this long, should an event have been lost."""
USERS_LOOK = timedelta(seconds=2)
"""While others hold up a deletion they are looked for again after this long: not all of their changes are heard of."""
TEXT_INTERVAL = timedelta(seconds=5)
"""A change of texts and counters alone is written no more often than this (2.6)."""

GATE_INTERVAL = timedelta(minutes=1)
"""What a gate found is written no more often than this while it stands as it did: it bakes for hours."""
GATE = "Gate"
"""With which the reasons of gates begin: one whose answers change all the time is written as a text is."""

WAITED = "it waited for its window from"
"""How a message about a wait begins."""


def plan(kind: Kind, resource: Resource, observed: Observed, now: datetime, settings: Settings | None = None) -> Plan:
    """What to do now for one resource.

    Args:
        kind: The resource's kind; only its pure parts are used.
        resource: The resource as read last.
        observed: Everything else that is known.
        now: The present time, aware, UTC.
        settings: The operator's settings; None = the defaults.

    Returns:
        The plan: empty when nothing is to be done before `wake_at` or the next event. Executing it twice has the effect
        of executing it once.
    """
    if not observed.fresh:
        return Plan(row="A3")
    status = resource.status or kind.definition.status()
    view = ResourceView(kind, resource, status, observed, now, settings or Settings())
    if status.rollout is None and not view.leaving:
        rebuilt = rebuilt_status(view)
        if rebuilt is None:
            streams = frozenset(pod.name for pod in observed.pods if pod.address and not pod.follows)
            return Plan(row="2.3", wake_at=now + WAKE_INTERVAL, streams=streams)
        if rebuilt.rollout is not None and rebuilt.rollout.state is not State.IDLE:
            return Plan(row="2.3", status=rebuilt.model_copy(update=_own_status(view)), critical=True)
        view = ResourceView(kind, resource, rebuilt, observed, now, view.settings)
    row = next(row for row in TABLE if view.state in row.states and row.matches(view))
    return _assembled(view, row.name, row.effect(view))


def _assembled(view: ResourceView, row: str, decision: Decision) -> Plan:
    """The plan of a decision: with repairs, with the status that follows from what is seen, with a wake-up time."""
    actions, wakes = decision.actions, [decision.wake_at]
    if decision.rollout is None and not decision.alone and not decision.frozen:
        actions += tuple(action for action in _repairs(view) if action not in actions)
    status = None
    if not decision.frozen:
        status, wake = _settled(view, _status(view, decision))
        wakes.append(wake)
    takes_away = any(map(_removes, actions)) or _shrinks(view, actions)
    if view.observed.failure is not None and status is not None:
        actions = ()  # they would fail again before the status says why
    wakes += [_future(view, view.observed.certificates.again_at), _future(view, told_down_at(view))]
    if view.state is not State.IDLE:
        wakes += [view.now + WAKE_INTERVAL, _future(view, view.rollout.deadline)]
    if view.users:
        wakes.append(view.now + USERS_LOOK)
    if view.state is State.CATCHING_UP:
        wakes.append(_future(view, view.stable_at))
    if view.held_reason == OUTSIDE_WINDOW:
        wakes.append(view.window_opens)
    return Plan(
        row=row,
        actions=actions,
        status=status,
        wake_at=min((wake for wake in wakes if wake is not None), default=None),
        events=decision.events,
        lasting=() if decision.frozen else lasting_events(view),
        streams=frozenset() if view.leaving else view.streams,
        questions=() if view.leaving or view.reconciliation_paused else view.questions,
        critical=decision.critical or takes_away,
        takes_away=takes_away,
    )


def _removes(action: Action) -> bool:
    return isinstance(action, DeleteChild) or (isinstance(action, MarkResource) and not action.finalizer)


def _shrinks(view: ResourceView, actions: tuple[Action, ...]) -> bool:
    """Whether pods go: that is decided from what was read afresh (5.4)."""
    return any(
        isinstance(action, ApplyChild)
        and action.manifest.kind == STATEFUL_SET
        and (live := find(view.observed.children, STATEFUL_SET, action.manifest.name)) is not None
        and replicas_of(action.manifest.body) < decided_replicas(live)
        for action in actions
    )


def _future(view: ResourceView, time: datetime | None) -> datetime | None:
    return time if time is not None and time > view.now else None


def _repairs(view: ResourceView) -> tuple[Action, ...]:
    generations = [view.active] if view.active else []
    if view.state in BEFORE_PROMOTION or view.state is State.PROMOTING:
        generations.append(view.next)
    return repairs(view, *generations) if generations else ()


# ---- status


def _own_status(view: ResourceView) -> dict[str, Any]:
    """What only the kind knows. It decides some of it once, so a rebuilt status has it from the beginning."""
    return {name: value for name, value in view.facts.own_status.items() if name not in Status.model_fields}


def _status(view: ResourceView, decision: Decision) -> Status:
    rollout = _with_gates(view, decision.rollout or view.rollout)
    found = blockers(view, rollout)
    rollout = _with_hold(view, rollout, found)
    step = rollout.step
    if step is not None and rollout.state is view.state:
        step = step.model_copy(update={"detail": found[0].message if found else None})
    rollout = rollout.model_copy(update={"blockers": found, "step": step})
    following = bool(view.expected_followers(view.active))
    status = view.status.model_copy(
        update={
            **_own_status(view),
            **decision.changes,
            "rollout": rollout,
            "observed_generation": view.resource.metadata_generation,
            "certificate_expires_at": view.observed.certificates.expires_at,
            "endpoints": _endpoints(view),
            "replicas": sum(pod.follows is following for pod in view.running_pods(view.active)),
            "selector": _selector(view),
        }
    )
    generations = _generations(view, status)
    active = next((each for each in generations if each.role is GenerationRole.ACTIVE), None)
    changes: dict[str, Any] = {
        "generations": generations,
        "conditions": conditions(view, status),
        "ready_pods": f"{active.pods_ready}/{active.pods}" if active is not None else None,
    }
    return _with_write_gap(view, status.model_copy(update=changes))


def _with_hold(view: ResourceView, rollout: Rollout, found: list[Blocker]) -> Rollout:
    """Time that the user held the attempt, or its gates were good, moves the deadline on once it is over.

    So one answer that is lost does not end an attempt whose gates were good beyond its deadline.
    """
    held_by = {each.reason for each in found}
    over = [each.since for each in view.holding if each.reason not in held_by]
    if not over or rollout.deadline is None:
        return rollout
    until = min([view.now, *(each.since for each in view.holding if each.reason in held_by)])
    held = max(int((until - min(over)).total_seconds()), 0)
    changes: dict[str, Any] = {
        "deadline": rollout.deadline + timedelta(seconds=held),
        "held_seconds": (rollout.held_seconds or 0) + held,
    }
    waited = [each.since for each in view.holding if each.reason in WINDOW_REASONS - held_by]
    if waited and view.would_promote and rollout.state is not State.ABORTING:
        changes["message"] = _waited(rollout.message or "", waited[0], view.now)
    return rollout.model_copy(update=changes)


def _waited(told: str, since: datetime, until: datetime) -> str:
    """The words of a wait, or of one that began earlier and that `told` tells the first part of."""
    begin, to, _ = told.rpartition(" to ")
    return f"{begin if to and told.startswith(WAITED) else f'{WAITED} {since:%F %R}'} to {until:%F %R} UTC"


def _with_gates(view: ResourceView, rollout: Rollout) -> Rollout:
    """How the gates stand; what they say again is not written again at each answer."""
    if rollout.state in (State.PROMOTING, State.ABORTING):
        return rollout
    stored = {each.name: each for each in view.rollout.gates}
    told = list(view.gates.values()) if rollout.state is view.state else []
    return rollout.model_copy(update={"gates": [_told_again(stored.get(each.name), each) for each in told]})


def _told_again(stored: GateStatus | None, gate: GateStatus) -> GateStatus:
    if stored is None or (stored.verdict, stored.since) != (gate.verdict, gate.since):
        return gate
    return stored if gate.at - stored.at < GATE_INTERVAL else gate


def _with_write_gap(view: ResourceView, status: Status) -> Status:
    """The operator's measure of how long nobody could write (3.6), once both generations have reported."""
    served = view.state in (State.BAKING, State.RETIRING)
    if not served or not status.history or status.history[0].generation != view.active:
        return status
    newest = status.history[0]
    stages = [(pod.generation, pod.stage) for pod in view.observed.pods if pod.stage is not None]
    ours = [stage for number, stage in stages if number == view.active]
    gaps = [stage.write_gap_ms for stage in ours if stage.write_gap_ms]
    first = [stage.first_write_ms for stage in ours if stage.first_write_ms]
    last = [stage.last_write_ms for number, stage in stages if number != view.active and stage.last_write_ms]
    if newest.write_gap_ms is not None:
        return status
    if gaps and all(stage.leads for stage in ours):
        gap = max(gaps)
    elif first and last:
        gap = max(min(first) - max(last), 0)
    else:
        return status
    measured = newest.model_copy(update={"write_gap_ms": gap})
    return status.model_copy(update={"history": [measured, *status.history[1:]]})


def _generations(view: ResourceView, status: Status) -> list[Generation]:
    active, coming = status.active_generation, status.next_generation
    standby = view.standby if status.rollout is not None and status.rollout.state is State.BAKING else 0
    others = {pod.generation for pod in view.observed.pods} - {active, coming, standby}
    numbers = [
        *((active, GenerationRole.ACTIVE) for active in [active] if active),
        *((coming, GenerationRole.NEXT) for coming in [coming] if coming),
        *((standby, GenerationRole.STANDBY) for standby in [standby] if standby),
        *((number, GenerationRole.RETIRING) for number in sorted(others, reverse=True)),
    ]
    return [_generation(view, number, role) for number, role in numbers[:GENERATIONS_MAX_ITEMS]]


def _generation(view: ResourceView, number: int, role: GenerationRole) -> Generation:
    revision = view.revision(number)
    pods = view.live_pods(number)
    stages = [pod.stage for pod in pods if pod.stage is not None]
    lowest = min((stage.stage for stage in stages), default=None)
    told = [(one.progress, one.target) for one in stages if one.progress is not None and one.target is not None]
    # Both of one pod: numbers of two pods, or of two looks, say nothing about each other.
    progress, target = max(told, key=lambda pair: (pair[1] - pair[0], -pair[0]), default=(None, None))
    return Generation(
        number=number,
        role=role,
        image=view.image_of(number),
        id=view.id_of(number) or view.rollout.id or "",
        pods_ready=sum(pod.ready for pod in view.running_pods(number)),
        pods=len(view.expected_pods(number)) + len(view.expected_followers(number)),
        stage=Stage(lowest).title if lowest is not None else None,
        progress=progress,
        target=target,
        since=parse_time(revision.body["metadata"].get("creationTimestamp")) if revision else None,
    )


def _endpoints(view: ResourceView) -> list[Endpoint]:
    """Where clients connect: the Service's name, or the pods where the Service has no address of its own (1.9)."""
    if view.service is None or not view.selected:
        return []
    spec: Mapping[str, Any] = view.service.body.get("spec", {})
    ports = spec.get("ports") or []
    if spec.get("clusterIP") != "None":
        addresses = [f"{view.service.name}.{view.resource.namespace}.svc"]
    else:
        addresses = sorted(pod.address for pod in view.live_pods(view.selected) if pod.ready and pod.address)
    return [
        Endpoint(name=port.get("name", ""), address=address, port=port["port"], protocol=port.get("protocol", "TCP"))
        for address in addresses
        for port in ports
    ][:ENDPOINTS_MAX_ITEMS]


def _selector(view: ResourceView) -> str:
    """The labels of the pods that are counted in `replicas`, as the API writes them: those that others lead, else those
    that the public Service selects when it leads to the active generation."""
    service = view.kind.renderer.public_service(view.resource, view.active)
    led = (each for each in view.rendered(view.active) if each.kind == STATEFUL_SET and view.follows(each))
    selectors = (each.body["spec"]["selector"]["matchLabels"] for each in led)
    labels = next(selectors, service.body["spec"]["selector"])
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _settled(view: ResourceView, status: Status) -> tuple[Status | None, datetime | None]:
    """The status if it is worth writing, else None and when to look again (2.6)."""
    if view.resource.status is None:
        return status, None
    stored, wanted = view.resource.status.in_key_order(), status.in_key_order()
    if stored == wanted:
        return None, None
    written = view.observed.status_written_at
    due = written + TEXT_INTERVAL if written is not None else view.now
    if view.now < due and _skeleton(stored) == _skeleton(wanted):
        return None, due
    return status, None


def _skeleton(status: Status) -> dict[str, Any]:
    """The status without what changes all the time: texts, counters, gates, and what only the kind knows."""
    rollout = status.rollout
    blockers = [each for each in rollout.blockers if not each.reason.startswith(GATE)] if rollout else []
    return {
        **{name: getattr(status, name) for name in Status.model_fields},
        "rollout": rollout
        and rollout.model_copy(
            update={
                "blockers": [blocker.model_copy(update={"message": "", "lag": None}) for blocker in blockers],
                "step": rollout.step and rollout.step.model_copy(update={"detail": None}),
                "gates": [],
                "deadline": None,  # which gates move on whose answers change all the time
                "held_seconds": None,
            }
        ),
        "generations": [
            generation.model_copy(update={"progress": None, "target": None}) for generation in status.generations
        ],
        "conditions": [
            each.model_copy(update={"message": "", "reason": GATE if each.reason.startswith(GATE) else each.reason})
            for each in status.conditions
        ],
    }
