"""A coroutine on another thread's event loop, waited for by a program without asyncio."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

INTERRUPTED_S = 5.0  # for what Ctrl-C has interrupted to come to its end

Result = TypeVar("Result")


class _Call:
    """One coroutine on the loop, which ``cancel`` ends wherever it is: handed over, begun, or not even that."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.ended = threading.Event()
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._unwanted = False

    async def run(self) -> Any:
        if self._unwanted:
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            return await self._work
        finally:
            self.ended.set()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:
            self._unwanted = True
            self._work.close()
            self.ended.set()


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what ``work`` returns on ``loop``, which runs in another thread.

    Ctrl-C, whenever it comes, cancels ``work`` and is raised when that has ended: nobody waits for it any more, and a
    generator cannot be closed while it runs.
    """
    call = _Call(work)
    try:
        result: Result = asyncio.run_coroutine_threadsafe(call.run(), loop).result()
        return result
    except BaseException:
        if not call.ended.is_set():
            loop.call_soon_threadsafe(call.cancel)
            call.ended.wait(INTERRUPTED_S)
        raise
