"""The table of docs/waltz.md, When copies are damaged: each kind of damage, at one node and two, running and down."""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pavane.waltz.client import Rejected, Waltz
from pavane.waltz.errors import RejectCode, WaltzError
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, Log, running_log

RECORDS, BAD, SIZE = 40, 7, 400
KINDS = ("bit flip", "cut", "zeroes", "index shuffled", "file missing")
"""Each happens to a partition of its own."""
PATIENCE_S = 1.0


def data_of(txid: int) -> bytes:
    return b"%d " % txid * (SIZE // 4)


def damage(log: Log, node: int, partition: int, kind: str) -> None:
    seg = log.folder / f"node{node}" / str(partition) / f"{0:019d}.seg"
    index = seg.with_suffix(".idx")
    places = 128 + 8 * BAD
    offset, *_, end = struct.unpack(">qqq", index.read_bytes()[places : places + 24])
    with seg.open("r+b") as records, index.open("r+b") as entries:
        match kind:
            case "bit flip":
                records.seek(offset + 50)
                (byte,) = records.read(1)
                records.seek(offset + 50)
                records.write(bytes([byte ^ 1]))
            case "cut":
                records.truncate(offset + 50)
            case "zeroes":
                records.seek(offset)
                records.write(bytes(end - offset))
            case "index shuffled":
                entries.seek(places)
                entries.write(struct.pack(">qqq", end, offset, end))
            case "file missing":
                seg.unlink()


def empty(log: Log, node: int) -> None:
    for path in (log.folder / f"node{node}").rglob("*"):
        if path.is_file():
            path.unlink()


def faults(log: Log) -> dict[tuple[int, int], str]:
    """By node and partition."""
    nodes = log.nodes.items()
    return {(n, files.number): files.fault for n, node in nodes for files in node.directory.assigned() if files.fault}


def same(log: Log) -> bool:
    """Whether all nodes have the same bytes, and use them."""
    copies = [
        [(log.folder / f"node{node}" / str(number) / f"{0:019d}.seg") for number in range(len(KINDS))]
        for node in range(3)
    ]
    if faults(log) or not all(path.exists() for each in copies for path in each):
        return False
    found = [[path.read_bytes()[128:] for path in each] for each in copies]
    return found[0] == found[1] == found[2] and all(found[0])


async def check_reads(log: Log, count: int = RECORDS) -> None:
    async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
        for partition in range(len(KINDS)):
            assert await read(client, partition) == [(txid, data_of(txid)) for txid in range(RECORDS)]
            assert await client.hwm(partition) == count - 1


async def read(client: Waltz, partition: int) -> list[tuple[int, bytes]]:
    """Read a partition, again where nobody gives it now: a session that ends is followed by one that opens."""
    async with asyncio.timeout(ANSWER_S):
        while True:
            try:
                return [(each.id, each.data) async for each in client.read(partition, 0, RECORDS)]
            except Rejected as rejected:
                if rejected.code is not RejectCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)


async def check_appends(log: Log) -> None:
    async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
        assert [await client.append(partition, b"after") for partition in range(len(KINDS))] == [RECORDS] * len(KINDS)


@asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[Log]:
    """A log whose server has nothing in memory."""
    async with running_log(folder, partitions=len(KINDS), scrub_pause_s=0.01) as log:
        await log.settled()
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"]) as client:
            appends = [client.append(p, data_of(txid)) for txid in range(RECORDS) for p in range(len(KINDS))]
            await asyncio.gather(*appends)
        await log.until_all_vote()
        await log.servers.pop().stop()
        await log.start_server()
        await log.settled()
        await log.until_all_vote()
        yield log


async def spoil(log: Log, nodes: Sequence[int], *, running: bool, volume: bool = False) -> None:
    for node in nodes:
        if not running:
            await log.stop_node(node)
        if volume:
            empty(log, node)
        else:
            for partition, kind in enumerate(KINDS):
                damage(log, node, partition, kind)
    for node in nodes:
        if volume and running:
            with pytest.raises(FileNotFoundError, match="was removed while the storage node runs"):
                await log.nodes[node].run()
            await log.stop_node(node)
    for node in nodes:  # the pods start again when all have ended: else one is refilled from another that has not yet
        if volume or not running:
            await log.start_node(node)


@pytest.mark.parametrize("running", [True, False], ids=["running", "down"])
@pytest.mark.parametrize("volume", [False, True], ids=["files", "volume empty"])
async def test_at_one_node_it_is_named_and_mended_and_readers_see_nothing(
    tmp_path: Path, volume: bool, running: bool
) -> None:
    async with filled(tmp_path) as log:
        await spoil(log, [0], running=running, volume=volume)
        await check_reads(log)
        await eventually(lambda: same(log), ANSWER_S)
        named = {files.number: files.mended for files in log.nodes[0].directory.assigned() if files.mended}
        if not volume:
            assert sorted(named) == list(range(len(KINDS)))
            first_bad = {number: 0 if KINDS[number] == "file missing" else BAD for number in named}
            assert all(f"damaged from transaction {first_bad[n]} on" in text for n, text in named.items())
        await log.until_all_vote()
        await log.stop_node(1)  # from here on every append needs the copies that were rebuilt
        await check_appends(log)
        await check_reads(log, RECORDS + 1)


@pytest.mark.parametrize(
    ("volume", "running"), [(False, True), (False, False), (True, False)], ids=["running", "down", "volume empty, down"]
)
async def test_at_two_nodes_nothing_is_given_up_and_what_is_known_stays_readable(
    tmp_path: Path, volume: bool, running: bool
) -> None:
    async with filled(tmp_path) as log:
        await spoil(log, [0, 2], running=running, volume=volume)
        await check_reads(log)
        if not volume:
            # A file that is removed while it is open can still be read, so that the other node may be rebuilt from it.
            lost = [n for n, kind in enumerate(KINDS) if kind != "file missing" or not running]
            wanted = {(node, number) for node in (0, 2) for number in lost}
            await eventually(lambda: wanted <= faults(log).keys(), ANSWER_S)
            copies = [files for node in log.nodes.values() for files in node.directory.assigned()]
            assert not any(files.mended for files in copies if files.number in lost)
        async with Waltz([f"127.0.0.1:{log.servers[0].port}"], patience=PATIENCE_S) as client:
            with pytest.raises(WaltzError):
                await client.append(0, b"not on a majority")
        owned = log.servers[0].running.owned[0]
        await eventually(lambda: "may be committed" in owned.blocker, ANSWER_S)
        await check_reads(log)
