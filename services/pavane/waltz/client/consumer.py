"""Consumers: who has applied a partition up to where, kept with the log (docs/specs/waltz.md 13.7)."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import NamedTuple, Self

from pavane.waltz.client.transaction import Transaction
from pavane.waltz.core.retention import WHO_CHARACTERS_MAX, no_consumer
from pavane.waltz.errors import rejected
from pavane.waltz.wire import messages as m

Feed = Callable[..., AsyncGenerator[Transaction, None]]
Ask = Callable[[int, m.ConsumerAction, str, int, int, str], Awaitable[m.ConsumerResponse]]


class ConsumerInfo(NamedTuple):
    """A consumer of a partition: ``position`` is the first transaction that it has not applied, ``lag`` how many.

    ``lag_seconds``: for how long there has been one, at least, counted since the partition has its server.
    ``idle_seconds``: since it last committed. ``held_seconds``: for how long retention waits for it; ``None``: it does
    not. ``who`` is what it says of itself.
    """

    partition: int
    name: str
    position: int
    lag: int
    lag_seconds: float
    idle_seconds: float
    held_seconds: float | None
    who: str

    @classmethod
    def of(cls, partition: int, hwm: int, state: m.ConsumerState) -> Self:
        """Return what a server says."""
        lag = max(0, hwm + 1 - state.position)
        held = None if state.held_ms < 0 else state.held_ms / 1000
        more = state.lag_ms / 1000, state.idle_ms / 1000, held, state.who
        return cls(partition, state.name, state.position, lag, *more)


class Consumer:
    """Consumer ``name``. It commits what it has *applied*, so that the log keeps the rest and knows how far it is.

    A position is per partition and stays for years. One that was removed, or never was, starts nowhere by itself:
    ``position``, ``feed`` and ``commit`` raise ``NoConsumer``, and ``start`` says where to begin. All methods raise
    ``Unavailable``, and ``Rejected`` for a name with other characters than letters, digits, dots, hyphens, underlines.
    """

    def __init__(self, feed: Feed, ask: Ask, name: str, who: str | None) -> None:
        self._feed, self._ask_log = feed, ask
        self.name = name
        self._who = (f"{socket.gethostname()}:{os.getpid()}" if who is None else who)[:WHO_CHARACTERS_MAX]
        self._since: dict[int, int] = {}

    async def position(self, partition: int) -> int:
        """Return the first transaction that it has not applied. Raises ``NoConsumer``."""
        return await self._ask(partition, m.ConsumerAction.LIST)

    async def start(self, partition: int, at: int) -> int:
        """Begin at transaction ``at``, unless it has a position already; return its position.

        Raises ``Trimmed`` if the log begins behind ``at``, and ``Rejected`` with CLIENT_AHEAD if it ends before it.
        """
        return await self._ask(partition, m.ConsumerAction.START, at)

    async def move(self, partition: int, to: int) -> int:
        """Begin at transaction ``to`` whatever its position was; whoever runs under its name is told at its commit.

        Raises as ``start``.
        """
        return await self._ask(partition, m.ConsumerAction.SET, to)

    async def commit(self, partition: int, applied: int) -> None:
        """Say that transaction ``applied`` and all before it are applied, for good: the log may give them up.

        Returns when that is durable; one call for many transactions costs as much as for one. It never goes back.
        Raises ``NoConsumer`` if the consumer was removed or moved meanwhile.
        """
        if partition not in self._since:
            await self.position(partition)
        await self._ask(partition, m.ConsumerAction.COMMIT, applied + 1)

    async def remove(self, partition: int) -> None:
        """Forget its position: retention waits no longer for it."""
        await self._call(partition, m.ConsumerAction.REMOVE, 0)

    async def feed(self, partition: int) -> AsyncGenerator[Transaction, None]:
        """Yield every transaction from its position on, for ever, as ``Waltz.feed``; the caller commits."""
        async with aclosing(self._feed(partition, from_=await self.position(partition))) as feed:
            async for transaction in feed:
                yield transaction

    async def _ask(self, partition: int, action: m.ConsumerAction, position: int = 0) -> int:
        answer = await self._call(partition, action, position)
        if not answer.consumers:
            code, text, detail = no_consumer(partition, self.name, other=False)
            raise rejected(code, detail, text)
        self._since[partition] = answer.consumers[0].since
        return answer.consumers[0].position

    async def _call(self, partition: int, action: m.ConsumerAction, position: int) -> m.ConsumerResponse:
        since = self._since.get(partition, 0)
        return await self._ask_log(partition, action, self.name, position, since, self._who)
