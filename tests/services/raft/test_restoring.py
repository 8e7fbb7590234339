"""A cluster made of a backup goes on where the old one cannot have been (docs/specs/raft.md 13.5)."""

import shutil
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from pavane.raft.backup import back_up
from pavane.raft.client import RaftClient, Reset, prefix_range
from pavane.raft.client.forward import forward_only
from pavane.raft.client.key_calls import Changes, Outcome
from pavane.raft.errors import Code, Refused, Unreachable, WentBack
from pavane.raft.machines.commands import Compare, Put, Relation, Target
from pavane.raft.machines.keyvalue import NODE_VERSION_STEP
from pavane.raft.offline.compacting import compact, state_digest
from pavane.raft.offline.restoring import RESTORE_STEP, restore
from pavane.raft.offline.store import StoredLog
from pavane.raft.state.configuration import Members
from pavane.raft.storage import StoreError
from pavane.raft.wire.frames import UINT_MAX
from pavane.waltz.wire.blobs import PARTITION_ASSIGNMENT, PartitionAssignment
from tests.services.raft.peers import IDENT
from tests.services.raft.test_backup import NEW_IDENT, new_members, start
from tests.services.raft.test_compactor import Sums
from tests.services.raft.test_compactor import running as compacting
from tests.services.raft.test_offline import store


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


class Listening(Sums):
    """Keeps what was said to stand for the entries before."""

    def __init__(self) -> None:
        super().__init__()
        self.previous: list[bytes | None] = []

    def compact(self, entries: Iterable[tuple[int, memoryview]], previous: bytes | None) -> bytes:
        self.previous.append(previous)
        return super().compact(entries, previous)


class Clusters:
    """One that is copied and then goes on, and the one that is made of its copy."""

    def __init__(self, stack: AsyncExitStack, folder: Path, machine: str) -> None:
        self._stack = stack
        self._machine = machine
        self.folder = folder
        self.members = new_members(1)

    async def old(self) -> RaftClient:
        """Start the one that is copied."""
        _, client = await start(self._stack, self.folder / "old", self.members, self._machine)
        return client

    async def copy(self) -> int:
        """Copy it, and return the last index of the copy."""
        return (await back_up(self.folder / "copy", [self.members[0][1]], IDENT)).index

    async def new(self, count: int = 1, beyond: int = 0, *, unverified: bool = False) -> RaftClient:
        """Start the one that is made of the copy."""
        members: Members = new_members(count)
        for peer, _ in members:
            restore(
                self.folder / "copy",
                self.folder / f"new {beyond}" / peer,
                peer,
                members,
                beyond=beyond,
                unverified=unverified,
            )
        _, client = await start(self._stack, self.folder / f"new {beyond}", members, self._machine, NEW_IDENT)
        return client


async def test_no_revision_and_no_token_is_given_out_twice(tmp_path: Path, stack: AsyncExitStack) -> None:
    clusters = Clusters(stack, tmp_path, "KeyValue")
    old = await clusters.old()
    await old.kv.put(b"key", b"copied")
    copied = await old.kv.get(b"key")
    assert copied is not None
    last = await clusters.copy()
    async with old.kv.lease(60.0) as lease:
        lost_token = await old.kv.lock(b"lock", lease.id)
        lost = await old.kv.put(b"key", b"lost")

        new = await clusters.new(3)
        found = await new.kv.get(b"key")
        assert found is not None
        assert (found.value, found.create_revision, found.mod_revision) == (b"copied", *2 * (copied.mod_revision,))
        async with new.kv.lease(60.0) as other:
            token = await new.kv.lock(b"lock", other.id)
            assert last < lost_token < lost < last + RESTORE_STEP < other.id < token
            # What the old cluster gave out after the copy is met by nothing here.
            lease_alive = Compare(Target.LEASE_ALIVE, Relation.EQUAL, b"", lease.id)
            assert not (await new.kv.txn([lease_alive])).succeeded
    again = await new.kv.put(b"key", b"new")
    assert again > token
    for target, of_lost in ((Target.MOD_REVISION, lost), (Target.VERSION, 2)):
        assert not (await new.kv.txn([Compare(target, Relation.EQUAL, b"key", of_lost)], [Put(b"key", b"!")])).succeeded


async def test_the_members_begin_with_the_same_state(tmp_path: Path, stack: AsyncExitStack) -> None:
    clusters = Clusters(stack, tmp_path, "Tree")
    old = await clusters.old()
    await old.kv.put(b"key", b"value")
    await old.tree.create(b"/node", b"data")
    last = await clusters.copy()
    members = new_members(3)
    digests = set()
    for peer, _ in members:
        moved = restore(tmp_path / "copy", tmp_path / peer, peer, members)
        assert (moved.first, moved.last) == (last + RESTORE_STEP + 1,) * 2
        assert moved.term > RESTORE_STEP
        with StoredLog(tmp_path / peer) as stored:
            assert stored.faults() == []
            digests.add(state_digest(stored, moved.last))
    assert len(digests) == 1


async def test_a_watcher_of_the_old_cluster_is_told_that_it_missed_something(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    clusters = Clusters(stack, tmp_path, "KeyValue")
    old = await clusters.old()
    seen = await old.kv.put(b"key", b"copied")
    await clusters.copy()
    lost = await old.kv.put(b"key", b"lost")
    new = await clusters.new()
    for revision in (seen, lost):
        async with aclosing(new.kv.watch(*prefix_range(b"k"), from_=revision + 1)) as changes:
            reset = await anext(changes)
            assert isinstance(reset, Reset)
            assert [item.value for item in reset.items] == [b"copied"]
            written = await new.kv.put(b"key", b"new")
            change = await anext(changes)
            assert change.revision == written > reset.revision
        await new.kv.put(b"key", b"copied")


async def test_versions_of_nodes_are_not_given_out_twice(tmp_path: Path, stack: AsyncExitStack) -> None:
    clusters = Clusters(stack, tmp_path, "Tree")
    old = await clusters.old()
    await old.tree.create(b"/node", b"copied")
    await old.tree.create(b"/node/child_", sequential=True)
    await clusters.copy()
    lost = await old.tree.set(b"/node", b"lost")
    new = await clusters.new()
    await new.tree.set(b"/node", b"copied")
    with pytest.raises(Refused) as refused:
        await new.tree.set(b"/node", b"as if nothing had been", version=lost)
    assert refused.value.code == Code.BAD_VERSION
    node = await new.tree.get(b"/node")
    assert node is not None
    assert node.data == b"copied"
    assert await new.tree.set(b"/node", b"new", version=node.version) == node.version + 1 > NODE_VERSION_STEP
    names, cversion = await new.tree.children(b"/node")
    assert names == [b"child_0000000000"]
    assert cversion > NODE_VERSION_STEP
    # The log's registry writes it in 32 bits, after many a restore.
    assert PARTITION_ASSIGNMENT.encode(PartitionAssignment(cversion + 100 * NODE_VERSION_STEP, 1, ()))
    assert await new.tree.create(b"/node/child_", sequential=True) == b"/node/child_0000000001"


async def test_a_log_behind_a_snapshot_goes_on_later(tmp_path: Path, stack: AsyncExitStack) -> None:
    clusters = Clusters(stack, tmp_path, "Broadcast")
    old = await clusters.old()
    reqids = [old.new_reqid() for _ in range(3)]
    indices = [await old.update(b"%d" % at, reqid=reqid) for at, reqid in enumerate(reqids)]
    last = await clusters.copy()
    compact(tmp_path / "copy", indices[1], b"0 and 1")
    new = await clusters.new(unverified=True)
    snapshot = await new.snapshot()
    assert snapshot is not None
    assert (snapshot.index, bytes(snapshot.data)) == (indices[1] + RESTORE_STEP, b"0 and 1")
    assert [await new.update(b"%d" % at, reqid=reqid) for at, reqid in enumerate(reqids)] == [
        index + RESTORE_STEP for index in indices
    ]
    assert await new.update(b"new") > last + RESTORE_STEP


async def test_the_compactor_of_a_restored_log_begins_with_nothing(tmp_path: Path, stack: AsyncExitStack) -> None:
    clusters = Clusters(stack, tmp_path, "Broadcast")
    old = await clusters.old()
    for number in range(3):
        await old.update(b"%d" % number)
    await clusters.copy()
    machine = Listening()
    restore(tmp_path / "copy", tmp_path / "new", "1", new_members(1))
    async with compacting(tmp_path / "new", machine) as (server, client):
        written = 3
        first = server.status().snapshot
        while server.status().snapshot == first:
            await client.update(b"%d" % written)
            written += 1
        found = await client.snapshot()
    assert found is not None
    assert machine.previous == [None]


async def test_a_backup_is_restored_twice_without_giving_out_an_index_twice(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    clusters = Clusters(stack, tmp_path, "KeyValue")
    await (await clusters.old()).kv.put(b"key", b"value")
    await clusters.copy()
    first = await (await clusters.new()).kv.put(b"key", b"first")
    second = await (await clusters.new(beyond=first)).kv.put(b"key", b"second")
    assert second > first + RESTORE_STEP


async def test_a_watcher_is_told_that_a_copied_folder_took_the_place_of_the_data_that_it_saw(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    members = new_members(1)
    [server], client = await start(stack, tmp_path / "data", members, "KeyValue")
    await client.kv.put(b"key", b"copied")
    await server.stop()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    [server], _ = await start(stack, tmp_path / "data", members, "KeyValue")
    seen = 0
    for _ in range(5):
        seen = await client.kv.put(b"key", b"lost")
    async with (
        aclosing(client.kv.watch(b"key", from_=seen)) as changes,
        aclosing(client.kv.watch(b"key", from_=seen + 1)) as waiting,
    ):
        assert (await anext(changes)).revision == seen
        await server.stop()
        await start(stack, tmp_path / "copy", members, "KeyValue")
        for watch in (changes, waiting):
            reset = await anext(watch)
            assert isinstance(reset, Reset)
            assert reset.revision < seen
            assert [item.value for item in reset.items] == [b"copied"]
        written = await client.kv.put(b"key", b"new")
        for watch in (changes, waiting):
            change = await anext(watch)
            assert written == change.revision <= seen


async def test_a_watcher_of_a_node_is_told_too(tmp_path: Path, stack: AsyncExitStack) -> None:
    _, client = await start(stack, tmp_path, new_members(1), "Tree")
    created = (await client.kv.put(b"key", b"")) + 1
    await client.tree.create(b"/node")
    async with aclosing(client.tree.watch(b"/node", from_=created + 100)) as changes:
        reset = await anext(changes)
        assert isinstance(reset, Reset)
        assert reset.revision < created + 99


@pytest.mark.parametrize(("newest", "expected"), [(9, [9, 10]), (8, None), (None, [9, 10])])
async def test_a_peer_that_lags_is_waited_for(newest: int | None, expected: list[int] | None) -> None:
    """What it tells is no sign of an older time as long as the leader has what was seen."""
    asked = 0

    async def changes() -> AsyncGenerator[Changes, None]:
        for revision in (7, 8, 9, 10):
            yield Changes(revision)

    async def read() -> Outcome:
        nonlocal asked
        asked += 1
        if newest is None:
            raise Unreachable(["tcp://127.0.0.1:9"], 1.0)
        return Outcome(newest, [])

    if expected is None:
        with pytest.raises(WentBack, match="entry 9 was seen and the cluster is at 8"):
            [change async for change in forward_only(changes(), 10, read)]
        return
    assert [change.revision async for change in forward_only(changes(), 10, read)] == expected
    assert asked == 2


def test_indices_end_somewhere(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"no indices are left .* {UINT_MAX}"):
        restore(store(tmp_path / "copy"), tmp_path / "new", "1", new_members(1), beyond=UINT_MAX - 5, unverified=True)
    assert not (tmp_path / "new").exists()
