"""What is wrong with the scripts of a ComputeCluster, each by itself and between them (docs/compute.md)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from pavane.dataflow.ports import Script, SqlError


@lru_cache(maxsize=512)
def _read(text: str) -> Script | str:
    """Return the script, or what is wrong with it. A long one takes a second, and each plan asks again."""
    from pavane.dataflow.sql import parse  # noqa: PLC0415 - 30 MB of memory, and most operators look after no views

    try:
        return parse(text)
    except SqlError as error:
        return str(error)


class Scripts:
    """Scripts that fit together: no view is in two of them, and none reads the partitions of ticks and views."""

    def __init__(self, ticks: int, views: int) -> None:
        self._own = {ticks: "partitions.ticks", views: "partitions.views"}
        self._made: dict[str, str] = {}
        self.parsed: dict[str, Script] = {}

    def add(self, name: str, text: str) -> list[str]:
        """Return what is wrong with a script, with line and column; it belongs to these if nothing is."""
        script = _read(text)
        if isinstance(script, str):
            return [script]
        found = [
            f"table {table.name} reads the partition of {self._own[partition]}"
            for table in script.tables
            for partition in table.partitions
            if partition in self._own
        ]
        found += [
            f"the view {view.name} is in script {self._made[view.name.lower()]} as well"
            for view in script.views
            if view.name.lower() in self._made
        ]
        if not found:
            self.parsed[name] = script
            self._made |= {view.name.lower(): name for view in script.views}
        return found


def faults(scripts: Mapping[str, str], ticks: int, views: int) -> list[str]:
    """Return what is wrong with any of the scripts."""
    checked = Scripts(ticks, views)
    return [f"script {name}: {fault}" for name, text in scripts.items() for fault in checked.add(name, text)]
