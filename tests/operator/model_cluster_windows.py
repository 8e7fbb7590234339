"""Windows of a spec that are closed and open, as scripts over the model cluster (operator.md 2.5, 2.7)."""

from __future__ import annotations

from typing import Any

from pavane_operator.crds.status import Result, State
from tests.operator.model_cluster import World
from tests.operator.model_cluster_bake import back_on, can_switch_back
from tests.operator.model_cluster_gates import gate, held_with, went_back
from tests.operator.model_cluster_script import Scenario, Script, after, rests_on, state_is

CLOSED: dict[str, Any] = {"schedule": "0 12 * * *", "duration": "1h"}
"""For the whole of a scenario, which begins at midnight."""
OPEN: dict[str, Any] = {"schedule": "* * * * *", "duration": "1m"}
OUTSIDE = "OutsideWindow"


def waiting(world: World, window: dict[str, Any] = CLOSED, **fields: Any) -> Script:
    """Generation 2 has caught up outside its window."""
    yield rests_on(1)
    world.rollout(restart="1", windows=[window], **fields)
    yield state_is(State.CAUGHT_UP)
    world.begin_kills()
    yield held_with(OUTSIDE)


def window_opens(world: World) -> Script:
    yield from waiting(world, {"schedule": "2 * * * *", "duration": "1m"}, deadline="30s", onDeadline="Abort")
    assert world.now.minute < 2
    yield state_is(State.PROMOTING)
    assert world.now.minute == 2
    yield rests_on(2)


def window_is_taken_out_of_the_spec(world: World) -> Script:
    yield from waiting(world)
    yield after(10)(world)
    assert world.state is State.CAUGHT_UP
    world.rollout(windows=[])
    yield rests_on(2)


def window_is_no_hurdle_for_who_forces(world: World) -> Script:
    yield from waiting(world)
    world.rollout(forcePromote=2)
    yield rests_on(2)


def window_holds_up_what_is_immediate(world: World) -> Script:
    yield from waiting(world, strategy="Immediate")
    yield after(10)(world)
    assert world.state is State.CAUGHT_UP
    world.rollout(windows=[CLOSED, OPEN])
    yield rests_on(2)


def window_closes_while_it_promotes(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1", windows=[OPEN])
    yield state_is(State.PROMOTING)
    world.begin_kills()
    world.rollout(windows=[CLOSED])
    yield rests_on(2)


def gate_fails_outside_a_window(world: World) -> Script:
    yield rests_on(1)
    world.faults.answers["probe"] = False
    world.rollout(restart="1", windows=[CLOSED], gates=[gate("Abort")])
    yield lambda world: world.state is State.IDLE and world.status.failed is not None
    assert world.status.failed is not None
    assert world.status.failed.reason == "GateFailed"


def way_back_outside_a_window(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1", bake="1m", windows=[OPEN])
    yield can_switch_back("True", "Following")
    world.begin_kills()
    world.rollout(restart="", windows=[CLOSED])
    yield back_on(1)


def gate_switches_back_outside_a_window_and_the_retry_waits(world: World) -> Script:
    yield rests_on(1)
    world.rollout(restart="1", bake="1m", windows=[OPEN], gates=[gate("SwitchBack")])
    yield can_switch_back("True", "Following")
    world.begin_kills()
    world.rollout(windows=[CLOSED])
    world.faults.answers["probe"] = False
    yield went_back
    world.faults.answers.clear()
    world.rollout(retry=2, bake="1s")
    yield held_with(OUTSIDE)
    world.rollout(windows=[OPEN])
    yield rests_on(3)


def undo_outside_a_window(world: World) -> Script:
    """Once nobody follows it is an ordinary rollout, of a spec that has served."""
    yield rests_on(1)
    world.rollout(restart="1", windows=[OPEN])
    yield rests_on(2)
    world.begin_kills()
    world.rollout(restart="", windows=[CLOSED])
    yield rests_on(3)
    assert [each.result for each in world.status.history] == [Result.PROMOTED] * 3


def no_window_in_a_bootstrap(world: World) -> Script:
    world.rollout(windows=[CLOSED])
    yield rests_on(1)


SCENARIOS: dict[str, Scenario] = {
    script.__name__: script
    for script in (
        window_opens,
        window_is_taken_out_of_the_spec,
        window_is_no_hurdle_for_who_forces,
        window_holds_up_what_is_immediate,
        window_closes_while_it_promotes,
        gate_fails_outside_a_window,
        way_back_outside_a_window,
        gate_switches_back_outside_a_window_and_the_retry_waits,
        undo_outside_a_window,
        no_window_in_a_bootstrap,
    )
}
FROM_NOTHING = frozenset({"no_window_in_a_bootstrap"})
