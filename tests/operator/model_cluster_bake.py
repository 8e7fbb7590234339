"""A former generation that follows, and ways back to it, as scripts over the model cluster (operator.md 2.7)."""

from __future__ import annotations

from pavane_operator.crds.status import State
from pavane_operator.plan.model import CAN_SWITCH_BACK
from tests.operator.model_cluster import World
from tests.operator.model_cluster_kind import NAME
from tests.operator.model_cluster_script import Scenario, Script, Until, after, rests_on, state_is


def baking(world: World) -> Script:
    """Generation 2 serves, and 1 follows it."""
    yield rests_on(1)
    world.rollout(restart="1", bake="1m")
    yield can_switch_back("True", "Following")
    world.begin_kills()


def can_switch_back(status: str, reason: str) -> Until:
    return lambda world: world.state is State.BAKING and world.condition(CAN_SWITCH_BACK) == (status, reason)


def back_on(generation: int) -> Until:
    """The same as `rests_on`, and what was left says so."""

    def check(world: World) -> bool:
        left = [each.generation for each in world.status.history if each.result == "RolledBack"]
        return rests_on(generation)(world) and left == [2]

    return check


def bake_ends(world: World) -> Script:
    yield from baking(world)
    assert world.condition("UpToDate") == ("True", "Applied")
    assert world.condition("Reconciling") is None
    assert len(world.pods_of(1)) == len(world.pods_of(2)) == 3
    yield after(50)(world)
    assert world.state is State.BAKING
    yield rests_on(2)
    assert world.condition(CAN_SWITCH_BACK) is None


def switch_back(world: World) -> Script:
    yield from baking(world)
    claimed = list(world.claimed)
    world.rollout(restart="")
    yield back_on(1)
    assert world.claimed == claimed
    assert world.status.last_generation == 2


def switch_back_and_try_again(world: World) -> Script:
    yield from baking(world)
    world.rollout(restart="")
    yield back_on(1)
    world.rollout(restart="1")
    yield lambda world: world.state is State.BAKING and world.status.active_generation == 3
    world.rollout(restart="2", bake="1s")
    yield rests_on(4)


def step_back_fails_at_first(world: World) -> Script:
    yield from baking(world)
    world.faults.step_refusals = 3
    world.rollout(restart="")
    yield back_on(1)


def way_back_called_off(world: World) -> Script:
    yield from baking(world)
    world.faults.lagging.add(1)
    world.rollout(restart="")
    yield state_is(State.PROMOTING)
    for ordinal in range(2):  # they stay behind before the step is recorded, and the user wants 2 again
        world.restart(f"{NAME}-server-g1-{ordinal}")
    world.rollout(restart="1")
    yield rests_on(2)


def former_pods_do_not_follow(world: World) -> Script:
    yield from baking(world)
    world.faults.lagging.add(1)
    world.restart(f"{NAME}-server-g1-0")
    yield can_switch_back("False", "NotFollowing")
    world.rollout(restart="")
    yield after(5)(world)
    assert world.state is State.BAKING
    assert world.condition("UpToDate") == ("Unknown", "Applying")
    yield rests_on(3)


def former_pod_follows_again(world: World) -> Script:
    yield from baking(world)
    world.restart(f"{NAME}-server-g1-0")
    yield can_switch_back("False", "NotFollowing")
    world.rollout(restart="")
    yield back_on(1)


def new_spec_ends_the_bake(world: World) -> Script:
    yield from baking(world)
    world.rollout(restart="2", bake="1s")
    yield rests_on(3)


def replicas_end_the_bake(world: World) -> Script:
    yield from baking(world)
    world.change(replicas=5)
    yield rests_on(2)


def lost_volume_ends_the_bake(world: World) -> Script:
    yield from baking(world)
    world.lose_volume(f"{NAME}-server-g2-0")
    yield rests_on(2)


def suspension_ends_the_bake(world: World) -> Script:
    yield from baking(world)
    world.change(suspend=True)
    yield lambda world: world.condition("Ready") == ("False", "Suspended") and not world.pods
    world.change(suspend=False)
    yield rests_on(2)


def paused_while_baking(world: World) -> Script:
    yield from baking(world)
    world.rollout(restart="", paused=True)
    yield can_switch_back("False", "Paused")
    yield after(5)(world)
    assert world.state is State.BAKING
    world.rollout(paused=False)
    yield back_on(1)


def status_lost_while_baking(world: World) -> Script:
    yield from baking(world)
    world.stored_status = None
    yield can_switch_back("True", "Following")
    world.rollout(restart="")
    yield rests_on(1)


def status_lost_on_the_way_back(world: World) -> Script:
    yield from baking(world)
    world.rollout(restart="", bake="5s")
    yield lambda world: world.fence == 1
    world.stored_status = None
    yield lambda world: world.status.active_generation == 1 and world.state is State.IDLE


def without_bake_status_lost_on_the_way_back(world: World) -> Script:
    yield from baking(world)
    world.rollout(restart="")
    yield lambda world: world.fence == 1
    world.stored_status = None
    world.rollout(bake=None)
    yield lambda world: world.status.active_generation == 1 and world.state is State.IDLE


def paused_status_lost_on_the_way_back(world: World) -> Script:
    yield from baking(world)
    world.rollout(restart="", bake="5s")
    yield lambda world: world.fence == 1
    world.stored_status = None
    world.rollout(paused=True)
    yield lambda world: world.status.active_generation == 1 and world.state is State.IDLE


def other_spec_status_lost_on_the_way_back(world: World) -> Script:
    yield from baking(world)
    world.rollout(restart="", bake="5s")
    yield lambda world: world.fence == 1
    world.stored_status = None
    world.rollout(restart="2", bake=None)
    yield rests_on(3)


def status_lost_behind_the_way_back(world: World) -> Script:
    yield from baking(world)
    world.rollout(restart="")
    yield lambda world: world.fence == world.selected == 1
    world.stored_status = None
    world.rollout(bake=None)
    yield lambda world: world.status.active_generation is not None and world.state is State.IDLE
    assert (world.status.active_generation, world.status.last_generation) == (1, 2)


def retiring_status_lost_on_the_way_back(world: World) -> Script:
    """It was rebuilt while the members changed, so nothing told yet that the fence goes back."""
    yield from baking(world)
    world.rollout(restart="")
    yield lambda world: world.fence == 1
    status = dict(world.stored_status or {})
    step = {"name": "Retire", "at": status["history"][0]["finishedAt"]}
    status |= {"activeGeneration": 2, "rollout": {"state": "Retiring", "generation": 2, "step": step}}
    world.stored_status = {key: value for key, value in status.items() if key != "nextGeneration"}
    yield lambda world: world.status.active_generation == 1 and world.state is State.IDLE


SCENARIOS: dict[str, Scenario] = {
    script.__name__: script
    for script in (
        bake_ends,
        switch_back,
        switch_back_and_try_again,
        step_back_fails_at_first,
        way_back_called_off,
        former_pods_do_not_follow,
        former_pod_follows_again,
        new_spec_ends_the_bake,
        replicas_end_the_bake,
        lost_volume_ends_the_bake,
        suspension_ends_the_bake,
        paused_while_baking,
        status_lost_while_baking,
        status_lost_on_the_way_back,
        without_bake_status_lost_on_the_way_back,
        paused_status_lost_on_the_way_back,
        other_spec_status_lost_on_the_way_back,
        status_lost_behind_the_way_back,
        retiring_status_lost_on_the_way_back,
    )
}
OF_MEMBERS = frozenset({"replicas_end_the_bake", "lost_volume_ends_the_bake"})
"""Those that a store without members does not have."""
