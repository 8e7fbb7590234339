"""Gates of a spec that pass, fail or say nothing, as scripts over the model cluster (operator.md 2.5, 2.7)."""

from __future__ import annotations

from typing import Any

from pavane_operator.crds.status import Result, State
from tests.operator.model_cluster import World, settled
from tests.operator.model_cluster_bake import can_switch_back
from tests.operator.model_cluster_kind import NAME
from tests.operator.model_cluster_script import Scenario, Script, Until, after, failed_with, rests_on, state_is


def gate(on_failure: str = "Hold", name: str = "probe", time: str = "5s") -> dict[str, Any]:
    return {"name": name, "for": time, "onFailure": on_failure, "http": {"port": 7071, "path": "/readyz"}}


def stands(verdict: str, name: str = "probe") -> Until:
    def check(world: World) -> bool:
        told = world.status.rollout.gates if world.status.rollout else []
        return [each.verdict for each in told if each.name == name] == [verdict]

    return check


def held_with(reason: str) -> Until:
    return lambda world: world.state is State.CAUGHT_UP and world.condition("UpToDate") == ("Unknown", reason)


def rolling(world: World, *gates: dict[str, Any], **fields: Any) -> Script:
    yield rests_on(1)
    world.rollout(restart="1", gates=list(gates), **fields)
    yield state_is(State.CAUGHT_UP)
    world.begin_kills()


def gate_passes(world: World) -> Script:
    yield from rolling(world, gate("Abort", "probe", "20s"), gate("Hold", "other", "1s"))
    yield stands("Passed", "other")
    assert stands("Waiting")(world)
    yield after(3)(world)
    assert world.state is State.CAUGHT_UP
    yield rests_on(2)


def gate_fails(world: World) -> Script:
    world.faults.answers["probe"] = False
    yield from rolling(world, gate("Abort"))
    yield failed_with("GateFailed")
    assert (world.status.history[0].result, world.status.history[0].reason) == (Result.ABORTED, "GateFailed")
    assert "gate probe is failed" in (world.status.history[0].message or "")
    yield after(5)(world)
    assert world.claimed == [1, 2]
    world.faults.answers.clear()
    world.rollout(retry=2)
    yield rests_on(3)


def gate_fails_and_holds_then_passes(world: World) -> Script:
    world.faults.answers["probe"] = False
    yield from rolling(world, gate("Hold"))
    yield held_with("GateFailed")
    yield after(20)(world)
    assert world.state is State.CAUGHT_UP
    world.faults.answers.clear()
    yield held_with("GateWaiting")
    yield rests_on(2)


def gate_says_nothing(world: World) -> Script:
    world.faults.answers["probe"] = None
    yield from rolling(world, gate("Abort"))
    yield held_with("GateInconclusive")
    yield after(60)(world)
    assert stands("Inconclusive")(world)
    world.faults.answers.clear()
    yield rests_on(2)


def gate_says_nothing_until_the_deadline(world: World) -> Script:
    world.faults.answers["probe"] = None
    yield from rolling(world, gate("Hold"), deadline="20s", onDeadline="Abort")
    yield failed_with("DeadlineExceeded")


def gate_is_no_hurdle_for_who_forces(world: World) -> Script:
    world.faults.answers["probe"] = None
    yield from rolling(world, gate("Hold"))
    yield held_with("GateInconclusive")
    world.rollout(forcePromote=2)
    yield rests_on(2)


def gate_is_taken_out_of_the_spec(world: World) -> Script:
    world.faults.answers["probe"] = None
    yield from rolling(world, gate("Hold"))
    yield held_with("GateInconclusive")
    world.rollout(gates=[])
    yield rests_on(2)


def baking(world: World, on_failure: str) -> Script:
    """Generation 2 serves and bakes, its gate has passed once, and 1 follows it."""
    yield rests_on(1)
    world.rollout(restart="1", bake="1m", gates=[gate(on_failure)])
    yield can_switch_back("True", "Following")
    world.begin_kills()


def went_back(world: World) -> bool:
    """Generation 1 serves again, whatever the spec says; 2 is not tried again, and its volumes are gone."""
    results = [(each.generation, each.result, each.reason) for each in world.status.history]
    return (
        failed_with("GateFailed")(world)
        and world.status.active_generation == world.fence == world.selected == 1
        and results == [(1, Result.PROMOTED, None), (2, Result.ROLLED_BACK, "GateFailed")]
        and not any(f"{NAME}-server-g2" in name for _, name in world.objects)
    )


def gate_switches_back(world: World) -> Script:
    yield from baking(world, "SwitchBack")
    world.faults.answers["probe"] = False
    yield went_back
    yield after(10)(world)
    assert world.claimed == [1, 2]
    assert world.status.failed is not None
    assert "gate probe is failed" in world.status.failed.message
    assert world.condition("Stalled") == ("True", "GateFailed")
    world.faults.answers.clear()
    world.rollout(retry=2, bake="1s")
    yield rests_on(3)


def gate_switches_back_and_the_user_tries_something_else(world: World) -> Script:
    yield from baking(world, "SwitchBack")
    world.faults.answers["probe"] = False
    yield went_back
    world.faults.answers.clear()
    world.rollout(restart="2", bake="1s")
    yield rests_on(3)


def gate_fails_but_nobody_follows(world: World) -> Script:
    yield from baking(world, "SwitchBack")
    world.faults.lagging.add(1)
    world.restart(f"{NAME}-server-g1-0")
    yield can_switch_back("False", "NotFollowing")
    world.faults.answers["probe"] = False
    yield stands("Failed")
    yield after(5)(world)
    assert (world.state, world.fence) == (State.BAKING, 2)
    world.faults.lagging.clear()
    yield went_back


def gate_fails_but_the_user_keeps_it(world: World) -> Script:
    yield from baking(world, "SwitchBack")
    world.rollout(retry=2)
    world.faults.answers["probe"] = False
    yield stands("Failed")
    yield after(5)(world)
    assert (world.state, world.fence) == (State.BAKING, 2)
    world.rollout(gates=[], bake="1s")
    yield rests_on(2)


def way_back_of_a_gate_called_off(world: World) -> Script:
    yield from baking(world, "SwitchBack")
    world.faults.lagging.add(1)
    world.faults.answers["probe"] = False
    yield state_is(State.PROMOTING)
    for ordinal in range(2):  # they stay behind before the step is recorded, and the user wants to keep 2
        world.restart(f"{NAME}-server-g1-{ordinal}")
    world.faults.answers.clear()
    world.rollout(retry=2, bake="1s")
    yield rests_on(2)


def bake_waits_for_its_gate(world: World) -> Script:
    yield from baking(world, "Hold")
    world.faults.answers["probe"] = None
    yield after(70)(world)
    assert world.state is State.BAKING
    assert world.condition("UpToDate") == ("True", "Applied")
    assert world.status.rollout is not None
    assert [each.reason for each in world.status.rollout.blockers] == ["GateInconclusive"]
    world.faults.answers.clear()
    yield rests_on(2)


def new_spec_ends_a_bake_that_waits_for_its_gate(world: World) -> Script:
    yield from baking(world, "Hold")
    world.faults.answers["probe"] = None
    yield after(70)(world)
    world.faults.answers.clear()
    world.rollout(restart="2", bake="1s")
    yield rests_on(3)


def gate_of_another_phase_is_not_asked(world: World) -> Script:
    world.faults.answers |= {"early": None, "late": False}
    early, late = gate("Hold", "early"), gate("SwitchBack", "late")
    yield from rolling(world, {**early, "phase": "CaughtUp"}, {**late, "phase": "Baking"}, bake="5s")
    yield held_with("GateInconclusive")
    yield after(20)(world)
    assert world.status.rollout is not None
    assert [each.name for each in world.status.rollout.gates] == ["early"]
    world.faults.answers["early"] = True
    yield went_back


def no_gate_in_a_bootstrap(world: World) -> Script:
    world.faults.answers["probe"] = False
    world.rollout(gates=[gate("Abort")])
    yield rests_on(1)
    assert settled(world)


SCENARIOS: dict[str, Scenario] = {
    script.__name__: script
    for script in (
        gate_passes,
        gate_fails,
        gate_fails_and_holds_then_passes,
        gate_says_nothing,
        gate_says_nothing_until_the_deadline,
        gate_is_no_hurdle_for_who_forces,
        gate_is_taken_out_of_the_spec,
        gate_switches_back,
        gate_switches_back_and_the_user_tries_something_else,
        gate_fails_but_nobody_follows,
        gate_fails_but_the_user_keeps_it,
        way_back_of_a_gate_called_off,
        bake_waits_for_its_gate,
        new_spec_ends_a_bake_that_waits_for_its_gate,
        gate_of_another_phase_is_not_asked,
        no_gate_in_a_bootstrap,
    )
}
FROM_NOTHING = frozenset({"no_gate_in_a_bootstrap"})
