"""What others refer to is not deleted under them (docs/specs/operator.md 2.10)."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pavane_operator.crds.definitions import all_kinds, definition_of, referring
from pavane_operator.crds.schema import structural_schema
from pavane_operator.crds.status import State
from pavane_operator.plan.effects import DELETION_LIMIT
from pavane_operator.plan.model import DELETE_IN_USE_ANNOTATION, SKIP_FINALIZER_ANNOTATION, DeleteChild, MarkResource
from tests.operator.test_plan_status import Lab, conditions_of

USERS = ("WaltzCluster/log",)


@pytest.fixture
def held() -> Lab:
    lab = Lab()
    lab.active(1)
    lab.world.users = USERS
    lab.world.delete()
    lab.until(lambda world: world.condition("InUse") == ("True", "Referenced"))
    return lab


def until_gone(lab: Lab) -> None:
    lab.until(lambda world: world.gone)


def test_what_is_referred_to_serves_on_and_says_who_holds_it(held: Lab) -> None:
    (condition,) = [each for each in held.world.status.conditions if each.type == "InUse"]
    assert "WaltzCluster/log" in condition.message
    assert DELETE_IN_USE_ANNOTATION in condition.message
    assert conditions_of(held.world.status)["Ready"] == ("True", "Serving")
    assert [event.reason for event in held.plan().lasting] == ["InUse"]
    for _ in range(5):
        held.world.now += DELETION_LIMIT
        held.until(lambda world: held.plan().empty)
    assert held.plan().wake_at is not None
    assert len(held.world.pods_of(1)) == 3


def test_it_is_kept_in_order_and_rolled_out_while_it_is_held(held: Lab) -> None:
    del held.world.objects["StatefulSet", "thing-server-g1"]
    held.until(lambda world: ("StatefulSet", "thing-server-g1") in world.objects)
    held.world.rollout(restart="1")
    held.active(2)


def test_it_goes_once_nobody_refers_to_it_with_all_the_time_that_a_deletion_has(held: Lab) -> None:
    held.world.now += timedelta(hours=1)
    held.world.users = ()
    held.world.stuck = True
    held.until(lambda world: not any(kind == "StatefulSet" for kind, _ in world.objects))
    assert not held.world.gone
    held.world.stuck = False
    until_gone(held)
    assert "DeletionIncomplete" not in held.events


def test_who_refers_to_it_later_does_not_stop_what_has_begun(held: Lab) -> None:
    held.world.users = ()
    held.until(lambda world: world.condition("InUse") == ("False", "Released"))
    held.world.users = USERS
    until_gone(held)


@pytest.mark.parametrize("annotation", [DELETE_IN_USE_ANNOTATION, SKIP_FINALIZER_ANNOTATION])
def test_an_annotation_forces_it(held: Lab, annotation: str) -> None:
    held.world.annotations[annotation] = "true"
    until_gone(held)


def test_a_status_that_was_lost_is_rebuilt_while_it_is_held(held: Lab) -> None:
    held.world.stored_status = None
    held.until(lambda world: world.condition("InUse") == ("True", "Referenced"))
    assert held.world.status.active_generation == 1
    assert held.world.state is State.IDLE


def test_nothing_goes_before_the_record_that_it_may() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.users = ()
    lab.world.delete()
    decided = lab.plan()
    assert decided.status is not None
    assert not any(isinstance(action, (DeleteChild, MarkResource)) for action in decided.actions)


def test_without_our_finalizer_nothing_can_be_held() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.users = USERS
    lab.world.finalizers = ("somebody/elses",)
    lab.world.delete()
    assert lab.plan().row == "A1"
    assert lab.plan().empty


def references(schema: dict[str, Any], path: str = "spec") -> set[str]:
    """Paths of all fields that name another resource of ours, by their names."""
    found = set()
    for name, inner in (schema.get("properties") or {}).items():
        own = f"{path}.{name}"
        found |= {f"{own}.name"} if name.endswith(("ClusterRef", "GroupRef")) else set()
        found |= references(inner, own)
    return found


def test_every_reference_between_resources_is_declared() -> None:
    for each in all_kinds():
        assert references(structural_schema(each.spec)) == {path for path, _ in each.refers}
    assert {kind.name: {each.name for each in referring(kind.name)} for kind in all_kinds()} == {
        "Backup": set(),
        "ComputeCluster": {"Dataflow"},
        "Coordinator": set(),
        "Dataflow": set(),
        "RaftCluster": {"WaltzCluster"},
        "SwimGroup": set(),
        "WaltzCluster": {"ComputeCluster", "Coordinator"},
    }


def test_what_a_resource_refers_to_is_read_from_its_object() -> None:
    coordinator = definition_of("Coordinator")
    assert coordinator.targets({"spec": {"log": {"waltzClusterRef": {"name": "w"}}}}) == ("WaltzCluster/w",)
    assert coordinator.targets({"spec": {}}) == ()
    assert coordinator.targets({"spec": {"log": None}}) == ()


def test_what_it_has_left_with_others_goes_behind_its_pods_and_before_the_resource() -> None:
    async def leave(*_: Any) -> None:
        raise AssertionError("a plan calls nobody")

    lab = Lab()
    lab.world.kind = replace(lab.world.kind, leave=leave)
    lab.active(1)
    lab.world.delete()
    until_gone(lab)
    assert lab.world.left
