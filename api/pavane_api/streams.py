"""Open event streams, so that a stopping control plane ends them before its sockets."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

EVENTS_PENDING_MAX = 1000  # per client; a client that reads slower than this is closed and must list again
KEEPALIVE_S = 15.0
STREAMS_MAX = 500


class Streams:
    """Knows every open event stream and can end them all."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()
        self.count = 0

    def stop(self) -> None:
        """End all streams; further ones end at once."""
        self._stopping.set()

    async def serve(self, events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
        """Yield ``events`` (keyword arguments of an SSE event) as bytes, with comments while nothing happens.

        ``events`` is read ahead by at most EVENTS_PENDING_MAX; a slower client gets ``event: overflow`` and the end.
        """
        pending: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(EVENTS_PENDING_MAX)
        overflow = asyncio.Event()
        reader = asyncio.create_task(_read(events, pending, overflow))
        stopping = asyncio.create_task(self._stopping.wait())
        self.count += 1
        try:
            while True:
                getting = asyncio.create_task(pending.get())
                try:
                    await asyncio.wait({getting, stopping}, timeout=KEEPALIVE_S, return_when=asyncio.FIRST_COMPLETED)
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
                    yield format_sse_event(**event)
                elif self._stopping.is_set():
                    return
                else:
                    yield KEEPALIVE_COMMENT
        finally:
            self.count -= 1
            reader.cancel()
            stopping.cancel()
            await asyncio.gather(reader, stopping, return_exceptions=True)


async def _read(
    events: AsyncIterator[dict[str, Any]], pending: asyncio.Queue[dict[str, Any] | None], overflow: asyncio.Event
) -> None:
    async for event in events:
        if pending.full():
            overflow.set()
            return
        pending.put_nowait(event)
    await pending.put(None)
