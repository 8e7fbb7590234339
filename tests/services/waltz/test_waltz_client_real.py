"""The client library against real servers with real storage, while connections are cut and partitions move."""

import asyncio
from pathlib import Path

import pytest

from pavane.waltz.client import Conflict, Transaction, Waltz
from pavane.waltz.server import WaltzServer
from tests.services.eventually import eventually
from tests.services.waltz.running import Log, running_log


def addresses(log: Log) -> list[str]:
    return [f"127.0.0.1:{server.port}" for server in log.servers]


def cut(server: WaltzServer) -> None:
    for stream in list(server._listener.streams):
        stream.hang_up("cut by the test")


async def test_append_feed_get_and_conflict(tmp_path: Path) -> None:
    async with running_log(tmp_path, partitions=2) as running, Waltz(addresses(running)) as log:
        assert await log.append(0, b"opened", header=5, write=[("account", 7)]) == 0
        assert await log.append(1, b"elsewhere") == 0
        with pytest.raises(Conflict) as caught:
            await log.append(0, b"late", write=[("account", 7)], seen=-1)
        assert caught.value.txid == 0
        assert await log.append(0, b"closed", write=[("account", 7)], seen=0) == 1
        assert [(tx.id, tx.header, tx.data) async for tx in log.read(0, 0, 9)] == [(0, 5, b"opened"), (1, 0, b"closed")]
        assert (await log.get(0, 1)).data == b"closed"
        assert await log.hwm(0) == 1
        async with Waltz(addresses(running)) as other:
            feed = other.feed(0)
            assert [(await anext(feed)).id, (await anext(feed)).id] == [0, 1]
            waiting = asyncio.ensure_future(anext(feed))
            assert await log.append(0, b"next") == 2
            assert (await waiting).data == b"next"
            await feed.aclose()


async def test_a_thousand_appends_on_the_way_keep_their_order(tmp_path: Path) -> None:
    async with running_log(tmp_path) as running, Waltz(addresses(running)) as log:
        futures = [log.append_nowait(0, b"%d" % n) for n in range(1000)]
        assert await asyncio.gather(*futures) == list(range(1000))
        assert [tx.data async for tx in log.read(0, 0, 1000)] == [b"%d" % n for n in range(1000)]


async def test_nothing_is_lost_or_doubled_while_connections_are_cut_and_owners_go(tmp_path: Path) -> None:
    """Each append, under one lock, carries the number that it must get."""
    async with running_log(tmp_path, partitions=2, servers=2) as running, Waltz(addresses(running)) as log:
        await running.settled()
        stop = asyncio.Event()
        acknowledged: list[list[int]] = [[], []]

        async def write(partition: int) -> None:
            async with log.view(partition, lambda transaction: None) as view:
                while not stop.is_set():
                    txid = await view.transact(lambda: b"%d" % (view.hwm + 1), write=[("all", 0)])
                    assert txid is not None
                    acknowledged[partition].append(txid)

        writers = [asyncio.create_task(write(partition)) for partition in (0, 1)]
        for round_ in range(6):
            before = [len(txids) for txids in acknowledged]
            cut(running.servers[round_ % 2])
            await eventually(lambda: all(len(a) > b for a, b in zip(acknowledged, before, strict=True)), 60)  # noqa: B023
        await running.servers[0].stop()
        before = [len(txids) for txids in acknowledged]
        await eventually(lambda: all(len(a) > b + 5 for a, b in zip(acknowledged, before, strict=True)), 60)
        stop.set()
        await asyncio.gather(*writers)
        for partition in (0, 1):
            stored: list[Transaction] = [tx async for tx in log.read(partition, 0, 1 << 40)]
            assert [int(tx.data) for tx in stored] == [tx.id for tx in stored]
            assert acknowledged[partition] == sorted(set(acknowledged[partition]))
            assert len(stored) == len(acknowledged[partition])
