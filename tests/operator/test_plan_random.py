"""Random lives: users, faults and kills in any order; then everything heals and must come to rest (operator.md 7.5)."""

from __future__ import annotations

import random

import pytest

from pavane_operator.crds.status import State
from tests.operator.model_cluster import KilledError, World, settled
from tests.operator.model_cluster_kind import NAME
from tests.operator.model_cluster_windows import CLOSED
from tests.operator.model_operator import Operator

SEEDS = 40
ROUNDS = 60
HEALED_ROUNDS_MAX = 250
PLANS_PER_ROUND_MAX = 60


class Life:
    """One random life of a resource; the same seed gives the same life."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.world = World()
        self._kills = True
        self._operator = self._new_operator()

    def live(self) -> None:
        for _ in range(ROUNDS):
            if self._random.random() < 0.35:
                self._happen()
            self._run()

    def heal(self) -> None:
        """No more faults; the user wants something new that can be had."""
        world = self.world
        self._kills = False
        world.faults = type(world.faults)()
        world.annotations.pop("pavane.dev/pause-reconciliation", None)
        world.change(
            rollout={"caughtUp": {"stabilityPeriod": "2s"}, "retireDelay": "3s", "restart": "healed"},
            config={},
            suspend=False,
        )
        for _ in range(HEALED_ROUNDS_MAX):
            self._run()
            if settled(world) and world.status.active_generation == world.fence:
                assert len(world.members) == len(world.pods) == world.spec.get("replicas", 3)
                return
        raise AssertionError(f"did not come to rest: {world.stored_status}")

    def _run(self) -> None:
        try:
            for _ in range(PLANS_PER_ROUND_MAX):
                if self._operator.turn().empty:
                    break
            else:
                raise AssertionError("plans do not come to an end")
        except KilledError:
            self._operator = self._new_operator()
        self.world.tick(self._random.choice((0.2, 1.0, 1.0, 4.0)))

    def _new_operator(self) -> Operator:
        return Operator(self.world, self._maybe_killed, set())

    def _maybe_killed(self) -> None:
        if self._kills and self._random.random() < 0.04:
            raise KilledError

    def _happen(self) -> None:
        world, chance = self.world, self._random
        number = world.status.next_generation or (world.status.last_generation or 0) + 1
        faults = [world.faults.crash, world.faults.unpullable, world.faults.lagging, world.faults.unreachable]
        wish = {
            "restart": str(chance.randrange(4)),
            "paused": chance.random() < 0.2,
            "strategy": chance.choice(("WhenCaughtUp", "WhenCaughtUp", "Manual", "Immediate")),
            "crashLimit": chance.choice((0, 1, 5)),
            "deadline": chance.choice(("10s", "30m")),
            "onDeadline": chance.choice(("Hold", "Abort")),
            "windows": chance.choice(([], [], [CLOSED], [{"schedule": "*/2 * * * *", "duration": "1m"}])),
        }
        match chance.randrange(15):
            case 0 | 1 | 2:
                world.rollout(**wish)
            case 3:
                world.rollout(**{chance.choice(("abort", "promote", "forcePromote", "retry")): number})
            case 4 if world.pods:
                world.restart(chance.choice(sorted(world.pods)))
            case 5 if number > world.fence:
                chance.choice(faults).add(number)
            case 6:
                for fault in faults:
                    fault.clear()
            case 7:
                world.faults.step_refusals = chance.randrange(4)
            case 8:
                world.faults.store_silent = not world.faults.store_silent
            case 9 if world.state is not State.PROMOTING:
                world.stored_status = None
            case 10:
                world.change(replicas=chance.choice((1, 3, 5)))
            case 11:
                world.change(suspend=chance.random() < 0.5)
            case 12 if len(world.members) > 2 and world.members <= world.pods.keys() and world.writable(world.fence):
                if not any(pod.lost for pod in world.pods.values()):
                    world.lose_volume(chance.choice(sorted(world.members)))
            case 13 if world.status.active_generation:
                world.faults.crash.add(world.fence)
                world.rollout(repair=f"{world.status.active_generation}.{chance.randrange(1, 5)}")
            case _:
                world.objects.pop(("ConfigMap", f"{NAME}-server-g{number}"), None)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_random_life_keeps_the_invariants_and_comes_to_rest(seed: int) -> None:
    life = Life(seed)
    life.live()
    life.heal()
