"""The log of a pod's container over HTTP (`docs/specs/operator.md` 6.8.10)."""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Protocol

from pavane_local.api.errors import bad_request
from pavane_local.kubelet.logs import LogOptions
from pavane_local.store import Object


class PodLogs(Protocol):
    """What the kubelet offers to the API server."""

    def stream(self, pod: Object, container: str, options: LogOptions, *, previous: bool) -> AsyncIterator[bytes]:
        """Yield the log of the container's present (or previous) run as it is to be sent.

        Raises `LookupError`: there is no such run; the text tells the user why.
        """
        ...


def container_of(pod: Object, query: Mapping[str, str]) -> str:
    """Return the container whose log is asked for: the named one, or the only one.

    Raises `ApiError`: 400, no such container, or several to choose from.
    """
    spec = pod["spec"]
    names = [each["name"] for each in (*spec["containers"], *spec.get("initContainers", ()))]
    name = query.get("container") or (spec["containers"][0]["name"] if len(spec["containers"]) == 1 else "")
    if name not in names:
        pod_name = pod["metadata"]["name"]
        wanted = f"container {name} is not valid" if name else "a container name must be specified"
        raise bad_request(f"{wanted} for pod {pod_name}, choose one of: {names}")
    return name


def options_of(query: Mapping[str, str], now: datetime) -> LogOptions:
    """Read the options of the query `follow`, `tailLines`, `sinceSeconds`, `sinceTime`, `limitBytes`, `timestamps`.

    Raises `ApiError`: 400, a value cannot be read.
    """
    try:
        since = now - timedelta(seconds=int(query["sinceSeconds"])) if "sinceSeconds" in query else None
        return LogOptions(
            follow=query.get("follow") == "true",
            tail_lines=int(query["tailLines"]) if "tailLines" in query else None,
            since=datetime.fromisoformat(query["sinceTime"]) if "sinceTime" in query else since,
            limit_bytes=int(query["limitBytes"]) if "limitBytes" in query else None,
            timestamps=query.get("timestamps") == "true",
        )
    except ValueError as error:
        raise bad_request(f"the query of the log request cannot be read: {error}") from error
