"""Numbers of the operator for `/metrics` (docs/specs/operator.md 5.11, docs/telemetry.md): plain counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pavane.runtime.metrics import Metric

Outcome = Literal["applied", "waiting", "failed"]
"""Of a reconcile: it did something, only looked, or met an error."""


@dataclass(slots=True)
class Metrics:
    """What has been counted since the start of the process."""

    reconciles: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    """By kind and outcome."""
    api_calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By method and HTTP status, 0 = no answer; without watches."""
    missed_events: Counter[str] = field(default_factory=Counter)
    """By kind: what a list told before a watch did."""
    write_gaps: Counter[str] = field(default_factory=Counter)
    """Promotions whose write gap was measured, by kind."""
    write_gap_milliseconds: Counter[str] = field(default_factory=Counter)
    """Their sum."""

    def read(self) -> Iterator[Metric]:
        """All numbers under their names."""
        for (kind, outcome), count in self.reconciles.items():
            yield Metric("pavane_operator_reconciles_total", {"kind": kind, "outcome": outcome}, count)
        for (method, code), count in self.api_calls.items():
            yield Metric("pavane_operator_api_calls_total", {"verb": method.lower(), "code": str(code)}, count)
        for kind, count in self.missed_events.items():
            yield Metric("pavane_operator_missed_events_total", {"kind": kind}, count)
        for kind, count in self.write_gaps.items():
            yield Metric("pavane_operator_write_gap_seconds_count", {"kind": kind}, count)
            gap_s = self.write_gap_milliseconds[kind] / 1000
            yield Metric("pavane_operator_write_gap_seconds_sum", {"kind": kind}, gap_s)
