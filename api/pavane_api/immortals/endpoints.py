"""``/api/v1/…/coordinators/NAME/immortal``, ``/flows``, ``/call`` and ``/query``."""

from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Body, Depends, Header, Path, Request
from fastapi import Query as Parameter
from pydantic import BaseModel, Field

from pavane_api import problems
from pavane_api.auth import may
from pavane_api.control import Shared
from pavane_api.immortals import about, service
from pavane_api.immortals.schemas import FlowHistory, FoundFlows, ImmortalInfo
from pavane_api.kinds import COORDINATORS
from pavane_api.problems import responses

KEY_CHARACTERS_MAX = 255
"""As an immortal takes it: keys are part of its state."""

router = APIRouter(prefix="/namespaces/{namespace}/coordinators/{name}", tags=["immortals"])

MayGet = Annotated[object, Depends(may("get", COORDINATORS))]
MayUpdate = Annotated[object, Depends(may("update", COORDINATORS))]
Handler = Annotated[str, Path(min_length=1, max_length=255, description="Name of a method")]
Query = Annotated[str, Path(min_length=1, max_length=255, description="Name of a query")]
Key = Annotated[
    str | None, Header(max_length=KEY_CHARACTERS_MAX, description="Repeated with the same key, a call happens once")
]
Arguments = Annotated[list[Any] | dict[str, Any], Body(description="Arguments in order, or by the names of parameters")]


Attributes = Annotated[
    list[Annotated[str, Field(max_length=600, pattern="=")]],
    Parameter(max_length=20, description="A search attribute, NAME=VALUE"),
]
NUMBER_MAX = 10**18 - 1


class Answer(BaseModel):
    """What a handler returned."""

    result: Any = Field(description="Its result as JSON")


@router.get(
    "/immortal", operation_id="get_immortal", response_model=ImmortalInfo, responses=responses(problems.NotFound)
)
async def immortal(control: Shared, _: MayGet, namespace: str, name: str) -> ImmortalInfo:
    """Return what its application and its coordinators tell of themselves: position, lag, peers, flows, handlers."""
    return await about.info(control, namespace, name)


@router.get(
    "/flows",
    operation_id="list_flows",
    response_model=FoundFlows,
    responses=responses(problems.NotFound, problems.BadRequest),
)
async def flows(
    control: Shared,
    _: MayGet,
    namespace: str,
    name: str,
    attribute: Attributes = [],  # noqa: B006 - FastAPI copies it
    method: Annotated[str, Parameter(max_length=255, description="What runs, with or without its class")] = "",
    caller: Annotated[str, Parameter(max_length=255, description="Name of the immortal that waits for it")] = "",
    from_: Annotated[int, Parameter(alias="from", ge=0, le=NUMBER_MAX, description="The first number")] = 0,
) -> FoundFlows:
    """Find open flows, 50 at most, the oldest first: all that is given has to be so."""
    sought = [*(("attribute", each) for each in attribute), ("method", method), ("caller", caller)]
    return await service.flows(control, namespace, name, [*sought, ("from", str(from_))])


@router.get(
    "/flows/{number}", operation_id="get_flow", response_model=FlowHistory, responses=responses(problems.NotFound)
)
async def flow(
    control: Shared,
    _: MayGet,
    namespace: str,
    name: str,
    number: Annotated[int, Path(ge=0, le=NUMBER_MAX, description="Its number")],
    from_: Annotated[int, Parameter(alias="from", ge=0, le=NUMBER_MAX, description="The first step")] = 0,
) -> FlowHistory:
    """Return an open flow: arguments, steps, results, attempts, timers. One that has ended has no history any more."""
    return await service.history(control, namespace, name, number, from_)


@router.post(
    "/call/{method}",
    operation_id="call_immortal",
    response_model=Answer,
    responses=responses(
        problems.NotFound, problems.BadRequest, problems.Conflict, problems.HandlerFailed, problems.OutcomeUnknown
    ),
)
async def call(
    control: Shared,
    _: MayUpdate,
    namespace: str,
    name: str,
    method: Handler,
    arguments: Arguments = [],  # noqa: B006 - FastAPI copies it
    idempotency_key: Key = None,
) -> Answer:
    """Call a method. It is logged before it happens, and happens once although pods die or a rollout is under way."""
    key = idempotency_key or str(uuid4())
    return Answer(result=await service.call(control, namespace, name, method, arguments, key))


@router.get(
    "/query/{query}",
    operation_id="query_immortal",
    response_model=Answer,
    responses=responses(problems.NotFound, problems.BadRequest, problems.HandlerFailed),
)
async def query(control: Shared, _: MayGet, request: Request, namespace: str, name: str, query: Query) -> Answer:
    """Answer a query by the present state. Parameters of the URL are its arguments, as JSON or plain text."""
    return Answer(result=await service.query(control, namespace, name, query, dict(request.query_params)))
