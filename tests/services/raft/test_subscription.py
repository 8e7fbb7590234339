"""Subscribers: every entry once and in order, whatever happens to leaders (docs/specs/raft.md 11.3)."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from pavane.raft.backup import back_up
from pavane.raft.client import Entry, Fresh, RaftClient, Snapshot
from pavane.raft.client.subscription import EntryTracker, Item
from pavane.raft.config import Config
from pavane.raft.core import snapshots
from pavane.raft.errors import Unsupported, WentBack
from pavane.raft.machine import Broadcast
from pavane.raft.offline.restoring import restore
from pavane.raft.server import RaftServer
from pavane.raft.wire.entry import EntryType, encode_entry
from pavane.raft.wire.requests import StateBroadcast
from tests.services.raft.peers import free_urls
from tests.services.raft.test_client_cluster import IDENT


def entry(number: int) -> bytes:
    return encode_entry(number.to_bytes(12, "big"), EntryType.STATE, 1, b"data")


def message(last: int, count: int, term: int = 1) -> StateBroadcast:
    return StateBroadcast(term, last, tuple(entry(index) for index in range(last - count + 1, last + 1)))


def indices(found: list[Entry]) -> list[int]:
    return [each.index for each in found]


def test_what_fits_is_taken_once() -> None:
    follower = EntryTracker(5)
    assert indices(follower.take(message(7, 2))) == [6, 7]
    assert indices(follower.take(message(7, 2))) == []
    assert indices(follower.take(message(9, 4))) == [8, 9], "only what is new of it"
    assert not follower.behind


def test_a_gap_is_left_to_the_log() -> None:
    follower = EntryTracker(5)
    assert follower.take(message(9, 2)) == []
    assert follower.behind
    assert (follower.last, follower.target) == (5, 9)


def test_an_empty_message_tells_how_far_the_leader_is() -> None:
    follower = EntryTracker(5)
    follower.take(message(5, 0))
    assert not follower.behind
    follower.take(message(8, 0))
    assert follower.behind


def test_a_leader_of_an_older_term_is_not_listened_to() -> None:
    follower = EntryTracker(5)
    follower.take(message(6, 1, term=3))
    assert follower.take(message(7, 1, term=2)) == []
    assert not follower.behind


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[dict[str, RaftServer]]:
    peers = tuple(zip("123", free_urls(3), strict=True))
    async with AsyncExitStack() as stack:
        started: dict[str, RaftServer] = {}
        for (name, url), publish in zip(peers, free_urls(3), strict=True):
            config = Config(
                id=name,
                ident=IDENT,
                url=url,
                peers=peers,
                election_min=300,
                election_max=600,
                broadcast_url=publish,
                broadcast_heartbeat=50,
            )
            server = RaftServer(config, data=tmp_path / name, bind=url, publish=publish)
            await server.start()
            stack.push_async_callback(server.stop)
            started[name] = server
        yield started


async def test_a_subscriber_sees_every_entry_once_across_a_failover(servers: dict[str, RaftServer]) -> None:
    urls = [server.bound for server in servers.values()]
    async with RaftClient(urls, IDENT) as writer, RaftClient(urls, IDENT) as reader:
        written = [await writer.update(b"%d" % number) for number in range(20)]
        seen: list[Entry] = []
        live = asyncio.Event()

        async def read() -> None:
            async with aclosing(reader.subscribe()) as items:
                async for item in items:
                    if isinstance(item, Fresh):
                        live.set()
                    elif isinstance(item, Entry):
                        seen.append(item)
                        if bytes(item.data) == b"last":
                            return

        reading = asyncio.create_task(read())
        await live.wait()
        written += [await writer.update(b"%d" % number) for number in range(20, 30)]
        leader = (await writer.configuration()).leader
        assert leader is not None
        await servers[leader].stop()
        written += [await writer.update(b"%d" % number) for number in range(30, 40)]
        written.append(await writer.update(b"last"))
        await reading

        assert [each.index for each in seen] == list(range(1, written[-1] + 1))
        states = [(each.index, bytes(each.data)) for each in seen if each.type == EntryType.STATE]
        assert states == list(zip(written, [*(b"%d" % number for number in range(40)), b"last"], strict=True))


async def test_a_subscriber_goes_on_when_its_leader_hands_over_and_stays(servers: dict[str, RaftServer]) -> None:
    urls = [server.bound for server in servers.values()]
    async with RaftClient(urls, IDENT) as writer, RaftClient(urls, IDENT) as reader:
        await writer.update(b"first")
        async with aclosing(reader.subscribe()) as items:
            while not isinstance(await anext(items), Fresh):
                pass
            await writer.transfer()
            last = await writer.update(b"last")
            while not isinstance(item := await anext(items), Entry) or item.index < last:
                pass
            assert bytes(item.data) == b"last"


class Forgetful(Broadcast):
    """Tells how many entries there were."""

    def compact(self, entries: Iterable[tuple[int, memoryview]], previous: bytes | None) -> bytes:
        return b"%d" % (int(previous or 0) + sum(1 for _ in entries))


async def test_a_snapshot_comes_in_place_of_entries_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PAUSE_S", 0.0)
    url, publish = free_urls(2)
    config = Config(
        id="1", ident=IDENT, url=url, peers=(("1", url),), broadcast_url=publish, snapshot_entries=20, log_retention=0
    )
    server = RaftServer(config, data=tmp_path, bind=url, publish=publish, machine=Forgetful())
    await server.start()
    try:
        async with RaftClient([server.bound], IDENT) as client:
            last = 0
            while server.status().first == 1:
                last = await client.update(b"data")
            last = await client.update(b"last")
            async with aclosing(client.subscribe()) as items:
                found = await anext(items)
                assert isinstance(found, Snapshot)
                assert found.data == b"%d" % found.index
                assert found.index >= server.status().first - 1
                followed = [await anext(items) for _ in range(last - found.index)]
                assert [item.index for item in followed] == list(range(found.index + 1, last + 1))
                assert all(isinstance(item, Entry) for item in followed)
            async with aclosing(client.subscribe(after=last - 1)) as items:
                assert isinstance(await anext(items), Entry)
                assert await anext(items) == Fresh(last)
    finally:
        await server.stop()


@asynccontextmanager
async def publishing(folder: Path, url: str, publish: str) -> AsyncIterator[RaftServer]:
    config = Config(id="1", ident=IDENT, url=url, peers=(("1", url),), broadcast_url=publish, broadcast_heartbeat=50)
    server = RaftServer(config, data=folder, bind=url, publish=publish)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_a_subscriber_is_told_that_a_copied_folder_took_the_place_of_what_it_read(tmp_path: Path) -> None:
    url, publish = free_urls(2)
    async with RaftClient([url], IDENT) as client:
        async with publishing(tmp_path / "data", url, publish):
            await client.update(b"copied")
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        async with aclosing(client.subscribe()) as items:
            async with publishing(tmp_path / "data", url, publish):
                for _ in range(5):
                    last = await client.update(b"lost")
                while await anext(items) != Fresh(last):
                    pass
            async with publishing(tmp_path / "copy", url, publish):
                with pytest.raises(WentBack, match=f"entry {last} was seen"):
                    [item async for item in items]


async def test_a_subscriber_goes_on_in_a_restored_cluster(tmp_path: Path) -> None:
    url, publish = free_urls(2)
    members = (("1", url),)
    async with RaftClient([url], IDENT) as client:
        async with publishing(tmp_path / "data", url, publish):
            await client.update(b"copied")
            await back_up(tmp_path / "copy", [url], IDENT)
        async with aclosing(client.subscribe()) as items:
            for _ in range(4):  # each in a later term, so that the new cluster does not get there by itself
                async with publishing(tmp_path / "data", url, publish):
                    last = await client.update(b"lost")
                    while await anext(items) != Fresh(last):
                        pass
            restore(tmp_path / "copy", tmp_path / "new", "1", members)
            async with publishing(tmp_path / "new", url, publish):
                new = await client.update(b"new")
                found = [item async for item in until(items, new) if not isinstance(item, Fresh)]
    assert isinstance(found[0], Snapshot)
    assert found[0].data == b""
    data = [bytes(item.data) for item in found[1:] if isinstance(item, Entry) and item.type == EntryType.STATE]
    assert data == [b"copied", b"new"]


async def until(items: AsyncIterator[Item], last: int) -> AsyncIterator[Item]:
    async for item in items:
        yield item
        if isinstance(item, Entry) and item.index == last:
            return


async def test_peers_that_publish_nothing_say_so(tmp_path: Path) -> None:
    (url,) = free_urls(1)
    server = RaftServer(Config(id="1", ident=IDENT, url=url, peers=(("1", url),)), data=tmp_path, bind=url)
    await server.start()
    try:
        async with RaftClient([server.bound], IDENT) as client:
            with pytest.raises(Unsupported, match="--pub"):
                await anext(client.subscribe())
    finally:
        await server.stop()
