"""`pavane ambrosia backup|backups|verify|restore` with a folder and a real S3 server (docs/operations.md)."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pavane.ambrosia.backup import KIND
from pavane.runtime.backups import NAME, Manifest
from pavane_cli.commands import ambrosia_backup
from pavane_cli.failures import UserError
from pavane_cli.output import Format
from tests.services.ambrosia.test_backup import alice
from tests.services.ambrosia.unit import Unit
from tests.services.objects import S3

__all__ = ["alice"]

BELOW = "s3://backups/immortals"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3]:
    server = S3(tmp_path / "s3", "backups")
    yield server
    server.end()


async def test_a_backup_in_object_storage_is_listed_verified_restored_and_refused_once_it_is_damaged(
    alice: Unit, tmp_path: Path, s3: S3, capsys: pytest.CaptureFixture[str]
) -> None:
    await s3.begin()
    given = [f"{name}={value}" for name, value in s3.options.items()]
    log, urls = tmp_path / "logs", [f"{BELOW}/{day}" for day in ("monday", "tuesday")]
    for url in urls:
        await asyncio.to_thread(ambrosia_backup.backup, "alice", url, log, given)
    with pytest.raises(UserError, match="holds a backup: give each a URL of its own"):
        await asyncio.to_thread(ambrosia_backup.backup, "alice", urls[0], log, given)
    capsys.readouterr()
    await asyncio.to_thread(ambrosia_backup.verify, urls[0], given)
    assert capsys.readouterr().out.endswith("good\n")
    await asyncio.to_thread(ambrosia_backup.restore, urls[0], tmp_path / "new", "alice", option=given)
    assert "links to bob go on only if they know of no later call" in capsys.readouterr().err
    (tmp_path / "at").mkdir()
    (tmp_path / "new").rename(tmp_path / "at" / "logs")
    states = [Unit(folder, "alice", "bob").replayed(1).state for folder in (tmp_path, tmp_path / "at")]
    assert states[0] == states[1]

    largest = max((s3.bucket / "immortals" / "tuesday").iterdir(), key=lambda each: each.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    with pytest.raises(UserError, match="is damaged"):
        await asyncio.to_thread(ambrosia_backup.verify, urls[1], given)
    os.truncate(largest, len(data) - 1)
    await asyncio.to_thread(ambrosia_backup.backups, BELOW, option=given, form=Format.JSON)
    told = capsys.readouterr().out
    assert told.index("tuesday") < told.index("monday"), "the newest first"
    assert "is not as it was written" in told
    await asyncio.to_thread(ambrosia_backup.backups, BELOW, 1, yes=True, option=given)
    assert (s3.bucket / "immortals" / "monday" / "backup.json").exists(), "the only whole one stays"


def test_of_others_below_the_same_url_nothing_is_old(tmp_path: Path) -> None:
    """Two backups of alice, older ones of bob, of a RaftCluster, and one that nobody can read."""

    def of(instance: str) -> bytes:
        numbers = {"app_version": 0, "checkpoint": 1, "log": 1, "next_seq": 1}
        return Manifest(KIND, {"instance": instance, "connections": [], "digest": "", **numbers}, {}).encode()

    written = {
        "bob": of("bob"),
        "raft": Manifest("RaftCluster", {}, {}).encode(),
        "torn": b"{",
        "alice-1": of("alice"),
        "alice-2": of("alice"),
    }
    for second, (name, data) in enumerate(written.items()):
        (folder := tmp_path / "at" / name).mkdir(parents=True)
        (folder / NAME).write_bytes(data)
        os.utime(folder / NAME, (second, second))
    ambrosia_backup.backups(f"file://{tmp_path / 'at'}", 1, yes=True)
    assert {path.parent.name for path in (tmp_path / "at").glob(f"*/{NAME}")} == {"bob", "raft", "torn", "alice-2"}
