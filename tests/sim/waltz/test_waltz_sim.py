"""Nothing acknowledged is ever lost, doubled or moved, whatever ends, is cut off or loses its disk."""

import pytest

from pavane.waltz.state.recovery import Rules
from tests.sim.kit.seeds import BrokenError, played, replayable
from tests.sim.waltz.beside import Beside, Peruser
from tests.sim.waltz.faults import Faults
from tests.sim.waltz.world import Product, World

RUN_S = 12.0
PER_TEST = 25


def play(seed: int, product: Product | None = None) -> tuple[World, Peruser]:
    world = World(seed, product)
    with replayable(seed, lambda: world.now):
        beside = world.servers[3] = Beside(world, 3)
        beside.start()
        peruser = Peruser(world, beside)
        faults = Faults(world, RUN_S)
        world.scheduler.run(RUN_S)
        faults.settle()
        world.check()
    return world, peruser


@played(PER_TEST, 3)
def test_nothing_acknowledged_is_lost_doubled_or_moved(seeds: range) -> None:
    """Nor does a server that may not write serve anything but the log."""
    plays = [play(seed) for seed in seeds]
    assert sum(len(world.log) for world, _ in plays) > 20 * len(seeds)
    assert sum(peruser.read for _, peruser in plays) > 20 * len(seeds)


@pytest.mark.long
@pytest.mark.parametrize(
    "product", [Product(rules=Rules(lossy=False)), Product(marks=False)], ids=["without lossy", "without the mark"]
)
def test_without_a_rule_something_is_lost(product: Product) -> None:
    assert any(is_broken(seed, product) for seed in range(500))


def is_broken(seed: int, product: Product | None = None) -> bool:
    try:
        play(seed, product)
    except BrokenError:
        return True
    return False
