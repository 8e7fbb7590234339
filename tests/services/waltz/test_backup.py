"""A backup of a log names what of its archive leads to it, and is good for as long as all of that is there."""

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from pavane.runtime.backups import NAME, Manifest
from pavane.runtime.objects import ObjectStore
from pavane.waltz import backup
from pavane.waltz.aio.archive import Archive
from pavane.waltz.backup import back_up, copies, decode, verify
from pavane.waltz.client import Waltz
from pavane.waltz.core.retention import Policy
from pavane.waltz.errors import ArchiveError
from pavane.waltz.server import archiving
from pavane.waltz.storage.piece import cut
from tests.services.objects import S3
from tests.services.waltz.running import running_log
from tests.services.waltz.test_restoring import FORMER, RECORDS, holds, reached, restored

PATIENCE_S = 90.0  # a call that began while the store was away may take a minute


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    server = S3(tmp_path / "s3", "logs")
    yield server
    server.end()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "STEP_S", 0.02)
    monkeypatch.setattr(backup, "LOOK_S", 0.02)


def on(folder: Path) -> Archive:
    return Archive(f"file://{folder}/archive", {})


async def made(folder: Path, ends: int = 150, pieces: tuple[tuple[int, int], ...] = ((0, 90), (60, 149))) -> Manifest:
    """Return a backup of a log with records in the first partition and none in the second."""
    archive = on(folder)
    async with running_log(folder, partitions=2) as log, reached(log) as client:
        for record in RECORDS[:ends]:
            await client.append(0, record.data, header=record.header)
        for first, last in pieces:
            await archive.put(0, *cut(FORMER, 0, RECORDS[first : last + 1]))
        (folder / "backup").mkdir(exist_ok=True)
        await back_up(client, archive, folder / "backup")
    return decode((folder / "backup" / NAME).read_bytes())


async def test_what_was_acknowledged_comes_back_also_when_the_archive_went_on(tmp_path: Path) -> None:
    manifest = await made(tmp_path)
    archive = on(tmp_path)
    ends = await verify(manifest, archive)
    assert ends.ends == {0: 150, 1: 0}
    await archive.put(0, *cut(FORMER, 0, RECORDS[150:300]))
    await archive.put(1, *cut(FORMER, 1, RECORDS[:10]))
    assert await verify(manifest, archive) == ends
    async with running_log(tmp_path / "new", partitions=2) as log, reached(log) as client:
        await restored(client, archive, {number: end - 1 for number, end in ends.ends.items()})
        assert await holds(client, 150)
        assert await holds(client, 0, 1)


async def test_it_waits_until_the_archive_on_s3_has_all_though_that_is_away(tmp_path: Path, s3: S3) -> None:
    def archive() -> Archive:
        return Archive("s3://logs/years/ledger", s3.options)

    async with (
        running_log(tmp_path, policy=Policy(archives=True), archive=archive) as log,
        Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client,
    ):
        await log.settled()
        for number in range(20):
            await client.append(0, b"%d" % number)
        (tmp_path / "backup").mkdir()

        with pytest.raises(ArchiveError):  # another attempt of the Backup follows
            await back_up(client, archive(), tmp_path / "backup")
        assert not (tmp_path / "backup" / NAME).exists()
        await s3.begin()
        async with asyncio.timeout(PATIENCE_S):
            ends = await back_up(client, archive(), tmp_path / "backup")
        assert ends.ends[0] == 20
        store = ObjectStore("s3://logs/backups/monday", s3.options, ArchiveError)
        await copies.upload(tmp_path / "backup", store)
        (tmp_path / "again").mkdir()
        assert await verify(await copies.download(store, tmp_path / "again"), archive()) == ends
    piece = max((s3.bucket / "years").rglob("*.seg"), key=lambda each: each.stat().st_size)
    os.truncate(piece, piece.stat().st_size - 1)
    with pytest.raises(ArchiveError):
        await verify(decode((tmp_path / "again" / NAME).read_bytes()), archive())


async def test_whatever_is_cut_changed_or_deleted_is_named(tmp_path: Path) -> None:
    manifest, rng = await made(tmp_path), random.Random(3)
    for path in (tmp_path / "archive" / "0").iterdir():
        data = path.read_bytes()
        for at in {0, len(data) - 1, *(rng.randrange(len(data)) for _ in range(10))}:
            flipped = bytearray(data)
            flipped[at] ^= 1 << rng.randrange(8)
            for damaged in (bytes(flipped), data[:at]):
                path.write_bytes(damaged)
                with pytest.raises(ArchiveError):
                    await verify(manifest, on(tmp_path))
        path.unlink()
        with pytest.raises(ArchiveError, match="is missing: the backup of 150 transactions cannot be restored"):
            await verify(manifest, on(tmp_path))
        path.write_bytes(data)
    text = (tmp_path / "backup" / NAME).read_bytes()
    for at in range(0, len(text) - 3, 7):
        flipped = bytearray(text)
        flipped[at] ^= 1
        with pytest.raises(ArchiveError):
            decode(bytes(flipped))
    await verify(manifest, on(tmp_path))


async def test_an_archive_without_the_beginning_or_that_gets_nothing_makes_no_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "SILENCE_S", 0.1)
    with pytest.raises(ArchiveError, match="begins with transaction 30"):
        await made(tmp_path / "late", pieces=((30, 149),))
    with pytest.raises(ArchiveError, match="partition 0 ends before transaction 91, of 150, and nothing came"):
        await made(tmp_path / "short", pieces=((0, 90),))
    assert not (tmp_path / "short" / "backup" / NAME).exists()
