"""Events of what lasts: told by each plan for as long as it is so (docs/specs/operator.md 5.10)."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from pavane_operator.crds.status import State
from tests.operator.test_plan_status import Lab


def standing(lab: Lab, **observed: Any) -> list[str]:
    return [event.reason for event in lab.plan(**observed).standing]


def test_who_waits_for_approval_says_so_until_it_is_given() -> None:
    lab = Lab(strategy="Manual")
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.CAUGHT_UP)
    assert "CaughtUp" in lab.events
    assert standing(lab) == ["WaitingForApproval"]
    lab.world.rollout(promote=2)
    assert standing(lab) == []


def test_a_pod_of_a_retired_generation_is_told() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.active(2)
    assert standing(lab) == []
    seen = lab.operator.observe()
    late = dataclasses.replace(seen.pods[0], name="late", uid="late", generation=1)
    assert standing(lab, pods=(*seen.pods, late)) == ["FencedPod"]


def test_a_template_that_is_not_its_revisions_any_more_is_told() -> None:
    lab = Lab()
    lab.active(1)
    assert standing(lab) == []
    children = []
    for child in lab.operator.observe().children:
        body: Any = copy.deepcopy(dict(child.body))
        if child.kind == "StatefulSet":
            body["spec"]["template"] = {"spec": {"containers": []}}
        children.append(dataclasses.replace(child, body=body))
    assert standing(lab, children=tuple(children)) == ["TemplateDrift"]
