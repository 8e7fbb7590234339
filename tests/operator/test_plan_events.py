"""Events of what lasts: told by each plan for as long as it is so (docs/specs/operator.md 5.10)."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from pavane_operator.crds.status import State, Truth
from pavane_operator.plan.model import ApplyChild, Problem, RunStep
from tests.operator.model_cluster_kind import SERVING_EARLY
from tests.operator.test_plan_status import Lab


def lasting(lab: Lab, **observed: Any) -> list[str]:
    return [event.reason for event in lab.plan(**observed).lasting]


def test_who_waits_for_approval_says_so_until_it_is_given() -> None:
    lab = Lab(strategy="Manual")
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.CAUGHT_UP)
    assert "CaughtUp" in lab.events
    assert lasting(lab) == ["WaitingForApproval"]
    lab.world.rollout(promote=2)
    assert lasting(lab) == []


def test_a_pod_of_a_retired_generation_is_told() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.active(2)
    assert lasting(lab) == []
    seen = lab.operator.observe()
    late = dataclasses.replace(seen.pods[0], name="late", uid="late", generation=1)
    assert lasting(lab, pods=(*seen.pods, late)) == ["FencedPod"]


def test_a_template_that_is_not_its_revisions_any_more_is_told() -> None:
    lab = Lab()
    lab.active(1)
    assert lasting(lab) == []
    children = []
    for child in lab.operator.observe().children:
        body: Any = copy.deepcopy(dict(child.body))
        if child.kind == "StatefulSet":
            body["spec"]["template"] = {"spec": {"containers": []}}
        children.append(dataclasses.replace(child, body=body))
    assert lasting(lab, children=tuple(children)) == ["TemplateDrift"]
    told = {each.type: each for each in lab.status(children=tuple(children)).conditions}
    assert told["TemplateDrift"].status is Truth.TRUE
    assert "thing-server-g1" in told["TemplateDrift"].message
    assert "TemplateDrift" not in {each.type for each in lab.status().conditions}


def test_a_repair_and_a_change_of_size_after_it_are_nobody_elses_change() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.crash.add(1)
    lab.until(lambda world: world.condition("Ready") == ("False", "NoQuorum"))
    lab.world.change(image="good")
    lab.world.rollout(repair="1")
    lab.active(1)
    lab.until(lambda world: world.condition("Ready") == ("True", "Serving"))
    lab.world.change(replicas=5)
    lab.until(lambda world: world.condition("Reconciling") is None and len(world.pods) == 5)
    assert "TemplateDrift" not in lab.told


def test_a_lost_quorum_is_told_once_an_election_would_be_over() -> None:
    lab = Lab()
    lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    down = dataclasses.replace(lab.operator.observe().facts, down=Problem("NoQuorum", "log-1 does not answer"))
    first = lab.plan(facts=down)
    assert first.lasting == ()
    assert first.status is not None
    lab.world.write_status(first.status.dump(), lab.world.resource_version)
    again_at = lab.plan(facts=down).wake_at
    assert again_at is not None
    lab.world.now = again_at
    (event,) = lab.plan(facts=down).lasting
    assert (event.reason, event.warning) == ("NoQuorum", True)
    assert "log-1 does not answer" in event.note


def test_a_service_that_goes_before_the_fence_waits_for_the_generation_to_lead() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.kind = SERVING_EARLY
    lab.world.rollout(restart="1")
    lab.until(lambda world: "'name': 'Fence'" in str(world.stored_status))
    planned = lab.plan()
    assert [type(action) for action in planned.actions] == [ApplyChild, RunStep]
    lab.until(lambda world: world.selected == 2)
    facts = dataclasses.replace(lab.operator.observe().facts, leads=False)
    ready = frozenset(pod.name for pod in lab.world.pods_of(2))
    waiting = lab.plan(facts=facts, service_pods=ready)
    assert waiting.row == "D9"
    assert waiting.status is not None
    assert waiting.status.rollout is not None
    assert "NotLeading" in [blocker.reason for blocker in waiting.status.rollout.blockers]
