"""What is worth an event for as long as it lasts (docs/specs/operator.md 5.10); the runtime posts each one once."""

from datetime import datetime

from pavane_operator.crds.status import State, Truth, Verdict
from pavane_operator.plan.attempt import WINDOW_REASONS
from pavane_operator.plan.blockers import WRITE_STOP_LIMIT
from pavane_operator.plan.gates import closed_gate
from pavane_operator.plan.model import EXPIRES_SOON, IN_USE, TEMPLATE_DRIFT, Event
from pavane_operator.plan.view import ResourceView

TOLD_GATES = WINDOW_REASONS | {"WaitingForApproval"}
"""Gates that wait for a person, or for long; the others open by themselves soon, or the person closed them."""


def lasting_events(view: ResourceView) -> tuple[Event, ...]:
    """Everything of this kind that holds now."""
    told = (Event(each.reason, each.message, warning=True) for each in view.facts.warnings)
    held = (Event(IN_USE, f"it is not deleted while {', '.join(view.users)} refers to it", warning=True),)
    return (
        *(held if view.users else ()),
        *_expires(view),
        *_gates(view),
        *_drifts(view),
        *_fenced(view),
        *_down(view),
        *told,
    )


def _expires(view: ResourceView) -> tuple[Event, ...]:
    end = view.observed.certificates.expires_at
    if end is None or view.now < end - EXPIRES_SOON:
        return ()
    note = f"renew Secret {view.spec.tls.secret_name}: its tls.crt ends {end:%Y-%m-%d %H:%M} UTC"
    return (Event("CertificateExpires", note, warning=True),)


def told_down_at(view: ResourceView) -> datetime | None:
    """When it is worth an event that nobody can write; an election takes less than that."""
    ready = next((each for each in view.status.conditions if each.type == "Ready"), None)
    if view.facts.down is None or ready is None or ready.status is not Truth.FALSE:
        return None
    return ready.last_transition_time + WRITE_STOP_LIMIT if ready.reason == view.facts.down.reason else None


def _down(view: ResourceView) -> tuple[Event, ...]:
    due = told_down_at(view)
    if due is None or view.now < due or view.facts.down is None:
        return ()
    return (Event(view.facts.down.reason, f"nobody can write: {view.facts.down.message}", warning=True),)


def _gates(view: ResourceView) -> tuple[Event, ...]:
    gate = closed_gate(view) if view.state is State.CAUGHT_UP else None
    held = (Event(gate.reason, gate.message),) if gate is not None and gate.reason in TOLD_GATES else ()
    asked = (  # without what was found, which may be something else each time
        Event(f"Gate{each.verdict}", f"gate {each.name}: status.rollout.gates says what was found", warning=True)
        for each in view.closed_gates
        if each.verdict not in (Verdict.WAITING, Verdict.FAILING)
    )
    return (*held, *asked)


def _drifts(view: ResourceView) -> tuple[Event, ...]:
    return tuple(
        Event(TEMPLATE_DRIFT, f"somebody changed the pod template of StatefulSet {name}: no pod is replaced for it")
        for name in view.drifted
    )


def _fenced(view: ResourceView) -> tuple[Event, ...]:
    """Pods of a former generation that run although it was retired: they may write no more, and are removed."""
    if view.state is not State.IDLE:
        return ()
    return tuple(
        Event("FencedPod", f"pod {pod.name} belongs to generation {pod.generation}; only {view.active} writes", True)
        for pod in view.observed.pods
        if pod.generation < view.active and not pod.deleting
    )
