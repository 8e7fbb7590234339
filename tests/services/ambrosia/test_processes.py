"""Two immortals as real processes with files: kill -9 of any of the four loses, doubles and reorders nothing."""

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.services.ambrosia.unit import Unit, wait

KILLS = [("coordinator",), ("application",), ("coordinator", "application")]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Unit, Unit]]:
    with ExitStack() as stack:
        units = Unit(tmp_path, "alice", "bob"), Unit(tmp_path, "bob", "alice")
        for unit in units:
            stack.enter_context(closing(unit))
            unit.start()
        yield units


def go_on(*units: Unit) -> None:
    """Wait until every one has taken more from the other."""
    before = {unit.name: unit.taken() for unit in units}

    def more() -> bool:
        for unit in units:
            unit.start()
        return all(unit.taken() > before[unit.name] + 3 for unit in units)

    wait(more, "both take more")


def finish(folder: Path, units: tuple[Unit, Unit]) -> None:
    (folder / "stop").touch()

    def agreed() -> bool:
        for unit in units:
            unit.start()
        states = {unit.name: unit.state() for unit in units}
        if not all(state["primary"] and not state["open"] for state in states.values()):
            return False
        # Everybody took what everybody sent and has no Impulse open: so nothing is on its way.
        return all(
            states[source]["sent"].get(target, 0) == states[target]["taken"].get(source, 0)
            for source in states
            for target in states
        )

    wait(agreed, "both agree")


def check(units: tuple[Unit, Unit]) -> None:
    for unit in units:
        unit.kill("coordinator", "application")
    apps = {unit.name: unit.replayed(1) for unit in units}
    for unit in units:
        mine, others = apps[unit.name].state, apps[unit.peer].state
        assert mine["sent"][unit.peer] == others["taken"][unit.name]
        assert mine["sent"].get(unit.name, 0) == mine["taken"].get(unit.name, 0)
        for number in unit.checkpoints()[1:]:
            assert unit.replayed(number).state == mine, f"{unit.name} from checkpoint {number}"


def test_kill_of_any_process_in_every_order(pair: tuple[Unit, Unit], tmp_path: Path) -> None:
    go_on(*pair)
    rng = random.Random(16)
    for kills in KILLS:
        for victims in ((pair[0],), (pair[1],), pair):
            order = list(victims)
            for unit in order:
                unit.kill(*kills)
            rng.shuffle(order)
            for unit in order:
                unit.start()
        go_on(*pair)
    finish(tmp_path, pair)
    check(pair)
