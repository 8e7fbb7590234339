"""Nothing is lost, doubled or moved while storage nodes are added, removed and replaced (waltz.md 13.10)."""

from collections.abc import Iterable, Set
from functools import partial

import pytest

from pavane.waltz.core.joining import Joining
from tests.sim.kit.seeds import BrokenError, played, replayable
from tests.sim.waltz.growing import SPARES, Growing
from tests.sim.waltz.world import NODES, World

RUN_S = 12.0
PER_TEST = 25
SPLIT_S = 3.0
PLANTED_SEEDS_MAX = 500  # within which a planted fault is found


def play(seed: int) -> tuple[World, Growing]:
    world = World(seed, nodes=NODES + SPARES)
    with replayable(seed, lambda: world.now):
        growing = Growing(world, RUN_S)
        world.scheduler.run(RUN_S)
        growing.settle()
        world.check()
        growing.check()
    return world, growing


@played(PER_TEST, 6)
def test_nothing_is_lost_while_replicas_change(seeds: range) -> None:
    plays = [play(seed) for seed in seeds]
    assert sum(len(world.log) for world, _ in plays) > 20 * len(seeds)
    assert sum(growing.switched for _, growing in plays) > len(seeds)


@pytest.mark.long
def test_a_replica_that_counts_before_it_is_filled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = Joining._enough

    def hasty(self: Joining, recovered: Set[str]) -> bool:
        if not self.changing:
            return enough(self, recovered)
        self._count(self._wanted)
        return bool(recovered)

    monkeypatch.setattr(Joining, "_enough", hasty)
    assert any(is_broken(seed) for seed in range(PLANTED_SEEDS_MAX))


@pytest.mark.long
def test_two_majorities_that_do_not_meet_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(self: Joining, nodes: Iterable[str]) -> None:
        self._counted = frozenset(nodes)
        self._quorum = len(NODES) // 2 + 1  # as of the set that there was at first

    monkeypatch.setattr(Growing, "_link", split)
    monkeypatch.setattr(Growing, "notices", False)  # else both sides are seldom there for long enough
    assert not any(is_broken(seed) for seed in range(PER_TEST))
    monkeypatch.setattr(Joining, "_count", few)
    assert any(is_broken(seed) for seed in range(PLANTED_SEEDS_MAX))


def split(self: Growing) -> None:
    """One server reaches two storage nodes, and the other one the rest."""
    world = self._world
    first, second = world.rng.sample(sorted(world.servers), 2)
    side = world.rng.sample(sorted(world.nodes), 2)
    for name in world.nodes:
        number = second if name in side else first
        cut = (f"s{number}", name)
        world.cuts.add(cut)
        if name in world.servers[number].links:
            world.servers[number].links[name].close()
        world.scheduler.later(SPLIT_S, partial(world.cuts.discard, cut))
    world.servers[first].cut_off = True  # so that the other one becomes the owner meanwhile
    world.scheduler.later(SPLIT_S, partial(setattr, world.servers[first], "cut_off", False))


def is_broken(seed: int) -> bool:
    try:
        play(seed)
    except BrokenError:
        return True
    return False
