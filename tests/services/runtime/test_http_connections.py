"""Idle connections of strangers cost a server nothing that others need."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pavane.runtime import connections, door
from pavane.runtime.http import HttpServer, listen
from pavane_local.certs import ensure_credentials

PLACES = 8
HALF_HANDSHAKE = b"\x16\x03\x01\x02\x00\x01"  # a record that is not all there
REQUEST = b"GET /%s HTTP/1.1\r\nHost: x\r\n\r\n"


@asynccontextmanager
async def serving(go_on: asyncio.Event, **tls: Path) -> AsyncIterator[int]:
    async def now(_: Request) -> Response:
        return PlainTextResponse("ok")

    async def later(_: Request) -> Response:
        await go_on.wait()
        return PlainTextResponse("late")

    async def body(request: Request) -> Response:
        return PlainTextResponse(f"{len(await request.body())} bytes")

    app = Starlette(routes=[Route("/body", body, methods=["POST"]), Route("/now", now), Route("/later", later)])
    listener = listen("127.0.0.1", 0)
    server = HttpServer(app, connections_max=PLACES, lifespan="off", **tls)
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
    async def to(cls, port: int, stack: AsyncExitStack, tls: ssl.SSLContext | None = None) -> "Connection":
        made = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
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


@pytest.mark.parametrize("began", [b"", b"half"])
async def test_who_sends_half_a_body_is_cut_off(began: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_S", 0.05)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(asyncio.Event()))
        slow = await Connection.to(port, stack)
        slow.writer.write(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n" + began)
        assert await slow.ended()
        whole = await Connection.to(port, stack)
        for _ in range(2):
            whole.writer.write(b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody")
            assert await whole.reader.readuntil(b"4 bytes") != b""


async def test_a_tls_handshake_has_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncio.constants.SSL_HANDSHAKE_TIMEOUT", 0.1)
    ensure_credentials(tmp_path)
    files = {"ssl_certfile": tmp_path / "server.crt", "ssl_keyfile": tmp_path / "server.key"}
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(asyncio.Event(), **files))
        for said in (b"", HALF_HANDSHAKE):
            half = await Connection.to(port, stack)
            half.writer.write(said)
            assert await half.ended()


async def test_half_a_tls_handshake_takes_no_place_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "WAITING_MAX", PLACES)
    ensure_credentials(tmp_path)
    files = {"ssl_certfile": tmp_path / "server.crt", "ssl_keyfile": tmp_path / "server.key"}
    trust = ssl.create_default_context(cafile=files["ssl_certfile"])
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serving(asyncio.Event(), **files))
        half = [await Connection.to(port, stack) for _ in range(10 * PLACES)]
        whole = await Connection.to(port, stack, trust)
        assert await whole.ask(b"now") == b"HTTP/1.1 200 OK\r\n"
        assert all([await each.ended() for each in half[: 9 * PLACES]])
        # And those that are encrypted and idle give way as others do.
        idle = [await Connection.to(port, stack, trust) for _ in range(2 * PLACES)]
        assert await (await Connection.to(port, stack, trust)).ask(b"now") == b"HTTP/1.1 200 OK\r\n"
        assert await idle[0].ended()
