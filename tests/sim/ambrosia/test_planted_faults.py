"""The simulator is worth something only if it finds faults: each test takes a rule out and expects that to be seen."""

from collections.abc import Callable
from typing import Any

import pytest

from pavane.ambrosia.core.coordinator import Coordinator
from pavane.ambrosia.state import Message, Output
from pavane.ambrosia.wire.messages import ReplayFrom
from tests.sim.ambrosia.workload import play

SEEDS_MAX = 100


def found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            play(seed)
        except Exception:  # whatever the fault breaks
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find the fault")


def free_by_all_numbers(patch: pytest.MonkeyPatch) -> None:
    """N1: a replayable message is freed by its number among all, and known by it at the next start."""

    def freed(self: Output, message: Message) -> bool:
        return message.number <= self.trim

    patch.setattr(Output, "_freed", freed)


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
        forget_what_is_on_the_way,
        rotate_before_all_is_delivered,
    ],
)
def test_a_rule_taken_out_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(plant, monkeypatch)
