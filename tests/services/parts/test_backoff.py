"""Pauses between attempts grow, stay below their limit, and differ."""

import random

from pavane.parts.backoff import backoff_s


def test_pauses_double_up_to_the_longest_and_are_spread() -> None:
    rng = random.Random(1)
    for failures, longest in ((0, 0.2), (1, 0.4), (4, 3.2), (5, 5.0), (10_000, 5.0)):
        drawn = [backoff_s(failures, 0.2, 5.0, rng) for _ in range(200)]
        assert longest / 2 <= min(drawn) < longest * 0.6
        assert longest * 0.9 < max(drawn) <= longest


def test_less_jitter_keeps_closer_to_the_pause() -> None:
    rng = random.Random(1)
    assert all(4.0 <= backoff_s(9, 0.2, 5.0, rng, jitter=0.2) <= 5.0 for _ in range(200))
