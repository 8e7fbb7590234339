"""The admin port of storage nodes and the tools that use it, on a log that goes on (docs/specs/waltz.md 11)."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from pavane.waltz.aio.admin import StorageAdmin
from pavane.waltz.aio.stream import connect
from pavane.waltz.client import Waltz
from pavane.waltz.client.tools import validate
from pavane.waltz.errors import StorageRefused, Unavailable
from pavane.waltz.wire import storage as s
from tests.services.eventually import eventually
from tests.services.waltz.running import ANSWER_S, KEY, Log, running_log

PARTITIONS = 2


@asynccontextmanager
async def a_log(folder: Path, appends: int) -> AsyncIterator[tuple[Log, Waltz]]:
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(running_log(folder, partitions=PARTITIONS))
        client = await stack.enter_async_context(Waltz([f"127.0.0.1:{log.servers[0].port}"]))
        for number in range(appends):
            await client.append(0, b"record %d" % number)
        yield log, client


async def tool(log: Log, index: int) -> StorageAdmin:
    return await StorageAdmin.connect(log.admin(index), KEY, PARTITIONS, None)


async def test_every_answer_has_the_bytes_of_the_original(tmp_path: Path) -> None:
    async with a_log(tmp_path, 1) as (log, _):
        stored = log.nodes[0].directory.partition(0)
        assert stored is not None
        await eventually(lambda: stored.max_txid == 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", log.nodes[0].tools.port)

        async def ask(body: str) -> str:
            writer.write(bytes.fromhex(f"410000{len(body) // 2:08x}{body}"))
            return await answer()

        async def answer() -> str:
            async with asyncio.timeout(ANSWER_S):
                head = await reader.readexactly(7)
                return (head + await reader.readexactly(int.from_bytes(head[3:], "big"))).hex()

        greeting = b"Waltz Storage Admin Server".hex()
        assert await answer() == f"48000000000024{1:08x}0000{26:08x}{greeting}"
        writer.write(bytes.fromhex(f"48000000000024{1:08x}0000{26:08x}{b'Waltz Storage Admin Client'.hex()}"))
        assert await ask("03" + "f" * 16 + KEY.bytes.hex() + "00000002") == "4100000000000901" + "f" * 16
        session = log.servers[0].running.owned[0].session
        assert session is not None
        asked = f"{session.id:016x}{'f' * 16}{'f' * 16}"
        assert await ask("09" + f"{5:016x}{0:08x}") == f"41{0:04x}{37:08x}0a{5:016x}{0:08x}{asked}"
        assert await ask("0d" + f"{6:016x}") == "41000000000017" + f"0e{6:016x}{2:08x}0000000001" + "0000000101"
        records = await ask("07" + f"{7:016x}{0:08x}{0:016x}{9:08x}")
        [record] = stored.read(0, 1)
        assert records[14:] == (
            f"08{7:016x}{0:08x}{1:08x}{0:016x}"
            + b"".join(part.to_bytes(4, "big") for part in record.reqid).hex()
            + f"{0:08x}{len(b'record 0'):08x}{b'record 0'.hex()}{record.crc:08x}"
        )
        assert await ask("04" + f"{8:016x}{1:08x}{1:08x}00") == f"4100000000000901{8:016x}"
        assert await ask("0d" + f"{9:016x}") == "41000000000017" + f"0e{9:016x}{2:08x}0000000001" + "0000000100"
        assert (await ask("06" + f"{10:016x}{1:08x}{7:08x}0101")).startswith("410000")
        writer.close()


async def test_who_does_not_know_the_cluster_learns_nothing(tmp_path: Path) -> None:
    async with a_log(tmp_path, 0) as (log, _):
        with pytest.raises(StorageRefused, match=f"belongs to cluster {KEY} with 2 partitions"):
            await StorageAdmin.connect(log.admin(0), KEY, 3, None)
        silent = await connect(lambda: StorageAdmin("it"), log.admin(0), None)
        with pytest.raises(Unavailable):
            await silent.ask(s.MetricsRequest(s.Head(-1, 1, -1)))


async def test_a_partition_that_is_switched_off_takes_no_part_until_it_is_on_again(tmp_path: Path) -> None:
    async with a_log(tmp_path, 3) as (log, client):
        admin = await tool(log, 1)
        await admin.ask(s.SetAvailable(admin.head(), (0,), available=False))
        for number in range(20):
            await client.append(0, b"without %d" % number)
        files = [log.nodes[index].directory.partition(0) for index in range(3)]
        assert files[1] is not None
        assert files[1].max_txid < 22
        # The owner's session is open without it; it asks again, and is refused again.
        refused = log.nodes[1].failures
        await eventually(lambda: log.nodes[1].failures > refused, ANSWER_S)
        await client.append(0, b"still without")
        await admin.ask(s.SetAvailable(admin.head(), (0,), available=True))
        async with asyncio.timeout(ANSWER_S):
            while files[1].max_txid < 23:
                await client.append(0, b"with it again")
        with pytest.raises(StorageRefused, match="partition 9 is not assigned"):
            await admin.ask(s.AdminSessionInfoRequest(admin.head(9)))
        metrics = json.loads((await admin.ask(s.MetricsRequest(admin.head()))).json)
        assert metrics["partitions"]["0"]["max-transaction-id"] >= 23
        admin.hang_up("done")


async def test_a_damaged_copy_cannot_be_switched_on(tmp_path: Path) -> None:
    async with a_log(tmp_path, 50) as (log, _):
        await log.stop_node(2)
        segment = tmp_path / "node2" / "0" / f"{0:019d}.seg"
        rotten = bytearray(segment.read_bytes())
        rotten[300] ^= 1
        segment.write_bytes(rotten)
        await log.servers[0].stop()  # who would mend it
        await log.start_node(2)
        admin = await tool(log, 2)
        with pytest.raises(StorageRefused, match="damaged from transaction"):
            await admin.ask(s.SetAvailable(admin.head(), (0,), available=True))
        admin.hang_up("done")


async def test_a_validation_finds_a_log_in_order_and_one_that_is_not(tmp_path: Path) -> None:
    async with a_log(tmp_path, 3) as (_, client):
        found = await validate(client, 0, clients=4, count=60)
        assert (found.first, found.appended, found.faults) == (3, 60, [])
        assert found.conflicts > 0
        await client.append(1, b"0")

        async def unlocked(*arguments: object, **options: object) -> int:
            options.pop("seen", None)
            options.pop("write", None)
            return await Waltz.append(client, *arguments, **options)  # type: ignore[arg-type]

        client.append = unlocked  # type: ignore[method-assign]
        broken = await validate(client, 1, clients=4, count=40)
        assert any("was decided on another state" in fault for fault in broken.faults)
