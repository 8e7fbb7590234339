"""Numbers of a process as Prometheus text. Hot paths count plain integers; this module only reads them."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

_COUNTERS = ("_total", "_sum", "_count")


class Metric(NamedTuple):
    """One number under its full name. Names that end in ``_total``, ``_sum`` or ``_count`` only grow."""

    name: str
    labels: Mapping[str, str]
    value: float


def render(metrics: Iterable[tuple[str, Mapping[str, str], float]]) -> str:
    """Return Prometheus' text format; metrics of one name may come in any order and are put together."""
    by_name: dict[str, list[Metric]] = {}
    for metric in metrics:
        by_name.setdefault(metric[0], []).append(Metric(*metric))
    lines = []
    for name, group in by_name.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith(_COUNTERS) else 'gauge'}")
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
