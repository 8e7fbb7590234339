"""Numbers of a process as Prometheus text. Hot paths count plain integers; this module only reads them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One number under a full name such as ``pavane_raft_commit_index``, with its labels."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    kind: Literal["gauge", "counter"] = "gauge"


def render(metrics: Iterable[Metric]) -> str:
    """Return Prometheus' text format; metrics of one name may come in any order and are put together."""
    by_name: dict[str, list[Metric]] = {}
    for metric in metrics:
        by_name.setdefault(metric.name, []).append(metric)
    lines = []
    for name, group in by_name.items():
        lines.append(f"# TYPE {name} {group[0].kind}")
        lines += [f"{name}{_labels(metric.labels)} {_number(metric.value)}" for metric in group]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
