"""What a user reads where something cannot be applied, or does not stay up (docs/specs/operator.md 2.6, 2.9)."""

from __future__ import annotations

import dataclasses

import pytest

from pavane_operator.crds.common import rollout_id
from pavane_operator.crds.status import State
from pavane_operator.plan.model import ROLLOUT_ID_ANNOTATION, ActionFailure, Certificates, Problem
from tests.operator.model_cluster_kind import NAME
from tests.operator.test_plan_status import Lab, conditions_of


@pytest.mark.parametrize(("reason", "condition"), [("InvalidConfig", "Stalled"), ("ReferenceNotReady", "Reconciling")])
def test_what_cannot_be_taken_live_is_told_although_nothing_is_rolled_out(reason: str, condition: str) -> None:
    lab = Lab()
    lab.active(1)
    told = lab.status(certificates=Certificates(problem=Problem(reason, "Secret mine does not exist")))
    assert conditions_of(told)["UpToDate"] == ("False", reason)
    assert conditions_of(told)[condition] == ("True", reason)
    assert conditions_of(told)["Ready"] == ("True", "Serving")


@pytest.mark.parametrize(
    ("rejected", "up_to_date", "condition"),
    [(True, ("False", "Invalid"), "Stalled"), (False, ("True", "Applied"), "Reconciling")],
)
def test_an_object_that_cannot_be_written_is_told_although_nothing_is_rolled_out(
    rejected: bool, up_to_date: tuple[str, str], condition: str
) -> None:
    lab = Lab()
    lab.active(1)
    told = lab.status(failure=ActionFailure("Invalid", "ports: must be unique", rejected=rejected))
    assert conditions_of(told)["UpToDate"] == up_to_date
    assert conditions_of(told)[condition] == ("True", "Invalid")
    assert {"Stalled", "Reconciling"} & conditions_of(told).keys() == {condition}


def test_a_crash_is_told_with_what_the_container_left_to_say_for_its_logs_go_with_the_pod() -> None:
    lab = Lab(crashLimit=1)
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.INITIALIZING)
    first, *others = (pod for pod in lab.operator.observe().pods if pod.generation == 2)
    ended = dataclasses.replace(first, waiting_reason="CrashLoopBackOff", ended="exit code 2: the disk is full")
    for restarts, kept in ((1, "blockers"), (2, "message")):
        told = lab.status(pods=(dataclasses.replace(ended, restarts=restarts), *others)).rollout
        assert told is not None
        assert "exit code 2: the disk is full" in str(getattr(told, kept))


def test_an_upgrade_rolls_no_generation_of_the_first_release() -> None:
    lab = Lab()
    lab.world.change(terminationGracePeriod="1m")
    lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    revision = lab.world.objects["ControllerRevision", f"{NAME}-g1"]["metadata"]["annotations"]
    spec = lab.world.parsed_spec()
    revision[ROLLOUT_ID_ANNOTATION] = rollout_id(lab.world.kind.name, spec, as_written=True)
    assert revision[ROLLOUT_ID_ANNOTATION] != rollout_id(lab.world.kind.name, spec)
    assert conditions_of(lab.status())["UpToDate"] == ("True", "Applied")
    assert lab.plan().row == "B3"
    lab.world.change(terminationGracePeriod="2m")
    lab.active(2)
