"""Pods that answer more, longer or deeper than anybody asked for."""

import asyncio
import functools
import gzip
import random
import re
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from pavane.parts.documents import DEPTH_MAX, TooDeep
from pavane.runtime import asking
from pavane.runtime.asking import AnswerRefused, ask
from pavane_api.immortals import about
from pavane_api.immortals import service as immortals
from pavane_api.pods import service as pods
from pavane_api.problems import Unavailable
from pavane_api.views import service as views
from pavane_operator.kinds.dataflow import keeping
from pavane_operator.kinds.podless import Around
from pavane_operator.kinds.swim import members
from pavane_operator.kinds.waltz import copies
from pavane_operator.kube import pods_http
from pavane_operator.kube.resources import PODS
from pavane_operator.plan.model import Pod
from pavane_operator.runtime import polls

HOST = "127.0.0.1"
MIB = 1 << 20
PLENTY = 64  # MiB that a small packed answer becomes
ENDS = b"HTTP/1.1 200 OK\r\nconnection: close\r\n"

Body = Callable[[asyncio.StreamWriter], Awaitable[None]]


@functools.cache
def bomb() -> bytes:
    return gzip.compress(b'{"stage": "' + b" " * (PLENTY * MIB) + b'"}')


async def packed(writer: asyncio.StreamWriter) -> None:
    assert len(bomb()) < MIB
    writer.write(ENDS + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n%b" % (len(bomb()), bomb()))


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(ENDS + b"\r\n")
    while True:
        writer.write(b" " * 65536)
        await writer.drain()


async def dripping(writer: asyncio.StreamWriter) -> None:
    """Each byte comes within the patience for one piece; all of them never do."""
    writer.write(ENDS + b"\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def dripping_head(writer: asyncio.StreamWriter) -> None:
    writer.write(ENDS)
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def deep(writer: asyncio.StreamWriter) -> None:
    writer.write(ENDS + b"\r\n" + b"[" * 100_000 + b"]" * 100_000)


async def deep_for_us(writer: asyncio.StreamWriter) -> None:
    writer.write(ENDS + b"\r\n" + b'{"a":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1))


@asynccontextmanager
async def pod(body: Body) -> AsyncIterator[int]:
    """A pod; gives its port."""
    connections: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            await body(writer)
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(converse, HOST)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


MEAN = [packed, endless, dripping, dripping_head, deep, deep_for_us]


@pytest.mark.parametrize("body", MEAN)
async def test_an_answer_beyond_its_bounds_is_refused(body: Body) -> None:
    bomb()  # is not counted
    async with pod(body) as port, pods_http() as http:
        tracemalloc.start()
        try:
            with pytest.raises((httpx2.ReadTimeout, AnswerRefused, TooDeep)):
                (await ask(http, "GET", f"http://{HOST}:{port}/", within_s=0.5)).json()
            assert tracemalloc.get_traced_memory()[1] < 16 * MIB
        finally:
            tracemalloc.stop()


async def test_no_compression_is_asked_for() -> None:
    asked = bytearray()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 7\r\ncontent-encoding: identity\r\n\r\n{"a":1}')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(converse, HOST) as server, pods_http() as http:
        url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}/"
        assert (await ask(http, "GET", url, within_s=5.0, headers={"x-y": "z"})).document() == {"a": 1}
    assert asked.lower().count(b"accept-encoding:") == 1
    assert b"accept-encoding: identity" in asked.lower()
    assert b"x-y: z" in asked.lower()


async def _polled(http: httpx2.AsyncClient, port: int, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(polls, "OPS_PORT", port)
    monkeypatch.setattr(polls, "POLL_TIMEOUT_S", 0.3)
    found = polls.StagePolls(http, random.Random(1), lambda: None)
    found.keep({polls.PollTarget("u1", HOST, 0): None})
    await found.asked()
    view = found.view("u1")
    await found.close()
    return view


async def _listed(http: httpx2.AsyncClient, port: int, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(pods, "OPS_PORT", port)
    monkeypatch.setattr(pods, "ASK_S", 0.3)
    body = {"metadata": {"labels": {"pavane.dev/generation": "1"}}, "status": {"podIP": HOST}}
    assert pods.generation_of(body) == 1
    return await pods.ask(http, body, "/stage")


async def _told(http: httpx2.AsyncClient, port: int, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(members, "OPS_PORT", port)
    return await members.ask(http, HOST, 0.3)


async def _faults(http: httpx2.AsyncClient, port: int, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(copies, "OPS_PORT", port)
    monkeypatch.setattr(copies, "ASK_TIMEOUT_S", 0.3)
    asked: Any = Pod.__new__(Pod)
    for name, value in {"name": "p", "address": HOST, "ready": False, "deleting": False}.items():
        object.__setattr__(asked, name, value)
    return (await copies.told_by(http, [asked], copies.PATH, copies.told_in)) or None


async def _here(_: str, __: str) -> str:
    return HOST


async def _about(http: httpx2.AsyncClient, port: int, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(about, "address_of", _here)
    monkeypatch.setattr(about, "HTTP", SimpleNamespace(number=port))
    monkeypatch.setattr(about, "ASK_S", 0.3)
    return await about._application(http, "default", "ann")


async def _views(http: httpx2.AsyncClient, port: int, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(views, "address_of", _here)
    monkeypatch.setattr(views, "OPS_PORT", port)
    monkeypatch.setattr(views, "POD_S", 0.3)
    control: Any = SimpleNamespace(pods=http)
    return await views._of_pod(control, "default", "main")


async def _kept(http: httpx2.AsyncClient, port: int, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(keeping, "OPS_PORT", port)
    monkeypatch.setattr(keeping, "POD_S", 0.3)
    body = {"metadata": {"labels": {"pavane.dev/generation": "1"}}, "status": {"podIP": HOST}}
    unused: Any = None
    dataflows = keeping.Dataflows(Around(unused, http, lambda *_: [(PODS, body)], unused, unused, unused, unused))
    return await dataflows._said({"status": {"activeGeneration": 1}}, "default", "main")


@pytest.mark.parametrize("question", [_polled, _listed, _told, _faults, _about, _views, _kept])
@pytest.mark.parametrize("body", MEAN)
async def test_everybody_who_asks_pods_takes_such_an_answer_for_none(
    body: Body, question: Callable[..., Awaitable[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pod(body) as port, pods_http() as http:
        async with asyncio.timeout(30):  # an end for the test; without bounds there is none
            assert await question(http, port, monkeypatch) is None
        pool: Any = http._transport
        assert not pool._pool.connections, "the connection is closed"


@pytest.mark.parametrize("body", [packed, endless, deep, deep_for_us])
async def test_a_call_of_an_immortal_whose_answer_is_beyond_the_bounds_is_told_so_at_once(
    body: Body, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(immortals, "address_of", _here)
    async with pod(body) as port, pods_http() as http:
        monkeypatch.setattr(immortals, "HTTP", SimpleNamespace(number=port))
        control: Any = SimpleNamespace(pods=http)
        with pytest.raises(Unavailable, match="none that is passed on"):
            await immortals.call(control, "default", "alice", "deposit", [1], "key")


def test_nobody_asks_a_pod_in_another_way() -> None:
    root = Path(__file__).parents[2]
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for folder in ("operator/pavane_operator", "api/pavane_api")
        for path in sorted((root / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\b_?(http|pods)\.(get|post|put|request|stream)\(.*(http|url)", line)
    ]
    assert found == [], "pavane.runtime.asking bounds what an answer costs"


def test_a_document_as_deep_as_allowed_is_taken() -> None:
    inner: Any = 1
    for _ in range(DEPTH_MAX):
        inner = {"a": inner}
    text = str(inner).replace("'", '"').encode()
    assert asking.Answer(200, text).document() == inner
