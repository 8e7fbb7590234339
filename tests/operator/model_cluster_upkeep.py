"""Scenarios of scaling, suspension, lost volumes and repair; see `model_cluster_scenarios`."""

from __future__ import annotations

from pavane.wire.stages import Stage
from pavane_operator.crds.status import State
from pavane_operator.plan.snapshot import BEFORE_PROMOTION
from tests.operator.model_cluster import World
from tests.operator.model_cluster_kind import NAME
from tests.operator.model_cluster_script import Scenario, Script, Until, after, failed_with, rests_on, state_is


def pod(generation: int, ordinal: int) -> str:
    return f"{NAME}-server-g{generation}-{ordinal}"


def suspended(world: World) -> bool:
    return not world.pods and world.condition("Ready") == ("False", "Suspended")


def all_repaired(time: int) -> Until:
    return lambda world: len(world.pods) == 3 and all(each.repair == time for each in world.pods.values())


def scale_up(world: World) -> Script:
    yield rests_on(1)
    world.change(replicas=5)
    yield lambda world: world.condition("Reconciling") == ("True", "Scaling")
    yield rests_on(1)
    assert world.steps_run == 1, "more than one change"


def scale_down(world: World) -> Script:
    yield rests_on(1)
    world.change(replicas=1)
    yield rests_on(1)
    assert world.steps_run == 1, "more than one change"


def scale_up_and_down(world: World) -> Script:
    yield rests_on(1)
    world.change(replicas=5)
    yield rests_on(1)
    world.change(replicas=3)
    yield rests_on(1)


def scale_back_before_the_new_pods_join(world: World) -> Script:
    yield rests_on(1)
    world.change(replicas=5)
    yield lambda world: pod(1, 4) in world.pods
    world.begin_kills()
    world.change(replicas=3)
    yield rests_on(1)


def scale_again_while_removed_pods_still_run(world: World) -> Script:
    yield rests_on(1)
    world.change(replicas=1)
    yield lambda world: len(world.members) == 1
    world.begin_kills()
    world.change(replicas=3)
    yield rests_on(1)
    assert world.removed == set()


def scale_while_a_new_pod_cannot_start(world: World) -> Script:
    yield rests_on(1)
    world.faults.unschedulable.add(pod(1, 4))
    world.change(replicas=5)
    yield lambda world: pod(1, 3) in world.pods and world.pods[pod(1, 3)].stage is Stage.READ_WRITE
    yield after(10)(world)
    assert len(world.members) == 3, "an even number of members"
    world.faults.unschedulable.clear()
    yield rests_on(1)


def scale_while_the_store_is_silent(world: World) -> Script:
    yield rests_on(1)
    world.faults.store_silent = True
    world.change(replicas=1)
    yield after(10)(world)
    assert len(world.pods) == 3
    world.faults.store_silent = False
    yield rests_on(1)


def scale_while_steps_are_refused(world: World) -> Script:
    yield rests_on(1)
    world.faults.step_refusals = 2
    world.faults.expired_requests = 1
    world.change(replicas=5)
    yield rests_on(1)


def scale_in(state: State, *, replicas: int) -> Scenario:
    def script(world: World) -> Script:
        yield rests_on(1)
        if state is State.PROMOTING:
            world.faults.step_refusals = 2
        world.rollout(restart="1")
        yield state_is(state)
        world.begin_kills()
        world.change(replicas=replicas)
        yield rests_on(2)

    return script


def scale_in_bootstrap(world: World) -> Script:
    yield state_is(State.INITIALIZING)
    world.begin_kills()
    world.change(replicas=5)
    yield rests_on(2)


def scale_what_failed(world: World) -> Script:
    yield rests_on(1)
    world.faults.crash.add(2)
    world.rollout(restart="1", crashLimit=1)
    yield failed_with("CrashLoop")
    world.begin_kills()
    world.change(replicas=5)
    yield lambda world: len(world.members) == 5
    world.rollout(restart="")
    yield rests_on(1)


def suspend_and_resume(world: World) -> Script:
    yield rests_on(1)
    world.change(suspend=True)
    yield suspended
    yield after(10)(world)
    assert world.condition("UpToDate") == ("True", "Applied")
    assert world.condition("Stalled") is None
    world.change(suspend=False)
    yield rests_on(1)


def resume_half_way(world: World) -> Script:
    yield rests_on(1)
    world.stuck = True
    world.change(suspend=True)
    yield lambda world: any(pod.deleting for pod in world.pods.values())
    world.change(suspend=False)
    yield after(5)(world)
    world.stuck = False
    yield rests_on(1)


def resume_to_another_spec(world: World) -> Script:
    yield rests_on(1)
    world.change(suspend=True)
    yield suspended
    world.begin_kills()
    world.rollout(restart="1")
    world.change(replicas=5)
    yield after(5)(world)
    assert world.condition("UpToDate") == ("False", "Suspended")
    world.change(suspend=False)
    yield rests_on(2)


def resume_to_fewer_replicas(world: World) -> Script:
    yield rests_on(1)
    world.change(suspend=True)
    yield suspended
    world.begin_kills()
    world.change(replicas=1)
    world.change(suspend=False)
    yield rests_on(1)


def suspend_while_scaling_down(world: World) -> Script:
    yield rests_on(1)
    world.change(replicas=1)
    yield lambda world: len(world.members) == 1
    world.begin_kills()
    world.change(suspend=True)
    yield suspended
    world.change(suspend=False)
    yield rests_on(1)


def suspend_while_scaling_up(world: World) -> Script:
    yield rests_on(1)
    world.faults.step_refusals = 1
    world.change(replicas=5)
    yield lambda world: world.status.rollout is not None and world.status.rollout.step is not None
    world.begin_kills()
    world.change(suspend=True)
    yield suspended
    world.change(suspend=False)
    yield rests_on(1)


def suspend_before_anything(world: World) -> Script:
    world.change(suspend=True)
    yield suspended
    assert world.claimed == []
    world.change(suspend=False)
    yield rests_on(1)


def suspend_in(state: State) -> Scenario:
    def script(world: World) -> Script:
        yield rests_on(1)
        world.rollout(restart="1")
        yield state_is(state)
        world.begin_kills()
        world.change(suspend=True)
        yield suspended
        given_up = state in BEFORE_PROMOTION
        assert world.status.active_generation == (1 if given_up else 2)
        assert world.status.failed is None
        world.change(suspend=False)
        yield rests_on(3 if given_up else 2)

    return script


def volume_lost(world: World) -> Script:
    yield rests_on(1)
    world.lose_volume(pod(1, 0))
    yield lambda world: len(world.members) == 2
    yield rests_on(1)


def volume_lost_while_scaling(world: World) -> Script:
    yield rests_on(1)
    world.change(replicas=5)
    yield lambda world: pod(1, 4) in world.pods
    world.lose_volume(pod(1, 1))
    yield rests_on(1)


def repair_what_crashes(world: World) -> Script:
    yield rests_on(1)
    world.faults.crash.add(1)
    yield lambda world: world.condition("Ready") == ("False", "NoQuorum")
    world.begin_kills()
    world.change(image="good")
    world.rollout(repair="1")
    yield rests_on(1)
    assert world.claimed == [1]
    assert ("ControllerRevision", f"{NAME}-g1-r1") in world.objects
    assert world.status.generations[0].image == "good"


def repair_leaves_alone_what_is_ready(world: World) -> Script:
    yield rests_on(1)
    world.faults.crashing_pods.add(pod(1, 1))
    yield lambda world: world.pods[pod(1, 1)].restarts > 0
    world.begin_kills()
    world.change(image="good")
    world.rollout(repair="1")
    yield lambda world: pod(1, 1) in world.pods and world.pods[pod(1, 1)].stage is Stage.READ_WRITE
    yield rests_on(1)
    assert [world.pods[pod(1, ordinal)].repair for ordinal in range(3)] == [0, 1, 0]


def repair_again(world: World) -> Script:
    yield rests_on(1)
    world.faults.crash.add(1)
    world.faults.bad_repairs = 1
    yield lambda world: world.condition("Ready") == ("False", "NoQuorum")
    world.begin_kills()
    world.rollout(repair="1", restart="no help")
    yield all_repaired(1)
    world.rollout(repair="1.2", restart="help")
    yield all_repaired(2)
    yield rests_on(1)


def repair_what_is_well(world: World) -> Script:
    yield rests_on(1)
    world.rollout(repair="1", restart="1")
    yield rests_on(2)
    assert ("ControllerRevision", f"{NAME}-g1-r1") not in world.objects


def repair_ends_an_attempt(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1")
    yield state_is(State.CATCHING_UP)
    world.faults.crash.add(1)
    world.begin_kills()
    world.rollout(repair="1")
    yield all_repaired(1)
    yield rests_on(1)


def repair_refused(world: World) -> Script:
    yield rests_on(1)
    world.faults.crash.add(1)
    yield lambda world: world.condition("Ready") == ("False", "NoQuorum")
    world.change(storage={"storageClassName": "other"})
    world.rollout(repair="1")
    yield failed_with("InvalidConfig")
    world.change(storage={})
    yield rests_on(1)


def repair_in_promoting(number: int) -> Scenario:
    def script(world: World) -> Script:
        yield rests_on(1)
        world.faults.step_refusals = 5
        world.rollout(restart="1", crashLimit=0)
        yield lambda world: world.steps_run > 0
        world.faults.crash.add(number)
        yield after(3)(world)
        world.begin_kills()
        world.rollout(repair=str(number), restart="2")
        yield rests_on(number if number == 2 else 3)

    return script


SCENARIOS: dict[str, Scenario] = {
    script.__name__: script
    for script in (
        scale_up,
        scale_down,
        scale_up_and_down,
        scale_back_before_the_new_pods_join,
        scale_again_while_removed_pods_still_run,
        scale_while_a_new_pod_cannot_start,
        scale_while_the_store_is_silent,
        scale_while_steps_are_refused,
        scale_in_bootstrap,
        scale_what_failed,
        suspend_and_resume,
        resume_half_way,
        resume_to_another_spec,
        resume_to_fewer_replicas,
        suspend_while_scaling_down,
        suspend_while_scaling_up,
        suspend_before_anything,
        volume_lost,
        volume_lost_while_scaling,
        repair_what_crashes,
        repair_leaves_alone_what_is_ready,
        repair_again,
        repair_what_is_well,
        repair_ends_an_attempt,
        repair_refused,
    )
}
FROM_NOTHING = frozenset({"scale_in_bootstrap", "suspend_before_anything"})
SCENARIOS |= {
    f"suspend_in_{state.value}": suspend_in(state)
    for state in State
    if state not in (State.IDLE, State.BAKING, State.ABORTING)
}
SCENARIOS |= {
    f"scale_to_{replicas}_in_{state.value}": scale_in(state, replicas=replicas)
    for state in (*(state for state in State if state in BEFORE_PROMOTION), State.PROMOTING, State.RETIRING)
    for replicas in (1, 5)
}
SCENARIOS |= {f"repair_of_{number}_in_promoting": repair_in_promoting(number) for number in (1, 2)}
