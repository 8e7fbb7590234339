"""Which seeds a run plays: as many as ``SEEDS`` says (default 300), or the one that ``PAVANE_SEED`` replays."""

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

ONE_SEED = os.environ.get("PAVANE_SEED")


class BrokenError(AssertionError):
    """An invariant is broken."""


def holds(condition: bool, rule: str, message: str) -> None:
    """Raise ``BrokenError`` unless an invariant holds."""
    if not condition:
        raise BrokenError(f"{rule}: {message}")


def played(per_test: int, one_in: int = 1) -> pytest.MarkDecorator:
    """Run a test with ranges ``seeds`` of ``per_test`` seeds; simulations that cost more play one in so many."""
    if ONE_SEED is not None:
        ranges = [range(int(ONE_SEED), int(ONE_SEED) + 1)]
    else:
        seeds = max(1, int(os.environ.get("SEEDS", "300")) // one_in)
        ranges = [range(first, min(first + per_test, seeds)) for first in range(0, seeds, per_test)]
    return pytest.mark.parametrize("seeds", ranges, ids=[f"{each.start}-{each.stop - 1}" for each in ranges])


@contextlib.contextmanager
def replayable(seed: int, time: Callable[[], float]) -> Iterator[None]:
    """Tell whatever goes wrong with the seed and the time.

    ``BrokenError`` stays that, everything else becomes ``AssertionError``, also a test that takes too long.
    """
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        kind, text = (BrokenError, str(error)) if isinstance(error, BrokenError) else (AssertionError, repr(error))
        raise kind(f"PAVANE_SEED={seed} at {time():.3f} s: {text}") from error
