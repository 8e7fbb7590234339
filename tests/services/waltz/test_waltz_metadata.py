"""The metadata port: the same promises by the Raft tree, a real ZooKeeper and the twin in memory (waltz.md 8.1)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest
from kazoo.client import KazooClient

from pavane.pods.waltz_metadata import RaftMetadata
from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.server import RaftServer
from pavane.waltz.aio.cluster import ClusterConfig, make_tree, next_id, read_rollout, set_rollout
from pavane.waltz.aio.zookeeper import ZooKeeperMetadata
from pavane.waltz.state.metadata import BadVersion, Metadata, MetadataError, Node, NodeExists, NoNode, OtherCluster
from pavane.waltz.wire.blobs import Rollout
from tests.services.cutting import cuttable
from tests.services.eventually import eventually
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT
from tests.services.waltz.memory import MemoryMetadata
from tests.services.zookeeper import ZooKeeper

TTL_S = 2.0
CONFIG = ClusterConfig("ledger", "/waltz/ledger", UUID(int=7), 2, ("a:1", "b:1", "c:1"))


@dataclass
class Store:
    """A store, two ways to it, and how to keep it from answering for ever."""

    first: Metadata
    second: Metadata
    silence: Callable[[], None]


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture(params=["memory", "raft", "zookeeper"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, stack: AsyncExitStack) -> Store:
    if request.param == "memory":
        memory = MemoryMetadata()
        return Store(memory, memory, lambda: None)
    if request.param == "raft":
        return await _raft(tmp_path, stack)
    server: ZooKeeper = request.getfixturevalue("zookeeper")
    connect = server.part()
    stack.callback(server.go_on)
    first, second = [await stack.enter_async_context(ZooKeeperMetadata(connect)) for _ in range(2)]
    return Store(first, second, server.pause)


async def _raft(folder: Path, stack: AsyncExitStack) -> Store:
    [url] = free_urls(1)
    config = Config(
        id="1", ident=IDENT, url=url, peers=(("1", url),), machine="Tree", election_min=300, election_max=600
    )
    server = RaftServer(config, data=folder / "raft", bind=url)
    await server.start()
    stopping: list[asyncio.Task[None]] = []
    stack.push_async_callback(server.stop)
    first, second = [await stack.enter_async_context(RaftMetadata(RaftClient([url], IDENT))) for _ in range(2)]
    return Store(first, second, lambda: stopping.append(asyncio.create_task(server.stop())))


async def test_a_generation_gets_its_turn_back_from_the_one_that_has_it_and_late_calls_change_nothing() -> None:
    tree = MemoryMetadata()

    async def turn(number: int, back_from: int = 0) -> Rollout | None:
        await set_rollout(tree, "/q", number, 2, back_from=back_from)
        return await read_rollout(tree, "/q")

    await tree.create("/q", b"")
    assert await turn(1) == Rollout(1, 2)
    assert await turn(2) == await turn(1) == Rollout(2, 2)
    back = Rollout(1, 2, left=2)
    assert await turn(1, back_from=2) == back
    assert await turn(2) == back, "of an operator that has not seen the way back"
    assert [back.has_passed(number) for number in (1, 2, 3)] == [False, True, False]
    assert await turn(3) == await turn(1, back_from=2) == Rollout(3, 2, left=2), "the way back was asked for again"


async def test_versions_guard_every_write(store: Store) -> None:
    tree = store.first
    assert await tree.get("/a") is None
    assert await tree.create("/a", b"1") == "/a"
    assert await tree.get("/a") == Node(b"1", 0, 0)
    with pytest.raises(NodeExists):
        await store.second.create("/a", b"2")
    assert await tree.set("/a", b"2", 0) == 1
    with pytest.raises(BadVersion):
        await store.second.set("/a", b"3", 0)
    assert await tree.get("/a") == Node(b"2", 1, 0)
    await tree.remove("/a")
    for call in (tree.set("/a", b"", 0), tree.remove("/a"), tree.children("/a"), tree.create("/a/b", b"")):
        with pytest.raises(NoNode):
            await call


async def test_births_and_deaths_of_children_count_and_nothing_else(store: Store) -> None:
    tree = store.first
    await tree.create("/p", b"")
    await tree.create("/p/x", b"")
    await tree.create("/p/x/below", b"")
    await tree.set("/p/x", b"1", 0)
    await tree.set("/p", b"1", 0)
    assert await tree.get("/p") == Node(b"1", 1, 1)
    await tree.remove("/p/x/below")
    await tree.remove("/p/x")
    assert await tree.get("/p") == Node(b"1", 1, 2)
    names = [await tree.create("/p/s_", b"", sequential=True) for _ in range(2)]
    assert all(len(name) == len("/p/s_") + 10 for name in names)
    await tree.remove(names[1])
    names.append(await tree.create("/p/s_", b"", sequential=True))
    assert names == sorted(set(names))
    assert await tree.children("/p") == [name.removeprefix("/p/") for name in (names[0], names[2])]


async def test_a_lease_that_is_given_back_takes_its_nodes_along(store: Store) -> None:
    await store.first.create("/e", b"")
    async with store.first.lease(TTL_S) as lease:
        path = await store.first.create("/e/s_", b"me", lease=lease, sequential=True)
        found = await store.second.get(path)
        assert found is not None
        assert found.data == b"me"
    assert await store.second.children("/e") == []
    assert await store.second.get("/e") == Node(b"", 0, 2)


async def test_a_lease_reads_what_was_made_under_it_and_that_somebody_else_has_removed_it(store: Store) -> None:
    await store.first.create("/e", b"")
    async with store.first.lease(TTL_S) as lease:
        for _ in range(10):
            path = await store.first.create("/e/s_", b"me", lease=lease, sequential=True)
            assert await store.first.get(path, lease=lease) == Node(b"me", 0, 0)
            await store.second.remove(path)
            assert await store.first.get(path, lease=lease) is None


async def test_a_watcher_sees_data_births_deaths_and_a_node_that_comes_later(store: Store) -> None:
    tree = store.second
    await store.first.create("/r", b"")
    await store.first.create("/r/a", b"")
    await store.first.create("/r/other", b"")
    seen: dict[str, Node | None] = {}
    children: list[str] = []

    async def follow() -> None:
        async with aclosing(tree.changes("/r", ("/r/a", "/r/late"))) as changes:
            async for _ in changes:
                seen.update({path: await tree.get(path) for path in ("/r/a", "/r/late")})
                with suppress(NoNode):
                    children[:] = await tree.children("/r/late")

    task = asyncio.create_task(follow())
    try:
        await eventually(lambda: seen.get("/r/a") == Node(b"", 0, 0))
        await store.first.set("/r/a", b"1", 0)
        await eventually(lambda: seen["/r/a"] == Node(b"1", 1, 0))
        await store.first.create("/r/a/x", b"")
        await eventually(lambda: seen["/r/a"] == Node(b"1", 1, 1))
        await store.first.remove("/r/a/x")
        await eventually(lambda: seen["/r/a"] == Node(b"1", 1, 2))
        await store.first.create("/r/late", b"1")
        await eventually(lambda: seen["/r/late"] == Node(b"1", 0, 0))
        await store.first.create("/r/late/x", b"")
        await eventually(lambda: children == ["x"])
        await store.first.remove("/r/late/x")
        await store.first.remove("/r/late")
        await eventually(lambda: seen["/r/late"] is None)
        await store.first.create("/r/late", b"2")
        await eventually(lambda: seen["/r/late"] == Node(b"2", 0, 0))
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_counters_give_each_number_once_and_many_may_make_the_tree(store: Store) -> None:
    both = (store.first, store.second)
    await asyncio.gather(*(make_tree(tree, CONFIG) for tree in both))
    path = f"{CONFIG.root}/ids/client"
    numbers = await asyncio.gather(*(next_id(tree, path) for tree in both * 5))
    assert sorted(numbers) == list(range(1, 11))
    await make_tree(store.first, CONFIG)  # nothing is begun anew
    assert await next_id(store.first, path) == 11


@pytest.mark.parametrize("other", [{"key": UUID(int=8)}, {"name": "else"}], ids=str)
async def test_the_tree_of_another_cluster_is_left_alone(other: dict[str, object]) -> None:
    tree = MemoryMetadata()
    await make_tree(tree, CONFIG)
    before = {name: await tree.get(f"{CONFIG.root}{name}") for name in ("", "/store")}
    with pytest.raises(OtherCluster, match="/waltz/ledger holds another cluster"):
        await make_tree(tree, replace(CONFIG, **other))  # type: ignore[arg-type]
    assert {name: await tree.get(f"{CONFIG.root}{name}") for name in ("", "/store")} == before


@pytest.mark.parametrize("store", ["raft", "zookeeper"], indirect=True)
async def test_a_lease_counts_as_lost_by_our_own_clock_when_nobody_answers(store: Store) -> None:
    async with asyncio.timeout(60), store.first.lease(TTL_S) as lease:
        store.silence()
        await lease.ended()


async def test_a_lease_and_a_watch_in_zookeeper_outlive_their_connections(zookeeper: ZooKeeper) -> None:
    connect = zookeeper.part()
    async with cuttable(zookeeper.port) as way, ZooKeeperMetadata(connect) as straight:
        async with ZooKeeperMetadata(connect.replace(str(zookeeper.port), str(way.port), 1)) as tree:
            await tree.create("/e", b"0")
            seen: list[bytes] = []

            async def follow() -> None:
                async for _ in tree.changes("/e", ["/e"]):
                    node = await tree.get("/e")
                    seen.append(b"" if node is None else node.data)

            async with tree.lease(60.0) as lease:
                await tree.create("/e/me", b"", lease=lease)
                following = asyncio.create_task(follow())
                await eventually(lambda: seen)
                before = way.connections
                way.cut()
                await straight.set("/e", b"1", 0)  # while nobody watches, or just before
                await eventually(lambda: b"1" in seen or following.done())
                await eventually(lambda: way.connections >= before + 2)
                assert await straight.children("/e") == ["me"]
                assert not lease.lost.is_set()
                if following.done():  # a watcher may also learn that it is to begin anew
                    assert isinstance(following.exception(), MetadataError)
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        assert await straight.children("/e") == []


async def test_an_expired_zookeeper_session_is_told_though_a_new_one_begins(zookeeper: ZooKeeper) -> None:
    connect = zookeeper.part()
    async with ZooKeeperMetadata(connect) as tree, asyncio.timeout(50), tree.lease(60.0) as lease:
        path = await tree.create("/me", b"", lease=lease)
        # Who takes a session over by its id and password may close it; its owner then learns that it is gone.
        await asyncio.to_thread(_end_session, connect, lease.client.zookeeper.client_id)
        await lease.ended()
        assert await tree.get(path) is None


def _end_session(connect: str, session: tuple[int, bytes] | None) -> None:
    other = KazooClient(connect, client_id=session)
    other.start()
    other.stop()
    other.close()
