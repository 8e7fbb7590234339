"""Groups under random faults, from seeds (docs/specs/swim.md 19).

``PAVANE_SEED=n`` replays one seed exactly; ``SEEDS=n`` says how many are played in all: one in fifty here.
"""

from typing import Any

import pytest

from pavane.swim.core.admission import Admission
from pavane.swim.core.answering import Answering
from pavane.swim.core.dialing import Dialing
from pavane.swim.core.updates import Updates
from pavane.swim.state import precedence
from pavane.swim.wire.values import NodeStage, State
from tests.sim.kit.seeds import ONE_SEED, played
from tests.sim.swim.faults import Play, play

SEEDS_PER_TEST = 6  # a second or two of work
REGRESSIONS: dict[int, str] = {
    56: "all others had started again with new ids, whose old ones stayed suspect for minutes and hid the seeds",
    162: "an observer alone held all others, which had started again with new ids, as alive, and dialled nobody",
    479: "both seeds had left, started again as a group of their own and were dialled by nobody",
}
PLANTED_SEEDS = 60


@played(SEEDS_PER_TEST, one_in=50)
def test_every_invariant_holds_and_the_group_finds_one_view(seeds: range) -> None:
    for seed in seeds:
        play(seed)


@pytest.mark.skipif(ONE_SEED is not None, reason="PAVANE_SEED replays one seed alone")
@pytest.mark.parametrize("seed", REGRESSIONS)
def test_seeds_that_once_found_something(seed: int) -> None:
    play(seed)


def test_a_seed_replays_exactly() -> None:
    first, second = play(4), play(4)
    assert first.time == second.time
    assert [process.events for process in first.processes.values()] == [
        process.events for process in second.processes.values()
    ]


def test_a_failure_of_any_kind_names_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Play) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Play, "fault", fail)
    with pytest.raises(AssertionError, match=r"PAVANE_SEED=7.*a bug"):
        play(7)


def found() -> str:
    """Play seeds until one fails: the simulator is worth something only if it finds bugs."""
    for seed in range(PLANTED_SEEDS):
        try:
            play(seed)
        except AssertionError as error:
            return str(error)
    raise AssertionError(f"{PLANTED_SEEDS} seeds did not find the planted bug")


@pytest.mark.long
def test_a_dead_entry_that_rises_at_its_own_generation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(precedence.RULES, (State.ALIVE, State.DEAD), precedence.Rule.NOT_OLDER)
    assert "rose from the dead" in found()


@pytest.mark.long
def test_a_node_that_nobody_tells_that_it_is_not_tracked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answering, "_short", lambda *_: None)
    monkeypatch.setattr(Dialing, "_dial_lost", lambda _: None)
    assert "one view" in found()


@pytest.mark.long
def test_a_generation_that_falls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    outbid = Updates.outbid
    monkeypatch.setattr(Updates, "outbid", lambda self, gen: outbid(self, gen - 100))
    assert "generation fell" in found()


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "method", "told"),
    [(Admission, "_validated", "an observer admits"), (Updates, "unanswered", "an observer accuses")],
)
def test_an_observer_that_takes_part_is_found(
    monkeypatch: pytest.MonkeyPatch, part: type[Admission | Updates], method: str, told: str
) -> None:
    right = getattr(part, method)

    def as_if_full(self: Any, *arguments: Any, **options: Any) -> None:
        node = self._node
        stage, node.stage = node.stage, NodeStage.READ_WRITE
        right(self, *arguments, **options)
        node.stage = stage

    monkeypatch.setattr(part, method, as_if_full)
    assert told in found()
