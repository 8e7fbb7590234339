"""A snapshot taken while the peer is down, and the log in front of it given up (docs/specs/raft.md 9.1, 17)."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient, prefix_range
from pavane.raft.config import Config
from pavane.raft.offline.compacting import compact
from pavane.raft.offline.store import StoredLog
from pavane.raft.offline.writing import StoreWriter
from pavane.raft.server import RaftServer
from pavane.raft.state.commands import Append, HardState, Note
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.dedup import DedupTable
from pavane.raft.storage import StoreError
from pavane.raft.wire.frames import REQID_BYTES
from pavane.raft.wire.snapshot import SnapshotHead
from pavane_cli.commands import raft_offline
from pavane_cli.failures import UserError
from tests.services.eventually import eventually
from tests.services.raft.peers import free_urls
from tests.services.raft.test_backup import new_members, start
from tests.services.raft.test_client_cluster import IDENT
from tests.services.raft.test_offline import IDENTITY, MEMBERS, entry, store


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def test_the_applications_data_stand_for_the_entries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = store(tmp_path / "1")
    (tmp_path / "data").write_bytes(b"all of it")
    raft_offline.compact(path, 3, tmp_path / "data")
    assert capsys.readouterr().out == f"{path}: snapshot up to entry 3\n"
    with StoredLog(path) as stored:
        assert stored.faults() == []
        snapshot, file = stored.recovered.snapshot, stored.snapshot_file()
        head = SnapshotHead.decode(file)
        assert bytes(file[head.data_offset :][: head.data_bytes]) == b"all of it"
        assert [index for index, _ in stored.entries(4)] == [4, 5]
        assert stored.configuration == (1, Configuration(MEMBERS))
    assert snapshot is not None
    assert (snapshot.index, snapshot.term, snapshot.meta.configuration_index) == (3, 1, 1)
    table = DedupTable()
    table.restore(snapshot.meta.ids, snapshot.meta.floor)
    assert table.index_of(entry(b"x")[:REQID_BYTES]) == 3


@pytest.mark.parametrize(
    ("index", "data", "words"),
    [(5, b"x", "from 1 to 4, the last one known committed"), (3, None, "needs data"), (None, None, "needs data")],
)
def test_what_cannot_be_compacted_is_left(tmp_path: Path, index: int | None, data: bytes | None, words: str) -> None:
    path = store(tmp_path / "1")
    with pytest.raises(StoreError, match=words):
        compact(path, index, data)
    with StoredLog(path) as stored:
        assert stored.recovered.snapshot is None


def test_whole_segments_in_front_of_the_snapshot_go(tmp_path: Path) -> None:
    path = store(tmp_path / "1")
    with StoreWriter(path, IDENTITY) as writer:
        for first in range(6, 14):
            writer.execute([Append(0, first, (entry(bytes(10 << 20)),))])
        writer.execute([Note(0, "commit", 13), Append(0, 14, (entry(b"last"),))])
    before = sorted(file.name for file in (path / "log").iterdir())
    assert len(before) == 2
    compact(path, 13, b"x")
    assert sorted(file.name for file in (path / "log").iterdir()) == before[1:]
    with StoredLog(path) as stored:
        assert stored.faults() == []
        assert (stored.recovered.last_index, [index for index, _ in stored.entries(14)]) == (14, [14])
    with pytest.raises(StoreError, match="no entry behind 13 is known to be committed"):
        compact(path, 13, b"x")


async def test_keys_are_there_after_two_snapshots(tmp_path: Path, stack: AsyncExitStack) -> None:
    members = new_members(1)
    async with AsyncExitStack() as life:
        _, client = await start(life, tmp_path / "old", members, "KeyValue")
        for number in range(9):
            await client.kv.put(b"key %d" % number, b"value")
    with StoredLog(tmp_path / "old" / "1") as stored:
        entries = [bytes(entry) for _, entry in stored.entries()]
        identity = stored.identity
    path = tmp_path / "new" / "1"
    for covered in (4, 7):
        with StoreWriter(path, identity) as writer:
            begun = writer.storage.last_index
            writer.execute([Append(0, begun + 1, tuple(entries[begun : covered + 1])), Note(0, "commit", covered)])
            writer.execute([HardState(0, 1, "")])
        assert compact(path) == covered
    with pytest.raises(StoreError, match="has data"):
        compact(path, 8, b"x")
    with StoredLog(path) as stored:
        assert stored.faults() == []
        assert stored.recovered.snapshot is not None
        assert (stored.recovered.snapshot.index, stored.recovered.snapshot.meta.machine) == (7, "KeyValue")
    _, client = await start(stack, tmp_path / "new", members, "KeyValue")
    found = [item.key for item in (await client.kv.list(*prefix_range(b"key"))).items]
    assert found == [b"key %d" % number for number in range(8)]


async def test_members_that_hold_the_same_have_the_same_digest(
    tmp_path: Path, stack: AsyncExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    members = tuple(zip("12", free_urls(2), strict=True))
    servers = [
        RaftServer(
            Config(id=name, ident=IDENT, url=url, peers=members, machine="Tree", election_min=300, election_max=600),
            data=tmp_path / name,
            bind=url,
        )
        for name, url in members
    ]
    for server in servers:
        await server.start()
        stack.push_async_callback(server.stop)
    async with RaftClient([url for _, url in members], IDENT) as client:
        for number in range(5):
            await client.kv.put(b"k%d" % number, b"v")
        await client.tree.create(b"/n", b"d")
        last = (await client.kv.range(b"k0")).revision
    await eventually(lambda: all(server.status().applied >= last for server in servers))
    for server in servers:
        await server.stop()

    def digest(name: str, at: int) -> str:
        raft_offline.verify(str(tmp_path / name), at)
        [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("digest")]
        return line

    assert digest("1", last) == digest("2", last)
    assert digest("2", last - 1).split()[-1] != digest("2", last).split()[-1]
    before = digest("1", last)
    raft_offline.compact(tmp_path / "1", last, None)
    assert digest("1", last) == before
    with pytest.raises(UserError, match="no state at 1: known are those from"):
        raft_offline.verify(str(tmp_path / "1"), 1)
