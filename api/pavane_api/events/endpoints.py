"""``/api/v1/…/PLURAL/NAME/events`` of each kind that has pods."""

from fastapi import APIRouter, Depends

from pavane_api import problems
from pavane_api.auth import Caller, may
from pavane_api.control import Shared
from pavane_api.events import service
from pavane_api.events.schemas import EventNotes
from pavane_api.problems import responses
from pavane_operator.crds.descriptor import Definition
from pavane_operator.kube.resources import CORE_EVENTS, custom


def router_of(kind: Definition) -> APIRouter:
    """Return the route of one kind."""
    resource = custom(kind.name, kind.plural)
    router = APIRouter(tags=[kind.plural])

    @router.get(
        f"/namespaces/{{namespace}}/{kind.plural}/{{name}}/events",
        operation_id=f"list_{kind.name.lower()}_events",
        dependencies=[Depends(may("get", resource))],
        responses=responses(problems.NotFound),
    )
    async def list_events(control: Shared, caller: Caller, namespace: str, name: str) -> EventNotes:
        """Return the newest events of the resource and its pods; the caller may list events there, as with kubectl."""
        await control.authority.require(caller, "list", CORE_EVENTS, namespace, None)
        return await service.events(control.kube, await control.kube.get(resource, name, namespace))

    return router
