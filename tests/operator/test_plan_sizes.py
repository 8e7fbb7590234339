"""What scaling and suspension look like, and what of it is decided from what (docs/specs/operator.md 2.8, 2.9, 3.1)."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from pavane.wire.stages import Stage
from pavane_operator.crds.status import State
from pavane_operator.plan.effects import STORE_LOOK
from pavane_operator.plan.model import (
    GENERATION_LABEL,
    REPLICAS_ANNOTATION,
    ApplyChild,
    DeleteChild,
    Facts,
    Plan,
    PodBlocker,
    Problem,
    StageView,
)
from pavane_operator.plan.planner import plan
from tests.operator.model_cluster_kind import KIND, NAME
from tests.operator.test_plan_status import Lab, conditions_of, reasons_of


def test_the_status_tells_the_scale_subresource_how_many_pods_and_which() -> None:
    lab = Lab()
    lab.active(1)
    world = lab.until(lambda world: lab.plan().empty)
    assert (world.status.replicas, world.status.selector) == (3, f"{GENERATION_LABEL}=1")


def test_scaling_says_what_it_waits_for() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.unschedulable.add(f"{NAME}-server-g1-4")
    lab.world.change(replicas=5)
    lab.until(lambda world: f"{NAME}-server-g1-3" in world.pods and lab.plan().empty)
    status = lab.status()
    assert (f"{NAME}-server-g1-4", "PodPending") in reasons_of(status)
    assert conditions_of(status)["Reconciling"] == ("True", "Scaling")
    assert conditions_of(status)["Ready"] == ("True", "Serving")
    assert lab.plan().wake_at == lab.world.now + STORE_LOOK


def test_only_pods_that_say_nothing_or_lack_a_wanted_stream_are_called_unreachable() -> None:
    lab = Lab()
    lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    lab.world.change(replicas=5)
    lab.until(lambda world: f"{NAME}-server-g1-4" in world.pods)
    names = [f"{NAME}-server-g1-{ordinal}" for ordinal in range(5)]

    def unreachable(stages: Mapping[str, StageView | None]) -> list[str | None]:
        pods = tuple(
            dataclasses.replace(pod, address=pod.address or "127.0.0.9", stage=stages.get(pod.name, pod.stage))
            for pod in lab.operator.observe().pods
        )
        return [pod for pod, reason in reasons_of(lab.status(pods=pods)) if reason == "StageUnreachable"]

    told: dict[str, StageView | None] = dict.fromkeys(names, StageView(Stage.READ_WRITE, connected=False))
    joining = {names[3]: StageView(Stage.READ_ONLY, connected=True)}
    assert unreachable(told | joining) == []
    assert unreachable(told | joining | {names[0]: None}) == [names[0]], "it says nothing at all"
    lost = {names[3]: StageView(Stage.READ_ONLY, connected=False)}
    assert unreachable(told | lost) == [names[3]], "it has to be led up, and there is no stream"
    broken = StageView(Stage.READ_ONLY, connected=False, blockers=(PodBlocker("StateLost"),))
    assert unreachable(told | {names[3]: broken}) == [], "nobody leads it up"


def test_a_suspended_resource_is_neither_stalled_nor_reconciling() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.change(suspend=True)
    lab.until(lambda world: not world.pods and lab.plan().empty)
    assert conditions_of(lab.world.status) == {
        "Ready": ("False", "Suspended"),
        "UpToDate": ("True", "Applied"),
        "CaughtUp": ("Unknown", "Suspended"),
        "Paused": ("False", "NotPaused"),
    }
    lab.world.rollout(restart="1")
    assert conditions_of(lab.status())["UpToDate"] == ("False", "Suspended")
    assert "Stalled" not in conditions_of(lab.status())


def _resized(planned: Plan) -> list[int]:
    applied = [action.manifest for action in planned.actions if isinstance(action, ApplyChild)]
    return [manifest.body["spec"]["replicas"] for manifest in applied if manifest.kind == "StatefulSet"]


def test_a_wish_alone_changes_no_set() -> None:
    lab = Lab()
    lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    lab.world.change(replicas=1)
    assert _resized(lab.plan(facts=Facts())) == []


def test_fewer_pods_are_decided_from_what_was_read_afresh() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.change(replicas=1)
    lab.until(lambda world: _resized(lab.plan()) == [1])
    assert lab.plan().critical
    assert lab.plan().takes_away


def test_a_set_changed_by_hand_keeps_the_number_that_was_decided() -> None:
    lab = Lab()
    lab.until(lambda world: world.state is State.IDLE and lab.plan().empty and bool(world.served))
    key = ("StatefulSet", f"{NAME}-server-g1")
    for by_hand in (0, 2, 7):
        lab.world.objects[key] = copy.deepcopy(lab.world.objects[key])
        lab.world.objects[key]["spec"]["replicas"] = by_hand
        (action,) = lab.plan(facts=Facts()).actions
        assert isinstance(action, ApplyChild)
        assert action.manifest.body["spec"]["replicas"] == 3, "also while the store is silent"


def test_the_volume_of_a_member_is_kept_whatever_is_noted_on_the_set() -> None:
    lab = Lab()
    lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    key = ("StatefulSet", f"{NAME}-server-g1")
    lab.world.objects[key] = copy.deepcopy(lab.world.objects[key])
    lab.world.objects[key]["metadata"]["annotations"][REPLICAS_ANNOTATION] = "1"
    del lab.world.pods[f"{NAME}-server-g1-2"]
    planned = lab.plan()
    assert _resized(planned) == [3]
    assert not [action for action in planned.actions if isinstance(action, DeleteChild)]


def test_where_a_former_generation_goes_in_batches_each_waits_for_the_store() -> None:
    kind = dataclasses.replace(KIND, partings=2)
    lab = Lab(retireDelay="0s")
    lab.world.kind = kind
    lab.world.change(replicas=4)
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.RETIRING)

    def parts(**facts: Any) -> list[int]:
        seen = lab.operator.observe()
        seen = dataclasses.replace(seen, facts=dataclasses.replace(seen.facts, **facts))
        planned = plan(kind, lab.world.resource(), seen, lab.world.now)
        assert not any(isinstance(action, DeleteChild) and action.kind == "StatefulSet" for action in planned.actions)
        return _resized(planned)

    assert parts(parting=Problem("DigestDisagrees")) == []
    assert parts() == [2], "half of them"
    before = {f"{NAME}-server-g1-{ordinal}" for ordinal in range(4)}
    lab.until(lambda world: len(before & world.pods.keys()) == 2)
    assert parts(parting=Problem("LeaveNotVisible")) == []
    assert parts() == [0], "half of what there once was, not of what is left"
    lab.until(lambda world: world.state is State.IDLE)
    assert not before & lab.world.pods.keys()
