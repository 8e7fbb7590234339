"""Writers that know what each of their transactions has to be, and the comparison with the log (waltz.md 16).

Each append is made of the log's end as its writer sees it, under one lock that all writers of the partition write: its
data is the number that it must get. So anything lost, doubled or out of order shows in the data.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from pavane.waltz.client import Waltz
from pavane.waltz.errors import OutcomeUnknown

LOCK = ("oracle", 0)
WRITERS = 2  # of each partition: so that there are conflicts


@dataclass
class Verdict:
    """What the comparison found."""

    lost: int = 0
    doubled: int = 0
    misplaced: int = 0
    """Transactions that do not hold their own number, or that a reader saw elsewhere."""
    refused: int = 0
    """Transactions that are in the log though their writers were told that they are not."""
    unknown: int = 0
    acknowledged: int = 0


@dataclass
class Oracle:
    """Appends to all partitions of a log until it is stopped."""

    log: Waltz
    acknowledged: dict[int, dict[int, float]] = field(default_factory=dict)
    """By partition and transaction: when it was acknowledged (monotonic seconds)."""
    _seen: list[tuple[int, dict[int, bytes]]] = field(default_factory=list)
    _last: dict[int, float] = field(default_factory=dict)
    _unknown: int = 0
    _stopping: bool = False
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Append meanwhile."""
        for partition in range(self.log.partition_count):
            self.acknowledged[partition] = {}
            first = await self.log.hwm(partition) + 1
            self._tasks += [asyncio.create_task(self._write(partition, first)) for _ in range(WRITERS)]
        try:
            yield
            self._stopping = True
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def count(self) -> int:
        """Acknowledged appends so far."""
        return sum(len(found) for found in self.acknowledged.values())

    async def more(self, partition: int) -> float:
        """Wait for the next acknowledgement in a partition and return when it came."""
        before = len(self.acknowledged[partition])
        while len(self.acknowledged[partition]) == before:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.002)
        return self._last[partition]

    def longest_gap_s(self, began: float, ended: float) -> float:
        """Return the longest time without an acknowledgement of a partition, the worst of all."""
        gaps = [0.0]
        for found in self.acknowledged.values():
            times = [began, *sorted(at for at in found.values() if began < at < ended), ended]
            gaps += [after - before for before, after in itertools.pairwise(times)]
        return max(gaps)

    async def compare(self, fresh: Waltz) -> Verdict:
        """Read everything again with another client."""
        verdict = Verdict(unknown=self._unknown, acknowledged=self.count)
        for partition, acknowledged in self.acknowledged.items():
            found = {tx.id: tx.data async for tx in fresh.read(partition, 0, 1 << 40)}
            verdict.lost += sum(txid not in found for txid in acknowledged)
            verdict.doubled += len(found) - len(set(found.values()))
            verdict.misplaced += sum(data != b"%d" % txid for txid, data in found.items())
            verdict.refused += len(found.keys() - acknowledged.keys())
            seen = [data for number, data in self._seen if number == partition]
            verdict.misplaced += sum(found.get(txid) != data for each in seen for txid, data in each.items())
        verdict.refused = max(0, verdict.refused - self._unknown)
        return verdict

    async def _write(self, partition: int, first: int) -> None:
        seen: dict[int, bytes] = {}
        self._seen.append((partition, seen))

        def decide() -> bytes:
            return b"%d" % (view.hwm + 1)

        async with self.log.view(partition, lambda tx: seen.update({tx.id: tx.data}), from_=first) as view:
            while not self._stopping:
                try:
                    txid = await view.transact(decide, write=[LOCK])
                except OutcomeUnknown:
                    self._unknown += 1
                    continue
                assert txid is not None  # decide always wants something to be written
                self.acknowledged[partition][txid] = self._last[partition] = time.monotonic()
