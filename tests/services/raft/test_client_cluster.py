"""The client against a real cluster: three peers with their logs on disk, over real sockets (docs/specs/raft.md 11)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pavane.raft.client import RaftClient
from pavane.raft.config import Config
from pavane.raft.errors import Expired, Refused
from pavane.raft.server import RaftServer
from pavane.raft.wire.entry import EntryType
from tests.services.raft.peers import free_urls

IDENT = b"s3cr3t"
ADDRESS = "127.0.0.1"


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[dict[str, RaftServer]]:
    peers = tuple(zip("123", free_urls(3), strict=True))
    async with AsyncExitStack() as stack:
        started: dict[str, RaftServer] = {}
        for name, url in peers:
            config = Config(id=name, ident=IDENT, url=url, peers=peers, election_min=300, election_max=600)
            server = RaftServer(config, data=tmp_path / name, bind=url)
            await server.start()
            stack.push_async_callback(server.stop)
            started[name] = server
        yield started


@pytest.fixture
async def client(servers: dict[str, RaftServer]) -> AsyncIterator[RaftClient]:
    async with RaftClient([server.bound for server in servers.values()], IDENT) as connected:
        yield connected


async def state_entries(client: RaftClient) -> dict[bytes, list[int]]:
    """Return data → indices of everything that clients have written."""
    found: dict[bytes, list[int]] = {}
    async for entry in client.entries():
        if entry.type == EntryType.STATE:
            found.setdefault(bytes(entry.data), []).append(entry.index)
    return found


async def all_caught_up(client: RaftClient, index: int) -> None:
    """Wait until the leader knows that every member has the entry at ``index``: a change of members asks for it."""
    while True:
        leader = (await client.configuration()).leader
        assert leader is not None
        members = (await client.status(leader))["members"]
        assert isinstance(members, list)
        if all(isinstance(member, dict) and member["match_index"] == index for member in members):
            return
        await asyncio.sleep(0.02)


async def leader_of(client: RaftClient, members: list[tuple[str, str]]) -> str | None:
    """Wait until these are the members and return their leader: a change is accepted before it has ended."""
    while True:
        configuration = await client.configuration()
        if set(configuration.peers) == set(members):
            return configuration.leader
        await asyncio.sleep(0.02)


async def write_while(client: RaftClient, action: Callable[[], Awaitable[None]]) -> None:
    """Write without a pause until ``action`` is over, then prove that each acknowledged write is there, once."""
    acknowledged: dict[bytes, int] = {}
    over = asyncio.Event()

    async def write(writer: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            data = b"%d/%d" % (writer, number)
            acknowledged[data] = await client.update(data)

    async with asyncio.TaskGroup() as group:
        for writer in range(3):
            group.create_task(write(writer))
        await client.update(b"first")
        await action()
        await client.update(b"last")
        over.set()
    found = await state_entries(client)
    assert {data: [index] for data, index in acknowledged.items()}.items() <= found.items()
    assert all(len(indices) == 1 for indices in found.values())


async def test_written_is_read_back_in_order_through_many_windows(client: RaftClient) -> None:
    data = [b"%d:" % number + bytes(3000) for number in range(500)]
    indices = await asyncio.gather(*(client.update(each) for each in data))
    found = await state_entries(client)
    assert [found[each] for each in data] == [[index] for index in indices]
    part = [entry.index async for entry in client.entries(after=indices[0], count=7)]
    assert part == list(range(indices[0] + 1, indices[0] + 8))


async def test_the_same_id_is_one_entry_even_at_another_leader(client: RaftClient) -> None:
    reqid = client.new_reqid()
    index = await client.update(b"data", reqid=reqid)
    leader = await client.transfer()
    assert (await client.configuration()).leader == leader
    assert await client.update(b"data", reqid=reqid) == index
    assert (await state_entries(client))[b"data"] == [index]


async def test_id_from_another_day_is_expired(client: RaftClient) -> None:
    old = (1_000_000_000).to_bytes(4, "big") + bytes(8)
    with pytest.raises(Expired) as caught:
        await client.update(b"data", reqid=old)
    assert caught.value.sent_before  # by an earlier call perhaps, for the id is ours


async def all_known(client: RaftClient) -> None:
    """Wait until the leader knows every member as one of ours: before, it hands leadership to none that it does not."""
    while True:
        leader = (await client.configuration()).leader
        assert leader is not None
        members = (await client.status(leader))["members"]
        assert isinstance(members, list)
        if all(isinstance(member, dict) and member["kind"] == "ours" for member in members):
            return
        await asyncio.sleep(0.02)


async def test_nothing_is_lost_or_doubled_while_leadership_moves_around(client: RaftClient) -> None:
    async def move() -> None:
        for target in ("1", "2", "3", "1"):
            await all_known(client)
            if (await client.configuration()).leader != target:
                assert await client.transfer(target) == target
            await client.update(b"after %s" % target.encode() + client.new_reqid())

    await write_while(client, move)


async def test_nothing_is_lost_or_doubled_when_the_leader_stops(
    client: RaftClient, servers: dict[str, RaftServer]
) -> None:
    async def stop() -> None:
        leader = (await client.configuration()).leader
        assert leader is not None
        await servers[leader].stop()

    await write_while(client, stop)


async def test_members_change_and_a_refusal_says_why(client: RaftClient, servers: dict[str, RaftServer]) -> None:
    index = await client.update(b"data")
    members = (await client.configuration()).peers
    await all_caught_up(client, index)
    with pytest.raises(Refused, match="no change in cluster membership"):
        await client.change_members(members)
    leader = (await client.configuration()).leader
    kept = [(peer, url) for peer, url in members if peer != leader]
    await client.change_members(kept)
    await client.update(b"more")
    assert await leader_of(client, kept) != leader


async def test_every_peer_tells_its_status_and_log(client: RaftClient, servers: dict[str, RaftServer]) -> None:
    index = await client.update(b"data")
    assert (await client.log_info()).commit_index >= index
    for name, server in servers.items():
        status = await client.status(server.bound)
        assert status["id"] == name
        assert (await client.log_info(name)).first_index == 1
