"""Several peers are asked the same, and the first answer counts."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from pavane.raft.errors import Behind, RaftError, Unreachable

Result = TypeVar("Result")


async def first_answer(asks: Iterable[Callable[[], Coroutine[Any, Any, Result]]], patience_s: float) -> Result:
    """Return the first answer; each is asked when one before has failed, or has said nothing for ``patience_s``.

    ``asks`` has at least one. Where no peer serves: raises ``Behind`` if one was, else ``Unreachable``. Any other error
    is an answer.
    """
    left = iter(asks)
    waiting: set[asyncio.Task[Result]] = set()
    failed: RaftError | None = None
    try:
        while True:
            ask = next(left, None)
            if ask is not None:
                waiting.add(asyncio.create_task(ask()))
            elif not waiting:
                raise failed or Unreachable((), 0.0)
            done, waiting = await asyncio.wait(
                waiting, timeout=None if ask is None else patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            errors = {task: task.exception() for task in done}
            for task, error in errors.items():
                if not isinstance(error, Behind | Unreachable):
                    return task.result()
                if failed is None or isinstance(error, Behind):
                    failed = error
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
