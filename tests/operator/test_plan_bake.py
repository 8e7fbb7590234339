"""A former generation that follows: what the status says of it, what keeps it from taking over (operator.md 2.7)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta

import pytest

from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.status import GenerationRole, Result, State
from pavane_operator.plan.model import CAN_SWITCH_BACK, ROLLOUT_ID_ANNOTATION, DeleteChild, Pod, Problem
from tests.operator.model_cluster_gates import gate
from tests.operator.model_cluster_kind import NAME
from tests.operator.test_plan_status import Lab


def baking(**rollout: str) -> Lab:
    lab = Lab(bake="10m", **rollout)
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.condition(CAN_SWITCH_BACK) == ("True", "Following"))
    return lab


def test_the_status_says_what_stands_by_until_when_and_what_it_costs() -> None:
    lab = baking()
    status = lab.world.status
    roles = [(each.number, each.role, each.pods_ready, each.pods) for each in status.generations]
    assert sorted(roles) == [(1, GenerationRole.STANDBY, 0, 3), (2, GenerationRole.ACTIVE, 3, 3)]
    (told,) = [each.message for each in status.conditions if each.type == CAN_SWITCH_BACK]
    ends = status.history[0].finished_at + timedelta(minutes=10)
    assert told.startswith(f"generation 1 follows with 3 pods and 3 volumes until {ends:%Y-%m-%d %H:%M:%S} UTC")
    assert lab.plan().wake_at is not None
    assert not any(isinstance(action, DeleteChild) for action in lab.plan().actions)


def test_without_a_bake_the_former_generation_retires_at_once() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    assert lab.until(lambda world: world.status.active_generation == 2).state is State.RETIRING


def test_a_way_back_is_told_by_events_and_history_and_is_no_failure() -> None:
    lab = baking()
    lab.world.rollout(restart="")
    world = lab.active(1)
    assert {"SwitchingBack", "SwitchedBack"} <= set(lab.events)
    results = [(each.generation, each.result, each.reason) for each in world.status.history]
    assert results == [(1, Result.PROMOTED, None), (2, Result.ROLLED_BACK, "SwitchedBack")]
    assert world.status.failed is None
    assert ("ControllerRevision", f"{NAME}-g2") in world.objects


def test_the_way_back_to_a_generation_of_the_first_release_is_known() -> None:
    lab = Lab(bake="10m")
    lab.world.change(resources={"requests": {"cpu": "1000m"}})
    lab.active(1)
    spec = lab.world.parsed_spec()
    written = rollout_id("Model", spec, as_written=True)
    assert written != rollout_id("Model", spec)
    annotations = lab.world.objects["ControllerRevision", f"{NAME}-g1"]["metadata"]["annotations"]
    annotations[ROLLOUT_ID_ANNOTATION] = written
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.condition(CAN_SWITCH_BACK) == ("True", "Following"))
    lab.world.rollout(restart="")
    lab.active(1)


def _without_node(pod: Pod) -> Pod:
    return dataclasses.replace(pod, scheduled=False)


def _silent(pod: Pod) -> Pod:
    return dataclasses.replace(pod, stage=None)


def _behind(pod: Pod) -> Pod:
    assert pod.stage is not None
    return dataclasses.replace(pod, stage=dataclasses.replace(pod.stage, within_lag_since=None))


def _fenced(pod: Pod) -> Pod:
    """It restarted, and rests; a short log makes no lag."""
    assert pod.stage is not None
    return dataclasses.replace(pod, stage=dataclasses.replace(pod.stage, done=True))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (_without_node, "PodNotScheduled"),
        (_silent, "NotFollowing"),
        (_behind, "NotFollowing"),
        (_fenced, "NotFollowing"),
    ],
)
def test_it_does_not_begin_while_a_former_pod_could_not_take_over(fault: Callable[[Pod], Pod], reason: str) -> None:
    lab = baking()
    lab.world.rollout(restart="")
    name = f"{NAME}-server-g1-1"
    pods = tuple(fault(pod) if pod.name == name else pod for pod in lab.operator.observe().pods)
    status = lab.status(pods=pods)
    assert status.rollout is not None
    assert status.rollout.state is State.BAKING
    assert [blocker.reason for blocker in status.rollout.blockers] == [reason]
    assert name in status.rollout.blockers[0].message


def test_it_does_not_begin_without_a_majority_of_those_who_write() -> None:
    lab = baking()
    lab.world.rollout(restart="")
    silent = dataclasses.replace(lab.operator.observe().facts, safety=Problem("NoQuorum", "no majority"))
    status = lab.status(facts=silent)
    assert status.rollout is not None
    assert (status.rollout.state, status.rollout.blockers[0].reason) == (State.BAKING, "NoQuorum")


def test_volumes_of_what_a_gate_sent_back_go_once_the_active_generation_has_all_that_they_hold() -> None:
    lab = baking()
    lab.world.faults.answers["probe"] = False
    lab.world.rollout(gates=[gate("SwitchBack")])
    lab.until(lambda world: world.state is State.IDLE and world.status.failed is not None)

    def deleted(fault: Callable[[Pod], Pod] = lambda pod: pod) -> set[str]:
        pods = tuple(map(fault, lab.operator.observe().pods))
        found = (each for each in lab.plan(pods=pods).actions if isinstance(each, DeleteChild))
        return {each.name for each in found if each.kind == "PersistentVolumeClaim"}

    def late(pod: Pod) -> Pod:
        assert pod.stage is not None
        return dataclasses.replace(pod, stage=dataclasses.replace(pod.stage, progress=0, target=1_000_000))

    assert deleted(_silent) == deleted(late) == set()
    assert deleted() == {f"data-{NAME}-server-g2-{ordinal}" for ordinal in range(3)}
