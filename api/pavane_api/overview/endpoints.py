"""``GET /api/v1/resources``."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.sse import EventSourceResponse

from pavane_api.auth import Caller, OneNamespace
from pavane_api.control import Shared
from pavane_api.overview import service
from pavane_api.problems import Forbidden, responses
from pavane_operator.crds.definitions import all_kinds
from pavane_operator.kube.resources import custom

router = APIRouter(prefix="/resources", tags=["resources"])

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Snapshots and changes"}
}


@router.get("", operation_id="follow_resources", response_class=Response, responses={**_STREAM, **responses()})
async def follow(control: Shared, caller: Caller, namespace: OneNamespace = None) -> Response:
    """Stream the resources of all kinds, of one namespace or of all, as server-sent events.

    Each kind begins with one event `snapshot` (`kind`, `plural`, `items`); `added`, `modified` and `deleted` (`object`)
    follow. The stream holds the kinds that the caller may list and watch.
    """
    allowed = []
    refused: Forbidden | None = None
    for kind in all_kinds():
        resource = custom(kind.name, kind.plural)
        try:
            for verb in ("list", "watch"):
                await control.authority.require(caller, verb, resource, namespace, None)
        except Forbidden as error:
            refused = error
        else:
            allowed.append(resource)
    if refused is not None and not allowed:
        raise refused
    control.streams.admit(len(allowed))
    events = service.events(control.kube, allowed, namespace)
    return EventSourceResponse(control.streams.serve(events, len(allowed)))
