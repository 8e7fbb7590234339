"""Figures, the bars they are held against, and how both are shown and kept."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.machine import FEW_CORES, Machine
from pavane_cli import output

TIME_UNITS = ("s", "ms")
FEW_CORES_FACTOR = 2  # docs/specs/operator.md 9: times may be twice as long on two cores


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a benchmark.

    ``bar`` is the greatest value that is good enough and ``least`` the smallest one, None where there is none.
    ``samples`` are what the figure was made from. ``vital`` marks a figure that may never miss its bar, on any machine:
    lost or doubled data.
    """

    what: str
    value: float
    unit: str
    bar: float | None = None
    samples: Sequence[float] = ()
    vital: bool = False
    least: float | None = None

    def verdict(self, cores: int) -> str:
        """Say in a word or two how the figure compares with its bar on a machine with so many cores."""
        if self.least is not None:
            return "ok" if self.value >= self.least else "missed"
        if self.bar is None:
            return ""
        if self.value <= self.bar:
            return "ok"
        lenient = self.unit in TIME_UNITS and not self.vital and cores <= FEW_CORES
        return "ok on 2 cores" if lenient and self.value <= self.bar * FEW_CORES_FACTOR else "missed"


def median_of(what: str, unit: str, samples: Sequence[float], bar: float | None = None) -> Measure:
    """The median of some runs."""
    return Measure(what, statistics.median(samples), unit, bar, samples)


def greatest_of(what: str, unit: str, samples: Sequence[float], bar: float | None = None) -> Measure:
    """The worst of some runs, for a bar that each of them has to meet."""
    return Measure(what, max(samples), unit, bar, samples)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least so many percent of all are not greater than."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def latencies(what: str, samples_ms: Sequence[float], bar_p50: float | None, bar_p99: float | None) -> list[Measure]:
    """Median and 99th percentile of single operations, in milliseconds."""
    p50, p99 = percentile(samples_ms, 50), percentile(samples_ms, 99)
    return [Measure(f"{what}, p50", p50, "ms", bar_p50), Measure(f"{what}, p99", p99, "ms", bar_p99, samples_ms)]


def show(name: str, machine: Machine, measures: Sequence[Measure]) -> None:
    """Print the table of one benchmark."""
    output.say(f"\n{name}: {machine.summary()}")
    rows = [
        (
            each.what,
            _number(each.value),
            each.unit,
            _limit(each),
            each.verdict(machine.cores),
            _spread(each.samples),
        )
        for each in measures
    ]
    output.table(("WHAT", "VALUE", "UNIT", "BAR", "VERDICT", "ALL RUNS"), rows)
    for each in measures:
        if each.verdict(machine.cores) == "missed":
            output.say(f"missed: {each.what}: {_number(each.value)} {each.unit}, wanted {_limit(each)}")


def keep(folder: Path, name: str, taken_at: str, machine: Machine, measures: Sequence[Measure]) -> Path:
    """Write the figures as JSON and return the file."""
    document: dict[str, Any] = {
        "benchmark": name,
        "taken_at": taken_at,
        "machine": asdict(machine),
        "measures": [{**asdict(each), "verdict": each.verdict(machine.cores)} for each in measures],
    }
    path = folder / f"{name}-{taken_at.replace(':', '')}.json"
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _limit(measure: Measure) -> str:
    if measure.least is not None:
        return f"≥ {_number(measure.least)}"
    return "" if measure.bar is None else f"≤ {_number(measure.bar)}"


def _spread(samples: Sequence[float]) -> str:
    if len(samples) < 2:
        return ""
    return f"{_number(min(samples))} … {_number(max(samples))} ({len(samples)})"
