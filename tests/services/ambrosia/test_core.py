"""The coordinator without I/O: nothing is lost, doubled or reordered by crashes (docs/specs/ambrosia.md 9, 21.2)."""

import pytest

from tests.services.ambrosia.model import Model


@pytest.mark.parametrize("seed", range(20))
def test_calls_survive_crashes_of_either_side(seed: int) -> None:
    model = Model(seed)
    crashes = model.chaos(1500)
    model.settle()
    assert crashes
    assert all(node.app.state["taken"] for node in model.nodes.values())
