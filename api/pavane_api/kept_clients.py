"""Clients of stores, one per resource, kept while they are used."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

CLIENTS_MAX = 64  # a client is a few sockets; the one not used for longest is closed first

Client = TypeVar("Client")
Key = tuple[str, str]
"""Namespace and name of the resource."""


@dataclass(slots=True)
class _Slot(Generic[Client]):
    client: Client
    resources: AsyncExitStack
    uid: str
    made_of: Any
    users: int = 0
    dropped: bool = False


class KeptClients(Generic[Client]):
    """At most CLIENTS_MAX clients. One that is replaced or forgotten is closed when its last user has finished."""

    def __init__(self) -> None:
        self._slots: OrderedDict[Key, _Slot[Client]] = OrderedDict()
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def lent(
        self, key: Key, uid: str, made_of: Any, make: Callable[[], Awaitable[AbstractAsyncContextManager[Client]]]
    ) -> AsyncIterator[Client]:
        """Lend the client of a resource; ``make`` makes another one when ``uid`` or ``made_of`` has changed.

        Of another uid it is a resource that was deleted and made again: another store. ``made_of`` is None while
        nothing is known; then the client that there is stays.
        """
        async with self._opening:
            slot = self._slots.get(key)
            if slot is not None and (slot.uid != uid or made_of not in (None, slot.made_of)):
                await self._drop(self._slots.pop(key))
                slot = None
            if slot is None:
                made, resources = await make(), AsyncExitStack()
                slot = _Slot(await resources.enter_async_context(made), resources, uid, made_of)
                self._slots[key] = slot
                while len(self._slots) > CLIENTS_MAX:
                    await self._drop(self._slots.popitem(last=False)[1])
            self._slots.move_to_end(key)
        slot.users += 1
        try:
            yield slot.client
        finally:
            slot.users -= 1
            if slot.dropped and slot.users == 0:
                await slot.resources.aclose()

    async def forget(self, key: Key) -> None:
        """Make another client at the next use."""
        slot = self._slots.pop(key, None)
        if slot is not None:
            await self._drop(slot)

    async def close(self) -> None:
        """Close all clients, also those in use."""
        while self._slots:
            _, slot = self._slots.popitem()
            slot.dropped = True
            await slot.resources.aclose()

    async def _drop(self, slot: _Slot[Client]) -> None:
        slot.dropped = True
        if slot.users == 0:
            await slot.resources.aclose()
