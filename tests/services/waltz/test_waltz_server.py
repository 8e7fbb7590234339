"""A server and its storage nodes as clients of every version see them."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pavane.wal.files import DiskFolder
from pavane.waltz.client import Waltz
from pavane.waltz.core import feed, rounds
from pavane.waltz.core.node import Node
from pavane.waltz.errors import RejectCode
from pavane.waltz.storage import Directory
from pavane.waltz.storage.directory import PartitionFiles
from pavane.waltz.wire import messages as m
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.storage import Record
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, KEY, RawClient, running_log


async def test_append_is_acknowledged_and_fed(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        client = await RawClient.connect(log.servers[0].port)
        mount = await client.mount()
        reqid = client.append(b"hello")
        assert await client.next(m.AppendAck) == m.AppendAck(reqid, 0, 0)
        client.send(m.FeedBatchRequest(mount, -1, 100, 1 << 20, 0, -1, 0))
        batch = await client.next(m.FeedBatch)
        assert batch.first_txid == 0
        assert batch.items == (m.FeedItem(reqid, 7, b"hello"),)
        client.hang_up("done")


async def test_a_stale_append_names_the_transaction_that_it_missed(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        client = await RawClient.connect(log.servers[0].port)
        await client.mount()
        client.append(b"first", -1, write=[42])
        await client.next(m.AppendAck)
        stale = client.append(b"second", -1, write=[42])
        assert await client.next() == m.LockFailure(stale, 0)
        adder = client.append(b"third", -1, append=[42])  # adders do not exclude each other
        assert await client.next() == m.AppendAck(adder, 1, 0)
        reader = client.append(b"fourth", 0, read=[42])
        assert await client.next() == m.LockFailure(reader, 1)
        fresh = client.append(b"fifth", 1, write=[42], read=[42])
        assert await client.next() == m.AppendAck(fresh, 2, 0)
        client.hang_up("done")


async def test_a_client_of_version_4_mounts_feeds_and_fetches(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        writer = await RawClient.connect(log.servers[0].port, client=1)
        await writer.mount()
        ids = [writer.append(f"data {n}".encode()) for n in range(103)]
        for _ in ids:
            await writer.next(m.AppendAck)
        reader = await RawClient.connect(log.servers[0].port, versions=range(5), client=2)
        assert reader.channel.version == 4
        reader.send(m.MountRequest(reader.reqid(), 99, 0))
        assert [await reader.next() for _ in range(3)] == [m.FeedData(ids[n], n, 7) for n in range(100, 103)]
        assert (await reader.next()).state == m.MountState.READY
        feed = reader.reqid()
        reader.send(m.FeedRequest(feed, 99))
        assert [(await reader.next()).txid for _ in range(3)] == [100, 101, 102]
        for n in range(97):  # the credit of a feed is 100
            writer.append(b"more %d" % n)
        assert [(await reader.next()).txid for _ in range(97)] == list(range(103, 200))
        assert await reader.next() == m.FeedSuspended(feed)
        reader.send(m.TransactionDataRequest(reader.reqid(), 5))
        assert (await reader.next()).result == b"data 5"
        reader.send(m.TransactionDataRequest(reader.reqid(), 200))
        assert "TransactionNotFoundException: partition=0transactionId=200" in (await reader.next()).result
        reader.send(m.FlushRequest(reader.reqid()))
        assert (await reader.next()).txid == 199
        reader.send(m.MountRequest(reader.reqid(), 500, 0))
        assert (await reader.next()).state == m.MountState.CLIENT_AHEAD
        reader.append(b"wrong generation", generation=7)
        reader.send(m.HighWaterMarkRequest(reader.reqid()))
        assert (await reader.next()).txid == 199
        reader.send(m.FeedRequest(reader.reqid(), 1000))
        assert await reader.next() is None
        writer.hang_up("done")


@pytest.mark.parametrize("first", [0, 1, 99])
async def test_a_connection_that_asked_as_another_client_before_it_mounted_appends_and_leaves_nothing(
    tmp_path: Path, first: int
) -> None:
    async with running_log(tmp_path) as log:
        for round_ in range(2):
            client = await RawClient.connect(log.servers[0].port, versions=range(5), client=first)
            client.send(m.HighWaterMarkRequest(client.reqid()))
            assert (await client.next(m.HighWaterMarkResponse)).txid == round_ - 1
            client.client = 1
            await client.mount()  # a later one is no greater than the one that was here before
            reqid = client.append(b"hello")
            client.send(m.FlushRequest(client.reqid()))
            assert (await client.next(m.FlushResponse)).txid == round_
            client.send(m.FeedRequest(client.reqid(), round_ - 1))
            assert await client.next(m.FeedData) == m.FeedData(reqid, round_, 7)
            client.hang_up("done")
            await eventually(lambda: not any(one.clients for one in log.servers[0].running.owned.values()))


async def test_a_mount_that_waited_for_an_append_is_forgotten_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "BURST_BYTES", 1)  # as if the log were long: its server asks whether the peer reads
    monkeypatch.setattr(m, "BATCH_ITEMS_MAX", 1)
    async with running_log(tmp_path) as log:
        writer = await RawClient.connect(log.servers[0].port)
        await writer.mount()
        for number in range(3):
            writer.append(b"before")
            assert (await writer.next(m.AppendAck)).txid == number
        for index in (1, 2):
            await log.stop_node(index)
        writer.append(b"undecided")
        [partition] = log.servers[0].running.owned.values()
        await eventually(lambda: partition.queued or partition._pending, ANSWER_S)
        reader = await RawClient.connect(log.servers[0].port, client=2)
        reader.send(m.MountRequest(reader.reqid(), 0, 0))
        await eventually(lambda: len(partition.clients) == 2, ANSWER_S)
        reader.hang_up("it does not wait")
        await eventually(lambda: len(partition.clients) == 1, ANSWER_S)
        for index in (1, 2):
            await log.start_node(index)
        assert (await writer.next(m.AppendAck)).txid == 3
        await writer.mount(3)
        assert not len(partition.feeds)
        writer.hang_up("done")


async def test_the_log_goes_on_without_one_storage_node_and_takes_it_back(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        client = await RawClient.connect(log.servers[0].port)
        await client.mount()
        client.append(b"zero")
        assert (await client.next(m.AppendAck)).txid == 0
        await log.stop_node(2)
        for n in range(1, 20):
            client.append(b"more")
            assert (await client.next(m.AppendAck)).txid == n
        await log.start_node(2)
        await log.stop_node(1)  # now every append needs the one that was away
        for n in range(20, 40):
            client.append(b"still")
            assert (await client.next(m.AppendAck)).txid == n
        client.hang_up("done")
    held = [(tmp_path / f"node{index}" / "0" / f"{0:019d}.seg").stat().st_size for index in (0, 2)]
    assert held[0] == held[1]


async def test_another_server_takes_over_with_everything_that_was_acknowledged(tmp_path: Path) -> None:
    async with running_log(tmp_path, partitions=2, servers=2) as log:
        owner = (await log.settled())[0]
        other = next(server for server in log.servers if server is not owner)
        client = await RawClient.connect(owner.port)
        generation = owner.running.owned[0].generation
        await client.mount(generation=generation)
        client.append(b"kept", generation=generation)
        await client.next(m.AppendAck)
        await owner.stop()
        again = await RawClient.connect(other.port)
        await again.mount(generation=generation + 1)
        again.append(b"next", generation=generation + 1)
        assert (await again.next(m.AppendAck)).txid == 1
        again.hang_up("done")


async def test_any_server_tells_who_owns_what(tmp_path: Path) -> None:
    async with running_log(tmp_path, partitions=4, servers=2) as log:
        await log.settled()
        client = await RawClient.connect(log.servers[1].port)
        client.send(m.ViewRequest(client.reqid(), m.FLAG_CLIENT_ID))
        view = await client.next(m.View)
        assert (view.cluster, view.partitions) == ("ledger", 4)
        assert view.client_id > 0
        assert {server.port for server in view.servers} == {server.port for server in log.servers}
        assert sorted(one.partition for server in view.servers for one in server.partitions) == [0, 1, 2, 3]
        client.hang_up("done")


async def test_appends_whose_data_is_damaged_are_refused_or_end_the_connection(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        for version in (4, 5):
            client = await RawClient.connect(log.servers[0].port, versions=[version], client=version)
            await client.mount()
            frame = bytearray(client.channel.encode(m.AppendRequest(client.reqid(), -1, (), (), (), 0, b"data")))
            frame[-1] ^= 1
            transport = client._transport
            assert transport is not None
            transport.write(frame)
            answer = await client.next()
            assert (answer is None) if version == 4 else (answer.code == RejectCode.BAD_CHECKSUM)
            client.hang_up("done")


async def test_a_server_takes_the_partitions_that_it_is_told_to_prefer(tmp_path: Path) -> None:
    """As the original's tools ask for it; who asks about the partition meanwhile gets an answer when it has come."""
    async with running_log(tmp_path, partitions=2, servers=2) as log:
        owners = await log.settled()
        here, elsewhere = owners[0], owners[1]
        assert here is not elsewhere
        client = await RawClient.connect(here.port, versions=(4,))
        hwm, flush = client.reqid(partition=1), client.reqid(partition=1)
        client.send(m.HighWaterMarkRequest(hwm))
        client.send(m.FlushRequest(flush))
        client.send(m.AddPreferredRequest(client.reqid(), (0, 2)))
        assert not (await client.next()).done, "there is no partition 2"
        client.send(m.AddPreferredRequest(client.reqid(), (1,)))
        answers = {type(answer): answer for answer in [await client.next() for _ in range(3)]}
        assert answers[m.AddPreferredResponse].done
        assert answers[m.HighWaterMarkResponse] == m.HighWaterMarkResponse(hwm, -1)
        assert answers[m.FlushResponse] == m.FlushResponse(flush, -1)
        client.send(m.AddPreferredRequest(client.reqid(), (0,)))
        assert (await client.next()).done
        await eventually(lambda: sorted(here.running.owned) == [0, 1] and not elsewhere.running.owned)
        client.send(m.RemovePreferredRequest(client.reqid(), (0, 1)))
        assert (await client.next()).done
        await eventually(lambda: len(here.running.owned) == len(elsewhere.running.owned) == 1)
        client.hang_up("done")


async def test_what_comes_together_is_one_batch_and_what_comes_meanwhile_the_next_one(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        await log.settled()
        await log.until_all_vote()
        server, node = log.servers[0], log.nodes[0]
        client = await RawClient.connect(server.port)
        await client.mount()
        number = next(iter(server._clients))
        files = node.directory.partition(0)
        assert files is not None
        before = node.requests

        def give(count: int) -> None:
            def take(now: float) -> None:
                for _ in range(count):
                    bare = m.AppendIdempotent(client.reqid(), -1, (), (), (), 0, 0, -1, m.FLAG_ACK, b"data")
                    server.running.message(now, number, bare)

            server.adapter.call(take)

        give(50)
        for _ in range(3):
            give(10)  # nothing is decided yet: these wait for the first batch
        assert [(await client.next(m.AppendAck)).txid for _ in range(80)] == list(range(80))
        await eventually(lambda: files.max_txid == 79 and node.requests == before + 2)
        client.hang_up("done")


def test_partitions_that_were_appended_to_together_are_written_before_the_first_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(DiskFolder(tmp_path), KEY, 3)
    directory.assign(range(3))
    done: list[tuple[str, int]] = []
    begin_sync, sync = PartitionFiles.begin_sync, PartitionFiles.sync

    def beginning(self: PartitionFiles) -> None:
        done.append(("written", self.number))
        begin_sync(self)

    def syncing(self: PartitionFiles) -> None:
        done.append(("synced", self.number))
        sync(self)
        if self.number == 1:
            raise OSError("broken")

    monkeypatch.setattr(PartitionFiles, "begin_sync", beginning)
    monkeypatch.setattr(PartitionFiles, "sync", syncing)
    record = Record.of(0, ReqId(1, 1, 0, 1), 0, b"data")
    messages = [s.Append(s.Head(-1, number, number), (record,), False) for number in range(3)]
    answers = Node(directory).execute(messages)
    directory.close()
    assert [type(answer) for answer in answers] == [s.Success, s.Failure, s.Success], "each has its own fault"
    assert done == [(what, number) for what in ("written", "synced") for number in range(3)]


@pytest.mark.parametrize("broken", [lambda _: 1 // 0, lambda _: []], ids=["the work", "its answer"])
async def test_a_storage_node_whose_mistake_stops_the_disk_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[Sequence[Any]], list[Any]]
) -> None:
    async with running_log(tmp_path, partitions=1) as log:
        await log.settled()
        await log.until_all_vote()
        node = log.nodes[0]
        ended = asyncio.create_task(node.run())
        monkeypatch.setattr(node.node, "execute", broken)
        client = await RawClient.connect(log.servers[0].port)
        await client.mount()
        append = m.AppendIdempotent(client.reqid(), -1, (), (), (), 0, 0, -1, m.FLAG_ACK, b"data")
        client.send(append)
        assert (await client.next(m.AppendAck)).txid == 0, "the others are a majority"
        with pytest.raises((ZeroDivisionError, ValueError)):
            await asyncio.wait_for(ended, ANSWER_S)
        client.hang_up("done")


async def test_appends_of_several_partitions_go_to_storage_together_under_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "HOLD_S", 1000.0)  # a busy machine takes its time
    async with running_log(tmp_path, partitions=2) as log:
        await log.settled()
        await log.until_all_vote()
        server, node = log.servers[0], log.nodes[0]
        client = await RawClient.connect(server.port)
        for partition in (0, 1):
            await client.mount(partition=partition)
        number = next(iter(server._clients))
        before = node.requests

        def give(partition: int, count: int) -> None:
            def take(now: float) -> None:
                for _ in range(count):
                    reqid = client.reqid(partition)
                    bare = m.AppendIdempotent(reqid, -1, (), (), (), 0, 0, -1, m.FLAG_ACK, b"data")
                    server.running.message(now, number, bare)

            server.adapter.call(take)

        give(0, rounds.SHARED_APPENDS_MIN)
        for _ in range(3):
            give(1, 2)  # these wait for the other partition, and are one batch then
        acknowledged = [(await client.next(m.AppendAck)).reqid.partition for _ in range(rounds.SHARED_APPENDS_MIN + 6)]
        assert acknowledged == [0] * rounds.SHARED_APPENDS_MIN + [1] * 6
        await eventually(lambda: node.requests == before + 2)
        client.hang_up("done")


class Waiting:
    """A partition with appends that wait."""

    def __init__(self) -> None:
        self.queued = 0
        self.large = False
        self.asked = 0

    def append_queued(self) -> None:
        self.asked += 1


def test_a_large_queue_does_not_wait_until_the_others_have_gathered() -> None:
    one = Waiting()
    shared = rounds.Rounds()
    shared.now = 10.0
    shared.begin(one, 30)
    shared.now = 10.004
    shared.end(one)
    shared.wait(one)
    shared.go_on()
    assert not one.asked, "those that were answered are about to come again"
    one.large = True
    shared.go_on()
    assert one.asked


def test_a_round_begins_when_nearly_all_have_come_again_that_the_last_one_has_answered() -> None:
    one, other = Waiting(), Waiting()
    shared = rounds.Rounds()
    shared.now = 10.0
    shared.begin(one, 30)
    shared.begin(other, 10)
    one.queued = 10
    shared.now = 10.004
    shared.end(one)
    assert not shared.is_open(one), "the others are under way"
    shared.end(other)
    other.queued = 32
    assert not shared.is_open(other)
    assert shared.next_due() == pytest.approx(10.008), "no longer than the round took"
    other.queued = 33  # with the 10 that wait elsewhere 7/8 of these and of the 40 that were answered
    assert shared.is_open(other)
    other.queued = 0
    shared.now = 10.008
    assert shared.is_open(one)
    shared.begin(one, rounds.SHARED_APPENDS_MIN - 1)
    shared.now = 10.1
    shared.end(one)
    one.queued = 1
    assert shared.is_open(one), "so few that nobody waits for them"


def test_a_partition_waits_for_others_only_under_load_and_not_for_long() -> None:
    one, other = Waiting(), Waiting()
    shared = rounds.Rounds()
    shared.now = 10.0
    shared.begin(one, rounds.SHARED_APPENDS_MIN)
    assert shared.is_open(other), "what goes at the same time is one round"
    shared.now = 10.001
    assert not shared.is_open(other)
    assert shared.is_open(one)
    assert shared.next_due() == pytest.approx(10.0 + rounds.HOLD_S)
    shared.now = 10.0 + rounds.HOLD_S
    assert shared.is_open(other), "storage of the other partition is slow"
    shared.now = 10.001
    shared.end(one)
    shared.begin(one, rounds.SHARED_APPENDS_MIN - 1)
    shared.now = 10.002
    assert shared.is_open(other), "the processors have time"


async def test_a_partition_that_went_elsewhere_keeps_nothing_in_memory(tmp_path: Path) -> None:
    """It refers to itself, so what it holds is freed by the collector, and of what is frozen within an hour."""
    async with running_log(tmp_path, nodes=1) as log:
        await log.settled()
        server = log.servers[0]
        async with Waltz([f"127.0.0.1:{server.port}"]) as client:
            assert await client.append(0, b"data", write=[("a", 1)]) == 0
            partition = server.running.owned[0]
            left: list[weakref.ref[Any]] = [weakref.ref(partition.feeds.tail), weakref.ref(partition._locks)]
            gc.disable()
            try:
                server.adapter.call(lambda now: server.running.set_writable(now, writable=False))
                assert [each() for each in left] == [None, None]
            finally:
                gc.enable()


async def test_all_partitions_of_a_server_keep_the_newest_in_one_bound_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is older is read from storage; a partition that was alone gives room to those that come."""
    monkeypatch.setattr(feed, "TAILS_BYTES_MAX", 200_000)
    data = [b"%1000d" % number for number in range(150)]
    async with running_log(tmp_path, partitions=4, nodes=1) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            for partition in range(4):
                await asyncio.gather(*(client.append(partition, each) for each in data))
            tails = [partition.feeds.tail for partition in log.servers[0].running.owned.values()]
            assert all(0 < tail.first < 150 for tail in tails)
            assert sum(tail._bytes for tail in tails) <= 200_000
            for partition in range(4):
                assert sorted([one.data async for one in client.read(partition, 0, 150)]) == data
    alone = feed.Feeds([], lambda txid, limit, answer: answer(None))
    alone.opened(-1)
    alone.commit(Record.of(txid, ReqId(1, 1, 0, txid), 0, each) for txid, each in enumerate(data))
    assert alone.tail.first == 0 or alone.tail._bytes > 190_000
    alone.share(4)
    assert alone.tail._bytes <= 50_000
    alone.opened(999)
    alone.commit(Record.of(1000 + txid, ReqId(1, 1, 0, txid), 0, each) for txid, each in enumerate(data))
    assert alone.tail._bytes <= 50_000
