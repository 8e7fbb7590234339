"""Whole groups of coordinators and applications from one seed: nothing is lost, doubled or reordered (21.2)."""

from tests.sim.ambrosia.workload import NAMES, play
from tests.sim.kit.seeds import played


@played(per_test=10, one_in=2)
def test_every_call_happens_exactly_once(seeds: range) -> None:
    for seed in seeds:
        world = play(seed)
        assert sum(len(world.state(name)["events"]) for name in NAMES) > 0
