"""``/api/v1/…/raftclusters``."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Query, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pavane_api import problems
from pavane_api.auth import Caller, MayDelete, MayGet, MayList, MayPatch
from pavane_api.control import Control, Shared
from pavane_api.problems import responses
from pavane_api.raftclusters import service
from pavane_api.raftclusters.schemas import RaftCluster, RaftClusterList
from pavane_api.resources import RAFT_CLUSTERS
from pavane_operator.kube import Identity

router = APIRouter(tags=["raftclusters"])

IfMatch = Annotated[str | None, Header(description="ETag of the resource as it was read, or * for any")]
IfNoneMatch = Annotated[str | None, Header(description="*: create, and only if there is none")]


class ListQuery(BaseModel):
    """What a list takes, with the names of Kubernetes."""

    model_config = ConfigDict(alias_generator=to_camel)

    limit: int = Field(service.LIST_LIMIT_MAX, ge=1, le=service.LIST_LIMIT_MAX, description="Items per page")
    page: str | None = Field(None, alias="continue", max_length=4096, description="Where the last page ended")
    label_selector: str = Field("", max_length=4096, description="As kubectl takes it")
    field_selector: str = Field("", max_length=4096, description="metadata.name=… and the like")
    watch: bool = Field(default=False, description="Stream changes as server-sent events instead of listing")
    resource_version: str = Field("", max_length=64, description="Watch from here, exclusive")


Listing = Annotated[ListQuery, Query()]
LastEventId = Annotated[str | None, Header(description="Where a broken watch goes on")]

LIST_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": RaftClusterList, "content": {"text/event-stream": {}}, "description": "A page, or a stream"},
    **responses(problems.ListExpired, problems.BadRequest),
}


async def _list(
    control: Control, caller: Identity, namespace: str | None, query: ListQuery, last_event_id: str | None
) -> Response:
    if query.watch:
        await control.authority.require(caller, "watch", RAFT_CLUSTERS, namespace, None)
        since = last_event_id or query.resource_version
        events = service.events(
            control.kube, namespace, since=since, labels=query.label_selector, fields=query.field_selector
        )
        return EventSourceResponse(control.streams.serve(events))
    found = await control.kube.list(
        RAFT_CLUSTERS,
        namespace,
        labels=query.label_selector,
        fields=query.field_selector,
        limit=query.limit,
        page=query.page,
    )
    body: dict[str, Any] = {"items": found.items, "resourceVersion": found.resource_version}
    if found.next_page is not None:
        body["continue"] = found.next_page
    return JSONResponse(body)


@router.get("/raftclusters", operation_id="list_all_raftclusters", responses=LIST_RESPONSES)
async def list_everywhere(
    control: Shared, caller: MayList, query: Listing, last_event_id: LastEventId = None
) -> Response:
    """List or watch the RaftClusters of all namespaces."""
    return await _list(control, caller, None, query, last_event_id)


@router.get("/namespaces/{namespace}/raftclusters", operation_id="list_raftclusters", responses=LIST_RESPONSES)
async def list_in_namespace(
    control: Shared, caller: MayList, namespace: str, query: Listing, last_event_id: LastEventId = None
) -> Response:
    """List or watch the RaftClusters of one namespace."""
    return await _list(control, caller, namespace, query, last_event_id)


ONE = "/namespaces/{namespace}/raftclusters/{name}"


def _one(document: dict[str, Any], status: int = 200) -> Response:
    return JSONResponse(document, status_code=status, headers={"ETag": service.etag(document)})


@router.get(ONE, operation_id="get_raftcluster", response_model=RaftCluster, responses=responses(problems.NotFound))
async def get(control: Shared, _: MayGet, namespace: str, name: str) -> Response:
    """Return one RaftCluster; its ETag is what If-Match wants."""
    return _one(await control.kube.get(RAFT_CLUSTERS, name, namespace))


@router.get(ONE + "/status", operation_id="get_raftcluster_status", responses=responses(problems.NotFound))
async def get_status(control: Shared, _: MayGet, namespace: str, name: str) -> dict[str, Any]:
    """Return only the status of one RaftCluster."""
    document = await control.kube.get(RAFT_CLUSTERS, name, namespace)
    status: dict[str, Any] = document.get("status") or {}
    return status


@router.put(
    ONE,
    operation_id="put_raftcluster",
    response_model=RaftCluster,
    responses={
        201: {"model": RaftCluster, "description": "Created"},
        **responses(problems.BadRequest, problems.Conflict, problems.PreconditionFailed, problems.PreconditionRequired),
    },
)
async def put(
    control: Shared,
    caller: Caller,
    namespace: str,
    name: str,
    document: Annotated[dict[str, Any], Body(description="The RaftCluster; its spec is the complete intent")],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Create (If-None-Match: *) or change (If-Match) a RaftCluster; fields left out return to their defaults."""
    verb = "update" if if_none_match is None else "create"
    await control.authority.require(caller, verb, RAFT_CLUSTERS, namespace, name)
    stored, created = await service.put(
        control.kube, namespace, name, document, if_match=if_match, if_none_match=if_none_match
    )
    return _one(stored, 201 if created else 200)


@router.patch(
    ONE,
    operation_id="patch_raftcluster",
    response_model=RaftCluster,
    responses=responses(
        problems.BadRequest,
        problems.NotFound,
        problems.Conflict,
        problems.PreconditionFailed,
        problems.PreconditionRequired,
    ),
)
async def patch(
    control: Shared,
    _: MayPatch,
    namespace: str,
    name: str,
    changes: Annotated[dict[str, Any], Body(media_type="application/merge-patch+json")],
    if_match: IfMatch = None,
) -> Response:
    """Change some fields of a RaftCluster by a JSON merge patch."""
    return _one(await service.patch(control.kube, namespace, name, changes, if_match=if_match))


@router.delete(
    ONE,
    operation_id="delete_raftcluster",
    status_code=202,
    response_class=Response,
    responses=responses(
        problems.NotFound, problems.Conflict, problems.PreconditionFailed, problems.PreconditionRequired
    ),
)
async def delete(control: Shared, _: MayDelete, namespace: str, name: str, if_match: IfMatch = None) -> Response:
    """Delete a RaftCluster; the answer comes before its pods are gone."""
    await service.delete(control.kube, namespace, name, if_match=if_match)
    return Response(status_code=202)
