"""``/api/v1/…/PLURAL`` of each kind."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Response
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pavane_api import problems
from pavane_api.auth import Caller, may
from pavane_api.control import Control, Shared
from pavane_api.problems import responses
from pavane_api.resources import service
from pavane_api.resources.schemas import document_of, page_of
from pavane_operator.crds.descriptor import Described
from pavane_operator.kube import Identity
from pavane_operator.kube.resources import custom

IfMatch = Annotated[str | None, Header(description="ETag of the resource as it was read, or * for any")]
KnownTag = Annotated[str | None, Header(alias="If-None-Match", description="ETag that the caller has: 304")]
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
Wanted = Annotated[dict[str, Any], Body(description="The resource; its spec is the complete intent")]
Changes = Annotated[dict[str, Any], Body(media_type="application/merge-patch+json")]


class Endpoints:
    """The endpoints of one kind; what their callers may do is checked by their routes."""

    def __init__(self, kind: Described) -> None:
        self._resource = custom(kind.name, kind.plural)

    async def list_everywhere(
        self, control: Shared, caller: Caller, query: Listing, last_event_id: LastEventId = None
    ) -> Response:
        """List or watch the resources of all namespaces."""
        return await self._list(control, caller, None, query, last_event_id)

    async def list_in_namespace(
        self, control: Shared, caller: Caller, namespace: str, query: Listing, last_event_id: LastEventId = None
    ) -> Response:
        """List or watch the resources of one namespace."""
        return await self._list(control, caller, namespace, query, last_event_id)

    async def _list(
        self, control: Control, caller: Identity, namespace: str | None, query: ListQuery, last_event_id: str | None
    ) -> Response:
        selectors = {"labels": query.label_selector, "fields": query.field_selector}
        if query.watch:
            await control.authority.require(caller, "watch", self._resource, namespace, None)
            control.streams.admit(1)
            since = last_event_id or query.resource_version
            events = service.events(control.kube, self._resource, namespace, since=since, **selectors)
            return EventSourceResponse(control.streams.serve(events, 1))
        found = await control.kube.list(self._resource, namespace, limit=query.limit, page=query.page, **selectors)
        body: dict[str, Any] = {"items": found.items, "resourceVersion": found.resource_version}
        if found.next_page is not None:
            body["continue"] = found.next_page
        return JSONResponse(body)

    async def get(self, control: Shared, namespace: str, name: str, if_none_match: KnownTag = None) -> Response:
        """Return one resource; its ETag is what If-Match wants, 304 without a body where If-None-Match names it."""
        document = await control.kube.get(self._resource, name, namespace)
        if service.is_known(document, if_none_match):
            return Response(status_code=304, headers={"ETag": service.etag(document)})
        return _one(document)

    async def get_status(self, control: Shared, namespace: str, name: str) -> dict[str, Any]:
        """Return only the status of one resource."""
        document = await control.kube.get(self._resource, name, namespace)
        status: dict[str, Any] = document.get("status") or {}
        return status

    async def put(
        self,
        control: Shared,
        caller: Caller,
        namespace: str,
        name: str,
        document: Wanted,
        if_match: IfMatch = None,
        if_none_match: IfNoneMatch = None,
    ) -> Response:
        """Create (If-None-Match: *) or change (If-Match) a resource; fields left out return to their defaults."""
        verb = "update" if if_none_match is None else "create"
        await control.authority.require(caller, verb, self._resource, namespace, name)
        stored, created = await service.put(
            control.kube, self._resource, namespace, name, document, if_match=if_match, if_none_match=if_none_match
        )
        return _one(stored, 201 if created else 200)

    async def patch(
        self, control: Shared, namespace: str, name: str, changes: Changes, if_match: IfMatch = None
    ) -> Response:
        """Change some fields of a resource by a JSON merge patch."""
        return _one(await service.patch(control.kube, self._resource, namespace, name, changes, if_match=if_match))

    async def delete(self, control: Shared, namespace: str, name: str, if_match: IfMatch = None) -> Response:
        """Delete a resource; the answer comes before its pods are gone."""
        await service.delete(control.kube, self._resource, namespace, name, if_match=if_match)
        return Response(status_code=202)


def _one(document: dict[str, Any], status: int = 200) -> Response:
    return JSONResponse(document, status_code=status, headers={"ETag": service.etag(document)})


def router_of(kind: Described) -> APIRouter:
    """Return the routes of one kind."""
    endpoints, singular, plural = Endpoints(kind), kind.name.lower(), kind.plural
    router = APIRouter(tags=[plural])
    document = document_of(kind)
    conditional = (problems.Conflict, problems.PreconditionFailed, problems.PreconditionRequired)
    listed = {
        200: {"model": page_of(document), "content": {"text/event-stream": {}}, "description": "A page, or a stream"},
        **responses(problems.ListExpired, problems.BadRequest),
    }

    def checked(verb: str) -> list[Any]:
        return [Depends(may(verb, custom(kind.name, kind.plural)))]

    for path, endpoint, name in (
        (f"/{plural}", endpoints.list_everywhere, f"list_all_{plural}"),
        (f"/namespaces/{{namespace}}/{plural}", endpoints.list_in_namespace, f"list_{plural}"),
    ):
        router.get(path, operation_id=name, dependencies=checked("list"), responses=listed)(endpoint)
    one = f"/namespaces/{{namespace}}/{plural}/{{name}}"
    router.get(
        one,
        operation_id=f"get_{singular}",
        dependencies=checked("get"),
        response_model=document,
        responses={304: {"description": "The caller has it as it is"}, **responses(problems.NotFound)},
    )(endpoints.get)
    router.get(
        one + "/status",
        operation_id=f"get_{singular}_status",
        dependencies=checked("get"),
        responses=responses(problems.NotFound),
    )(endpoints.get_status)
    router.put(
        one,
        operation_id=f"put_{singular}",
        response_model=document,
        responses={201: {"model": document, "description": "Created"}, **responses(problems.BadRequest, *conditional)},
    )(endpoints.put)
    router.patch(
        one,
        operation_id=f"patch_{singular}",
        dependencies=checked("patch"),
        response_model=document,
        responses=responses(problems.BadRequest, problems.NotFound, *conditional),
    )(endpoints.patch)
    router.delete(
        one,
        operation_id=f"delete_{singular}",
        dependencies=checked("delete"),
        status_code=202,
        response_class=Response,
        responses=responses(problems.NotFound, *conditional),
    )(endpoints.delete)
    return router
