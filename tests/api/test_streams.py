"""Event streams are bounded in number, in events and in bytes."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
from fastapi.sse import KEEPALIVE_COMMENT

from pavane.parts.silence import STREAM_SILENT_S
from pavane.runtime.connections import CONNECTIONS_MAX
from pavane_api import streams
from pavane_api.problems import TooManyRequests
from pavane_api.streams import STREAMS_MAX, Streams
from tests.api.plane import ANSWER_S, BASE, Plane, plane, raft_cluster, served


async def events(count: int, size: int) -> AsyncIterator[dict[str, Any]]:
    for _ in range(count):
        yield {"event": "changes", "data_str": "x" * size}


async def silent() -> AsyncGenerator[dict[str, Any], None]:
    await asyncio.Event().wait()
    yield {}


@pytest.mark.looptime
@pytest.mark.parametrize("serve", [Streams.serve, Streams.serve_log])
async def test_a_stream_without_events_gives_a_sign_of_life_before_its_reader_gives_up(serve: Any) -> None:
    async with aclosing(serve(Streams(), silent())) as pieces, asyncio.timeout(STREAM_SILENT_S / 2):
        assert [await anext(pieces)] == [KEEPALIVE_COMMENT]


async def test_a_slow_reader_of_large_events_is_told_to_list_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PENDING_BYTES_MAX", 10_000)
    served = Streams()
    async with aclosing(served.serve(events(100, 1000))) as pieces:  # type: ignore[type-var]
        found = [piece async for piece in pieces]
    assert b"event: overflow" in found[-1]
    assert (served.count, served.pending_bytes) == (0, 0)


async def test_all_readers_together_are_bounded_and_their_bytes_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "ALL_PENDING_BYTES_MAX", 10_000)
    served = Streams()
    for _ in range(3):
        found = [piece async for piece in served.serve(events(5, 1000))]
        assert len(found) == 5
        assert served.pending_bytes == 0
    # One event beyond the limit still goes to a reader that waits for it.
    assert len([piece async for piece in served.serve(events(1, 20_000))]) == 1


async def test_no_more_streams_than_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "STREAMS_MAX", 1)
    served = Streams()
    served.admit()
    first = served.serve(events(2, 1))
    await anext(first)
    with pytest.raises(TooManyRequests, match="1 event streams are open"):
        served.admit()
    assert [piece async for piece in first]
    served.admit()


def watched(api: Plane, path: str, stack: ExitStack) -> bytes:
    """Open a stream that nobody reads; returns the status of the answer, nothing where the connection was ended."""
    url = api.http.base_url
    made = stack.enter_context(socket.create_connection((url.host, url.port), ANSWER_S))
    made.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {api.token}\r\n\r\n".encode())
    with suppress(ConnectionError):
        return made.recv(len(b"HTTP/1.1 200"))[-3:]
    return b""


@pytest.mark.long
@pytest.mark.timeout(3 * ANSWER_S)
async def test_1500_watches_hold_nobody_else_up(tmp_path: Path) -> None:
    async with plane(tmp_path) as api, served(api, tmp_path, "Tree"):
        with ExitStack() as stack:
            # Those of resources first: each holds connections to the API server, which all others need too.
            paths = ["/api/v1/resources"] * 100 + [f"{BASE}?watch=true"] * 400
            paths += [f"{BASE}/q/keys?watch=true&prefix="] * 1000
            found = Counter([await asyncio.to_thread(watched, api, path, stack) for path in paths])
            assert set(found) - {b""} == {b"200", b"429"}
            assert STREAMS_MAX <= found[b"200"] <= CONNECTIONS_MAX
            # Many watches are to be sent a megabyte that nobody reads.
            answer = await api.http.put(f"{BASE}/q/keys/large", content=bytes(1_000_000))
            assert answer.status_code == 200, answer.text
            assert (await api.http.get(f"{BASE}/q/keys/large")).content == bytes(1_000_000)
            made = await api.http.put(f"{BASE}/r", json=raft_cluster("r"), headers={"If-None-Match": "*"})
            assert made.status_code == 201, made.text
            assert (await api.http.get("/api/v1/resources")).status_code == 429
