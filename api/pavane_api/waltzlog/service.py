"""What is asked of a log, for REST and for a command that reaches its servers itself."""

import asyncio

from pavane.waltz.client import ConsumerInfo, NotFound, PartitionInfo, Rejected, Unavailable, Waltz
from pavane.waltz.core.client import PASSING
from pavane_api.waltzlog.schemas import LogConsumer, LogConsumers, LogPartitions, Partition, TrimmedPartition


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
