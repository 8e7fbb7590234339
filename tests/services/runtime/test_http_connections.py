"""Idle connections of strangers cost a server nothing that others need."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pavane.runtime import connections
from pavane.runtime.http import HttpServer, listen

PLACES = 8
REQUEST = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def serving(go_on: asyncio.Event) -> AsyncIterator[int]:
    async def now(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def later(_: Request) -> Response:
        await go_on.wait()
        return PlainTextResponse("late")

    app = Starlette(routes=[Route("/now", now), Route("/later", later)])
    listener = listen("127.0.0.1", 0)
    server = HttpServer(app, connections_max=PLACES, lifespan="off")
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await task


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, port: int, stack: AsyncExitStack) -> "Connection":
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        stack.callback(made.writer.close)
        return made

    async def ask(self, path: bytes) -> bytes:
        self.writer.write(REQUEST % path)
        return await self.reader.readuntil(b"\r\n")

    async def ended(self) -> bool:
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True


async def test_any_number_of_idle_connections_leaves_room_for_a_request() -> None:
    go_on = asyncio.Event()
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(go_on))
        asking = await Connection.to(port, stack)
        late = asyncio.create_task(asking.ask(b"later"))
        idle = [await Connection.to(port, stack) for _ in range(3 * PLACES)]
        for _ in range(3):
            assert await (await Connection.to(port, stack)).ask(b"now") == b"HTTP/1.1 200 OK\r\n"
        # The oldest idle ones gave way, and what was being answered did not.
        assert all([await each.ended() for each in idle[:PLACES]])
        go_on.set()
        assert await late == b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize("said", [b"", b"GET /now HTTP/1.1\r\nHost:"])
async def test_who_sends_no_whole_request_in_time_is_cut_off(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADER_S", 0.05)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(asyncio.Event()))
        slow = await Connection.to(port, stack)
        slow.writer.write(said)
        assert await slow.ended()
