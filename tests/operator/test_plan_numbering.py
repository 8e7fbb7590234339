"""Numbers and a lost status (docs/specs/operator.md 2.3)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from pavane.wire.stages import Stage
from pavane_operator.crds.status import State, Status
from pavane_operator.plan.model import (
    FINALIZER,
    GENERATION_LABEL,
    LAST_GENERATION_ANNOTATION,
    Child,
    Facts,
    Observed,
    Plan,
    Pod,
    Resource,
    StageView,
)
from pavane_operator.plan.planner import plan
from tests.operator.model_cluster_kind import FENCE, KIND, NAME, START, UID, ModelSpec


def _child(kind: str, name: str, generation: int | None, spec: dict[str, Any] | None = None) -> Child:
    labels = {} if generation is None else {GENERATION_LABEL: str(generation)}
    body = {"metadata": {"name": name, "labels": labels}, "spec": spec or {}, "data": {"image": ""}}
    return Child(kind, name, f"uid-{name}", "1", body)


def _service(selected: int) -> Child:
    return _child("Service", NAME, None, {"selector": {GENERATION_LABEL: str(selected)}})


def _set(generation: int) -> Child:
    return _child("StatefulSet", f"{NAME}-server-g{generation}", generation)


def _pod(generation: int, stage: Stage | None, **rest: Any) -> Pod:
    view = None if stage is None else StageView(stage, connected=False, **rest)
    return Pod(f"{NAME}-server-g{generation}-0", f"uid-{generation}", "1", generation, address="127.0.0.1", stage=view)


def _plan(observed: Observed, annotation: str, status: Status | None = None) -> Plan:
    resource = Resource(
        kind="Model",
        name=NAME,
        namespace="default",
        uid=UID,
        resource_version="1",
        metadata_generation=1,
        spec=ModelSpec(),
        status=status,
        finalizers=(FINALIZER,),
        annotations={LAST_GENERATION_ANNOTATION: annotation},
    )
    return plan(KIND, resource, observed, START)


def _claimed(annotation: str = "0", status: Status | None = None, **observed: Any) -> int | None:
    planned = _plan(Observed(fresh=True, **observed), annotation, status)
    assert planned.row == "B8"
    assert planned.status is not None
    return planned.status.next_generation


@pytest.mark.parametrize(
    ("observed", "number"),
    [
        ({}, 1),
        ({"annotation": "6"}, 7),
        ({"annotation": "nonsense"}, 1),
        ({"children": (_child("PersistentVolumeClaim", "old", 4),)}, 5),
        ({"children": (_child("ControllerRevision", "old", 3),)}, 4),
        ({"facts": Facts(fence=3, left=5), "children": (_child("Secret", f"{NAME}-keys", None),)}, 6),
        ({"facts": Facts(fence=8), "children": (_child("Secret", f"{NAME}-keys", None),)}, 9),
        ({"status": Status.parse({"lastGeneration": 5, "rollout": {"state": "Idle"}})}, 6),
    ],
)
def test_a_new_number_is_beyond_every_one_that_is_known(observed: dict[str, Any], number: int) -> None:
    assert _claimed(**observed) == number


def _rebuilt(*pods: Pod, children: tuple[Child, ...] = (), fence: int | None = None) -> Plan:
    facts = Facts(fence=fence)
    return _plan(Observed(fresh=True, children=children, pods=pods, facts=facts), "9")


def _state(planned: Plan) -> tuple[int | None, State, int | None]:
    assert planned.row == "2.3"
    assert planned.actions == ()
    assert planned.status is not None
    assert planned.status.rollout is not None
    return planned.status.active_generation, planned.status.rollout.state, planned.status.next_generation


def test_pods_above_the_active_generation_without_the_fence_are_an_attempt() -> None:
    planned = _rebuilt(_pod(2, Stage.READ_ONLY), children=(_service(1), _set(1), _set(2)), fence=1)
    assert _state(planned) == (1, State.INITIALIZING, 2)


@pytest.mark.parametrize(
    ("pod", "fence"),
    [
        (_pod(2, Stage.READ_WRITE), None),
        (_pod(2, Stage.READ_ONLY), 2),
        (_pod(2, Stage.READ_ONLY, fence=2), None),
    ],
)
def test_pods_above_that_may_have_written_are_being_promoted_and_nothing_aborts_that(
    pod: Pod, fence: int | None
) -> None:
    planned = _rebuilt(pod, children=(_service(1), _set(1), _set(2)), fence=fence)
    assert _state(planned) == (1, State.PROMOTING, 2)
    assert planned.status is not None
    assert planned.status.rollout is not None
    assert planned.status.rollout.step is not None
    assert planned.status.rollout.step.name == FENCE.name


def test_while_the_store_does_not_answer_nothing_is_decided() -> None:
    planned = _rebuilt(_pod(2, Stage.READ_ONLY), children=(_service(1), _set(1), _set(2)))
    assert planned.row == "2.3"
    assert planned.empty
    assert planned.wake_at is not None
    assert planned.streams == {f"{NAME}-server-g2-0"}


def test_a_bootstrap_is_taken_up_once_every_pod_was_heard() -> None:
    assert _rebuilt(_pod(1, None), children=(_service(0), _set(1))).empty
    heard = _rebuilt(_pod(1, Stage.CREATION), children=(_service(0), _set(1)))
    assert _state(heard) == (None, State.INITIALIZING, 1)
    writes = _rebuilt(_pod(1, Stage.READ_WRITE), children=(_service(0), _set(1)))
    assert _state(writes) == (None, State.PROMOTING, 1)


def test_only_older_generations_beside_the_active_one_are_retired() -> None:
    planned = _rebuilt(_pod(1, None), children=(_service(2), _set(1), _set(2)), fence=2)
    assert _state(planned) == (2, State.RETIRING, None)


def test_without_the_service_the_fence_says_who_is_active() -> None:
    planned = _rebuilt(_pod(2, Stage.READ_WRITE), _pod(1, None), children=(_set(1), _set(2)), fence=2)
    assert _state(planned) == (2, State.RETIRING, None)


def test_an_unreadable_number_on_a_label_counts_for_nothing() -> None:
    stray = dataclasses.replace(_set(1), body={"metadata": {"labels": {GENERATION_LABEL: "9" * 40}}})
    assert _claimed(children=(stray,)) == 1


def test_an_aborted_attempt_of_unknown_spec_does_not_condemn_the_present_one() -> None:
    rollout = {"state": "Aborting", "generation": 2, "reason": "Cancelled"}
    status = Status.parse({"activeGeneration": 1, "nextGeneration": 2, "lastGeneration": 2, "rollout": rollout})
    planned = _plan(Observed(fresh=True, children=(_service(1), _set(1))), "2", status)
    assert planned.row == "D16"
    assert planned.status is not None
    assert planned.status.failed is None
    assert planned.status.history[0].reason == "Cancelled"
