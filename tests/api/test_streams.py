"""Event streams are bounded in number, in events and in bytes."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from pavane_api import streams
from pavane_api.problems import TooManyRequests
from pavane_api.streams import Streams


async def events(count: int, size: int) -> AsyncIterator[dict[str, Any]]:
    for _ in range(count):
        yield {"event": "changes", "data_str": "x" * size}


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
