"""Whatever arrives at a port, its sender is dropped at worst, and everybody else is served on."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

from pavane.waltz.wire import messages as m
from pavane.waltz.wire import storage as s
from pavane.waltz.wire.fields import ReqId
from pavane.waltz.wire.frame import LOG_CLIENT, STORAGE_CLIENT, Channel, Side
from pavane.wire import LocalProtocolError
from tests.services.waltz.running import KEY, RawClient, running_log

CONNECTIONS = 60
FRAMES = 8
EXTREMES = (-(1 << 63), -100, -2, -1, 0, 1, 5, (1 << 31) - 1, (1 << 63) - 1)


def client_messages(rng: random.Random) -> list[object]:
    def number() -> int:
        return rng.choice(EXTREMES)

    def small() -> int:
        return max(-(1 << 31), min(number(), (1 << 31) - 1))

    reqid = ReqId(rng.choice((1, 2)), rng.choice((0, 1, 2, -1)), rng.choice((0, 0, 0, 1, -1)), small())
    locks = tuple(small() for _ in range(rng.randrange(3)))
    return [
        m.MountRequest(reqid, number(), number()),
        m.AppendRequest(reqid, number(), locks, locks, locks, small(), b"x" * rng.randrange(9)),
        m.AppendIdempotent(reqid, number(), locks, (), locks, 0, small(), number(), rng.choice((0, 1, 2, 3)), b"y"),
        m.FeedRequest(reqid, number()),
        m.FeedBatchRequest(reqid, number(), small(), small(), small(), small(), rng.choice((0, 1, 2))),
        m.FeedCredit(reqid, small(), small()),
        m.FlushRequest(reqid),
        m.HighWaterMarkRequest(reqid),
        m.TransactionDataRequest(reqid, number()),
        m.CheckStorageRequest(reqid),
        m.AssignmentRequest(reqid),
        m.AddPreferredRequest(reqid, (small(),)),
        m.HealthRequest(reqid),
        m.ViewRequest(reqid, rng.choice((0, 1, 2))),
    ]


def storage_messages(rng: random.Random) -> list[object]:
    head = s.Head(rng.choice((-1, 0)), 1, rng.choice((0, 0, -1, 7)))
    txid = rng.choice(EXTREMES)
    return [
        s.LastSessionInfoRequest(head, False),
        s.SetLowWaterMark(head, txid, True),
        s.Append(head, (s.Record(txid, ReqId(1, 1, 0, 1), 0, b"x", 0),), rng.random() < 0.5),
        s.RecordListRequest(head, txid, rng.choice((-1, 0, 5, 1 << 30))),
        s.RecordHeaderListRequest(head, txid, rng.choice((-1, 0, 5, 1 << 30))),
        s.RecordRequest(head, txid),
        s.MaxTransactionIdRequest(head, True),
    ]


async def attack(port: int, data: bytes) -> None:
    """Send bytes and read until the server has dropped us, or has nothing more to say."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    async with asyncio.timeout(30):
        while await reader.read(1 << 16):
            pass
    writer.close()
    await writer.wait_closed()


def damaged(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame as it is, or with some of its bytes changed, or cut off."""
    kind = rng.random()
    if kind < 0.5:
        return frame
    changed = bytearray(frame)
    for _ in range(rng.randint(1, 3)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed if kind < 0.9 else changed[: rng.randrange(len(changed))])


async def test_nonsense_at_both_ports_disturbs_nobody_else(tmp_path: Path) -> None:
    rng = random.Random(7)
    async with running_log(tmp_path) as log:
        client = await RawClient.connect(log.servers[0].port, client=9)
        await client.mount()
        for number in range(CONNECTIONS):
            to_storage = number % 2 == 1
            side = STORAGE_CLIENT if to_storage else LOG_CLIENT
            versions = (0,) if to_storage else (rng.randrange(6),)
            channel = Channel(side, versions)
            channel.receive(Channel(Side(side.magic, "peer", side.hears, side.sends), versions).hello())
            assert channel.message() is None
            data = bytearray(channel.hello())
            if to_storage:
                data += channel.encode(s.Open(s.OPEN_HEAD, KEY, 1))
            for _ in range(FRAMES):
                message = rng.choice(storage_messages(rng) if to_storage else client_messages(rng))
                with suppress(LocalProtocolError):  # a version may have no such message
                    data += damaged(rng, channel.encode(message))
            await attack(log.ports[0] if to_storage else log.servers[0].port, bytes(data))
            reqid = client.append(b"served on")
            while (answer := await client.next()) is not None and answer.reqid != reqid:
                pass
            assert isinstance(answer, m.AppendAck)
        client.hang_up("done")
