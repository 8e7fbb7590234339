"""The holder's side of a lease: renewal, and when to believe that it is lost (docs/specs/raft.md 12.7)."""

import asyncio
from collections.abc import Awaitable, Callable

from pavane.raft.client.key_calls import Outcome
from pavane.raft.errors import RaftError

RENEWALS = 3  # in the time of a lease: two may fail
OWN_SHARE = 0.9  # of the time granted, by our own clock: clocks run at different rates


class HeldLease:
    """A lease that this process keeps alive. ``id`` binds keys and nodes to it.

    ``lost`` is set when the lease has ended, or might have by our own clock: stop what needs it. That is advice, for a
    paused process wakes up late; what excludes others is the fencing token of ``Keys.lock``.
    """

    def __init__(self, lease: int, ttl_s: float, keep_alive: Callable[[int, float], Awaitable[Outcome]]) -> None:
        """Take a lease that was just granted; ``keep_alive`` renews it within a time-out."""
        self.id = lease
        self.ttl_s = ttl_s
        self.lost = asyncio.Event()
        self._lost_at_s = 0.0
        self._keep_alive = keep_alive

    async def begin(self) -> bool:
        """Renew for the first time: the grant may have been under way for long, so nothing can be counted from it."""
        sent_s = asyncio.get_running_loop().time()
        return self._granted(sent_s, await self._keep_alive(self.id, self.ttl_s))

    async def renew_for_ever(self) -> None:
        """Renew until the lease is lost or the task is cancelled; either way ``lost`` is set in the end."""
        try:
            while True:
                await asyncio.sleep(self.ttl_s / RENEWALS)
                if not await self._renew():
                    return
        finally:
            self.lost.set()

    async def _renew(self) -> bool:
        """Renew once, as often as it takes; returns whether the lease is ours still."""
        loop = asyncio.get_running_loop()
        while loop.time() < self._lost_at_s:
            sent_s = loop.time()
            try:
                async with asyncio.timeout_at(self._lost_at_s):
                    return self._granted(sent_s, await self._keep_alive(self.id, self._lost_at_s - sent_s))
            except TimeoutError:
                return False
            except RaftError:
                await asyncio.sleep(self.ttl_s / RENEWALS / RENEWALS)
        return False

    def _granted(self, sent_s: float, outcome: Outcome) -> bool:
        """Count from the sending: the leader counts from the receipt, which was later."""
        [[_, granted_ms]] = outcome.value
        self._lost_at_s = sent_s + granted_ms / 1000 * OWN_SHARE
        return bool(granted_ms)
