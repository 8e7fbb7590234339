"""How long to wait before another attempt."""

from typing import Protocol

DOUBLINGS_MAX = 16  # no pause has that many between its shortest and its longest


class Uniform(Protocol):
    """Where jitter comes from: ``random.Random`` has it."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number between ``a`` and ``b``."""
        ...


def backoff_s(failures: int, first_s: float, most_s: float, rng: Uniform, *, jitter: float = 0.5) -> float:
    """Return the pause after so many failures in a row: ``first_s`` doubled for each, ``most_s`` at most.

    It is shorter by a random part of up to ``jitter``, so that those who failed together do not come back together.
    """
    pause_s = min(first_s * 2.0 ** min(failures, DOUBLINGS_MAX), most_s)
    return pause_s * rng.uniform(1 - jitter, 1.0)
