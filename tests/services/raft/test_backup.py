"""A copy of a running cluster, and a new cluster that begins with it (docs/specs/raft.md 13.5)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pavane.raft import backup
from pavane.raft.backup import Backup, back_up
from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.errors import Unreachable
from pavane.raft.offline.compacting import state_digest
from pavane.raft.offline.manifest import NAME, manifest_of
from pavane.raft.offline.restoring import RESTORE_STEP, restore
from pavane.raft.offline.store import StoredLog
from pavane.raft.server import ForeignStore, RaftServer
from pavane.raft.state.configuration import Members
from pavane.raft.storage import StoreError
from pavane_cli.commands import raft_backup, raft_offline
from pavane_cli.failures import ExitCode, UserError
from tests.services.eventually import eventually
from tests.services.raft.peers import ELECTION_MAX_MS, ELECTION_MIN_MS, IDENT, free_url
from tests.services.raft.test_offline import store

SNAPSHOT_BYTES = 1000  # of the log between two snapshots
KEYS = 80
NEW_IDENT = b"another"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def start(
    stack: AsyncExitStack, folder: Path, members: Members, machine: str, ident: bytes = IDENT
) -> tuple[list[RaftServer], RaftClient]:
    """Start all members, each in a folder of its own, and a client."""
    servers = []
    for peer, url in members:
        config = Config(
            peer,
            ident,
            url,
            peers=members,
            machine=machine,
            election_min=ELECTION_MIN_MS,
            election_max=ELECTION_MAX_MS,
            snapshot_bytes=SNAPSHOT_BYTES,
            log_retention=0,
        )
        server = RaftServer(config, data=folder / peer, bind=url)
        await server.start()
        stack.push_async_callback(server.stop)
        servers.append(server)
    return servers, await stack.enter_async_context(RaftClient([url for _, url in members], ident))


def new_members(count: int) -> Members:
    return tuple((str(number), free_url()) for number in range(1, count + 1))


def secret_in(folder: Path) -> Path:
    (folder / "secret").write_bytes(IDENT)
    return folder / "secret"


async def test_keys_come_back_in_a_new_cluster(tmp_path: Path, stack: AsyncExitStack) -> None:
    members = new_members(3)
    servers, client = await start(stack, tmp_path / "old", members, "KeyValue")
    for number in range(KEYS):
        await client.kv.put(b"key %d" % number, b"value %d" % number)
    await eventually(lambda: all(server.status().first > 1 for server in servers))
    copy, urls = tmp_path / "copy", [members[0][1]]
    first = await back_up(copy, urls, IDENT)
    assert (first.machine, first.index >= KEYS) == ("KeyValue", True)
    await client.kv.put(b"key 0", b"changed")
    told: list[tuple[int, int]] = []
    second = await back_up(copy, urls, IDENT, progress=lambda done, total: told.append((done, total)))
    assert second.index > first.index
    assert told[0][1] == second.index

    restored = new_members(3)
    for peer, _ in restored:
        moved = restore(copy, tmp_path / "new" / peer, peer, restored, "new")
        assert moved.configuration is not None
        assert moved.configuration.new == restored
    _, again = await start(stack, tmp_path / "new", restored, "KeyValue", NEW_IDENT)
    found = {item.key: item.value for item in [await again.kv.get(b"key %d" % n) for n in range(KEYS)] if item}
    expected = {b"key %d" % number: b"value %d" % number for number in range(KEYS)}
    assert found == expected | {b"key 0": b"changed"}
    await again.kv.put(b"key 0", b"and goes on")
    assert (await again.configuration()).peers == restored


async def test_a_log_comes_back_entry_by_entry(tmp_path: Path, stack: AsyncExitStack) -> None:
    members = new_members(1)
    _, client = await start(stack, tmp_path / "old", members, "Broadcast")
    reqid = client.new_reqid()
    index = await client.update(b"once", reqid=reqid)
    made = await back_up(tmp_path / "copy", [members[0][1]], IDENT)
    assert made == Backup(index, "Broadcast")
    restored = new_members(1)
    restore(tmp_path / "copy", tmp_path / "new" / "1", "1", restored)
    _, again = await start(stack, tmp_path / "new", restored, "Broadcast", NEW_IDENT)
    # Its request id came along: what is repeated is not done twice.
    assert await again.update(b"once", reqid=reqid) == index + RESTORE_STEP
    await again.update(b"new")
    old = [entry async for entry in client.entries()]
    expected = [(entry.index + RESTORE_STEP, entry.frame) for entry in old]
    found = [(entry.index, entry.frame) async for entry in again.entries(RESTORE_STEP)]
    assert found[: len(old)] == expected


async def test_a_copy_of_another_machine_is_not_continued(tmp_path: Path, stack: AsyncExitStack) -> None:
    for machine in ("Broadcast", "KeyValue"):
        members = new_members(1)
        await start(stack, tmp_path / machine, members, machine)
        if machine == "Broadcast":
            await back_up(tmp_path / "copy", [members[0][1]], IDENT)
        else:
            with pytest.raises(ForeignStore, match="machine"):
                await back_up(tmp_path / "copy", [members[0][1]], IDENT)


@pytest.mark.parametrize(
    ("peer", "members", "words"),
    [("2", new_members(1), "one of the members"), ("1", (("1", "nowhere"),), "tcp://"), ("1", (), "empty")],
)
def test_members_that_cannot_be_are_refused(tmp_path: Path, peer: str, members: Members, words: str) -> None:
    with pytest.raises(StoreError, match=words):
        restore(store(tmp_path / "copy"), tmp_path / "new", peer, members)
    assert not (tmp_path / "new").exists()


def test_a_damaged_copy_is_not_restored(tmp_path: Path) -> None:
    copy = store(tmp_path / "copy")
    for file in (copy / "log").iterdir():
        file.unlink()
    with pytest.raises(StoreError, match="damaged"):
        restore(copy, tmp_path / "new", "1", new_members(1), unverified=True)


async def test_the_commands(tmp_path: Path, stack: AsyncExitStack, capsys: pytest.CaptureFixture[str]) -> None:
    members = new_members(1)
    _, client = await start(stack, tmp_path / "old", members, "Broadcast")
    index = await client.update(b"data")
    copy, new = tmp_path / "copy", tmp_path / "new"
    # The command has a loop of its own, the peer lives in this one.
    await asyncio.to_thread(raft_backup.backup, str(copy), members[0][1], secret_file=secret_in(tmp_path))
    assert capsys.readouterr().out == f"{copy}: everything up to entry {index}, machine Broadcast\n"
    raft_backup.restore(str(copy), new, "1", "1=tcp://127.0.0.1:9")
    told = capsys.readouterr()
    assert f"entries {RESTORE_STEP + 1} to {RESTORE_STEP + index + 1}" in told.out
    assert f"everything up to entry {index} of the copy" in told.err


def test_the_secret_comes_from_one_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--secret-file") as refused:
        raft_backup.backup(str(tmp_path / "copy"), free_url())
    assert refused.value.code == ExitCode.USAGE


def test_a_cluster_that_does_not_answer_is_an_error_for_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "SILENCE_S", 0.2)
    with pytest.raises(UserError, match=r"127\.0\.0\.1") as refused:
        raft_backup.backup(str(tmp_path / "copy"), free_url(), secret_file=secret_in(tmp_path))
    assert refused.value.code == ExitCode.TIME_OUT
    assert not (tmp_path / "copy").exists()


async def test_a_cluster_that_falls_silent_ends_the_copy_and_the_next_one_goes_on(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "SILENCE_S", 0.2)
    members = new_members(1)
    [server], client = await start(stack, tmp_path / "old", members, "Broadcast")
    await client.update(b"data")
    await back_up(tmp_path / "copy", [members[0][1]], IDENT)
    await client.update(b"not copied")
    committed = backup._committed

    async def then_gone(client: RaftClient) -> int:
        index = await committed(client)
        await server.stop()
        return index

    monkeypatch.setattr(backup, "_committed", then_gone)
    with pytest.raises(Unreachable, match="no answer within"):
        await back_up(tmp_path / "copy", [members[0][1]], IDENT)
    with pytest.raises(StoreError, match="interrupted"):  # half of a copy is none, though the one before was whole
        restore(tmp_path / "copy", tmp_path / "new", "1", members)
    monkeypatch.undo()
    _, client = await start(stack, tmp_path / "old", members, "Broadcast")
    index = await client.update(b"more")
    assert (await back_up(tmp_path / "copy", [members[0][1]], IDENT)).index == index


# --- the manifest -----------------------------------------------------------------------------------------------------


async def copied(stack: AsyncExitStack, folder: Path, machine: str = "KeyValue") -> tuple[Path, Backup]:
    """Back a cluster up that has two keys, or two entries."""
    members = new_members(1)
    _, client = await start(stack, folder / "old", members, machine)
    for data in (b"one", b"two"):
        await (client.update(data) if machine == "Broadcast" else client.kv.put(data, data))
    return folder / "copy", await back_up(folder / "copy", [members[0][1]], IDENT)


def checks(folder: Path) -> None:
    raft_offline.verify(str(folder))


async def test_a_backup_says_what_it_holds(
    tmp_path: Path, stack: AsyncExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, made = await copied(stack, tmp_path)
    manifest = manifest_of(copy)
    assert manifest is not None
    assert (manifest.machine, manifest.index) == (made.machine, made.index)
    with StoredLog(copy) as stored:
        assert manifest.term == stored.recovered.term
        assert bytes.fromhex(manifest.state) == state_digest(stored, made.index)
    assert {"store.json", "synced", "log/0000000000000001.seg"} <= set(manifest.files)
    checks(copy)
    told = capsys.readouterr().out
    assert f"backup of everything up to entry {made.index} of term {manifest.term}" in told
    assert f"digest of the state at entry {made.index}: {manifest.state}" in told
    assert told.endswith("good\n")


async def test_a_copy_of_a_backup_that_was_interrupted_is_neither_good_nor_restored(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    copy, _ = await copied(stack, tmp_path)
    [segment] = (copy / "log").iterdir()
    segment.write_bytes(segment.read_bytes()[:40])
    (copy / "synced").unlink()
    with pytest.raises(UserError, match=r"synced is missing; log/\w+\.seg has 40 bytes"):
        checks(copy)
    with pytest.raises(StoreError, match="synced is missing"):
        restore(copy, tmp_path / "new", "1", new_members(1))
    (copy / NAME).unlink()
    with pytest.raises(UserError, match="interrupted"):
        checks(copy)
    with pytest.raises(StoreError, match="interrupted"):
        restore(copy, tmp_path / "new", "1", new_members(1))
    with pytest.raises(StoreError, match="nothing to restore"):
        restore(copy, tmp_path / "new", "1", new_members(1), unverified=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["store.json", "synced", NAME])
async def test_no_bit_of_a_backup_flips_unseen(tmp_path: Path, stack: AsyncExitStack, name: str) -> None:
    copy, _ = await copied(stack, tmp_path)
    whole = (copy / name).read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        (copy / name).write_bytes(changed)
        with pytest.raises(UserError, match=name):
            checks(copy)
    (copy / name).write_bytes(whole)
    checks(copy)


@pytest.mark.parametrize("synced", [False, True])
async def test_the_next_run_makes_a_damaged_copy_whole(tmp_path: Path, stack: AsyncExitStack, synced: bool) -> None:
    members = new_members(1)
    _, client = await start(stack, tmp_path / "old", members, "KeyValue")
    await client.kv.put(b"one", b"1")
    copy, urls = tmp_path / "copy", [members[0][1]]
    await back_up(copy, urls, IDENT)
    [segment] = (copy / "log").iterdir()
    segment.write_bytes(segment.read_bytes()[:40])
    if not synced:
        (copy / "synced").unlink()
    made = await back_up(copy, urls, IDENT)
    checks(copy)
    moved = restore(copy, tmp_path / "new", "1", new_members(1))
    assert moved.last == made.index + RESTORE_STEP + 1


async def test_what_was_added_to_a_backup_does_not_count(tmp_path: Path, stack: AsyncExitStack) -> None:
    copy, _ = await copied(stack, tmp_path)
    (copy / "log" / "00000000000000ff.seg").write_bytes(b"of another")
    with pytest.raises(UserError, match=r"log/00000000000000ff\.seg does not belong to it"):
        checks(copy)


async def test_a_backup_of_an_older_version_is_restored_on_request(
    tmp_path: Path, stack: AsyncExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, made = await copied(stack, tmp_path)
    (copy / NAME).unlink()
    with pytest.raises(UserError, match="an older version made it"):
        raft_backup.restore(str(copy), tmp_path / "new", "1", "1=tcp://127.0.0.1:9")
    raft_backup.restore(str(copy), tmp_path / "new", "1", "1=tcp://127.0.0.1:9", unverified=True)
    told = capsys.readouterr().err
    assert f"everything up to entry {made.index} of the copy" in told
    assert "not compared with a manifest" in told


def test_a_changed_store_id_is_an_error_for_the_user(tmp_path: Path) -> None:
    path = store(tmp_path / "1")
    found = json.loads((path / "store.json").read_text())
    changed = ("1" if found["store_id"][0] == "0" else "0") + found["store_id"][1:]
    (path / "store.json").write_text(json.dumps({**found, "store_id": changed}))
    with pytest.raises(UserError, match=r"belongs to store .* store\.json is damaged"):
        checks(path)
