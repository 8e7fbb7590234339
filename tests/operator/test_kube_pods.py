"""Requests to pods."""

import asyncio

import pytest

from pavane_operator.kube import pods_http


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(line), line))
        await writer.drain()
        writer.close()

    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with (
        await asyncio.start_server(answer, "127.0.0.1") as pod,
        await asyncio.start_server(answer, "127.0.0.2") as proxy,
    ):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.2:{proxy.sockets[0].getsockname()[1]}")
        async with pods_http() as http:
            told = await http.get(f"http://127.0.0.1:{pod.sockets[0].getsockname()[1]}/stage")
    assert told.text.startswith("GET /stage "), "a proxy is asked for the whole url"
