"""``POST /v1/traces`` (OTLP) and ``/api/v1/traces``."""

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from pavane_api import problems
from pavane_api.auth import Caller, OneNamespace
from pavane_api.control import Shared
from pavane_api.problems import BadRequest, Forbidden, NotFound, TooLarge, TooManyRequests, responses
from pavane_api.traces.receiver import ACCEPTED, BODY_BYTES_MAX, decode
from pavane_api.traces.schemas import Trace, TraceList
from pavane_api.traces.store import NAMESPACES_MAX

OTLP_TYPE = "application/x-protobuf"
LIST_LIMIT_MAX = 200
DURATION_MS_MAX = 1e9  # eleven days; the nanoseconds of far more are no number of SQLite's

receiver = APIRouter(tags=["traces"])
router = APIRouter(prefix="/traces", tags=["traces"])


@receiver.post(
    "/v1/traces",
    operation_id="export_traces",
    response_class=Response,
    responses={**BadRequest.schema(), **TooLarge.schema(), **TooManyRequests.schema()},
)
async def export(request: Request, control: Shared) -> Response:
    """Take spans from an OpenTelemetry exporter (OTLP over HTTP, protobuf). Needs no token."""
    if request.headers.get("content-type", "").split(";")[0].strip() != OTLP_TYPE:
        raise BadRequest(f"Content-Type must be {OTLP_TYPE}: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf.")
    if not control.trace_rate.take(time.monotonic()):
        raise TooManyRequests("Too many trace exports at once.", headers={"Retry-After": "1"})
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise TooLarge(f"More than {BODY_BYTES_MAX} bytes in one request: export smaller batches.")
    spans = decode(bytes(body), request.headers.get("content-encoding", ""))
    await control.traces.add(spans, now_ns=time.time_ns())
    return Response(ACCEPTED, media_type=OTLP_TYPE)


@router.get("", operation_id="list_traces", response_model=TraceList, responses=responses())
async def recent(
    control: Shared,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=LIST_LIMIT_MAX)] = 20,
    service: Annotated[str, Query(max_length=253, description="Program of the root span")] = "",
    name: Annotated[str, Query(max_length=253, description="Part of the root span's name")] = "",
    min_duration_ms: Annotated[float, Query(ge=0, le=DURATION_MS_MAX, description="Only slower ones")] = 0.0,
    errors_only: Annotated[bool, Query(description="Only failed ones")] = False,
    parts: Annotated[bool, Query(description="Also those that are shown as a part of another trace")] = False,
    namespace: OneNamespace = None,
) -> TraceList:
    """Return the newest traces: of a namespace where the caller may get resources, or of all if he may everywhere."""
    if not await control.authority.sees(caller, namespace):
        where = f"in namespace {namespace}" if namespace else "in all namespaces; name one with ?namespace="
        raise Forbidden(f"{caller.user} may not get resources {where}.")
    items = await control.traces.recent(
        namespace=namespace,
        limit=limit,
        service=service,
        name=name,
        min_duration_ns=int(min_duration_ms * 1e6),
        errors_only=errors_only,
        parts=parts,
    )
    return TraceList(items=items)


@router.get("/{trace_id}", operation_id="get_trace", response_model=Trace, responses=responses(problems.NotFound))
async def one(control: Shared, caller: Caller, trace_id: str) -> Trace:
    """Return a trace with the spans that links connect to it, by start time, as far as the caller may see them."""
    everything = await control.authority.sees(caller, None)
    named = await control.traces.namespaces(trace_id.lower()) if not everything else frozenset()
    shown = everything or (
        0 < len(named) <= NAMESPACES_MAX and all([await control.authority.sees(caller, each) for each in named])
    )
    found = await control.traces.trace(trace_id.lower(), None if everything else named) if shown else None
    if found is None:
        raise NotFound(f"There is no trace {trace_id}: it may not have arrived yet, or is older than what is kept.")
    return found
