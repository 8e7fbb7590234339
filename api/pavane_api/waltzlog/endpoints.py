"""``/api/v1/…/waltzclusters/NAME/partitions`` and ``consumers``."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from fastapi.sse import EventSourceResponse
from pydantic import Field

from pavane.pods.consumers import of_immortal, of_views
from pavane.waltz.client import Lock, Waltz
from pavane.waltz.core.retention import CONSUMER_NAME
from pavane.waltz.wire.locks import lock_hash
from pavane_api import problems
from pavane_api.auth import may
from pavane_api.bodies import OCTETS, bounded
from pavane_api.control import Control, Shared
from pavane_api.kinds import COMPUTE_CLUSTERS, COORDINATORS, WALTZ_CLUSTERS
from pavane_api.problems import BadRequest, Conflict, Problem, responses
from pavane_api.waltzlog import service
from pavane_api.waltzlog.adoption import adopted
from pavane_api.waltzlog.finding import CONDITION_CHARACTERS_MAX, CONDITIONS_MAX, TEXT_CHARACTERS_MAX, Sought
from pavane_api.waltzlog.schemas import (
    AdoptedLog,
    AppendedTransaction,
    FoundTransactions,
    LogConsumers,
    LogPartitions,
    LogTransaction,
    LogTransactions,
    MovedConsumer,
    TrimmedPartition,
)
from pavane_operator.kinds.coordinator.names import folder

TRANSACTIONS_MAX = 1000  # per answer
ANSWER_BYTES_MAX = 16 * 1024 * 1024  # data per answer; a single larger transaction is still sent whole
BODY_BYTES_MAX = 10 * 1024 * 1024  # of an append by HTTP; the log itself takes 16 MiB
TXID_MAX = (1 << 63) - 1

router = APIRouter(prefix="/namespaces/{namespace}/waltzclusters/{name}", tags=["transactions"])

MayGet = Annotated[object, Depends(may("get", WALTZ_CLUSTERS))]
MayUpdate = Annotated[object, Depends(may("update", WALTZ_CLUSTERS))]
MayDelete = Annotated[object, Depends(may("delete", WALTZ_CLUSTERS))]
Number = Annotated[int, Path(ge=0, le=(1 << 31) - 1, description="Which partition, from 0")]
Txid = Annotated[int, Path(ge=0, le=TXID_MAX, description="Its place in the partition, from 0")]
ConsumerName = Annotated[str, Path(pattern=f"^{CONSUMER_NAME.pattern}$", description="Its name")]
Locks = Annotated[list[str], Query(max_length=1000, description="Lock, NAME/NUMBER, for example account/7")]
Conditions = Annotated[
    list[Annotated[str, Field(max_length=CONDITION_CHARACTERS_MAX)]],
    Query(
        max_length=CONDITIONS_MAX,
        description="What the data, as JSON, have to hold: a path, and perhaps an operator with a value, as in "
        "$.items[*].price >= 100",
    ),
]
LastEventId = Annotated[str | None, Header(pattern="^[0-9]{1,18}$", description="Where a broken stream goes on")]


@router.get(
    "/partitions",
    operation_id="list_partitions",
    response_model=LogPartitions,
    responses=responses(problems.NotFound),
)
async def partitions(control: Shared, _: MayGet, namespace: str, name: str) -> LogPartitions:
    """List the partitions of the log: who may write to each, and its last transaction."""
    async with control.waltz.of(namespace, name) as log:
        return await service.partitions(log)


@router.post(
    "/partitions/{partition}/transactions",
    operation_id="append_transaction",
    status_code=201,
    response_model=AppendedTransaction,
    responses=responses(
        problems.NotFound, problems.BadRequest, problems.LockConflict, problems.TooLarge, problems.OutcomeUnknown
    ),
    openapi_extra={"requestBody": {"required": True, "content": {OCTETS: {}}}},
)
async def append(
    control: Shared,
    _: MayUpdate,
    request: Request,
    namespace: str,
    name: str,
    partition: Number,
    write: Locks = [],  # noqa: B006 - FastAPI copies it
    read: Locks = [],  # noqa: B006
    seen: Annotated[
        int | None, Query(ge=-1, le=TXID_MAX, description="The last transaction that the data takes into account")
    ] = None,
    header: Annotated[int, Query(ge=-(1 << 31), lt=1 << 31, description="Readers see it beside the data")] = 0,
) -> AppendedTransaction:
    """Append the body as one transaction; the answer comes when it is on the disks of a majority.

    The partitions in which a ComputeCluster keeps its ticks and views, or a Coordinator its log, are reserved for it:
    409 names it.

    If a lock of it was written after `seen` nothing is written. Without `seen` it counts as having seen what the
    control plane last heard of the partition.
    """
    locks = [_lock(text) for text in write], [_lock(text) for text in read]
    await _check_unreserved(control, namespace, name, partition)
    body = await bounded(request.stream(), BODY_BYTES_MAX, "A transaction that comes by HTTP")
    async with control.waltz.of(namespace, name) as log:
        await _check(log, partition)
        txid = await log.append(partition, body, header=header, write=locks[0], read=locks[1], seen=seen)
    return AppendedTransaction(partition=partition, transaction=txid)


@router.get(
    "/partitions/{partition}/transactions",
    operation_id="list_transactions",
    response_model=LogTransactions,
    responses={
        200: {"model": LogTransactions, "content": {"text/event-stream": {}}, "description": "A page, or a stream"},
        **responses(problems.NotFound, problems.Conflict, problems.Trimmed),
    },
)
async def transactions(
    control: Shared,
    _: MayGet,
    namespace: str,
    name: str,
    partition: Number,
    from_: Annotated[int, Query(alias="from", ge=0, le=TXID_MAX, description="The first transaction")] = 0,
    limit: Annotated[int, Query(ge=1, le=TRANSACTIONS_MAX, description="At most so many")] = 100,
    watch: Annotated[bool, Query(description="Stream them, and each further one, as server-sent events")] = False,
    last_event_id: LastEventId = None,
) -> Any:
    """List transactions in order, or stream them: each once, over fail-overs and rollouts."""
    async with control.waltz.of(namespace, name) as log:
        await _check(log, partition)
        if not watch:
            return await _page(log, partition, from_, limit)
    control.streams.admit()
    start = from_ if last_event_id is None else int(last_event_id) + 1
    events = _events(control, namespace, name, partition, start)
    return EventSourceResponse(control.streams.serve_log(events))


@router.get(
    "/partitions/{partition}/transactions/{transaction}",
    operation_id="get_transaction",
    response_model=LogTransaction,
    responses=responses(problems.NotFound, problems.Trimmed),
)
async def transaction(
    control: Shared, _: MayGet, namespace: str, name: str, partition: Number, transaction: Txid
) -> LogTransaction:
    """Return one transaction."""
    async with control.waltz.of(namespace, name) as log:
        await _check(log, partition)
        return LogTransaction.of(await log.get(partition, transaction))


@router.get(
    "/partitions/{partition}/search",
    operation_id="find_transactions",
    response_model=FoundTransactions,
    responses=responses(problems.NotFound, problems.BadRequest, problems.Conflict, problems.Trimmed),
)
async def search(
    control: Shared,
    _: MayGet,
    namespace: str,
    name: str,
    partition: Number,
    text: Annotated[str, Query(max_length=TEXT_CHARACTERS_MAX, description="What stands somewhere in the data")] = "",
    where: Conditions = [],  # noqa: B006 - FastAPI copies it
    header: Annotated[int | None, Query(ge=-(1 << 31), lt=1 << 31, description="The number beside the data")] = None,
    from_: Annotated[
        int | None, Query(alias="from", ge=0, le=TXID_MAX, description="Where to begin; default: the first there is")
    ] = None,
    before: Annotated[
        int | None, Query(ge=0, le=TXID_MAX, description="Where to end; default: behind the last transaction")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=TRANSACTIONS_MAX, description="At most so many")] = 100,
) -> FoundTransactions:
    """Look for transactions by text, JSON and header: all that is given has to be so.

    One request looks at 20,000 transactions and 16 MiB of data at most, and says how far it came. Ask again with
    `from` as `nextFrom` and `before` as `end`, until both are the same.
    """
    try:
        sought = Sought.of(text, where, header)
    except ValueError as error:
        raise BadRequest(f"{error}.") from error
    async with control.waltz.of(namespace, name) as log:
        await _check(log, partition)
        return await service.find(log, partition, sought, from_, before, limit)


@router.post(
    "/partitions/{partition}/trim",
    operation_id="trim_partition",
    response_model=TrimmedPartition,
    responses=responses(problems.NotFound, problems.Conflict),
)
async def trim(
    control: Shared,
    _: MayDelete,
    namespace: str,
    name: str,
    partition: Number,
    before: Annotated[int, Query(ge=0, le=TXID_MAX, description="The first transaction that is kept")],
    dry_run: Annotated[bool, Query(alias="dryRun", description="Give nothing up, only say what would be")] = False,
    force: Annotated[bool, Query(description="Also what consumers still need")] = False,
) -> TrimmedPartition:
    """Give up all transactions before one, for good: nobody can read them any more.

    What a consumer still needs stays unless `force` is set: 409 names it.
    In partitions that are reserved for a ComputeCluster or a Coordinator, `force` does not count, and before it is a
    consumer nothing is given up: it could not start again.
    """
    async with control.waltz.of(namespace, name) as log:
        await _check(log, partition)
        there = () if force else [one.name for one in await log.consumers(partition)]
        await _check_unreserved(control, namespace, name, partition, but_for=there)
        return await service.trimmed(log, partition, before, dry_run=dry_run, force=force)


@router.get(
    "/consumers", operation_id="list_consumers", response_model=LogConsumers, responses=responses(problems.NotFound)
)
async def consumers(control: Shared, _: MayGet, namespace: str, name: str) -> LogConsumers:
    """List the consumers of all partitions: how far they are, and for whom retention waits.

    Those for which nobody answers are named in `unanswered`.
    """
    async with control.waltz.of(namespace, name) as log:
        return await service.consumers(log)


@router.delete(
    "/consumers/{consumer}", operation_id="remove_consumer", status_code=204, responses=responses(problems.NotFound)
)
async def remove_consumer(control: Shared, _: MayDelete, namespace: str, name: str, consumer: ConsumerName) -> None:
    """Forget a consumer in all partitions: nothing waits for it any more. It is told so when it returns.

    503 names the partitions for which nobody answers: it is removed from the others.
    """
    async with control.waltz.of(namespace, name) as log:
        await service.forget(log, consumer)


@router.post(
    "/partitions/{partition}/consumers/{consumer}/move",
    operation_id="move_consumer",
    response_model=MovedConsumer,
    responses=responses(problems.NotFound, problems.Conflict, problems.Trimmed),
)
async def move_consumer(
    control: Shared,
    _: MayDelete,
    namespace: str,
    name: str,
    partition: Number,
    consumer: ConsumerName,
    to: Annotated[int, Query(ge=0, le=TXID_MAX, description="The first transaction that it reads then")],
    dry_run: Annotated[bool, Query(alias="dryRun", description="Move nothing, only say what would be")] = False,
) -> MovedConsumer:
    """Let a consumer begin at another transaction: it reads some again, or never reads some.

    Who runs under its name is told at its next commit, and goes on at the new position when it starts anew. It takes
    the right to delete, for retention may give up what is skipped. Those of Coordinators and ComputeClusters are
    not moved (409): they know alone where they are.
    """
    async with control.waltz.of(namespace, name) as log:
        await _check(log, partition)
        return await service.moved(log, partition, consumer, to, dry_run=dry_run)


@router.post(
    "/partitions/adopt",
    operation_id="adopt_log",
    response_model=AdoptedLog,
    responses=responses(problems.NotFound, problems.Conflict),
)
async def adopt(
    control: Shared,
    _: MayUpdate,
    namespace: str,
    name: str,
    dry_run: Annotated[bool, Query(alias="dryRun", description="Change nothing, only say what would be")] = False,
) -> AdoptedLog:
    """Make the registry of a log again that its RaftCluster has lost, from what its storage nodes hold.

    Refused with 409 where the registry is there, and where a majority of the copies of a partition does not answer.
    """
    return await adopted(control, namespace, name, dry_run=dry_run)


async def _page(log: Waltz, partition: int, start: int, limit: int) -> LogTransactions:
    found: list[LogTransaction] = []
    size = 0
    async with aclosing(log.read(partition, start, start + limit)) as stream:
        async for each in stream:
            found.append(LogTransaction.of(each))
            size += len(each.data)
            if size >= ANSWER_BYTES_MAX:
                break
    return LogTransactions(items=found, next_from=start + len(found))


async def _events(
    control: Control, namespace: str, name: str, partition: int, start: int
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield transactions as events, for ever; an error ends it with ``event: error``."""
    try:
        async with control.waltz.of(namespace, name) as log, aclosing(log.feed(partition, from_=start)) as feed:
            async for each in feed:
                data = LogTransaction.of(each).model_dump_json(by_alias=True)
                yield {"event": "transaction", "id": str(each.id), "data_str": data}
    except Problem as problem:
        yield {"event": "error", "data_str": problem.detail}


async def _check(log: Waltz, partition: int) -> None:
    if partition >= log.partition_count and partition >= len(await log.partitions()):
        raise problems.NotFound(f"The log has partitions 0 to {log.partition_count - 1}, not {partition}.")


def _lock(text: str) -> Lock:
    found = re.fullmatch(r"(.*)/(-?[0-9]{1,19})", text, re.DOTALL)
    try:
        if found is None:
            raise ValueError("it looks like account/7")
        lock = found[1], int(found[2])
        lock_hash(*lock)
    except ValueError as error:
        raise BadRequest(f"{text!r} is no lock: {error}.") from error
    return lock


async def _check_unreserved(
    control: Control, namespace: str, name: str, partition: int, *, but_for: Sequence[str] = ()
) -> None:
    """Raise ``Conflict`` for a partition in which a ComputeCluster keeps ticks or views, or a Coordinator its log.

    Not where its consumer is one of ``but_for``.
    """
    kinds = COMPUTE_CLUSTERS, COORDINATORS
    clusters, coordinators = await asyncio.gather(*(control.kube.list_all(kind, namespace) for kind in kinds))
    users: list[tuple[dict[str, Any], int, str, str]] = []
    for body in clusters.items:
        spec, owner = body["spec"], body["metadata"]["name"]
        for use, number in spec["partitions"].items():
            users.append((spec, number, f"the {use} of ComputeCluster {owner}", of_views(owner)))
    for body in coordinators.items:
        if log := body["spec"].get("log"):
            owner, uid = body["metadata"]["name"], body["metadata"]["uid"]
            use, consumer = f"the log of Coordinator {owner}", of_immortal(folder(owner, uid))
            users.append((log, log.get("partition", 0), use, consumer))
    for ref, number, use, consumer in users:
        if (ref["waltzClusterRef"]["name"], number) == (name, partition) and consumer not in but_for:
            raise Conflict(f"Partition {partition} is for {use}: nobody else may append to it, or trim what it needs.")
