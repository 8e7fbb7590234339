"""What a user reads in the status, and how often it is written (docs/specs/operator.md 1.9, 2.5, 2.6, 2.9, 3.6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pavane.wire.stages import Stage
from pavane_operator.crds.status import HISTORY_MAX_ITEMS, Blocker, Result, State, Status
from pavane_operator.plan.model import (
    AllowWrites,
    ApplyChild,
    DeleteChild,
    Plan,
    Pod,
    PodBlocker,
    Problem,
    RunStep,
    StageView,
)
from pavane_operator.plan.planner import TEXT_INTERVAL, plan
from tests.operator.model_cluster import World
from tests.operator.model_cluster_kind import NAME
from tests.operator.model_operator import Operator

ROUNDS_MAX = 100
UNBOUND = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."


class Lab:
    """A model cluster and its operator, driven until something is so."""

    def __init__(self, **rollout: Any) -> None:
        self.world = World()
        self.world.rollout(**rollout)
        self.operator = Operator(self.world, lambda: None, set())
        self.events: list[str] = []
        self.told: list[str] = []
        """Reasons of events that last."""

    def until(self, condition: Callable[[World], bool]) -> World:
        for _ in range(ROUNDS_MAX):
            for _ in range(50):
                if condition(self.world):
                    return self.world
                turn = self.operator.turn()
                self.events += [event.reason for event in turn.events]
                self.told += [event.reason for event in turn.lasting]
                if turn.empty:
                    break
            self.world.tick()
        raise AssertionError(f"never so: {self.world.stored_status}")

    def active(self, number: int) -> World:
        return self.until(lambda world: world.state is State.IDLE and world.status.active_generation == number)

    def plan(self, **observed: Any) -> Plan:
        seen = dataclasses.replace(self.operator.observe(), **observed)
        return plan(self.world.kind, self.world.resource(), seen, self.world.now)

    def status(self, **observed: Any) -> Status:
        planned = self.plan(**observed)
        return planned.status or self.world.status


def reasons_of(status: Status) -> list[tuple[str | None, str]]:
    assert status.rollout is not None
    return [(blocker.pod, blocker.reason) for blocker in status.rollout.blockers]


def blocker_of(status: Status, reason: str) -> Blocker:
    assert status.rollout is not None
    return next(blocker for blocker in status.rollout.blockers if blocker.reason == reason)


def conditions_of(status: Status) -> dict[str, tuple[str, str]]:
    return {each.type: (each.status.value, each.reason) for each in status.conditions}


def test_a_steady_resource_is_ready_and_says_so_once() -> None:
    lab = Lab()
    lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    status = lab.world.status
    assert conditions_of(status) == {
        "Ready": ("True", "Serving"),
        "UpToDate": ("True", "Applied"),
        "CaughtUp": ("True", "Applied"),
        "Paused": ("False", "NotPaused"),
    }
    assert [(entry.number, entry.role.value, entry.pods_ready, entry.stage) for entry in status.generations] == [
        (1, "Active", 3, "ReadWrite")
    ]
    assert status.ready_pods == "3/3"
    lab.world.now += timedelta(hours=1)
    assert lab.plan().empty


def test_only_a_generation_that_follows_another_retires_one() -> None:
    lab = Lab()
    lab.active(1)
    assert "Promoted" in lab.events
    assert "OldGenerationRetired" not in lab.events
    lab.world.rollout(restart="1")
    lab.active(2)
    assert lab.events.count("OldGenerationRetired") == 1


def test_conditions_of_an_attempt_that_catches_up() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.lagging.add(2)
    lab.world.rollout(restart="1")
    world = lab.until(lambda world: world.state is State.CATCHING_UP)
    world.tick()
    conditions = conditions_of(lab.status())
    assert conditions["Ready"] == ("True", "Serving")
    assert conditions["UpToDate"] == ("Unknown", "Applying")
    assert conditions["CaughtUp"] == ("False", "Lagging")
    assert conditions["Reconciling"] == ("True", "CatchingUp")
    assert "Stalled" not in conditions


def test_the_transition_time_moves_only_with_the_status_of_a_condition() -> None:
    lab = Lab()
    lab.active(1)
    before = {each.type: each.last_transition_time for each in lab.world.status.conditions}
    lab.world.rollout(restart="1")
    lab.active(2)
    after = {each.type: each.last_transition_time for each in lab.world.status.conditions}
    assert after["Ready"] == before["Ready"]
    assert after["UpToDate"] > before["UpToDate"]


def test_an_active_generation_that_is_down_is_not_ready_and_promotes_nobody() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.crash.add(1)
    lab.world.tick()
    status = lab.status()
    assert conditions_of(status)["Ready"] == ("False", "NoQuorum")
    assert conditions_of(status)["Reconciling"] == ("True", "NoQuorum")
    lost = dataclasses.replace(lab.operator.observe().facts, down=Problem("QuorumLost", "two volumes are gone"))
    conditions = conditions_of(lab.status(facts=lost))
    assert conditions["Ready"] == ("False", "QuorumLost")
    assert conditions["Stalled"] == ("True", "QuorumLost")
    assert "Reconciling" not in conditions


def test_blockers_name_the_pods_and_keep_the_time_they_appeared() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.unpullable.add(2)
    lab.world.rollout(restart="1")
    world = lab.until(lambda world: (None, "ImagePull") in [(None, each[1]) for each in reasons_of(world.status)])
    assert reasons_of(world.status) == [(f"{NAME}-server-g2-{ordinal}", "ImagePull") for ordinal in range(3)]
    since = blocker_of(world.status, "ImagePull").since
    world.now += timedelta(seconds=7)
    assert blocker_of(lab.status(), "ImagePull").since == since


@pytest.mark.parametrize(
    ("seen", "reason", "message"),
    [
        ({"scheduled": False, "address": None, "stage": None}, "PodNotScheduled", "no node has room"),
        (
            {"scheduled": False, "address": None, "stage": None, "waiting_message": "0/3 nodes: Insufficient cpu."},
            "PodNotScheduled",
            "Insufficient cpu",
        ),
        (
            {"scheduled": False, "address": None, "stage": None, "waiting_message": UNBOUND},
            "VolumePending",
            UNBOUND,
        ),
        ({"address": None, "stage": None}, "PodPending", "kubectl describe pod"),
        ({"deleting": True}, "PodPending", f"kubectl describe statefulset {NAME}-server-g2"),
        ({"waiting_reason": "CrashLoopBackOff", "stage": None}, "CrashLoop", "see the logs"),
        ({"waiting_reason": "ErrImagePull", "stage": None}, "ImagePull", "check spec.image"),
        ({"stage": None}, "StageUnreachable", "stage port"),
    ],
)
def test_what_keeps_a_pod_is_said_with_a_hint(seen: dict[str, Any], reason: str, message: str) -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.INITIALIZING)
    name = f"{NAME}-server-g2-1"
    pods = tuple(dataclasses.replace(pod, **seen) if pod.name == name else pod for pod in lab.operator.observe().pods)
    status = lab.status(pods=pods)
    assert (name, reason) in reasons_of(status)
    assert status.rollout is not None
    assert message in next(each.message for each in status.rollout.blockers if each.pod == name)


def test_what_a_pod_reports_itself_is_passed_on() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.INITIALIZING)
    pods = tuple(
        dataclasses.replace(pod, stage=dataclasses.replace(pod.stage, blockers=(PodBlocker("DigestDisagrees", "why"),)))
        for pod in lab.operator.observe().pods
        if pod.stage is not None
    )
    assert blocker_of(lab.status(pods=pods), "DigestDisagrees").message == "why"


def test_the_lag_of_each_pod_is_a_number() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.lagging.add(2)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.CATCHING_UP)
    lab.world.tick()
    assert blocker_of(lab.status(), "Lagging").lag == lab.world.entries


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ([(70, 100), (75, 101), (12, 12)], (70, 100)),
        ([(4, 4), (6, 6), (5, 5)], (4, 4)),
        ([(None, None), (3, 5), (1, None)], (3, 5)),
        ([(None, 9), (2, None), (None, None)], (None, None)),
    ],
)
def test_progress_and_target_are_those_of_the_pod_that_is_furthest_behind(
    told: list[tuple[int | None, int | None]], shown: tuple[int | None, int | None]
) -> None:
    lab = Lab()
    lab.active(1)
    stages = [
        StageView(Stage.READ_WRITE, connected=True, progress=progress, target=target) for progress, target in told
    ]
    pods = lab.operator.observe().pods
    pods = tuple(dataclasses.replace(pod, stage=stage) for pod, stage in zip(pods, stages, strict=True))
    (generation,) = lab.status(pods=pods, status_written_at=None).generations
    assert (generation.progress, generation.target) == shown


def test_only_the_ten_worst_blockers_are_stored() -> None:
    lab = Lab()
    lab.world.change(replicas=9)
    lab.active(1)
    lab.world.rollout(restart="1", paused=True)
    lab.world.change(rollout={**lab.world.spec["rollout"], "paused": False})
    lab.until(lambda world: world.state is State.INITIALIZING)
    lab.world.faults.crash.add(2)
    lab.world.rollout(paused=True, crashLimit=0)
    lab.world.tick()
    status = lab.status()
    assert len(reasons_of(status)) == 10
    assert reasons_of(status)[0] == (None, "Paused")
    assert {reason for _, reason in reasons_of(status)[1:]} == {"CrashLoop"}


def test_a_change_of_texts_alone_waits_five_seconds() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.lagging.add(2)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.CATCHING_UP)
    lab.world.tick()
    lab.until(lambda world: lab.plan().empty)
    written = lab.operator.written_at
    assert written is not None
    lab.world.entries += 7
    lab.world.now = written + timedelta(seconds=1)
    held = lab.plan()
    assert held.empty
    assert held.wake_at == written + TEXT_INTERVAL
    lab.world.now = written + TEXT_INTERVAL
    status = lab.plan().status
    assert status is not None
    assert blocker_of(status, "Lagging").lag == lab.world.entries


def test_a_status_that_the_server_keeps_in_another_order_is_not_written_again() -> None:
    lab = Lab(retireDelay="60s")
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.RETIRING and lab.plan().empty)
    assert [generation.number for generation in lab.world.status.generations] == [1, 2], "as a server keeps them"


def test_a_new_blocker_is_written_at_once() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.lagging.add(2)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.CATCHING_UP)
    lab.world.tick()
    lab.until(lambda world: lab.plan().empty)
    lab.world.faults.unreachable.add(2)
    status = lab.plan().status
    assert status is not None
    assert "StageUnreachable" in {reason for _, reason in reasons_of(status)}


def test_time_spent_waiting_for_the_user_moves_the_deadline() -> None:
    lab = Lab(strategy="Manual", deadline="60s")
    lab.active(1)
    lab.world.rollout(restart="1")
    world = lab.until(lambda world: world.condition("UpToDate") == ("Unknown", "WaitingForApproval"))
    assert world.status.rollout is not None
    deadline = world.status.rollout.deadline
    assert deadline is not None
    world.now += timedelta(seconds=600)
    world.faults.store_silent = True
    world.rollout(promote=2)
    moved = lab.status().rollout
    assert moved is not None
    assert moved.deadline is not None
    assert moved.held_seconds is not None
    assert 600 <= moved.held_seconds <= 610
    assert moved.deadline == deadline + timedelta(seconds=moved.held_seconds)
    assert moved.state is State.CAUGHT_UP


def test_the_first_closed_gate_is_the_reason() -> None:
    lab = Lab(strategy="Manual")
    lab.active(1)
    lab.world.rollout(restart="1")
    world = lab.until(lambda world: world.state is State.CAUGHT_UP)
    world.rollout(paused=True)
    assert reasons_of(lab.status())[0] == (None, "WaitingForApproval")
    world.rollout(promote=2)
    assert reasons_of(lab.status())[0] == (None, "Paused")
    world.rollout(paused=False)
    world.faults.store_silent = True
    assert reasons_of(lab.status())[0] == (None, "NoQuorum")
    world.faults.store_silent = False
    assert lab.plan().row == "D8"


def test_a_forced_promotion_still_needs_the_safety_minimum() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.lagging.add(2)
    lab.world.rollout(restart="1")
    world = lab.until(lambda world: world.state is State.CATCHING_UP)
    world.rollout(forcePromote=2)
    world.faults.store_silent = True
    assert lab.plan().row != "D7"
    world.faults.store_silent = False
    forced = lab.plan()
    assert forced.row == "D7"
    assert forced.status is not None
    assert forced.status.rollout is not None
    assert forced.status.rollout.forced


def test_the_safety_minimum_is_looked_at_again_before_the_irreversible_step() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.PROMOTING and lab.operator.observe().facts.steps_done == {"Permit"})
    unsafe = dataclasses.replace(lab.operator.observe().facts, safety=Problem("NoQuorum", "one member answers"))
    held = lab.status(facts=unsafe)
    assert held.rollout is not None
    assert held.rollout.step is not None
    assert held.rollout.step.name == "Permit"
    assert blocker_of(held, "NoQuorum").message == "one member answers"
    recorded = lab.status().rollout
    assert recorded is not None
    assert recorded.step is not None
    assert recorded.step.name == "Fence"


def test_a_step_is_called_once_at_a_time_and_repeated_after_its_back_off() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.step_refusals = 1000
    lab.world.rollout(restart="1")
    world = lab.until(lambda world: world.steps_run > 0)
    call = lab.operator.step_call
    assert call is not None
    retry_at = world.now + timedelta(seconds=2)

    def calls(**changes: Any) -> int:
        planned = lab.plan(step_call=dataclasses.replace(call, **changes))
        return sum(isinstance(action, RunStep) for action in planned.actions)

    assert calls(running=True, retry_at=None) == 0
    assert calls(running=False, retry_at=retry_at) == 0
    assert lab.plan(step_call=dataclasses.replace(call, running=False, retry_at=retry_at)).wake_at == retry_at
    assert calls(running=False, retry_at=world.now) == 1
    assert calls(running=True, at=call.at - timedelta(hours=9)) == 1


def test_an_active_pod_that_came_back_is_led_up_unless_its_state_is_lost() -> None:
    lab = Lab()
    lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    name = f"{NAME}-server-g1-0"

    def seen(*blockers: PodBlocker) -> tuple[Pod, ...]:
        stage = StageView(Stage.READ_ONLY, connected=True, blockers=blockers)
        return tuple(
            dataclasses.replace(pod, stage=stage) if pod.name == name else pod for pod in lab.operator.observe().pods
        )

    led = lab.plan(pods=seen())
    assert led.streams == {name}
    assert [action.pod for action in led.actions if isinstance(action, AllowWrites)] == [name]
    lost = lab.plan(pods=seen(PodBlocker("StateLost")))
    assert lost.streams == frozenset()
    assert lost.actions == ()


def test_the_service_never_turns_back_once_it_selects_the_new_generation() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.selected == 2)
    seen = lab.operator.observe()
    lost_leader = dataclasses.replace(seen.facts, leads=False)
    planned = lab.plan(facts=lost_leader, service_pods=frozenset())
    assert planned.row == "D10"
    assert not any(isinstance(action, ApplyChild) for action in planned.actions)


def test_an_effect_that_is_seen_in_the_store_is_not_aborted_although_it_was_not_recorded() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.PROMOTING)
    lab.world.rollout(abort=2)
    facts = lab.operator.observe().facts
    assert lab.plan(facts=facts).row == "C"
    assert lab.plan(facts=dataclasses.replace(facts, steps_done=frozenset({"Permit", "Fence"}))).row == "D9"


def test_the_step_says_what_it_waits_for() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.step_refusals = 1000
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.steps_run > 0)
    step = lab.status().rollout
    assert step is not None
    assert step.step is not None
    assert step.step.name == "Fence"
    assert "refused, as the test asked" in (step.step.detail or "")


@pytest.mark.parametrize(("part_gaps", "gap"), [((), 40), ((1, 9, 3), 9)], ids=["at once", "part by part"])
def test_the_write_gap_is_that_between_the_generations(part_gaps: tuple[int, ...], gap: int) -> None:
    lab = Lab()
    lab.active(1)
    lab.world.part_gaps = {f"{NAME}-server-g2-{at}": found for at, found in enumerate(part_gaps)}
    lab.world.rollout(restart="1")
    world = lab.active(2)
    assert [(entry.generation, entry.write_gap_ms) for entry in world.status.history] == [(2, gap), (1, None)]


def test_however_many_attempts_fail_the_generation_before_can_be_gone_back_to() -> None:
    lab = Lab()
    world = lab.active(1)
    world.rollout(restart="good")
    lab.active(2)
    for number in range(3, 3 + HISTORY_MAX_ITEMS):
        world.rollout(restart=f"bad {number}")
        lab.until(lambda world: world.state is not State.IDLE)
        world.rollout(restart="good")
        lab.until(lambda world: world.state is State.IDLE)
    history = lab.until(lambda world: lab.plan().empty).status.history
    assert len(history) == HISTORY_MAX_ITEMS
    assert [entry.generation for entry in history if entry.result is Result.PROMOTED] == [2, 1]
    assert history[0].generation == 2 + HISTORY_MAX_ITEMS
    assert ("ControllerRevision", f"{NAME}-g1") in world.objects, "what an undo reads"


def test_history_keeps_the_image_of_an_aborted_attempt() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.lagging.add(2)
    lab.world.change(image="other")
    lab.until(lambda world: world.state is State.CATCHING_UP)
    lab.world.rollout(abort=2)
    world = lab.until(lambda world: world.state is State.IDLE)
    newest = world.status.history[0]
    assert (newest.generation, newest.image, newest.result.value, newest.reason) == (2, "other", "Aborted", "Cancelled")


def test_a_failure_is_told_in_words_with_what_to_do_next() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.crash.add(2)
    lab.world.rollout(restart="1", crashLimit=1)
    world = lab.until(lambda world: world.condition("Stalled") == ("True", "CrashLoop"))
    assert world.status.failed is not None
    assert "restarted 2 times" in world.status.failed.message
    stalled = next(each for each in world.status.conditions if each.type == "Stalled")
    assert world.status.failed.message in stalled.message
    assert "spec.rollout.retry to 2" in stalled.message


def test_clients_are_told_the_service_or_where_it_has_no_address_the_pods() -> None:
    lab = Lab()
    lab.active(1)
    lab.until(lambda world: lab.plan().empty)
    assert [(each.name, each.address, each.port) for each in lab.world.status.endpoints] == [
        ("raft", f"{NAME}.default.svc", 1)
    ]
    lab.world.objects[("Service", NAME)]["spec"]["clusterIP"] = "None"
    addresses = {pod.address for pod in lab.world.pods_of(1)}
    assert {each.address for each in lab.status().endpoints} == addresses


def test_the_service_and_deletions_carry_what_was_read() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    world = lab.until(lambda world: world.fence == 2)
    opening = [action for action in lab.plan().actions if isinstance(action, ApplyChild)]
    (service,) = [action for action in opening if action.manifest.kind == "Service"]
    assert service.resource_version == world.objects[("Service", NAME)]["metadata"]["resourceVersion"]
    lab.until(lambda world: world.state is State.RETIRING)
    lab.world.now += timedelta(seconds=60)
    deletions = [action for action in lab.plan().actions if isinstance(action, DeleteChild)]
    assert {action.kind for action in deletions} == {"StatefulSet"}, "a running pod keeps its ConfigMap"
    later = lab.plan(pods=tuple(pod for pod in lab.operator.observe().pods if pod.generation == 2)).actions
    deletions = [action for action in later if isinstance(action, DeleteChild)]
    assert {action.kind for action in deletions} == {"ConfigMap", "StatefulSet"}, "what it was made of stays known"
    for action in deletions:
        metadata = lab.world.objects[(action.kind, action.name)]["metadata"]
        assert (action.uid, action.resource_version) == (metadata["uid"], metadata["resourceVersion"])
    assert lab.plan().critical
    assert lab.plan().takes_away


def test_the_old_generation_stays_for_the_retire_delay() -> None:
    lab = Lab(retireDelay="30s")
    lab.active(1)
    lab.world.rollout(restart="1")
    world = lab.until(lambda world: world.state is State.RETIRING)
    world.now += timedelta(seconds=29)
    waiting = lab.plan()
    assert not any(isinstance(action, DeleteChild) for action in waiting.actions)
    assert waiting.wake_at is not None
    assert timedelta() < waiting.wake_at - world.now <= timedelta(seconds=1)
    world.now += timedelta(seconds=1)
    assert any(isinstance(action, DeleteChild) for action in lab.plan().actions)


def test_volumes_of_a_former_generation_stay_while_the_active_one_is_not_whole() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.rollout(restart="1")
    lab.until(lambda world: world.state is State.RETIRING)
    lab.world.faults.unreachable.add(2)
    world = lab.active(2)
    world.tick(60)
    volumes = [name for kind, name in world.objects if kind == "PersistentVolumeClaim"]
    assert f"data-{NAME}-server-g1-0" in volumes
    assert not any(isinstance(action, DeleteChild) for action in lab.plan().actions)
    world.faults.unreachable.clear()
    deleted = {action.name for action in lab.plan().actions if isinstance(action, DeleteChild)}
    assert deleted == {f"data-{NAME}-server-g1-{ordinal}" for ordinal in range(3)}


def test_nothing_is_done_before_the_cache_has_our_last_write() -> None:
    lab = Lab()
    assert lab.plan(fresh=False).empty
    assert not lab.plan().empty


def test_a_failure_is_shown_before_the_failing_action_is_repeated() -> None:
    lab = Lab()
    lab.active(1)
    lab.world.faults.rejected.add(2)
    lab.world.rollout(restart="1", paused=False)
    lab.until(lambda world: lab.operator.failure is not None)
    assert lab.operator.failure is not None
    refused = dataclasses.replace(lab.operator.failure, rejected=False, reason="Unavailable")
    shown = lab.plan(failure=refused)
    assert shown.actions == ()
    assert shown.status is not None
    assert (None, "Unavailable") in reasons_of(shown.status)
    lab.world.write_status(shown.status.dump(), lab.world.resource_version)
    assert lab.plan(failure=refused).actions != ()
