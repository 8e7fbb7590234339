"""Answers of actions by their Idempotency-Key, so that a repeated request acts once."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

from pavane_api.problems import Invalid

KEY_CHARACTERS_MAX = 128
ANSWERS_MAX = 10_000  # the oldest answer goes first; a key repeated after that acts again

Answer = TypeVar("Answer")


class Idempotency:
    """Remembers the answers of successful actions, and lets a repetition wait for one that is under way."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, tuple[object, asyncio.Future[Any]]] = OrderedDict()

    async def once(
        self, scope: Hashable, key: str | None, said: object, perform: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Return what ``perform`` returns; with the same ``scope`` and ``key`` it is performed only once.

        A failure is not remembered: the repetition tries again. ``said`` is what was asked for; raises ``Invalid`` if
        the key came with something else before.
        """
        if key is None:
            return await perform()
        if (scope, key) not in self._answers:
            self._answers[scope, key] = (said, asyncio.ensure_future(perform()))
            while len(self._answers) > ANSWERS_MAX:
                self._answers.popitem(last=False)
        first, task = self._answers[scope, key]
        if first != said:
            raise Invalid(f"The Idempotency-Key {key} came with another request before. Send this one with a new key.")
        try:
            answer: Answer = await asyncio.shield(task)
            return answer
        except BaseException:
            if task.done():
                self._answers.pop((scope, key), None)
            raise
