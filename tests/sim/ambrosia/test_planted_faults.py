"""The simulator is worth something only if it finds faults: each test takes a rule out and expects that to be seen."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pavane.ambrosia.client.engine import Engine
from pavane.ambrosia.client.snapshot import ImmortalSnapshot
from pavane.ambrosia.core.coordinator import Coordinator
from pavane.ambrosia.core.links import Links, Stream
from pavane.ambrosia.state import End, Message, Output
from pavane.ambrosia.wire.messages import Commit, ReplayFrom
from tests.sim.ambrosia.workload import forgetful_receivers, play, slow_receivers, upgraded

SEEDS_MAX = 100

pytestmark = pytest.mark.long  # the simulations themselves play in every run


def found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, world: Callable[[int], object] = play
) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            world(seed)
        except Exception:  # whatever the fault breaks
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find the fault")


def free_by_all_numbers(patch: pytest.MonkeyPatch) -> None:
    """N1: a replayable message is freed by its number among all, and known by it at the next start."""

    def freed(self: Output, message: Message) -> bool:
        return message.number <= self.trim

    patch.setattr(Output, "_freed", freed)


def never_renumber(patch: pytest.MonkeyPatch) -> None:
    """N2: the numbers stay as they were counted in this life."""
    patch.setattr(Output, "_shift", lambda self, difference: None)


def renumber_once(patch: pytest.MonkeyPatch) -> None:
    """N2: the first ReplayFrom of a life moves the numbers, a later one for less does not."""
    shift = Output._shift

    def once(self: Output, difference: int) -> None:
        if self.joined is None:
            shift(self, difference)

    patch.setattr(Output, "_shift", once)


def lose_early_commits(patch: pytest.MonkeyPatch) -> None:
    """N4: a Commit that comes before ReplayFrom is forgotten."""
    commit = Output.commit

    def lose(self: Output, acknowledged: Commit, *, complete: bool) -> bool:
        return self.joined is not None and commit(self, acknowledged, complete=complete)

    patch.setattr(Output, "commit", lose)


def read_the_old_stream_on(patch: pytest.MonkeyPatch) -> None:
    """N7: a stream whose place another one took is still read."""

    def add(self: Links, number: int, peer: str, end: End) -> None:
        self._streams[number] = self._by_end[peer, end] = Stream(number, peer, end)

    patch.setattr(Links, "_add", add)


def forget_what_is_on_the_way(patch: pytest.MonkeyPatch) -> None:
    """N3: what the peer has in memory is thrown away."""
    replay_from = Output.replay_from

    def drop(self: Output, wanted: ReplayFrom, *, complete: bool) -> None:
        replay_from(self, wanted, complete=complete)
        self._sent.clear()

    patch.setattr(Output, "replay_from", drop)


def rotate_before_all_is_delivered(patch: pytest.MonkeyPatch) -> None:
    """6.7: a checkpoint is asked for while logged records have not been delivered."""
    deliver = Coordinator._deliver

    def later(self: Coordinator, *, everything: bool = False) -> None:
        if not everything and not self._checkpointing:
            deliver(self)

    patch.setattr(Coordinator, "_deliver", later)
    logged = Coordinator._logged

    def hold(self: Coordinator, record: Any, size: int) -> None:
        logged(self, record, size)
        if self._rotation_due:
            self._rotate()

    patch.setattr(Coordinator, "_logged", hold)


@pytest.mark.parametrize(
    "plant",
    [
        free_by_all_numbers,
        never_renumber,
        lose_early_commits,
        forget_what_is_on_the_way,
        rotate_before_all_is_delivered,
    ],
)
def test_a_rule_taken_out_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(plant, monkeypatch)


def test_an_old_stream_that_is_read_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found(read_the_old_stream_on, monkeypatch, slow_receivers)


def test_numbers_that_move_once_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found(renumber_once, monkeypatch, forgetful_receivers)


def remember_the_version_too_soon(patch: pytest.MonkeyPatch) -> None:
    """6.4: the new version is stored before there is a checkpoint of it."""
    next_log = Coordinator._next_log

    def early(self: Coordinator) -> None:
        version = max(self.meta.current_version, self.settings.version)
        self.meta = replace(self.meta, current_version=version)
        next_log(self)

    patch.setattr(Coordinator, "_next_log", early)


def replay_with_the_new_code(patch: pytest.MonkeyPatch) -> None:
    """6.4: the new code handles what the old code had handled."""
    restore = Engine._restore

    def restore_new(self: Engine, saved: ImmortalSnapshot) -> None:
        if self._upgrade_to is not None:
            self._adopt(self._upgrade_to)
        restore(self, saved)

    patch.setattr(Engine, "_restore", restore_new)


@pytest.mark.parametrize("plant", [remember_the_version_too_soon, replay_with_the_new_code])
def test_a_rule_of_upgrades_taken_out_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(plant, monkeypatch, upgraded)
