"""``client.kv`` and ``client.tree`` against real peers over sockets (docs/specs/raft.md 12.7)."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest

from pavane.raft.client import Changes, Item, Keys, RaftClient, Reset, TreeKeys, guard, keys, prefix_range
from pavane.raft.client import client as client_module
from pavane.raft.config import Config
from pavane.raft.errors import Behind, Code, Refused, Unreachable, Unsupported
from pavane.raft.machines import limits
from pavane.raft.machines.commands import (
    END_OF_KEYS,
    Compare,
    Create,
    LeaseGrant,
    LeaseRevoke,
    Put,
    Range,
    Relation,
    Target,
)
from pavane.raft.machines.history import Happened
from pavane.raft.server import RaftServer
from pavane.raft.state.roles import Role
from tests.services.eventually import eventually
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT


class Cluster:
    """Peers with the machine Tree, and a client."""

    def __init__(self, folder: Path, stack: AsyncExitStack, names: str) -> None:
        self.peers = tuple(zip(names, free_urls(len(names)), strict=True))
        self.servers: dict[str, RaftServer] = {}
        self._folder = folder
        self._stack = stack

    async def start(self, name: str, machine: str = "Tree") -> None:
        url = dict(self.peers)[name]
        config = Config(
            id=name, ident=IDENT, url=url, peers=self.peers, machine=machine, election_min=300, election_max=600
        )
        server = RaftServer(config, data=self._folder / name, bind=url)
        await server.start()
        self._stack.push_async_callback(server.stop)
        self.servers[name] = server

    def leader(self) -> str:
        return next(name for name, server in self.servers.items() if server.status().role is Role.LEADER)

    async def stop(self, name: str) -> None:
        await self.servers.pop(name).stop()

    async def client(self) -> RaftClient:
        return await self._stack.enter_async_context(RaftClient([url for _, url in self.peers], IDENT))


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def cluster(tmp_path: Path, stack: AsyncExitStack, request: pytest.FixtureRequest) -> Cluster:
    """Three peers for a test that is marked so, else one."""
    names = getattr(request, "param", "1")
    cluster = Cluster(tmp_path, stack, names)
    for name in names:
        await cluster.start(name)
    return cluster


three_peers = pytest.mark.parametrize("cluster", ["123"], indirect=True)


@pytest.fixture
async def client(cluster: Cluster) -> RaftClient:
    return await cluster.client()


@pytest.fixture
def kv(client: RaftClient) -> Keys:
    return client.kv


@pytest.fixture
def tree(client: RaftClient) -> TreeKeys:
    return client.tree


async def taken(changes: AsyncGenerator[Changes | Reset, None], count: int) -> list[Changes | Reset]:
    """Return the next ``count`` messages of a watch and leave it."""
    found = []
    async with aclosing(changes), asyncio.timeout(30):
        async for change in changes:
            found.append(change)
            if len(found) == count:
                break
    return found


async def test_keys_are_written_read_and_deleted(kv: Keys) -> None:
    first = await kv.put(b"a", b"1")
    second = await kv.put(b"a", b"2")
    assert await kv.get(b"a") == Item(b"a", b"2", first, second, 2, 0)
    await kv.put(b"b", b"3")
    found = await kv.range(b"", END_OF_KEYS, limit=1, descending=True, keys_only=True)
    assert ([(item.key, item.value) for item in found.items], found.more) == ([(b"b", b"")], True)
    assert await kv.count(*prefix_range(b"")) == 2
    assert await kv.delete(b"a")
    assert not await kv.delete(b"a")
    assert await kv.get(b"a") is None
    assert await kv.delete_range(b"a", b"z") == 1


async def test_lists_go_on_where_one_read_ends(kv: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RANGE_ITEMS_MAX", 3)
    await kv.txn(then=[Put(b"app/%d" % number, b"") for number in range(8)] + [Put(b"apq", b"")])
    found = await kv.list(*prefix_range(b"app/"))
    assert [item.key for item in found.items] == [b"app/%d" % number for number in range(8)]
    assert not found.more


def test_a_prefix_is_a_range() -> None:
    assert prefix_range(b"app/") == (b"app/", b"app0")
    assert prefix_range(b"a\xff\xff") == (b"a\xff\xff", b"b")
    assert prefix_range(b"\xff") == (b"\xff", END_OF_KEYS)
    assert prefix_range(b"") == (b"", END_OF_KEYS)


async def test_one_of_many_wins_a_compare_and_set(kv: Keys) -> None:
    absent = [Compare(Target.CREATE_REVISION, Relation.EQUAL, b"k", 0)]
    results = await asyncio.gather(
        *(kv.txn(absent, [Put(b"k", b"%d" % number)], [Range(b"k")]) for number in range(20))
    )
    [winner] = [result for result in results if result.succeeded]
    assert winner.results == ([1],)
    assert {result.results[0][0][0][2] for result in results if not result.succeeded} == {winner.revision}


@three_peers
async def test_a_repeated_request_is_told_the_first_result_after_a_failover(
    cluster: Cluster, client: RaftClient, kv: Keys
) -> None:
    reqid = client.new_reqid()
    first = await kv.put(b"k", b"1", reqid=reqid)
    await cluster.stop(cluster.leader())
    assert await kv.put(b"k", b"1", reqid=reqid) == first
    item = await kv.get(b"k")
    assert item is not None
    assert item.version == 1


@three_peers
async def test_state_is_there_again_after_all_peers_restart(cluster: Cluster, kv: Keys, tree: TreeKeys) -> None:
    await kv.put(b"k", b"1")
    await tree.create(b"/a", b"2")
    for name in list(cluster.servers):
        await cluster.stop(name)
    for name, _ in cluster.peers:
        await cluster.start(name)
    item, node = await kv.get(b"k"), await tree.get(b"/a")
    assert item is not None
    assert node is not None
    assert (item.value, node.data) == (b"1", b"2")


async def test_refusals_say_what_was_wrong(kv: Keys, tree: TreeKeys) -> None:
    with pytest.raises(Refused, match="NO_LEASE 9") as no_lease:
        await kv.put(b"k", b"", lease=9)
    assert no_lease.value.code == Code.NO_LEASE
    with pytest.raises(Refused, match="NO_NODE /x"):
        await tree.set(b"/x", b"")
    with pytest.raises(Refused, match="empty key"):
        await kv.put(b"", b"")
    with pytest.raises(Refused, match="TOO_LARGE"):
        await kv.put(b"k", bytes(limits.VALUE_BYTES_MAX + 1))


async def test_a_cluster_without_tree_says_so(tmp_path: Path, stack: AsyncExitStack) -> None:
    cluster = Cluster(tmp_path, stack, "1")
    await cluster.start("1", "KeyValue")
    client = await cluster.client()
    await client.kv.put(b"k", b"")
    with pytest.raises(Unsupported):
        await client.tree.create(b"/a")
    with pytest.raises(Unsupported):
        await client.tree.get(b"/a")


async def test_a_cluster_without_keys_says_so(tmp_path: Path, stack: AsyncExitStack) -> None:
    cluster = Cluster(tmp_path, stack, "1")
    await cluster.start("1", "Broadcast")
    kv = (await cluster.client()).kv
    for call in (kv.put(b"k", b""), kv.get(b"k"), anext(kv.watch(b"k"))):
        with pytest.raises(Unsupported, match="state machine"):
            await call


# --- watches -----------------------------------------------------------------------------------------------------


@three_peers
async def test_a_watcher_follows_over_a_failover_without_gap_or_repetition(cluster: Cluster, kv: Keys) -> None:
    begin = await kv.put(b"k", b"0")
    watching = asyncio.create_task(taken(kv.watch(*prefix_range(b"k"), from_=begin), 61))
    for number in range(1, 61):
        await kv.put(b"k", b"%d" % number)
        if number == 20:
            await cluster.stop(cluster.leader())
    found = await watching
    values = [event.data for change in found if isinstance(change, Changes) for event in change.events]
    assert values == [b"%d" % number for number in range(61)]


async def test_a_watcher_that_reads_slowly_misses_nothing(kv: Keys) -> None:
    begin = await kv.put(b"k", b"0")
    async with aclosing(kv.watch(b"k", from_=begin)) as changes:
        seen = [await anext(changes)]
        for number in range(1, 60):
            await kv.put(b"k", b"%d" % number)
        seen += [await anext(changes) for _ in range(59)]
    assert [change.events[0].data for change in seen if isinstance(change, Changes)] == [
        b"%d" % number for number in range(60)
    ]


async def test_a_watcher_that_comes_too_late_begins_from_a_list(kv: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HISTORY_EVENTS_MAX", 2)
    begin = await kv.put(b"k1", b"0")
    for number in range(5):
        last = await kv.put(b"k2", b"%d" % number)
    watching = asyncio.create_task(taken(kv.watch(*prefix_range(b"k"), from_=begin), 2))
    reset, *_ = await taken(kv.watch(*prefix_range(b"k"), from_=begin), 1)
    assert isinstance(reset, Reset)
    assert [item.key for item in reset.items] == [b"k1", b"k2"]
    assert reset.revision >= last
    await kv.put(b"k3", b"")
    _, change = await watching
    assert isinstance(change, Changes)
    assert change.events[0].key == b"k3"


async def test_large_changes_of_one_transaction_come_together(kv: Keys) -> None:
    watching = asyncio.create_task(taken(kv.watch(*prefix_range(b"k"), from_=1), 1))
    await kv.txn(then=[Put(b"k%d" % number, bytes(600_000)) for number in range(3)])
    [change] = await watching
    assert isinstance(change, Changes)
    assert [len(event.data or b"") for event in change.events] == [600_000] * 3


async def test_nodes_and_their_children_are_watched(tree: TreeKeys) -> None:
    await tree.create(b"/a")
    watching = asyncio.create_task(taken(tree.watch(b"/a", from_=1), 3))
    await tree.create(b"/a/b")
    await tree.set(b"/a", b"1")
    kinds = [[event.kind for event in change.events] for change in await watching if isinstance(change, Changes)]
    assert kinds == [[17], [20], [18]]


async def later_one_ends(kv: Keys, ttl_s: float) -> None:
    """Return when a lease that is granted now and never renewed has ended."""
    lease, _ = (await kv.command(LeaseGrant(round(ttl_s * 1000)))).value
    revision = await kv.put(b"later", b"", lease=lease)
    [change] = await taken(kv.watch(b"later", from_=revision + 1), 1)
    assert isinstance(change, Changes)
    assert [event.kind for event in change.events] == [Happened.EXPIRED]


# --- leases and locks --------------------------------------------------------------------------------------------


async def test_a_lease_is_kept_while_it_is_held_and_revoked_afterwards(kv: Keys) -> None:
    async with kv.lease(1.5, b"me") as lease:
        await kv.put(b"k", b"", lease=lease.id)
        await later_one_ends(kv, 2.5)
        assert not lease.lost.is_set()
        assert await kv.get(b"k") is not None
    assert lease.lost.is_set()
    assert await kv.get(b"k") is None


async def test_who_is_cancelled_while_giving_a_lock_back_has_given_it_back(kv: Keys) -> None:
    """As by a time-out that comes just then: others do not wait for the time of the lease."""
    leaving = asyncio.Event()

    async def hold() -> None:
        async with kv.lease(3600.0) as lease:
            await kv.lock(b"lock", lease.id)
            leaving.set()

    holder = asyncio.create_task(hold())
    await leaving.wait()
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    async with asyncio.timeout(20), kv.lease(5.0) as lease:
        await kv.lock(b"lock", lease.id)


@three_peers
async def test_a_lease_outlives_a_change_of_leader(cluster: Cluster, kv: Keys) -> None:
    async with kv.lease(3.0) as lease:
        await kv.put(b"k", b"", lease=lease.id)
        await cluster.stop(cluster.leader())
        await later_one_ends(kv, 3.5)
        assert await kv.get(b"k") is not None
        assert not lease.lost.is_set()


@three_peers
async def test_a_holder_without_a_majority_learns_by_its_own_clock(cluster: Cluster, kv: Keys) -> None:
    async with contextlib.AsyncExitStack() as held:
        lease = await held.enter_async_context(kv.lease(1.0))
        first, second, _ = cluster.servers
        await cluster.stop(first)
        await cluster.stop(second)
        async with asyncio.timeout(20):
            await lease.lost.wait()


async def test_who_gives_a_long_lease_back_does_not_wait_long_for_a_cluster_that_is_away(
    cluster: Cluster, kv: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "REVOKE_S", 0.1)
    async with kv.lease(3600.0):
        for name in cluster.peers:
            await cluster.stop(name[0])


async def test_a_lease_that_another_ended_is_lost(kv: Keys) -> None:
    async with kv.lease(0.6) as lease:
        await revoked(kv, lease.id)
        async with asyncio.timeout(20):
            await lease.lost.wait()


async def revoked(kv: Keys, lease: int) -> None:
    await kv.command(LeaseRevoke(lease))


@three_peers
async def test_locks_go_from_holder_to_holder_with_growing_tokens(kv: Keys) -> None:
    tokens: list[int] = []
    inside = 0

    async def contend() -> None:
        nonlocal inside
        async with kv.lease(5.0) as lease:
            token = await kv.lock(b"lock", lease.id)
            assert await kv.lock(b"lock", lease.id) == token  # asked again, it is ours still
            inside += 1
            assert inside == 1
            tokens.append(token)
            assert (await kv.txn([guard(b"lock", token)], [Put(b"data", b"")])).succeeded
            inside -= 1
            assert await kv.unlock(b"lock", token)

    async with asyncio.timeout(40), asyncio.TaskGroup() as contenders:
        for _ in range(6):
            contenders.create_task(contend())
    assert len(tokens) == 6
    assert all(earlier < later for earlier, later in itertools.pairwise(tokens))


async def test_a_holder_whose_lease_ended_cannot_write_under_its_token(kv: Keys) -> None:
    async with kv.lease(5.0) as first, kv.lease(5.0) as second:
        old = await kv.lock(b"lock", first.id)
        waiting = asyncio.create_task(kv.lock(b"lock", second.id))
        await revoked(kv, first.id)
        new = await waiting
        assert new > old
        assert not (await kv.txn([guard(b"lock", old)], [Put(b"data", b"old")])).succeeded
        assert (await kv.txn([guard(b"lock", new)], [Put(b"data", b"new")])).succeeded
        assert not await kv.unlock(b"lock", old)
        await kv.unlock(b"lock", new)
        with pytest.raises(Refused, match="has ended"):
            await kv.lock(b"lock", first.id)


async def test_a_token_only_grows(kv: Keys) -> None:
    outcomes = [await kv.advance(b"token", bytes([value])) for value in (2, 2, 1, 3)]
    assert outcomes == [True, False, False, True]


# --- tree --------------------------------------------------------------------------------------------------------


async def test_nodes_have_versions_children_and_owners(kv: Keys, tree: TreeKeys) -> None:
    assert await tree.create(b"/w") == b"/w"
    async with kv.lease(5.0) as lease:
        names = [await tree.create(b"/w/s_", b"", lease=lease.id, sequential=True) for _ in range(2)]
        assert names == [b"/w/s_0000000000", b"/w/s_0000000001"]
        assert await tree.children(b"/w") == ([b"s_0000000000", b"s_0000000001"], 2)
        node = await tree.get(names[0])
        assert node is not None
        assert (node.lease, node.version) == (lease.id, 0)
        assert await tree.set(names[0], b"1", version=0) == 1
        with pytest.raises(Refused, match="BAD_VERSION"):
            await tree.set(names[0], b"2", version=0)
        await tree.remove(names[1])
    assert await tree.children(b"/w") == ([], 4)
    assert not await tree.exists(names[0])


async def test_ids_are_given_once(tree: TreeKeys) -> None:
    await tree.create(b"/ids")
    with pytest.raises(Refused, match="/none holds the counter"):
        await tree.next_id(b"/none")
    numbers = await asyncio.gather(*(tree.next_id(b"/ids") for _ in range(8)))
    assert sorted(numbers) == list(range(1, 9))
    node = await tree.get(b"/ids")
    assert node is not None
    assert node.data == (8).to_bytes(4, "big")


async def test_a_node_is_a_lock(kv: Keys, tree: TreeKeys) -> None:
    async with kv.lease(5.0) as first, kv.lease(5.0) as second:
        old = await tree.lock(b"/lock", first.id)
        waiting = asyncio.create_task(tree.lock(b"/lock", second.id))
        await revoked(kv, first.id)
        assert await waiting > old


async def test_nodes_and_keys_change_in_one_transaction(kv: Keys, tree: TreeKeys) -> None:
    result = await kv.txn(then=[Put(b"k", b"1"), Create(b"/k", b"2")])
    assert result.results == ([1], [b"/k"])
    node = await tree.get(b"/k")
    assert node is not None
    assert node.create_revision == result.revision


async def test_a_peer_counts_what_it_holds(cluster: Cluster, kv: Keys, tree: TreeKeys) -> None:
    async with kv.lease(5.0), aclosing(kv.watch(b"k", from_=1)) as changes:
        await kv.put(b"k", b"123")
        await tree.create(b"/a", b"45")
        await anext(changes)
        metrics = cluster.servers["1"].metrics()
    counts = {name: value for name, labels, value in metrics if "_kv_" in name and not labels}
    with pytest.raises(Refused):
        await tree.remove(b"/b")
    commands = {
        (labels["op"], labels["code"]): value
        for name, labels, value in cluster.servers["1"].metrics()
        if name == "pavane_raft_kv_commands_total"
    }
    assert commands == {
        ("lease_grant", "OK"): 1,
        ("lease_revoke", "OK"): 1,
        ("txn", "OK"): 2,
        ("txn", "NO_NODE"): 1,
    }
    assert counts == {
        "pavane_raft_kv_keys": 3,
        "pavane_raft_kv_bytes": len(b"k123") + len(b"/") + len(b"/a45"),
        "pavane_raft_kv_leases": 1,
        "pavane_raft_kv_watches": 1,
        "pavane_raft_kv_history_floor": 1,
        "pavane_raft_kv_lease_expiries_total": 0,
    }


async def test_a_peer_counts_leases_that_nobody_renews(cluster: Cluster, kv: Keys) -> None:
    lease, _ = (await kv.command(LeaseGrant(1000))).value
    await kv.put(b"goes", b"", lease=lease)
    async with aclosing(kv.watch(b"goes", from_=lease)) as changes:
        async for change in changes:
            assert isinstance(change, Changes)
            if any(event.kind == Happened.EXPIRED for event in change.events):
                break
    counted = {name: value for name, labels, value in cluster.servers["1"].metrics() if not labels}
    assert counted["pavane_raft_kv_lease_expiries_total"] == 1


@three_peers
async def test_a_stale_read_is_answered_by_whoever_is_there(cluster: Cluster, client: RaftClient) -> None:
    revision = await client.kv.put(b"k", b"v")
    await client.tree.create(b"/n", b"d")
    last = cluster.leader()
    await eventually(lambda: all(server.status().applied > revision for server in cluster.servers.values()))
    for name in [name for name in cluster.servers if name != last]:
        await cluster.stop(name)
    item = await client.stale_kv.get(b"k")
    node = await client.stale_tree.get(b"/n")
    assert item is not None
    assert node is not None
    assert (item.value, item.mod_revision, node.data) == (b"v", revision, b"d")
    await cluster.stop(last)
    with pytest.raises(Unreachable):
        await client.stale_kv.get(b"k")


@three_peers
async def test_a_stale_read_waits_for_no_member_that_is_known_to_be_away(
    cluster: Cluster, client: RaftClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "STALE_READ_S", 3600.0)
    revision = await client.kv.put(b"k", b"v")
    await eventually(lambda: all(server.status().applied >= revision for server in cluster.servers.values()))
    away = cluster.leader()
    await cluster.stop(away)
    await eventually(lambda: client._procedure.is_down(dict(cluster.peers)[away]))
    for _ in range(20):
        assert await client.stale_kv.get(b"k") is not None


async def test_a_stale_read_asks_the_seeds_when_no_member_can_be_reached(tmp_path: Path) -> None:
    inside, outside = free_urls(2)
    config = Config("1", IDENT, url=inside, peers=(("1", inside),), machine="KeyValue")
    server = RaftServer(config, data=tmp_path, bind=outside)
    await server.start()
    try:
        async with RaftClient([outside], IDENT) as client:
            await client.kv.put(b"k", b"v")
            assert (await client.configuration()).peers == (("1", inside),)
            item = await client.stale_kv.get(b"k")
            assert item is not None
            assert item.value == b"v"
    finally:
        await server.stop()


async def test_a_stale_read_waits_for_the_revision_that_it_is_to_see(client: RaftClient) -> None:
    revision = await client.kv.put(b"k", b"old")
    kv, tree = client.stale_kv.since(revision + 1), client.stale_tree.since(revision + 1)
    item, node, _ = await asyncio.gather(kv.get(b"k"), tree.get(b"/"), client.kv.put(b"k", b"new"))
    assert item is not None
    assert node is not None
    assert (item.value, item.mod_revision) == (b"new", revision + 1)
    with pytest.raises(Behind, match=f"revision {revision + 2}"):
        await client.stale_kv.since(revision + 2).get(b"k")
    assert await client.kv.since(revision + 2).get(b"k") == item  # the leader needs none
