"""A server that archives many partitions: none waits for another, and what the log was made with is known again."""

import asyncio
from pathlib import Path

import pytest

from pavane.waltz.aio.archive import Archive
from pavane.waltz.client import Waltz, WaltzError
from pavane.waltz.client.restoring import restore
from pavane.waltz.core.retention import Policy
from pavane.waltz.server import archiving
from pavane.waltz.state.archived import Piece
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, running_log


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "STEP_S", 0.02)


async def test_a_partition_whose_listing_gives_no_answer_holds_up_no_other(tmp_path: Path) -> None:
    asked, answers = set[int](), asyncio.Event()

    class Slow(Archive):
        async def pieces(self, partition: int) -> list[Piece]:
            asked.add(partition)
            if partition == 0:
                await answers.wait()
            return await super().pieces(partition)

    def opened() -> Archive:
        return Slow(f"file://{tmp_path}/archive", {})

    async with running_log(tmp_path, partitions=3, policy=Policy(archives=True), archive=opened) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await eventually(lambda: 0 in asked, ANSWER_S)
            for partition in range(3):
                await client.append(partition, b"one")
            of = [log.servers[0].running.owned[number].keeping.archive for number in range(3)]
            await eventually(lambda: [one.end for one in of if one is not None][1:] == [1, 1], ANSWER_S)
            answers.set()
            await eventually(lambda: of[0] is not None and of[0].end == 1, ANSWER_S)


async def test_whoever_takes_over_asks_for_all_partitions_together(tmp_path: Path) -> None:
    asked, all_asked = set[int](), asyncio.Event()

    class Together(Archive):
        async def pieces(self, partition: int) -> list[Piece]:
            asked.add(partition)
            if len(asked) == 5:
                all_asked.set()
            await all_asked.wait()
            return await super().pieces(partition)

    def opened() -> Archive:
        return Together(f"file://{tmp_path}/archive", {})

    async with running_log(tmp_path, partitions=5, policy=Policy(archives=True), archive=opened) as log:
        await log.settled()
        owned = log.servers[0].running.owned.values()
        await eventually(lambda: all(one.keeping.archive and one.keeping.archive.known for one in owned), ANSWER_S)


async def test_an_archive_says_over_how_many_partitions_keys_are_spread_and_no_other_log_is_restored_from_it(
    tmp_path: Path,
) -> None:
    def opened() -> Archive:
        return Archive(f"file://{tmp_path}/archive", {})

    async with running_log(tmp_path / "former", partitions=3, policy=Policy(archives=True), archive=opened) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            assert await client.key_partitions() == 3
            await client.append(1, b"one")
            of = log.servers[0].running.owned[1].keeping.archive
            await eventually(lambda: of is not None and of.end == 1, ANSWER_S)
    (tmp_path / "archive" / "key-partitions-3.old2").touch()  # of somebody who moved things about
    assert await opened().contents() == (["1"], [3])
    async with (
        running_log(tmp_path / "other", partitions=4) as log,
        Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client,
    ):
        with pytest.raises(WaltzError, match=r"made with 4 and has 4: make it with 3, .*then let it grow to 3"):
            [_ async for _ in restore(client, opened(), {})]
        assert await client.hwm(1) == -1
