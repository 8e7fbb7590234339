"""Numbers of the operator for `/metrics` (docs/specs/operator.md 5.11, docs/telemetry.md): plain counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from pavane.runtime.metrics import Metric

Outcome = Literal["applied", "waiting", "failed"]
"""Of a reconcile: it did something, only looked, or met an error."""
Source = Literal["resource", "child", "reference", "pod", "gate", "step", "timer"]
"""Of a wake-up: what a watch or a list told of the resource, its children or a Secret that it names, what a pod said,
what a gate found, the end of a promotion's step, and the time that the last reconcile asked for."""


@dataclass(slots=True)
class Seconds:
    """Spans of time by their labels: how many, and how long together."""

    count: Counter[tuple[str, ...]] = field(default_factory=Counter)
    total: dict[tuple[str, ...], float] = field(default_factory=dict)

    def add(self, seconds: float, *labels: str) -> None:
        """One more."""
        self.count[labels] += 1
        self.total[labels] = self.total.get(labels, 0.0) + seconds

    def read(self, sum_name: str, count_name: str, *label_names: str) -> Iterator[Metric]:
        """Both numbers under their names."""
        for labels, count in self.count.items():
            named = dict(zip(label_names, labels, strict=True))
            yield Metric(count_name, named, count)
            yield Metric(sum_name, named, self.total[labels])


@dataclass(slots=True)
class Metrics:
    """What has been counted since the start of the process."""

    leader: bool = False
    """Whether this process holds the Lease; once lost, the process is gone."""
    reconciles: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    """By kind and outcome."""
    reconcile_seconds: Seconds = field(default_factory=Seconds)
    """By kind."""
    api_calls: Counter[tuple[str, int]] = field(default_factory=Counter)
    """By method and HTTP status, 0 = no answer; without watches."""
    wakeups: Counter[Source] = field(default_factory=Counter)
    queue_seconds: Seconds = field(default_factory=Seconds)
    """From the wake-up that a reconcile is for to its begin."""
    missed_events: Counter[str] = field(default_factory=Counter)
    """By kind: what a list told before a watch did."""
    rollouts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Ended attempts, by kind and result."""
    rollout_seconds: Seconds = field(default_factory=Seconds)
    """By kind and state that a rollout left."""
    write_gaps: Seconds = field(default_factory=Seconds)
    """Promotions whose write gap was measured, by kind."""

    def read(self) -> Iterator[Metric]:
        """All numbers under their names."""
        yield Metric("pavane_operator_leader", {}, self.leader)
        for (kind, outcome), count in self.reconciles.items():
            yield Metric("pavane_operator_reconciles_total", {"kind": kind, "outcome": outcome}, count)
        for (method, code), count in self.api_calls.items():
            yield Metric("pavane_operator_api_calls_total", {"verb": method.lower(), "code": str(code)}, count)
        for source, count in self.wakeups.items():
            yield Metric("pavane_operator_wakeups_total", {"source": source}, count)
        for kind, count in self.missed_events.items():
            yield Metric("pavane_operator_missed_events_total", {"kind": kind}, count)
        for (kind, result), count in self.rollouts.items():
            yield Metric("pavane_operator_rollouts_total", {"kind": kind, "result": result}, count)
        yield from self.reconcile_seconds.read(
            "pavane_operator_reconcile_seconds_sum", "pavane_operator_reconcile_seconds_count", "kind"
        )
        yield from self.queue_seconds.read("pavane_operator_queue_seconds_sum", "pavane_operator_queue_seconds_count")
        yield from self.rollout_seconds.read(
            "pavane_operator_rollout_seconds_sum", "pavane_operator_rollout_seconds_count", "kind", "state"
        )
        yield from self.write_gaps.read(
            "pavane_operator_write_gap_seconds_sum", "pavane_operator_write_gap_seconds_count", "kind"
        )
