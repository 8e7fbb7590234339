"""``/api/v1/…/raftclusters/NAME/log``."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request

from pavane.raft.wire.frames import UINT_MAX
from pavane_api import problems
from pavane_api.auth import MayGet, MayUpdate
from pavane_api.bodies import OCTETS, bounded
from pavane_api.control import Shared
from pavane_api.problems import responses
from pavane_api.raft_clients import Use
from pavane_api.raftlog import service
from pavane_api.raftlog.schemas import Appended, LogEntries, LogInfo

router = APIRouter(prefix="/namespaces/{namespace}/raftclusters/{name}/log", tags=["log"])

After = Annotated[int, Query(ge=0, le=UINT_MAX, description="Read the entries after this index")]
Limit = Annotated[int, Query(ge=1, le=service.ENTRIES_MAX, description="At most so many entries")]
RequestId = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern="^[0-9a-f]{24}$",
        description="Request id, 24 hexadecimal digits, of which the first 8 are the Unix time in seconds and the "
        "others random: a repetition with the same id appends only once",
    ),
]


@router.get(
    "", operation_id="get_log", response_model=LogInfo, responses=responses(problems.NotFound, problems.Conflict)
)
async def info(control: Shared, _: MayGet, namespace: str, name: str) -> LogInfo:
    """Return the state of the log as the leader sees it."""
    async with control.raft.of(namespace, name) as client:
        return await service.log_info(client)


@router.get(
    "/entries",
    operation_id="list_log_entries",
    response_model=LogEntries,
    responses=responses(problems.NotFound, problems.Conflict),
)
async def entries(
    control: Shared, _: MayGet, namespace: str, name: str, after: After = 0, limit: Limit = 100
) -> LogEntries:
    """Read committed entries; the read is linearizable (it sees every append acknowledged before)."""
    async with control.raft.of(namespace, name) as client:
        return await service.entries(client, after, limit)


@router.post(
    "/entries",
    operation_id="append_log_entry",
    status_code=201,
    response_model=Appended,
    responses=responses(problems.NotFound, problems.BadRequest, problems.Conflict, problems.TooLarge),
    openapi_extra={"requestBody": {"required": True, "content": {OCTETS: {}}}},
)
async def append(
    control: Shared, _: MayUpdate, request: Request, namespace: str, name: str, request_id: RequestId = None
) -> Appended:
    """Append the body as one entry; the answer comes when it is on the disks of a majority."""
    body = await bounded(request.stream(), service.ENTRY_BYTES_MAX, "An entry")
    async with control.raft.of(namespace, name, Use.APPEND) as client:
        return await service.append(client, body, request_id)
