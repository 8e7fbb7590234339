"""Tables with printer columns, as `kubectl get` shows them (`docs/specs/operator.md` 6.1)."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from pavane_local.api.kinds import Resource
from pavane_local.store import Object

NAME = {"name": "Name", "type": "string", "format": "name", "jsonPath": ".metadata.name"}
AGES = ((120, 1, "s"), (7200, 60, "m"), (172800, 3600, "h"), (math.inf, 86400, "d"))
"""Below so many seconds an age is written in this unit (seconds, letter)."""
EVENT_TIMES = (".series.lastObservedTime", ".lastTimestamp", ".eventTime")  # the first that its recorder has filled
_STEP = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])+) | \[\?\(@\.(?P<key>[\w.]+)\s*==\s*["'](?P<value>[^"']*)["']\)\]
      | \[(?P<index>\d+|\*)\]""",
    re.VERBOSE,
)


def table(resource: Resource, objects: Iterable[Object], metadata: Object, now: datetime) -> Object:
    """Return a Table with the whole object behind each row."""
    columns = [NAME, *resource.columns]
    told = {"name": "", "type": "", "format": "", "description": "", "priority": 0}
    shown = [{key: each.get(key, default) for key, default in told.items()} for each in columns]
    rows = [{"cells": [_cell(column, each, now) for column in columns], "object": each} for each in objects]
    whole = {"metadata": metadata, "columnDefinitions": shown, "rows": rows}
    return {"kind": "Table", "apiVersion": "meta.k8s.io/v1", **whole}


def _cell(column: Mapping[str, Any], body: Object, now: datetime) -> Any:
    path = column["jsonPath"]
    found = [_COMPUTED[path](body)] if path in _COMPUTED else list(values(body, path))
    if column["type"] == "date":
        return _age(now - datetime.fromisoformat(found[0])) if found and found[0] else "<unknown>"
    if len(found) > 1 or (found and isinstance(found[0], dict | list)):
        return ",".join(str(each) for each in found)
    return str(found[0]) if found and column["type"] == "string" else next(iter(found), None)


def values(body: Any, path: str) -> Iterator[Any]:
    """Yield what a JSON path such as `.status.conditions[?(@.type=="Ready")].status` finds."""
    step = _STEP.match(path)
    if not step:
        if body is not None:
            yield body
        return
    if name := (step["name"] or "").replace("\\", ""):
        parts = [body[name]] if isinstance(body, Mapping) and name in body else []
    elif not isinstance(body, list):
        parts = []
    elif step["key"]:
        parts = [each for each in body if str(each.get(step["key"])) == step["value"]]
    else:
        parts = body if step["index"] == "*" else body[int(step["index"]) :][:1]
    for part in parts:
        yield from values(part, path[step.end() :])


def _age(span: timedelta) -> str:
    seconds = max(0, int(span.total_seconds()))
    unit, letter = next((unit, letter) for limit, unit, letter in AGES if seconds < limit)
    return f"{seconds // unit}{letter}"


def _pod_status(pod: Object) -> str:
    """Return why a container waits or ended, if one does, else the phase."""
    status = pod.get("status", {})
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    for state in (each.get("state", {}) for each in status.get("containerStatuses", ())):
        if reason := (state.get("waiting") or state.get("terminated") or {}).get("reason"):
            return str(reason)
    return str(status.get("reason") or status.get("phase", "Unknown"))


def _pod_containers(pod: Object, field: str) -> list[int]:
    return [int(each.get(field, 0)) for each in pod.get("status", {}).get("containerStatuses", ())]


_COMPUTED: dict[str, Callable[[Object], Any]] = {
    "@pod-ready": lambda pod: f"{sum(_pod_containers(pod, 'ready'))}/{len(pod['spec']['containers'])}",
    "@pod-status": _pod_status,
    "@event-seen": lambda event: next((each for path in EVENT_TIMES for each in values(event, path)), None),
    "@pod-restarts": lambda pod: sum(_pod_containers(pod, "restartCount")),
}
