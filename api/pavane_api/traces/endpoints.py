"""``POST /v1/traces`` (OTLP) and ``/api/v1/traces``."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from google.rpc.status_pb2 import Status

from pavane_api import problems
from pavane_api.auth import Caller, Credentials, OneNamespace
from pavane_api.control import Shared
from pavane_api.problems import (
    BadRequest,
    Forbidden,
    NotFound,
    Problem,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    responses,
)
from pavane_api.traces.receiver import ACCEPTED
from pavane_api.traces.schemas import Trace, TraceList
from pavane_api.traces.store import NAMESPACES_MAX
from pavane_operator.kube import KubeError

OTLP_TYPE = "application/x-protobuf"
REFUSALS = (BadRequest, Unauthenticated, TooLarge, TooManyRequests, Unavailable)
LIST_LIMIT_MAX = 200
DURATION_MS_MAX = 1e9  # eleven days; the nanoseconds of far more are no number of SQLite's

receiver = APIRouter(tags=["traces"])
router = APIRouter(prefix="/traces", tags=["traces"])


def _refusals() -> dict[int | str, dict[str, Any]]:
    """What an exporter is refused with: a ``google.rpc.Status``, as OTLP says; everybody else gets a problem."""
    described = {code: answer for each in REFUSALS for code, answer in each.schema().items()}
    for answer in described.values():
        answer["content"][OTLP_TYPE] = {"schema": {"type": "string", "format": "binary"}}
    return described


@receiver.post("/v1/traces", operation_id="export_traces", response_class=Response, responses=_refusals())
async def export(request: Request, control: Shared, credentials: Credentials) -> Response:
    """Take spans from an OpenTelemetry exporter (OTLP over HTTP, protobuf) with a token for audience pavane-otlp.

    Spans with the token of a ServiceAccount are taken as spans of its namespace, whatever they say. Only accounts of
    the namespace in which the control plane runs send spans about others.
    """
    is_otlp = request.headers.get("content-type", "").split(";")[0].strip() == OTLP_TYPE
    try:
        namespace = await control.receiver.admit(credentials.credentials if credentials is not None else "")
        if not is_otlp:
            raise BadRequest(f"Content-Type must be {OTLP_TYPE}: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf.")
        await control.receiver.take(request.stream(), request.headers.get("content-encoding", ""), namespace)
    except (Problem, KubeError) as error:
        problem = problems.from_kubernetes(error) if isinstance(error, KubeError) else error
        control.receiver.exports[problem.status] += 1
        if not is_otlp:
            raise problem from error
        told = Status(message=problem.detail).SerializeToString()
        return Response(told, problem.status, headers=problem.headers, media_type=OTLP_TYPE)
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
