"""Waiting for conditions instead of sleeping."""

import asyncio
from collections.abc import Callable
from typing import Any

EVENTUALLY_SECONDS = 20.0


async def eventually(condition: Callable[[], Any], seconds: float = EVENTUALLY_SECONDS) -> Any:
    """Return what `condition` returns once that is true; fails with its last value when it never is."""
    last: Any = None
    try:
        async with asyncio.timeout(seconds):
            while not (last := condition()):
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {condition}; last value {last!r}") from None
    return last
