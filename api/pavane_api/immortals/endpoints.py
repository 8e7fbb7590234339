"""``/api/v1/…/coordinators/NAME/immortal``, ``/call`` and ``/query``."""

from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Body, Depends, Header, Path, Request
from pydantic import BaseModel, Field

from pavane_api import problems
from pavane_api.auth import may
from pavane_api.control import Shared
from pavane_api.immortals import about, service
from pavane_api.immortals.schemas import ImmortalInfo
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


class Answer(BaseModel):
    """What a handler returned."""

    result: Any = Field(description="Its result as JSON")


@router.get(
    "/immortal", operation_id="get_immortal", response_model=ImmortalInfo, responses=responses(problems.NotFound)
)
async def immortal(control: Shared, _: MayGet, namespace: str, name: str) -> ImmortalInfo:
    """Return what its application and its coordinators tell of themselves: position, lag, peers, flows, handlers."""
    return await about.info(control, namespace, name)


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
