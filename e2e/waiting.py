"""Waiting for a condition, the only way in which tests wait."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Value = TypeVar("Value")

READY_S = 90.0


async def eventually(check: Callable[[], Awaitable[Value | None]], what: str, timeout_s: float = READY_S) -> Value:
    """Return the first true answer of ``check``; fail with ``what`` at the time-out."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = await check()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        await asyncio.sleep(0.05)
