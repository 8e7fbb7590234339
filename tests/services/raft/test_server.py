"""Whole peers over real sockets with their logs on disk: restarts, promotion, broken disks (5, 8, 13)."""

import asyncio
import errno
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from pavane.raft import aio
from pavane.raft.client import RaftClient, procedure
from pavane.raft.config import Config, LostVoter
from pavane.raft.core.status import Fence
from pavane.raft.errors import Expired, RaftError
from pavane.raft.server import CannotBind, Exit, ForeignStore, RaftServer, StoreLocked
from pavane.raft.state.commands import Append, StoreCommand, Token
from pavane.raft.state.configuration import Configuration
from pavane.raft.state.roles import Role
from pavane.raft.storage import RaftStorage
from pavane.raft.wire.decoder import decode_broadcast
from pavane.raft.wire.entry import EntryType, entry_data
from pavane.raft.wire.requests import StateBroadcast
from pavane.wal import Batch, Writer
from pavane.wire import Stage
from tests.services.eventually import eventually
from tests.services.ports import free_ports
from tests.services.raft.peers import (
    ELECTION_MAX_MS,
    ELECTION_MIN_MS,
    IDENT,
    free_url,
    leads,
    places,
    started,
    written,
)

WAIT_MS = 20_000


async def test_a_lone_peer_keeps_its_entries_over_a_restart(tmp_path: Path, stack: AsyncExitStack) -> None:
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    async with RaftClient([place.url], IDENT) as client:
        indices = [await client.update(b"%d" % number) for number in range(20)]
        assert indices == sorted(indices)
        term = server.status().term
        await server.stop()
        server = await started(stack, place.server())
        assert await written(client) == [b"%d" % number for number in range(20)]
        assert server.status().term > term


async def test_a_follower_that_was_away_catches_up(tmp_path: Path, stack: AsyncExitStack) -> None:
    peers = places(tmp_path, 3)
    servers = [await started(stack, place.server()) for place in peers]
    async with RaftClient([place.url for place in peers], IDENT) as client:
        await client.update(b"before")
        away = next(number for number, server in enumerate(servers) if not leads(server))
        await servers[away].stop()
        for number in range(300):
            await client.update(b"%d" % number)
        servers[away] = await started(stack, peers[away].server())
        last = await client.update(b"after")
        await eventually(lambda: servers[away].status().applied == last)


async def test_a_leader_that_is_stopped_hands_over(tmp_path: Path, stack: AsyncExitStack) -> None:
    peers = places(tmp_path, 3)
    servers = {place.id: await started(stack, place.server()) for place in peers}
    async with RaftClient([place.url for place in peers], IDENT) as client:
        await client.update(b"before")
        leader = next(server for server in servers.values() if leads(server))
        handed_over: set[tuple[str, float]] = set()

        def look() -> None:
            for name, labels, value in leader.metrics():
                if name == "pavane_raft_transfers_total":
                    handed_over.add((labels["result"], value))

        leader.on_change(look)
        # The client's connection must not be what moves leadership.
        stopping = asyncio.create_task(leader.stop())
        await eventually(lambda: any(leads(server) for server in servers.values() if server is not leader))
        await stopping
        assert ("done", 1) in handed_over
        assert await client.update(b"after")


class Generation:
    """The pods of one generation, reachable by names; ``resolve`` is the name service of all."""

    def __init__(self, folder: Path, number: int, count: int, port: int) -> None:
        self.number = number
        self.folder = folder
        self.port = port
        self.members = tuple(
            (f"c-server-g{number}-{pod}", f"tcp://c-server-g{number}-{pod}.c:{port}") for pod in range(count)
        )
        self.servers: list[RaftServer] = []

    async def start(self, stack: AsyncExitStack) -> None:
        self.servers = [await self.pod(stack, number) for number in range(len(self.members))]

    async def pod(self, stack: AsyncExitStack, number: int) -> RaftServer:
        peer, url = self.members[number]
        config = Config(
            id=peer,
            ident=IDENT,
            url=url,
            seeds=(f"tcp://c-seeds:{self.port}",),
            lost_voter=LostVoter.BY_CHANGE,
            election_min=ELECTION_MIN_MS,
            election_max=ELECTION_MAX_MS,
        )
        [address] = resolve(url.removeprefix("tcp://").partition(":")[0])
        server = RaftServer(
            config,
            data=self.folder / peer,
            bind=f"tcp://{address}:{self.port}",
            source=address,
            cluster_id="c",
            stage=Stage.READ_ONLY,
            resolve=resolve,
        )
        return await started(stack, server)

    async def allow_writes(self, token: Token) -> None:
        for server in self.servers:
            await server.store_token(token)
            server.set_stage(Stage.READ_WRITE)

    async def stop(self) -> None:
        for server in self.servers:
            await server.stop()


def resolve(name: str) -> Sequence[str]:
    """Every test process has a loopback network of its own: 127.<from its pid>.<generation>.<pod>."""
    network = f"127.{os.getpid() % 200 + 20}"
    if name == "c-seeds":
        return [f"{network}.{number}.{pod + 1}" for number in (1, 2) for pod in range(3)]
    _, _, generation, pod = name.removesuffix(".c").split("-")
    return [f"{network}.{generation[1:]}.{int(pod) + 1}"]


async def test_a_generation_is_bootstrapped_and_replaced_under_load_without_loss(
    tmp_path: Path, stack: AsyncExitStack
) -> None:
    """Steps 1 to 5 of docs/specs/operator.md 3.1, as the operator drives them."""
    port = free_ports(1)[0]
    first, second = Generation(tmp_path, 1, 3, port), Generation(tmp_path, 2, 3, port)
    await first.start(stack)
    for server in first.servers:
        server.bootstrap(first.members)
    await first.allow_writes(Token(1, 1))
    client = await stack.enter_async_context(
        RaftClient([url for _, url in first.members], IDENT, resolve=lambda name: list(resolve(name)))
    )
    await client.update(b"first")
    entries = [entry async for entry in client.entries(count=1)]
    assert (entries[0].index, entries[0].type, entries[0].term) == (1, EntryType.CONFIG, 0)

    acknowledged: list[bytes] = [b"first"]
    enough = asyncio.Event()

    async def write() -> None:
        while not enough.is_set():
            data = b"%d" % len(acknowledged)
            await client.update(data)
            acknowledged.append(data)

    writing = asyncio.create_task(write())
    await second.start(stack)
    await eventually(lambda: all(0 < s.status().applied > s.status().target - 100 for s in second.servers))
    assert {server.status().role for server in second.servers} == {Role.LEARNER}
    await second.allow_writes(Token(2, 5))
    assert {server.status().role for server in second.servers} == {Role.LEARNER}
    await client.change_members(second.members)
    await eventually(lambda: any(leads(server) for server in second.servers))
    await eventually(lambda: all(s.status().committed.new == second.members for s in second.servers))
    await eventually(lambda: all(s.status().role is Role.REMOVED for s in first.servers))
    behind = len(acknowledged) + 20
    await eventually(lambda: len(acknowledged) > behind)
    await first.stop()
    enough.set()
    await writing
    assert await written(client) == acknowledged

    await second.stop()
    await second.start(stack)
    await eventually(lambda: any(leads(server) for server in second.servers))
    assert [server.token for server in second.servers] == [Token(2, 5)] * 3
    assert {server.fence() for server in second.servers} == {Fence.NAMED}
    assert {server.status().stage for server in second.servers} == {Stage.READ_WRITE}
    assert await written(client) == acknowledged

    await first.start(stack)
    await eventually(lambda: {server.fence() for server in first.servers} == {Fence.SUPERSEDED})
    assert not any(leads(server) for server in first.servers)


async def test_a_pod_whose_volume_was_wiped_says_so_and_does_not_vote(tmp_path: Path, stack: AsyncExitStack) -> None:
    port = free_ports(1)[0]
    generation = Generation(tmp_path, 1, 3, port)
    await generation.start(stack)
    for server in generation.servers:
        server.bootstrap(generation.members)
    await generation.allow_writes(Token(1, 1))
    async with RaftClient([url for _, url in generation.members], IDENT, resolve=lambda n: list(resolve(n))) as client:
        await client.update(b"kept")
        wiped = next(n for n, server in enumerate(generation.servers) if not leads(server))
        await generation.servers[wiped].stop()
        for file in sorted((tmp_path / generation.members[wiped][0]).rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        others = [server for n, server in enumerate(generation.servers) if n != wiped]
        generation.servers[wiped] = await generation.pod(stack, wiped)
        await eventually(lambda: generation.servers[wiped].fence() is Fence.LOST)
        await eventually(lambda: "StateLost" in generation.servers[wiped].status().blockers)
        assert any(leads(server) for server in others)
        assert await client.update(b"goes on")


async def test_a_failed_sync_ends_the_peer_and_acknowledges_nothing(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    async with RaftClient([place.url], IDENT) as client:
        acknowledged = [b"%d" % number for number in range(5)]
        for data in acknowledged:
            await client.update(data)

        def fail(descriptor: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fail)
            with pytest.raises(RaftError):
                await client.update(b"lost?", timeout_s=1.0)
            failure = await server.failure
            with pytest.raises(OSError, match="ended"):
                await server.store_token(Token(1, 1))
            await server.stop()
        assert failure.exit_code is Exit.DISK
        assert "Input/output error" in failure.reason
        await started(stack, place.server())
        assert (await written(client))[:5] == acknowledged


async def test_a_token_that_cannot_be_made_durable_is_refused(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server(stage=Stage.READ_ONLY))
    await server.store_token(Token(1, 1))

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            await server.store_token(Token(2, 2))
        assert (await server.failure).exit_code is Exit.DISK
        await server.stop()


async def test_a_full_disk_ends_the_peer_and_loses_nothing_acknowledged(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    async with RaftClient([place.url], IDENT) as client:
        acknowledged = [b"%d" % number for number in range(5)]
        for data in acknowledged:
            await client.update(data)
        write = os.pwritev

        def half(descriptor: int, parts: Sequence[bytes], offset: int) -> int:
            whole = b"".join(parts)
            write(descriptor, [whole[: len(whole) // 2]], offset)
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwritev", half)
            with pytest.raises(RaftError):
                await client.update(b"no room", timeout_s=1.0)
            failure = await server.failure
            await server.stop()
        assert failure.exit_code is Exit.DISK
        await started(stack, place.server())
        assert await written(client) == acknowledged


async def test_rot_in_a_followers_log_is_mended_from_the_leader(tmp_path: Path, stack: AsyncExitStack) -> None:
    peers = places(tmp_path, 3)
    servers = [await started(stack, place.server()) for place in peers]
    async with RaftClient([place.url for place in peers], IDENT) as client:
        for number in range(50):
            last = await client.update(b"number %d" % number)
        hurt = next(number for number, server in enumerate(servers) if not leads(server))
        await eventually(lambda: servers[hurt].status().applied == last)
        await servers[hurt].stop()
        [segment] = (peers[hurt].data / "log").glob("*.seg")
        data = bytearray(segment.read_bytes())
        data[data.index(b"number 20")] ^= 1
        segment.write_bytes(data)
        servers[hurt] = await started(stack, peers[hurt].server())
        assert servers[hurt].status().recovering
        damaged = [metric[1:] for metric in servers[hurt].metrics() if metric[0] == "pavane_raft_corrupt_total"]
        assert damaged == [({"where": "log"}, 1)]
        last = await client.update(b"after")
        await eventually(lambda: servers[hurt].status().applied >= last and not servers[hurt].status().recovering)
        aside = list((peers[hurt].data / "log").glob("*.corrupt*"))
        assert [path.read_bytes() for path in aside] == [bytes(data)]
        # Its log is whole again: it can lead alone with one other, and serve every entry.
        await client.transfer(peers[hurt].id)
        await eventually(lambda: leads(servers[hurt]))
        assert await written(client) == [b"number %d" % number for number in range(50)] + [b"after"]


async def test_rot_is_found_while_a_peer_runs(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = places(tmp_path, 3)
    servers = [await started(stack, place.server()) for place in peers]
    async with RaftClient([place.url for place in peers], IDENT) as client:
        last = [await client.update(b"number %d" % number) for number in range(50)][-1]
        hurt = next(number for number, server in enumerate(servers) if not leads(server))
        await eventually(lambda: servers[hurt].status().applied == last)
        await servers[hurt].stop()
        monkeypatch.setattr(aio, "SCRUB_S", 0.05)
        servers[hurt] = await started(stack, peers[hurt].server())
        last = await client.update(b"sound so far")
        await eventually(lambda: servers[hurt].status().applied == last)
        assert not servers[hurt].failure.done()
        [segment] = (peers[hurt].data / "log").glob("*.seg")
        with segment.open("r+b") as file:
            file.seek(segment.read_bytes().index(b"number 20"))
            file.write(b"N")
        failure = await servers[hurt].failure
        assert failure.exit_code is Exit.DISK
        assert segment.name in failure.reason
        await servers[hurt].stop()
        servers[hurt] = await started(stack, peers[hurt].server())
        assert servers[hurt].status().recovering
        await eventually(lambda: not servers[hurt].status().recovering)


async def test_a_store_serves_one_peer_of_one_cluster(tmp_path: Path, stack: AsyncExitStack) -> None:
    first, second = places(tmp_path, 2)
    await started(stack, first.server(cluster_id="a"))
    second.data = first.data
    with pytest.raises(StoreLocked):
        await second.server().start()
    await stack.aclose()
    with pytest.raises(ForeignStore, match="belongs to peer '1'"):
        await second.server().start()
    with pytest.raises(ForeignStore, match="cluster_id 'a'"):
        await first.server(cluster_id="b").start()


async def test_an_address_in_use_is_named_and_leaves_the_store_free(tmp_path: Path, stack: AsyncExitStack) -> None:
    first, second = places(tmp_path, 2)
    await started(stack, first.server())
    taken = first.url
    right = second.url
    second.url = taken
    with pytest.raises(CannotBind, match=taken):
        await second.server().start()
    second.url = right
    await started(stack, second.server())


@pytest.mark.parametrize("quick", [True, False], ids=["quick disk", "slow disk"])
async def test_a_peer_waits_for_a_quick_disk_itself_and_hands_what_is_slow_to_a_thread(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, *, quick: bool
) -> None:
    monkeypatch.setattr(aio, "MARK_AFTER_S", 60.0)
    monkeypatch.setattr("pavane.wal.times.STALL_S", 60.0)
    handed: list[Batch] = []
    submit = Writer.submit

    def hand_over(writer: Writer, batch: Batch) -> None:
        handed.append(batch)
        submit(writer, batch)

    [place] = places(tmp_path, 1)
    await started(stack, place.server())
    async with RaftClient([place.url], IDENT) as client:
        await client.update(b"first")
        monkeypatch.setattr("pavane.wal.writer.HERE_S", 60.0 if quick else 0.0)
        monkeypatch.setattr("pavane.wal.times.SLOW_S", 60.0)
        monkeypatch.setattr(Writer, "submit", hand_over)
        indices = [await client.update(b"update") for _ in range(10)]
        assert indices == list(range(indices[0], indices[0] + 10))
    assert len([batch for batch in handed if batch.sync]) == (0 if quick else 10)


async def test_a_leader_takes_a_part_of_what_came_and_syncs_it_before_the_rest(
    tmp_path: Path, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "TURN_ENTRIES", 8)
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    async with RaftClient([place.url], IDENT) as client:
        first = await client.update(b"first")
        sizes: list[int] = []
        execute = RaftStorage.execute

        def watch(storage: RaftStorage, commands: Sequence[StoreCommand]) -> None:
            sizes.extend(len(command.entries) for command in commands if isinstance(command, Append))
            execute(storage, commands)

        monkeypatch.setattr(RaftStorage, "execute", watch)
        monkeypatch.setattr(procedure, "PART_ITEMS", 4)
        monkeypatch.setattr(procedure, "PARTS", 64)
        indices = await asyncio.gather(*(client.update(b"update") for _ in range(64)))
    assert sorted(indices) == list(range(first + 1, first + 65))
    assert max(sizes) <= 8 + 16, "a quarter of what is not committed may come on top"
    assert server.status().last >= first + 64


async def test_the_leader_publishes_what_it_applies_where_it_says(tmp_path: Path, stack: AsyncExitStack) -> None:
    [place] = places(tmp_path, 1)
    publish = free_url()
    config = Config(place.id, IDENT, url=place.url, peers=place.members, broadcast_url=publish, broadcast_heartbeat=50)
    server = RaftServer(config, data=place.data, bind=place.url, publish=publish)
    await started(stack, server)
    context = zmq.asyncio.Context()
    try:
        asking, subscriber = context.socket(zmq.DEALER), context.socket(zmq.SUB)
        for one in (asking, subscriber):
            one.set(zmq.LINGER, 0)
            one.set(zmq.RCVTIMEO, WAIT_MS)
        asking.connect(place.url)
        await asking.send_multipart([b"id", b"*", IDENT])
        assert await asking.recv_multipart() == [b"id", publish.encode()]
        subscriber.set(zmq.SUBSCRIBE, IDENT)
        subscriber.connect(publish)
        # The first message, an empty one after a pause, proves that the subscription has arrived.
        await subscriber.recv_multipart()
        async with RaftClient([place.url], IDENT) as client:
            index = await client.update(b"news")
        heard = decode_broadcast(await subscriber.recv_multipart(), IDENT)
        while isinstance(heard, StateBroadcast) and not heard.entries:
            heard = decode_broadcast(await subscriber.recv_multipart(), IDENT)
        assert isinstance(heard, StateBroadcast)
        assert heard.applied_index == index
        assert [bytes(entry_data(entry)) for entry in heard.entries] == [b"news"]
    finally:
        context.destroy(linger=0)


async def test_metrics_tell_what_happened(tmp_path: Path, stack: AsyncExitStack) -> None:
    [place] = places(tmp_path, 1)
    server = await started(stack, place.server())
    async with RaftClient([place.url], IDENT) as client:
        for number in range(7):
            last = await client.update(b"%d" % number)
        with pytest.raises(Expired):
            await client.update(b"late", reqid=(1_000_000_000).to_bytes(4, "big") + bytes(8))
    found = {(name, *labels.values()): value for name, labels, value in server.metrics()}
    assert found["pavane_raft_commit_index",] == last
    assert found["pavane_raft_is_leader",] == 1
    assert found["pavane_raft_updates_total", "done"] == 7
    assert found["pavane_raft_updates_total", "expired"] == 1
    assert found["pavane_raft_update_seconds_count",] == 7
    assert found["pavane_raft_fsync_seconds_count",] >= 1
    assert found["pavane_raft_fsync_batch_entries_sum",] == found["pavane_raft_last_index",]
    assert 1 <= found["pavane_raft_commit_seconds_count",] <= 8
    assert found["pavane_raft_members", "leader"] == 1


async def test_metrics_tell_of_the_other_members(tmp_path: Path, stack: AsyncExitStack) -> None:
    peers = places(tmp_path, 3)
    servers = [await started(stack, place.server()) for place in peers]
    async with RaftClient([place.url for place in peers], IDENT) as client:
        last = [await client.update(b"%d" % number) for number in range(5)][-1]
        assert len([entry async for entry in client.entries(after=1)]) == last - 1
        leader = next(server for server in servers if leads(server))
        others = {member.id for member in leader.status().members} - {leader.status().id}

        def found(name: str) -> dict[tuple[str, ...], float]:
            return {
                tuple(labels.values()): value
                for each, labels, value in leader.metrics()
                if each == f"pavane_raft_{name}"
            }

        await eventually(lambda: found("heartbeat_round_seconds_count")[()] > 0)
        await eventually(lambda: all(found("peer_match_index")[peer,] == last for peer in others))
        assert found("members") == {("leader",): 1, ("follower",): 2, ("learner",): 0}
        assert found("entries_read_total")[()] == last - 1
        entries, messages = found("append_batch_entries_sum"), found("append_batch_entries_count")
        assert entries.keys() == messages.keys() == {(peer,) for peer in others}
        assert all(1 <= messages[peer] <= entries[peer] for peer in messages)
        assert max(entries.values()) >= last  # one of them took part in all; repetitions of an unanswered one are apart


async def test_members_that_the_log_knows_better_are_told_at_the_next_start(
    tmp_path: Path, stack: AsyncExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    peers = places(tmp_path, 2)
    servers = [await started(stack, place.server()) for place in peers]
    async with RaftClient([place.url for place in peers], IDENT) as client:
        await client.update(b"data")
        await client.change_members([(peers[0].id, peers[0].url)])
        await eventually(lambda: servers[0].status().committed == Configuration((peers[0].members[0],)))
    await servers[0].stop()
    assert "the stored configuration wins" not in caplog.text
    await started(stack, peers[0].server())
    assert f"Stored: 1={peers[0].url}. Given: 1={peers[0].url}, 2={peers[1].url}" in caplog.text
