"""Random queries over random changes, without Spark: tests/spark compares the same ones with its answers."""

import pytest

from pavane.dataflow.plain import PlainEngine
from tests.services.dataflow.grammar import TICKS, case, played

SEEDS = 20


@pytest.fixture(scope="module")
def engine() -> PlainEngine:
    return PlainEngine()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_view_is_the_same_however_its_ticks_come(seed: int, engine: PlainEngine) -> None:
    made = case(seed)
    assert played(made, engine, range(2, TICKS + 2)) == played(made, engine, [2, TICKS + 1])  # built at one tick


def test_a_seed_gives_the_same_again() -> None:
    assert case(3) == case(3)
