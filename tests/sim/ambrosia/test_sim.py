"""Whole groups of coordinators and applications from one seed: nothing is lost, doubled or reordered (21.2)."""

from tests.sim.ambrosia.workload import NAMES, duel, forgetful_receivers, play, slow_receivers, upgraded
from tests.sim.kit.seeds import played


@played(per_test=10, one_in=2)
def test_every_call_happens_exactly_once(seeds: range) -> None:
    for seed in seeds:
        world = play(seed)
        assert sum(len(world.state(name)["events"]) for name in NAMES) > 0


@played(per_test=5, one_in=10)
def test_links_that_break_under_slow_receivers_lose_nothing(seeds: range) -> None:
    for seed in seeds:
        slow_receivers(seed)


@played(per_test=5, one_in=10)
def test_receivers_that_forget_what_they_had_asked_behind_lose_nothing(seeds: range) -> None:
    for seed in seeds:
        forgetful_receivers(seed)


@played(per_test=5, one_in=20)
def test_an_upgrade_happens_once_whatever_crashes(seeds: range) -> None:
    for seed in seeds:
        upgraded(seed)


def test_what_arrives_at_one_time_arrives_in_order() -> None:
    """A time that was computed from a difference is not always the same, so these streams lost their order."""
    play(5067)
    slow_receivers(929)


def test_a_world_ends_when_acknowledged_inputs_have_left_the_checkpoint_for_the_log() -> None:
    duel(9)
