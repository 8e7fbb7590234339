"""What users do and what goes wrong, as scripts over the model cluster; each yields what it waits for."""

from __future__ import annotations

import copy

from pavane.wire.stages import Stage
from pavane_operator.crds.status import State
from pavane_operator.plan.model import GENERATION_LABEL, PAUSE_ANNOTATION, SKIP_FINALIZER_ANNOTATION, UID_LABEL
from pavane_operator.plan.snapshot import BEFORE_PROMOTION
from tests.operator.model_cluster import World, settled
from tests.operator.model_cluster_bake import SCENARIOS as BAKE
from tests.operator.model_cluster_gates import FROM_NOTHING as GATES_FROM_NOTHING
from tests.operator.model_cluster_gates import SCENARIOS as GATES
from tests.operator.model_cluster_kind import NAME, UID
from tests.operator.model_cluster_script import Scenario, Script, after, failed_with, gone, rests_on, state_is
from tests.operator.model_cluster_upkeep import FROM_NOTHING as UPKEEP_FROM_NOTHING
from tests.operator.model_cluster_upkeep import SCENARIOS as UPKEEP
from tests.operator.model_cluster_windows import FROM_NOTHING as WINDOWS_FROM_NOTHING
from tests.operator.model_cluster_windows import SCENARIOS as WINDOWS


def bootstrap(world: World) -> Script:
    yield rests_on(1)


def roll(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1")
    yield rests_on(2)


def roll_with_growing_log(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1")
    yield state_is(State.CATCHING_UP)
    world.entries += 1_000_000
    yield rests_on(2)


def cancel(world: World) -> Script:
    yield rests_on(1)
    world.faults.lagging.add(2)
    world.rollout(restart="1")
    yield state_is(State.CATCHING_UP)
    world.rollout(abort=2)
    yield failed_with("Cancelled")
    yield after(5)(world)
    assert world.status.last_generation == 2


def revert(world: World) -> Script:
    yield rests_on(1)
    world.faults.lagging.add(2)
    world.rollout(restart="1")
    yield state_is(State.CATCHING_UP)
    world.rollout(restart="")
    yield rests_on(1)


def supersede(world: World) -> Script:
    yield rests_on(1)
    world.faults.lagging.add(2)
    world.rollout(restart="1")
    yield state_is(State.CATCHING_UP)
    world.rollout(restart="2")
    yield rests_on(3)


def crash_loop_then_fix(world: World) -> Script:
    yield rests_on(1)
    world.faults.crash.add(2)
    world.rollout(restart="1", crashLimit=2)
    yield failed_with("CrashLoop")
    world.rollout(restart="2")
    yield rests_on(3)


def crash_loop_in_bootstrap(world: World) -> Script:
    world.faults.crash.add(1)
    yield failed_with("CrashLoop")
    assert world.condition("Ready") == ("False", "Bootstrapping")
    world.rollout(restart="1")
    yield rests_on(2)


def image_pull(world: World) -> Script:
    yield rests_on(1)
    world.faults.unpullable.add(2)
    world.change(image="does-not-exist")
    yield failed_with("ImagePull")


def rejected(world: World) -> Script:
    yield rests_on(1)
    world.faults.rejected.add(2)
    world.rollout(restart="1")
    yield failed_with("Rejected")


def deadline_hold(world: World) -> Script:
    yield rests_on(1)
    world.faults.lagging.add(2)
    world.rollout(restart="1", deadline="20s")
    yield lambda world: world.condition("Stalled") == ("True", "DeadlineExceeded")
    assert world.condition("UpToDate") == ("Unknown", "DeadlineExceeded")
    world.faults.lagging.clear()
    yield rests_on(2)


def deadline_abort(world: World) -> Script:
    yield rests_on(1)
    world.faults.lagging.add(2)
    world.rollout(restart="1", deadline="20s", onDeadline="Abort")
    yield failed_with("DeadlineExceeded")


def manual(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1", strategy="Manual", deadline="10s", onDeadline="Abort")
    yield lambda world: world.condition("UpToDate") == ("Unknown", "WaitingForApproval")
    yield after(30)(world)
    assert world.state is State.CAUGHT_UP
    world.rollout(promote=2)
    yield rests_on(2)


def lags_while_waiting(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1", strategy="Manual")
    yield state_is(State.CAUGHT_UP)
    world.begin_kills()
    world.restart(f"{NAME}-server-g2-0")
    yield state_is(State.CATCHING_UP)
    yield state_is(State.CAUGHT_UP)
    world.rollout(promote=2)
    yield rests_on(2)


def pause_and_resume(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1", paused=True)
    yield lambda world: world.condition("UpToDate") == ("False", "Paused")
    world.rollout(paused=False)
    yield state_is(State.CATCHING_UP)
    world.rollout(paused=True)
    yield lambda world: world.state is State.CAUGHT_UP and world.condition("Paused") == ("True", "Paused")
    yield after(20)(world)
    assert world.state is State.CAUGHT_UP
    world.rollout(paused=False)
    yield rests_on(2)


def forced(world: World) -> Script:
    yield rests_on(1)
    world.faults.lagging.add(2)
    world.rollout(restart="1", paused=False, strategy="Manual")
    yield state_is(State.CATCHING_UP)
    world.rollout(forcePromote=2, paused=True)
    yield lambda world: world.status.active_generation == 2 and world.state is State.IDLE
    assert world.status.history[0].generation == 2
    world.faults.lagging.clear()
    world.rollout(paused=False)
    yield rests_on(2)


def forced_while_waiting(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1", strategy="Manual")
    yield state_is(State.CAUGHT_UP)
    world.begin_kills()
    world.rollout(forcePromote=2)
    yield rests_on(2)


def immediate(world: World) -> Script:
    yield rests_on(1)
    world.faults.lagging.add(2)
    world.rollout(restart="1", strategy="Immediate")
    yield lambda world: world.status.active_generation == 2
    world.faults.lagging.clear()
    yield rests_on(2)


def retry(world: World) -> Script:
    yield rests_on(1)
    world.faults.crash.add(2)
    world.rollout(restart="1", crashLimit=1)
    yield failed_with("CrashLoop")
    world.begin_kills()
    world.rollout(retry=2)
    yield rests_on(3)


def invalid(world: World) -> Script:
    yield rests_on(1)
    world.change(config={"problem": "InvalidConfig"})
    yield failed_with("InvalidConfig")
    assert world.condition("Stalled") == ("True", "InvalidConfig")
    world.change(config={})
    yield rests_on(1)


def missing_reference(world: World) -> Script:
    yield rests_on(1)
    world.change(config={"problem": "ReferenceNotReady"})
    yield failed_with("ReferenceNotReady")
    assert world.condition("Stalled") is None
    assert world.condition("Reconciling") == ("True", "ReferenceNotReady")
    world.change(config={})
    yield rests_on(1)


def fence_too_low(world: World) -> Script:
    yield rests_on(1)
    world.faults.fence_beyond = 7
    world.rollout(restart="1")
    yield lambda world: (world.status.next_generation or 0) > 7
    assert world.claimed == [1, 2, 8]
    world.faults.fence_beyond = 0
    yield rests_on(8)


def step_fails_at_first(world: World) -> Script:
    yield rests_on(1)
    world.faults.step_refusals = 2
    world.rollout(restart="1")
    yield rests_on(2)


def request_expires(world: World) -> Script:
    yield rests_on(1)
    world.faults.expired_requests = 2
    world.rollout(restart="1")
    yield rests_on(2)


def pods_die_in_promoting(world: World) -> Script:
    yield rests_on(1)
    world.faults.step_refusals = 4
    world.rollout(restart="1")
    yield state_is(State.PROMOTING)
    for name in [pod.name for pod in world.pods_of(2)]:
        world.restart(name)
    yield rests_on(2)


def crash_loop_in_promoting(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1", crashLimit=1)
    yield state_is(State.PROMOTING)
    world.faults.crash.add(2)
    world.faults.unreachable.add(2)
    yield failed_with("CrashLoop")
    assert world.fence == 1


def cancel_in_promoting(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1")
    yield state_is(State.PROMOTING)
    world.rollout(abort=2)
    yield failed_with("Cancelled")
    assert world.fence == 1


def too_late_to_cancel(world: World) -> Script:
    yield rests_on(1)
    world.faults.step_refusals = 3
    world.rollout(restart="1")
    yield lambda world: world.steps_run > 0
    world.begin_kills()
    world.rollout(abort=2, restart="")
    yield lambda world: world.status.active_generation == 2
    yield rests_on(3)


def hand_made_drift(world: World) -> Script:
    yield rests_on(1)
    world.objects = copy.deepcopy(world.objects)
    world.objects[("StatefulSet", f"{NAME}-server-g1")]["spec"]["replicas"] = 2
    del world.objects[("ConfigMap", f"{NAME}-server-g1")]
    world.objects[("Service", NAME)]["spec"]["selector"][GENERATION_LABEL] = "0"
    yield lambda world: len(world.pods_of(1)) == 3 and world.selected == 1
    yield rests_on(1)


def status_lost_when_idle(world: World) -> Script:
    yield rests_on(1)
    world.begin_kills()
    world.stored_status = None
    yield rests_on(1)


def status_lost_in_rollout(world: World) -> Script:
    yield rests_on(1)
    world.faults.lagging.add(2)
    world.rollout(restart="1")
    yield state_is(State.CATCHING_UP)
    world.begin_kills()
    world.stored_status = None
    world.faults.lagging.clear()
    yield rests_on(2)


def status_lost_in_bootstrap(world: World) -> Script:
    yield state_is(State.INITIALIZING)
    world.begin_kills()
    world.stored_status = None
    yield rests_on(1)


def status_lost_in_promoting(world: World) -> Script:
    yield rests_on(1)
    world.faults.step_refusals = 3
    world.rollout(restart="1")
    yield lambda world: any(pod.stage is Stage.READ_WRITE for pod in world.pods_of(2))
    world.begin_kills()
    world.stored_status = None
    yield rests_on(2)


def status_lost_in_retiring(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1")
    yield state_is(State.RETIRING)
    world.begin_kills()
    world.stored_status = None
    yield rests_on(2)


def former_resource_left_volumes(world: World) -> Script:
    world.removed_before = 4
    world.version += 1
    world.objects[("PersistentVolumeClaim", "data-former-0")] = {
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data-former-0",
            "uid": "uid-former",
            "resourceVersion": "1",
            "labels": {GENERATION_LABEL: "4", UID_LABEL: f"former-{UID}"},
        },
    }
    yield lambda world: settled(world) and world.status.active_generation == 5
    yield after(10)(world)
    assert ("PersistentVolumeClaim", "data-former-0") in world.objects


def reconciliation_paused(world: World) -> Script:
    yield rests_on(1)
    world.annotations[PAUSE_ANNOTATION] = "true"
    world.rollout(restart="1")
    yield lambda world: world.condition("Paused") == ("True", "ReconciliationPaused")
    yield after(10)(world)
    assert world.state is State.IDLE
    del world.annotations[PAUSE_ANNOTATION]
    yield rests_on(2)


def _time_for(state: State) -> dict[str, str]:
    return {"bake": "20s"} if state is State.BAKING else {}


def reconciliation_paused_in(state: State) -> Scenario:
    def script(world: World) -> Script:
        yield rests_on(1)
        if state is State.ABORTING:
            world.faults.crash.add(2)
        world.rollout(restart="1", crashLimit=1, **_time_for(state))
        yield state_is(state)
        world.begin_kills()
        world.annotations[PAUSE_ANNOTATION] = "true"
        yield lambda world: world.condition("Paused") == ("True", "ReconciliationPaused")
        yield after(5)(world)
        assert world.state is state
        del world.annotations[PAUSE_ANNOTATION]
        yield failed_with("CrashLoop") if state is State.ABORTING else rests_on(2)

    return script


def finalizer_removed_by_hand(state: State) -> Scenario:
    def script(world: World) -> Script:
        yield rests_on(1)
        if state is State.ABORTING:
            world.faults.crash.add(2)
        if state is State.PROMOTING:
            world.faults.step_refusals = 2
        world.rollout(restart="1", crashLimit=1, **_time_for(state))
        yield state_is(state)
        world.begin_kills()
        world.drop_finalizer()
        yield failed_with("CrashLoop") if state is State.ABORTING else rests_on(2)

    return script


def delete_in(state: State, *, policy: str) -> Scenario:
    def script(world: World) -> Script:
        world.change(deletionPolicy=policy)
        yield rests_on(1)
        if state is not State.IDLE:
            if state is State.ABORTING:
                world.faults.crash.add(2)
            if state is State.PROMOTING:
                world.faults.step_refusals = 1000
            world.rollout(restart="1", crashLimit=1, **_time_for(state))
            yield state_is(state)
        world.begin_kills()
        world.delete()
        yield gone
        assert not any(kind == "StatefulSet" for kind, _ in world.objects)
        assert not world.pods
        volumes = [name for kind, name in world.objects if kind == "PersistentVolumeClaim"]
        assert bool(volumes) == (policy == "Retain")
        tried = any("-g2-" in name for name in volumes)
        assert tried == (policy == "Retain" and state in (State.PROMOTING, State.BAKING, State.RETIRING)), volumes

    return script


def delete_in_use(world: World) -> Script:
    yield rests_on(1)
    world.begin_kills()
    world.users = ("WaltzCluster/log",)
    world.delete()
    yield lambda world: world.condition("InUse") == ("True", "Referenced")
    assert len(world.pods_of(1)) == 3
    world.users = ()
    yield gone
    assert not world.pods


def cancel_in(state: State) -> Scenario:
    def script(world: World) -> Script:
        yield rests_on(1)
        world.rollout(restart="1")
        yield state_is(state)
        world.begin_kills()
        world.rollout(abort=2)
        yield failed_with("Cancelled")
        assert world.status.active_generation == 1

    return script


def delete_before_anything(world: World) -> Script:
    world.delete()
    yield gone


def delete_before_the_first_serves(world: World) -> Script:
    world.faults.crash.add(1)
    world.rollout(crashLimit=0)
    yield lambda world: any(kind == "PersistentVolumeClaim" for kind, _ in world.objects)
    world.begin_kills()
    world.delete()
    yield gone
    assert not any(kind == "PersistentVolumeClaim" for kind, _ in world.objects)


def delete_with_stuck_pods(world: World) -> Script:
    yield rests_on(1)
    world.stuck = True
    world.delete()
    yield gone


def delete_at_once(world: World) -> Script:
    yield rests_on(1)
    world.annotations[SKIP_FINALIZER_ANNOTATION] = "true"
    world.stuck = True
    world.delete()
    yield gone


SCENARIOS: dict[str, Scenario] = {
    script.__name__: script
    for script in (
        bootstrap,
        roll,
        roll_with_growing_log,
        cancel,
        revert,
        supersede,
        crash_loop_then_fix,
        crash_loop_in_bootstrap,
        image_pull,
        rejected,
        deadline_hold,
        deadline_abort,
        manual,
        lags_while_waiting,
        pause_and_resume,
        forced,
        forced_while_waiting,
        immediate,
        retry,
        invalid,
        missing_reference,
        fence_too_low,
        step_fails_at_first,
        request_expires,
        pods_die_in_promoting,
        crash_loop_in_promoting,
        cancel_in_promoting,
        too_late_to_cancel,
        hand_made_drift,
        status_lost_when_idle,
        status_lost_in_rollout,
        status_lost_in_bootstrap,
        status_lost_in_promoting,
        status_lost_in_retiring,
        former_resource_left_volumes,
        reconciliation_paused,
        delete_before_anything,
        delete_before_the_first_serves,
        delete_with_stuck_pods,
        delete_at_once,
        delete_in_use,
    )
}
FROM_NOTHING = (
    frozenset(
        {
            "bootstrap",
            "crash_loop_in_bootstrap",
            "status_lost_in_bootstrap",
            "former_resource_left_volumes",
            "delete_before_anything",
            "delete_before_the_first_serves",
        }
    )
    | UPKEEP_FROM_NOTHING
    | GATES_FROM_NOTHING
    | WINDOWS_FROM_NOTHING
)
"""Scenarios that begin before there is anything; all others begin with a resource that has come to rest."""
SCENARIOS |= {
    f"delete_in_{state.value}_{policy}": delete_in(state, policy=policy)
    for state in State
    for policy in ("Retain", "Delete")
}
SCENARIOS |= {
    f"reconciliation_paused_in_{state.value}": reconciliation_paused_in(state)
    for state in State
    if state not in (State.IDLE, State.PROMOTING)
}
SCENARIOS |= {f"cancel_in_{state.value}": cancel_in(state) for state in State if state in BEFORE_PROMOTION}
SCENARIOS |= {
    f"finalizer_removed_in_{state.value}": finalizer_removed_by_hand(state)
    for state in State
    if state is not State.IDLE
}
SCENARIOS |= BAKE | GATES | WINDOWS | UPKEEP
