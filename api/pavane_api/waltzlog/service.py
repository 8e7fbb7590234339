"""What is asked of a log, for REST and for a command that reaches its servers itself."""

import asyncio
from contextlib import aclosing

from pavane.pods.consumers import of_immortal, of_views
from pavane.waltz.client import ConsumerInfo, NotFound, PartitionInfo, Rejected, Transaction, Unavailable, Waltz
from pavane.waltz.core.client import PASSING
from pavane.waltz.errors import RejectCode, rejected
from pavane.waltz.wire.messages import begins
from pavane_api.waltzlog.finding import Sought
from pavane_api.waltzlog.schemas import (
    FoundTransactions,
    LogConsumer,
    LogConsumers,
    LogPartitions,
    LogTransaction,
    MovedConsumer,
    Partition,
    TrimmedPartition,
)

LOOKED_MAX = 20_000  # transactions that one step of a search looks at: well below the 30 s that callers wait
LOOKED_BYTES_MAX = 16 * 1024 * 1024  # of data that it looks at; a single larger transaction is still looked at
BLOCK_BYTES = 256 * 1024  # that are looked at without a pause, in a thread: others are served meanwhile


async def partitions(log: Waltz) -> LogPartitions:
    """Ask for all of them together, for each may wait for as long as the client has patience."""

    async def ask(info: PartitionInfo) -> Partition:
        try:
            return Partition.of(info, await log.hwm(info.partition) if info.server else None)
        except (Unavailable, Rejected, NotFound):
            return Partition.of(info, None)

    return LogPartitions(items=await asyncio.gather(*map(ask, (await log.partitions()).values())))


async def trimmed(log: Waltz, partition: int, before: int, *, dry_run: bool, force: bool) -> TrimmedPartition:
    """Trim, or see what would be. Raises ``Rejected``, ``Unavailable``."""
    former, first, hwm = await log.trim(partition, before, dry_run=dry_run, force=force)
    passed = [one.name for one in await log.consumers(partition) if one.position < first]
    return TrimmedPartition(partition=partition, former_first=former, first=first, high_water_mark=hwm, passed=passed)


async def consumers(log: Waltz) -> LogConsumers:
    """Ask all partitions together; those for which nobody answers are named."""

    async def ask(info: PartitionInfo) -> list[ConsumerInfo] | None:
        try:
            return await log.consumers(info.partition) if info.server else None
        except Unavailable:
            return None
        except Rejected as error:
            if error.code not in PASSING:
                raise
            return None

    found = await asyncio.gather(*map(ask, (await log.partitions()).values()))
    unanswered = [partition for partition, some in enumerate(found) if some is None]
    return LogConsumers(items=[LogConsumer.of(one) for some in found for one in some or ()], unanswered=unanswered)


async def forget(log: Waltz, name: str) -> None:
    """Remove a consumer from all partitions. Raises ``NotFound``; ``Unavailable`` if not all could be asked."""
    found = await consumers(log)
    held = [one.partition for one in found.items if one.name == name]
    if not held and not found.unanswered:
        raise NotFound(f"the log has no consumer {name}")
    await asyncio.gather(*map(log.consumer(name).remove, held))
    if found.unanswered:
        named = ", ".join(map(str, found.unanswered))
        raise Unavailable(
            f"nobody answers for partition {named}: {name} was removed from {len(held)} others. Remove it again when "
            "that has its server"
        )


async def find(
    log: Waltz, partition: int, sought: Sought, start: int | None, before: int | None, limit: int
) -> FoundTransactions:
    """Look for transactions from ``start`` on, by default the first there is, in one bounded step.

    It ends before ``before``, by default behind the last transaction, with ``limit`` found, or with LOOKED_MAX or
    LOOKED_BYTES_MAX looked at. Raises ``Trimmed`` and ``Unavailable``.
    """
    end = await log.hwm(partition) + 1
    end = end if before is None else min(before, end)
    first = await log.first(partition) if start is None else start
    found: list[Transaction] = []
    block: list[Transaction] = []
    at = first
    size = held = 0
    async with aclosing(log.read(partition, first, min(end, first + LOOKED_MAX))) as stream:
        async for each in stream:
            block.append(each)
            held += len(each.data)
            size += len(each.data)
            if held >= BLOCK_BYTES or size >= LOOKED_BYTES_MAX:
                found, at = found + await asyncio.to_thread(_matching, sought, block), each.id + 1
                block, held = [], 0
                if len(found) >= limit or size >= LOOKED_BYTES_MAX:
                    break
    if block:
        found, at = found + await asyncio.to_thread(_matching, sought, block), block[-1].id + 1
    if len(found) > limit:
        at, found = found[limit].id, found[:limit]
    items = [LogTransaction.of(each) for each in found]
    return FoundTransactions(items=items, looked_from=first, next_from=at, end=max(first, end))


def _matching(sought: Sought, block: list[Transaction]) -> list[Transaction]:
    return [each for each in block if sought.finds(each)]


async def moved(log: Waltz, partition: int, name: str, to: int, *, dry_run: bool) -> MovedConsumer:
    """Give a consumer another position, or see what that would be.

    Raises ``NotFound`` if the partition has no such consumer, ``Trimmed`` and ``Rejected`` if the log has nothing
    there, ``Rejected`` for one that the platform moves itself, and ``Unavailable``.
    """
    if name.startswith((of_views(""), of_immortal(""))):
        words = f"consumer {name} is that of a ComputeCluster or Coordinator, which alone knows where it is"
        raise rejected(RejectCode.NOT_PERMITTED, -1, words)
    known = {one.name: one.position for one in await log.consumers(partition)}
    if name not in known:
        raise NotFound(f"partition {partition} has no consumer {name}")
    hwm = await log.hwm(partition)
    if dry_run:
        if to > hwm + 1:
            raise rejected(RejectCode.CLIENT_AHEAD, hwm, f"the partition ends with transaction {hwm}")
        if to < (begin := await log.start(partition)):
            raise rejected(RejectCode.TRIMMED, begin, begins(partition, begin))
    else:
        await log.consumer(name).move(partition, to)
    return MovedConsumer(partition=partition, name=name, former=known[name], position=to, high_water_mark=hwm)
