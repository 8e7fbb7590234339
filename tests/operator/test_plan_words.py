"""Words for what is normal, and for what is not (docs/specs/operator.md 2.6)."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

from pavane.wire.stages import Stage
from pavane_operator.crds.status import Status
from pavane_operator.plan.model import PodBlocker, Problem, StageView
from tests.operator.model_cluster_kind import NAME
from tests.operator.test_plan_status import Lab, conditions_of, reasons_of


def test_a_pod_that_joins_says_so() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.change(replicas=5)
    lab.until(lambda world: f"{NAME}-server-g1-4" in world.pods)
    seen = lab.operator.observe()
    members = frozenset(pod.name for pod in seen.pods[:3])
    new = f"{NAME}-server-g1-4"

    def status(*blockers: PodBlocker, **more: Any) -> Status:
        stage = StageView(Stage.READ_ONLY, connected=True, blockers=blockers, **more)
        pods = tuple(dataclasses.replace(pod, stage=stage) if pod.name == new else pod for pod in seen.pods)
        facts = dataclasses.replace(seen.facts, members=members)
        return lab.status(pods=pods, facts=facts)

    assert (new, "Joining") in reasons_of(status(progress=9, target=9))
    named_before = reasons_of(status(PodBlocker("StateLost")))
    assert (new, "Joining") in named_before
    assert (new, "StateLost") not in named_before
    assert (new, "Lagging") in reasons_of(status(progress=2, target=9))


def test_a_pod_that_waits_for_a_secret_does_not_crash() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: f"{NAME}-server-g2-0" in world.pods)
    absent: dict[str, Any] = {
        "waiting_reason": "CreateContainerConfigError",
        "waiting_message": 'secret "later" not found',
    }
    pods = tuple(dataclasses.replace(pod, **absent) for pod in lab.operator.observe().pods if pod.generation == 2)
    rollout = lab.status(pods=pods).rollout
    assert rollout is not None
    named = {(each.reason, each.message) for each in rollout.blockers if each.pod == f"{NAME}-server-g2-0"}
    assert ("PodPending", 'the pod waits for what it names: secret "later" not found') in named
    assert "CrashLoop" not in {reason for reason, _ in named}


def test_the_deadline_names_what_the_attempt_waited_for() -> None:
    lab = Lab(deadline="10s", onDeadline="Hold")
    lab.active(1)
    lab.world.faults.unpullable.add(2)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.condition("Stalled") == ("True", "DeadlineExceeded"))
    told = {each.type: each.message for each in lab.world.status.conditions}
    assert f"it waits for {NAME}-server-g2-0: ImagePull" in told["Stalled"]
    assert f"it waits for {NAME}-server-g2-0: ImagePull" in told["UpToDate"]
    lab.world.rollout(onDeadline="Abort")
    lab.until(lambda world: world.status.failed is not None)
    failed = lab.world.status.failed
    assert failed is not None
    assert failed.reason == "DeadlineExceeded"
    assert f"it waits for {NAME}-server-g2-0: ImagePull" in failed.message


def test_writes_may_stop_for_a_moment_while_promoting() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.step_refusals = 1000
    lab.world.rollout(restart="1")
    world = lab.until(lambda world: world.steps_run > 0)
    down = dataclasses.replace(lab.operator.observe().facts, down=Problem("NoQuorum"))
    first = lab.plan(facts=down).status
    assert first is not None
    assert conditions_of(first)["Ready"] == ("True", "Serving")
    assert (None, "HandingOver") in reasons_of(first)
    assert (None, "NoQuorum") not in reasons_of(first)
    world.write_status(first.dump(), world.resource_version)
    world.now += timedelta(seconds=6)
    later = lab.status(facts=down)
    assert conditions_of(later)["Ready"] == ("False", "NoQuorum")
    assert (None, "HandingOver") not in reasons_of(later)
    world.write_status(later.dump(), world.resource_version)
    world.now += timedelta(seconds=1)
    assert conditions_of(lab.status(facts=down))["Ready"] == ("False", "NoQuorum")
