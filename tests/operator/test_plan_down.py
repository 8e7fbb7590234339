"""Why an active generation is down is said, causes first (docs/specs/operator.md 2.6)."""

import dataclasses
from typing import Any

from pavane_operator.crds.status import State
from pavane_operator.plan.model import ActionFailure, Problem
from tests.operator.model_cluster_kind import NAME
from tests.operator.test_plan_status import Lab, blocker_of, reasons_of


def test_why_the_active_generation_is_down_is_said_while_nothing_is_rolled_out() -> None:
    lab = Lab()
    lab.active(1)
    said = "exit code 78: the view's partition holds what no view wrote"
    down: dict[str, Any] = {"ready": False, "restarts": 3, "ended": said, "stage": None}
    looping, between = {**down, "waiting_reason": "CrashLoopBackOff"}, down
    for seen in (looping, between):
        pods = tuple(dataclasses.replace(pod, **seen) for pod in lab.operator.observe().pods)
        facts = dataclasses.replace(lab.operator.observe().facts, down=Problem("ActiveDown", "no pod leads"))
        status = lab.status(pods=pods, facts=facts)
        assert reasons_of(status)[:3] == [(f"{NAME}-server-g1-{ordinal}", "CrashLoop") for ordinal in range(3)]
        assert said in blocker_of(status, "CrashLoop").message
        assert (None, "ActiveDown") in reasons_of(status)
    lab.until(lambda world: lab.plan().empty)
    assert reasons_of(lab.world.status) == []
    lab.world.change(suspend=True)
    lab.until(lambda world: not world.pods and lab.plan().empty)
    assert reasons_of(lab.world.status) == []


def test_the_cause_comes_before_what_follows_from_it() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.CREATING_NEXT)
    refused = ActionFailure("NotOurs", "StatefulSet thing-server-g2 exists and belongs to somebody else")
    found = reasons_of(lab.status(failure=refused))
    assert found[0] == (None, "NotOurs")
    assert "PodPending" in {reason for _, reason in found[1:]}
