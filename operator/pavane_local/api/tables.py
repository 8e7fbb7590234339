"""Tables with printer columns, as `kubectl get` shows them (`docs/specs/operator.md` 6.1)."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from pavane_local.api.kinds import Resource
from pavane_local.store import Object

_STEP = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])+) | \[\?\(@\.(?P<key>[\w.]+)\s*==\s*["'](?P<value>[^"']*)["']\)\]
      | \[(?P<index>\d+|\*)\] | \[['"](?P<quoted>[^'"]+)['"]\]""",
    re.VERBOSE,
)

NAME = {"name": "Name", "type": "string", "format": "name", "jsonPath": ".metadata.name"}


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
    if path.startswith("@"):
        return _COMPUTED[path](body)
    found = list(values(body, path))
    if not found:
        return "<unknown>" if column["type"] == "date" else None
    if column["type"] == "date":
        return age(now - datetime.fromisoformat(found[0]))
    if len(found) > 1 or isinstance(found[0], dict | list):
        return ",".join(str(each) for each in found)
    return str(found[0]) if column["type"] == "string" else found[0]


def values(body: Any, path: str) -> Iterator[Any]:
    """Yield what a JSON path such as `.status.conditions[?(@.type=="Ready")].status` finds."""
    step = _STEP.match(path)
    if not step:
        if body is not None:
            yield body
        return
    rest = path[step.end() :]
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
        yield from values(part, rest)


def age(span: timedelta) -> str:
    """Return a duration as kubectl writes it: two units while they matter, then one."""
    seconds = max(0, int(span.total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d"


def _containers(pod: Object) -> list[Object]:
    return list(pod.get("status", {}).get("containerStatuses", ()))


def _pod_ready(pod: Object) -> str:
    return f"{sum(bool(each.get('ready')) for each in _containers(pod))}/{len(pod['spec']['containers'])}"


def _pod_status(pod: Object) -> str:
    status = pod.get("status", {})
    text = str(status.get("reason") or status.get("phase", "Unknown"))
    initial = status.get("initContainerStatuses", ())
    for prefix, each in [*(("Init:", one) for one in initial), *(("", one) for one in _containers(pod))]:
        state = each.get("state", {})
        waiting, ended = state.get("waiting", {}), state.get("terminated")
        if reason := waiting.get("reason"):
            text = prefix + reason
        elif ended and (not prefix or ended.get("exitCode")):
            text = prefix + (ended.get("reason") or f"ExitCode:{ended.get('exitCode')}")
        elif "running" in state and text == "Completed":
            text = "Running"
    return "Terminating" if "deletionTimestamp" in pod["metadata"] else text


def _set_ready(body: Object) -> str:
    return f"{body.get('status', {}).get('readyReplicas', 0)}/{body['spec'].get('replicas', 1)}"


def _event_object(event: Object) -> str:
    about = event.get("involvedObject") or event.get("regarding") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _service_ports(service: Object) -> str:
    return ",".join(f"{each['port']}/{each['protocol']}" for each in service["spec"].get("ports", ())) or "<none>"


_COMPUTED: dict[str, Callable[[Object], Any]] = {
    "@pod-ready": _pod_ready,
    "@pod-status": _pod_status,
    "@pod-restarts": lambda pod: sum(each.get("restartCount", 0) for each in _containers(pod)),
    "@set-ready": _set_ready,
    "@event-object": _event_object,
    "@service-ports": _service_ports,
    "@event-message": lambda event: event.get("message") or event.get("note"),
}
