"""Whole clusters under faults, from seeds (docs/specs/raft.md 18.2).

``PAVANE_SEED=n`` replays one seed exactly; ``SEEDS=n`` says how many different ones are played (default 300).
"""

from dataclasses import replace
from functools import partial

import pytest

from tests.sim.kit.seeds import ONE_SEED, played
from tests.sim.world import START_S, Scenario, World, play, scenario_of

WORKS_S = 3.0  # after all connections went silent
SEEDS_PER_TEST = 30  # several seconds of work, so that workers share it evenly
REGRESSIONS: dict[int, str] = {
    1: "a timer that was due never fired, for two comparisons rounded differently",
    421: "a damaged learner that had its log back could not become a learner again",
    402706: "a voter that crashed as it began with damage took the shortened log for sound (the model of the disk did)",
    401422: "five originals and one of ours stand against each other again and again in a change of members",
    404198: "two originals are needed, and one that was removed disturbs their election",
    730795: "what was under way to an original arrived at its next process (the model of networks let it)",
    731739: "an original that had been away while the members changed was taken in again, and heard nobody",
    2950: "a removed voter that was wiped believed the old entries that name it, and voted by them",
    2458: "an original leader left by an entry that it alone held: the old members had no majority without it",
    5676: "an original took up again a change whose entry another leader had replaced",
    428: "a voter that had its log back found that it was no member any more",
}
SILENT = ("half_open", "half_open", "crash", "cut", "weather")
SILENT_REGRESSIONS: dict[int, str] = {
    2223: "the last voter never led, for one that stood in vain was always a term ahead",
    2284: "a learner took an answer about an entry that had been replaced since for one about the committed one there",
    3206: "the repetition of a message of an old leader was told again what a later one had taken back",
}


@played(SEEDS_PER_TEST)
def test_every_invariant_holds_and_the_cluster_recovers(seeds: range) -> None:
    for seed in seeds:
        play(seed)


@pytest.mark.skipif(ONE_SEED is not None, reason="PAVANE_SEED replays one seed alone")
@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_once_found_something(seed: int) -> None:
    play(seed)


@pytest.mark.skipif(ONE_SEED is not None, reason="PAVANE_SEED replays one seed alone")
@pytest.mark.parametrize("seed", SILENT_REGRESSIONS)
def test_seeds_that_once_found_something_among_silent_connections(seed: int) -> None:
    play(seed, replace(scenario_of(seed), only=SILENT))


def test_a_seed_replays_exactly() -> None:
    first, second = play(42), play(42)
    assert first.checks.committed == second.checks.committed
    assert first.checks.leaders == second.checks.leaders
    assert first.time == second.time


def test_clocks_that_jump_by_twelve_hours_only_make_updates_expire() -> None:
    """Nothing is written twice, whatever repeats come after whatever jumps (S6)."""
    jumping = Scenario(voters=3, repeats=True, fault_pause_s=0.1, only=("jump_clock", "crash_leader"))
    worlds = [play(seed, jumping) for seed in range(8)]
    assert sum(writer.expired for world in worlds for writer in world.writers) > len(worlds)


@pytest.mark.parametrize("method", ["_create", "_fault"])
def test_a_failure_of_any_kind_names_its_seed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: World) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(World, method, fail)
    with pytest.raises(AssertionError, match=r"PAVANE_SEED=7 .*a bug"):
        play(7)


def test_the_seeds_cover_what_they_are_meant_to() -> None:
    scenarios = [scenario_of(seed) for seed in range(100)]
    assert any(scenario.promotion and scenario.bootstrap == "entry" for scenario in scenarios)
    assert any(scenario.changes for scenario in scenarios)
    assert {scenario.voters for scenario in scenarios} == {1, 3, 5}


def test_a_cluster_dials_anew_where_connections_carry_nothing() -> None:
    """Nobody is told of a half-open connection: the code of the peers has to find out."""
    silent = Scenario(voters=3, fault_pause_s=0.8, only=("half_open",))
    for seed in range(20):
        play(seed, silent)


def test_a_cluster_works_within_three_seconds_when_all_connections_go_silent() -> None:
    for seed in range(20):
        world = World(seed, Scenario(voters=3))
        for writer in world.writers:
            writer.begin()
        world.run_until(START_S + 0.1 * seed)
        for connection in world.network.connections.values():
            connection.silent = connection.source in world.nodes
        assert world.run_until(world.time + WORKS_S, partial(advanced, world, len(world.checks.committed) + 3)), seed


def advanced(world: World, length: int) -> bool:
    return len(world.checks.committed) >= length
