"""A log that was lost is made again from its archive: whole, to a transaction, after an interruption, or not at all."""

import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest

from pavane.waltz.aio.archive import Archive
from pavane.waltz.client import Conflict, Waltz, WaltzError
from pavane.waltz.client.restoring import Restored, restore
from pavane.waltz.errors import ArchiveError
from pavane.waltz.state.archived import Piece
from pavane.waltz.storage.piece import cut
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record
from tests.services.waltz.running import Log, running_log

FORMER = UUID("16fd2706-8baf-433b-82eb-8c7fada847da")
RECORDS = [Record.of(number, ReqId(7, 1, 0, number), number % 5 - 2, b"%d" % number * 9) for number in range(400)]


async def archived(folder: Path, *ranges: tuple[int, int], partition: int = 0) -> Archive:
    archive = Archive(f"file://{folder}/archive", {})
    for first, last in ranges:
        await archive.put(partition, *cut(FORMER, partition, RECORDS[first : last + 1]))
    return archive


async def restored(client: Waltz, archive: Archive, last: Mapping[int, int] | None = None) -> list[Restored]:
    return [one async for one in restore(client, archive, last or {})]


async def holds(client: Waltz, end: int, partition: int = 0) -> bool:
    found = [(one.id, one.header, one.data) async for one in client.read(partition, 0, 1 << 40)]
    return found == [(one.txid, one.header, one.data) for one in RECORDS[:end]]


def reached(log: Log) -> Waltz:
    return Waltz([f"127.0.0.1:{log.servers[0].port}"])


async def test_all_partitions_come_back_under_the_same_numbers_and_locks_know_that_they_were_not_seen(
    tmp_path: Path,
) -> None:
    archive = await archived(tmp_path, (0, 250), (0, 90), (200, 399))
    await archived(tmp_path, (0, 20), partition=2)
    async with running_log(tmp_path, partitions=3) as log, reached(log) as client:
        assert await restored(client, archive) == [Restored(0, 0, 400), Restored(1, 0, 0), Restored(2, 0, 21)]
        assert await holds(client, 400)
        assert await holds(client, 21, 2)
        for lock in range(50):
            with pytest.raises(Conflict) as told:
                await client.append(0, b"late", write=[("account", lock)], seen=398)
            assert told.value.txid == 399
        assert await client.append(0, b"new", write=[("account", 7)], seen=399) == 400


async def test_an_interrupted_restore_goes_on_and_one_to_a_transaction_ends_there(tmp_path: Path) -> None:
    archive = await archived(tmp_path, (0, 149), (150, 299))
    async with running_log(tmp_path) as log, reached(log) as client:
        damaged = next((tmp_path / "archive" / "0").glob("*0150-*"))
        whole = damaged.read_bytes()
        damaged.write_bytes(whole[:-1])
        with pytest.raises(ArchiveError, match="does not match its SHA-256"):
            await restored(client, archive)
        assert await holds(client, 150)
        damaged.write_bytes(whole)
        assert await restored(client, archive, {0: 219}) == [Restored(0, 150, 220)]
        assert await holds(client, 220)
        with pytest.raises(Conflict):
            await client.append(0, b"late", write=[("account", 7)], seen=218)
        assert await restored(client, archive, {0: 219}) == [Restored(0, 220, 220)]
        with pytest.raises(WaltzError, match="up to 219 that a restore of 200 does not bring"):
            await restored(client, archive, {0: 199})
        assert await restored(client, archive) == [Restored(0, 220, 300)]
        assert await holds(client, 300)


async def test_a_log_with_something_else_is_left_alone(tmp_path: Path) -> None:
    archive = await archived(tmp_path, (0, 9))
    await archived(tmp_path, (0, 9), partition=1)
    async with running_log(tmp_path, partitions=2) as log, reached(log) as client:
        await client.append(1, b"somebody else")
        assert await client.append(0, RECORDS[0].data, header=RECORDS[0].header) == 0
        await client.append(0, RECORDS[1].data, header=RECORDS[1].header + 1)
        with pytest.raises(WaltzError, match="partition 0 of ledger has other transactions from 0 on"):
            await restored(client, archive)
        await client.trim(1, 1)
        with pytest.raises(WaltzError, match="has to be empty"):
            await restored(client, archive)
        assert [await client.hwm(partition) for partition in (0, 1)] == [1, 0]


async def test_who_appends_meanwhile_is_noticed(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log, reached(log) as client:

        class Late(Archive):
            async def read(self, partition: int, piece: Piece) -> list[Record]:
                await client.append(partition, b"somebody else")
                return await super().read(partition, piece)

        await archived(tmp_path, (0, 9))
        with pytest.raises(WaltzError, match="transaction 0 of the archive became 1: somebody else appends to it"):
            await restored(client, Late(f"file://{tmp_path}/archive", {}))


async def test_an_archive_that_is_not_whole_restores_nothing_and_says_why(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log, reached(log) as client:
        for name, ranges, last, text in [
            ("late", [(3, 9)], {}, "begins with transaction 3"),
            ("gap", [(0, 3), (5, 9)], {}, "lacks what is before transaction 5"),
            ("short", [(0, 9)], {0: 10}, "ends with transaction 9, before 10"),
            ("other", [(0, 9)], {4: 1}, "has nothing of partition 4"),
        ]:
            with pytest.raises(ArchiveError, match=text):
                await restored(client, await archived(tmp_path / name, *ranges), last)
        with pytest.raises(ArchiveError, match=r"holds no log: .*it has archive"):
            await restored(client, Archive(f"file://{tmp_path}/late", {}))
        with pytest.raises(
            WaltzError, match="has 4 partitions, and ledger was made with 1 and has 1: make it with as many as"
        ):
            await restored(client, await archived(tmp_path / "more", (0, 9), partition=3))
        assert await client.hwm(0) == -1
        assert await restored(client, await archived(tmp_path / "gap"), {0: 3}) == [Restored(0, 0, 4)]
    with pytest.raises(ArchiveError, match="nowhere"):
        Archive(f"file://{tmp_path}/nowhere", {}, make=False)
    assert not (tmp_path / "nowhere").exists()


def test_a_process_that_ends_does_not_wait_for_a_store_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options = {"aws_endpoint": f"http://127.0.0.1:{silent.getsockname()[1]}", "aws_skip_signature": "true"}
        program = (
            "import asyncio; from pavane.waltz.aio.archive import Archive\n"
            f"try: asyncio.run(asyncio.wait_for(Archive('s3://logs/x', {options}).pieces(0), 0.1))\n"
            "except TimeoutError: print('away', flush=True)"
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"away\n"
            assert process.wait(timeout=15) == 0
