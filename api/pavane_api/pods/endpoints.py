"""``/api/v1/…/PLURAL/NAME/pods`` of each kind."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.sse import EventSourceResponse

from pavane_api import problems
from pavane_api.auth import may
from pavane_api.control import Shared
from pavane_api.pods import service
from pavane_api.pods.schemas import PodList
from pavane_api.problems import responses
from pavane_operator.crds.descriptor import Definition
from pavane_operator.kube.resources import custom

Watch = Annotated[bool, Query(description="Stream them, now and whenever one changes, as server-sent events")]


def router_of(kind: Definition) -> APIRouter:
    """Return the route of one kind."""
    resource = custom(kind.name, kind.plural)
    router = APIRouter(tags=[kind.plural])

    @router.get(
        f"/namespaces/{{namespace}}/{kind.plural}/{{name}}/pods",
        operation_id=f"list_{kind.name.lower()}_pods",
        dependencies=[Depends(may("get", resource))],
        response_model=PodList,
        responses={
            200: {"model": PodList, "content": {"text/event-stream": {}}, "description": "The pods, or a stream"},
            **responses(problems.NotFound),
        },
    )
    async def list_pods(control: Shared, namespace: str, name: str, watch: Watch = False) -> Any:
        """Return the pods with their stages, each by its own words; the stream's event `pods` holds all of them."""
        document = await control.kube.get(resource, name, namespace)
        if not watch:
            return await service.pods(control.kube, control.pods, document)
        control.streams.admit(1)
        events = service.events(control.kube, control.pods, document)
        return EventSourceResponse(control.streams.serve(events, 1))

    return router
