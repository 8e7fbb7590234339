"""Open event streams, so that a stopping control plane ends them before its sockets."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from pavane.parts.silence import BEAT_S
from pavane_api.problems import TooManyRequests

EVENTS_PENDING_MAX = 1000  # per client; a client that reads slower than this is closed and must list again
STREAMS_MAX = 500
WATCHES_MAX = 250  # of the API server, by all streams: each is a connection, and an embedded server has 512 for all
PENDING_BYTES_MAX = 8 * 1024 * 1024  # per client: a few of the largest events
ALL_PENDING_BYTES_MAX = 128 * 1024 * 1024  # of all clients: half of what the chart grants the process


class Streams:
    """Knows every open event stream and can end them all."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self.count = 0
        self.watches = 0
        self.pending_bytes = 0

    def admit(self, watches: int = 0) -> None:
        """Raise ``TooManyRequests`` if there are as many streams as there may be; ask before one begins.

        ``watches`` is how many the stream will hold of the API server. Streams that begin in the same moment may be a
        few more than there may be: the number of connections bounds them all.
        """
        if self.count >= STREAMS_MAX or self.watches + watches > WATCHES_MAX:
            text = f"{self.count} event streams are open: close one, or list instead of watching."
            raise TooManyRequests(text, headers={"Retry-After": "5"})

    def stop(self) -> None:
        """End all streams; further ones end at once."""
        self._stopping.set()

    async def serve(self, events: AsyncIterator[dict[str, Any]], watches: int = 0) -> AsyncIterator[bytes]:
        """Yield ``events`` (keyword arguments of an SSE event) as bytes, with comments while nothing happens.

        ``events`` is read ahead by at most EVENTS_PENDING_MAX and PENDING_BYTES_MAX, and that of all clients by
        ALL_PENDING_BYTES_MAX; a slower client gets ``event: overflow`` and the end.
        """
        pending: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(EVENTS_PENDING_MAX + 1)
        overflow = asyncio.Event()
        held = 0

        def room(size: int) -> bool:
            nonlocal held
            held += size
            self.pending_bytes += size
            return held <= PENDING_BYTES_MAX and self.pending_bytes <= ALL_PENDING_BYTES_MAX

        reader = asyncio.create_task(_read(events, pending, overflow, room))
        stopping = asyncio.create_task(self._stopping.wait())
        self.count += 1
        self.watches += watches
        try:
            while True:
                getting = asyncio.create_task(pending.get())
                try:
                    await asyncio.wait({getting, stopping}, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not getting.done():
                        getting.cancel()
                if overflow.is_set():
                    yield format_sse_event(event="overflow", data_str="list again: this reader was too slow")
                    return
                if getting.done() and not getting.cancelled():
                    event = getting.result()
                    if event is None:
                        return
                    room(-_size(event))
                    yield format_sse_event(**event)
                elif self._stopping.is_set():
                    return
                else:
                    yield KEEPALIVE_COMMENT
        finally:
            self.count -= 1
            self.watches -= watches
            self.pending_bytes -= held
            held = 0
            reader.cancel()
            stopping.cancel()
            await asyncio.gather(reader, stopping, return_exceptions=True)

    async def serve_log(self, events: AsyncGenerator[dict[str, Any], None]) -> AsyncIterator[bytes]:
        """Yield ``events`` of a log as bytes: nothing is read ahead, so a slow reader only delays itself."""
        stopping = asyncio.create_task(self._stopping.wait())
        getting: asyncio.Task[dict[str, Any]] | None = None
        self.count += 1
        try:
            while not self._stopping.is_set():
                getting = getting or asyncio.create_task(anext(events))
                await asyncio.wait({getting, stopping}, timeout=BEAT_S, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    if not self._stopping.is_set():
                        yield KEEPALIVE_COMMENT
                    continue
                try:
                    event = getting.result()
                except StopAsyncIteration:
                    return
                getting = None
                yield format_sse_event(**event)
        finally:
            self.count -= 1
            stopping.cancel()
            if getting is not None:
                getting.cancel()
            await asyncio.gather(stopping, *([getting] if getting else []), return_exceptions=True)
            await events.aclose()


def _size(event: dict[str, Any]) -> int:
    return len(event.get("data_str") or "")


async def _read(
    events: AsyncIterator[dict[str, Any]],
    pending: asyncio.Queue[dict[str, Any] | None],
    overflow: asyncio.Event,
    room: Callable[[int], bool],
) -> None:
    async for event in events:
        # The largest single event may always pass: who reads at once is not slow.
        if (not room(_size(event)) and not pending.empty()) or pending.qsize() >= EVENTS_PENDING_MAX:
            overflow.set()
            pending.put_nowait(None)  # wakes the writer
            return
        pending.put_nowait(event)
    await pending.put(None)
