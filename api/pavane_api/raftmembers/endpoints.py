"""``/api/v1/…/raftclusters/NAME/{members,transfer}``."""

from typing import Annotated

from fastapi import APIRouter, Body

from pavane_api import problems
from pavane_api.auth import MayGet, MayUpdate
from pavane_api.control import Shared
from pavane_api.problems import responses
from pavane_api.raftmembers import service
from pavane_api.raftmembers.schemas import Leader, Members, TransferRequest

router = APIRouter(prefix="/namespaces/{namespace}/raftclusters/{name}", tags=["members"])


@router.get(
    "/members",
    operation_id="list_members",
    response_model=Members,
    responses=responses(problems.NotFound, problems.Conflict),
)
async def list_members(control: Shared, _: MayGet, namespace: str, name: str) -> Members:
    """Return the members as they are at this moment; each is asked."""
    async with control.raft.of(namespace, name) as client:
        return await service.members(client)


@router.post(
    "/transfer",
    operation_id="transfer_leadership",
    response_model=Leader,
    responses=responses(problems.NotFound, problems.Conflict),
)
async def transfer(
    control: Shared, _: MayUpdate, namespace: str, name: str, wanted: Annotated[TransferRequest, Body()]
) -> Leader:
    """Hand leadership to a member; the answer comes when it leads."""
    async with control.raft.of(namespace, name) as client:
        return await service.transfer(client, wanted.to)
