"""An archive on an S3 server: what is below the start is read there; it is away for a while; it brings a log back."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pavane.waltz.aio.archive import Archive
from pavane.waltz.client import Waltz
from pavane.waltz.client.restoring import restore
from pavane.waltz.core import feed, storing
from pavane.waltz.server import archiving
from pavane.waltz.storage.piece import cut
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record
from tests.services.eventually import eventually
from tests.services.objects import S3, SECRET
from tests.services.waltz.running import ANSWER_S, KEY, running_log
from tests.services.waltz.test_archive import DATA, KEPT, archived, fill, read, start


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    server = S3(tmp_path / "s3", "logs")
    yield server
    server.end()


def archive_on(s3: S3, secret: str = SECRET) -> Archive:
    return Archive("s3://logs/years/ledger", {**s3.options, "aws_secret_access_key": secret})


async def test_the_history_is_on_s3_also_after_that_was_away_and_brings_a_lost_log_back(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "LOOK_S", 0.05)
    monkeypatch.setattr(archiving, "STEP_S", 0.02)
    monkeypatch.setattr(feed, "TAILS_BYTES_MAX", 10_000)  # else what was dropped is still in memory
    await s3.begin()
    data: list[bytes] = []

    async def append(client: Waltz, until: Callable[[], object]) -> None:
        async with asyncio.timeout(ANSWER_S):
            while not until():
                data.append(b"%d" % len(data) + bytes(2000))
                await client.append(0, data[-1])

    async with running_log(tmp_path / "former", policy=KEPT, archive=lambda: archive_on(s3)) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await append(client, lambda: start(log) > 10)
            assert await read(client) == data
            assert (await client.get(0, 3)).data == data[3]
            fed = client.feed(0)
            assert [(await anext(fed)).data for _ in data] == data
            await fed.aclose()
            await eventually(lambda: archived(log).end == len(data), ANSWER_S)
            s3.end()
            there = len(data)
            await append(client, lambda: len(data) > there + 20 and archived(log).fault)
            assert archived(log).end == there
            assert start(log) <= there
            await s3.begin()
            await append(client, lambda: start(log) > there)
            assert await read(client) == data
            await eventually(lambda: archived(log).end == len(data) and not archived(log).fault, ANSWER_S)
    async with running_log(tmp_path / "new") as log, Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
        assert [one.end async for one in restore(client, archive_on(s3), {0: there})] == [there + 1]
        assert await read(client) == data[: there + 1]


async def test_keys_that_the_store_refuses_are_said_and_others_count_without_a_restart(
    tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "STEP_S", 0.02)
    await s3.begin()
    keys = ["former"]
    async with running_log(tmp_path, policy=KEPT, archive=lambda: archive_on(s3, keys[0])) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            await fill(client, DATA[:3])
            await eventually(lambda: archived(log).fault, ANSWER_S)
            assert "403" in archived(log).fault or "SignatureDoesNotMatch" in archived(log).fault
            keys[0] = SECRET
            await eventually(lambda: archived(log).end == 3, ANSWER_S)
            assert not archived(log).fault


@pytest.mark.parametrize("kind", ["s3", "file"])
async def test_two_servers_that_write_one_piece_at_once_leave_it_whole(tmp_path: Path, s3: S3, kind: str) -> None:
    """As in a hand-over: at no moment does anybody list a piece that cannot be read, also one of several parts."""
    if kind == "s3":
        await s3.begin()
    records = [
        Record.of(txid, ReqId(1, 1, 0, txid), 0, os.urandom(1 << 20)) for txid in range(archiving.PIECE_BYTES >> 20)
    ]
    piece, data = cut(KEY, 0, records)
    url = "s3://logs/years/ledger" if kind == "s3" else f"file://{tmp_path}/archive"
    writers, reader = [Archive(url, s3.options) for _ in range(2)], Archive(url, s3.options)
    for _ in range(5):
        writes = asyncio.gather(*(each.put(0, piece, data) for each in writers))
        while not writes.done():
            for found in await reader.pieces(0):
                assert found == piece
                assert await Archive(url, s3.options).read(0, found) == records
        await writes
        assert await reader.pieces(0) == [piece]
