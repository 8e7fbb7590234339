"""``GET /api/v1/resources`` and ``GET /api/v1/resources/series``."""

import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Response
from fastapi.sse import EventSourceResponse

from pavane_api.auth import Caller, OneNamespace
from pavane_api.control import Control, Shared
from pavane_api.overview import service
from pavane_api.problems import Forbidden, responses
from pavane_api.series.catalogue import lead
from pavane_api.series.schemas import SeriesLine, SeriesLines
from pavane_operator.crds.definitions import all_kinds
from pavane_operator.kube import Identity
from pavane_operator.kube.resources import Resource, custom

LINE_STEPS = 30  # of a line in a list: it is 96 pixels wide
LINE_STEP_S = 120  # so it shows the last hour

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
    allowed = await _allowed(control, caller, namespace, ("list", "watch"))
    control.streams.admit(len(allowed))
    events = service.events(control.kube, allowed, namespace)
    return EventSourceResponse(control.streams.serve(events, len(allowed)))


@router.get("/series", operation_id="list_resource_series", response_model=SeriesLines, responses=responses())
async def series(control: Shared, caller: Caller, namespace: OneNamespace = None) -> SeriesLines:
    """Return the last hour of one number per resource, of one namespace or of all: of the kinds the caller may list.

    The numbers are the first ones of each kind, in steps of two minutes; of what has no pods there are none.
    """
    allowed = await _allowed(control, caller, namespace, ("list",))
    begin = int(time.time()) // LINE_STEP_S * LINE_STEP_S - (LINE_STEPS - 1) * LINE_STEP_S
    found = await control.series.lines([each.plural for each in allowed], namespace, begin, LINE_STEP_S, LINE_STEPS)
    items = [
        SeriesLine(
            plural=place.plural, namespace=place.namespace, name=place.name, unit=lead(place.plural).unit, values=values
        )
        for place, values in found
    ]
    return SeriesLines(from_=begin, step=LINE_STEP_S, items=items)


async def _allowed(control: Control, caller: Identity, namespace: str | None, verbs: Sequence[str]) -> list[Resource]:
    """Return the kinds with which the caller may do that; raises ``Forbidden`` when there is none."""
    allowed = []
    refused: Forbidden | None = None
    for kind in all_kinds():
        resource = custom(kind.name, kind.plural)
        try:
            for verb in verbs:
                await control.authority.require(caller, verb, resource, namespace, None)
        except Forbidden as error:
            refused = error
        else:
            allowed.append(resource)
    if refused is not None and not allowed:
        raise refused
    return allowed
