"""Connections of a log that stand and carry nothing: it goes on within seconds, and nothing is lost or doubled."""

import math
import socket

import pytest

from pavane.runtime import keepalive
from pavane.waltz.core import client
from tests.sim.kit.seeds import BrokenError, holds, played, replayable
from tests.sim.kit.silence import on_linux
from tests.sim.waltz.appending import Appending
from tests.sim.waltz.faults import Faults
from tests.sim.waltz.world import World

BEGIN_S = 20.0  # until everybody has appended
WORKS_S = 10.0  # after all connections went silent
CLIENT_WORKS_S = 5.0  # after those of clients alone: a second until it doubts, two for an answer, and a new mount
RUN_S = 20.0
ONCE = 10  # seeds
WORST_SEED = 1211  # a new session asks over silent links just before they would end, which begins their time anew
CLIENT = 103
CLIENTS = 3  # with those of the world, whose code is a test's

pytestmark = on_linux


def went_on(seed: int, *, storage: bool = True) -> float:
    """Let all connections go silent at once, or those of clients alone; return after how long everybody appends."""
    world = World(seed)
    with replayable(seed, lambda: world.now):
        appending = Appending(world, CLIENT)
        assert world.scheduler.until(lambda: len(world.committed_by) == CLIENTS, BEGIN_S) is not None
        world.scheduler.run(world.rng.random())
        world.silence(storage=storage)
        before = dict(world.committed_by)

        def works() -> bool:
            return all(world.committed_by[client] > known for client, known in before.items())

        took = world.scheduler.until(works, 2 * WORKS_S)
        holds(took is not None, "no progress", world.blockers())
        appending.done = True
        world.check()
    assert took is not None
    return took


def play(seed: int) -> World:
    world = World(seed)
    with replayable(seed, lambda: world.now):
        appending = Appending(world, CLIENT)
        faults = Faults(world, RUN_S, silences=True)
        world.scheduler.run(RUN_S)
        faults.settle()
        appending.done = True
        world.check()
    return world


def test_a_log_goes_on_within_ten_seconds_when_all_connections_go_silent() -> None:
    for seed in range(ONCE):
        assert 1.0 < went_on(seed) < WORKS_S


def test_a_session_that_begins_when_one_silent_link_has_ended_waits_for_the_others_once() -> None:
    assert went_on(WORST_SEED) < WORKS_S


def test_clients_go_on_within_five_seconds_whatever_their_system_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "socket_options", list)
    clients_go_on()


def clients_go_on() -> None:
    for seed in range(ONCE):
        assert went_on(seed, storage=False) < CLIENT_WORKS_S


@played(per_test=10, one_in=5)
def test_nothing_acknowledged_is_lost_doubled_or_moved_whatever_goes_silent(seeds: range) -> None:
    worlds = [play(seed) for seed in seeds]
    assert sum(len(world.log) for world in worlds) > 20 * len(seeds)


@pytest.mark.parametrize("options", ["all", "TCP_USER_TIMEOUT"])
def test_connections_to_storage_that_nobody_gives_up_are_found(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {getattr(socket, options, None)}
    left = [each for each in keepalive.socket_options() if options != "all" and each[1] not in gone]
    monkeypatch.setattr(keepalive, "socket_options", lambda: left)
    with pytest.raises(BrokenError, match="no progress"):
        went_on(0)


def test_a_client_that_does_not_doubt_its_silent_owner_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keepalive, "socket_options", list)
    monkeypatch.setattr(client, "SILENCE_SECONDS", math.inf)
    with pytest.raises(BrokenError, match="no progress"):
        clients_go_on()
