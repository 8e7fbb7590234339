"""What the tools of ``pavane waltz`` do with a log: check its order, measure it (16)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from pavane.waltz.client.waltz import Waltz
from pavane.waltz.errors import OutcomeUnknown

VALIDATE_LOCK = ("pavane-waltz-validate", 0)
FAULTS_SHOWN_MAX = 20


@dataclass
class Validation:
    """What a validation found; ``faults`` is empty if the log kept its promise."""

    partition: int
    first: int
    appended: int = 0
    conflicts: int = 0
    unknown: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


async def validate(log: Waltz, partition: int, clients: int, count: int) -> Validation:
    """Append ``count`` transactions by ``clients`` views that all write one lock, then read them again.

    The data of each is the number that it has to get: the last transaction its writer had seen, plus one. So the log
    is in order exactly if the data of every transaction is its own number; this holds for what others append under
    no lock of ours only while nobody else writes to the partition.
    """
    found = Validation(partition, await log.hwm(partition) + 1)
    begun = perf_counter()
    acknowledged: dict[int, int] = {}
    left = count

    async def write() -> None:
        nonlocal left
        tries = decided = 0

        def decide() -> bytes:
            nonlocal tries, decided
            tries, decided = tries + 1, view.hwm + 1
            return b"%d" % decided

        async with log.view(partition, lambda _: None, from_=found.first) as view:
            while left > 0:
                left -= 1
                tries = 0
                try:
                    txid = await view.transact(decide, write=[VALIDATE_LOCK])
                except OutcomeUnknown:
                    found.unknown += 1
                    continue
                assert txid is not None  # noqa: S101 -- decide always wants something to be written
                found.conflicts += tries - 1
                if txid in acknowledged:
                    found.faults.append(f"transaction {txid} was acknowledged twice")
                acknowledged[txid] = decided

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(write())
    found.appended = len(acknowledged)
    await _read_again(log, found, acknowledged)
    found.seconds = perf_counter() - begun
    return found


async def _read_again(log: Waltz, found: Validation, acknowledged: dict[int, int]) -> None:
    expected, left = found.first, set(acknowledged)
    async for tx in log.read(found.partition, found.first, await log.hwm(found.partition) + 1):
        if tx.id != expected:
            found.faults.append(f"transaction {tx.id} follows {expected - 1}")
        expected = tx.id + 1
        left.discard(tx.id)
        if tx.data != b"%d" % tx.id:
            found.faults.append(f"transaction {tx.id} holds {tx.data[:40]!r}: it was decided on another state")
        elif tx.id in acknowledged and acknowledged[tx.id] != tx.id:
            found.faults.append(f"transaction {tx.id} was acknowledged for {acknowledged[tx.id]}")
    found.faults += [f"transaction {txid} was acknowledged and is not there" for txid in sorted(left)]
    del found.faults[FAULTS_SHOWN_MAX:]


@dataclass(frozen=True, slots=True)
class Measured:
    """Appends of one run; times in milliseconds."""

    appends: int
    seconds: float
    p50_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        """Appends a second."""
        return self.appends / self.seconds


async def measure(log: Waltz, partitions: Sequence[int], data: bytes, count: int, under_way: int) -> Measured:
    """Append ``data`` ``count`` times, spread over ``partitions``, with ``under_way`` at once."""
    times: list[float] = []
    left = count

    async def write(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            begun = perf_counter()
            await log.append(partitions[number % len(partitions)], data)
            times.append(perf_counter() - begun)

    begun = perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(under_way):
            group.create_task(write(number))
    seconds = perf_counter() - begun
    times.sort()
    at = [times[min(len(times) - 1, len(times) * share // 100)] * 1000 for share in (50, 99)]
    return Measured(len(times), seconds, *at)
