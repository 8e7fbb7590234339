"""Work for callers who may go before it is done."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")


async def while_heard(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns; raises what it raises.

    It is cancelled when the caller has gone: then nobody waits for the answer, and ``ClientDisconnect`` is raised.
    The body of the request has to be read before.
    """
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, listening):
            task.cancel()
        await asyncio.wait({working, listening})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
