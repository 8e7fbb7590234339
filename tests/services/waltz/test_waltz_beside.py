"""A server that may not write reads a log beside its owner, from the storage nodes (docs/specs/waltz.md 14.2)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pavane.waltz.client import Waltz
from pavane.waltz.errors import RejectCode
from pavane.waltz.server import WaltzServer
from pavane.waltz.state.metadata import Paths
from pavane.waltz.wire import blobs
from pavane.waltz.wire import messages as m
from tests.services.eventually import eventually
from tests.services.waltz.running import Log, RawClient, running_log

ITEMS, BYTES = 1000, 1 << 20


@asynccontextmanager
async def beside(log: Log) -> AsyncIterator[tuple[WaltzServer, RawClient]]:
    """Run a server that may not write, once the tree tells it where the admin ports are, with a client of it."""
    ports = tuple(
        blobs.NodeNumber(address, log.nodes[index].tools.port) for index, address in enumerate(log.config.storage)
    )
    path = Paths(log.config.root).connections
    await log.settled()
    node = await log.metadata.get(path)
    assert node is not None
    await log.metadata.set(path, blobs.NODE_NUMBERS.encode(blobs.NodeNumbers(ports)), node.version)
    server = WaltzServer(log.config, log.metadata, advertise="127.0.0.1:0")
    await server.start("127.0.0.1", 0)
    try:
        await eventually(lambda: server.running.view)
        client = await RawClient.connect(server.port, (5,))
        yield server, client
        client.hang_up("done")
    finally:
        await server.stop()


def owner_of(log: Log) -> Waltz:
    return Waltz([f"127.0.0.1:{log.servers[0].port}"])


def kept(log: Log) -> list[Any]:
    """What each storage node has: who stamped it, whom it obeys, how many records."""
    partitions = [node.directory.partition(0) for node in log.nodes.values()]
    return [(files.info, files.fence, files.max_txid) for files in partitions if files is not None]


async def fed(client: RawClient, count: int) -> list[tuple[int, bytes | None]]:
    found: list[tuple[int, bytes | None]] = []
    while len(found) < count:
        batch = await client.next(m.FeedBatch)
        found += [(batch.first_txid + index, item.data) for index, item in enumerate(batch.items)]
    return found


async def test_a_server_that_may_not_write_reads_what_is_committed_and_touches_nothing(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log, beside(log) as (_, client), owner_of(log) as owner:
        written = [(await owner.append(0, data), data) for data in (b"first", b"second", b"third")]
        await eventually(lambda: all(max_txid == 2 for _, _, max_txid in kept(log)))
        before = kept(log)
        client.send(m.HighWaterMarkRequest(client.reqid()))
        assert (await client.next()).txid == 2
        for txid, data in written:
            client.send(m.TransactionDataRequest(client.reqid(), txid))
            assert (await client.next()).result == data
        client.send(m.TransactionDataRequest(client.reqid(), 3))
        assert "TransactionNotFoundException" in (await client.next()).result
        client.send(m.FeedBatchRequest(client.reqid(), 0, ITEMS, BYTES, 0, -1, 0))
        assert await fed(client, 2) == [(1, b"second"), (2, b"third")]
        assert kept(log) == before

        # What is appended from now on comes, too.
        await owner.append(0, b"fourth")
        assert await fed(client, 1) == [(3, b"fourth")]


async def test_a_server_that_may_not_write_refuses_whatever_is_meant_for_an_owner(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log, beside(log) as (server, client):
        client.send(m.MountRequest(client.reqid(), -1, 0))
        assert (await client.next()).state is m.MountState.NOT_READY
        client.append(b"data")
        client.send(m.FlushRequest(client.reqid()))
        client.send(m.FeedRequest(client.reqid(), -1))
        client.send(m.FeedBatchRequest(client.reqid(), 7, ITEMS, BYTES, 0, -1, 0))
        refused = [await client.next(m.Reject) for _ in range(4)]
        assert [(one.request_type, one.code) for one in refused] == [
            (37, RejectCode.READ_ONLY),
            (8, RejectCode.READ_ONLY),
            (3, RejectCode.NOT_MOUNTED),
            (32, RejectCode.CLIENT_AHEAD),
        ]
        assert refused[3].message == "the last transaction is -1"
        # As soon as it may write, it is a server like all others.
        client.send(m.FeedBatchRequest(client.reqid(), -1, ITEMS, BYTES, 0, -1, 0))
        server.allow_writes()
        assert (await client.next(m.Reject)).code is RejectCode.PARTITION_NOT_HERE


async def test_without_its_owner_a_log_is_read_as_far_as_it_was_known(tmp_path: Path) -> None:
    async with running_log(tmp_path) as log, beside(log) as (_, client):
        async with owner_of(log) as owner:
            await owner.append(0, b"data")
        client.send(m.HighWaterMarkRequest(client.reqid()))
        assert (await client.next()).txid == 0
        await log.servers.pop().stop()
        await log.stop_node(0)
        client.send(m.HighWaterMarkRequest(client.reqid()))
        assert (await client.next()).txid == 0
        client.send(m.TransactionDataRequest(client.reqid(), 0))
        assert (await client.next()).result == b"data"
