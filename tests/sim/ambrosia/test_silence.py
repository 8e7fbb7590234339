"""Streams that stand and carry nothing: immortals go on within seconds, and nothing is lost, doubled or reordered."""

import socket
from collections.abc import Callable
from functools import partial

import pytest

from pavane.ambrosia import aio
from pavane.ambrosia.client.checks import SimulationError
from pavane.runtime import keepalive
from tests.sim.ambrosia.silent import SilentWorld
from tests.sim.ambrosia.workload import EVENTS, LOG_BYTES, NAMES, Peer, check, happen
from tests.sim.kit.seeds import played
from tests.sim.kit.silence import on_linux

WORKS_S = 9.0  # SILENT_S twice, where the first bytes go just before an idle stream would end; then they are dialled
RUN_S = 12.0
ONCE = 10  # seeds

pytestmark = on_linux


def silenced(seed: int) -> float:
    """Let all streams go silent while calls are under way; return after how long all of them have arrived."""
    with SilentWorld(seed, log_trigger_bytes=LOG_BYTES) as world:
        for name in NAMES:
            world.start(Peer, name)
        for number in range(EVENTS):
            world.later(world.rng.uniform(0, 2), partial(happen, world, number))
        world.run(1.0)
        world.silence()
        took = world.settle(WORKS_S, lambda: world.time > 2.0)
    check(world, NAMES)
    return took


def test_immortals_go_on_within_seconds_when_all_streams_go_silent() -> None:
    for seed in range(ONCE):
        assert silenced(seed) > 1.0, "nothing was silent"


@played(per_test=5, one_in=5)
def test_every_call_happens_exactly_once_whatever_goes_silent(seeds: range) -> None:
    for seed in seeds:
        with SilentWorld(seed, log_trigger_bytes=LOG_BYTES) as world:
            for name in NAMES:
                world.start(Peer, name)
            world.trouble()
            for number in range(EVENTS):
                world.later(world.rng.uniform(0, RUN_S), partial(happen, world, number))
            world.run(RUN_S)
        check(world, NAMES)


def each(play: Callable[[int], object]) -> None:
    for seed in range(ONCE):
        play(seed)


def opening(seed: int) -> None:
    """Streams go silent in the moment in which they open, before the one who accepted has said where to begin."""
    with SilentWorld(seed, log_trigger_bytes=LOG_BYTES) as world:
        for name in NAMES:
            world.start(Peer, name)
        world.crash(NAMES[0])
        for number in range(EVENTS):
            world.later(world.rng.uniform(0, 1), partial(happen, world, number))
        for _ in range(200):
            world.run(0.005)
            world.silence()
        world.settle(WORKS_S)
    check(world, NAMES)


def test_streams_that_go_silent_while_they_open_are_dialled_anew() -> None:
    each(opening)


@pytest.mark.parametrize("play", [silenced, opening])
def test_streams_that_nobody_gives_up_are_found(play: Callable[[int], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "notice_silence", lambda _: None)
    with pytest.raises(SimulationError, match="no progress"):
        play(0)


@pytest.mark.parametrize(("option", "play"), [("TCP_USER_TIMEOUT", silenced), ("SO_KEEPALIVE", opening)])
def test_a_question_that_the_system_is_not_asked_for_is_found(
    option: str, play: Callable[[int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [each for each in keepalive.socket_options() if each[1] != getattr(socket, option)]
    monkeypatch.setattr(keepalive, "socket_options", lambda: left)
    with pytest.raises(SimulationError, match="no progress"):
        each(play)
