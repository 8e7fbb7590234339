"""Connections of controllers that stand and carry nothing: views go on within seconds, exact and told once."""

import pytest

from pavane.compute import transport
from tests.sim.compute.world import World, play
from tests.sim.kit.seeds import BrokenError, played, replayable

BEGIN_S = 2.0  # there are views, and users ask
WORKS_S = 10.0  # after all connections went silent
ONCE = 10  # seeds


def silenced(seed: int) -> float:
    """Let all connections go silent at once; return after how long users have answers and views go on."""
    world = World(seed)
    world.scheduler.later(0.1, world.user)
    world.scheduler.run(BEGIN_S)
    assert world.answers > 10
    world.silence()
    answers, tick = world.answers, len(world.values)
    took = world.scheduler.until(lambda: world.well(answers, tick, generation=1), 5 * WORKS_S)
    assert took is not None, f"no progress: {world.answers - answers} answers, {len(world.values) - tick} ticks"
    world.check()
    return took


def test_views_go_on_within_ten_seconds_when_all_connections_go_silent() -> None:
    for seed in range(ONCE):
        with replayable(seed, lambda: BEGIN_S):
            assert 1.0 < silenced(seed) < WORKS_S


def play_all(seeds: range) -> None:
    for seed in seeds:
        with replayable(seed, lambda: 0.0):
            play(seed, silences=True)


@played(10, one_in=5)
def test_nothing_is_lost_and_nothing_is_wrong_whatever_goes_silent(seeds: range) -> None:
    play_all(seeds)


@pytest.mark.parametrize("left_out", ["grpc.keepalive_time_ms", "grpc.keepalive_permit_without_calls"])
def test_connections_that_nobody_gives_up_are_found(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLIENT_OPTIONS", "SERVER_OPTIONS"):
        left = tuple(each for each in getattr(transport, name) if each[0] != left_out)
        monkeypatch.setattr(transport, name, left)
    with pytest.raises(AssertionError, match="no progress"):
        silenced(0)
    with pytest.raises(BrokenError, match="all goes on"):
        play_all(range(ONCE))
