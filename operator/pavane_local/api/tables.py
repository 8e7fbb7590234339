"""Tables with printer columns, as `kubectl get` shows them (`docs/specs/operator.md` 6.1)."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from pavane_local.api.kinds import Resource
from pavane_local.store import Object

NAME = {"name": "Name", "type": "string", "format": "name", "jsonPath": ".metadata.name"}
AGES = (
    (120, 1, "s", 0, ""),
    (600, 60, "m", 1, "s"),
    (10800, 60, "m", 0, ""),
    (28800, 3600, "h", 60, "m"),
    (172800, 3600, "h", 0, ""),
    (691200, 86400, "d", 3600, "h"),
    (math.inf, 86400, "d", 0, ""),
)
"""How kubectl writes ages: below so many seconds, in this unit (seconds, letter) and the rest in that one, if any."""
_STEP = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])+) | \[\?\(@\.(?P<key>[\w.]+)\s*==\s*["'](?P<value>[^"']*)["']\)\]
      | \[(?P<index>\d+|\*)\] | \[['"](?P<quoted>[^'"]+)['"]\]""",
    re.VERBOSE,
)


def table(resource: Resource, objects: Iterable[Object], metadata: Object, now: datetime, include: str) -> Object:
    """Return a Table; `include` says what stands behind each row: `Metadata` (default), `Object` or `None`."""
    columns = [NAME, *resource.columns]
    definitions = [{"format": "", "description": "", "priority": 0, **each} for each in columns]
    rows = [
        {"cells": [_cell(column, each, now) for column in columns], "object": _behind(each, include)}
        for each in objects
    ]
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return {**head, "columnDefinitions": definitions, "rows": rows}


def _behind(body: Object, include: str) -> Object | None:
    if include in ("Object", "None"):
        return body if include == "Object" else None
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}


def _cell(column: Mapping[str, Any], body: Object, now: datetime) -> Any:
    path = column["jsonPath"]
    found = [_COMPUTED[path](body)] if path in _COMPUTED else list(_values(body, path))
    if column["type"] == "date":
        return _age(now - datetime.fromisoformat(found[0])) if found else "<unknown>"
    if len(found) > 1 or (found and isinstance(found[0], dict | list)):
        return ",".join(str(each) for each in found)
    if not found:
        return None
    return str(found[0]) if column["type"] == "string" else found[0]


def _values(body: Any, path: str) -> Iterator[Any]:
    """Yield what a JSON path such as `.status.conditions[?(@.type=="Ready")].status` finds."""
    step = _STEP.match(path)
    if not step:
        if body is not None:
            yield body
        return
    name = (step["name"] or step["quoted"] or "").replace("\\", "")
    if name:
        parts = [body[name]] if isinstance(body, Mapping) and name in body else []
    elif not isinstance(body, list):
        parts = []
    elif step["key"]:
        parts = [each for each in body if str(each.get(step["key"])) == step["value"]]
    else:
        parts = body if step["index"] == "*" else body[int(step["index"]) :][:1]
    for part in parts:
        yield from _values(part, path[step.end() :])


def _age(span: timedelta) -> str:
    seconds = max(0, int(span.total_seconds()))
    unit, letter, smaller, small = next(row[1:] for row in AGES if seconds < row[0])
    rest = seconds % unit // smaller if smaller else 0
    return f"{seconds // unit}{letter}" + (f"{rest}{small}" if rest else "")


def _containers(pod: Object) -> list[Object]:
    return list(pod.get("status", {}).get("containerStatuses", ()))


def _pod_status(pod: Object) -> str:
    status = pod.get("status", {})
    text = str(status.get("reason") or status.get("phase", "Unknown"))
    initial = status.get("initContainerStatuses", ())
    for prefix, each in [*(("Init:", one) for one in initial), *(("", one) for one in _containers(pod))]:
        state = each.get("state", {})
        ended = state.get("terminated")
        if reason := state.get("waiting", {}).get("reason"):
            text = prefix + reason
        elif ended and (not prefix or ended.get("exitCode")):
            text = prefix + (ended.get("reason") or f"ExitCode:{ended.get('exitCode')}")
        elif "running" in state and text == "Completed":
            text = "Running"
    return "Terminating" if "deletionTimestamp" in pod["metadata"] else text


def _pod_ready(pod: Object) -> str:
    return f"{sum(bool(each.get('ready')) for each in _containers(pod))}/{len(pod['spec']['containers'])}"


_COMPUTED: dict[str, Callable[[Object], Any]] = {
    "@pod-ready": _pod_ready,
    "@pod-status": _pod_status,
    "@pod-restarts": lambda pod: sum(each.get("restartCount", 0) for each in _containers(pod)),
}
