"""``/api/v1/…/raftclusters/NAME/{keys,tree,txn,leases}`` (docs/specs/raft.md 12)."""

from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pavane.raft.client import prefix_range
from pavane.raft.machines.commands import END_OF_KEYS
from pavane.raft.machines.history import Scope, Watch
from pavane.raft.machines.limits import RANGE_ITEMS_MAX, VALUE_BYTES_MAX
from pavane.raft.wire.frames import UINT_MAX
from pavane_api import problems
from pavane_api.auth import MayGet, MayUpdate
from pavane_api.bodies import OCTETS, bounded
from pavane_api.control import Control, Shared
from pavane_api.problems import BadRequest, Problem, responses
from pavane_api.raftkeys.schemas import (
    REQUEST_ID_PATTERN,
    SCOPES,
    Deleted,
    KeyList,
    Lease,
    LeaseRequest,
    NodeRead,
    ReadRange,
    ScopeName,
    Transaction,
    TransactionResult,
    Written,
    key_of,
)
from pavane_api.raftkeys.service import KeyService, expectation

router = APIRouter(prefix="/namespaces/{namespace}/raftclusters/{name}", tags=["keys"])

RequestId = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=REQUEST_ID_PATTERN,
        description="Request id, 24 hexadecimal digits, of which the first 8 are the Unix time in seconds and the "
        "others random: a repetition with the same id takes effect once and is told the result of the first",
    ),
]
FROM = "Watch from this revision on; 0: from now on"
STALE = "Ask any peer: perhaps old, but there is an answer without a leader too"
MIN_REVISION = "With stale: nothing older than this revision; 503 where no peer gets there within a second"


def _since(
    stale: Annotated[bool, Query(description=STALE)] = False,
    min_revision: Annotated[int, Query(alias="minRevision", ge=0, le=UINT_MAX, description=MIN_REVISION)] = 0,
) -> int | None:
    return min_revision if stale else None


Since = Annotated[int | None, Depends(_since)]
IfMatch = Annotated[str | None, Header(description="ETag of the key, its revision, or * for any: only if it is so")]
IfNoneMatch = Annotated[str | None, Header(description="*: only if there is no such key")]
LeaseId = Annotated[int, Path(ge=1, le=UINT_MAX, description="The id of a lease")]
LastEventId = Annotated[str | None, Header(pattern="^[0-9]{1,16}$", description="Where a broken watch goes on")]


def _service(control: Shared, namespace: str, name: str) -> KeyService:
    return KeyService(control.raft, namespace, name)


Cluster = Annotated[KeyService, Depends(_service)]


def _behind(request: Request, word: str) -> bytes:
    """Return what follows the collection ``word`` in the path: percent-encoded bytes, perhaps no UTF-8."""
    raw: bytes = request.scope["raw_path"].partition(b"/raftclusters/")[2]
    return unquote_to_bytes(raw.partition(b"/" + word.encode())[2].removeprefix(b"/"))


def _key(request: Request, key: str) -> bytes:
    found = _behind(request, "keys")
    if not found:
        raise BadRequest(f"The path ends without a key ({key!r}): a key has 1 to 1024 bytes.")
    return found


def _path(request: Request, path: str) -> bytes:
    return b"/" + _behind(request, "tree") if path else b"/"


KeyInPath = Annotated[bytes, Depends(_key)]
PathOfNode = Annotated[bytes, Depends(_path)]


def _range(
    request: Request,
    prefix: Annotated[str | None, Query(description="All keys that begin so")] = None,
    start: Annotated[str | None, Query(description="The first key; percent-encode what is no UTF-8")] = None,
    end: Annotated[str | None, Query(description="Before which key it ends; default: the end of the key space")] = None,
) -> tuple[bytes, bytes]:
    given = {name for name, value in (("prefix", prefix), ("start", start), ("end", end)) if value is not None}
    if "prefix" in given and len(given) > 1:
        raise BadRequest("Give a prefix, or start and end, not both.")
    raw = {}
    for pair in request.scope["query_string"].split(b"&"):
        name, _, value = pair.partition(b"=")
        raw[unquote_to_bytes(name).decode("ascii", "replace")] = unquote_to_bytes(value.replace(b"+", b" "))
    if "prefix" in given:
        return prefix_range(raw["prefix"])
    first, last = prefix_range(b"")
    return raw.get("start", first), raw.get("end", last)


KeyRange = Annotated[tuple[bytes, bytes], Depends(_range)]


CURSOR_MAX = 2048  # characters: a key of 1 KiB has 1368 in base64


class KeyQuery(BaseModel):
    """What a list of keys takes beside its range."""

    model_config = ConfigDict(alias_generator=to_camel)

    limit: int = Field(RANGE_ITEMS_MAX, ge=1, le=RANGE_ITEMS_MAX, description="At most so many keys")
    keys_only: bool = Field(default=False, description="Leave the values out")
    count_only: bool = Field(default=False, description="Only count the keys of the range")
    descending: bool = Field(default=False, description="Begin at the end of the range")
    page: str | None = Field(None, alias="continue", max_length=CURSOR_MAX, description="Where the last page ended")
    watch: bool = Field(default=False, description="Stream changes as server-sent events instead of listing")
    first: int = Field(default=0, alias="from", ge=0, le=UINT_MAX, description=FROM)


def _rest(start: bytes, end: bytes, page: str, *, descending: bool) -> tuple[bytes, bytes]:
    """Return what is left of a range behind the page that ended at the cursor ``page``."""
    try:
        last = key_of(page)
    except ValueError as error:
        raise BadRequest(f"continue is wrong: {error}.") from error
    if last < start or (last >= end and end != END_OF_KEYS):
        raise BadRequest("continue is of another range: leave the range as it was, or leave continue out.")
    return (start, last) if descending else (last + b"\x00", end)


def _or_changes(model: type[BaseModel], what: str, *more: type[Problem]) -> dict[str, Any]:
    """Return the arguments of a route that answers with ``model``, or with a stream of changes if that is asked for."""
    answer = {"model": model, "content": {"text/event-stream": {}}, "description": f"{what}, or a stream of changes"}
    refusals = responses(problems.BadRequest, problems.NotFound, problems.Conflict, *more)
    return {"response_model": model, "response_model_exclude_none": True, "responses": {200: answer, **refusals}}


async def _stream(control: Control, cluster: KeyService, watch: Watch, last_event_id: str | None) -> Response:
    if last_event_id is not None:
        watch = Watch(watch.scope, watch.start, watch.end, int(last_event_id) + 1)
    control.streams.admit()
    await cluster.check(watch)
    return EventSourceResponse(control.streams.serve(cluster.events(watch)))


@router.get("/keys", operation_id="list_keys", **_or_changes(KeyList, "Keys"))
async def list_keys(
    control: Shared,
    _: MayGet,
    cluster: Cluster,
    key_range: KeyRange,
    query: Annotated[KeyQuery, Query()],
    since: Since,
    last_event_id: LastEventId = None,
) -> Any:
    """List keys in order, linearizably, or watch them: each change once, in order, over changes of leader."""
    start, end = key_range
    if query.watch:
        return await _stream(control, cluster, Watch(Scope.KEYS, start, end, query.first), last_event_id)
    if query.page is not None:
        start, end = _rest(start, end, query.page, descending=query.descending)
    flags = query.model_dump(include={"limit", "keys_only", "count_only", "descending"})
    return await cluster.listing(ReadRange(start=start, end=end, **flags), since)


ONE = "/keys/{key:path}"


@router.get(
    ONE,
    operation_id="get_key",
    response_class=Response,
    responses={
        200: {"content": {OCTETS: {}}, "description": "The value; the ETag is the revision of its last write"},
        **responses(problems.BadRequest, problems.NotFound, problems.Conflict),
    },
)
async def get_key(_: MayGet, cluster: Cluster, key: KeyInPath, since: Since) -> Response:
    """Return the value of a key; the read is linearizable unless it may be stale."""
    found = await cluster.value(key, since)
    return Response(found.value, media_type=OCTETS, headers={"ETag": f'"{found.mod_revision}"'})


@router.put(
    ONE,
    operation_id="put_key",
    response_model=Written,
    responses=responses(
        problems.BadRequest, problems.NotFound, problems.Conflict, problems.PreconditionFailed, problems.TooLarge
    ),
    openapi_extra={"requestBody": {"required": True, "content": {OCTETS: {}}}},
)
async def put_key(
    _: MayUpdate,
    cluster: Cluster,
    request: Request,
    response: Response,
    key: KeyInPath,
    lease: Annotated[int, Query(ge=0, le=UINT_MAX, description="The lease that the key goes with; 0: none")] = 0,
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
    request_id: RequestId = None,
) -> Written:
    """Write the body as the value of a key; the answer comes when it is on the disks of a majority."""
    expected = expectation(key, if_match, if_none_match)
    value = await bounded(request.stream(), VALUE_BYTES_MAX, "A value")
    written = await cluster.put(key, value, lease, expected, request_id)
    response.headers["ETag"] = f'"{written.revision}"'
    return written


@router.delete(
    ONE,
    operation_id="delete_key",
    response_model=Deleted,
    responses=responses(problems.BadRequest, problems.NotFound, problems.Conflict, problems.PreconditionFailed),
)
async def delete_key(
    _: MayUpdate, cluster: Cluster, key: KeyInPath, if_match: IfMatch = None, request_id: RequestId = None
) -> Deleted:
    """Delete a key if it is there."""
    return await cluster.delete(key, expectation(key, if_match, None), request_id)


@router.post(
    "/txn",
    operation_id="run_transaction",
    response_model=TransactionResult,
    response_model_exclude_none=True,
    responses=responses(problems.BadRequest, problems.NotFound, problems.Conflict, problems.TooLarge),
)
async def run_transaction(
    _: MayUpdate, cluster: Cluster, transaction: Annotated[Transaction, Body()], request_id: RequestId = None
) -> TransactionResult:
    """Carry out one of two branches atomically, by conditions; on keys and, with stateMachine Tree, nodes."""
    return await cluster.transact(transaction, request_id)


@router.get("/tree/{path:path}", operation_id="get_node", **_or_changes(NodeRead, "A node", problems.TooLarge))
async def get_node(
    control: Shared,
    _: MayGet,
    cluster: Cluster,
    node: PathOfNode,
    since: Since,
    children: Annotated[bool, Query(description="The names of its children instead of the node")] = False,
    watch: Annotated[bool, Query(description="Stream changes as server-sent events instead of reading")] = False,
    scope: Annotated[ScopeName, Query(description="What to watch")] = "NodeAndChildren",
    first: Annotated[int, Query(alias="from", ge=0, le=UINT_MAX, description=FROM)] = 0,
    last_event_id: LastEventId = None,
) -> Any:
    """Return a node of the tree or its children, linearizably, or watch it. Nodes are written by transactions."""
    if watch:
        return await _stream(control, cluster, Watch(SCOPES[scope], node, b"", first), last_event_id)
    return await cluster.node(node, since, children=children)


LEASE = "/leases/{lease}"


@router.post(
    "/leases",
    operation_id="grant_lease",
    status_code=201,
    response_model=Lease,
    responses=responses(problems.NotFound, problems.Conflict),
)
async def grant_lease(
    _: MayUpdate, cluster: Cluster, wanted: Annotated[LeaseRequest, Body()], request_id: RequestId = None
) -> Lease:
    """Grant a lease; keys that are written with it are deleted when it ends."""
    return await cluster.grant(wanted, request_id)


@router.post(
    LEASE + "/renewals",
    operation_id="renew_lease",
    response_model=Lease,
    responses=responses(problems.NotFound, problems.Conflict, problems.LeaseEnded),
)
async def renew_lease(_: MayUpdate, cluster: Cluster, lease: LeaseId) -> Lease:
    """Renew a lease: it lasts its whole time from this request on."""
    return await cluster.renew(lease)


@router.delete(
    LEASE,
    operation_id="revoke_lease",
    status_code=204,
    response_class=Response,
    responses=responses(problems.NotFound, problems.Conflict, problems.LeaseEnded),
)
async def revoke_lease(_: MayUpdate, cluster: Cluster, lease: LeaseId) -> Response:
    """End a lease, and delete what is bound to it."""
    await cluster.revoke(lease)
    return Response(status_code=204)
