"""Partitions that are added to a log which runs, without a restart of anything (docs/specs/waltz.md 8.6)."""

import asyncio
import errno
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from pavane.waltz.aio import links
from pavane.waltz.aio.adopting import adopt_cluster
from pavane.waltz.aio.cluster import check_tree, make_tree, read_view, set_replicas
from pavane.waltz.aio.stream import Stream, connect
from pavane.waltz.client import Waltz
from pavane.waltz.state.metadata import Paths
from pavane.waltz.storage import Directory
from pavane.waltz.wire import messages as m
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.blobs import PARTITION_METADATA
from pavane.waltz.wire.frame import STORAGE_CLIENT
from tests.services.eventually import eventually
from tests.services.memory_disk import MemoryDisk
from tests.services.waltz.memory import MemoryMetadata
from tests.services.waltz.running import KEY, Log, RawClient, running_log
from tests.services.waltz.test_power_loss import PowerCutError, power_until

STEPS_MAX = 200
COUNT_S = 90.0  # a session that waited in vain, on a busy machine, is followed by 10 s of rest


async def grown(log: Log, partitions: int) -> None:
    log.config = replace(log.config, partitions=partitions)
    await set_replicas(log.metadata, log.config)


async def test_running_servers_storage_nodes_and_clients_take_new_partitions(tmp_path: Path) -> None:
    async with (
        running_log(tmp_path, partitions=2, servers=2) as log,
        Waltz([f"127.0.0.1:{server.port}" for server in log.servers]) as client,
    ):
        owners = await log.settled()
        for partition in range(2):
            assert await client.append(partition, b"before", write=[("account", 7)]) == 0
        sessions = {number: server.running.owned[number].session for number, server in owners.items()}
        feed = client.feed(0)
        assert (await anext(feed)).data == b"before"
        places = [await client.partition_of(f"account {number}") for number in range(50)]
        assert set(places) == {0, 1}
        await grown(log, 20)  # more than a node makes at a time
        await log.settled()
        assert await client.append(19, b"new", write=[("account", 7)]) == 0, "a client that was open finds it by itself"
        assert [tx.data async for tx in client.read(17, 0, 1)] == []
        consumer = client.consumer("billing")
        assert await consumer.start(18, at=0) == 0
        assert client.partition_count == len(await client.partitions()) == 20
        assert await client.append(0, b"after", write=[("account", 7)]) == 1
        assert (await anext(feed)).data == b"after"
        await feed.aclose()
        present = {number: server.running.owned[number].session for number, server in owners.items()}
        assert present == sessions, "nothing was interrupted"
        with pytest.raises(ValueError, match="partitions 0 to 19, not 20"):
            await client.append(20, b"none")
        async with Waltz([f"127.0.0.1:{server.port}" for server in log.servers]) as late:
            found = [await late.partition_of(f"account {number}") for number in range(50)]
        assert found == places, "a lock is checked where it always was"
        old = await RawClient.connect(log.servers[0].port, versions=[4])
        number = next(number for number in log.servers[0].running.owned if number > 1)
        await old.mount(-1 if number != 19 else 0, partition=number)
        old.append(b"from a client of the original", hwm=0, partition=number)
        old.send(m.FlushRequest(old.reqid(number)))
        assert (await old.next(m.FlushResponse)).txid >= 0


async def test_a_storage_node_that_starts_with_the_former_number_keeps_what_was_added(tmp_path: Path) -> None:
    async with running_log(tmp_path, partitions=1) as log, Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
        former = log.config
        await grown(log, 3)
        await log.settled()
        assert await client.append(2, b"kept") == 0
        log.config = former
        for index in range(3):
            await log.stop_node(index)
            await log.start_node(index)
        assert await client.append(2, b"and on") == 1
        assert all(node.directory.partitions == 3 for node in log.nodes.values())
        late = await log.start_server()
        assert late.running is not None
        await check_tree(log.metadata, former)
        view = await read_view(log.metadata, former.root)
        assert view is not None
        assert view.partitions == 3
        await set_replicas(log.metadata, former)
        view = await read_view(log.metadata, former.root)
        assert view is not None
        assert view.partitions == 3, "they never become fewer"


async def test_a_node_hears_of_partitions_that_came_while_a_server_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = links._Link.opened

    def grown_meanwhile(stream: links._Link) -> None:
        opened(stream)
        link.grow(3)

    async with running_log(tmp_path, servers=0) as log:
        monkeypatch.setattr(links._Link, "opened", grown_meanwhile)
        address, key = log.config.storage[0], log.config.key
        link = links.StorageLink(
            address, key, 1, tls=None, up=lambda _: None, down=lambda _: None, heard=lambda *_: None
        )
        connecting = asyncio.create_task(link.run())
        await eventually(lambda: log.nodes[0].directory.partitions == 3)
        connecting.cancel()
        await asyncio.wait({connecting})


async def test_two_who_let_a_log_grow_at_once_agree(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log:
        wanted = [replace(log.config, partitions=count) for count in (4, 6)]
        await asyncio.gather(*(set_replicas(log.metadata, each) for each in wanted), return_exceptions=True)
        await set_replicas(log.metadata, wanted[0])
        await set_replicas(log.metadata, wanted[1])
        view = await read_view(log.metadata, log.config.root)
        assert view is not None
        assert view.partitions == 6
        await make_tree(log.metadata, log.config)  # a server of before changes nothing
        view = await read_view(log.metadata, log.config.root)
        assert view is not None
        assert view.partitions == 6


@pytest.mark.parametrize("version", [0, 1])
async def test_only_servers_of_ours_let_a_node_grow(tmp_path: Path, version: int) -> None:
    class Link(Stream):
        def __init__(self) -> None:
            super().__init__(STORAGE_CLIENT, connecting=True, versions=(version,))
            self.answers: asyncio.Queue[object] = asyncio.Queue()

        def opened(self) -> None:
            self.send(s.Open(s.OPEN_HEAD, KEY, 2))

        def heard(self, message: object) -> None:
            self.answers.put_nowait(message)

    async with running_log(tmp_path, servers=0) as log:
        link = await connect(Link, log.config.storage[0], None)
        answer = await link.answers.get()
        assert isinstance(answer, s.Success if version else s.Failure)
        assert log.nodes[0].directory.partitions == 1 + version
        link.send(s.Open(s.OPEN_HEAD, KEY, 1 << 20))
        assert isinstance(await link.answers.get(), s.Failure)
        link.hang_up("done")


def test_what_a_full_disk_left_undone_of_growth_is_made_up_without_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Directory(MemoryDisk().folder(), KEY, 2)
    directory.assign(range(2))
    assign = directory.assign

    def full(numbers: Iterable[int]) -> None:
        assign(number for number in numbers if number < 3)
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(directory, "assign", full)
        with pytest.raises(OSError, match="no space"):
            directory.grow(5)
    assert directory.grown < 5, "the next who opens it is told that all are there"
    while not directory.grow(5):
        pass
    assert directory.grown == 5
    assert [files.number for files in directory.assigned()] == [0, 1, 2, 3, 4]
    directory.close()


def test_a_power_cut_while_a_node_grows_leaves_a_whole_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(STEPS_MAX):
        disk = MemoryDisk()
        directory = Directory(disk.folder(), KEY, 2)
        directory.assign(range(2))
        directory.sync_marks()
        cut = False
        with power_until(step, monkeypatch):
            try:
                directory.grow(5)
            except PowerCutError:
                cut = True
        disk.crash(random.Random(step))
        again = Directory(disk.folder(), KEY, 2)
        assert again.partitions in ((2, 5) if cut else (5,))
        while not again.grow(5):
            pass
        again.assign(range(5))
        assert [(files.number, files.fault, files.max_txid) for files in again.assigned()] == [
            (number, "", -1) for number in range(5)
        ]
        again.close()
        if not cut:
            return
    raise AssertionError("it never came to its end")


async def test_an_adoption_by_a_server_of_before_finds_all_partitions_and_keeps_keys_where_they_are(
    tmp_path: Path,
) -> None:
    async with running_log(tmp_path, partitions=2) as log:
        former = log.config
        await grown(log, 4)
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            assert await client.append(3, b"kept") == 0
            place = await client.partition_of("account 7")
        await log.servers.pop().stop()
        log.metadata = MemoryMetadata()
        admins = [log.admin(index) for index in range(3)]
        found = await adopt_cluster(log.metadata, former, admins, None, None, keys=2)
        assert len(found) == 4
        await log.start_server()
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            assert (await client.get(3, 0)).data == b"kept"
            assert await client.partition_of("account 7") == place
            assert client.partition_count == 4


async def test_a_storage_node_that_could_not_add_partitions_says_why_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_log(tmp_path, partitions=2) as log:
        await log.settled()
        directory, server = log.nodes[1].directory, log.servers[0]
        grow, room = directory.grow, asyncio.Event()

        def full(partitions: int) -> bool:
            if not room.is_set():
                raise OSError(errno.ENOSPC, "No space left on device")
            return grow(partitions)

        monkeypatch.setattr(directory, "grow", full)
        await grown(log, 4)
        fault = await eventually(server.storage_fault, COUNT_S)
        assert list(fault) == [log.config.storage[1]]
        assert "partitions cannot be added: [Errno 28]" in fault[log.config.storage[1]]
        room.set()
        await log.settled()
        assert not server.storage_fault()


async def test_an_adoption_takes_partitions_that_were_added_and_never_open(
    tmp_path: Path,
) -> None:
    """They were never open, for a storage node was away; then the registry was lost."""
    async with running_log(tmp_path, partitions=2) as log:
        former = log.config
        await log.settled()  # a partition that is not open yet never will be without the node
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            assert await client.append(0, b"kept") == 0
        await log.stop_node(2)
        await grown(log, 4)
        await eventually(lambda: all(log.nodes[each].directory.partitions == 4 for each in (0, 1)), COUNT_S)
        await log.servers.pop().stop()
        more, log.config = log.config, former
        await log.start_node(2)
        log.metadata = MemoryMetadata()
        found = await adopt_cluster(log.metadata, former, [log.admin(index) for index in range(3)], None, None, keys=2)
        assert [one.metadata is None for one in found] == [False, False, True, True]
        await log.start_server()
        log.config = more
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            assert (await client.get(0, 0)).data == b"kept"
            assert await client.append(3, b"new") == 0


async def counting(log: Log, storage: tuple[str, ...]) -> None:
    """Wait until these nodes count, and vote, in every partition, and no others do."""
    paths = Paths(log.config.root)
    partitions = range(log.config.partitions)
    async with asyncio.timeout(COUNT_S):
        while True:
            nodes = [await log.metadata.get(paths.partition(number)) for number in partitions]
            metas = [PARTITION_METADATA.decode(node.data) for node in nodes if node is not None]
            if all(
                {(one.address, one.session) for one in meta.replicas} == {(each, meta.session) for each in storage}
                for meta in metas
            ):
                return
            await asyncio.sleep(0.05)


async def test_storage_nodes_come_and_go_under_appends_and_the_rest_goes_with_them(tmp_path: Path) -> None:
    async with (
        running_log(tmp_path, partitions=2, nodes=5) as log,
        Waltz([f"127.0.0.1:{server.port}" for server in log.servers]) as client,
    ):
        everybody = log.config.storage
        await log.settled()
        stop = asyncio.Event()

        async def write(partition: int) -> int:
            count = 0
            while not stop.is_set():
                assert await client.append(partition, b"%d" % count) == count, "nothing is lost or doubled"
                count += 1
            return count

        writers = [asyncio.create_task(write(partition)) for partition in range(2)]
        for wanted in (everybody[:3], everybody, everybody[2:]):
            log.config = replace(log.config, storage=wanted)
            await set_replicas(log.metadata, log.config)
            await counting(log, wanted)
        for index in range(2):
            await log.stop_node(index)
        stop.set()
        counts = await asyncio.gather(*writers)
        assert [await client.append(partition, b"more") for partition in range(2)] == counts
        found = [tx.data async for tx in client.read(0, 0, counts[0])]
        assert found == [b"%d" % number for number in range(counts[0])]
        await eventually(lambda: set(log.servers[0]._links) == set(everybody[2:]))


async def test_nothing_is_asked_of_a_new_node_until_it_is_filled(tmp_path: Path) -> None:
    """Two of three go on when one that is to join never comes, and a majority of those that count decides."""
    async with (
        running_log(tmp_path, nodes=5) as log,
        Waltz([f"127.0.0.1:{server.port}" for server in log.servers]) as client,
    ):
        everybody = log.config.storage
        log.config = replace(log.config, storage=everybody[:3])
        await set_replicas(log.metadata, log.config)
        await log.settled()
        await counting(log, everybody[:3])
        await log.stop_node(3)
        await log.stop_node(4)
        log.config = replace(log.config, storage=everybody)
        await set_replicas(log.metadata, log.config)
        await eventually(lambda: set(log.servers[0].running.owned[0].joining) == set(everybody[3:]))
        await log.stop_node(0)
        assert [await client.append(0, b"on") for _ in range(3)] == [0, 1, 2]
        late = await log.start_server()  # it finds a change under way
        await log.settled()
        await client.partitions()  # so that the client knows it
        await log.servers.pop(0).stop()
        assert await client.append(0, b"on") == 3
        assert set(late.running.owned[0].joining) == set(everybody[3:])
        for index in (0, 3, 4):
            await log.start_node(index)
        await counting(log, everybody)
        assert await client.append(0, b"on") == 4
