"""A peer's folder while the peer is down: looked at, moved, mended (docs/specs/raft.md 13.6, 17)."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.offline.js_folder import JsFolder, JsState, write_folder
from pavane.raft.offline.mend import carry_out, recover, repair
from pavane.raft.offline.moving import export_js, import_js
from pavane.raft.offline.store import StoredLog
from pavane.raft.offline.writing import StoreWriter
from pavane.raft.server import RaftServer
from pavane.raft.state.commands import (
    RECOVERING_FLOOR,
    Append,
    HardState,
    Note,
    Recovered,
    SnapshotSave,
    StoreCommand,
    Truncate,
)
from pavane.raft.state.configuration import Configuration, Members
from pavane.raft.state.dedup import DedupTable
from pavane.raft.state.roles import Role
from pavane.raft.storage import Identity, RaftStorage, StoreError, StoreLocked
from pavane.raft.storage.js_files import JsFileError, JsSnapshot
from pavane.raft.wire.entry import EntryType, bootstrap_entry, encode_entry, entry_data
from pavane.raft.wire.snapshot import DIGEST_BYTES, SnapshotMeta
from pavane.wal import DiskFolder
from tests.services.eventually import eventually
from tests.services.raft.peers import ELECTION_MAX_MS, ELECTION_MIN_MS, IDENT, free_url
from tests.services.raft.test_offline_js import ONE, TWO, left_behind

VOTING = (Role.LEADER, Role.FOLLOWER)
NOW_S = 1_800_000_000
IDENTITY = Identity("1", "Broadcast", "c")
MEMBERS: Members = (ONE, TWO, ("3", "tcp://127.0.0.1:18143"))


def entry(data: bytes, term: int = 1) -> bytes:
    return encode_entry(b"request-id12", EntryType.STATE, term, data)


def store(path: Path, *commands: StoreCommand, entries: int = 5) -> Path:
    """Make a store whose entry 1 names the members; ``commands`` follow ``entries`` of term 1."""
    made = (bootstrap_entry(MEMBERS), *(entry(b"%d" % number) for number in range(2, entries + 1)))
    with StoreWriter(path, IDENTITY) as writer:
        writer.execute([HardState(0, 1, "2"), Append(0, 1, made), Note(0, "commit", 4)])
        writer.execute([*commands, HardState(0, 1, "2")])
    return path


def started(path: Path) -> tuple[Recovered, list[bytes]]:
    """Return what a peer would start from, and its entries."""
    storage = RaftStorage(DiskFolder(path), IDENTITY)
    try:
        entries = storage.read(1, storage.last_index, 1 << 30)
        return storage.take_recovered(), [bytes(entry) for entry in entries]
    finally:
        storage.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change(path: Path, how: Callable[[bytearray], object]) -> None:
    [segment] = (path / "log").glob("*.seg")
    data = bytearray(segment.read_bytes())
    how(data)
    segment.write_bytes(data)


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_store_is_read_as_its_peer_would_read_it(tmp_path: Path) -> None:
    path = store(tmp_path / "1", Truncate(0, 3), Append(0, 4, (entry(b"other", 1), entry(b"more", 1))))
    expected, entries = started(path)
    with StoredLog(path) as stored:
        assert (stored.identity, stored.recovered, stored.damage) == (IDENTITY, expected, None)
        assert [(index, bytes(entry)) for index, entry in stored.entries()] == list(enumerate(entries, 1))
        assert [index for index, _ in stored.entries(4)] == [4, 5]
        assert stored.configuration == (1, Configuration(MEMBERS))
        assert stored.faults() == []


def test_looking_at_an_unfinished_last_write_changes_nothing(tmp_path: Path) -> None:
    path = store(tmp_path / "1")
    change(path, lambda data: data.extend(b"torn"))
    before = contents(path)
    with StoredLog(path) as stored:
        assert stored.damage is not None
        assert stored.damage.torn
        assert stored.faults() == []
        assert stored.recovered.last_index == 5
    assert contents(path) == before


def test_looking_at_damage_says_where_it_is_and_changes_nothing(tmp_path: Path) -> None:
    path = store(tmp_path / "1")
    with StoreWriter(path, IDENTITY) as writer:  # its mark says that what is there was synced
        writer.execute([Append(0, 6, (entry(b"six"),))])
        writer.execute([Append(0, 7, (entry(b"seven"),))])

    def flip(data: bytearray) -> None:
        data[data.index(b"six")] ^= 1

    change(path, flip)
    before = contents(path)
    with StoredLog(path) as stored:
        [fault] = stored.faults()
        assert "0000000000000001.seg is damaged at offset" in fault
        assert "behind 5" in fault
        assert [index for index, _ in stored.entries()] == [1, 2, 3, 4, 5]
    assert contents(path) == before


@pytest.mark.parametrize(
    ("commands", "words"),
    [
        ((Append(0, 6, (entry(b"x", 5), entry(b"y", 4))),), "terms fall"),
        ((Append(0, 6, (entry(b"x", 5),)),), "has term 5, the peer 1"),
        ((Append(0, 6, (encode_entry(bytes(12), EntryType.CONFIG, 1, b"\xc0"),)),), "entry 6 is to state"),
    ],
)
def test_a_log_that_no_peer_can_have_written_is_told(
    tmp_path: Path, commands: tuple[StoreCommand, ...], words: str
) -> None:
    with StoredLog(store(tmp_path / "1", *commands)) as stored:
        assert words in " ".join(stored.faults())


def test_a_damaged_snapshot_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    import_js(left_behind("compacted", tmp_path / "js"), tmp_path / "ours", IDENTITY, NOW_S)
    [file] = (tmp_path / "ours" / "snap").iterdir()
    file.write_bytes(file.read_bytes().replace(b"so far", b"so fat"))
    before = contents(tmp_path / "ours")
    with StoredLog(tmp_path / "ours") as stored:
        missing, snapshot = stored.faults()
        assert "fetches them again" in missing
        assert f"snapshot {file.name}: it does not match its digest" in snapshot
    assert contents(tmp_path / "ours") == before


def test_the_folder_of_a_running_peer_is_left_alone(tmp_path: Path) -> None:
    path = store(tmp_path / "1")
    with StoreWriter(path, IDENTITY), pytest.raises(StoreLocked):
        StoredLog(path)
    StoredLog(path).close()


def test_a_folder_without_a_store_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not the data folder"):
        StoredLog(tmp_path)
    assert contents(tmp_path) == {}


# --- moving ----------------------------------------------------------------------------------------------------------


def test_an_original_peers_folder_becomes_ours(tmp_path: Path) -> None:
    source = left_behind("members_changed", tmp_path / "js")
    moved = import_js(source, tmp_path / "ours", IDENTITY, NOW_S)
    recovered, entries = started(tmp_path / "ours")
    assert entries == [bytes(entry) for _, entry in JsFolder(source).entries()]
    assert (recovered.term, recovered.vote, recovered.vote_floor, recovered.commit) == (1, "", 0, 7)
    assert [index for index, _ in recovered.configurations] == [4, 5]
    assert (moved.first, moved.last, moved.configuration, moved.remarks) == (1, 7, Configuration((ONE, TWO)), ())


def js(path: Path, state: JsState, *entries: bytes) -> Path:
    path.mkdir()
    write_folder(path, state, JsSnapshot(0, 0, b""), enumerate(entries, 1))
    return path


def test_a_vote_is_kept_unless_the_log_knows_a_later_term(tmp_path: Path) -> None:
    for last_term, expected in ((5, (5, "2")), (6, (6, ""))):
        source = js(tmp_path / f"js{last_term}", JsState(term=5, vote="2", applied=9), entry(b"x", last_term))
        import_js(source, tmp_path / f"ours{last_term}", IDENTITY, NOW_S)
        recovered, _ = started(tmp_path / f"ours{last_term}")
        assert (recovered.term, recovered.vote) == expected
        assert recovered.commit == 1


def test_what_the_state_says_of_members_yields_to_the_log(tmp_path: Path) -> None:
    stated = encode_entry(b"request-id12", EntryType.CONFIG, 1, Configuration((ONE, TWO)).encode())
    source = js(tmp_path / "js", JsState(term=1, configuration=Configuration((ONE,)), configuration_index=1), stated)
    moved = import_js(source, tmp_path / "ours", IDENTITY, NOW_S)
    assert moved.configuration == Configuration((ONE, TWO))
    assert any("those of the entry count" in remark for remark in moved.remarks)


def test_a_log_without_a_configuration_needs_the_seed_list(tmp_path: Path) -> None:
    moved = import_js(js(tmp_path / "js", JsState(term=1), entry(b"x")), tmp_path / "ours", IDENTITY, NOW_S)
    assert any("--peers" in remark for remark in moved.remarks)


def test_an_original_peers_snapshot_is_taken_over_with_what_its_log_still_tells(tmp_path: Path) -> None:
    moved = import_js(left_behind("compacted", tmp_path / "js"), tmp_path / "ours", IDENTITY, NOW_S)
    assert (moved.first, moved.last, moved.configuration, moved.remarks) == (7, 8, Configuration((ONE, TWO)), ())
    with StoredLog(tmp_path / "ours") as stored:
        recovered, snapshot = stored.recovered, stored.recovered.snapshot
        assert stored.faults() == []
        assert snapshot is not None
        assert (snapshot.index, snapshot.term, recovered.first_index, recovered.commit) == (6, 1, 7, 8)
        assert bytes(stored.snapshot_file()[-DIGEST_BYTES - 12 : -DIGEST_BYTES]) == b"state so far"
        assert [bytes(entry_data(entry)) for _, entry in stored.entries()] == [b"last", b"behind it"]
    assert Configuration.decode(snapshot.meta.configuration) == Configuration((ONE, TWO))
    assert snapshot.meta.configuration_index == 5
    table = DedupTable()
    table.restore(snapshot.meta.ids, snapshot.meta.floor)
    ids = [f"6b0228b128c448025c954e7{digit}" for digit in "4567"]
    assert [table.index_of(bytes.fromhex(reqid)) for reqid in ids] == [1, 2, 3, 4]
    assert table.floor == 0


def test_ids_of_an_original_peer_whose_log_is_gone_are_refused_by_their_age(tmp_path: Path) -> None:
    source = left_behind("compacted", tmp_path / "js")
    (source / "log/00000/00/00/00000000000001.rlog").unlink()
    [remark] = import_js(source, tmp_path / "ours", IDENTITY, NOW_S).remarks
    with StoredLog(tmp_path / "ours") as stored:
        snapshot = stored.recovered.snapshot
    assert snapshot is not None
    assert snapshot.meta.floor == NOW_S - (8 * 3600 - 15 * 60)
    assert "2027-01-15 00:15:00 UTC" in remark


def test_a_snapshot_goes_back_with_the_entries_that_we_still_have(tmp_path: Path) -> None:
    import_js(left_behind("compacted", tmp_path / "js"), tmp_path / "ours", IDENTITY, NOW_S)
    export_js(tmp_path / "ours", tmp_path / "back")
    old, new = JsFolder(tmp_path / "js"), JsFolder(tmp_path / "back")
    assert (new.snapshot.index, new.snapshot.term, bytes(new.snapshot.data)) == (6, 1, b"state so far")
    assert [bytes(entry) for _, entry in new.entries()] == [bytes(entry) for _, entry in old.entries()]
    assert (new.state.configuration, new.state.configuration_index, new.state.applied) == (
        old.state.configuration,
        5,
        8,
    )
    # One that the snapshot covers is kept for its request id.
    path = store(tmp_path / "1")
    with StoreWriter(path, IDENTITY) as writer:
        saved = writer.storage.snapshots.begin(SnapshotMeta(b"", 0, "Broadcast", 1, 0, b"").encode())
        saved.finish(3, 1)
        writer.execute([SnapshotSave(0, 3, 1)])
    export_js(path, tmp_path / "covered")
    covered = JsFolder(tmp_path / "covered")
    assert [index for index, _ in covered.covered_entries()] == [1, 2, 3]
    assert [index for index, _ in covered.entries()] == [4, 5]


def test_falling_terms_are_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    source = js(tmp_path / "js", JsState(term=9), entry(b"x", 3), entry(b"y", 2))
    with pytest.raises(StoreError, match="entry 2 has term 2 behind one of term 3"):
        import_js(source, tmp_path / "ours", IDENTITY, NOW_S)
    assert [path.name for path in tmp_path.iterdir()] == ["js"]


def test_a_damaged_file_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    source = js(tmp_path / "js", JsState(term=1), entry(b"x"))
    [file] = source.rglob("*.rlog")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(JsFileError):
        import_js(source, tmp_path / "ours", IDENTITY, NOW_S)
    assert [path.name for path in tmp_path.iterdir()] == ["js"]


def test_a_folder_without_the_vote_is_refused(tmp_path: Path) -> None:
    source = js(tmp_path / "js", JsState(term=1), entry(b"x"))
    (source / "raft.pers").unlink()
    with pytest.raises(StoreError, match="vote twice"):
        import_js(source, tmp_path / "ours", IDENTITY, NOW_S)


def test_the_present_folder_may_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = js(tmp_path / "js", JsState(term=1), entry(b"x"))
    (tmp_path / "ours").mkdir()
    monkeypatch.chdir(tmp_path / "ours")
    import_js(source, Path(), IDENTITY, NOW_S)
    assert started(tmp_path / "ours")[1] == [entry(b"x")]


def test_no_folder_is_overwritten_but_what_a_killed_run_left_is(tmp_path: Path) -> None:
    source = js(tmp_path / "js", JsState(term=1), entry(b"x"))
    store(tmp_path / "ours")
    with pytest.raises(StoreError, match="not empty"):
        import_js(source, tmp_path / "ours", IDENTITY, NOW_S)
    assert len(started(tmp_path / "ours")[1]) == 5
    (tmp_path / ".new.unfinished").mkdir()
    (tmp_path / ".new.unfinished" / "store.json").write_text("half")
    import_js(source, tmp_path / "new", IDENTITY, NOW_S)
    assert started(tmp_path / "new")[1] == [entry(b"x")]
    assert not (tmp_path / ".new.unfinished").exists()


def test_our_folder_becomes_an_originals(tmp_path: Path) -> None:
    path = store(tmp_path / "1")
    moved = export_js(path, tmp_path / "js")
    folder = JsFolder(tmp_path / "js")
    assert [bytes(entry) for _, entry in folder.entries()] == started(path)[1]
    assert folder.state == JsState(1, "2", Configuration(MEMBERS), 1, bytes(12), 4)
    assert (moved.first, moved.last, moved.configuration) == (1, 5, Configuration(MEMBERS))


def test_an_exported_peer_gives_no_vote_that_it_must_not_give(tmp_path: Path) -> None:
    path = store(tmp_path / "1")
    with StoreWriter(path, IDENTITY) as writer:
        writer.execute([HardState(0, 7, "", 7)])
    export_js(path, tmp_path / "js")
    assert (JsFolder(tmp_path / "js").state.term, JsFolder(tmp_path / "js").state.vote) == (7, "1")


def test_a_peer_that_must_not_vote_is_not_exported(tmp_path: Path) -> None:
    path = store(tmp_path / "1")
    with StoreWriter(path, IDENTITY) as writer:
        writer.execute([HardState(0, 1, "", RECOVERING_FLOOR)])
    with pytest.raises(StoreError, match="would vote"):
        export_js(path, tmp_path / "js")


def test_a_configuration_that_is_none_is_not_exported(tmp_path: Path) -> None:
    path = store(tmp_path / "1", Append(0, 6, (encode_entry(bytes(12), EntryType.CONFIG, 1, b"\xc0"),)))
    with pytest.raises(StoreError, match="entry 6 is to state"):
        export_js(path, tmp_path / "js")
    assert not (tmp_path / "js").exists()


def test_members_that_an_original_peer_cannot_reach_are_not_exported(tmp_path: Path) -> None:
    named = Configuration((ONE, ("2", "tcp://peer-two:8047")))
    path = store(tmp_path / "1", Append(0, 6, (encode_entry(bytes(12), EntryType.CONFIG, 1, named.encode()),)))
    with pytest.raises(StoreError, match="tcp://peer-two:8047"):
        export_js(path, tmp_path / "js")
    assert not (tmp_path / "js").exists()


# --- mending ----------------------------------------------------------------------------------------------------------


def mended(path: Path, how: Callable[[StoredLog], tuple[StoreCommand, ...]]) -> None:
    with StoredLog(path) as stored:
        identity, commands = stored.identity, how(stored)
    carry_out(path, identity, commands)


@pytest.mark.parametrize(("after", "commit"), [(4, 4), (3, 3), (0, 0)])
def test_a_repaired_log_is_shorter_and_its_peer_does_not_vote(tmp_path: Path, after: int, commit: int) -> None:
    path = store(tmp_path / "1")
    before = started(path)[1]
    mended(path, lambda stored: repair(stored, after))
    recovered, entries = started(path)
    assert entries == before[:after]
    assert (recovered.vote_floor, recovered.commit, recovered.notes["commit"]) == (RECOVERING_FLOOR, commit, commit)
    assert (recovered.term, recovered.vote) == (1, "2")


@pytest.mark.parametrize("after", [5, 6])
def test_there_must_be_something_to_drop(tmp_path: Path, after: int) -> None:
    with StoredLog(store(tmp_path / "1")) as stored, pytest.raises(StoreError, match="nothing to drop"):
        repair(stored, after)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ((), "empty"),
        ((TWO,), "folder of '1'"),
        (MEMBERS, "name it alone"),
        ((("1", "udp://127.0.0.1:1"),), "tcp://"),
    ],
)
def test_only_the_survivor_itself_goes_on(tmp_path: Path, members: Members, words: str) -> None:
    with StoredLog(store(tmp_path / "1")) as stored, pytest.raises(StoreError, match=words):
        recover(stored, members)


def server_at(path: Path, peer: str, url: str, peers: Members) -> RaftServer:
    config = Config(peer, IDENT, url, peers=peers, election_min=ELECTION_MIN_MS, election_max=ELECTION_MAX_MS)
    return RaftServer(config, data=path, bind=url, cluster_id="c")


@pytest.mark.parametrize("floor", [0, RECOVERING_FLOOR])
async def test_a_survivor_of_a_lost_majority_goes_on_with_what_it_has(tmp_path: Path, floor: int) -> None:
    members = tuple((peer, free_url()) for peer in "123")
    path = store(tmp_path / "1")
    with StoreWriter(path, IDENTITY) as writer:
        writer.execute([HardState(0, 3, "2", floor)])
    mended(path, lambda stored: recover(stored, members[:1]))
    async with AsyncExitStack() as stack:
        # The seed list of old does not matter any more; the former members come again with empty folders.
        servers = [server_at(path, *members[0], MEMBERS)]
        servers += [server_at(tmp_path / peer, peer, url, members[:1]) for peer, url in members[1:]]
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
        client = await stack.enter_async_context(RaftClient([members[0][1]], IDENT))
        assert (await client.configuration()).peers == members[:1]
        await client.update(b"new")
        assert servers[0].status().term > 3
        await eventually(lambda: len({server.status().applied for server in servers}) == 1)
        await client.change_members(members)
        await client.update(b"newer")
        await eventually(lambda: all(server.status().role in VOTING for server in servers))
        await eventually(lambda: len({server.status().applied for server in servers}) == 1)
        read = [bytes(entry.data) async for entry in client.entries() if entry.type == EntryType.STATE]
        assert read == [b"2", b"3", b"4", b"5", b"new", b"newer"]
