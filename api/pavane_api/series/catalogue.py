"""Which numbers are kept of a resource, and how they follow from the metrics of its pods (docs/telemetry.md). Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class How(Enum):
    """How a number follows from metrics, over all pods and labels."""

    TOTAL = "total"
    """Sum of a gauge."""
    MOST = "most"
    """The greatest value of a gauge."""
    RATE = "rate"
    """Growth of a counter per second."""
    PACE = "pace"
    """The same of the pod where it grows fastest: for what all pods count alike."""
    MEAN = "mean"
    """Growth of a counter over that of another: what one of them took."""
    BEHIND = "behind"
    """By how much the pod that is last in a gauge is behind the one that is first in another."""


class Fold(Enum):
    """What a step of time shows of the readings in it."""

    MEAN = "mean"
    MOST = "most"


@dataclass(frozen=True, slots=True)
class Series:
    """One number of a resource over time."""

    name: str
    title: str
    unit: str
    how: How
    metrics: tuple[str, ...]
    fold: Fold = Fold.MEAN


class Values(NamedTuple):
    """One metric of a pod, over its labels."""

    total: float
    least: float
    most: float


Reading = Mapping[str, Values]
"""The metrics of a pod that some series needs."""

_OF_RATES = frozenset({How.RATE, How.PACE, How.MEAN})
_PROCESSES = (
    Series("cpu", "Processor time", "cores", How.RATE, ("pavane_process_cpu_seconds_total",)),
    Series("memory", "Memory of all pods", "bytes", How.TOTAL, ("pavane_process_memory_bytes",)),
)
CATALOGUE: Mapping[str, tuple[Series, ...]] = {
    "raftclusters": (
        Series("writes", "Writes", "per second", How.RATE, ("pavane_raft_update_seconds_count",)),
        Series("barriers", "Reads confirmed", "per second", How.RATE, ("pavane_raft_barrier_seconds_count",)),
        Series(
            "write_time",
            "A write takes, mean",
            "seconds",
            How.MEAN,
            ("pavane_raft_update_seconds_sum", "pavane_raft_update_seconds_count"),
            Fold.MOST,
        ),
        Series(
            "fsync_time",
            "An fsync takes, mean",
            "seconds",
            How.MEAN,
            ("pavane_raft_fsync_seconds_sum", "pavane_raft_fsync_seconds_count"),
            Fold.MOST,
        ),
        Series(
            "lag",
            "The last pod is behind",
            "entries",
            How.BEHIND,
            ("pavane_raft_commit_index", "pavane_raft_applied_index"),
            Fold.MOST,
        ),
        Series("log", "Logs of all pods", "bytes", How.TOTAL, ("pavane_raft_log_bytes",)),
        Series("state", "Keys and values", "bytes", How.MOST, ("pavane_raft_kv_bytes",)),
        *_PROCESSES,
    ),
    "waltzclusters": (
        Series("appends", "Appends", "per second", How.RATE, ("pavane_waltz_appended_total",)),
        Series("conflicts", "Refused by a lock", "per second", How.RATE, ("pavane_waltz_conflicts_total",)),
        Series(
            "consumers",
            "The last consumer is behind",
            "transactions",
            How.MOST,
            ("pavane_waltz_consumer_lag",),
            Fold.MOST,
        ),
        Series("clients", "Connections", "clients", How.TOTAL, ("pavane_waltz_clients",)),
        Series("disk", "Copies of all storage nodes", "bytes", How.TOTAL, ("pavane_waltz_storage_bytes",)),
        *_PROCESSES,
    ),
    "swimgroups": (
        Series("traffic", "Sent", "bytes per second", How.RATE, ("pavane_swim_sent_bytes_total",)),
        Series("alive", "Members that others see alive", "members", How.MOST, ("pavane_swim_peers_alive",)),
        Series("suspect", "Suspects", "members", How.MOST, ("pavane_swim_peers_suspect",), Fold.MOST),
        Series("dropped", "Dropped", "per second", How.RATE, ("pavane_swim_dropped_total",)),
        *_PROCESSES,
    ),
    "coordinators": (
        Series("records", "Records of the log", "per second", How.PACE, ("pavane_ambrosia_records_total",)),
        Series("lag", "The last pod is behind", "bytes", How.MOST, ("pavane_ambrosia_behind_bytes",), Fold.MOST),
        *_PROCESSES,
    ),
    "computeclusters": (
        Series("ticks", "Ticks", "per second", How.PACE, ("pavane_dataflow_ticks_total",)),
        Series("lag", "The last view is behind", "ticks", How.MOST, ("pavane_dataflow_lag_ticks",), Fold.MOST),
        Series("bad_rows", "Rows that do not fit", "rows", How.MOST, ("pavane_dataflow_bad_rows",), Fold.MOST),
        *_PROCESSES,
    ),
}
"""The series of each kind, by the plural of its name; the first is what a line in a list shows."""
WANTED: Mapping[str, frozenset[str]] = {
    plural: frozenset(name for one in series for name in one.metrics) for plural, series in CATALOGUE.items()
}
"""The metrics that they need."""


def lead(plural: str) -> Series:
    """Return the number that a list shows of a kind."""
    return CATALOGUE[plural][0]


def parse(text: str, wanted: frozenset[str]) -> Reading:
    """Read Prometheus' text format; what is not wanted, or no number, is left out."""
    found: dict[str, Values] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name not in wanted:
            continue
        try:
            value = float(line.rpartition(" ")[2])
        except ValueError:
            continue
        known = found.get(name)
        found[name] = (
            Values(value, value, value)
            if known is None
            else Values(known.total + value, min(known.least, value), max(known.most, value))
        )
    return found


def growth(before: Reading, after: Reading) -> dict[str, float]:
    """Return by how much each metric grew in one pod; one that fell counts from zero, for the process began again."""
    return {
        name: value.total - before[name].total if value.total >= before[name].total else value.total
        for name, value in after.items()
        if name in before
    }


def numbers(
    series: Sequence[Series], pods: Sequence[Reading], rates: Sequence[Mapping[str, float]]
) -> tuple[float | None, ...]:
    """Return the value of each series now; None where no pod tells it.

    ``rates`` has the growth of metrics per second, of each pod that was read twice.
    """
    return tuple(_number(one, pods, rates) for one in series)


def _number(one: Series, pods: Sequence[Reading], rates: Sequence[Mapping[str, float]]) -> float | None:
    first, last = one.metrics[0], one.metrics[-1]
    if one.how in _OF_RATES:
        grown = [pod[first] for pod in rates if first in pod]
        if one.how is How.MEAN:
            count = sum(pod.get(last, 0.0) for pod in rates)
            return sum(grown) / count if count else None
        return (sum(grown) if one.how is How.RATE else max(grown)) if grown else None
    firsts = [pod[first] for pod in pods if first in pod]
    lasts = [pod[last] for pod in pods if last in pod]
    if not firsts or not lasts:
        return None
    if one.how is How.BEHIND:
        return max(0.0, max(each.most for each in firsts) - min(each.least for each in lasts))
    return sum(each.total for each in firsts) if one.how is How.TOTAL else max(each.most for each in firsts)
