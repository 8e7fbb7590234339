"""``/api/v1/…/swimgroups/NAME/members``."""

from typing import Annotated

from fastapi import APIRouter, Depends

from pavane_api import problems
from pavane_api.auth import may
from pavane_api.control import Shared
from pavane_api.kinds import SWIM_GROUPS
from pavane_api.problems import responses
from pavane_api.swimmembers import service
from pavane_api.swimmembers.schemas import GroupMembers
from pavane_operator.kube import Identity

router = APIRouter(prefix="/namespaces/{namespace}/swimgroups/{name}", tags=["members"])

MayGet = Annotated[Identity, Depends(may("get", SWIM_GROUPS))]


@router.get(
    "/members",
    operation_id="list_swimgroup_members",
    response_model=GroupMembers,
    responses=responses(problems.NotFound),
)
async def list_members(control: Shared, _: MayGet, namespace: str, name: str) -> GroupMembers:
    """Return who is in the group, as one of its pods sees it at this moment."""
    return await service.members(control.kube, namespace, name)
