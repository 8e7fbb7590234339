"""Pods of a generation that another pod of it leads: no stream and no stage, but counted, named and waited for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from pavane.wire.stages import Stage
from pavane_operator.crds.status import State
from pavane_operator.kube.resources import PODS
from pavane_operator.plan.model import (
    COMPONENT_LABEL,
    GENERATION_LABEL,
    Child,
    DeleteChild,
    Manifest,
    Plan,
    Pod,
    Resource,
    StageView,
)
from pavane_operator.plan.planner import plan
from pavane_operator.runtime.observe import pods_of
from tests.operator.model_cluster_kind import KIND, NAME, ModelRenderer, body_of
from tests.operator.test_plan_status import Lab, reasons_of

ROLE = "helper"


class FollowersRenderer(ModelRenderer):
    """Beside its servers each generation has two pods that these lead, and a policy of its own."""

    def generation(self, resource: Resource, revision: Child) -> tuple[Manifest, ...]:
        number = revision.generation or 0
        policy = body_of("NetworkPolicy", f"{NAME}-{ROLE}-g{number}", number)
        helpers = body_of("StatefulSet", f"{NAME}-{ROLE}-g{number}", number)
        helpers["metadata"]["labels"][COMPONENT_LABEL] = ROLE
        selector = {COMPONENT_LABEL: ROLE, GENERATION_LABEL: str(number)}
        helpers["spec"] = {"replicas": 2, "selector": {"matchLabels": selector}, "template": {}}
        return (*super().generation(resource, revision), Manifest.of(policy), Manifest.of(helpers))


LED = dataclasses.replace(KIND, renderer=FollowersRenderer(), followers=frozenset({ROLE}))


class LedLab(Lab):
    """A model cluster whose planner knows followers; they are what the test says they are."""

    def look(self, followers: Sequence[Pod], **changes: Any) -> Plan:
        seen = self.operator.observe()
        children = (*seen.children, *self.own(self.world.status.active_generation or 0))
        observed = dataclasses.replace(seen, **{"pods": (*seen.pods, *followers), "children": children, **changes})
        return plan(LED, self.world.resource(), observed, self.world.now)

    def own(self, number: int) -> tuple[Child, ...]:
        """The objects of the followers of a generation, as they should be."""
        found = []
        for revision in [child for child in self.world.children() if child.name == f"{NAME}-g{number}"]:
            for manifest in LED.renderer.generation(self.world.resource(), revision):
                if ROLE in manifest.name:
                    metadata = {**manifest.body["metadata"], "uid": f"uid-{manifest.name}", "resourceVersion": "1"}
                    body = {**manifest.body, "metadata": metadata}
                    found.append(Child(manifest.kind, manifest.name, f"uid-{manifest.name}", "1", body))
        return tuple(found)


def followers(number: int, *ready: bool, **changes: Any) -> list[Pod]:
    return [
        Pod(f"{NAME}-{ROLE}-g{number}-{i}", f"uid-{number}-{i}", "1", number, "127.0.0.9", one, follows=True, **changes)
        for i, one in enumerate(ready)
    ]


@pytest.fixture
def lab() -> LedLab:
    lab = LedLab()
    lab.active(1)
    return lab


def test_who_follows_is_told_by_its_role_and_has_no_stage() -> None:
    labels = {GENERATION_LABEL: "1", COMPONENT_LABEL: ROLE}
    body = {"metadata": {"name": "x", "uid": "1", "resourceVersion": "1", "labels": labels}}
    stage = StageView(Stage.READ_WRITE, connected=False)
    (helper,) = pods_of([(PODS, body)], lambda _: stage, LED.followers)
    (server,) = pods_of([(PODS, body)], lambda _: stage)
    assert (helper.follows, helper.stage) == (True, None)
    assert (server.follows, server.stage) == (False, stage)


def test_followers_are_counted_and_scaled_but_never_driven(lab: LedLab) -> None:
    status = lab.look(followers(1, True, False)).status
    assert status is not None
    assert (status.ready_pods, status.replicas) == ("4/5", 2)
    none = lab.look([]).status
    assert none is not None
    assert (none.ready_pods, none.replicas) == ("3/5", 0)
    assert status.selector == f"{COMPONENT_LABEL}={ROLE},{GENERATION_LABEL}=1"
    lab.world.change(image="b")
    states = set()
    for _ in range(400):
        planned = lab.look([*followers(1, True, True), *followers(2, True, True)])
        states.add(lab.world.state)
        assert not [name for name in planned.streams if ROLE in name], lab.world.state
        if lab.world.state is State.IDLE and lab.world.status.active_generation == 2:
            break
        if lab.operator.turn().empty:
            lab.world.tick()
    assert {State.CATCHING_UP, State.PROMOTING, State.RETIRING} <= states


def test_a_follower_that_is_missing_is_named_and_holds_up_no_stage(lab: LedLab) -> None:
    lab.world.change(image="b")
    lab.until(lambda world: world.state is State.CATCHING_UP)
    status = lab.look(followers(2, True)).status
    assert status is not None
    assert (f"{NAME}-{ROLE}-g2-1", "PodPending") in reasons_of(status)
    assert (f"{NAME}-{ROLE}-g2-0", "PodPending") not in reasons_of(status)
    crashed = lab.look(followers(2, True, False, restarts=99))
    assert crashed.status is not None
    assert crashed.status.rollout is not None
    assert (crashed.status.rollout.state, crashed.status.rollout.reason) == (State.ABORTING, "CrashLoop")


def test_an_old_generation_is_not_gone_before_its_followers_are(lab: LedLab) -> None:
    def state(*present: Pod) -> State | None:
        status = lab.look(present).status
        return status.rollout.state if status is not None and status.rollout is not None else None

    lab.world.change(image="b")
    own = followers(2, True, True)
    lab.until(lambda world: world.state is State.RETIRING and state(*own) is State.IDLE)
    assert state(*own, *followers(1, False)) is not State.IDLE


def test_the_policy_of_a_generation_stays_while_the_generation_does(lab: LedLab) -> None:
    def gone(planned: Plan) -> list[str]:
        return [each.name for each in planned.actions if isinstance(each, DeleteChild) and each.kind == "NetworkPolicy"]

    both = followers(1, True, True)
    assert gone(lab.look(both)) == []
    stray = Child("NetworkPolicy", "stray", "uid", "1", body_of("NetworkPolicy", "stray", None))
    seen = lab.operator.observe()
    assert gone(lab.look(both, children=(*seen.children, *lab.own(1), stray))) == ["stray"]


def test_a_follower_is_repaired_too(lab: LedLab) -> None:
    lab.world.rollout(repair="1")
    planned = lab.look(followers(1, True, False))
    assert [each.manifest.name for each in planned.actions if hasattr(each, "manifest")] == [f"{NAME}-g1-r1"]
