"""Which seeds a run plays: as many as ``SEEDS`` says (default 300), or the one that ``PAVANE_SEED`` replays."""

import os

import pytest

ONE_SEED = os.environ.get("PAVANE_SEED")


def played(per_test: int, one_in: int = 1) -> pytest.MarkDecorator:
    """Run a test with ranges ``seeds`` of ``per_test`` seeds; simulations that cost more play one in so many."""
    if ONE_SEED is not None:
        ranges = [range(int(ONE_SEED), int(ONE_SEED) + 1)]
    else:
        seeds = max(1, int(os.environ.get("SEEDS", "300")) // one_in)
        ranges = [range(first, min(first + per_test, seeds)) for first in range(0, seeds, per_test)]
    return pytest.mark.parametrize("seeds", ranges, ids=[f"{each.start}-{each.stop - 1}" for each in ranges])
