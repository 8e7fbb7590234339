"""What rots is rebuilt from a majority and counts when it is whole, whatever else goes wrong (waltz.md 13)."""

from collections.abc import Callable
from typing import Any

import pytest

from pavane.waltz.core import copying
from pavane.waltz.core.copying import Copying
from pavane.waltz.storage import directory
from tests.sim.kit.seeds import BrokenError, played, replayable
from tests.sim.waltz.healing import Healing, Majority, Rotting
from tests.sim.waltz.world import World

RUN_S = 12.0
PER_TEST = 25
PLANTED_SEEDS_MAX = 30  # within which a planted fault is found


def play_rotting(seed: int) -> Healing:
    """Disks rot, also while a copy is rebuilt on them, and nobody helps."""
    world = World(seed)
    with replayable(seed, lambda: world.now), pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying, "COPY_RECORDS", 7)  # so that a copy takes its time
        patch.setattr(directory, "REBUILT_MS", 0)  # so that a disk may rot as often as it likes
        healing = Healing(world, spoils=True)
        faults = Rotting(world, RUN_S, healing)
        world.scheduler.run(RUN_S)
        world.check()
        faults.check()
    return healing


def play_majority(seed: int) -> bool:
    """No copy is whole, but every record is on a disk, and stays there."""
    world = World(seed)
    with replayable(seed, lambda: world.now):
        majority = Majority(world, Healing(world, spoils=False))
        world.scheduler.run(RUN_S)
        majority.check()
    return majority.rotted


@played(PER_TEST, 6)
def test_what_rots_is_rebuilt_by_itself_and_counts_only_when_it_is_whole(seeds: range) -> None:
    plays = [play_rotting(seed) for seed in seeds]
    assert sum(healing.healed for healing in plays) >= len(seeds) // 10


@played(PER_TEST, 6)
def test_no_copy_is_given_up_while_a_majority_is_not_whole(seeds: range) -> None:
    assert all(play_majority(seed) for seed in seeds)


def test_a_rebuilt_copy_that_counts_before_it_is_verified_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _believe(monkeypatch, rebuilt=True)
    assert any(is_found(play_rotting, seed) for seed in range(PLANTED_SEEDS_MAX))


def test_a_repair_from_a_minority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    _believe(monkeypatch, rebuilt=False)
    assert any(is_found(play_majority, seed) for seed in range(PLANTED_SEEDS_MAX))


def _believe(monkeypatch: pytest.MonkeyPatch, *, rebuilt: bool) -> None:
    """Plant a fault: the rebuilt copy, or the majority that it is to come from, is not looked at."""
    equal = Copying._equal

    def blind(self: Copying, nodes: list[str]) -> Any:
        if any(self._replicas[node].rebuilding for node in nodes) is rebuilt:
            return True
        return (yield from equal(self, nodes))

    monkeypatch.setattr(Copying, "_equal", blind)


def is_found(play: Callable[[int], object], seed: int) -> bool:
    try:
        play(seed)
    except BrokenError:
        return True
    return False
