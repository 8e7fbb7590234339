"""Damaged copies of a running log: found without a reader, named, rebuilt from a majority, verified (waltz.md 13.8)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pavane.waltz.client import Waltz
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, Log, running_log
from tests.services.waltz.test_damage import RECORDS, faults, rot

SIZE = 1000


def same(log: Log) -> bool:
    """Whether all copies are whole, vote, and have the same bytes."""
    found = [
        [path.read_bytes()[128:] for path in sorted((log.folder / f"node{index}" / "0").glob("*.seg"))]
        for index in range(3)
    ]
    return not faults(log) and all(each == found[0] for each in found)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    async with running_log(tmp_path, scrub_pause_s=0.01) as running:
        await running.settled()
        async with Waltz([f"127.0.0.1:{running.servers[0].port}"]) as client:
            for number in range(RECORDS):
                await client.append(0, b"%d " % number * (SIZE // 4))
        await running.until_all_vote()
        yield running


async def test_a_copy_that_rots_is_found_without_a_reader_and_rebuilt_without_a_person(log: Log) -> None:
    rot(log, 0)
    files = log.nodes[0].directory.partition(0)
    assert files is not None
    await eventually(lambda: files.mended, ANSWER_S)
    assert files.mended.startswith("damaged from transaction 7 on")
    await eventually(lambda: same(log), ANSWER_S)
    await log.until_all_vote()
    await log.stop_node(1)  # from here on every append needs the copy that was rebuilt
    async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
        assert await client.append(0, b"after") == RECORDS
        assert [each.id async for each in client.read(0, 0, RECORDS + 1)] == list(range(RECORDS + 1))
