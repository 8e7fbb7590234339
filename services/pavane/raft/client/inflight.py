"""How many updates a client has under way (docs/specs/raft.md 14.4)."""

import asyncio
from collections import deque
from contextlib import suppress

CLIENT_INFLIGHT = 10_000  # updates under way; further ones wait in their caller (14.4)
CLIENT_INFLIGHT_BYTES = 16 << 20


class InflightLimit:
    """How much may be under way: CLIENT_INFLIGHT updates of CLIENT_INFLIGHT_BYTES, waiters served in order."""

    def __init__(self) -> None:
        self._count = 0
        self._bytes = 0
        self._waiters: deque[tuple[asyncio.Future[None], int]] = deque()

    def try_enter(self, size: int) -> bool:
        """Take room if there is some and nobody waits for it."""
        if self._waiters or not self._has_room(size):
            return False
        self._take(size)
        return True

    async def enter(self, size: int) -> None:
        """Wait for room; a single update always finds some in the end."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((waiter, size))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave(size)  # it was let in while it was being cancelled
            else:
                with suppress(ValueError):  # those let in behind it have taken it out already
                    self._waiters.remove((waiter, size))
                self._admit()
            raise

    def leave(self, size: int) -> None:
        """Make room."""
        self._count -= 1
        self._bytes -= size
        self._admit()

    def _admit(self) -> None:
        while self._waiters and self._has_room(self._waiters[0][1]):
            waiter, size = self._waiters.popleft()
            if not waiter.done():
                self._take(size)
                waiter.set_result(None)

    def _has_room(self, size: int) -> bool:
        return self._count == 0 or (self._count < CLIENT_INFLIGHT and self._bytes + size <= CLIENT_INFLIGHT_BYTES)

    def _take(self, size: int) -> None:
        self._count += 1
        self._bytes += size
