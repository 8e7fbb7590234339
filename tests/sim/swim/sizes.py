"""How large the scenarios of docs/specs/swim.md 25 are: small in every run, whole with ``PAVANE_SWIM_FULL=1``.

At full size run them by themselves, with ``-s`` for the figures and ``--timeout=0``: together they take half an hour.
"""

import os
import sys
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

FULL = os.environ.get("PAVANE_SWIM_FULL") == "1"
SEEDS = pytest.mark.parametrize("seed", range(10) if FULL else range(1))


def sized(small: T, full: T) -> T:
    """Choose by what is being run."""
    return full if FULL else small


def figures(row: str, values: Sequence[float], unit: str = "s") -> None:
    """Tell what was measured, at full size."""
    if FULL:
        ordered = sorted(values)
        marks = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
        told = ", ".join(f"{name} {quantile(ordered, share):.3g}" for name, share in marks.items())
        sys.stdout.write(f"\n{row}: {told} {unit} of {len(ordered)}\n")


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that ``share`` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
