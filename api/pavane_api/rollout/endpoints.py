"""``POST /api/v1/…/raftclusters/NAME/rollout/ACTION``, and ``…/NAME/scale``, ``suspend`` and ``resume``."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Header
from pydantic import BaseModel, ConfigDict, Field

from pavane.telemetry import current_traceparent
from pavane_api import problems
from pavane_api.auth import MayPatch
from pavane_api.control import Control, Shared
from pavane_api.idempotency import KEY_CHARACTERS_MAX
from pavane_api.problems import Conflict, responses
from pavane_api.resources import RAFT_CLUSTERS
from pavane_api.rollout.actions import ACTIONS, Refused, act, scale, undo
from pavane_operator.crds.raftcluster import REPLICAS_MAX

TRACE_ANNOTATION = "pavane.dev/traceparent"

router = APIRouter(prefix="/namespaces/{namespace}/raftclusters/{name}", tags=["rollout"])


class ActionRequest(BaseModel):
    """What may be said with an action."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    generation: int | None = Field(None, ge=1)
    """The attempt that is meant; if it is another one by now, the answer is 409 and nothing happens."""
    reason: str | None = Field(None, min_length=1, max_length=253)
    """For ``restart``: the text that makes this restart another one than the last."""


class ScaleRequest(BaseModel):
    """How many members are wanted."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    replicas: int = Field(ge=1, le=REPLICAS_MAX)
    """An odd number; members join or leave the running cluster."""


class UndoRequest(BaseModel):
    """Where to go back to."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    generation: int | None = Field(None, ge=1)
    """The generation whose pod-affecting fields count again; by default the one before the active one."""


class UndoResult(BaseModel):
    """What the spec is now; the operator rolls it out next."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    generation: int
    """The generation that was gone back to."""
    changes: dict[str, Any]
    """The fields of the spec that changed; null = back to the default."""


class ActionResult(BaseModel):
    """What was set. The operator acts on it next; watch the resource."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    field: str
    """The field that was set."""
    value: int | bool | str
    """Its new value."""


Key = Annotated[
    str | None, Header(max_length=KEY_CHARACTERS_MAX, description="The same key again gives the same answer")
]


async def _act(
    control: Control, caller: str, namespace: str, name: str, action: str, body: ActionRequest, key: str | None
) -> dict[str, Any]:
    async def perform() -> dict[str, Any]:
        traceparent = current_traceparent()
        try:
            _, value = await act(
                control.kube,
                RAFT_CLUSTERS,
                namespace,
                name,
                ACTIONS[action],
                number=body.generation,
                reason=body.reason,
                annotations={TRACE_ANNOTATION: traceparent} if traceparent else None,
            )
        except Refused as error:
            raise Conflict(str(error)) from error
        return {"field": ACTIONS[action].path, "value": value}

    return await control.idempotency.once((caller, namespace, name, action), key, perform)


def _add(action: str, summary: str, path: str | None = None) -> None:
    @router.post(
        path or f"/rollout/{action}",
        operation_id=f"{action.replace('-', '_')}_raftcluster",
        summary=summary,
        status_code=202,
        response_model=ActionResult,
        responses=responses(problems.NotFound, problems.Conflict),
    )
    async def endpoint(
        control: Shared,
        caller: MayPatch,
        namespace: str,
        name: str,
        body: Annotated[ActionRequest | None, Body()] = None,
        idempotency_key: Key = None,
    ) -> dict[str, Any]:
        return await _act(control, caller.user, namespace, name, action, body or ActionRequest(), idempotency_key)

    endpoint.__doc__ = summary


_add("promote", "Approve the attempt that waits under strategy Manual.")
_add("force-promote", "Promote the attempt although it is not caught up, approved or is paused.")
_add("pause", "Start no new attempt, and do not promote the one that runs.")
_add("resume", "Take a pause back.")
_add("abort", "Give up the attempt; the active generation is untouched.")
_add("retry", "Try the failed attempt again under a new number.")
_add("restart", "Roll out a new generation without another difference.")
_add("repair", "Render the pods of the active generation afresh from the spec, in place; see spec.rollout.repair.")
_add("suspend", "Stop all pods and keep the volumes.", "/suspend")
_add("resume-resource", "Start the pods of a suspended resource again.", "/resume")


@router.post("/scale", operation_id="scale_raftcluster", status_code=202, responses=responses(problems.NotFound))
async def scale_raftcluster(
    control: Shared,
    caller: MayPatch,
    namespace: str,
    name: str,
    body: ScaleRequest,
    idempotency_key: Key = None,
) -> ActionResult:
    """Change the number of members."""

    async def perform() -> dict[str, Any]:
        await scale(control.kube, RAFT_CLUSTERS, namespace, name, body.replicas)
        return {"field": "spec.replicas", "value": body.replicas}

    done = await control.idempotency.once((caller.user, namespace, name, "scale"), idempotency_key, perform)
    return ActionResult(**done)


@router.post(
    "/rollout/undo",
    operation_id="undo_raftcluster",
    status_code=202,
    responses=responses(problems.NotFound, problems.Conflict),
)
async def undo_raftcluster(
    control: Shared,
    caller: MayPatch,
    namespace: str,
    name: str,
    body: Annotated[UndoRequest | None, Body()] = None,
    idempotency_key: Key = None,
) -> UndoResult:
    """Give the pod-affecting fields of the spec the values of a former generation; a new one is rolled out."""

    async def perform() -> dict[str, Any]:
        try:
            number, changes = await undo(
                control.kube, RAFT_CLUSTERS, namespace, name, body.generation if body is not None else None
            )
        except Refused as error:
            raise Conflict(str(error)) from error
        return {"generation": number, "changes": changes}

    done = await control.idempotency.once((caller.user, namespace, name, "undo"), idempotency_key, perform)
    return UndoResult(**done)
