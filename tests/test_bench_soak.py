"""What `python -m bench waltz-soak` says of memory: a slope, and how far that may be off."""

import random

import pytest

from bench.waltz_soak import Series, slope_of

SERIES = 400
SAMPLES = 120  # ten minutes


def test_a_line_has_its_slope_and_no_error() -> None:
    slope, error = slope_of([[(at, 90 + at / 3600 * 12) for at in range(0, 600, 5)], [(0, 1), (5, 1 + 5 / 3600 * 12)]])
    assert slope == pytest.approx(12)
    assert error == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("follows", [0.0, 0.5, 0.8, 0.9])
def test_the_error_is_honest_where_samples_follow_from_each_other(follows: float) -> None:
    """The slope of each series is known: of 20 estimates, one is off by more than twice the error; here four may be."""
    drawn = random.Random(7)
    far = 0
    for _ in range(SERIES):
        slope, error = slope_of([_memory(drawn, follows, rises=20.0)])
        far += abs(slope - 20.0) > 2 * error
    assert far < 0.2 * SERIES


def _memory(drawn: random.Random, follows: float, rises: float) -> Series:
    """MB every five seconds, which wander around a line that rises by so much an hour."""
    found: Series = []
    off = drawn.gauss(0, 1) / (1 - follows**2) ** 0.5
    for number in range(SAMPLES):
        found.append((5.0 * number, 100 + rises * 5 * number / 3600 + off))
        off = follows * off + drawn.gauss(0, 1)
    return found
