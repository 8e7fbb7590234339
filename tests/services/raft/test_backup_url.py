"""A backup at a URL: made, checked and restored there, on a real S3 server (docs/specs/raft.md 13.5)."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from pavane.raft.backup import back_up
from pavane.raft.client import RaftClient
from pavane.raft.offline.manifest import NAME, Manifest, checked, manifest_of, seal
from pavane.raft.offline.remote import Kept, backups, download, remove, surplus, upload
from pavane.raft.state.configuration import Members
from pavane.raft.storage import StoreError
from pavane.runtime import backups as copies
from pavane.runtime.objects import ObjectStore
from pavane_cli.commands import raft_backup, raft_offline
from pavane_cli.failures import UserError
from pavane_cli.output import Format
from tests.services.objects import S3
from tests.services.raft.peers import IDENT
from tests.services.raft.test_backup import NEW_IDENT, new_members, secret_in, start

URL = "s3://backups/raft/orders/monday"
DATA = {b"one": b"1", b"two": b"2" * 20_000}


@pytest.fixture
async def s3(tmp_path: Path) -> AsyncIterator[S3]:
    server = S3(tmp_path / "s3", "backups")
    await server.begin()
    yield server
    server.end()


def options(s3: S3) -> list[str]:
    return [f"{name}={value}" for name, value in s3.options.items()]


def store(s3: S3) -> ObjectStore:
    return ObjectStore(URL, s3.options, StoreError)


async def keys(client: RaftClient) -> dict[bytes, bytes]:
    return {item.key: item.value for item in [await client.kv.get(key) for key in DATA] if item}


async def running(stack: AsyncExitStack, folder: Path) -> Members:
    members = new_members(1)
    _, client = await start(stack, folder, members, "KeyValue")
    for key, value in DATA.items():
        await client.kv.put(key, value)
    return members


async def copied(folder: Path) -> Path:
    async with AsyncExitStack() as stack:
        members = await running(stack, folder / "old")
        await back_up(folder / "copy", [members[0][1]], IDENT)
    return folder / "copy"


async def test_a_deleted_cluster_comes_back_from_a_url(
    tmp_path: Path, s3: S3, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys_of_the_store = [each for each in options(s3) if "key" in each]
    for name, value in (each.split("=") for each in keys_of_the_store):
        monkeypatch.setenv(name.upper(), value)
    given = [each for each in options(s3) if each not in keys_of_the_store]
    async with AsyncExitStack() as stack:
        members = await running(stack, tmp_path / "old")
        # The commands have a loop of their own, the peer lives in this one.
        back_up_there = partial(raft_backup.backup, URL, members[0][1], secret_file=secret_in(tmp_path), option=given)
        await asyncio.to_thread(back_up_there)
        assert capsys.readouterr().out.startswith(f"{URL}: everything up to entry")
        with pytest.raises(UserError, match=f"{URL} holds a backup"):
            await asyncio.to_thread(back_up_there)
    shutil.rmtree(tmp_path / "old")

    await asyncio.to_thread(raft_offline.verify, URL, option=given)
    checked = capsys.readouterr().out
    manifest = Manifest.decode((s3.bucket / "raft/orders/monday" / NAME).read_bytes())
    assert manifest.state
    assert f"digest of the state at entry {manifest.index}: {manifest.state}" in checked
    assert checked.endswith("good\n")

    restored = new_members(3)
    names = ",".join(f"{peer}={url}" for peer, url in restored)
    for peer, _ in restored:
        folder = tmp_path / "new" / peer
        await asyncio.to_thread(raft_backup.restore, URL, folder, peer, names, option=given)
    async with AsyncExitStack() as stack:
        _, client = await start(stack, tmp_path / "new", restored, "KeyValue", NEW_IDENT)
        assert await keys(client) == DATA


async def test_while_the_store_is_away_there_is_no_backup_and_the_next_run_makes_it(tmp_path: Path, s3: S3) -> None:
    copy = await copied(tmp_path)

    def goes(done: int, total: int) -> None:
        if 0 < done < total:
            s3.end()

    with pytest.raises(StoreError, match=f"writing {URL}/"):
        await upload(copy, store(s3), goes)
    with pytest.raises(StoreError, match=f"listing {URL}/"):
        await upload(copy, store(s3))
    await s3.begin()
    with pytest.raises(StoreError, match="was interrupted"):
        await download(store(s3), tmp_path / "none")
    await upload(copy, store(s3))
    (tmp_path / "again").mkdir()
    assert await download(store(s3), tmp_path / "again") == manifest_of(copy)
    with pytest.raises(StoreError, match="holds a backup"):
        await upload(copy, store(s3))


async def test_what_is_not_as_it_was_written_is_refused_by_its_name(tmp_path: Path) -> None:
    copy = await copied(tmp_path)
    top = tmp_path / "store"

    def at(name: str = "") -> ObjectStore:
        return ObjectStore(f"file://{top / name}", {}, StoreError)

    held = (await upload(copy, at("good"))).files
    largest = max(held, key=lambda name: held[name])

    def flips(path: Path, offset: int) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.write_bytes(data)

    def adds(path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.touch()

    changes: dict[str, Callable[[Path], object]] = {
        f"{largest} is damaged": lambda folder: flips(folder / largest, held[largest][0] // 2),
        "synced is damaged": lambda folder: flips(folder / "synced", 0),
        f"{NAME} is damaged": lambda folder: flips(folder / NAME, 200),
        "store.json is missing": lambda folder: (folder / "store.json").unlink(),
        f"{largest} has 40 bytes": lambda folder: (folder / largest).write_bytes(bytes(40)),
        "snap/7 does not belong to it": lambda folder: adds(folder / "snap" / "7"),
        "interrupted": lambda folder: (folder / NAME).unlink(),
    }
    for words, change in changes.items():
        name = words.replace("/", "-")
        shutil.copytree(top / "good", top / name)
        change(top / name)
        (tmp_path / name).mkdir()
        with pytest.raises(StoreError, match=words):
            await download(at(name), tmp_path / name)
        with pytest.raises(UserError, match=words):
            await asyncio.to_thread(raft_backup.restore, f"file://{top / name}", tmp_path / "new", "1", "1=tcp://a:1")
    assert not (tmp_path / "new").exists()
    (top / "of-another" / "log").mkdir(parents=True)
    (top / "of-another" / "log" / "x").touch()
    with pytest.raises(StoreError, match="log/x, which is not of this backup"):
        await upload(copy, at("of-another"))


@pytest.mark.parametrize("name", ["../x", "log/../../x", "/etc/x", "log/.x", "log/a/b", "other"])
def test_a_manifest_cannot_name_what_is_no_file_of_a_backup(name: str) -> None:
    with pytest.raises(StoreError, match="damaged"):
        Manifest.decode(Manifest("KeyValue", 1, 1, "", {name: (1, "")}).encode())


@pytest.mark.parametrize(
    ("url", "option", "words"),
    [
        ("ftp://host/x", [], "a store is at s3://"),
        ("file://folder/x", [], "a store is at s3://"),
        ("s3://bucket/x", ["password=secret"], "option password does not begin with"),
        ("file:///", [], "with a place"),
        ("s3://", [], "with a place"),
        ("file:///srv/orders#1", [], "as %23"),
        ("s3://bucket/x?y", [], "write [?] as %3F"),
        ("nowhere", [], "nowhere is no folder"),
    ],
)
def test_places_that_cannot_be_are_refused_in_words(url: str, option: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        raft_offline.verify(url, option=option)


# --- many of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("whole", "keep", "kept"),
    [("", 1, 0), ("w", 1, 1), ("www", 1, 1), ("www", 5, 3), ("..w.w", 1, 3), ("..w.w", 2, 5), ("...", 1, 3)],
)
def test_what_is_older_than_the_last_whole_ones_is_old_and_nothing_else(whole: str, keep: int, kept: int) -> None:
    found = [
        Kept(str(number), datetime.min.replace(tzinfo=UTC), {}, None, "" if each == "w" else "cut")
        for number, each in enumerate(whole)
    ]
    assert list(surplus(found, keep)) == found[kept:]


async def test_old_backups_are_listed_and_deleted_and_never_the_last_whole_one(
    tmp_path: Path, s3: S3, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, parent = await copied(tmp_path), URL.rpartition("/")[0]
    for name in ("1", "2", "3"):  # written in one second they are in the order of their names
        await upload(copy, ObjectStore(f"{parent}/{name}", s3.options, StoreError))
    (s3.bucket / "raft/orders/3/synced").unlink()
    (s3.bucket / "raft/orders/interrupted").mkdir()
    (s3.bucket / "raft/orders/interrupted/synced").touch()
    again = partial(raft_backup.backups, parent, keep=1, option=options(s3), form=Format.JSON)
    with pytest.raises(UserError, match="nothing was changed"):
        await asyncio.to_thread(again)
    rows = [(row["name"], row["state"], row["old"]) for row in json.loads(capsys.readouterr().out)]
    assert rows[1:] == [("2", "whole", False), ("1", "whole", True)]
    assert "synced is missing" in rows[0][1]
    await asyncio.to_thread(again, yes=True)
    capsys.readouterr()
    await asyncio.to_thread(again, yes=True)
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["3", "2"]
    assert not list((s3.bucket / "raft/orders").glob("1/**/*.json"))
    assert (s3.bucket / "raft/orders/interrupted/synced").exists()


async def test_a_deletion_that_was_interrupted_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await kept(tmp_path, "1", "2")
    monkeypatch.setattr(copies, "DELETED_MAX", 1)
    folder = tmp_path / "store" / "1"
    foreign = folder / "log" / "of somebody else" / "x"
    foreign.parent.mkdir()
    foreign.touch()
    (old,) = surplus(await backups(store), 1)
    foreign.unlink()
    foreign.parent.rmdir()
    (folder / "synced").unlink()
    (folder / "synced").mkdir()  # an object that cannot be deleted
    with pytest.raises(StoreError, match="deleting"):
        await remove(store, old)
    assert (folder / NAME).exists(), "the manifest went before a file, so nothing tells that this was a backup"
    (folder / "synced").rmdir()
    found = await backups(store)
    assert [(each.name, bool(each.fault)) for each in found] == [("2", False), ("1", True)]
    await remove(store, found[1])  # what is gone already is no error
    assert [each.name for each in await backups(store)] == ["2"]
    assert not [path for path in folder.rglob("*") if path.is_file()]


async def test_what_lies_below_or_behind_a_backup_is_not_deleted_with_it(tmp_path: Path) -> None:
    store = await kept(tmp_path, "1", "1/deeper", "2")
    (tmp_path / "store" / "latest").symlink_to("2")
    found = await backups(store)
    assert [each.name for each in found] == ["2", "1"], "a link is no backup beside the one that it names"
    for old in surplus(found, 1):
        await remove(store, old)
    assert await download(ObjectStore(f"{store.url}/1/deeper", {}, StoreError), tmp_path)
    assert [each.name for each in await backups(store)] == ["2"]


async def test_a_manifest_that_cannot_be_read_stops_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await kept(tmp_path, "1", "2")
    with (tmp_path / "store" / "2" / NAME).open("ab") as file:
        file.write(bytes(5000))
    monkeypatch.setattr(copies, "MANIFEST_BYTES_MAX", 5000)
    assert [(each.name, bool(each.fault)) for each in await backups(store)] == [("2", True), ("1", False)]


async def test_a_file_that_a_desktop_left_is_no_part_of_a_backup(tmp_path: Path) -> None:
    copy = await copied(tmp_path)
    (copy / "log" / ".DS_Store").touch()
    seal(copy, checked(copy).index)
    assert checked(copy).files.keys() >= {"synced", "store.json"}


async def kept(tmp_path: Path, *names: str) -> ObjectStore:
    """A folder with one backup under several names, the last one the newest."""
    copy, url = await copied(tmp_path), f"file://{tmp_path}/store"
    for at, name in enumerate(names):
        await upload(copy, ObjectStore(f"{url}/{name}", {}, StoreError))
        os.utime(tmp_path / "store" / name / NAME, (at, at))
    return ObjectStore(url, {}, StoreError)
