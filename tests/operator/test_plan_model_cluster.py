"""The planner drives a model cluster, and is killed at its calls (docs/specs/operator.md 7.5).

A run kills it at every sixth call of a scenario, beginning elsewhere in each; `PAVANE_KILL_CALLS=all` at every call.
"""

from __future__ import annotations

import copy
import functools
import os
import zlib
from typing import Any

import pytest

from pavane_operator.crds.status import State
from pavane_operator.plan.table import TABLE
from tests.operator.model_cluster import KilledError, World
from tests.operator.model_cluster_bake import OF_MEMBERS
from tests.operator.model_cluster_bake import SCENARIOS as BAKE
from tests.operator.model_cluster_kind import FENCED, SERVING_EARLY
from tests.operator.model_cluster_scenarios import FROM_NOTHING, SCENARIOS, bootstrap
from tests.operator.model_cluster_script import Scenario
from tests.operator.model_operator import Operator

RETIRED_TOO_EARLY = {"retiring_status_lost_on_the_way_back"}
"""A status is rebuilt only when the pods have read who writes; the time of a retirement is longer than they need."""
ROUNDS_MAX = 300
"""Longer than any scenario needs, in rounds of a second."""
PLANS_PER_ROUND_MAX = 50
STEP = 1 if os.environ.get("PAVANE_KILL_CALLS") == "all" else 6
"""From one deadly call to the next."""


class Run:
    """One run of a scenario; the operator is killed at the given calls, counted from 1, and starts anew."""

    def __init__(self, scenario: Scenario, world: World, kill_at: frozenset[int] = frozenset()) -> None:
        self.world = world
        self.calls = 0
        self.first_kill: int | None = None
        self.seen: set[tuple[State, str]] = set()
        self._scenario = scenario
        self._kill_at = kill_at

    def finish(self) -> dict[str, Any]:
        """Run to the end; what is there then."""
        user = self._scenario(self.world)
        until = next(user)
        operator = Operator(self.world, self._call, self.seen)
        for _ in range(ROUNDS_MAX):
            try:
                for _ in range(PLANS_PER_ROUND_MAX):
                    while until(self.world):
                        until = next(user)
                    if self.world.gone or operator.turn().empty:
                        break
                else:
                    raise AssertionError("plans do not come to an end")
            except StopIteration:
                return self._final()
            except KilledError:
                operator = Operator(self.world, self._call, self.seen)
            self.world.tick()
        raise AssertionError(f"not reached in {self.world.state}: {self.world.stored_status}")

    def _call(self) -> None:
        self.calls += 1
        if self.world.kills_begin and self.first_kill is None:
            self.first_kill = self.calls
        if self.calls in self._kill_at:
            raise KilledError

    def _final(self) -> dict[str, Any]:
        world = self.world
        status = world.status
        if world.gone:
            return {"objects": sorted(world.objects)}
        return {
            "state": world.state,
            "active": status.active_generation,
            "last": status.last_generation,
            "failed": status.failed and (status.failed.generation, status.failed.reason),
            "selected": world.selected,
            "objects": sorted(world.objects),
            "members": sorted(world.members),
            "conditions": sorted((each.type, each.status.value, each.reason) for each in status.conditions),
            "history": [(each.generation, each.result.value, each.reason) for each in status.history],
        }


@functools.cache
def _bootstrapped() -> World:
    world = World()
    Run(bootstrap, world).finish()
    return world


def _world(name: str) -> World:
    return World() if name in FROM_NOTHING else copy.deepcopy(_bootstrapped())


def _ends_alike(scenario: Scenario, world: World, skipped: int = 0) -> tuple[dict[str, Any], int]:
    """Assert that it ends alike wherever the operator is killed; the end, and who has the fence there."""
    clean = Run(scenario, copy.deepcopy(world))
    expected = clean.finish()
    for call in range((clean.first_kill or 1) + skipped, clean.calls + 1, STEP):
        final = Run(scenario, copy.deepcopy(world), frozenset({call})).finish()
        assert final == expected, f"killed at call {call} of {clean.calls}"
    return expected, clean.world.fence


@pytest.mark.timeout(300)  # up to a hundred whole lives, one per call
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_ends_alike_wherever_the_operator_is_killed(name: str) -> None:
    _ends_alike(SCENARIOS[name], _world(name), zlib.crc32(name.encode()) % STEP)


@pytest.mark.parametrize(
    "name", ["roll", "pods_die_in_promoting", "too_late_to_cancel", "status_lost_in_promoting", "step_fails_at_first"]
)
def test_a_service_that_goes_before_the_fence_ends_at_the_generation_that_leads(name: str) -> None:
    world = copy.deepcopy(_bootstrapped())
    world.kind = SERVING_EARLY
    expected, fence = _ends_alike(SCENARIOS[name], world)
    assert expected["selected"] == expected["active"] == fence


@pytest.mark.parametrize("name", [*sorted(BAKE.keys() - OF_MEMBERS), "gate_switches_back"])
def test_a_fence_that_is_a_number_goes_back_as_members_do(name: str) -> None:
    world = copy.deepcopy(_bootstrapped())
    world.fence_is_number = True
    expected, fence = _ends_alike(SCENARIOS[name], world)
    assert expected["selected"] == expected["active"] == fence


@pytest.mark.parametrize("name", sorted(BAKE.keys() - OF_MEMBERS - RETIRED_TOO_EARLY))
def test_a_fence_of_which_pods_alone_tell_goes_back_too(name: str) -> None:
    world = copy.deepcopy(_bootstrapped())
    world.kind, world.pods_tell = FENCED, True
    expected, fence = _ends_alike(BAKE[name], world)
    assert expected["selected"] == expected["active"] == fence


def test_every_row_is_exercised_in_every_state_where_it_can_match() -> None:
    seen: set[tuple[State, str]] = set()
    for name, scenario in SCENARIOS.items():
        run = Run(scenario, _world(name))
        run.finish()
        seen |= run.seen
    reachable = {
        (state, row.name)
        for state in State
        for position, row in enumerate(TABLE)
        if state in row.states and not any(state in former.states and former.always for former in TABLE[:position])
    }
    assert reachable - seen == set()
