"""``/api/v1/…/computeclusters/NAME/views``, ``/sql`` and ``/bad-rows``."""

import asyncio
import json
from typing import Annotated, Any

import pyarrow as pa
from fastapi import APIRouter, Depends, Header, Path, Request, Response
from fastapi.sse import EventSourceResponse
from starlette.requests import ClientDisconnect

from pavane.dataflow.rows import plain
from pavane_api import problems
from pavane_api.auth import may
from pavane_api.control import Shared
from pavane_api.hearing import while_heard
from pavane_api.kinds import COMPUTE_CLUSTERS
from pavane_api.problems import responses
from pavane_api.views import service
from pavane_api.views.schemas import BadRows, QueryAnswer, QueryRequest, ViewInfo, ViewInfos

ARROW = "application/vnd.apache.arrow.stream"
TICK_HEADER = "Pavane-Tick"
CLIENT_GONE = 499
"""Nobody reads it; logs of servers know it."""

router = APIRouter(prefix="/namespaces/{namespace}/computeclusters/{name}", tags=["views"])

MayGet = Annotated[object, Depends(may("get", COMPUTE_CLUSTERS))]
ViewName = Annotated[str, Path(pattern="^[A-Za-z_][A-Za-z0-9_]{0,62}$", description="Name of a view")]
LastEventId = Annotated[
    str | None, Header(pattern="^[0-9]{1,18}$", description="The tick behind which a broken stream goes on")
]
Accept = Annotated[str | None, Header(description=f"`{ARROW}` for an Arrow stream, with the tick in {TICK_HEADER}")]


@router.get(
    "/views",
    operation_id="list_views",
    response_model=ViewInfos,
    responses=responses(problems.NotFound, problems.Conflict, problems.TooLarge),
)
async def views(control: Shared, _: MayGet, namespace: str, name: str) -> ViewInfos:
    """List the views: what they select, how far they are, and what they lack."""
    return await service.listed(control, namespace, name)


@router.get(
    "/views/{view}",
    operation_id="get_view",
    response_model=ViewInfo,
    responses=responses(problems.NotFound, problems.Conflict, problems.TooLarge),
)
async def view(control: Shared, _: MayGet, namespace: str, name: str, view: ViewName) -> ViewInfo:
    """Return one view."""
    found = [each for each in (await service.listed(control, namespace, name)).items if each.name == view]
    if not found:
        raise problems.NotFound(f"ComputeCluster {name} has no view {view}.")
    return found[0]


@router.get(
    "/views/{view}/changes",
    operation_id="follow_view",
    response_model=None,
    responses={
        200: {"content": {"text/event-stream": {}}, "description": "A stream"},
        **responses(problems.NotFound, problems.Conflict, problems.TooLarge),
    },
)
async def changes(
    control: Shared, _: MayGet, namespace: str, name: str, view: ViewName, last_event_id: LastEventId = None
) -> Response:
    """Stream a view as server-sent events: its rows as `snapshot`, then `changes` of each tick.

    The data of both is `{"tick", "complete", "changes": [{"diff", "row"}]}`; a large tick comes in pieces, of which the
    last is complete. `progress` says that ticks went by without a change. The id of an event is its tick: who comes
    back with it as `Last-Event-ID` gets what came since. Where that is too late `reset` comes, and the rows anew.
    """
    control.streams.admit()
    await service.check_view(control, namespace, name, view)
    after = None if last_event_id is None else int(last_event_id)
    return EventSourceResponse(control.streams.serve_log(service.changes(control, namespace, name, view, after)))


@router.post(
    "/sql",
    operation_id="query_views",
    response_model=QueryAnswer,
    responses={
        200: {"model": QueryAnswer, "content": {ARROW: {}}, "description": "The rows, all of one tick"},
        **responses(problems.NotFound, problems.BadRequest, problems.Conflict, problems.TooLarge, problems.TooLate),
    },
)
async def sql(
    control: Shared,
    _: MayGet,
    namespace: str,
    name: str,
    asked: QueryRequest,
    request: Request,
    accept: Accept = None,
) -> Response:
    """Answer a SELECT over the views at their last tick, at an earlier one, or at one that includes what you wrote.

    An answer has at most 10000 rows and 16 MiB, and is found within 10 s; SQL that is refused is a problem with line
    and column in `errors`.
    """
    try:
        found = await while_heard(request, service.answered(control, namespace, name, asked))
    except ClientDisconnect:
        return Response(status_code=CLIENT_GONE)
    headers = {TICK_HEADER: str(found.tick)}
    if accept is not None and ARROW in accept:
        return Response(await asyncio.to_thread(_arrow, found.rows), media_type=ARROW, headers=headers)
    body = await asyncio.to_thread(_document, found)
    return Response(body, media_type="application/json", headers=headers)


@router.get("/bad-rows", operation_id="list_bad_rows", response_model=BadRows, responses=responses(problems.NotFound))
async def bad_rows(control: Shared, _: MayGet, namespace: str, name: str) -> BadRows:
    """List the last rows that could not be read, each with its partition, transaction and what is wrong."""
    return await service.bad_rows(control, namespace, name)


def _document(found: service.Answered) -> bytes:
    document: dict[str, Any] = {
        "tick": found.tick,
        "staleMs": found.stale_ms,
        "columns": [{"name": each.name, "type": str(each.type)} for each in found.rows.schema],
        "rows": [{name: plain(value) for name, value in row.items()} for row in found.rows.to_pylist()],
    }
    return json.dumps(document, ensure_ascii=False, allow_nan=False).encode()


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())
