"""A batch over a log whose storage nodes have dropped its beginning: by its server, and from the archive itself."""

import asyncio
from pathlib import Path
from typing import Any

from pavane.waltz.client import Waltz
from tests.spark.running import log_process

DROPPED_S = 60.0  # until the storage nodes have dropped something, on a busy machine


async def written(servers: str) -> list[bytes]:
    """Append until the storage nodes have dropped something; return all."""
    data: list[bytes] = []
    async with Waltz([servers]) as log, asyncio.timeout(DROPPED_S):
        while len(data) < 60 or await log.start(0) < 20:
            data.append(b"%d" % len(data) + bytes(2000))
            await log.append(0, data[-1])
    return data


def test_a_batch_has_the_whole_history_and_its_tasks_need_no_server_for_what_is_archived(
    spark: Any, tmp_path: Path
) -> None:
    with log_process(tmp_path / "log", 1, "archived") as servers:
        data = asyncio.run(written(servers))

        def rows(**options: object) -> list[tuple[int, bytes]]:
            read = spark.read.format("waltz").options(servers=servers, maxRecordsPerPartition=25, **options)
            return sorted((row.txid, bytes(row.data)) for row in read.load().collect())

        assert rows() == list(enumerate(data))
        (tmp_path / "log" / "archive").rename(tmp_path / "elsewhere")
        assert rows(archive=f"file://{tmp_path}/elsewhere") == list(enumerate(data))
        some = rows(archive=f"file://{tmp_path}/elsewhere", startingOffsets='{"0": 7}', endingOffsets='{"0": 50}')
        assert some == list(enumerate(data))[7:50]
