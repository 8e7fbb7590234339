"""Upkeep of what a resource has beside its generations: budget, policies, volumes (docs/specs/operator.md 4.1, 4.3)."""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from pavane_operator.crds.status import State
from pavane_operator.plan.model import ApplyChild, Child, CreateChild, DeleteChild, GrowVolume, Refusal
from pavane_operator.plan.volumes import RETRY
from tests.operator.model_cluster import World
from tests.operator.model_cluster_kind import NAME, body_of
from tests.operator.test_plan_status import Lab, conditions_of

BUDGET = ("PodDisruptionBudget", "thing-server")
KEYS = ("Secret", "thing-keys")


def _budget(world: World) -> dict[str, Any] | None:
    found = world.objects.get(BUDGET)
    return None if found is None else found["spec"]


def test_the_budget_covers_all_who_may_write_and_lets_nobody_go_while_that_moves() -> None:
    lab = Lab()
    lab.active(1)
    world = lab.until(lambda world: lab.plan().empty)
    assert _budget(world) == {"over": [1], "maxUnavailable": 1}
    world.rollout(restart="1")
    lab.until(lambda world: world.state is State.CATCHING_UP)
    assert _budget(world) == {"over": [1], "maxUnavailable": 1}
    world.faults.step_refusals = 3
    lab.until(lambda world: world.state is State.PROMOTING and _budget(world) == {"over": [1, 2], "maxUnavailable": 0})
    lab.until(lambda world: world.state is State.RETIRING and _budget(world) == {"over": [2], "maxUnavailable": 1})


def test_while_a_first_generation_gets_the_right_to_write_one_may_go() -> None:
    lab = Lab()
    lab.until(lambda world: world.state is State.PROMOTING and _budget(world) is not None)
    assert _budget(lab.world) == {"over": [1], "maxUnavailable": 1}


def test_nobody_may_go_while_members_come_and_go() -> None:
    lab = Lab()
    lab.active(1)
    world = lab.until(lambda world: lab.plan().empty)
    world.change(replicas=5)
    lab.until(lambda world: _budget(world) == {"over": [1], "maxUnavailable": 0})
    lab.until(lambda world: _budget(world) == {"over": [1], "maxUnavailable": 1})
    assert len(world.pods) == 5


def test_a_budget_that_is_turned_off_goes_and_comes_back() -> None:
    lab = Lab()
    world = lab.active(1)
    world.change(podDisruptionBudget={"enabled": False})
    lab.until(lambda world: BUDGET not in world.objects)
    lab.until(lambda world: lab.plan().empty)
    world.change(podDisruptionBudget={"enabled": True})
    lab.until(lambda world: BUDGET in world.objects)
    assert world.status.active_generation == 1


def test_a_policy_that_nobody_renders_goes_and_one_that_is_going_is_waited_for() -> None:
    lab = Lab()
    lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    body: dict[str, Any] = {"kind": "NetworkPolicy", "metadata": {"name": "stray", "labels": {}}}
    stray = Child("NetworkPolicy", "stray", "u", "7", body)
    children = lab.operator.observe().children
    assert lab.plan(children=(*children, stray)).actions == (DeleteChild("NetworkPolicy", "stray", "u", "7"),)
    body = {**body, "metadata": {**body["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    going = Child("NetworkPolicy", "stray", "u", "7", body)
    assert lab.plan(children=(*children, going)).actions == ()


def test_keys_that_are_gone_come_back_as_they_were_or_not_at_all() -> None:
    lab = Lab()
    lab.active(1)
    world = lab.until(lambda world: lab.plan().empty)
    del world.objects[KEYS]
    told = lab.plan().status
    assert told is not None
    assert conditions_of(told)["UpToDate"] == ("False", "KeysLost")
    assert conditions_of(told)["Stalled"] == ("True", "KeysLost")
    assert lab.plan().actions == (), "other keys than those that running pods have"
    former = {**body_of(*KEYS, None), "data": {"secret": "YQ=="}}
    former["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    (action,) = lab.plan(remembered={KEYS: former}).actions
    assert isinstance(action, CreateChild)
    assert action.manifest.body == {**body_of(*KEYS, None), "data": {"secret": "YQ=="}}


def test_what_a_generation_is_made_of_comes_back_or_a_restart_replaces_it() -> None:
    lab = Lab()
    lab.active(1)
    world = lab.until(lambda world: lab.plan().empty)
    revision = ("ControllerRevision", f"{NAME}-g1")
    former = world.objects.pop(revision)
    (action,) = lab.plan(remembered={revision: former}).actions
    assert isinstance(action, CreateChild)
    assert action.manifest.body["data"] == former["data"]
    assert "uid" not in action.manifest.body["metadata"]
    told = lab.plan().status
    assert told is not None
    assert conditions_of(told)["Stalled"] == ("True", "RevisionLost")
    assert "spec.rollout.restart" in next(each.message for each in told.conditions if each.type == "Stalled")
    world.rollout(restart="1")
    lab.active(2)
    lab.until(lambda world: world.condition("UpToDate") == ("True", "Applied") and world.condition("Stalled") is None)


@pytest.mark.parametrize("state", [State.INITIALIZING, State.CAUGHT_UP])
def test_an_attempt_whose_revision_is_gone_is_begun_anew(state: State) -> None:
    lab = Lab(strategy="Manual")
    lab.active(1)
    world = lab.until(lambda world: lab.plan().empty)
    world.rollout(restart="1")
    lab.until(lambda world: world.state is state)
    del world.objects["ControllerRevision", f"{NAME}-g2"]
    lab.until(lambda world: world.status.next_generation == 3 and world.state is State.CAUGHT_UP)
    assert (world.status.history[0].generation, world.status.history[0].reason) == (2, "Superseded")
    assert world.status.failed is None


def test_nothing_is_rolled_out_on_keys_that_are_gone() -> None:
    lab = Lab()
    lab.active(1)
    world = lab.until(lambda world: lab.plan().empty)
    del world.objects[KEYS]
    world.rollout(restart="1")
    lab.until(lambda world: world.condition("UpToDate") == ("False", "KeysLost"))
    assert world.status.last_generation == 1


def test_a_budget_that_somebody_changed_is_applied_again() -> None:
    lab = Lab()
    world = lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    children = []
    for child in lab.operator.observe().children:
        body = copy.deepcopy(dict(child.body))
        if child.kind == "PodDisruptionBudget":
            body["spec"]["maxUnavailable"] = 3
        children.append(Child(child.kind, child.name, child.uid, child.resource_version, body))
    (action,) = lab.plan(children=tuple(children)).actions
    assert isinstance(action, ApplyChild)
    assert action.manifest.body["spec"] == _budget(world)


# ---- volumes


def _with_claim(lab: Lab, requested: str, capacity: str | None = None, **status: Any) -> tuple[Child, ...]:
    """The children of the lab, with volume claims as a real server shows one."""
    children = []
    for child in lab.operator.observe().children:
        body = dict(child.body)
        if child.kind == "PersistentVolumeClaim":
            body["spec"] = {"resources": {"requests": {"storage": requested}}}
            told = {} if capacity is None else {"capacity": {"storage": capacity}}
            body["status"] = {"phase": "Bound", **told, **status}
        children.append(Child(child.kind, child.name, child.uid, child.resource_version, body))
    return tuple(children)


def _steady(size: str) -> Lab:
    lab = Lab()
    lab.active(1)
    lab.world.change(storage={"size": size})
    lab.until(lambda world: lab.plan().empty)
    return lab


@pytest.mark.parametrize(
    ("requested", "grows"),
    [("2Gi", True), ("4095Mi", True), ("4Gi", False), ("4096Mi", False), ("5Gi", False), ("1e3", False)],
)
def test_claims_grow_to_the_size_of_the_spec_and_never_shrink(requested: str, grows: bool) -> None:
    lab = _steady("4Gi")
    actions = lab.plan(children=_with_claim(lab, requested)).actions
    names = {f"data-thing-server-g1-{ordinal}" for ordinal in range(3)} if grows else set()
    assert {action.name for action in actions if isinstance(action, GrowVolume)} == names
    assert {action.size for action in actions if isinstance(action, GrowVolume)} <= {"4Gi"}


def test_a_claim_that_is_not_bound_yet_is_left_alone() -> None:
    lab = _steady("4Gi")
    assert lab.plan(children=_with_claim(lab, "2Gi", phase="Pending")).actions == ()


def test_a_volume_that_is_being_resized_is_told() -> None:
    lab = _steady("4Gi")
    waiting = {"type": "FileSystemResizePending", "status": "True", "message": "waiting for the node"}
    children = _with_claim(lab, "4Gi", "2Gi", conditions=[waiting])
    found = {each.type: each for each in lab.status(children=children).conditions}
    assert (found["Reconciling"].status, found["Reconciling"].reason) == ("True", "VolumeResizing")
    assert "growing to 4Gi; FileSystemResizePending: waiting for the node" in found["Reconciling"].message
    assert found["Ready"].status == "True"
    done = lab.status(children=_with_claim(lab, "4Gi", "4Gi"))
    assert "Reconciling" not in {each.type for each in done.conditions}


def test_a_growth_that_the_storage_class_refuses_is_told_and_not_asked_for_again_at_once() -> None:
    lab = _steady("4Gi")
    children = _with_claim(lab, "2Gi", "2Gi")
    refusal = Refusal("4Gi", "the storageclass must support resize", lab.world.now)
    refusals = {child.uid: refusal for child in children if child.kind == "PersistentVolumeClaim"}
    planned = lab.plan(children=children, refusals=refusals)
    assert planned.actions == ()
    assert planned.status is not None
    found = {each.type: each for each in planned.status.conditions}
    assert (found["Stalled"].status, found["Stalled"].reason) == ("True", "VolumeCannotGrow")
    assert "the storageclass must support resize" in found["Stalled"].message
    assert found["Ready"].status == found["UpToDate"].status == "True"

    lab.world.change(storage={"size": "8Gi"})
    again = lab.plan(children=children, refusals=refusals).actions
    assert {action.size for action in again if isinstance(action, GrowVolume)} == {"8Gi"}
    lab.world.change(storage={"size": "4Gi"})
    lab.world.now += RETRY + timedelta(seconds=1)
    assert any(isinstance(action, GrowVolume) for action in lab.plan(children=children, refusals=refusals).actions)


def _volumes(world: World) -> set[int]:
    labels = [
        body["metadata"]["labels"] for (kind, _), body in world.objects.items() if kind == "PersistentVolumeClaim"
    ]
    return {int(each["pavane.dev/generation"]) for each in labels}


def test_volumes_of_a_retired_generation_are_kept_for_as_long_as_the_spec_says_so() -> None:
    lab = Lab()
    world = lab.active(1)
    world.change(storage={"size": "2Gi", "retain": True})
    world.rollout(restart="1")
    lab.active(2)
    lab.until(lambda world: lab.plan().empty)
    assert _volumes(world) == {1, 2}
    world.change(storage={"size": "2Gi", "retain": False})
    lab.until(lambda world: _volumes(world) == {2})
