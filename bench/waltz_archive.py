"""A history in an S3 server (versitygw): read back whole by feeds and by Spark; and appends while it is away."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from bench.options import Options
from bench.report import Measure
from bench.spark import spark_session
from pavane.waltz.client import Waltz
from pavane.waltz.core.retention import Policy
from pavane_cli import output
from tests.services.objects import S3
from tests.services.waltz.running import running_log
from tests.services.waltz.test_archive_s3 import archive_on

PARTITIONS = 4
MIB = 1 << 20
SIZE_MIB = 1024
DATA_BYTES = 64 * 1024
UNDER_WAY = 16  # appends of a partition
KEPT = Policy(bytes_max=64 * MIB, archives=True)
PAUSE_S = 0.02
PATIENCE_S = 300.0


class History:
    """What was appended: how many transactions, and the sum of their CRC-32."""

    def __init__(self) -> None:
        self.count = self.sum = 0
        self.gap_s = 0.0
        self._last: float | None = None

    def add(self, data: bytes) -> None:
        """Count a transaction."""
        self.count += 1
        self.sum += zlib.crc32(data)

    async def append(self, log: Waltz, partition: int, data: bytes) -> None:
        """Append, and note how long none was acknowledged anywhere."""
        await log.append(partition, data)
        self.add(data)
        now = time.monotonic()
        self.gap_s, self._last = max(self.gap_s, now - (self._last or now)), now

    def rest(self) -> None:
        """Nothing is appended for a while on purpose."""
        self._last, self.gap_s = None, 0.0


async def measure(folder: Path, options: Options) -> list[Measure]:
    """Write a history, read it back, then take the store away for ``minutes``."""
    history = History()
    async with _log(folder) as (address, s3, ends), Waltz([address], patience=PATIENCE_S) as log:
        began = time.monotonic()
        numbers = iter(range(SIZE_MIB * MIB // DATA_BYTES))

        async def write(partition: int) -> None:
            for number in numbers:
                await history.append(log, partition, b"%d " % number * (DATA_BYTES // (len(b"%d " % number))))

        await asyncio.gather(*(write(each % PARTITIONS) for each in range(PARTITIONS * UNDER_WAY)))
        wrote_s = time.monotonic() - began
        await _until(lambda: sum(ends()) == history.count)
        for partition in range(PARTITIONS):
            await log.trim(partition, await log.hwm(partition))
        starts = [await log.start(each) for each in range(PARTITIONS)]
        output.note(f"{SIZE_MIB} MiB in {wrote_s:.0f} s; storage nodes begin with {starts} of {ends()}")
        fed, fed_s = await _fed(log)
        spark, spark_s = await asyncio.to_thread(_by_spark, address)
        history.rest()
        s3.end()
        away, there = time.monotonic(), ends()
        while time.monotonic() < away + 60 * options.minutes:
            await asyncio.gather(*(history.append(log, each, bytes(1000)) for each in range(PARTITIONS)))
            await asyncio.sleep(PAUSE_S)
        held, gap_s = ends() == there, history.gap_s
        await s3.begin()
        back = time.monotonic()
        await _until(lambda: sum(ends()) == history.count)
        resumed_s = time.monotonic() - back
        after, _ = await _fed(log)
    whole = (history.count, history.sum)
    return [
        Measure("written and archived", SIZE_MIB, "MiB"),
        Measure("written", SIZE_MIB / wrote_s, "MiB/s"),
        Measure("local start moved behind", min(starts), "transactions"),
        Measure("history by feeds differs", fed != spark, "", 0, vital=True),
        Measure("read by feeds", SIZE_MIB / fed_s, "MiB/s"),
        Measure("read by a batch of Spark", SIZE_MIB / spark_s, "MiB/s"),
        Measure("longest time without an append while the store was away", gap_s, "s"),
        Measure("archived while the store was away", not held, "", 0, vital=True),
        Measure("until the archive had all of it", resumed_s, "s"),
        Measure("history differs afterwards", after != whole, "", 0, vital=True),
    ]


@asynccontextmanager
async def _log(folder: Path) -> AsyncIterator[tuple[str, S3, Callable[[], list[int]]]]:
    """Run a log in this process, and its store beside it; lend its address, the store, and how far the archive is."""
    store = S3(folder / "s3", "logs")
    await store.begin()
    try:
        async with running_log(
            folder / "log", partitions=PARTITIONS, policy=KEPT, archive=lambda: archive_on(store)
        ) as log:
            await log.settled()
            owned = log.servers[0].running.owned
            yield (
                f"127.0.0.1:{log.servers[0].port}",
                store,
                lambda: [one.keeping.archive.end if one.keeping.archive else 0 for one in owned.values()],
            )
    finally:
        store.end()


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():
            await asyncio.sleep(PAUSE_S)


async def _fed(log: Waltz) -> tuple[tuple[int, int], float]:
    """Read all partitions from their beginning; return count and sum, and the seconds that it took."""
    history, began = History(), time.monotonic()

    async def follow(partition: int) -> None:
        async for each in log.read(partition, 0, await log.hwm(partition) + 1):
            history.add(each.data)

    await asyncio.gather(*map(follow, range(PARTITIONS)))
    return (history.count, history.sum), time.monotonic() - began


def _by_spark(address: str) -> tuple[tuple[int, int], float]:
    with spark_session() as spark:
        began = time.monotonic()
        (row,) = (
            spark.read.format("waltz")
            .options(servers=address, maxRecordsPerPartition=500)
            .load()
            .selectExpr("count(*) AS count", "sum(crc32(data)) AS sum")
            .collect()
        )
        return (row["count"], row["sum"]), time.monotonic() - began
