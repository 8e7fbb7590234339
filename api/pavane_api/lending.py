"""What requests share, such as the client of a cluster: made for the first one, kept while it is used."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Lent = TypeVar("Lent")
Key = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class _Slot(Generic[Lent]):
    lent: Lent
    made_of: tuple[Any, ...]
    resources: AsyncExitStack
    users: int = 0

    def fits(self, made_of: tuple[Any, ...]) -> bool:
        return all(now in (None, then) for now, then in zip(made_of, self.made_of, strict=True))


class Pool(Generic[Lent]):
    """Keeps one per key, at most ``most`` that nobody uses, and fewer while ``too_much`` holds of all.

    The one not used for longest goes first. What is in use is closed when the last user has returned it.
    """

    def __init__(self, most: int, too_much: Callable[[Iterable[Lent]], bool] = lambda _: False) -> None:
        self._most = most
        self._too_much = too_much
        self._slots: OrderedDict[Key, _Slot[Lent]] = OrderedDict()
        self._making = asyncio.Lock()

    @asynccontextmanager
    async def lend(
        self, key: Key, made_of: tuple[Any, ...], make: Callable[[], Awaitable[AbstractAsyncContextManager[Lent]]]
    ) -> AsyncIterator[Lent]:
        """Give what is kept for ``key`` until the context ends; made anew if it was made of something else. A part that
        is None is not known.

        Raises what ``make`` and entering its result raise.
        """
        async with self._making:
            slot = self._slots.get(key)
            if slot is None or not slot.fits(made_of):
                await self.drop(key)
                resources = AsyncExitStack()
                lent = await resources.enter_async_context(await make())
                slot = self._slots[key] = _Slot(lent, made_of, resources)
            self._slots.move_to_end(key)
            slot.users += 1
        try:
            yield slot.lent
        finally:
            slot.users -= 1
            if not slot.users and self._slots.get(key) is not slot:
                await slot.resources.aclose()
            await self._shrink()

    async def drop(self, key: Key) -> None:
        """Forget what is kept for ``key``: the next request gets a new one."""
        slot = self._slots.pop(key, None)
        if slot is not None and not slot.users:
            await slot.resources.aclose()

    async def close(self) -> None:
        """Close everything, used or not."""
        while self._slots:
            await self._slots.popitem()[1].resources.aclose()

    async def _shrink(self) -> None:
        for key, slot in list(self._slots.items()):
            if len(self._slots) <= self._most and not self._too_much(each.lent for each in self._slots.values()):
                return
            if not slot.users and self._slots.get(key) is slot:
                await self.drop(key)
