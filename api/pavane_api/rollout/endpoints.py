"""``POST /api/v1/…/PLURAL/NAME/rollout/ACTION``, and ``…/NAME/scale``, ``suspend`` and ``resume``, of each kind."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header
from pydantic import Field

from pavane.telemetry import current_traceparent
from pavane_api import problems
from pavane_api.auth import Caller, may
from pavane_api.control import Shared
from pavane_api.documents import Document, StrictDocument
from pavane_api.idempotency import KEY_CHARACTERS_MAX
from pavane_api.problems import Conflict, responses
from pavane_api.rollout.actions import ACTIONS, Refused, act, scale, set_image, undo
from pavane_operator.crds.descriptor import Definition
from pavane_operator.kube import Identity
from pavane_operator.kube.resources import custom

TRACE_ANNOTATION = "pavane.dev/traceparent"


class ActionRequest(StrictDocument):
    """What may be said with an action."""

    generation: int | None = Field(None, ge=1)
    """The attempt that is meant; if it is another one by now, the answer is 409 and nothing happens."""
    reason: str | None = Field(None, min_length=1, max_length=253)
    """For ``restart``: the text that makes this restart another one than the last."""


class ScaleRequest(StrictDocument):
    """How many members are wanted."""

    replicas: int = Field(ge=1)
    """Members join or leave while it runs. The cluster refuses a number that the kind does not allow."""


class UndoRequest(StrictDocument):
    """Where to go back to."""

    generation: int | None = Field(None, ge=1)
    """The generation whose pod-affecting fields count again; by default the one before the active one."""
    dry_run: bool = False
    """True tells what would change, and changes nothing."""


class UndoResult(Document):
    """What the spec is now, or with a dry run would be; the operator rolls it out next."""

    generation: int
    """The generation that was gone back to."""
    changes: dict[str, Any]
    """The fields of the spec that changed; null = back to the default."""
    effect: str
    """What becomes of the resource, in words."""


class ImageRequest(StrictDocument):
    """Which image the pods shall have."""

    image: str = Field(max_length=253)
    """Empty: the operator's default image."""
    dry_run: bool = False
    """True tells what would change, and changes nothing."""


class ImageResult(Document):
    """What the spec is now, or with a dry run would be; the operator rolls it out next."""

    changes: dict[str, Any]
    """The fields of the spec that changed."""
    effect: str
    """What becomes of the resource, in words."""


class ActionResult(Document):
    """What was set. The operator acts on it next; watch the resource."""

    field: str
    """The field that was set."""
    value: int | bool | str
    """Its new value."""


Key = Annotated[
    str | None, Header(max_length=KEY_CHARACTERS_MAX, description="The same request with the same key acts once")
]


_ROUTES = {
    "promote": ("/rollout/promote", "Approve the attempt that waits under strategy Manual."),
    "force-promote": (
        "/rollout/force-promote",
        "Promote the attempt although it is not caught up, approved or is paused.",
    ),
    "pause": ("/rollout/pause", "Start no new attempt, and do not promote the one that runs."),
    "resume": ("/rollout/resume", "Take a pause back."),
    "abort": ("/rollout/abort", "Give up the attempt; the active generation is untouched."),
    "retry": ("/rollout/retry", "Try the failed attempt again under a new number."),
    "restart": ("/rollout/restart", "Roll out a new generation without another difference."),
    "repair": (
        "/rollout/repair",
        "Render the pods of the active generation afresh from the spec, in place; see spec.rollout.repair.",
    ),
    "suspend": ("/suspend", "Stop all pods and keep the volumes."),
    "resume-resource": ("/resume", "Start the pods of a suspended resource again."),
}
"""Path and summary by action."""


class Endpoints:
    """The endpoints of one kind; that their callers may patch is checked by their routes."""

    def __init__(self, kind: Definition) -> None:
        self._resource = custom(kind.name, kind.plural)

    def act(self, action: str, summary: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        """Return the endpoint of an action of ``ACTIONS``."""

        async def endpoint(
            control: Shared,
            caller: Caller,
            namespace: str,
            name: str,
            body: Annotated[ActionRequest | None, Body()] = None,
            idempotency_key: Key = None,
        ) -> dict[str, Any]:
            said = body or ActionRequest()

            async def perform() -> dict[str, Any]:
                traceparent = current_traceparent()
                try:
                    _, value = await act(
                        control.kube,
                        self._resource,
                        namespace,
                        name,
                        ACTIONS[action],
                        number=said.generation,
                        reason=said.reason,
                        annotations={TRACE_ANNOTATION: traceparent} if traceparent else None,
                    )
                except Refused as error:
                    raise Conflict(str(error)) from error
                return {"field": ACTIONS[action].path, "value": value}

            scope = self._of(caller, namespace, name, action)
            return await control.idempotency.once(scope, idempotency_key, said, perform)

        endpoint.__doc__ = summary
        return endpoint

    async def scale(
        self,
        control: Shared,
        caller: Caller,
        namespace: str,
        name: str,
        body: ScaleRequest,
        idempotency_key: Key = None,
    ) -> ActionResult:
        """Change the number of members."""

        async def perform() -> dict[str, Any]:
            field = await scale(control.kube, self._resource, namespace, name, body.replicas)
            return {"field": field, "value": body.replicas}

        scope = self._of(caller, namespace, name, "scale")
        return ActionResult(**await control.idempotency.once(scope, idempotency_key, body, perform))

    async def undo(
        self,
        control: Shared,
        caller: Caller,
        namespace: str,
        name: str,
        body: Annotated[UndoRequest | None, Body()] = None,
        idempotency_key: Key = None,
    ) -> UndoResult:
        """Give the pod-affecting fields of the spec the values of a former generation; a new one is rolled out."""
        said = body or UndoRequest()

        async def perform() -> dict[str, Any]:
            try:
                change = await undo(
                    control.kube, self._resource, namespace, name, said.generation, dry_run=said.dry_run
                )
            except Refused as error:
                raise Conflict(str(error)) from error
            return {"generation": change.generation, "changes": change.fields, "effect": change.effect}

        scope = self._of(caller, namespace, name, "undo")
        return UndoResult(**await control.idempotency.once(scope, idempotency_key, said, perform))

    async def image(
        self,
        control: Shared,
        caller: Caller,
        namespace: str,
        name: str,
        body: ImageRequest,
        idempotency_key: Key = None,
    ) -> ImageResult:
        """Set the image of the pods; a new generation with it is rolled out."""

        async def perform() -> dict[str, Any]:
            try:
                change = await set_image(
                    control.kube, self._resource, namespace, name, body.image, dry_run=body.dry_run
                )
            except Refused as error:
                raise Conflict(str(error)) from error
            return {"changes": change.fields, "effect": change.effect}

        scope = self._of(caller, namespace, name, "image")
        return ImageResult(**await control.idempotency.once(scope, idempotency_key, body, perform))

    def _of(self, caller: Identity, namespace: str, name: str, action: str) -> tuple[str, ...]:
        """Within what a key of a caller means the same request."""
        return (caller.user, self._resource.plural, namespace, name, action)


def router_of(kind: Definition) -> APIRouter:
    """Return the routes of one kind."""
    endpoints, singular = Endpoints(kind), kind.name.lower()
    router = APIRouter(
        prefix=f"/namespaces/{{namespace}}/{kind.plural}/{{name}}",
        tags=["rollout"],
        dependencies=[Depends(may("patch", custom(kind.name, kind.plural)))],
    )
    for action, (path, summary) in _ROUTES.items():
        router.post(
            path,
            operation_id=f"{action.replace('-', '_')}_{singular}",
            summary=summary,
            status_code=202,
            response_model=ActionResult,
            responses=responses(problems.NotFound, problems.Conflict),
        )(endpoints.act(action, summary))
    router.post("/scale", operation_id=f"scale_{singular}", status_code=202, responses=responses(problems.NotFound))(
        endpoints.scale
    )
    router.post(
        "/rollout/undo",
        operation_id=f"undo_{singular}",
        status_code=202,
        responses=responses(problems.NotFound, problems.Conflict),
    )(endpoints.undo)
    router.post(
        "/rollout/image",
        operation_id=f"set_image_of_{singular}",
        status_code=202,
        responses=responses(problems.NotFound, problems.Conflict),
    )(endpoints.image)
    return router
