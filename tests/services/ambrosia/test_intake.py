"""What a connection brings is handed on whole and in order, as fast as it is taken, and its end and errors are told."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from pavane.ambrosia.intake import Connection, Intake
from pavane.ambrosia.ports import close_writer

BUFFER_BYTES = 1000


@asynccontextmanager
async def _pair() -> AsyncIterator[tuple[Connection, Connection]]:
    here, there = socket.socketpair()
    ours = await asyncio.open_connection(sock=here, limit=BUFFER_BYTES)
    theirs = await asyncio.open_connection(sock=there)
    try:
        yield ours, theirs
    finally:
        for _, writer in (ours, theirs):
            await close_writer(writer)


def _intake(connection: Connection, take: Callable[[memoryview], bool]) -> Intake:
    return Intake(connection, memoryview(bytearray(BUFFER_BYTES)), take)


async def _nothing() -> None:
    pass


async def test_all_bytes_come_in_order_and_the_end_is_told() -> None:
    async with _pair() as (ours, (reader, writer)):
        sent = b"".join(number.to_bytes(4, "little") for number in range(50_000))
        early = sent[: BUFFER_BYTES * 3]
        writer.write(early)
        await writer.drain()
        got = bytearray()

        def take(data: memoryview) -> bool:
            got.extend(data)
            return True

        reading = asyncio.create_task(_intake(ours, take).run(_nothing))
        writer.write(sent[len(early) :])
        await writer.drain()
        ours[1].write(b"answer")  # the other direction goes on beside it
        assert await reader.readexactly(6) == b"answer"
        writer.close()
        await reading
        assert got == sent


async def test_nothing_more_is_read_until_there_is_room() -> None:
    async with _pair() as (ours, (_, writer)):
        got: list[bytes] = []
        first = asyncio.Event()
        asked: asyncio.Queue[None] = asyncio.Queue()
        room: asyncio.Queue[None] = asyncio.Queue()

        def take(data: memoryview) -> bool:
            got.append(bytes(data))
            first.set()
            return len(got) == 1

        async def wait_for_room() -> None:
            asked.put_nowait(None)
            await room.get()

        reading = asyncio.create_task(_intake(ours, take).run(wait_for_room))
        room.put_nowait(None)  # before the first read
        await asked.get()
        writer.write(b"x")
        await first.wait()
        writer.write(bytes(BUFFER_BYTES * 100))
        for times in range(2, 20):
            await asked.get()
            assert len(got) == times
            room.put_nowait(None)
        reading.cancel()
        await asyncio.wait({reading})


@pytest.mark.parametrize("pieces", [1, 3])
async def test_an_error_of_whoever_takes_ends_it(pieces: int) -> None:
    async with _pair() as (ours, (_, writer)):
        left = iter(range(pieces))
        taken = asyncio.Event()

        def take(_: memoryview) -> bool:
            if next(left) == pieces - 1:
                raise LookupError("no more")
            taken.set()
            return True

        reading = asyncio.create_task(_intake(ours, take).run(_nothing))
        for _ in range(pieces - 1):
            writer.write(b"x")
            await taken.wait()
            taken.clear()
        writer.write(b"x")
        with pytest.raises(LookupError, match="no more"):
            await reading


async def test_a_connection_that_breaks_ends_it() -> None:
    async with _pair() as (ours, (_, writer)):
        taken = asyncio.Event()

        def take(_: memoryview) -> bool:
            taken.set()
            return True

        reading = asyncio.create_task(_intake(ours, take).run(_nothing))
        writer.write(b"x")
        await taken.wait()
        ours[1].transport.abort()
        await reading
        await asyncio.wait_for(ours[1].wait_closed(), 10)  # whoever waits by the writer learns it, too
