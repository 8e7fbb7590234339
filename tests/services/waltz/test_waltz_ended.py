"""A server that has ended is noticed by the others before its lease ends, and one that only seems so comes back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import UUID

import pytest

from pavane.waltz.aio.cluster import ClusterConfig, make_tree, register, set_rollout, unregister
from pavane.waltz.client import Waltz
from pavane.waltz.server import elsewhere as server_elsewhere
from pavane.waltz.server.elsewhere import Elsewhere
from pavane.waltz.state.metadata import Lease, Node, Paths
from pavane.waltz.wire import blobs
from tests.services.eventually import eventually
from tests.services.ports import free_ports
from tests.services.waltz.memory import MemoryLease, MemoryMetadata
from tests.services.waltz.running import ANSWER_S, Log, running_log

CONFIG = ClusterConfig("ledger", "/ledger", UUID(int=7), 1, ("a:1",))


class Patient(MemoryMetadata):
    """No lease of it ends, as if who held it had been killed a moment ago."""

    @asynccontextmanager
    async def lease(self, ttl_s: float) -> AsyncIterator[MemoryLease]:
        yield MemoryLease()


class Lagging(MemoryMetadata):
    """What is read may be old, but not over a lease."""

    not_yet = ""

    async def get(self, path: str, *, lease: Lease | None = None) -> Node | None:
        return None if path == self.not_yet and lease is None else await super().get(path, lease=lease)


@asynccontextmanager
async def two_servers(folder: Path, metadata: MemoryMetadata) -> AsyncIterator[tuple[Log, Waltz]]:
    async with running_log(folder, partitions=4, servers=0, metadata=metadata) as log:
        await set_rollout(metadata, log.config.root, 1, 2)
        for _ in range(2):
            await log.start_server(1)
        await log.settled()
        async with Waltz([f"127.0.0.1:{server.port}" for server in log.servers]) as client:
            yield log, client


async def test_the_partitions_of_a_server_that_has_ended_move_before_its_lease_ends(tmp_path: Path) -> None:
    async with two_servers(tmp_path, Patient()) as (log, client):
        written = [await client.append(partition, b"before") for partition in range(4)]
        await eventually(lambda: log.servers[1]._elsewhere._owners, ANSWER_S)
        await log.servers.pop(0).stop()
        async with asyncio.timeout(ANSWER_S):
            written += [await client.append(partition, b"after") for partition in range(4)]
        assert written == [0] * 4 + [1] * 4


async def test_the_next_process_of_a_server_may_end_before_anybody_has_seen_it(tmp_path: Path) -> None:
    """As in a pod that crashes whenever it has started: each time its partitions move at once."""
    async with two_servers(tmp_path, Patient()) as (log, client):
        await eventually(lambda: log.servers[1]._elsewhere._owners, ANSWER_S)
        ended, other = log.servers.pop(0), log.servers[0]
        port = ended.port
        await ended.stop()
        await eventually(lambda: not other._watched, ANSWER_S)
        descriptor = blobs.ServerDescriptor(99, "127.0.0.1", port, (0, 1, 2, 3))
        await register(log.metadata, log.config.root, MemoryLease(), descriptor, 1)
        await eventually(lambda: 99 in other._watched, ANSWER_S)
        async with asyncio.timeout(ANSWER_S):
            assert [await client.append(partition, b"after") for partition in range(4)] == [0] * 4


async def test_servers_that_watch_each_other_are_not_counted_as_clients(tmp_path: Path) -> None:
    async with two_servers(tmp_path, MemoryMetadata()) as (log, client):
        for partition in range(4):
            await client.append(partition, b"over one link to each server")
        await eventually(lambda: all(len(server._clients) == 2 for server in log.servers), ANSWER_S)
        told = [one.value for server in log.servers for one in server.metrics() if one.name == "pavane_waltz_clients"]
        assert told == [1, 1]


async def test_of_a_server_that_is_gone_nothing_is_kept(tmp_path: Path) -> None:
    async with two_servers(tmp_path, MemoryMetadata()) as (log, _):
        first, second = log.servers
        address, elsewhere = f"127.0.0.1:{first.port}", second._elsewhere
        await eventually(lambda: address in elsewhere._owners, ANSWER_S)
        await log.servers.pop(0).stop()
        await eventually(lambda: not second._watched, ANSWER_S)
        assert address not in elsewhere._owners
        assert address not in elsewhere._locks


async def test_a_server_takes_the_place_of_the_one_that_ended_at_its_address(tmp_path: Path) -> None:
    async with running_log(tmp_path, servers=0, metadata=Patient()) as log:
        await set_rollout(log.metadata, log.config.root, 1, 1)
        former = await log.start_server(1)
        await log.settled()
        address = f"127.0.0.1:{former.port}"
        await log.servers.pop().stop()
        server = await log.start_server(1)
        server._advertise = address  # before it registers: as in the next process of a pod
        await log.settled()
        assert server.running.view is not None
        assert list(server.running.view.servers) == [server.running.server_id]


async def test_a_server_that_lives_and_was_taken_for_ended_registers_again(tmp_path: Path) -> None:
    metadata = MemoryMetadata()
    async with two_servers(tmp_path, metadata) as (log, client):
        registered = log.servers[0]._registered
        await metadata.remove(registered)
        async with asyncio.timeout(ANSWER_S):
            for count in range(20):
                assert [await client.append(partition, b"data") for partition in range(4)] == [count] * 4
        await log.settled()
        assert log.servers[0]._registered not in ("", registered)


async def test_a_server_that_reads_of_a_time_before_it_registered_keeps_its_place(tmp_path: Path) -> None:
    metadata = Lagging()
    async with running_log(tmp_path, metadata=metadata) as log:
        await log.settled()
        server = log.servers[0].running
        registered = log.servers[0]._registered

        def is_seen() -> bool:
            return server.view is not None and server.server_id in server.view.servers

        metadata.not_yet = registered
        metadata._tell(Paths(log.config.root).servers)
        await eventually(lambda: not is_seen(), ANSWER_S)
        metadata.not_yet = ""
        metadata._tell(Paths(log.config.root).servers)
        await eventually(is_seen, ANSWER_S)
        assert log.servers[0]._registered == registered


@pytest.mark.parametrize("address", [":1234", "127.0.0.1:0", "127.0.0.1:-1"])
async def test_an_address_that_is_none_is_nobody_who_has_ended_or_answers(address: str) -> None:
    elsewhere = Elsewhere(CONFIG, MemoryMetadata(), None)
    assert not await elsewhere.ended(address)
    assert await elsewhere.hwm(address, 0) is None


async def test_a_slow_server_has_not_ended_because_another_had_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod that was made anew has another address, and at the former one somebody refuses."""
    monkeypatch.setattr(server_elsewhere, "ANSWER_S", 0.1)
    writers: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: writers.append(writer), "127.0.0.1", 0)
    (closed,) = free_ports(1)
    port = silent.sockets[0].getsockname()[1]
    asked = Elsewhere(CONFIG, MemoryMetadata(), None)
    asked._remember(f"127.0.0.1:{port}", f"127.0.0.2:{closed}")
    assert not await asked.ended(f"127.0.0.1:{port}")
    asked._remember(f"127.0.0.1:{closed}", f"127.0.0.1:{closed}")
    assert await asked.ended(f"127.0.0.1:{closed}")
    silent.close()
    for writer in writers:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_what_is_no_descriptor_keeps_nobody_from_registering() -> None:
    metadata, servers = MemoryMetadata(), Paths(CONFIG.root).servers
    await make_tree(metadata, CONFIG)
    descriptor = blobs.SERVER_DESCRIPTOR.encode(blobs.ServerDescriptor(1, "host", 1, ()))
    every = b"", b"nonsense", descriptor
    names = [await metadata.create(f"{servers}/s_", data, sequential=True) for data in every]
    await unregister(metadata, CONFIG.root, lambda one: one.server_id == 1)
    assert [f"{servers}/{name}" for name in await metadata.children(servers)] == names[:2]
